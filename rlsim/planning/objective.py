"""What a plan is for and what it must keep to, reduced to seconds per step, and what draws of the step say of it."""

import difflib
import math
from collections.abc import Mapping
from typing import Literal, TypeVar, cast, get_args

import numpy as np
from msgspec import Struct

from rlsim.errors import InputError, shortened
from rlsim.projection.summary import price_usd
from rlsim.schema.scenario import Scenario
from rlsim.units import SECONDS_PER_HOUR, FloatArray

Seconds = TypeVar("Seconds", float, FloatArray)

SECONDS_PER_DAY = 86400.0

Measure = Literal[
    "step_time", "tokens_per_s", "steps_per_day", "time_to_n_steps", "cost_per_step", "energy_per_step", "gpus"
]
Statistic = Literal["mean", "p90"]
"""What of a measure is made best: its simulated mean, or what 90 % of the common draws do not exceed (of measures of
which more is better: what 90 % of them reach)."""
PER_GPU = ("cost_per_step", "energy_per_step")
"""Objectives that grow with the number of GPUs; the others rank plans of equal work by step time alone."""
P90 = 0.9
CONFIDENCE = 0.9
"""Least share of draws in which a plan keeps a constraint, by default."""


class Objective(Struct, frozen=True):
    """What is made best, and constraints. steps: length of the run that deadline_s (seconds) and budget_usd hold for.

    target_step_s: with measure gpus, the step time that the smallest cluster must reach. confidence: least probability
    (0..1) with which deadline, budget and target hold, over the draws of the model's error.
    """

    measure: Measure = "step_time"
    statistic: Statistic = "p90"
    steps: int | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None
    target_step_s: float | None = None
    confidence: float = CONFIDENCE

    def check(self) -> None:
        """Raise InputError for contradictions."""
        _one_of(self.measure, get_args(Measure), "measures")
        _one_of(self.statistic, get_args(Statistic), "statistics")
        of_runs = {
            "--deadline-hours": self.deadline_s is not None,
            "--budget-usd": self.budget_usd is not None,
            "--objective time_to_n_steps": self.measure == "time_to_n_steps",
        }
        for name, given in of_runs.items():
            if given and self.steps is None:
                raise InputError(f"{name} needs --steps N, the length of the run")
        if (self.measure == "gpus") != (self.target_step_s is not None):
            raise InputError(
                "--objective gpus needs the step time to reach, and no other takes one: --objective gpus=SECONDS"
            )
        limits = {"--steps": self.steps, "--deadline-hours": self.deadline_s, "--budget-usd": self.budget_usd}
        check_positive({**limits, "--objective gpus=SECONDS": self.target_step_s})
        if not 0 < self.confidence < 1:
            raise InputError(f"confidence must lie between 0 and 1, got {self.confidence:g}")

    def allowed_steps(self, scenario: Scenario, gpus: int) -> dict[str, float]:
        """Longest step that each constraint allows on ``gpus`` GPUs, in seconds by the constraint's name."""
        out = {} if self.target_step_s is None else {"target step time": self.target_step_s}
        if self.deadline_s is not None and self.steps:
            out["deadline"] = self.deadline_s / self.steps
        if self.budget_usd is not None and self.steps:
            out["budget"] = self.budget_usd / self.steps / (gpus * price_usd(scenario, gpus) / SECONDS_PER_HOUR)
        return out

    def effort(self, scenario: Scenario, gpus: int, step_s: Seconds) -> Seconds:
        """Seconds of a step, times the GPUs or the USD that are paid for them: plans are compared by it, smaller being
        better."""
        paid = gpus * price_usd(scenario, gpus) if self.measure == "cost_per_step" else gpus
        return step_s * paid if self.measure in PER_GPU else step_s

    def value(self, scenario: Scenario, gpus: int, step_s: float, tokens_per_step: float) -> float:
        """The measure that is made best, in its own unit (seconds, tokens/s, steps, USD, joules or GPUs)."""
        price = price_usd(scenario, gpus) / SECONDS_PER_HOUR
        return {
            "step_time": step_s,
            "tokens_per_s": tokens_per_step / step_s,
            "steps_per_day": SECONDS_PER_DAY / step_s,
            "time_to_n_steps": step_s * (self.steps or 1),
            "cost_per_step": step_s * gpus * price,
            # At the power limit, busy or not: an upper bound, as in projection.summary.energy_j.
            "energy_per_step": step_s * gpus * scenario.hardware.power_w.value,
            "gpus": float(gpus),
        }[self.measure]


def parse_objective(text: str) -> tuple[Measure, Statistic, float | None]:
    """Measure, statistic and step time to reach of ``MEASURE``, ``STATISTIC``, ``MEASURE,STATISTIC`` or
    ``gpus=SECONDS``. Raises InputError."""
    measures, statistics = get_args(Measure), get_args(Statistic)
    target_s, measure, statistic = None, list[Measure](), list[Statistic]()
    for part in (part.strip() for part in text.split(",")):
        name, equals, seconds = part.partition("=")
        if name == "regret":
            raise InputError("--objective: regret is no statistic of a plan any more; take mean or p90")
        _one_of(name, (*measures, *statistics), "measures and statistics")
        if equals:
            try:
                target_s = float(seconds)
            except ValueError:
                wanted = "must be a step time in seconds, such as gpus=200"
                raise InputError(f"--objective {shortened(part)}: {wanted}") from None
        if name in measures:
            measure.append(cast(Measure, name))
        else:
            statistic.append(cast(Statistic, name))
    if len(measure) > 1 or len(statistic) > 1:
        raise InputError(
            f"--objective {shortened(text)}: give one measure and one statistic, such as cost_per_step,p90"
        )
    plain = Objective()
    return (measure or [plain.measure])[0], (statistic or [plain.statistic])[0], target_s


def check_positive(given: Mapping[str, float | None]) -> None:
    """Raise InputError for an option whose value is not above 0 and finite; None: it was not given."""
    for name, value in given.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise InputError(f"{name} must be above 0, got {value:g}")


def _one_of(name: str, known: tuple[str, ...], what: str) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"{what} are {', '.join(known)}"
        raise InputError(f"--objective: unknown '{shortened(name)}'; {hint}")


def p90(draws: FloatArray) -> float:
    """90th percentile of the draws, in their unit."""
    return quantile(draws, P90)


def quantile(draws: FloatArray, share: float) -> float:
    """The least draw that ``share`` of all draws do not exceed, in their unit."""
    # A draw itself, not a value between two: then what `share` of the draws keep to is exactly this (probability()).
    return float(np.quantile(draws, share, method="inverted_cdf"))


def probability(draws: FloatArray, longest: float) -> float:
    """Share of draws up to ``longest``."""
    return float(np.mean(draws <= longest))
