"""What to measure next: how much regret of a choice, and how much of the step's interval, each measurement would save.

The interval is that of ``project``. Its sources (``uncertainty.sources``) are valued by the choice among a few
cheap alternatives to the scenario (:mod:`rlsim.planning.regret`), all on the same draws. What the scenario states
(lengths, acceptance...) is no part of that interval: each stated input is simulated at both ends of a range.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlsim.errors import Infeasible, InputError
from rlsim.files.progress import ProgressLine
from rlsim.loading.scenario import vary
from rlsim.loading.variation import Overrides
from rlsim.planning.alternatives import Alternative, alternatives
from rlsim.planning.execution import Runner, executor
from rlsim.planning.regret import GRID, narrowed, regret, regrets, saved, saved_by_input, through
from rlsim.planning.sensitivity_results import Choice, InputEffect, Sensitivity, SourceValue
from rlsim.planning.uncertainty import UncertainInput, drawn_overrides, uncertain_inputs
from rlsim.projection.summary import Timed, timed
from rlsim.projection.uncertainty.predictive import DRAWS, around
from rlsim.projection.uncertainty.sources import sources_of
from rlsim.projection.variant import SimulatedVariant, simulate_variant
from rlsim.results import Interval
from rlsim.schema.scenario import Scenario
from rlsim.units import FloatArray


@dataclass(frozen=True, eq=False)
class Arm:
    """A simulated alternative. first_s: mean step of its first replication, on whose work inputs are varied."""

    alternative: Alternative
    timed: Timed
    first_s: float

    @property
    def steps(self) -> FloatArray:
        """Draws of its step in seconds, shape (DRAWS,)."""
        return self.timed.step_s * self.timed.prediction.step_factor

    @property
    def interval(self) -> Interval:
        """Its step as ``project`` shows it."""
        return around(self.timed.step_s, self.timed.prediction.step_factor)


def sensitivity(
    scenario: Scenario, *, uncertain: Sequence[str] = (), jobs: int | None = 1, dask: str | None = None
) -> Sensitivity:
    """Rank what could be measured by the expected regret and the width of the interval that it would save.

    uncertain: ``key=low:high`` each, overriding or adding ranges of stated inputs. Raises InputError where a range
    cannot be simulated, and Infeasible where the scenario cannot run.
    """
    inputs = uncertain_inputs(scenario, uncertain)
    run = simulate_variant(scenario)
    wanted = alternatives(scenario)
    points = _points(wanted, inputs)
    count = len(wanted) - 1 + len(points)
    with ProgressLine("simulations", count) as progress, executor(jobs, dask, count) as runner:
        others = _in_order(runner, _arm, wanted[1:], progress)
        steps = _in_order(runner, first_step_s, list(points.values()), progress)
    arms = [_arm_of(wanted[0], run), *(arm for arm in others if arm is not None)]
    found = dict(zip(points, steps, strict=True))
    return _answer(run, arms, inputs, found)


Place = tuple[str, str, float]
"""An alternative, an input and a quantile of it."""


def _points(wanted: Sequence[Alternative], inputs: Sequence[UncertainInput]) -> dict[Place, tuple[Scenario, Overrides]]:
    """What to simulate of the inputs; those that change nothing of an alternative are left out."""
    out = {}
    for one, item in itertools.product(wanted, inputs):
        for quantile in item.simulated:
            if overrides := drawn_overrides(one.scenario, [item], np.array([quantile])):
                out[one.name, item.key, quantile] = (one.scenario, overrides)
    return out


def _in_order(
    runner: Runner, function: Callable[[Any], Any], tasks: Sequence[Any], progress: ProgressLine
) -> list[Any]:
    out: list[Any] = [None] * len(tasks)
    for index, result in runner(function, tasks):
        out[index] = result
        progress.advance(1)
    return out


def _arm(alternative: Alternative) -> Arm | None:
    """The alternative simulated; None where it cannot run."""
    try:
        return _arm_of(alternative, simulate_variant(alternative.scenario))
    except (Infeasible, InputError):
        return None


def _arm_of(alternative: Alternative, run: SimulatedVariant) -> Arm:
    return Arm(alternative, timed(run), _mean_s(run))


def _mean_s(run: SimulatedVariant) -> float:
    return float(np.mean([step.seconds for step in run.steps[0]]))


def first_step_s(point: tuple[Scenario, Overrides]) -> float:
    """Mean step of a varied scenario on the work of the first replication, in seconds; NaN where it cannot run."""
    scenario, overrides = point
    try:
        return _mean_s(simulate_variant(vary(scenario, {**overrides, "simulation.replications": 1})))
    except (Infeasible, InputError):
        return math.nan


Steps = Mapping[Place, float]
"""Simulated steps in seconds."""


def _answer(run: SimulatedVariant, arms: Sequence[Arm], inputs: Sequence[UncertainInput], points: Steps) -> Sensitivity:
    own, steps = arms[0], np.array([arm.steps for arm in arms])
    effects = {item.key: _effect(own, item, points) for item in inputs}
    whole = own.timed.prediction.step_factor * np.exp(sum(_drawn(effects[item.key], item) for item in inputs))
    return Sensitivity(
        scenario=run.scenario.name,
        step_s=own.interval,
        step_with_inputs_s=around(own.timed.step_s, whole),
        chosen=arms[int(np.argmin(steps.mean(axis=1)))].alternative.name,
        regret_s=regret(steps),
        alternatives=_choices(arms, steps),
        sources=_sources(run, np.log(own.steps), steps),
        inputs=_inputs(arms, steps, inputs, points),
    )


def _choices(arms: Sequence[Arm], steps: FloatArray) -> tuple[Choice, ...]:
    fastest, lost = np.argmin(steps, axis=0), regrets(steps)
    return tuple(
        Choice(
            arm.alternative.name,
            arm.alternative.changes,
            arm.interval,
            float(np.mean(fastest == place)),
            float(lost[place]),
            saved(steps, np.log(arm.steps)),
        )
        for place, arm in enumerate(arms)
    )


def _sources(run: SimulatedVariant, logs: FloatArray, steps: FloatArray) -> tuple[SourceValue, ...]:
    found = [
        SourceValue(
            one.name,
            one.kind,
            one.assumed,
            one.share,
            narrowed(logs, one.draws),
            saved(steps, one.draws),
            one.settle,
            one.command,
        )
        for one in sources_of(run)
    ]
    return tuple(sorted(found, key=lambda one: (-one.saved_s, -one.share)))


def _inputs(
    arms: Sequence[Arm], steps: FloatArray, inputs: Sequence[UncertainInput], points: Steps
) -> tuple[InputEffect, ...]:
    out = []
    for item in inputs:
        low, _, high = _effect(arms[0], item, points).tolist()
        known = [(place, _effect(arm, item, points)) for place, arm in enumerate(arms)]
        kept = [(place, effect) for place, effect in known if np.isfinite(effect).all()]
        means = steps.mean(axis=1)[[place for place, _ in kept]]
        curves = np.array([through(item.places, effect, GRID) for _, effect in kept])
        worth = saved_by_input(means, curves)
        out.append(InputEffect(item.key, item.low, item.high, math.expm1(low), math.expm1(high), worth, item.reason))
    return tuple(sorted(out, key=lambda one: (-one.saved_s, -max(abs(one.at_low), abs(one.at_high)))))


def _effect(arm: Arm, item: UncertainInput, points: Steps) -> FloatArray:
    """What an input does to the logarithm of an alternative's step at the three places of its range."""
    steps = [points.get((arm.alternative.name, item.key, place), arm.first_s) for place in item.places.tolist()]
    out = np.log(np.array(steps) / arm.first_s)
    if not arm.alternative.changes and not np.isfinite(out).all():
        raise InputError(
            f"{item.key}: the scenario cannot run at every value from {item.low:.6g} to {item.high:.6g}; give a range "
            f"in which it does with --uncertain {item.key}=LOW:HIGH"
        )
    return out


def _drawn(effect: FloatArray, item: UncertainInput) -> FloatArray:
    """Draws of an input's effect on the logarithm of the step, shape (DRAWS,), the same for equal keys."""
    seed = int.from_bytes(hashlib.blake2b(item.key.encode(), digest_size=8).digest(), "little")
    quantiles = np.random.default_rng(seed).permutation((np.arange(DRAWS) + 0.5) / DRAWS)
    return through(item.places, effect, quantiles)
