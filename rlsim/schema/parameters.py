"""What no operator table holds: few global parameters, fitted to measured RL steps, each with a physical meaning; and
stacks measured whole, of engine iterations, micro-batches and hand-over of one engine and trainer on one device."""

from collections.abc import Iterator, Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from rlsim.schema.base import (
    Fraction01,
    Name,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    Strict,
)
from rlsim.schema.engine_parameters import Fit, ParameterSet, once, standing_for
from rlsim.schema.speculation import Method


class EngineHost(Strict):
    """Host overhead that an RL framework adds to one engine release: its executor and its handling of requests."""

    engine: str = Field(min_length=1)
    """Engine."""
    version: str = Field(min_length=1)
    """Release."""
    iteration_s: NonNegativeFloat
    """Added host time per iteration of a single-GPU engine, x86 host."""


class FitRecord(Fit):
    """Fit to measured RL steps."""

    fitted: tuple[str, ...] = ()
    """Values that these steps determined, such as dense_efficiency or engine_hosts.0.17.1; all others are assumed:
    taken over from where the fit started."""
    skipped: dict[str, str] = Field(default_factory=dict)
    """Rows of the table that were not used, each with its reason."""
    held_out_median_error: dict[str, NonNegativeFloat]
    """Median error on rows of a group left out of the fit, by grouping (model, device, release)."""


class GlobalParameters(ParameterSet):
    """Global parameters of host and trainer."""

    fit: FitRecord
    engine_hosts: tuple[EngineHost, ...] = Field(min_length=1)
    """Newest release last; it is the default."""
    sequence_s: NonNegativeFloat
    """Host time per running sequence and iteration, x86 host; in place of a server's, which hands on every token."""
    in_process_iteration_s: NonNegativeFloat
    """Added per iteration where the engine shares the caller's process (offline generation)."""
    in_process_sequence_s: NonNegativeFloat
    """The same per running sequence and iteration."""
    executor_s: NonNegativeFloat
    """Host time per iteration of an engine spread over several GPUs."""
    node_executor_s: NonNegativeFloat
    """The same beyond executor_s over several nodes."""
    host_cpu_factors: dict[str, PositiveFloat]
    """Host time relative to x86 by host processor."""
    dense_efficiency: PositiveFraction
    """Speed of the kernels in RL trainers over that of tuned pretraining."""
    fsdp_efficiency: PositiveFraction
    """The same of FSDP (DTensor) relative to Megatron-Core, in the passes of an update."""
    moe_host_layer_s: NonNegativeFloat
    """Least host time of one MoE layer's forward pass in RL trainers (many small kernels), whatever the host: steps on
    x86 and on Grace tell no difference."""
    colocated_tensor_s: NonNegativeFloat
    """Host time per weight tensor that a colocated hand-over of the releases with measured steps takes beyond the
    measured transfers, which are of later code."""
    step_error: Fraction01
    """Standard deviation of ln(predicted / measured) of steps of models left out of the fit."""
    speedup_error: Fraction01
    """Standard deviation of ln(predicted / measured) of generation speed-ups by speculation: 14 published cells of
    arXiv 2604.26779 (rlsim validate published)."""

    def __hash__(self) -> int:
        """Equal sets have equal names and errors; the mappings in them have no hash of their own."""
        return hash((self.name, self.engine_hosts, self.dense_efficiency, self.step_error))

    def origin(self, name: str) -> Literal["fitted", "assumed"]:
        """Whether the value called ``name`` was determined by measured steps."""
        return "fitted" if name in self.fit.fitted else "assumed"

    def release(self, engine: str, version: str | None) -> EngineHost:
        """The fitted release whose host times stand for ``version`` of ``engine``.

        It is the newest one that is not newer, the oldest where all are newer, and the newest without a version. An
        engine without a fit takes the last release of the file.
        """
        releases = [host for host in self.engine_hosts if host.engine == engine] or list(self.engine_hosts[-1:])
        if version is None:
            return releases[-1]
        return standing_for(version, releases, lambda host: host.version)

    def host(self, release: EngineHost, gpus: int, nodes: int, in_process: bool, host_cpu: str) -> tuple[float, float]:
        """Host seconds (per iteration, per running sequence) of a replica over ``gpus`` GPUs on ``nodes`` nodes.

        release: what :meth:`release` finds for the engine's.
        """
        # An executor hands every iteration to processes on other GPUs; one GPU needs none.
        spread = (self.executor_s if gpus > 1 else 0.0) + (self.node_executor_s if nodes > 1 else 0.0)
        iteration = release.iteration_s + spread + (self.in_process_iteration_s if in_process else 0.0)
        sequence = self.sequence_s + (self.in_process_sequence_s if in_process else 0.0)
        factor = self.host_factor(host_cpu)
        return iteration * factor, sequence * factor

    def host_factor(self, host_cpu: str) -> float:
        """Host time relative to x86; 1 for processors without a fit."""
        words = host_cpu.lower()
        return next((factor for name, factor in self.host_cpu_factors.items() if name.lower() in words), 1.0)


class TrainingFramework(Strict):
    """One training framework over its releases."""

    framework: str = Field(min_length=1)
    """Framework, as stacks name it."""
    rows: int = Field(ge=0)
    """Measured steps behind the values."""
    speed: PositiveFloat
    """Speed of its kernels over that of all frameworks."""
    blackwell_speed: PositiveFloat = 1.0
    """The same on Blackwell over that on Hopper: whether its kernels were made for it."""
    blackwell_grouped_speed: PositiveFloat = 1.0
    """What expert products on Blackwell lack besides: grouped kernels that fall back to one product after the other."""
    host_factor: PositiveFloat
    """Host time of its layers over that of all frameworks."""


class ErrorSizes(Strict):
    """Sizes of errors as shares of the measured time."""

    median: NonNegativeFloat
    """Median."""
    p90: NonNegativeFloat
    """90th percentile."""


class TrainingFit(Fit):
    """Fit to measured training steps."""

    families: dict[str, dict[str, ErrorSizes]] = Field(default_factory=dict)
    """Errors of the terms alone, without deviations of groups: of all rows, of mixtures of experts and of dense models
    in tuned recipes, and of other frameworks; each as fitted and with every group of a grouping left out of the fit."""


class TrainingParameters(ParameterSet):
    """Terms of a layer, a micro-batch and a step that all frameworks share, and what frameworks differ by."""

    fit: TrainingFit
    dense_efficiency: PositiveFloat
    """Speed of matrix products within a step over that of the operator tables; tables of engines hold the quantisation
    of activations, which is counted apart here, so that it may exceed 1."""
    grouped_efficiency: PositiveFraction
    """Speed of the products of one expert after the other over that of the operator tables."""
    fused_grouped_gain: PositiveFloat
    """Speed of a fused grouped MLP in MXFP8 (Megatron-Core of NeMo 26.06) over products one by one."""
    power_exponent: NonNegativeFloat = 0.0
    """Exponent on the power of a GPU over its peak, relative to an H100's, with which products lose speed in a step
    that lasts: clocks go with the cube root of power where voltage follows them, with power where it cannot."""
    fp8_gain: PositiveFloat = 1.0
    """Speed of training's products in 8 bits over the operator tables', relative to BF16: those tables were
    collected on engines' kernels, with the quantisation of their inputs."""
    nvfp4_gain: PositiveFloat
    """Speed of training's products in NVFP4 over the operator tables', relative to other precisions: those tables were
    collected on engines' kernels for small batches."""
    nvfp4_grouped_gain: PositiveFloat = 1.0
    """The same of the products of one expert after the other."""
    elementwise_passes: PositiveFloat
    """Memory traffic of norms, residuals and activations over that of perfectly fused kernels."""
    permute_passes: PositiveFloat
    """Reads and writes of the routed activations around the experts, forward."""
    flex_permute: PositiveFraction
    """Share of them that remains with DeepEP and HybridEP, which send rows once and sort them where they arrive."""
    quantise_bytes: PositiveFloat
    """Bytes moved for each input and output element of a product in 8 bits: reading BF16, writing row-wise and
    column-wise copies, scales."""
    nvfp4_quantise: PositiveFloat
    """The same in NVFP4 over 8 bits: Hadamard transforms and stochastic rounding."""
    logits_bytes: PositiveFloat
    """Bytes moved for each logit by a fused loss, forward and backward, of which forward takes a third."""
    unfused_logits_bytes: PositiveFloat
    """The same of one that is not fused: passes over FP32 logits."""
    overlap_cost: Fraction01
    """What a second of communication hidden behind computation still costs: SMs, memory bandwidth and power that it
    takes, and the ends that nothing hides."""
    exchange_factor: PositiveFloat
    """Time of dispatch and combine over what the links' model says."""
    fp8_attention_gain: PositiveFloat
    """Speed of attention in FP8 over BF16."""
    flash_attention_2_flops_per_s: PositiveFloat = 3.5e14
    """Rate of FlashAttention-2 in BF16, whose instructions are those of an A100 on every device since."""
    context_attention: PositiveFloat
    """Attention of a context-parallel rank over its share of the attention of a whole sequence: smaller blocks, and
    partial results that must be joined."""
    moe_host_layer_s: NonNegativeFloat
    """Least host time of one MoE layer's forward pass on an x86 host without CUDA graphs, but for its experts."""
    expert_host_s: NonNegativeFloat
    """Host time that each gated expert on a rank adds in 8 or 4 bits; one without a gate two thirds."""
    bf16_expert_host_share: Fraction01
    """The same in BF16 over it: nothing is quantised expert by expert."""
    graph_host_share: Fraction01
    """Share of moe_host_layer_s that remains where router and dispatch preparation are CUDA graphs."""
    overlap_host_factor: PositiveFloat
    """Host time where the exchange runs beside another micro-batch: launches on two streams that wait for each
    other."""
    static_host_share: Fraction01
    """Share of expert_host_s that remains where experts take a fixed number of tokens, for which no host waits."""
    host_cpu_factors: dict[str, PositiveFloat]
    """Host time relative to x86 by host processor."""
    step_fixed_s: NonNegativeFloat
    """Fixed time of an optimizer step: gradient norm, its synchronisation, and their launches."""
    frameworks: tuple[TrainingFramework, ...]
    """Frameworks that were measured."""
    error: Fraction01
    """Standard deviation of ln(predicted / measured) of steps of models left out of the fit."""

    def __hash__(self) -> int:
        """Equal sets have equal names and frameworks; the mapping in them has no hash of its own."""
        return hash((self.name, self.dense_efficiency, self.moe_host_layer_s, self.frameworks))

    @model_validator(mode="after")
    def _each_framework_once(self) -> Self:
        once([one.framework for one in self.frameworks], "frameworks names one")
        return self

    def framework(self, name: str) -> TrainingFramework | None:
        """The framework called ``name``; None where it was not measured."""
        return next((one for one in self.frameworks if one.framework == name), None)

    def host_factor(self, host_cpu: str) -> float:
        """Host time relative to x86; 1 for processors without a fit."""
        words = host_cpu.lower()
        return next((factor for name, factor in self.host_cpu_factors.items() if name.lower() in words), 1.0)


IterationPoint = tuple[Method, NonNegativeInt, PositiveInt, NonNegativeFloat, PositiveFloat]
"""Method, drafted tokens, decoding sequences, mean context in tokens, seconds."""
PrefillPoint = tuple[PositiveInt, PositiveFloat]
"""Prompt tokens of an iteration that prefills and decodes nothing, seconds."""
PassPoint = tuple[PositiveInt, PositiveInt, PositiveFloat]
"""Samples of a micro-batch, tokens of each with their padding, seconds."""


class MeasuredStack(Strict):
    """Takes the place of operators, host terms, fitted terms and groups: times as the stack itself showed them."""

    name: Name
    """Name of the stack."""
    source: Name
    """Machine, software and date of the measurements."""
    model: Name
    """Model card that was run; a scenario of another model cannot use them."""
    iterations: tuple[IterationPoint, ...] = Field(min_length=1, max_length=20_000)
    """Engine iterations: method (none without drafts), drafted tokens, decoding sequences, mean context in tokens,
    seconds. Every draft length has all sizes and contexts; lengths in between are interpolated."""
    prefill: tuple[PrefillPoint, ...] = Field(min_length=1, max_length=2000)
    """Iterations that prefill alone: prompt tokens, seconds."""
    logprob: tuple[PassPoint, ...] = Field(min_length=1, max_length=2000)
    """Log-prob passes over a micro-batch: samples, tokens of each, seconds."""
    update: tuple[PassPoint, ...] = Field(min_length=1, max_length=2000)
    """Forward and backward passes over a micro-batch: samples, tokens of each, seconds."""
    optimizer_s: NonNegativeFloat
    """Seconds of an optimizer step."""
    hand_over_s: NonNegativeFloat
    """Seconds of a hand-over of the weights to the engine."""
    error: float = Field(ge=0, le=2)
    """Standard deviation of ln(step / prediction) on this machine."""

    def __hash__(self) -> int:
        """Equal stacks have equal points."""
        return hash((self.name, self.source, self.iterations, self.update))

    def _problems(self) -> Iterator[str]:
        grids: dict[tuple[str, int], list[tuple[float, ...]]] = {}
        for method, drafted, sequences, context, _ in self.iterations:
            if (method == "none") != (drafted == 0):
                yield f"iterations: method {method} cannot have {drafted} drafted tokens"
            grids.setdefault((method, drafted), []).append((sequences, context))
        for (name, drafted), points in grids.items():
            _check_grid(points, f"iterations: {name} {drafted}", "number of sequences at every context")
        for key in ("logprob", "update"):
            _check_grid([point[:2] for point in getattr(self, key)], key, "number of samples at every length")


def _check_grid(points: Sequence[tuple[float, ...]], name: str, each: str) -> None:
    first, second = ({point[place] for point in points} for place in (0, 1))
    if len(points) != len(set(points)) or len(points) != len(first) * len(second):
        raise ValueError(f"{name} needs every {each} once")
