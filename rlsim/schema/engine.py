"""The rollout engine: its parallel layout, precisions, batching and the host beside it."""

import math
import re
from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, field_validator

from rlsim.errors import shortened
from rlsim.schema.base import Strict
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.model import ModelCard

RELEASE = re.compile(r"v?\d+(\.\d+){0,3}([-.+]?[a-z0-9]+)*", re.ASCII | re.IGNORECASE)
"""A release as packages number them: 0.17.1, v0.11.0rc2, 0.20.0.post1, 0.18.1+cu128."""

SEQUENCES, BUDGET_TOKENS = 1024, 16384
SMALL_DEVICE = {"max_running_sequences": 256, "max_batched_tokens": 8192}
SMALL_GIB = 70.0
"""Sequences and tokens of an iteration that vLLM takes by default, as a class of Python on a device of 70 GiB or more
that is no A100, and on others (vllm/engine/arg_utils.py, get_batch_defaults; UsageContext.LLM_CLASS)."""
Precision = Literal["bf16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int4"]
Migration = Literal["none", "recompute", "transfer", "cheaper"]
Routing = Literal["sticky", "least_loaded", "cache_aware"]
HostClass = Literal["server", "shared", "few_cores", "rented"]


class KvOffload(Strict):
    """KV cache beyond the engine's GPUs: host memory, a disk, or a store over the network (vLLM's offloading and
    LMCache, SGLang's HiCache, Mooncake)."""

    capacity_bytes: float = Field(gt=0, le=1e15)
    """Of each engine GPU: its part of the host memory, or of the store."""
    bytes_per_s: float | None = Field(None, gt=0, le=1e13)
    """Rate at which an engine GPU reads. Default: its host link's, as for other copies."""
    latency_s: float = Field(0.0, ge=0, le=60)
    """Time until the first byte of a load. Nobody measured it; assumed."""
    write: Literal["through", "on_eviction"] = "through"
    """through: a context when its turn ends, as it is computed (vLLM; SGLang's write_through); on_eviction: what the
    GPUs' cache gives up (SGLang's write_back). Writing takes no time."""
    shared: bool = False
    """One store for all replicas, of all their capacities: what one has written the others read."""
    store_bytes_per_s: float | None = Field(None, gt=0, le=1e16)
    """Rate at which a shared store sends to all replicas together, one load after the other, beside the rate at which
    each GPU reads. Default: no limit of its own."""
    prefetch: bool = False
    """A context is fetched back while the environment works, so that its turn waits only for what that time does not
    cover; in staging buffers, which take no room of the cache. Default: loads begin when a turn is admitted. That an
    engine is told which trajectory comes back next is an assumption; no engine's own prefetching was at hand."""

    def _problems(self) -> Iterator[str]:
        if self.store_bytes_per_s is not None and not self.shared:
            yield "store_bytes_per_s is the rate of a store that all replicas share: set shared true"


class PrefillEngines(Strict):
    """Engines that prefill alone and send what they computed to those that decode (disaggregated prefill of vLLM and
    SGLang, over NIXL or Mooncake)."""

    gpus: int = Field(ge=1, le=1_000_000)
    """Of the GPUs that generate; the others decode."""
    tensor_parallel: int | None = Field(None, ge=1, le=1024)
    """GPUs of each of them. Default: as of engines that decode."""
    expert_parallel: int | None = Field(None, ge=1, le=1024)
    """GPUs over which each spreads whole experts. Default: as engines that decode, as far as tensor_parallel allows."""
    bytes_per_s: float | None = Field(None, gt=0, le=1e13)
    """Rate at which each GPU sends KV cache. Default: the slowest link between two engines."""
    latency_s: float = Field(0.0, ge=0, le=60)
    """Time until the first byte is there. Nobody measured it; assumed."""


class Engine(Strict):
    """One data-parallel replica occupies tensor_parallel x pipeline_parallel GPUs."""

    name: Literal["vllm", "sglang", "trtllm", "torch_eager"] = "vllm"
    """Engine whose operator tables are used. torch_eager: the loop of bench/loop, as `rlsim calibrate --device cpu`
    measured it."""
    version: str | None = Field(None, max_length=40)
    """Release, which selects the fitted host overhead and what is captured; default: the engine's host overhead over
    all releases, captured as the newest."""

    @field_validator("version")
    @classmethod
    def _is_release(cls, version: str | None) -> str | None:
        if version is not None and not RELEASE.fullmatch(version):
            raise ValueError(f"must be a release such as 0.17.1, got {shortened(repr(version))}")
        return version

    tensor_parallel: int = Field(1, ge=1, le=1024)
    """GPUs that share every layer."""
    pipeline_parallel: int = Field(1, ge=1, le=128)
    """Consecutive stages of layers."""
    expert_parallel: int = Field(1, ge=1, le=1024)
    """GPUs over which whole experts are spread; 1 shards each expert by TP instead."""
    attention_data_parallel: int = Field(1, ge=1, le=1024)
    """Attention copies within one replica (MoE with data-parallel attention)."""
    weight_precision: Precision = "bf16"
    """Precision of weights and matrix products. fp8: one scale per tensor, known beforehand; fp8_block: a scale for
    each 128 x 128 block, as DeepSeek and Qwen publish their FP8 checkpoints. mxfp4: of routed experts alone, all else
    in BF16, as OpenAI publishes gpt-oss. int4: weights alone (W4A16), of routed experts where there are any (Kimi-K2,
    slime), else of all layers (GPTQ, AWQ)."""
    kv_precision: Literal["bf16", "fp8", "nvfp4"] = "bf16"
    """Precision of the KV cache."""
    max_running_sequences: int | None = Field(None, ge=1, le=65536)
    """Sequences decoded at once per replica. Default: 1,024, of vLLM 256 on an A100 and on devices below 70 GiB."""
    max_batched_tokens: int | None = Field(None, ge=1, le=1_048_576)
    """Token budget of one iteration. Default: 16,384, of vLLM 8,192 where 256 sequences are its default."""
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    """Share of device memory that the engine may take; of SGLang its mem_fraction_static. Default: 0.9, of SGLang what
    its own rule leaves beside prefill, graphs and drafts (docs/howto/memory.md)."""
    cuda_graphs: bool = True
    """Replay captured graphs where the batch fits; false runs eagerly."""
    max_captured_tokens: int | None = Field(None, ge=1, le=65536)
    """Largest captured batch in tokens; larger iterations launch every kernel from the host. Default: as the engine's
    release captures, see docs/model.md."""
    prefix_caching: bool = True
    """Samples of one prompt on one replica share its prefill."""
    chunked_prefill: bool | None = None
    """Prefill rides along with decoding within the token budget; false stops decoding for it. Default as engines do:
    SGLang stops, vLLM and TensorRT-LLM mix."""
    dispatch: Literal["static", "round_robin", "least_loaded", "shared_queue"] = "static"
    """static: contiguous split of what starts at once (synchronous vLLM in NeMo-RL); round_robin: per sample (its async
    one; AReaL); least_loaded: to the fewest unfinished samples on submission; shared_queue: to whoever has room
    first."""
    migration: Migration = "none"
    """Synchronous: a replica that runs dry takes half of the requests of the fullest, those that wait there first, then
    the newest. What these have generated they prefill again (recompute), or their KV cache follows over the slowest
    link between replicas (transfer), or whichever is faster (cheaper). none: requests stay (docs/SEMANTICS.md)."""
    session_routing: Routing = "sticky"
    """Where the next turn of a trajectory goes: to the replica of the turn before (sticky); to the one with the fewest
    unfinished turns (least_loaded), where it finds nothing of its context but in a shared kv_offload; or to the one of
    before unless that leaves replicas too uneven, by SGLang's router and its defaults (cache_aware)."""
    kv_offload: KvOffload | None = None
    """KV cache below the GPUs' own, for trajectories that come back; default: none."""
    prefill: PrefillEngines | None = None
    """Engines of their own that prefill prompts and what environments answer; default: none, every engine does both."""
    expert_balance: Literal["balanced", "power_law_1.01", "power_law_1.2"] = "power_law_1.2"
    """Routing skew of the measured MoE tables."""
    host_iteration_s: float | None = Field(None, ge=0, le=10)
    """Host work per iteration that the device waits for (scheduler, input preparation, output); default: fitted, by
    release and host processor."""
    host_sequence_s: float | None = Field(None, ge=0, le=1)
    """Host work per running sequence and iteration; default: fitted."""
    host: HostClass | None = None
    """Class of the engines' hosts. server: cores of their own, enough of them, as where the fit was measured; shared:
    others take their processor's time; few_cores: fewer cores than engines have processes; rented: virtual cores of
    which no more is known (calibration/users). Default: nothing for tuned stacks, what users' hosts were for others."""
    host_slowdown: float | None = Field(None, ge=0.1, le=1000)
    """What the hosts take for an interpreter's work over the hosts that the fit belongs to (rlsim calibrate host): a
    factor on fitted host time, in place of the class. Default: 1, as the class says."""
    in_process: bool | None = None
    """The engine shares the caller's process, so handling outputs delays it (offline generation); default: with static
    dispatch."""
    lora_rank: int | None = Field(None, ge=0, le=4096)
    """Rank of the adapter (LoRA) that the engine applies beside its weights; 0: it is merged into them. Default:
    trainer.lora_rank where the stack loads adapters into its engine, else merged."""
    async_scheduling: bool | None = None
    """Prepare an iteration while the device works on the one before; false adds what the host was measured to take for
    it. Default as the release decides (docs/model.md, section 3)."""
    overlap_scheduling: bool | None = None
    """SGLang's name of async_scheduling, before which it counts."""

    @property
    def most_running(self) -> int:
        """Sequences decoded at once, as stated; of a scenario's released_engine as its device decides."""
        return SEQUENCES if self.max_running_sequences is None else self.max_running_sequences

    @property
    def budget_tokens(self) -> int:
        """Token budget of an iteration; likewise."""
        return BUDGET_TOKENS if self.max_batched_tokens is None else self.max_batched_tokens

    @property
    def mixes_prefill(self) -> bool:
        """Whether prefill and decoding share iterations."""
        # SGLang stops decoding for prefills unless it is set to mix (its enable_mixed_chunk is off by default).
        return self.name != "sglang" if self.chunked_prefill is None else self.chunked_prefill

    def dense_precision(self, card: ModelCard) -> str:
        """Precision of the weights of ``card`` outside of routed experts."""
        experts_alone = self.weight_precision == "mxfp4" or (self.weight_precision == "int4" and card.moe is not None)
        return "bf16" if experts_alone else self.weight_precision

    def attention_precision(self, card: ModelCard) -> str:
        """Precision of the attention projections of ``card``.

        NVFP4 checkpoints of models with latent attention keep theirs in BF16 (nvidia/DeepSeek-R1-0528-NVFP4 and
        Kimi-K2.5-NVFP4, hf_quant_config.json: self_attn is excluded), and so do those with linear attention
        (nvidia/Qwen3.5-397B-A17B-NVFP4: linear_attn and self_attn are).
        """
        excluded = card.mla is not None or card.linear_attention is not None
        return "bf16" if self.weight_precision == "nvfp4" and excluded else self.dense_precision(card)

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one data-parallel replica."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def of_prefill(self) -> Self:
        """The layout of an engine that prefills alone, where there are any."""
        own = self.prefill
        if own is None:
            return self
        tensor = own.tensor_parallel or self.tensor_parallel
        # Experts and attention copies are spread over an engine's own GPUs: groups as large as divide these.
        experts = own.expert_parallel or math.gcd(self.expert_parallel, tensor)
        copies = math.gcd(self.attention_data_parallel, tensor)
        layout = {"tensor_parallel": tensor, "expert_parallel": experts, "attention_data_parallel": copies}
        return self.model_copy(update={**layout, "prefill": None})

    def _problems(self) -> Iterator[str]:
        if self.prefill is not None:
            if self.dispatch == "shared_queue" or self.migration != "none" or self.kv_offload is not None:
                yield "prefill cannot be simulated with dispatch shared_queue, migration or kv_offload"
            each = self.of_prefill
            if self.prefill.gpus % each.gpus_per_replica:
                yield f"prefill: engines of {each.gpus_per_replica} GPUs must divide prefill.gpus ({self.prefill.gpus})"
            if each.tensor_parallel % each.expert_parallel:
                yield (
                    f"prefill.expert_parallel ({each.expert_parallel}) must divide prefill.tensor_parallel "
                    f"({each.tensor_parallel})"
                )
        if self.overlap_scheduling is not None and self.name != "sglang":
            yield (
                f"overlap_scheduling is a switch of SGLang's and says nothing of {self.name}; async_scheduling states "
                "whether its host works ahead, host_iteration_s what it takes"
            )
        if self.expert_parallel > 1 and self.tensor_parallel % self.expert_parallel:
            yield (
                f"expert_parallel ({self.expert_parallel}) must divide tensor_parallel ({self.tensor_parallel}); "
                "a replica spreads its experts over its own GPUs"
            )
        if self.tensor_parallel % self.attention_data_parallel:
            yield (
                f"attention_data_parallel ({self.attention_data_parallel}) must divide "
                f"tensor_parallel ({self.tensor_parallel})"
            )


def check_divides(part: int, whole: int, key: str, what: str) -> None:
    """Raise ValueError naming ``key`` where ``part`` does not divide the ``whole``."""
    if whole % part:
        raise ValueError(f"{key} ({part}) must divide the {whole} {what}")


def check_heads(tensor_parallel: int, model: ModelCard, key: str) -> None:
    """Raise ValueError where so many GPUs cannot share the heads of a layer."""
    check_divides(tensor_parallel, model.num_heads, key, f"attention heads of {model.name}")
    kv = model.num_kv_heads
    if model.mla is None and max(kv, tensor_parallel) % min(kv, tensor_parallel):
        raise ValueError(f"{key} ({tensor_parallel}) must divide or be a multiple of the {kv} KV heads of {model.name}")
    if model.linear_attention is not None:
        check_divides(tensor_parallel, model.linear_attention.num_value_heads, key, f"value heads of {model.name}")
    if model.mamba is not None:
        check_divides(tensor_parallel, model.mamba.num_heads, key, f"Mamba heads of {model.name}")


def check_layout(key: str, heads: int, stages: int, experts: int, model: ModelCard) -> None:
    """Raise ValueError where an engine or a trainer cannot divide ``model`` so: GPUs that share the heads of a layer,
    pipeline stages, and GPUs that share experts."""
    check_heads(heads, model, f"{key}.tensor_parallel")
    if stages > model.num_layers:
        raise ValueError(f"{key}.pipeline_parallel ({stages}) exceeds the {model.num_layers} layers of {model.name}")
    if experts > 1 and model.moe is None:
        raise ValueError(f"{key}.expert_parallel ({experts}) needs a mixture of experts; {model.name} is dense")


def check_engine(engine: Engine, model: ModelCard, hardware: HardwareProfile) -> None:
    """Raise ValueError where an engine cannot run ``model`` on ``hardware``."""
    for key, one in (("engine", engine), ("engine.prefill", engine.of_prefill)):
        heads = one.tensor_parallel // one.attention_data_parallel
        check_layout(key, heads, one.pipeline_parallel, one.expert_parallel, model)
    # Engines of 24 or 48 GPUs hold some of 256 experts twice, so that every GPU has as many; more GPUs than experts
    # would leave some without any.
    if model.moe is not None and engine.expert_parallel > model.moe.num_experts:
        raise ValueError(
            f"engine.expert_parallel ({engine.expert_parallel}) exceeds the {model.moe.num_experts} experts of "
            f"{model.name}"
        )
    for key in ("weight_precision", "kv_precision"):
        if getattr(engine, key) == "nvfp4" and hardware.nvfp4_flops is None:
            raise ValueError(f"engine.{key} nvfp4 is not supported by {hardware.name}; take bf16 or fp8")
    if engine.weight_precision == "mxfp4" and model.moe is None:
        raise ValueError(f"engine.weight_precision mxfp4 is of routed experts, which {model.name} has not; take fp8")
