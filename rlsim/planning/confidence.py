"""How sure an order of plans is: the same draws of work and of uncertain inputs for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlsim.planning.evaluate import step_s_of
from rlsim.planning.execution import Runner
from rlsim.planning.results import Confidence, PlanRow
from rlsim.planning.uncertainty import drawn_overrides, uncertain_inputs
from rlsim.planning.variation import Overrides, varied
from rlsim.progress import ProgressLine
from rlsim.schema.scenario import Scenario

FloatArray = NDArray[np.float64]

COMPARED = 4
"""Plans whose order is examined: the best and the next."""
DRAWS = 32
LAGGED_DRAWS = 12
"""Draws where a plan is asynchronous, whose simulation takes some hundred times longer."""


def ranking_confidence(
    scenario: Scenario, ranked: Sequence[PlanRow], draws: int | None, run: Runner
) -> tuple[Confidence, ...]:
    """The best plan against each of the next ones. draws: None for the default, 0 for none."""
    compared = list(ranked[:COMPARED])
    lagged = any(row.layout.split.lag for row in compared)
    count = (LAGGED_DRAWS if lagged else DRAWS) if draws is None else draws
    if len(compared) < 2 or count < 1:
        return ()
    tasks = [(scenario, row.layout.overrides(), draw) for draw in range(count) for row in compared]
    steps = np.full(len(tasks), np.nan)
    with ProgressLine("draws of the best plans", len(tasks)) as progress:
        for index, step_s in run(drawn_step_s, tasks):
            steps[index] = step_s
            progress.advance(1)
    table = steps.reshape(count, len(compared))
    first = compared[0].name
    pairs = [_against(first, row.name, table[:, 0], table[:, i]) for i, row in enumerate(compared) if i]
    return tuple(pair for pair in pairs if pair is not None)


def _against(first: str, second: str, a: FloatArray, b: FloatArray) -> Confidence | None:
    known = np.isfinite(a) & np.isfinite(b)
    ratio = b[known] / a[known]
    if not ratio.size:
        return None
    low, high = np.quantile(ratio, [0.05, 0.95])
    wins = float(np.mean((ratio > 1) + 0.5 * (ratio == 1)))
    return Confidence(first, second, wins, float(low), float(high), int(ratio.size))


def drawn_step_s(task: tuple[Scenario, Overrides, int]) -> float:
    """Step time of a plan under one draw of seed and of quantiles of the uncertain inputs, the same for all plans."""
    scenario, overrides, draw = task
    plan = varied(scenario, overrides)
    generator = np.random.default_rng([scenario.simulation.seed, draw])
    quantiles = {item.key: float(generator.random()) for item in uncertain_inputs(scenario)}
    inputs = [item for item in uncertain_inputs(plan) if item.key in quantiles]
    drawn = drawn_overrides(plan, inputs, np.array([quantiles[item.key] for item in inputs]))
    seed = (scenario.simulation.seed + 1 + draw) % 2**32
    return step_s_of((plan, {**drawn, "simulation.seed": seed}))
