"""What a comparison of two scenarios holds, and what a sensitivity answers: what is worth measuring."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rlsim.results.record import Interval, Number, Record, Rounded6


class PhaseChange(Record):
    """Seconds that a phase adds to the step of A and of B. share: of the difference of the steps."""

    phase: str
    before_s: Number
    after_s: Number
    share: Number | None


class Comparison(Record):
    """B against A. differences: dotted key -> (value in A, value in B); None where a side lacks the key.

    modes: sync or async; of an asynchronous one ``phases`` holds the exposed generation, which the trainer waits for.
    paired: both drew the same work, so that ``speedup`` (step of A over step of B) is taken replication by replication.
    explained_by: the phase with the largest difference; None where nothing differs.
    """

    schema_: Literal["rlsim.comparison/1"] = Field(default="rlsim.comparison/1", alias="schema")
    names: tuple[str, str] = Field(alias="scenarios")
    modes: tuple[str, str] = Field(exclude=True)
    differences: dict[str, tuple[Any, Any]]
    step_s: tuple[Interval, Interval]
    speedup: Interval
    paired: bool
    phases: tuple[PhaseChange, ...]
    explained_by: str | None
    cost_per_step_usd: tuple[Number, Number]
    energy_per_step_j: tuple[Number, Number]
    price_per_gpu_hour_usd: tuple[Number, Number]
    warnings: tuple[str, ...] = ()


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


class Sensitivity(Record):
    """What is worth measuring, largest first.

    step_s: the interval of ``project``; step_with_inputs_s: with the stated inputs uncertain as well. chosen: the
    alternative of least expected step; regret_s: the expected regret of choosing it now.
    """

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


class Techniques(Record):
    """What published techniques would bring, fastest first; best_pair: two together, None where one does better."""

    schema_: Literal["rlsim.techniques/1"] = Field(default="rlsim.techniques/1", alias="schema")
    scenario: str
    digest: str
    step_s: Interval
    techniques: tuple[Technique, ...]
    best_pair: Technique | None
    left_out: tuple[LeftOut, ...]
