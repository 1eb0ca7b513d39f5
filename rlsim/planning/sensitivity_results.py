"""What a sensitivity answers: what is worth measuring, as records to read and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rlsim.results import Interval
from rlsim.results.projection import rounded


@dataclass(frozen=True)
class Choice:
    """An alternative. changes: overrides that lead to it. step_s: as ``project`` shows it.

    best: share of the draws in which it is the fastest. regret_s: expected regret of choosing it now, in seconds of a
    step. saved_s: expected regret that measuring its step would save.
    """

    name: str
    changes: tuple[str, ...]
    step_s: Interval
    best: float
    regret_s: float
    saved_s: float


@dataclass(frozen=True)
class SourceValue:
    """A source of the step's interval (as in ``support`` of a projection) and what knowing it is worth.

    share: of the variance. narrowed: width of the interval if it were known over its width now. saved_s: expected
    regret that knowing it would save. settle: what to measure; command: what takes that in.
    """

    source: str
    kind: str
    assumed: bool
    share: float
    narrowed: float
    saved_s: float
    settle: str
    command: str


@dataclass(frozen=True)
class InputEffect:
    """A stated input between two values. at_low, at_high: what they move the step by, as shares of it.

    saved_s: expected regret that knowing it would save, all values between being equally likely. reason: of the range.
    """

    key: str
    low: float
    high: float
    at_low: float
    at_high: float
    saved_s: float
    reason: str


@dataclass(frozen=True)
class Sensitivity:
    """What is worth measuring, largest first.

    step_s: the interval of ``project``; step_with_inputs_s: with the stated inputs uncertain as well. chosen: the
    alternative of least expected step; regret_s: the expected regret of choosing it now.
    """

    scenario: str
    step_s: Interval
    step_with_inputs_s: Interval
    chosen: str
    regret_s: float
    alternatives: tuple[Choice, ...]
    sources: tuple[SourceValue, ...]
    inputs: tuple[InputEffect, ...]

    def as_dict(self) -> dict[str, Any]:
        """The form of ``--json``."""
        return {
            "schema": "rlsim.sensitivity/2",
            "scenario": self.scenario,
            "step_s": self.step_s.as_dict(),
            "step_with_inputs_s": self.step_with_inputs_s.as_dict(),
            "chosen": self.chosen,
            "regret_s": rounded(self.regret_s, 6),
            "alternatives": [
                _record(one) | {"changes": list(one.changes), "step_s": one.step_s.as_dict()}
                for one in self.alternatives
            ],
            "sources": [_record(one) for one in self.sources],
            "inputs": [_record(one) for one in self.inputs],
        }


def _record(one: Choice | SourceValue | InputEffect) -> dict[str, Any]:
    return {name: rounded(value, 6) if isinstance(value, float) else value for name, value in asdict(one).items()}
