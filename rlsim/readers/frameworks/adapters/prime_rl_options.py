"""Keys of prime-rl's configurations (packages/prime-rl-configs) at 559b44772, and what several of them say together;
lines below as well."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rlsim.loading.models import card_by_shape, load_card
from rlsim.readers.frameworks.options import Options, Part, anything, aside, flag, integer, number, size, switch, text


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
    max_num_seqs, max_num_batched_tokens, max_cudagraph_capture_size = integer(), integer(), integer()
    kv_cache_dtype = text()
    enable_chunked_prefill, async_scheduling = flag(), flag()
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
    quantization_type = text(name="quantization.type")
    ac_mode = text("", name="ac.mode")
    optim_cpu_offload = switch(True)
    ac_offloading = anything()
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
    offload_type = text("native", name="inference.kv_cache_offload.type")
    offload_bytes = integer(name="inference.kv_cache_offload.cpu.num_bytes")
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
    def kv_offload(self) -> bool:
        """Whether KV cache goes to the host; beside engines that prefill alone rlsim does not simulate that."""
        return bool(self.offload_bytes) and not self.disaggregated

    @property
    def kv_offload_gpus(self) -> int:
        """GPUs that kv_cache_offload.cpu.num_bytes are of: an instance's (vLLM shards them over its workers), or those
        of a node that gives them to Mooncake's store (inference.py:216-218)."""
        return self.deployment.gpus_per_node if self.offload_type == "mooncake" else self.tp

    @property
    def moments_in_bf16(self) -> bool:
        """Whether AdamW's moments are in BF16."""
        return self.model.optimization_dtype == "bfloat16" and (self.optimizer or "adamw") == "adamw"

    @property
    def lora(self) -> bool:
        """Whether an adapter is trained."""
        return self.model.lora is not None and self.model.lora_rank != 0

    @property
    def waits_on_host(self) -> bool:
        """Whether inputs of recomputed layers wait on the host, which they do unless a section of none is written
        (configs/trainer.py:194: ActivationOffloadingConfig)."""
        return str(self.model.ac_offloading or "on").lower() not in ("none", "null", "false")

    @property
    def whole_offload(self) -> bool:
        """Whether parameters lie on the host with the optimizer."""
        return self.model.fsdp_cpu_offload or self.model.full_offload is not None
