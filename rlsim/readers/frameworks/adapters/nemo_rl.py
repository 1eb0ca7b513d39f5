"""NeMo-RL's configurations (examples/run_grpo.py): keys and meaning at v0.7.0."""

from __future__ import annotations

from collections.abc import Iterator

from rlsim.readers.frameworks.adapters import nemo_rl_values as values
from rlsim.readers.frameworks.adapters.nemo_rl_options import (
    AsyncGrpo,
    AsyncRl,
    Drafts,
    Dtensor,
    Dynamic,
    Generation,
    Grpo,
    Kwargs,
    Loss,
    Mcore,
    Megatron,
    Packing,
    Policy,
    Sglang,
    Trtllm,
    Vllm,
    core,
)
from rlsim.readers.frameworks.adapters.nemo_rl_options import Cluster as Nodes
from rlsim.readers.frameworks.adapters.nemo_rl_values import NemoRl, of_vllm
from rlsim.readers.frameworks.asked import UNPOOLED, Facts
from rlsim.readers.frameworks.pools import nemo_rl_reward_models, nemo_rl_teachers
from rlsim.readers.frameworks.rules import Assumption, Case, Rules
from rlsim.readers.frameworks.targets import Cluster, Engine, Loop, Speculation, Trainer, Workload

of = Rules(NemoRl)
FLEX = Megatron.moe_token_dispatcher_type.holds("flex")
RULES = (
    of.either(
        of(Workload.prompts_per_step, when=lambda c: c.supervised).same(Policy.train_global_batch_size),
        of(Workload.prompts_per_step).same(Grpo.num_prompts_per_step),
    ),
    of.either(
        of(Workload.generations_per_prompt, when=lambda c: c.supervised).rule(lambda c: c.pair),
        of(Workload.generations_per_prompt).same(Grpo.num_generations_per_prompt),
    ),
    of(Workload.max_sequence_tokens).same(Policy.max_total_sequence_length),
    of(Workload.max_response_tokens).by(
        Generation.max_new_tokens, lambda c: most if 0 < (most := c.generation.max_new_tokens) < c.cap else None
    ),
    of.under(Grpo.use_dynamic_sampling, of(Workload.generated_batch_factor).same(Grpo.batch_multiplier), otherwise=1.0),
    of.under(Grpo.use_dynamic_sampling, of(Workload.max_rollouts_per_step).same(Grpo.dynamic_sampling_max_gen_batches)),
    of(Cluster.num_gpus).rule(lambda c: c.cluster.num_nodes * c.node - c.elsewhere_gpus, values.set_num_gpus),
    of(Cluster.generation_gpus).rule(values.generation_gpus, values.set_generation_gpus),
    # Nodes of a segment: those of an NVL72 domain that NeMo-RL's recipes take (16 of 18, of 4 GPUs), else the node.
    of(Cluster.placement).rule(
        lambda c: "aligned" if c.cluster.segment_size else None,
        lambda c, value: [Nodes.segment_size.to(None if value != "aligned" else 16 if c.node == 4 else 1)],
    ),
    of(Loop.supervised).rule(lambda c: c.supervised or None),
    of(Loop.mode).rule(lambda c: "async" if c.asynchronous else "sync", values.set_mode),
    of(Loop.overlap, when=lambda c: c.async_colocated).constant(False),
    of.either(
        of(Loop.policy_lag, when=lambda c: c.asynchronous_grpo).same(AsyncGrpo.max_trajectory_age_steps, least=1),
        of(Loop.policy_lag, when=lambda c: c.lagged and c.in_order).same(AsyncRl.max_lookahead_versions, least=1),
        of(Loop.policy_lag, when=lambda c: c.lagged).by(AsyncRl.max_staleness_versions, lambda c: c.staleness),
    ),
    of.either(
        of(Loop.style, when=lambda c: c.lagged).words(
            AsyncRl.sampler,
            ("in_order", "nemo_rl_in_order"),
            ("ready_first", "nemo_rl_ready_first"),
            ("weight_fifo", "nemo_rl_weight_fifo"),
            ("windowed", "nemo_rl_windowed"),
            readonly=True,
        ),
        of(Loop.style, when=lambda c: c.asynchronous).constant("nemo_rl"),
    ),
    # The synchronous engine cannot publish weights under running requests: NeMo-RL then waits for all of them.
    of(Loop.in_flight_updates, when=lambda c: c.asynchronous_grpo).cases(
        Case(True, [AsyncGrpo.in_flight_weight_updates.holds(True)], when=lambda c: not c.on_vllm),
        Case(True, [AsyncGrpo.in_flight_weight_updates.holds(True), Vllm.async_engine.holds(True)]),
        Case(False, [AsyncGrpo.in_flight_weight_updates.holds(False)]),
    ),
    of.either(
        of(Loop.recompute_kv, when=lambda c: c.asynchronous_grpo).same(
            AsyncGrpo.recompute_kv_cache_after_weight_updates
        ),
        of(Loop.recompute_kv, when=lambda c: c.lagged).same(AsyncRl.recompute_kv_cache_after_weight_updates),
    ),
    of(Loop.max_age, when=lambda c: c.windowed).same(AsyncRl.max_staleness_versions),
    of(Loop.max_in_flight_groups, when=lambda c: c.lagged).same(AsyncRl.max_inflight_prompts),
    of(Engine.name).words(
        Generation.backend,
        ("vllm", "vllm"),
        ("sglang", "sglang"),
        ("trtllm", "trtllm"),
        ("megatron", "vllm"),
        ("dynamo", "vllm"),
    ),
    of(Engine.tensor_parallel).rule(
        lambda c: c.engine_tensor * c.copies,
        lambda c, value: [values.set_tensor(c, value // c.copies)],
    ),
    of.either(
        of(Engine.pipeline_parallel, when=lambda c: c.on_megatron).same(Mcore.pipeline_model_parallel_size),
        of(Engine.pipeline_parallel, when=lambda c: c.on_sglang).same(Sglang.pp_size),
        of(Engine.pipeline_parallel, when=lambda c: c.on_trtllm).constant(1),
        of(Engine.pipeline_parallel, when=of_vllm).same(Vllm.pipeline_parallel_size),
    ),
    of(Engine.expert_parallel).rule(
        lambda c: c.engine_expert,
        lambda c, value: [
            c.of_engine(
                Trtllm.moe_expert_parallel_size,
                Mcore.expert_model_parallel_size,
                Sglang.ep_size,
                Vllm.expert_parallel_size,
            ).to(value)
        ],
    ),
    of(Engine.attention_data_parallel).rule(lambda c: c.copies, values.set_copies),
    of.either(
        of(Engine.weight_precision, when=lambda c: c.nvfp4).constant("nvfp4"),
        of(Engine.weight_precision, when=lambda c: c.on_trtllm).words(
            Trtllm.precision, ("fp8*", "fp8_block"), ("nvfp4*", "nvfp4"), other="bf16"
        ),
        of(Engine.weight_precision, when=of_vllm).cases(
            Case("fp8", [Vllm.precision.holds("fp8"), Vllm.is_mx.holds(True)]),
            Case("fp8_block", [Vllm.precision.holds("fp8")], [Vllm.is_mx.to(False)]),
            Case("nvfp4", [Vllm.precision.holds("nvfp4")]),
            Case("bf16", [Vllm.precision.holds("bfloat16")]),
        ),
    ),
    of.either(
        of(Engine.kv_precision, when=lambda c: c.on_sglang).words(
            Sglang.kv_cache_dtype, ("auto", "bf16"), ("fp8_e4m3", "fp8"), ("fp8*", "fp8"), other="bf16"
        ),
        of(Engine.kv_precision, when=of_vllm).words(
            Vllm.kv_cache_dtype, ("auto", "bf16"), ("fp8", "fp8"), ("fp8*", "fp8"), other="bf16"
        ),
    ),
    of.either(
        of(Engine.dispatch, when=lambda c: c.on_megatron or c.on_sglang).constant("round_robin"),
        of(Engine.dispatch, when=lambda c: c.on_trtllm).switched(Trtllm.async_engine, "round_robin", "static"),
        # The older loop stops without the asynchronous engine, with which ranks take turns (algorithms/grpo.py:4119,
        # models/generation/vllm/vllm_generation.py:838-841 at 7ea279abf).
        of(Engine.dispatch, when=lambda c: c.asynchronous_grpo).constant("round_robin"),
        of(Engine.dispatch).switched(Vllm.async_engine, "round_robin", "static"),
    ),
    # Where nothing is set: vLLM's LLM class on GPUs of 70 GiB and more, and AsyncLLM without a usage context
    # (vLLM 0.20).
    of.either(
        of(Engine.max_running_sequences, when=lambda c: c.on_trtllm).same(Trtllm.max_batch_size),
        of(Engine.max_running_sequences, when=lambda c: c.on_megatron).same(Mcore.max_requests),
        of(Engine.max_running_sequences, when=lambda c: c.on_sglang).same(Sglang.max_running_requests),
        of(Engine.max_running_sequences, when=of_vllm).by(
            Kwargs.max_num_seqs, lambda c: c.kwargs.max_num_seqs or (128 if c.async_engine else 1024)
        ),
    ),
    of.either(
        of(Engine.max_batched_tokens, when=lambda c: c.on_trtllm).same(Trtllm.max_num_tokens),
        of(Engine.max_batched_tokens, when=lambda c: c.on_megatron).same(Mcore.max_tokens),
        of(Engine.max_batched_tokens, when=lambda c: c.on_sglang).same(Sglang.chunked_prefill_size),
        of(Engine.max_batched_tokens, when=of_vllm).by(
            Kwargs.max_num_batched_tokens,
            lambda c: c.kwargs.max_num_batched_tokens or (2048 if c.async_engine else 16384),
        ),
    ),
    of.either(
        of(Engine.gpu_memory_utilization, when=lambda c: c.on_trtllm).same(Trtllm.gpu_memory_utilization),
        of(Engine.gpu_memory_utilization, when=lambda c: c.on_sglang).same(Sglang.mem_fraction_static),
        of(Engine.gpu_memory_utilization, when=of_vllm).same(Vllm.gpu_memory_utilization),
    ),
    of.either(
        of(Engine.cuda_graphs, when=lambda c: c.on_sglang).opposite(Sglang.disable_cuda_graph),
        of(Engine.cuda_graphs, when=of_vllm).opposite(Vllm.enforce_eager),
    ),
    of.either(
        of(Engine.prefix_caching, when=lambda c: c.on_sglang).opposite(Sglang.disable_radix_cache),
        of(Engine.prefix_caching, when=lambda c: c.on_megatron).same(Mcore.enable_prefix_caching),
        of(Engine.prefix_caching, when=of_vllm).same(Vllm.enable_prefix_caching),
    ),
    of.either(
        of(Engine.chunked_prefill, when=lambda c: c.on_megatron).same(Mcore.enable_chunked_prefill),
        of(Engine.chunked_prefill, when=of_vllm).same(Kwargs.enable_chunked_prefill),
    ),
    of(Engine.max_captured_tokens, when=of_vllm).by(
        Kwargs.max_cudagraph_capture_size,
        lambda c: (
            c.kwargs.max_cudagraph_capture_size
            or max(c.kwargs.compiled_sizes or c.kwargs.cudagraph_capture_sizes or [0])
            or None
        ),
    ),
    of(Engine.async_scheduling, when=of_vllm).same(Kwargs.async_scheduling),
    of(Speculation.method).rule(lambda c: c.method, values.set_method),
    of(Speculation.draft_length, when=of_vllm).same(Drafts.num_speculative_tokens),
    of(Speculation.parallel_drafting, when=of_vllm).same(Drafts.parallel_drafting),
    of(Speculation.draft_tensor_parallel, when=of_vllm).same(Drafts.draft_tensor_parallel_size),
    of(Speculation.policy, when=of_vllm).rule(lambda c: "by_schedule" if c.batch_drafts else None),
    of(Speculation.schedule, when=of_vllm).rule(lambda c: c.batch_drafts),
    of(Speculation.online_training).by(Policy.draft, lambda c: c.policy.draft and c.method is not None),
    of(Trainer.backend).cases(
        Case("megatron", [Megatron.enabled.holds(True)], [Dtensor.enabled.to(False)]),
        Case("fsdp", [Megatron.enabled.holds(False)], [Dtensor.enabled.to(True)]),
    ),
    of.either(
        of(Trainer.tensor_parallel, when=lambda c: c.megatron).same(Megatron.tensor_model_parallel_size),
        of(Trainer.tensor_parallel).same(Dtensor.tensor_parallel_size),
    ),
    of(Trainer.pipeline_parallel, when=lambda c: c.megatron, otherwise=1).same(Megatron.pipeline_model_parallel_size),
    of.either(
        of(Trainer.context_parallel, when=lambda c: c.megatron).same(Megatron.context_parallel_size),
        of(Trainer.context_parallel).same(Dtensor.context_parallel_size),
    ),
    of.either(
        of(Trainer.expert_parallel, when=lambda c: c.megatron).same(Megatron.expert_model_parallel_size),
        of(Trainer.expert_parallel).same(Dtensor.expert_parallel_size),
    ),
    of(Trainer.expert_tensor_parallel, when=lambda c: c.megatron).same(Megatron.expert_tensor_parallel_size),
    of(Trainer.precision, when=lambda c: c.megatron, otherwise="bf16").switched(Megatron.fp8, "fp8", "bf16"),
    of.either(
        of.under(Megatron.peft, of(Trainer.lora_rank, when=lambda c: c.megatron).same(Megatron.peft_dim)),
        of.under(Dtensor.lora, of(Trainer.lora_rank).same(Dtensor.lora_dim)),
    ),
    of(Trainer.global_batch_samples).same(Policy.train_global_batch_size),
    of(Trainer.epochs).same(Grpo.ppo_epochs),
    of(Trainer.critic).rule(lambda c: c.value is not None),
    of(Trainer.sequence_packing).cases(
        Case(True, [Packing.enabled.holds(True)], [Dynamic.enabled.to(False)]),
        Case(True, [Dynamic.enabled.holds(True)]),
        Case(False, [Packing.enabled.holds(False), Dynamic.enabled.holds(False)]),
    ),
    # As stated, else the cap times the samples of a micro-batch.
    of.either(
        of(Trainer.micro_batch_tokens, when=lambda c: c.packed).by(
            Packing.train_mb_tokens, lambda c: c.packing.train_mb_tokens or c.cap * c.policy.train_micro_batch_size
        ),
        of(Trainer.micro_batch_tokens, when=lambda c: c.dynamic_batches).by(
            Dynamic.train_mb_tokens, lambda c: c.dynamic.train_mb_tokens or c.cap * c.policy.train_micro_batch_size
        ),
    ),
    of.either(
        of(Trainer.logprob_micro_batch_tokens, when=lambda c: c.packed).by(
            Packing.logprob_mb_tokens, lambda c: c.packing.logprob_mb_tokens or c.cap * c.logprob_samples
        ),
        of(Trainer.logprob_micro_batch_tokens, when=lambda c: c.dynamic_batches).by(
            Dynamic.logprob_mb_tokens, lambda c: c.dynamic.logprob_mb_tokens or c.cap * c.logprob_samples
        ),
    ),
    of.either(
        # algorithms/dpo.py:602-603 at 7ea279abf: batches are counted in pairs.
        of(Trainer.micro_batch_samples, when=lambda c: c.unpacked and c.pair == 2).by(
            Policy.train_micro_batch_size, lambda c: 2 * c.policy.train_micro_batch_size
        ),
        of(Trainer.micro_batch_samples, when=lambda c: c.unpacked).same(Policy.train_micro_batch_size),
    ),
    # models/policy/workers/megatron_policy_worker.py:1835-1857, dtensor_policy_worker.py:1039-1083 at 7ea279abf.
    of(Trainer.logprob_micro_batch_samples, when=lambda c: c.unpacked and not c.supervised).same(
        Policy.logprob_batch_size
    ),
    of(Trainer.recompute).rule(values.recompute, values.set_recompute),
    *core(of, lambda c: c.megatron),
    of(Trainer.mtp_layers, when=lambda c: c.megatron, otherwise=0).same(Megatron.mtp_num_layers),
    of(Trainer.optimizer, when=lambda c: c.megatron, otherwise="adam").words(
        Megatron.optimizer, ("muon", "muon"), ("adam", "adam"), ("*muon*", "muon"), other="adam"
    ),
    of(Trainer.optimizer_bytes_per_parameter).by(Megatron.use_precision_aware_optimizer, values.optimizer_bytes),
    of.either(
        of(Trainer.optimizer_on_host, when=lambda c: c.megatron).same(Megatron.optimizer_cpu_offload),
        of(Trainer.optimizer_on_host).same(Dtensor.cpu_offload),
    ),
    of(Trainer.logits_chunk_tokens, when=lambda c: c.megatron).rule(values.logits_chunk_tokens),
    # algorithms/grpo.py:2493-2494 at 7ea279abf: a ratio forced to 1 needs none, a bound on their error does.
    of(Trainer.policy_logprobs).cases(
        Case(False, [Loss.force_on_policy_ratio.holds(True), Grpo.seq_logprob_error_threshold.holds(None)]),
        Case(True, [Loss.force_on_policy_ratio.holds(False)]),
    ),
    of(Trainer.reference_logprobs).rule(
        lambda c: (
            c.pair == 2
            if c.supervised
            else not c.grpo.skip_reference_policy_logprobs_calculation and c.loss.reference_policy_kl_penalty > 0
        ),
        values.set_reference_logprobs,
    ),
    # Unset: as the stack's recipes do. flex sends through HybridEP, or through DeepEP where that is enabled.
    of(Trainer.moe_dispatcher, when=lambda c: c.megatron).cases(
        Case(
            "deepep",
            [Megatron.moe_enable_deepep.holds(True)],
            [Megatron.moe_token_dispatcher_type.to("flex"), Megatron.moe_flex_dispatcher_backend.to("deepep")],
        ),
        Case("deepep", [FLEX, Megatron.moe_flex_dispatcher_backend.holds("deepep", None)]),
        Case(
            "hybridep",
            [FLEX],
            [Megatron.moe_flex_dispatcher_backend.to("hybridep"), Megatron.moe_enable_deepep.to(False)],
        ),
        Case(
            "alltoall",
            [Megatron.moe_token_dispatcher_type.holds("alltoall", "allgather")],
            [Megatron.moe_enable_deepep.to(False)],
        ),
        Case(None),
    ),
    of(Loop.refit_method).words(
        Generation.refit_transport,
        ("nccl_reshard", "nccl_reshard"),
        ("nixl", "rdma"),
        ("vllm_zmq_sparse", "delta_sharded"),
        (None, "auto"),
        (None, "cuda_ipc"),
        (None, "nccl_broadcast"),
        other="auto",
    ),
)


def _facts(c: NemoRl) -> Facts:
    # algorithms/distillation.py at 7ea279abf: generation, the teacher's top-k logits, the update; no other pass.
    alone = ("trainer.policy_logprobs", "trainer.reference_logprobs") if c.r.text("teacher.model_name") else ()
    return Facts(
        settings=tuple((key, False) for key in alone),
        gpus_per_node=c.node,
        prompt_cap=c.data.max_input_seq_length or c.cap,
        response_cap=min(c.generation.max_new_tokens or c.cap, c.engine_cap or c.cap),
        turns=1 if c.supervised else c.turns,
        pools=() if c.supervised else (*nemo_rl_teachers(c), *nemo_rl_reward_models(c)),
        supervised=c.supervised,
        drafter=(c.drafts.model or "") if c.on_vllm else "",
        dynamic=c.grpo.use_dynamic_sampling and not c.supervised,
    )


def _assumptions(c: NemoRl) -> Iterator[Assumption]:
    if c.elsewhere_gpus > 0:
        yield Assumption(
            "GPUs of a reward model or of teachers are not among the cluster's; what they do is not simulated.",
            UNPOOLED,
        )
    if c.dynamic_batches:
        yield Assumption(
            "Dynamic batching is simulated as packing of the same capacity; its padding to the longest sample of a "
            "micro-batch is left out.",
            [Trainer.sequence_packing],
        )
    if c.copies > 1:
        yield Assumption(
            "Experts over more GPUs than vllm_cfg.tensor_parallel_size come with data-parallel attention, so a replica "
            "has expert_parallel_size GPUs.",
            [Engine.tensor_parallel, Engine.expert_parallel],
        )
    if c.weights_only:
        yield Assumption(
            f"NVFP4 weights with BF16 activations ({c.shown(Generation.quant_cfg)}) are simulated as NVFP4 throughout.",
            [Engine.weight_precision],
        )
    if c.async_colocated:
        yield Assumption("Generation and training take turns on the same GPUs.", [Loop.overlap])
    if c.generation.backend.lower() in ("megatron", "dynamo"):
        yield Assumption(f"vLLM stands in for the {c.shown(Generation.backend)} engine.", [Engine.name])
    if c.policy.precision != "bfloat16":
        yield Assumption(f"Training in {c.shown(Policy.precision)} is simulated as bf16.", [Trainer.precision])


CONTROLLER = "examples/run_grpo_single_controller.py"
FRAMEWORK = of.framework(
    "nemo-rl",
    RULES,
    _facts,
    _assumptions,
    unused=values.unused,
    model=Policy.model_name,
    node_size=Nodes.gpus_per_node,
    shipped={"grpo_math_1B.yaml": ["nemo_rl"]},
    home="github.com/NVIDIA-NeMo/RL (examples)",
    entry={
        r"(^|/)run_(grpo|vlm_grpo|ppo|distillation)\w*\.py$": {"config": "examples/configs/grpo_math_1B.yaml"},
        r"(^|/)run_(vlm_)?sft\w*\.py$": {"config": "examples/configs/sft.yaml"},
        r"(^|/)run_dpo\w*\.py$": {"config": "examples/configs/dpo.yaml"},
    },
    programs={
        **{f"nemo_rl_{name}": CONTROLLER for name in ("in_order", "ready_first", "weight_fifo", "windowed")},
        "skyrl": f"{CONTROLLER}, or nearly so, with async_rl.sampler.name=ready_first",
    },
    renamed={"ppo.async_ppo": "grpo.async_grpo", "ppo": "grpo", "distillation": "grpo"},
)
