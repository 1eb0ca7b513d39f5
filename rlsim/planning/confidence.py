"""How sure an order of plans is: the same draws of work and of uncertain inputs for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlsim.planning.evaluate import evaluate_assignment
from rlsim.planning.execution import Runner
from rlsim.planning.space import Assignment
from rlsim.planning.uncertainty import drawn_assignment, uncertain_inputs
from rlsim.planning.variation import varied
from rlsim.progress import ProgressLine
from rlsim.schema.scenario import Scenario

FloatArray = NDArray[np.float64]

COMPARED = 4
"""Plans whose order is examined: the best and the next."""
DRAWS = 32
LAGGED_DRAWS = 12
"""Draws where a plan is asynchronous, whose simulation takes some hundred times longer."""


@dataclass(frozen=True)
class Confidence:
    """``first`` beat ``second`` in a share ``wins`` of ``draws``; ratio: 90 % interval of second over first."""

    first: str
    second: str
    wins: float
    ratio_low: float
    ratio_high: float
    draws: int


def ranking_confidence(
    scenario: Scenario, ranked: Sequence[tuple[str, Assignment]], draws: int | None, run: Runner
) -> tuple[Confidence, ...]:
    """The best plan against each of the next ones. draws: None for the default, 0 for none."""
    compared = list(ranked[:COMPARED])
    lagged = any(assignment.get("lag", "0") != "0" for _, assignment in compared)
    count = (LAGGED_DRAWS if lagged else DRAWS) if draws is None else draws
    if len(compared) < 2 or count < 1:
        return ()
    tasks = [(scenario, assignment, draw, count) for draw in range(count) for _, assignment in compared]
    steps = np.full(len(tasks), np.nan)
    with ProgressLine("draws of the best plans", len(tasks)) as progress:
        for index, step_s in run(drawn_step, tasks):
            steps[index] = step_s
            progress.advance(1)
    table = steps.reshape(count, len(compared))
    first = compared[0][0]
    pairs = [_against(first, name, table[:, 0], table[:, i]) for i, (name, _) in enumerate(compared) if i]
    return tuple(pair for pair in pairs if pair is not None)


def _against(first: str, second: str, a: FloatArray, b: FloatArray) -> Confidence | None:
    known = np.isfinite(a) & np.isfinite(b)
    ratio = b[known] / a[known]
    if not ratio.size:
        return None
    low, high = np.quantile(ratio, [0.05, 0.95])
    wins = float(np.mean((ratio > 1) + 0.5 * (ratio == 1)))
    return Confidence(first, second, wins, float(low), float(high), int(ratio.size))


def drawn_step(task: tuple[Scenario, Assignment, int, int]) -> float:
    """Step time of a plan under one draw of seed and of quantiles of the uncertain inputs, the same for all plans."""
    scenario, assignment, draw, _ = task
    plan = varied(scenario, assignment)
    shares = np.random.default_rng([scenario.simulation.seed, draw])
    quantiles = {item.key: float(shares.random()) for item in uncertain_inputs(scenario)}
    inputs = [item for item in uncertain_inputs(plan) if item.key in quantiles]
    drawn = drawn_assignment(plan, inputs, np.array([quantiles[item.key] for item in inputs]))
    seed = (scenario.simulation.seed + 1 + draw) % 2**32
    settings = ("simulation.replications=1", f"simulation.seed={seed}")
    outcome = evaluate_assignment(plan, drawn, settings, with_baseline=False)
    return outcome.step_s[0] if outcome.status == "ok" else float("nan")
