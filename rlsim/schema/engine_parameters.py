"""What no operator table holds of an engine: by family and release, fitted to measured iterations."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, Self, TypeVar

from pydantic import Field, model_validator

from rlsim.schema.base import Fraction01, NonNegativeFloat, PositiveFloat, PositiveFraction, Strict
from rlsim.schema.model import ModelCard

Record = TypeVar("Record")
EngineName = Literal["vllm", "sglang", "trtllm", "torch_eager"]


@lru_cache(maxsize=1024)
def version_order(version: str) -> tuple[int, ...]:
    """Numbers of a release, for comparing two of them.

    >>> version_order("0.5.10.post1") > version_order("0.5.9")
    True
    """
    # Numbers and not texts, of which 0.10 comes before 0.9; a post-release counts as one more number.
    return tuple(int(number) for number in re.findall(r"\d+", version))


def standing_for(version: str, known: Iterable[Record], release: Callable[[Record], str]) -> Record:
    """Of ``known`` the newest one that is not newer than ``version``, the oldest where all are newer.

    release: of one of them. Raises IndexError where none is known.

    >>> [standing_for(version, ["0.6", "0.4"], str) for version in ("0.5.1", "0.6", "0.3")]
    ['0.4', '0.6', '0.4']
    """
    ordered = sorted(known, key=lambda one: version_order(release(one)))
    older = [one for one in ordered if version_order(release(one)) <= version_order(version)]
    # The oldest stands for all that came before anything was measured.
    return older[-1] if older else ordered[0]


class ParameterSet(Strict):
    """A set of fitted parameters."""

    name: str = Field(min_length=1)
    """Name of the set."""
    description: str
    """What it was fitted to."""


class Fit(Strict):
    """How a set of parameters came about and how well it does; errors as shares of the measured time."""

    command: str
    """Command that makes this file anew."""
    rows: int = Field(ge=0)
    """Measured times used, each once."""
    data_digest: str
    """SHA-256 (first 16 hex digits) of each table of them."""
    median_error: NonNegativeFloat
    """Median absolute error on the rows used."""
    p90_error: NonNegativeFloat
    """90th percentile of the same."""


def once(names: Sequence[str], what: str) -> None:
    """Raise ValueError where one of ``names`` stands twice; what: key that holds them, and what they are."""
    if len(set(names)) < len(names):
        raise ValueError(f"{what} twice: {', '.join(names)}")


class PrefillHost(Strict):
    """Host time of blocks in a prefill that an engine runs operator by operator from Python; where the device takes
    longer it hides. All 0 of an engine that compiles its prefills, whose launches are counted instead."""

    attention_s: NonNegativeFloat = 0.0
    """Of an attention block."""
    indexer_s: NonNegativeFloat = 0.0
    """Of the indexer of sparse attention, besides."""
    recurrent_s: NonNegativeFloat = 0.0
    """Of a recurrent mixer, which works chunk by chunk."""
    dense_s: NonNegativeFloat = 0.0
    """Of a dense FFN."""
    moe_s: NonNegativeFloat = 0.0
    """Of a FFN with experts that run kernel by kernel; experts in MXFP4 are one call, like a dense FFN."""
    source: str = ""
    """Where they come from."""

    def seconds(self, card: ModelCard, precision: str) -> float:
        """Seconds of a prefill through all layers of ``card`` with weights in ``precision``."""
        counts = card.layer_counts
        mixers = counts.attention * self.attention_s + card.num_recurrent_layers * self.recurrent_s
        # Experts in MXFP4 are one call (docs/model.md, section 1).
        ffns = counts.dense * self.dense_s + counts.moe * (self.dense_s if precision == "mxfp4" else self.moe_s)
        return mixers + card.num_index_layers * self.indexer_s + ffns


class LayerKernels(Strict):
    """Time that a layer takes beyond the operators of the tables, whatever its tokens: small kernels around products of
    few bits, latent attention, its indexer and recurrent mixers. Fitted, of all engines together."""

    block_fp8_s: NonNegativeFloat = 0.0
    """Of a layer of block-scaled FP8 weights: activations are scaled by groups of 128 before each product."""
    fp8_s: NonNegativeFloat = 0.0
    """Of one of FP8 weights with a scale for each tensor."""
    nvfp4_s: NonNegativeFloat = 0.0
    """Of one of NVFP4 weights, experts or all."""
    latent_s: NonNegativeFloat = 0.0
    """Of latent attention."""
    indexer_s: NonNegativeFloat = 0.0
    """Of an indexer of sparse attention, besides."""
    recurrent_s: NonNegativeFloat = 0.0
    """Of a recurrent mixer."""

    def seconds(self, card: ModelCard, precision: str) -> float:
        """Seconds of all layers of ``card`` with weights in ``precision``."""
        counts, named = card.layer_counts, {"fp8_block": self.block_fp8_s, "fp8": self.fp8_s, "nvfp4": self.nvfp4_s}
        latent = counts.attention * self.latent_s if card.mla is not None else 0.0
        kinds = latent + card.num_index_layers * self.indexer_s + card.num_recurrent_layers * self.recurrent_s
        return counts.mixers * named.get(precision, 0.0) + kinds


class EngineFamily(Strict):
    """One engine over its releases."""

    engine: EngineName
    """Engine."""
    rows: int = Field(ge=0)
    """Measured iterations without speculation behind the values."""
    overlap_s: NonNegativeFloat
    """Of each kernel's measured time, what overlaps with its neighbours in a replayed graph: start and end, which a
    measurement of one kernel holds and a chain of them hides."""
    iteration_s: NonNegativeFloat
    """Host time per iteration that the device waits for."""
    sequence_s: NonNegativeFloat
    """The same per running sequence of one attention copy."""
    drafting_iteration_s: NonNegativeFloat
    """Host time that an iteration takes longer where it speculates: drafts are handed over and verdicts read before the
    next can be scheduled."""
    drafting_sequence_s: NonNegativeFloat
    """The same per running sequence of one attention copy."""
    unhidden_s: NonNegativeFloat = 0.0
    """Host time per iteration, besides, where the next one is not prepared while the device works."""
    drafting_rows: int = Field(ge=0)
    """Speculating iterations behind these two; 0: assumed."""
    prefill: PrefillHost = PrefillHost()
    """Host time of prefills outside of graphs and compiled code."""
    error: Fraction01
    """Standard deviation of ln(predicted / measured) of iterations on pairs of GPU and engine that were left out of the
    fit."""


class IterationFit(Fit):
    """Fit to measured iterations."""

    held_out_median_error: NonNegativeFloat
    """Median absolute error on pairs of GPU and engine, each left out of the fit in turn."""


class EngineParameters(ParameterSet):
    """Engine families and what several nodes cost them."""

    fit: IterationFit
    network_hop_s: NonNegativeFloat
    """Time of one hop of an engine's collective between nodes beyond the latency of the link: NCCL's proxy and its
    synchronisation with the device."""
    layers: LayerKernels = LayerKernels()
    """Small kernels of layers."""
    families: tuple[EngineFamily, ...] = Field(min_length=1)
    """Engines."""

    def __hash__(self) -> int:
        """Equal sets have equal names and families."""
        return hash((self.name, self.network_hop_s, self.layers, self.families))

    @model_validator(mode="after")
    def _each_engine_once(self) -> Self:
        once(self.names, "families names an engine")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Engines of the set."""
        return tuple(one.engine for one in self.families)

    def family(self, engine: str) -> EngineFamily:
        """Parameters of ``engine``. Raises KeyError for one that the set does not hold."""
        return dict(zip(self.names, self.families, strict=True))[engine]


OTHER = "other"
"""Name of a framework without measurements: the values over all frameworks, with their spread as error."""


class TransferFamily(Strict):
    """One framework over its releases, relative to the values over all of them."""

    framework: str = Field(min_length=1, max_length=60)
    """Framework."""
    rails: Literal["node", "one"]
    """GPUs of the sending node in the group that a broadcast runs in: all of them, each with its network port (node),
    or the sender alone (one)."""
    source: str = Field(min_length=1)
    """Where the rails and the measured rows come from."""
    rows: int = Field(ge=0)
    """Measured transfers behind the values."""
    link_factor: PositiveFloat
    """Achieved share of the links relative to all frameworks."""
    gather_factor: PositiveFloat
    """Share of the links that gathers of sharded tensors reach, relative to that of sends."""
    host_factor: PositiveFloat
    """Host time per weight tensor relative to all frameworks."""
    fixed_s: NonNegativeFloat
    """Fixed time of a transfer: pause, handshakes, barriers."""
    median_error: NonNegativeFloat
    """Median absolute error on its rows, as a share."""


class TransferFit(Strict):
    """Fit to measured transfers: like :class:`Fit`, in the order that digests of sets have always counted."""

    command: str
    """Command that makes this file anew."""
    rows: int = Field(ge=0)
    """Measured transfers used, each once."""
    values: int = Field(ge=0)
    """Numbers fitted, of all frameworks together and of each."""
    determined: NonNegativeFloat
    """Of these, how many the rows determine: the trace of the hat matrix, the rest is the priors'."""
    data_digest: str
    """SHA-256 (first 16 hex digits) of each table."""
    median_error: NonNegativeFloat
    """Median absolute error on the rows used."""
    p90_error: NonNegativeFloat
    """90th percentile of the same."""
    held_out_median_error: NonNegativeFloat
    """Median absolute error on frameworks, each left out of the fit in turn."""
    held_out_error: NonNegativeFloat
    """Standard deviation of ln(predicted / measured) on the same; error of a framework without rows."""


class TransferValues(Strict):
    """Values over all frameworks."""

    nvlink_share: PositiveFraction
    """Share of NVLink's rate that gathers and broadcasts reach."""
    network_share: PositiveFraction
    """Share of the network ports' rate that these reach."""
    shard_share: PositiveFraction
    """Share of its own port's rate at which a GPU receives its shard (resharding, RDMA)."""
    host_link_share: PositiveFraction
    """Share of the host link's rate that pinned copies reach."""
    export_tensor_s: NonNegativeFloat
    """Trainer's host time per exported weight tensor, x86."""
    load_tensor_s: NonNegativeFloat
    """Engine's host time per loaded weight tensor, x86."""
    ipc_tensor_s: NonNegativeFloat
    """Further host time per tensor that is handed over by CUDA IPC handles on shared GPUs, x86."""
    collective_tensor_s: NonNegativeFloat
    """Time of one tensor's own collective, unpacked."""
    fsdp_tensor_s: NonNegativeFloat
    """Host time to gather one sharded tensor under FSDP."""
    fsdp_node_s: NonNegativeFloat
    """The same for every further node that its shards lie on."""
    rdma_tensor_s: NonNegativeFloat
    """Trainer's host time to register and describe one tensor."""
    shard_tensor_s: NonNegativeFloat
    """Time per tensor of a training rank that is resharded: plan and launch of its sends, x86."""
    shard_peer_s: NonNegativeFloat
    """Time per training rank that an engine GPU receives a reshard from: connection and barrier, x86."""
    quantise_tensor_s: NonNegativeFloat
    """Time to quantise one tensor on arrival, x86."""
    delta_tensor_s: NonNegativeFloat
    """Time to compare and apply one tensor of a delta, x86."""
    delta_bytes_per_s: PositiveFloat
    """Rate at which changed values and their places are handled."""
    grace_factor: PositiveFloat
    """Host times on Grace relative to x86."""
    fixed_s: NonNegativeFloat
    """Fixed time of a transfer."""
    sleep_wake_s: NonNegativeFloat
    """Fixed time around a transfer on shared GPUs: engine's sleep and wake, emptied caches."""
    pageable_out_bytes_per_s: PositiveFloat
    """Rate of a copy from a GPU to new pageable memory of an x86 host, all GPUs of a node at once."""
    pageable_out_grace_bytes_per_s: PositiveFloat
    """The same on Grace."""
    pageable_in_bytes_per_s: PositiveFloat
    """Rate of a copy from pageable host memory to a GPU."""
    copy_s: NonNegativeFloat
    """Host time per pageable copy of one tensor, x86."""


class TransferParameters(ParameterSet):
    """Values over all frameworks, and how each framework deviates from them."""

    fit: TransferFit
    values: TransferValues
    assumed: tuple[str, ...] = ()
    """Values that no row used determined."""
    families: tuple[TransferFamily, ...] = Field(min_length=1)
    """Frameworks."""
    error: Fraction01
    """Standard deviation of ln(predicted / measured) of a transfer of a framework with rows."""

    def __hash__(self) -> int:
        """Equal sets have equal names, values and families."""
        return hash((self.name, self.values, self.families))

    def _problems(self) -> Iterator[str]:
        once(self.names, "families names a framework")
        if OTHER in self.names:
            yield f"families cannot hold {OTHER}, which means a framework without measurements"
        unknown = [name for name in self.assumed if name not in TransferValues.model_fields]
        if unknown:
            yield f"assumed names {unknown[0]}, which is none of values"

    @property
    def names(self) -> tuple[str, ...]:
        """Frameworks of the set."""
        return tuple(one.framework for one in self.families)

    def family(self, framework: str) -> TransferFamily:
        """Deviations of ``framework``; none, and one port, for a framework that the set does not hold."""
        for one in self.families:
            if one.framework == framework:
                return one
        return TransferFamily(
            framework=OTHER,
            rails="one",
            source="no measurement",
            rows=0,
            link_factor=1.0,
            gather_factor=1.0,
            host_factor=1.0,
            fixed_s=self.values.fixed_s,
            median_error=self.fit.held_out_median_error,
        )

    def error_of(self, framework: str) -> float:
        """Standard deviation of the logarithm of a transfer of ``framework``."""
        # An unmeasured framework is never surer than the measured ones.
        return self.error if framework in self.names else max(self.error, self.fit.held_out_error)
