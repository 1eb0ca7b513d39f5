"""What a comparison, a sensitivity (what is worth measuring), a blame, a choice's support and a sizing hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from rlsim.results.answer import Answer, flat, frame_of
from rlsim.results.projection import Provenance, Support
from rlsim.results.record import Interval, Number, Record, Rounded, Rounded6

if TYPE_CHECKING:
    from pandas import DataFrame


class PhaseChange(Record):
    """Seconds that a phase adds to the step of A and of B. share: of the difference of the steps."""

    phase: str
    before_s: Number
    after_s: Number
    share: Number | None


class Comparison(Answer):
    """B against A. differences: dotted key -> (value in A, value in B); None where a side lacks the key.

    modes: sync or async; of an asynchronous one ``phases`` holds the exposed generation, which the trainer waits for.
    paired: both drew the same work, so that ``speedup`` (step of A over step of B) is taken replication by replication.
    b_faster: probability that B's step is the shorter one; replications: of each side, more than the scenarios ask for
    where their own error was not small beside the model's; more_replications: how many more would make it so, 0 where
    it is.
    explained_by: the phase with the largest difference; None where nothing differs. verdict: what who decides must know
    of the faster side: that nobody measured its device, or that one fitted term decides the order.
    """

    rows_in = "phases"
    schema_: Literal["rlsim.comparison/1"] = Field(default="rlsim.comparison/1", alias="schema")
    names: tuple[str, str] = Field(alias="scenarios")
    modes: tuple[str, str] = Field(exclude=True)
    differences: dict[str, tuple[Any, Any]]
    step_s: tuple[Interval, Interval]
    speedup: Interval
    b_faster: Rounded6
    replications: int
    more_replications: int
    paired: bool
    phases: tuple[PhaseChange, ...]
    explained_by: str | None
    cost_per_step_usd: tuple[Number, Number]
    energy_per_step_j: tuple[Number, Number]
    price_per_gpu_hour_usd: tuple[Number, Number]
    warnings: tuple[str, ...] = ()
    verdict: tuple[str, ...] = ()

    @property
    def as_long(self) -> bool:
        """Whether the steps differ by less than 1 %, however sure it is which is the shorter."""
        return 0.99 <= self.speedup.low <= self.speedup.high <= 1.01


class Choice(Record):
    """An alternative. changes: overrides that lead to it. step_s: as ``project`` shows it.

    best: share of the draws in which it is the fastest. regret_s: expected regret of choosing it now, in seconds of a
    step. saved_s: expected regret that measuring its step would save.
    """

    name: str
    changes: tuple[str, ...]
    step_s: Interval
    best: Rounded6
    regret_s: Rounded6
    saved_s: Rounded6


class SourceValue(Record):
    """A source of the step's interval (as in ``support`` of a projection) and what knowing it is worth.

    share: of the variance. narrowed: width of the interval if it were known over its width now. saved_s: expected
    regret that knowing it would save. settle: what to measure; command: what takes that in.
    """

    source: str
    kind: str
    assumed: bool
    share: Rounded6
    narrowed: Rounded6
    saved_s: Rounded6
    settle: str
    command: str


class InputEffect(Record):
    """A stated input between two values. at_low, at_high: what they move the step by, as shares of it.

    saved_s: expected regret that knowing it would save, all values between being equally likely. reason: of the range.
    """

    key: str
    low: Rounded6
    high: Rounded6
    at_low: Rounded6
    at_high: Rounded6
    saved_s: Rounded6
    reason: str


class Sensitivity(Answer):
    """What is worth measuring, largest first.

    step_s: the interval of ``project``; step_with_inputs_s: with the stated inputs uncertain as well. chosen: the
    alternative of least expected step; regret_s: the expected regret of choosing it now.
    """

    rows_in = "sources"
    schema_: Literal["rlsim.sensitivity/2"] = Field(default="rlsim.sensitivity/2", alias="schema")
    scenario: str
    step_s: Interval
    step_with_inputs_s: Interval
    chosen: str
    regret_s: Rounded6
    alternatives: tuple[Choice, ...]
    sources: tuple[SourceValue, ...]
    inputs: tuple[InputEffect, ...]


class Technique(Record):
    """A published technique, or two, on a scenario. changes: overrides that apply it. speedup: step before over after.

    same_update: whether the same samples, in distribution, train the same update. asks: what it wants of the algorithm
    or of the user.
    """

    name: str
    title: str
    changes: tuple[str, ...]
    step_s: Interval
    speedup: Interval
    same_update: bool
    asks: str
    source: str


class LeftOut(Record):
    """A technique that the scenario cannot take, and why."""

    name: str
    title: str
    reason: str


class Techniques(Answer):
    """What published techniques would bring, fastest first; best_pair: two together, None where one does
    as well."""

    rows_in = "techniques"
    schema_: Literal["rlsim.techniques/1"] = Field(default="rlsim.techniques/1", alias="schema")
    scenario: str
    digest: str
    step_s: Interval
    techniques: tuple[Technique, ...]
    best_pair: Technique | None
    left_out: tuple[LeftOut, ...]

    @property
    def ranked(self) -> tuple[Technique, ...]:
        """The best pair, where there is one, and the techniques."""
        return (*([] if self.best_pair is None else [self.best_pair]), *self.techniques)


class DraftLength(Record):
    """A draft length. acceptance_length: tokens of a verification. pays_share: of the undrafted rollout's decoding
    time, that spent at live batches which gain; pays_up_to: the largest of these, 0 where none does. eager_share: of
    iterations, beyond the largest graph of captured_tokens. needed_tokens: that would hold the most sequences that run.
    """

    draft_length: int
    acceptance_length: Rounded
    rollout_speedup: Interval
    step_speedup: Interval
    pays_share: Rounded
    pays_up_to: int
    eager_share: Rounded
    captured_tokens: int
    needed_tokens: int


class DraftCurve(Answer):
    """Every draft length by what it brings; best: by the step. most_live: sequences that an engine runs at once without
    drafts, at most. assumed: of the drafter, where the scenario names none. left_out: lengths that cannot run, with the
    reason."""

    rows_in = "lengths"
    schema_: Literal["rlsim.draft_lengths/1"] = Field(default="rlsim.draft_lengths/1", alias="schema")
    scenario: str
    digest: str
    method: str
    assumed: str = ""
    most_live: int
    lengths: tuple[DraftLength, ...]
    best: int
    left_out: dict[int, str] = Field(default_factory=dict)

    @property
    def chosen(self) -> DraftLength:
        """The best length."""
        return next(one for one in self.lengths if one.draft_length == self.best)


class Idle(Record):
    """GPU-seconds per step in which the GPUs of a pool do nothing, for one cause; share: of all of a step."""

    pool: str
    cause: str
    gpu_s: Number
    share: Number


class Removal(Record):
    """A cause taken away, on the same drawn work. step_s: of the step without it; saved_s: by it alone.

    chain_s: what it saves after those before it in the list were taken away too; these add up to all that is removed.
    One that would then cost time stays. why: it costs time alone or stays, else nothing.
    """

    cause: str
    how: str
    step_s: Number
    saved_s: Number
    chain_s: Number
    why: str = ""


class WhatIf(Record):
    """A policy against the tail, tried on the same drawn work: step time, or the reason where it cannot run."""

    name: str
    how: str
    step_s: Number | None
    reason: str = ""


class Blame(Answer):
    """Idle time of a scenario's step by cause, what each removal gains, and tail policies as what-ifs.

    step_s, left_s: mean step, and without every cause. work_share: of all GPU-seconds in which the GPUs compute.
    """

    rows_in = "removals"
    schema_: Literal["rlsim.blame/1"] = Field(default="rlsim.blame/1", alias="schema")
    scenario: str
    digest: str
    num_gpus: int
    step_s: Number
    left_s: Number
    work_share: Number
    idle: tuple[Idle, ...]
    removals: tuple[Removal, ...]
    what_ifs: tuple[WhatIf, ...]


class TableSet(Record):
    """Measured operator tables. origin: software they were measured with; operators: those of the engine's folder."""

    system: str
    engine: str
    origin: str
    operators: tuple[str, ...]


class StepPart(Record):
    """A part of a plain step: its seconds, and what most of them rest on."""

    phase: str
    part: str
    seconds: Rounded6
    root: str


class Tried(Record):
    """A feature, tried. reason: why it is refused; empty where it projects. measured: share of its time, if it does."""

    name: str
    reason: str
    measured: Number | None


class Coverage(Record):
    """What backs ``model`` on ``device`` with ``engine``.

    tables: those of the device and engine, None without. releases: of the engine, with the measured iterations behind
    each. counts: measured times of each kind that share (model, device, software), by what they share. scenario: YAML
    of what was projected on ``num_gpus``; parts: of its step, largest first. tried: features on top.
    """

    schema_: Literal["rlsim.support/2"] = Field(default="rlsim.support/2", alias="schema")
    model: str
    device: str
    engine: str
    tables: TableSet | None
    releases: dict[str, int]
    counts: dict[str, dict[str, int]]
    scenario: str
    num_gpus: int = Field(exclude=True)
    provenance: Provenance
    parts: tuple[StepPart, ...]
    support: Support | None
    tried: tuple[Tried, ...]


class ClusterSize(Record):
    """A cluster in the layout that is fastest on it, synchronous and colocated.

    step_p90_s: what its step keeps to with 90 %. speedup: over half the GPUs; None of the first. layout: in words;
    changes: overrides of a scenario of ``rlsim new``. generation_share, training_share: of a GPU's memory in use.
    """

    gpus: int
    step_s: Interval
    step_p90_s: Rounded
    usd_per_step: Rounded
    speedup: Rounded6 | None
    layout: str
    changes: dict[str, int | str]
    generation_share: Rounded6
    training_share: Rounded6


class MemoryShare(Record):
    """Shares of a GPU that a colocated engine may and must take (engine.gpu_memory_utilization).

    safe: beside a trainer whose weights still lie there, as at a hand-over of weights. after_offload: beside what a
    trainer leaves when all it can offload is gone; an engine that takes its cache only then may have so much. least:
    what weights and one longest sequence need. fit_probability: with which it fits.
    """

    safe: Rounded6
    after_offload: Rounded6
    least: Rounded6
    fit_probability: Rounded6


class DeviceSize(Record):
    """A device. least: the fewest GPUs that fit, None where none do (``reason``). knee: the last doubling of GPUs
    that still shortens the step enough. chosen: within the deadline or the budget, else the knee; None where nothing
    keeps to them. memory_share: at ``chosen``, None where engine and trainer share no GPU. price, backing: text on the
    price of an hour, and on what times rest on where nobody measured the device.
    """

    device: str
    usd_per_gpu_hour: Rounded
    least: int | None
    knee: int | None
    chosen: int | None
    sizes: tuple[ClusterSize, ...]
    memory_share: MemoryShare | None
    reason: str = ""
    price: str = ""
    backing: str = ""

    def at(self, gpus: int | None) -> ClusterSize | None:
        """The cluster of so many GPUs."""
        return next((one for one in self.sizes if one.gpus == gpus), None)


class Sizing(Answer):
    """Clusters for a model by device. best: the device to take; None where nothing keeps to what was asked.

    response_tokens: mean length beyond the prompt, of agents that of a trajectory with its observations; turns: of one,
    in the mean. lora_rank: of the adapters that are trained, whoever states them. deadline_s: longest step; budget_usd:
    highest price of one. held: what no size changes (loop, precision, drafts). verdict: that nobody measured the device
    to take.
    """

    schema_: Literal["rlsim.size/1"] = Field(default="rlsim.size/1", alias="schema")
    model: str
    batch: tuple[int, int]
    response_tokens: int
    max_sequence_tokens: int
    lora_rank: int | None
    deadline_s: Rounded | None
    budget_usd: Rounded | None
    devices: tuple[DeviceSize, ...]
    best: str | None
    assumptions: tuple[str, ...]
    held: str = ""
    verdict: tuple[str, ...] = ()
    turns: Rounded = 1.0

    def to_frame(self) -> DataFrame:
        """The clusters of every device as a pandas table."""
        return frame_of([{"device": one.device, **flat(size)} for one in self.devices for size in one.sizes])
