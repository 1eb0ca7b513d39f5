"""What a sensitivity answers: what is worth measuring."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlsim.results.record import Interval, Record, Rounded6


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
