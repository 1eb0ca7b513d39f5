"""The answer as data: what `project` returns, what the reports read and what projection.json holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field, PlainSerializer

from rlsim.files.yaml import dump_yaml
from rlsim.results.answer import Answer
from rlsim.results.efficiency import MeasuredEfficiency, PhaseEfficiency
from rlsim.results.memory import MemoryUse
from rlsim.results.moves import TryFirst
from rlsim.results.record import Interval, Number, Record, Rounded, Rounded6, rounded

if TYPE_CHECKING:
    from pandas import DataFrame

PHASES = ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s", "refit_s", "exposed_generation_s")
"""Phase names of the contract. Synchronous steps add up data, prepare, generation, logprob and train."""

T = TypeVar("T")


@dataclass(frozen=True)
class StepPhases(Generic[T]):
    """The phases of a step, in seconds or as intervals of seconds; the names are those of the contract.

    Synchronous steps add up data, prepare, generation, log-prob and train; refit is part of prepare. Asynchronous ones
    add up exposed generation, data, log-prob, train and refit; generation is the pool's busy time.
    """

    data_s: T
    prepare_s: T
    generation_s: T
    logprob_s: T
    train_s: T
    refit_s: T
    exposed_generation_s: T

    def __getitem__(self, name: str) -> T:
        """The phase of a contract name, for loops over PHASES."""
        # getattr has no type of its own.
        value: T = getattr(self, name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(PHASES)

    def items(self) -> Iterator[tuple[str, T]]:
        """(name, value) of every phase."""
        return ((name, self[name]) for name in PHASES)


@dataclass(frozen=True)
class TokenLedger:
    """Where response tokens went: generated = consumed + stale + discarded + regenerated + in_flight.

    consumed: trained on. stale: dropped before training for their age, in the queue or in flight. discarded: of groups
    that no step could use (dynamic sampling), and of what lost a race (tail batching). regenerated: lost to restarts
    and generated once more. in_flight: what unfinished samples and groups in the queue hold at the end, less what they
    held at the beginning.
    """

    generated: Rounded
    consumed: Rounded
    stale: Rounded
    discarded: Rounded
    regenerated: Rounded
    in_flight: Rounded

    def __add__(self, other: TokenLedger) -> TokenLedger:
        return TokenLedger(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: TokenLedger) -> TokenLedger:
        return TokenLedger(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def scaled(self, factor: float) -> TokenLedger:
        """Every entry times ``factor``."""
        return TokenLedger(*(factor * value for value in astuple(self)))


@dataclass(frozen=True)
class Span:
    """What one actor did when: ``actor`` is a lane of the timeline (trainer, replica 3...), times in seconds."""

    actor: str
    phase: str
    step: int
    start_s: float
    end_s: float
    detail: str = ""


@dataclass(frozen=True)
class Curve:
    """A counter over time for the timeline: ``values[i]`` holds from ``times_s[i]`` to the next time."""

    name: str
    times_s: tuple[float, ...]
    values: tuple[float, ...]


IN_ENGINES, IN_SANDBOXES, CONTEXTS = "turns in engines", "trajectories in sandboxes", "tokens of context in engines"
CAPACITY = "tokens that all KV caches hold"
"""Names of the curves of agents; others are trajectories with the environment, or the judge."""


if TYPE_CHECKING:
    Spans = tuple[Span, ...]
    Curves = tuple[Curve, ...]
else:  # never read from a file: what checks them costs more to build than a projection to write
    Spans = Curves = tuple


class Difference(Record):
    """A feature in which a measured run differs, as asked and as measured."""

    feature: str
    asked: str
    measured: str


class MeasuredRun(Record):
    """A measured run by the id of its row, and all that it differs in, most first."""

    id: str
    differences: tuple[Difference, ...]


class NearestRuns(Record):
    """Measured runs of one kind (iteration, training, transfer or step), nearest first; none where none was measured.

    share: of the step that such runs measure.
    """

    kind: str
    share: Rounded6
    runs: tuple[MeasuredRun, ...]


class VarianceSource(Record):
    """A source of the step's interval. share: of the variance of the logarithm of the step, of all sources 1.

    kind: what measures it (launches, iterations, training, transfers, steps). assumed: whether no measurement says
    anything of it. settle: what to measure; command: what takes that in.
    """

    source: str
    kind: str
    share: Rounded6
    assumed: bool
    settle: str
    command: str


class Support(Record):
    """What supports the candidate's step. half_width: half its 90 % interval over the step."""

    half_width: Rounded6
    nearest: tuple[NearestRuns, ...]
    sources: tuple[VarianceSource, ...]


SCHEMA: Literal["rlsim.projection/2"] = "rlsim.projection/2"
Method = Literal["none", "eagle3", "mtp", "draft_model", "dflash", "dspark", "ngram", "suffix"]


class PhasePart(Record):
    """One part of a phase: seconds per step, what bounds it, and what it rests on.

    label: what most of its seconds rest on, measured, modelled or assumed. measured: share (0..1) of them that a
    measurement backs; source: what the rest is, modelled or assumed. The last two are not in files.
    """

    phase: str
    name: str = Field(alias="part")
    seconds: Rounded
    bound: str
    label: str = Field(alias="root")
    measured: float = Field(default=0.0, exclude=True)
    source: str = Field(default="", exclude=True)


@dataclass(frozen=True)
class Provenance:
    """Shares of the candidate's time that measurements, models and assumptions back; they add up to 1."""

    measured: Number
    modelled: Number
    assumed: Number


@dataclass(frozen=True)
class EngineStatistics:
    """What the engines did in a measured step, mean over steps and all replicas together; None where it has no meaning.

    mean_batch, mean_context_tokens: over decode iterations. eager_share: of the iterations, beyond the largest captured
    graph. peak_kv_tokens: most KV cache of one replica. replica_imbalance: the slowest replica's time over the mean.
    tokens_per_s: response tokens over the generation phase. iterations_per_s: of one replica. turns,
    environment_queue_s (mean wait of a turn for a free environment), reused_tokens (found in prefix caches by
    trajectories that came back), loaded_tokens (from engine.kv_offload) and timed_out: of agents.
    """

    replicas: Number
    decode_iterations: Number
    mean_batch: Number
    mean_context_tokens: Number
    eager_share: Number
    prefill_iterations: Number
    prefill_tokens: Number
    preemptions: Number
    peak_kv_tokens: Number
    tokens_per_s: Number
    iterations_per_s: Number
    tokens_per_verification: Number
    replica_imbalance: Number | None = None
    rollouts: Number | None = None
    turns: Number | None = None
    environment_queue_s: Number | None = None
    reused_tokens: Number | None = None
    loaded_tokens: Number | None = None
    timed_out: Number | None = None

    def known(self) -> dict[str, float]:
        """Statistics that have a meaning, rounded to 9 digits, by name."""
        # Rounded here, since a serializer of the fields would write those without a meaning as null.
        return {name: rounded(value) for name, value in self.items()}

    def items(self) -> Iterator[tuple[str, float]]:
        """(name, value) of what has a meaning."""
        return ((f.name, value) for f in fields(self) if (value := getattr(self, f.name)) is not None)


@dataclass(frozen=True)
class Sampling:
    """What the simulated steps themselves leave open, apart from the model's error.

    step_error_s: standard error of the mean step, which shrinks with replications; None of a single step.
    step_deviation_s: standard deviation between the simulated steps, as a run will show it from step to step.
    """

    step_error_s: Rounded | None
    step_deviation_s: Rounded


class Side(Record):
    """A side of a comparison: what it drafts."""

    method: Method
    draft_length: int

    @property
    def speculates(self) -> bool:
        """Whether anything is drafted."""
        return self.method != "none" and self.draft_length > 0


class Variant(Side):
    """One side of the comparison: the autoregressive baseline or the candidate.

    memory: by pool. memory_phases: of a GPU, by phase of the step. staleness: share of consumed samples by age in
    versions of the weights, youngest first.
    token_ages: share of consumed response tokens by the age of the weights that generated them; empty for agents and
    synchronous loops. ledger:
    where the response tokens of a step went; None for agents. efficiency: by phase. spans, curves: of the timeline,
    not in projection.json.
    """

    acceptance_length: Interval
    step_s: Interval
    phases: StepPhases[Interval]
    tokens_per_s_per_gpu: Interval
    memory: dict[str, MemoryUse]
    memory_phases: dict[str, MemoryUse] = Field(default_factory=dict)
    parts: tuple[PhasePart, ...] = Field(alias="bounds")
    staleness: dict[int, Rounded]
    token_ages: dict[int, Rounded] = Field(default_factory=dict)
    ledger: TokenLedger | None = Field(alias="tokens")
    sampling: Sampling
    statistics: Annotated[EngineStatistics, PlainSerializer(EngineStatistics.known)] = Field(alias="facts")
    efficiency: tuple[PhaseEfficiency, ...] = ()
    spans: Spans = Field(default=(), exclude=True, repr=False)
    curves: Curves = Field(default=(), exclude=True, repr=False)


class About(Answer):
    """Which scenario an answer is of, and what was asked. The answer's file repeats no more of it than schema,
    scenario, digest and seed: it is in scenario.yaml beside it. asked: the scenario, whose text few ask for."""

    schema_: str = Field(alias="schema")
    scenario: str
    digest: str
    seed: int
    question: str = Field(default="", exclude=True)
    mode: str = Field(default="", exclude=True)
    num_gpus: int = Field(default=0, exclude=True)
    model: str = Field(default="", exclude=True)
    hardware: str = Field(default="", exclude=True)
    price_per_gpu_hour_usd: float = Field(default=0.0, exclude=True)
    price_source: str = Field(default="", exclude=True)
    asked: Any = Field(default=None, exclude=True, repr=False)

    @property
    def resolved_scenario(self) -> str:
        """The complete scenario that was asked, as YAML; empty for an answer that was read from a file."""
        return "" if self.asked is None else dump_yaml(self.asked)

    @property
    def asynchronous(self) -> bool:
        """Whether generation runs beside the trainer."""
        return self.mode == "async"

    @property
    def alone(self) -> str:
        """Name of the one side where nothing is drafted; what generates nothing is no autoregressive one."""
        return "update" if self.order == "supervised" else "autoregressive"

    @property
    def order(self) -> str:
        """How generation and training follow each other: synchronous, asynchronous, or one of them alone."""
        alone = {"supervised": "supervised", "rollouts_alone": "rollouts alone"}
        return {"async": "asynchronous", **alone}.get(self.mode, "synchronous")


class Projection(About):
    """The answer to a scenario: baseline and candidate on the same drawn work.

    measured_efficiency: what measured runs of the model on its devices reached. price_per_gpu_hour_usd: of the
    hardware profile; price_source: where it comes from, mostly assumed. try_first: the best of a few moves; null where
    none gains or a scenario takes so long that none was tried. tuned_step_s: of the candidate, if its stack ran as the
    recipes of its makers do; null where it is one of those. caveats: what the verdict assumes and says so, such as a
    guessed length. missing: parts of the real run that are not simulated, and which way they move the step.
    """

    schema_: Literal["rlsim.projection/2"] = Field(default=SCHEMA, alias="schema")
    baseline: Variant
    candidate: Variant
    rollout_speedup: Interval
    end_to_end_speedup: Interval
    provenance: Provenance
    support: Support | None = None
    measured_efficiency: tuple[MeasuredEfficiency, ...] = ()
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    try_first: TryFirst | None = None
    tuned_step_s: Interval | None = None
    caveats: tuple[str, ...] = Field(default=(), exclude=True)
    missing: tuple[str, ...] = ()

    @property
    def variants(self) -> dict[str, Variant]:
        """The sides to show: baseline and candidate, or the one that there is where nothing is drafted."""
        # Both sides are the same run then; one of them is shown.
        if not self.candidate.speculates:
            return {self.alone: self.candidate}
        return {"baseline": self.baseline, "candidate": self.candidate}

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
