"""Scenario keys that importers decide, with their types: ``Trainer.tensor_parallel`` is ``trainer.tensor_parallel``.

A test holds the types against the schema. ``None`` stands in a type only where it says something of its own; of other
keys a rule that reads None leaves the scenario's default.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from rlsim.schema.asynchrony import Stale, Style
from rlsim.schema.engine import Precision, Routing
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import Method, Policy
from rlsim.schema.trainer import Dispatcher, GradientPrecision, PipelineBalance, RankBalance, RecomputeModule

V = TypeVar("V")
RefitMethod = Literal[
    "auto", "cuda_ipc", "nccl_per_tensor", "nccl_broadcast", "nccl_reshard", "checkpoint_engine",
    "checkpoint_engine_p2p", "rdma", "delta_sharded", "disk",
]  # fmt: skip
TARGETS: list[Target[Any]] = []
"""Every target, in the order of this module."""


class Target(Generic[V]):
    """A scenario key of type ``V``; its name is that of the attribute, in the section that its class is named after, or
    classes, one in the other."""

    key: str

    def __set_name__(self, owner: type, name: str) -> None:
        self.key = f"{owner.__qualname__.lower()}.{name}"
        TARGETS.append(self)

    def __str__(self) -> str:
        return self.key


def default_of(key: str) -> Any:
    """Default of a scenario key; None where it has none."""
    section, _, name = key.partition(".")
    annotation: Any = Scenario.model_fields[section].annotation
    field = annotation.model_fields.get(name)
    return None if field is None or field.is_required() else field.default  # of a section in it nothing is there


class Workload:
    """Keys of the section ``workload``."""

    prompts_per_step = Target[int]()
    generations_per_prompt = Target[int]()
    max_sequence_tokens = Target[int]()
    max_response_tokens = Target[int]()
    generated_batch_factor = Target[float]()
    max_rollouts_per_step = Target[int]()


class Cluster:
    """Keys of the section ``cluster``."""

    num_gpus = Target[int]()
    generation_gpus = Target[int | None]()
    """None: generation and training share their GPUs."""
    reference_gpus = Target[int]()
    placement = Target[Literal["aligned", "scattered"]]()


class Loop:
    """Keys of the section ``loop``."""

    mode = Target[Literal["sync", "async"]]()
    supervised = Target[bool]()
    rollouts_alone = Target[bool]()
    style = Target[Style]()
    overlap = Target[bool]()
    policy_lag = Target[int]()
    staleness_fraction = Target[float]()
    update_every = Target[int]()
    in_flight_updates = Target[bool]()
    recompute_kv = Target[bool]()
    max_in_flight_groups = Target[int]()
    queue_batches = Target[int]()
    max_age = Target[int]()
    stale = Target[Stale]()
    refit_method = Target[RefitMethod]()
    refit_precision = Target[Literal["bf16", "engine"]]()


class Engine:
    """Keys of the section ``engine``."""

    name = Target[Literal["vllm", "sglang", "trtllm", "torch_eager"]]()
    tensor_parallel = Target[int]()
    pipeline_parallel = Target[int]()
    expert_parallel = Target[int]()
    attention_data_parallel = Target[int]()
    weight_precision = Target[Precision]()
    kv_precision = Target[Literal["bf16", "fp8", "nvfp4"]]()
    dispatch = Target[Literal["static", "round_robin", "least_loaded", "shared_queue"]]()
    session_routing = Target[Routing]()
    max_running_sequences = Target[int]()
    max_batched_tokens = Target[int]()
    max_captured_tokens = Target[int]()
    gpu_memory_utilization = Target[float]()
    cuda_graphs = Target[bool]()
    prefix_caching = Target[bool]()
    chunked_prefill = Target[bool]()
    overlap_scheduling, async_scheduling = Target[bool](), Target[bool]()
    lora_rank = Target[int]()

    class Prefill:
        """Keys of the section ``engine.prefill``."""

        gpus = Target[int]()
        tensor_parallel = Target[int]()
        expert_parallel = Target[int]()

    class Kv_Offload:  # noqa: N801 - the section's name
        """Keys of the section ``engine.kv_offload``."""

        capacity_bytes = Target[float]()
        shared = Target[bool]()


class Speculation:
    """Keys of the section ``speculation``."""

    method = Target[Method]()
    draft_length = Target[int]()
    parallel_drafting = Target[bool]()
    draft_tensor_parallel = Target[int]()
    policy = Target[Policy]()
    schedule = Target[tuple[tuple[int, int, int], ...]]()
    tree_width = Target[int]()
    verified_positions = Target[int]()
    online_training = Target[bool]()


class Trainer:
    """Keys of the section ``trainer``."""

    backend = Target[Literal["megatron", "fsdp"]]()
    tensor_parallel = Target[int]()
    pipeline_parallel = Target[int]()
    context_parallel = Target[int]()
    expert_parallel = Target[int]()
    expert_tensor_parallel = Target[int]()
    virtual_stages = Target[int]()
    precision = Target[Literal["bf16", "fp8", "nvfp4"]]()
    lora_rank = Target[int]()
    flash_attention_2 = Target[bool]()
    global_batch_samples = Target[int]()
    epochs = Target[int]()
    critic = Target[bool]()
    sequence_packing = Target[bool]()
    micro_batch_tokens = Target[int]()
    micro_batch_samples = Target[int]()
    logprob_micro_batch_tokens = Target[int]()
    logprob_micro_batch_samples = Target[int]()
    rank_balance = Target[RankBalance]()
    zero_stage = Target[Literal[0, 1, 2, 3]]()
    recompute = Target[Literal["none", "selective", "full"]]()
    recompute_modules = Target[tuple[RecomputeModule, ...]]()
    activations_on_host = Target[bool]()
    sequence_parallel, gradient_overlap = Target[bool](), Target[bool]()
    pipeline_balance = Target[PipelineBalance]()
    gradient_precision, fp8_parameter_gather = Target[GradientPrecision](), Target[bool]()
    fused_kernels, frozen_vision = Target[bool](), Target[bool]()
    expert_products = Target[Literal["grouped", "loop"]]()
    mtp_layers = Target[int]()
    optimizer = Target[Literal["adam", "muon"]]()
    optimizer_bytes_per_parameter = Target[float]()
    optimizer_on_host = Target[bool]()
    optimizer_step = Target[Literal["host", "device"]]()
    offload = Target[bool]()
    logits_bytes = Target[float]()
    logits_chunk_tokens = Target[int]()
    policy_logprobs = Target[bool]()
    reference_logprobs = Target[bool]()
    moe_dispatcher = Target[Dispatcher]()
