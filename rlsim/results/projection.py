"""The answer as data: what `project` returns, what the reports read and what projection.json holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from rlsim.results.support import Support
from rlsim.results.trace import PHASES, Curve, Span, StepPhases, TokenLedger

if TYPE_CHECKING:
    from pandas import DataFrame

SCHEMA = "rlsim.projection/1"


@dataclass(frozen=True)
class Interval:
    """A number with its 90 % interval."""

    mean: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        """Rounded to 9 significant digits, so that files stay readable."""
        return {"mean": rounded(self.mean), "low": rounded(self.low), "high": rounded(self.high)}


@dataclass(frozen=True)
class PhasePart:
    """One part of a phase: seconds per step, what bounds it, and what it rests on.

    measured: share (0..1) of the seconds that a measurement backs; source: what the rest is, modelled or assumed.
    """

    phase: str
    name: str
    seconds: float
    bound: str
    source: str
    measured: float

    @property
    def label(self) -> str:
        """What most of the part rests on: measured, modelled or assumed."""
        return "measured" if self.measured >= 0.5 else self.source


@dataclass(frozen=True)
class Provenance:
    """Shares of the candidate's time that measurements, models and assumptions back; they add up to 1."""

    measured: float
    modelled: float
    assumed: float


@dataclass(frozen=True)
class Label:
    """What readers see beside a number: its name and its unit; a unit of ``%`` shows a share (0..1) as percent."""

    text: str
    unit: str = ""


@dataclass(frozen=True)
class EngineStatistics:
    """What the engines did in a measured step, mean over steps and all replicas together; None where it has no meaning.

    mean_batch, mean_context_tokens: over decode iterations. eager_share: of the iterations, beyond the largest captured
    graph. peak_kv_tokens: most KV cache of one replica. replica_imbalance: the slowest replica's time over the mean.
    tokens_per_s: response tokens over the generation phase. iterations_per_s: of one replica. turns,
    environment_queue_s (mean wait of a turn for a free environment), reused_tokens (found in prefix caches by
    trajectories that came back) and timed_out: of agents.
    """

    replicas: Annotated[float, Label("replicas")]
    decode_iterations: Annotated[float, Label("decode iterations", "per step")]
    mean_batch: Annotated[float, Label("mean batch", "sequences")]
    mean_context_tokens: Annotated[float, Label("mean context", "tokens")]
    eager_share: Annotated[float, Label("eager iterations", "%")]
    prefill_iterations: Annotated[float, Label("prefill iterations", "per step")]
    prefill_tokens: Annotated[float, Label("prefill", "tokens per step")]
    preemptions: Annotated[float, Label("preemptions", "per step")]
    peak_kv_tokens: Annotated[float, Label("peak KV cache", "tokens of a replica")]
    tokens_per_s: Annotated[float, Label("generated", "tokens/s")]
    iterations_per_s: Annotated[float, Label("decode iterations", "per second and replica")]
    tokens_per_verification: Annotated[float, Label("generated", "tokens per verification")]
    replica_imbalance: Annotated[float | None, Label("slowest replica", "times the mean")] = None
    rollouts: Annotated[float | None, Label("rollouts", "per step")] = None
    turns: Annotated[float | None, Label("turns", "per step")] = None
    environment_queue_s: Annotated[float | None, Label("queue of the environment", "seconds per turn")] = None
    reused_tokens: Annotated[float | None, Label("reused prefixes", "tokens per step")] = None
    timed_out: Annotated[float | None, Label("trajectories out of time", "per step")] = None

    def items(self) -> Iterator[tuple[str, float]]:
        """(name, value) of what has a meaning."""
        return ((f.name, value) for f in fields(self) if (value := getattr(self, f.name)) is not None)

    @classmethod
    def labels(cls) -> dict[str, Label]:
        """Label of every field by its name."""
        return {name: hint.__metadata__[0] for name, hint in get_type_hints(cls, include_extras=True).items()}


@dataclass(frozen=True)
class MemoryParts:
    """Bytes of one GPU by what holds them; None what its pool does not have."""

    weights: float
    runtime: float
    activations: float
    draft: float | None = None
    graphs: float | None = None
    kv_cache: float | None = None
    gradients: float | None = None
    optimizer: float | None = None
    logits: float | None = None
    critic: float | None = None
    state: float | None = None

    def items(self) -> Iterator[tuple[str, float]]:
        """(name, bytes) of every part that the pool has; names as in projection.json."""
        names = ((f.name, "KV cache" if f.name == "kv_cache" else f.name) for f in fields(self))
        return ((shown, size) for name, shown in names if (size := getattr(self, name)) is not None)

    @property
    def total(self) -> float:
        """Sum of the parts."""
        return sum(size for _, size in self.items())


@dataclass(frozen=True)
class MemoryUse:
    """Bytes per GPU of one pool in its fullest phase, by what holds them, against what is there."""

    pool: str
    parts: MemoryParts
    available_bytes: float

    @property
    def total_bytes(self) -> float:
        """Sum of the parts."""
        return self.parts.total


@dataclass(frozen=True)
class Sampling:
    """What the simulated steps themselves leave open, apart from the model's error.

    step_error_s: standard error of the mean step, which shrinks with replications; None of a single step.
    step_deviation_s: standard deviation between the simulated steps, as a run will show it from step to step.
    """

    step_error_s: float | None
    step_deviation_s: float

    def as_dict(self) -> dict[str, float | None]:
        """For JSON."""
        error = None if self.step_error_s is None else rounded(self.step_error_s)
        return {"step_error_s": error, "step_deviation_s": rounded(self.step_deviation_s)}


@dataclass(frozen=True)
class Variant:
    """One side of the comparison: the autoregressive baseline or the candidate.

    staleness: share of consumed samples by age in versions of the weights. ledger: where the response tokens of a step
    went; None for agents.
    """

    method: str
    draft_length: int
    acceptance_length: Interval
    step_s: Interval
    phases: StepPhases[Interval]
    tokens_per_s_per_gpu: Interval
    memory: tuple[MemoryUse, ...]
    parts: tuple[PhasePart, ...]
    staleness: dict[int, float]
    statistics: EngineStatistics
    sampling: Sampling
    ledger: TokenLedger | None = None
    spans: tuple[Span, ...] = field(default=(), repr=False)
    curves: tuple[Curve, ...] = field(default=(), repr=False)

    @property
    def speculates(self) -> bool:
        """Whether anything is drafted."""
        return self.method != "none" and self.draft_length > 0

    def as_dict(self) -> dict[str, Any]:
        """The contract's form."""
        return {
            "method": self.method,
            "draft_length": self.draft_length,
            "acceptance_length": self.acceptance_length.as_dict(),
            "step_s": self.step_s.as_dict(),
            "phases": {name: self.phases[name].as_dict() for name in PHASES},
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu.as_dict(),
            "memory": {
                use.pool: {
                    "parts_bytes": {k: rounded(v) for k, v in use.parts.items()},
                    "total_bytes": rounded(use.total_bytes),
                    "available_bytes": rounded(use.available_bytes),
                }
                for use in self.memory
            },
            "bounds": [
                {"phase": p.phase, "part": p.name, "seconds": rounded(p.seconds), "bound": p.bound, "root": p.label}
                for p in self.parts
            ],
            "staleness": {str(age): rounded(share) for age, share in sorted(self.staleness.items())},
            "tokens": None if self.ledger is None else {k: rounded(v) for k, v in asdict(self.ledger).items()},
            "sampling": self.sampling.as_dict(),
            "facts": {k: rounded(v) for k, v in self.statistics.items()},
        }


@dataclass(frozen=True)
class Projection:
    """The answer to a scenario: baseline and candidate on the same drawn work.

    price_per_gpu_hour_usd: of the hardware profile; price_source: where it comes from, mostly assumed. caveats: what
    the verdict is said with, such as a guessed length.
    """

    scenario: str
    question: str
    digest: str
    seed: int
    mode: str
    num_gpus: int
    model: str
    hardware: str
    baseline: Variant
    candidate: Variant
    rollout_speedup: Interval
    end_to_end_speedup: Interval
    provenance: Provenance
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    price_per_gpu_hour_usd: float
    price_source: str
    resolved_scenario: str = field(repr=False, default="")
    support: Support | None = None
    caveats: tuple[str, ...] = ()

    @property
    def asynchronous(self) -> bool:
        """Whether generation runs beside the trainer."""
        return self.mode == "async"

    def as_dict(self) -> dict[str, Any]:
        """The contract's form (projection.json)."""
        return {
            "schema": SCHEMA,
            "scenario": self.scenario,
            "digest": self.digest,
            "seed": self.seed,
            "baseline": self.baseline.as_dict(),
            "candidate": self.candidate.as_dict(),
            "rollout_speedup": self.rollout_speedup.as_dict(),
            "end_to_end_speedup": self.end_to_end_speedup.as_dict(),
            "provenance": asdict(self.provenance),
            "support": None if self.support is None else self.support.as_dict(),
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
        }

    def to_json(self) -> str:
        """projection.json, the same bytes for the same scenario and seed."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n"

    def to_frame(self) -> DataFrame:
        """The step and its phases as a pandas table: seconds of both sides with their 90 % intervals."""
        from pandas import DataFrame

        arms = {"baseline": self.baseline, "candidate": self.candidate}
        sides = {name: {"step_s": arm.step_s, **dict(arm.phases.items())} for name, arm in arms.items()}
        return DataFrame(
            {
                (name, bound): {phase.removesuffix("_s"): getattr(seconds, bound) for phase, seconds in side.items()}
                for name, side in sides.items()
                for bound in ("mean", "low", "high")
            }
        ).rename_axis(f"{self.scenario}, s")

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return str(self.to_frame().to_html(float_format="{:.1f}".format))


def rounded(value: float, digits: int = 9) -> float:
    """``value`` to so many significant digits: results are the same bytes on machines that add in another order."""
    return float(f"{value:.{digits}g}")
