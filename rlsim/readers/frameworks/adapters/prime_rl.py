"""prime-rl's configurations (packages/prime-rl-configs; ``uv run rl @ rl.toml``) at 559b44772; lines below as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlsim.readers.frameworks.adapters.nemo_rl_options import sought
from rlsim.readers.frameworks.adapters.prime_rl_options import Deployment, Model, Orchestrator, PrimeRl, Vllm
from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.pools import prime_rl_teachers
from rlsim.readers.frameworks.rules import INT4, Assumption, Rules
from rlsim.readers.frameworks.targets import Cluster, Engine, Loop, RefitMethod, Trainer, Workload

TRANSFERS: Mapping[str | None, RefitMethod] = {"nccl": "nccl_broadcast", "nixl": "rdma", "filesystem": "disk"}


def _expert_parallel(c: PrimeRl) -> int:
    if not c.auto:
        return int(c.model.ep)
    return min(max(1, c.train_gpus // c.model.dp_replicate), 8) if c.experts else 1


def _logits_chunk(c: PrimeRl) -> int | None:
    stated = c.model.logits_chunk
    # trainer.py:262: in chunks where nothing is stated.
    return None if stated == "disabled" else 8192 if stated is None else int(stated)


of = Rules(PrimeRl)
RULES = (
    of(Workload.prompts_per_step).by(Orchestrator.batch_size, lambda c: max(1, c.samples // c.group)),
    of(Workload.generations_per_prompt).by(Orchestrator.group_size, lambda c: c.group),
    of(Workload.max_sequence_tokens).by(PrimeRl.seq_len, lambda c: c.cap),
    of(Workload.max_response_tokens).by(
        Orchestrator.max_completion_tokens, lambda c: c.completion if c.completion < c.cap else None
    ),
    of(Cluster.num_gpus).by(Deployment.num_train_gpus, lambda c: c.train_gpus + c.infer_gpus),
    of(Cluster.generation_gpus).by(Deployment.num_infer_gpus, lambda c: c.infer_gpus),
    of(Loop.mode).constant("async"),
    of(Loop.style).constant("prime_rl"),
    # orchestrator.py:532-533: versions in flight and in the queue together.
    of(Loop.max_age).same(Orchestrator.max_off_policy_steps),
    of(Loop.max_in_flight_groups).rule(lambda c: max(1, c.orchestrator.max_inflight // c.group)),
    of(Engine.name).constant("vllm"),
    of(Engine.tensor_parallel).rule(
        lambda c: c.tp * c.copies, lambda c, value: [Vllm.tensor_parallel_size.to(value // c.copies)]
    ),
    of(Engine.attention_data_parallel).rule(lambda c: c.copies),
    of(Engine.expert_parallel).rule(lambda c: c.tp * c.copies if c.experts_apart else 1),
    of(Engine.Prefill.gpus, when=lambda c: c.disaggregated).rule(
        lambda c: c.prefill_nodes * c.deployment.num_infer_replicas * c.deployment.gpus_per_node
    ),
    of(Engine.Prefill.tensor_parallel, when=lambda c: c.disaggregated).rule(lambda c: c.prefill_span),
    of(Engine.Prefill.expert_parallel, when=lambda c: c.disaggregated and c.experts_apart).rule(
        lambda c: c.prefill_span
    ),
    # vLLM infers it from the checkpoint where it is not stated (inference.py:108-109).
    of.either(
        of(Engine.weight_precision, when=lambda c: c.vllm.quantization is not None).words(
            Vllm.quantization, ("fp8*", "fp8_block"), ("nvfp4*", "nvfp4"), *INT4, other="bf16"
        ),
        of(Engine.weight_precision).rule(lambda c: "fp8_block" if c.vllm.model.upper().endswith("-FP8") else "bf16"),
    ),
    of(Engine.dispatch).constant("round_robin"),
    # A trajectory's requests name their session (inference.py:163-172), which llm-d scores by its cached prefix.
    of.either(
        of(Engine.session_routing, when=lambda c: c.router == "llm-d").constant("cache_aware"),
        of(Engine.session_routing).words(
            PrimeRl.router_policy,
            ("consistent_hash", "sticky"),
            ("cache_aware", "cache_aware"),
            ("", None),
            other="least_loaded",
        ),
    ),
    of(Engine.max_running_sequences).same(Vllm.max_num_seqs),
    # What vLLM takes as it stands (inference.py:135-153).
    of(Engine.max_batched_tokens).same(Vllm.max_num_batched_tokens),
    of(Engine.max_captured_tokens).same(Vllm.max_cudagraph_capture_size),
    of(Engine.kv_precision).words(Vllm.kv_cache_dtype, ("auto", "bf16"), ("fp8", "fp8"), ("fp8*", "fp8"), other="bf16"),
    of(Engine.chunked_prefill).same(Vllm.enable_chunked_prefill),
    of(Engine.async_scheduling).same(Vllm.async_scheduling),
    of(Engine.gpu_memory_utilization).same(Vllm.gpu_memory_utilization),
    of(Engine.cuda_graphs).opposite(Vllm.enforce_eager),
    of(Engine.prefix_caching).same(Vllm.enable_prefix_caching),
    # Of each GPU; Mooncake's store is one for all (inference.py:260-268).
    of(Engine.Kv_Offload.capacity_bytes, when=lambda c: c.kv_offload).by(
        PrimeRl.offload_bytes, lambda c: (c.offload_bytes or 0) / c.kv_offload_gpus
    ),
    of(Engine.Kv_Offload.shared, when=lambda c: c.kv_offload).words(
        PrimeRl.offload_type, ("mooncake", True), ("native", False)
    ),
    of(Trainer.backend).constant("fsdp"),
    of(Trainer.context_parallel).same(Model.cp),
    of(Trainer.expert_parallel).by(Model.ep, _expert_parallel),
    of(Trainer.precision).rule(
        lambda c: "fp8" if c.model.quantization or c.model.fp8 else "bf16",
        lambda _, value: [Model.quantization_type.to("fp8")] if value == "fp8" else [],  # configs/trainer.py:161
    ),
    # trainer.py:104: a rank of 16 where the section states none.
    of(Trainer.lora_rank, when=lambda c: c.lora).rule(
        lambda c: c.model.lora_rank, lambda _, value: [Model.lora_rank.to(value or 0)]
    ),
    of(Trainer.flash_attention_2).words(Model.attn, ("flash_attention_2", True), ("*", False), readonly=True),
    # orchestrator.py:629: a batch holds whole groups, which one counted in tokens need not come to.
    of(Trainer.global_batch_samples).rule(lambda c: max(1, c.samples // c.group) * c.group),
    of(Trainer.sequence_packing).constant(True),
    of(Trainer.micro_batch_tokens).rule(lambda c: c.cap),
    # trainer.py:32, 191: full where nothing is stated.
    of(Trainer.recompute).rule(lambda c: "selective" if c.model.ac_mode == "selective" else "full"),
    of(Trainer.activations_on_host).rule(lambda c: (c.waits_on_host and c.model.ac_mode != "selective") or None),
    of(Trainer.optimizer).words(
        PrimeRl.optimizer, ("muon", "muon"), ("adamw", "adam"), ("*muon*", "muon"), other="adam"
    ),
    # FP32 masters, beside them AdamW's moments, SGD's momentum or nothing (configs/trainer.py:57-72, 426-460). In BF16
    # (trainer/model.py:1332, as VLM must be, 615) the weights are their own masters.
    of.either(
        of(Trainer.optimizer_bytes_per_parameter, when=lambda c: c.moments_in_bf16).constant(4.0),
        of(Trainer.optimizer_bytes_per_parameter).words(
            PrimeRl.optimizer, ("sign_sgd", 4.0), ("sgd", 8.0), other=12.0, readonly=True
        ),
    ),
    # Ratios are taken over the log-probs of the engines (src/prime_rl/trainer/rl/loss.py:100-103).
    of(Trainer.policy_logprobs).constant(False),
    of(Trainer.optimizer_on_host).by(Model.optim_cpu_offload, lambda c: c.model.optim_cpu_offload or c.whole_offload),
    of(Trainer.optimizer_step).rule(lambda c: "host" if c.whole_offload else "device"),
    of(Trainer.logits_chunk_tokens).by(Model.logits_chunk, _logits_chunk),
    of(Trainer.reference_logprobs).constant(False),
    of(Trainer.moe_dispatcher).words(Model.ep_comm_backend, ("deepep*", "deepep"), ("torch", None), readonly=True),
    # With LoRA through files alone, else NCCL where not stated (rl.py:449-465).
    of(Loop.refit_method).rule(lambda c: "disk" if c.lora else TRANSFERS.get(c.broadcast, "auto")),
    # rl.py:148: in the engines' FP8 where asked for, else in the checkpoint's format.
    of(Loop.refit_precision).rule(lambda c: "engine" if c.quantized_transfer else None),
)


def _facts(c: PrimeRl) -> Facts:
    # The trainer's own name or the shared one, never both (utils/validation.py:67-73); the defaults lead from the
    # latter to the former.
    return Facts(
        model_key=Model.name.key if c.model.name else PrimeRl.name.key,
        gpus_per_node=c.deployment.gpus_per_node,
        prompt_cap=c.cap - c.completion if c.completion < c.cap else c.cap,
        response_cap=min(c.cap, c.completion),
        cap_of_turn=True,
        turns=sought(c.orchestrator.source, "max_turns") or 1,
        least_turns=sought(c.orchestrator.source, "min_turns") or 1,
        pools=prime_rl_teachers(c.r, c.environments),
    )


def _assumptions(c: PrimeRl) -> Iterator[Assumption]:
    if c.orchestrator.token_batch_size is not None:
        yield Assumption(
            f"A step of {c.orchestrator.token_batch_size} tokens is simulated as as many mean samples.",
            [Workload.prompts_per_step],
        )
    if c.r.value("orchestrator.algo.sampling.source.name"):
        yield Assumption(
            "The frozen model behind a server that samples come from has the policy's layers and generates as the "
            "policy would on the engines of the run.",
            [Engine.tensor_parallel],
        )
    if c.auto and c.experts:
        yield Assumption(
            "Experts lie on 8 GPUs at the most where trainer.model.ep is not stated (prime-rl's auto).",
            [Trainer.expert_parallel],
        )


FRAMEWORK = of.framework(
    "prime-rl",
    RULES,
    _facts,
    _assumptions,
    borrowed="prime-rl",
    model=PrimeRl.name,
    node_size=Deployment.gpus_per_node,
    form="toml",
    shipped={"prime_rl": ["prime_rl"]},
    entry={"^rl$": {}, r"prime_rl\.entrypoints\.rl$": {}},
    # Names of April 2026 (PrimeIntellect-ai/prime-rl#2280).
    renamed={
        "orchestrator.rollouts_per_example": Orchestrator.group_size.key,
        "orchestrator.sampling.max_tokens": Orchestrator.max_completion_tokens.key,
        "inference.gpu_memory_utilization": Vllm.gpu_memory_utilization.key,
        "inference.enable_lora": "inference.vllm.enable_lora",
        "inference.model.max_model_len": "inference.vllm.max_model_len",
    },
)
