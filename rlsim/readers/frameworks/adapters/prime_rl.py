"""prime-rl's configurations (packages/prime-rl-configs; ``uv run rl @ rl.toml``) at 559b44772; lines below as well."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rlsim.loading.models import card_by_shape, load_card
from rlsim.readers.frameworks.adapters.nemo_rl_values import sought
from rlsim.readers.frameworks.adapters.pools import prime_rl_teachers
from rlsim.readers.frameworks.asked import Facts
from rlsim.readers.frameworks.options import Options, Part, anything, aside, flag, integer, number, size, switch, text
from rlsim.readers.frameworks.rules import INT4, Assumption, Rules
from rlsim.readers.frameworks.targets import Cluster, Engine, Loop, RefitMethod, Trainer, Workload

TRANSFERS: Mapping[str | None, RefitMethod] = {"nccl": "nccl_broadcast", "nixl": "rdma", "filesystem": "disk"}


class Deployment(Options, section="deployment"):
    """GPUs of both halves."""

    type = text()
    gpus_per_node = integer(8)
    num_train_gpus, num_train_nodes, num_infer_gpus = size(), size(), size()
    num_infer_nodes = integer()
    num_infer_replicas = size()


class Replica(Options, section="inference.deployment"):
    """Nodes of one inference replica."""

    type = text()
    num_nodes = integer()
    prefill_nodes_per_replica, num_prefill_replicas, decode_nodes_per_replica = size(), size(), size()
    num_decode_replicas = size()


class Orchestrator(Options, section="orchestrator"):
    """Of a step."""

    batch_size = integer(128)
    token_batch_size = integer()
    group_size = size()
    seq_len = integer()
    source = anything(name="train.source")
    max_completion_tokens = integer(name="train.sampling.max_completion_tokens")
    max_off_policy_steps = integer(8)
    max_inflight = integer(1024, name="concurrency.max_inflight")


class Vllm(Options, section="inference.vllm"):
    """Of the engines."""

    model = text("")
    tensor_parallel_size = integer()
    data_parallel_size = size()
    enable_expert_parallel = flag()
    quantization = text()
    max_num_seqs = integer()
    gpu_memory_utilization = number(0.9)
    enforce_eager = flag(False)
    enable_prefix_caching = flag()


class Model(Options, section="trainer.model"):
    """Of training."""

    name = text()
    impl = aside(text("auto"))
    seq_len = integer()
    cp = integer(1)
    ep = anything()
    dp_replicate = aside(size())
    attn = text()
    lora = anything()
    optimization_dtype = text("float32")
    lora_rank = integer(16, name="lora.rank")
    quantization, fp8 = anything(), anything()
    ac_mode = text("", name="ac.mode")
    optim_cpu_offload = switch(True)
    fsdp_cpu_offload = switch()
    full_offload = anything()
    logits_chunk = anything(name="fused_lm_head_token_chunk_size")
    ep_comm_backend = text()


class PrimeRl(Options):
    """A whole configuration."""

    deployment, replica = Part(Deployment), Part(Replica)
    orchestrator, vllm, model = Part(Orchestrator), Part(Vllm), Part(Model)
    name = text("", name="model.name")
    seq_len = integer()
    inference_tp = size(name="inference.parallel.tp")
    optimizer = text(name="trainer.optim.type")
    broadcast = text(name="weight_broadcast.type")
    router, router_policy = text(name="inference.router.type"), text(name="inference.router.policy")
    quantized_transfer = switch(name="weight_broadcast.quantize_in_weight_transfer")

    @property
    def multi(self) -> bool:
        """Whether both halves are counted in nodes."""
        return self.deployment.type == "multi_node"

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode are apart."""
        return self.replica.type == "disaggregated"

    @property
    def replica_nodes(self) -> int:
        """Nodes of a replica: rl.py:304-329, inference.py:375-428."""
        one = self.replica
        if stated := self.deployment.num_infer_nodes:
            return stated
        if self.disaggregated:
            return self.prefill_nodes + one.decode_nodes_per_replica * one.num_decode_replicas
        return one.num_nodes or (2 if one.type == "multi_node" else 1)

    @property
    def prefill_nodes(self) -> int:
        """Nodes of a replica that prefill alone."""
        return self.replica.prefill_nodes_per_replica * self.replica.num_prefill_replicas

    @property
    def prefill_span(self) -> int:
        """GPUs of an engine that prefills alone."""
        nodes = self.replica.prefill_nodes_per_replica
        return nodes * self.deployment.gpus_per_node if self.multi and self.experts_apart else self.tp

    @property
    def infer_nodes(self) -> int:
        """Nodes of all replicas."""
        return self.replica_nodes * self.deployment.num_infer_replicas

    @property
    def infer_gpus(self) -> int:
        """GPUs that generate."""
        one = self.deployment
        return self.infer_nodes * one.gpus_per_node if self.multi else one.num_infer_gpus

    @property
    def train_gpus(self) -> int:
        """GPUs that train."""
        one = self.deployment
        return one.num_train_nodes * one.gpus_per_node if self.multi else one.num_train_gpus

    @property
    def environments(self) -> list[Mapping[str, Any]]:
        """The environments that are trained on."""
        listed = self.orchestrator.source
        return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []

    @property
    def source(self) -> Mapping[str, Any]:
        """The first of them."""
        return next(iter(self.environments), {})

    @property
    def group(self) -> int:
        """Samples of a prompt."""
        # orchestrator.py:235-237: that of an environment counts before the shared one.
        return int(self.source.get("group_size") or self.orchestrator.group_size)

    @property
    def cap(self) -> int:
        """Most tokens of a sample."""
        return self.orchestrator.seq_len or self.seq_len or self.model.seq_len or 2048

    @property
    def completion(self) -> int:
        """Most tokens of a response."""
        sampling = self.source.get("sampling") or {}
        return int(sampling.get("max_completion_tokens") or self.orchestrator.max_completion_tokens or self.cap)

    @property
    def samples(self) -> int:
        """Samples of a step."""
        tokens = self.orchestrator.token_batch_size
        return self.orchestrator.batch_size if tokens is None else round(tokens / (self.r.mean_tokens or self.cap))

    @property
    def auto(self) -> bool:
        """Whether prime-rl chooses the GPUs of a layer's experts: parallel_dims.py:273-311."""
        return (self.model.ep or "auto") == "auto"

    @property
    def experts(self) -> bool:
        """Whether the model has experts that lie apart. It has them where its configuration holds num_experts or
        n_routed_experts, which gpt-oss, MiniMax and Mixtral (num_local_experts) do not."""
        if self.model.impl not in ("custom", "auto") or (found := card_by_shape(self.name)) is None:
            return False
        moe = load_card(found[0]).moe
        others = re.search("gpt-oss|minimax|mixtral", self.name.lower())
        return moe is not None and moe.num_experts > 0 and others is None

    @property
    def tp(self) -> int:
        """GPUs that share a layer of an engine beside its copies."""
        return self.vllm.tensor_parallel_size or self.inference_tp

    @property
    def experts_apart(self) -> bool:
        """Whether an engine's experts lie apart; on by itself where prefill and decode are (inference.py:529-543)."""
        stated = self.vllm.enable_expert_parallel
        return self.disaggregated if stated is None else stated

    @property
    def copies(self) -> int:
        """Attention copies of an engine with its experts apart: of a node as many as fit (inference.py:538), of all
        nodes of an instance (templates/multi_node_rl.sbatch.j2:294, 308, 371)."""
        if not self.experts_apart:
            return 1
        if not self.multi:
            return self.vllm.data_parallel_size
        span = self.replica.decode_nodes_per_replica if self.disaggregated else self.replica_nodes
        return max(1, span * self.deployment.gpus_per_node // self.tp)

    @property
    def moments_in_bf16(self) -> bool:
        """Whether AdamW's moments are in BF16."""
        return self.model.optimization_dtype == "bfloat16" and (self.optimizer or "adamw") == "adamw"

    @property
    def lora(self) -> bool:
        """Whether an adapter is trained."""
        return self.model.lora is not None and self.model.lora_rank != 0

    @property
    def whole_offload(self) -> bool:
        """Whether parameters lie on the host with the optimizer."""
        return self.model.fsdp_cpu_offload or self.model.full_offload is not None


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
    of(Engine.gpu_memory_utilization).same(Vllm.gpu_memory_utilization),
    of(Engine.cuda_graphs).opposite(Vllm.enforce_eager),
    of(Engine.prefix_caching).same(Vllm.enable_prefix_caching),
    of(Trainer.backend).constant("fsdp"),
    of(Trainer.context_parallel).same(Model.cp),
    of(Trainer.expert_parallel).by(Model.ep, _expert_parallel),
    of(Trainer.precision).rule(lambda c: "fp8" if c.model.quantization or c.model.fp8 else "bf16"),
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
