"""A control variate: what the drawn work of a step says of it, whose mean over many steps costs far less than theirs.

A synchronous step of single responses lasts about as long as it has tokens, whose mean follows from their distribution.
A step that waits for environments lasts about as long as its slowest trajectory has them, which is drawn in a tenth of
the time of a simulated step. Simulated steps are moved by their regression on it to its mean, known or taken over many
further draws: the regression estimator, of double sampling there (Cochran, Sampling Techniques, 3rd ed., sections 7.1
and 12.6).
"""

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from rlsim.schema.scenario import MAX_SIMULATED_STEPS
from rlsim.schema.workload import Workload
from rlsim.units import FloatArray
from rlsim.workload.batches import expected_drawn_tokens, longest_environment_s, mean_drawn_tokens
from rlsim.workload.file_cache import cached_with_files
from rlsim.workload.lengths import Place

BATCHES = 24
"""Batches of consecutive steps behind a regression at least, where there are as many steps: a lagged step may wait for
the trajectories of the next ones."""
LEAST_BATCHES = 16
"""Of them behind an answer: by 8 its error is told too small, and intervals of 90 % hold 81 to 87 % of five scenarios
(benchmarks/coverage.py)."""
LEAST_EXPLAINED = 0.6
"""Share of the variance of batches from which on a control is worth its draws: further steps at a tenth of the price
then save a third of the time, and 24 batches show so much by chance once in thousands of scenarios."""
PILOT, MOST_FURTHER = 256, 8192
"""Further steps that are drawn at least, by which it is known how many it takes, and at most."""
FURTHER_PER_STEP = 5
"""Of them at most over the steps that a simulation may have, each at a tenth of the price: half of its time."""


class Control(Struct, frozen=True):
    """Mean over all steps of what :func:`seen_of` sees of one, and its standard error."""

    mean: float
    error: float = 0.0


def seen_of(workload: Workload, seed: int, replications: int, steps: range) -> list[FloatArray]:
    """What a control goes by, of the drawn work of each step, by replication: the mean tokens of its responses, of
    agents the longest time that a trajectory has with its environments, in seconds."""
    seen = mean_drawn_tokens if workload.agent is None else longest_environment_s
    return [
        np.array([seen(workload, Place(seed, step, replication)) for step in steps])
        for replication in range(replications)
    ]


def batches_of(rows: Sequence[FloatArray]) -> int:
    """Batches of consecutive steps that a regression makes of each replication."""
    return min(math.ceil(BATCHES / len(rows)), len(rows[0]))


def regression(values: Sequence[FloatArray], seen: Sequence[FloatArray]) -> tuple[float, float]:
    """Slope of the values of steps by what was ``seen`` of their drawn work, both by replication, and the share of the
    variance of batches that it explains."""
    parts = batches_of(seen)
    y, x = (np.array([batch.mean() for row in each for batch in np.array_split(row, parts)]) for each in (values, seen))
    x, y = x - x.mean(), y - y.mean()
    if len(x) < 3 or not x.any() or not y.any():
        return 0.0, 0.0
    slope = float(x @ y / (x @ x))
    rest = y - slope * x
    return slope, 1.0 - float(rest @ rest / (y @ y)) * (len(x) - 1) / (len(x) - 2)


def control_of(
    workload: Workload, seed: int, values: Sequence[FloatArray], seen: Sequence[FloatArray], aim: float, most: int
) -> Control | None:
    """The control of what was ``seen`` of the drawn work of steps with these ``values``. Of agents it is taken over so
    many further steps, up to ``most``, that its error moves the mean of the values by ``aim``. None where it explains
    too little of them, or ``most`` is too little to know it."""
    slope, explained = regression(values, seen)
    if explained < LEAST_EXPLAINED:
        return None
    if workload.agent is None:
        return Control(expected_drawn_tokens(workload))
    if most < PILOT:
        return None
    # Few simulated steps may have met none of the slowest environments: what differs between them is no guide.
    pilot = _further(workload, seed, PILOT)
    wanted = math.ceil(PILOT * (slope * pilot.error / aim) ** 2)
    return _further(workload, seed, min(most, max(PILOT, wanted)))


@cached_with_files(8)
def _further(workload: Workload, seed: int, count: int) -> Control:
    # Of a replication that no scenario may ask for: independent of all that is simulated.
    places = (Place(seed, step, MAX_SIMULATED_STEPS) for step in range(count))
    found = np.array([longest_environment_s(workload, place) for place in places])
    return Control(float(found.mean()), float(found.std(ddof=1)) / math.sqrt(count))
