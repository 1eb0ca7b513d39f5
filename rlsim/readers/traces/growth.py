"""How turns, lengths and times of trajectories grow over the steps of a training run, where files have their step."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rlsim.readers.traces.trajectories import Trajectory

LEAST_STEPS = 5
"""Steps that tell a trend from the scatter of their means."""
BY_CHANCE = 0.01
"""A slope that no trend gives more seldom than this is one."""
TURNS, LENGTH = "turns", "generated tokens of a turn"
_OF: dict[str, Callable[[Trajectory], float]] = {
    TURNS: lambda one: len(one.calls),
    LENGTH: lambda one: float(np.mean([call.response_tokens for call in one.calls])),
    "environment seconds of a turn": lambda one: float(
        np.mean([max(0.0, now.start_s - old.end_s) for old, now in pairwise(one.calls)] or [math.nan])
    ),
}


class Trend(NamedTuple):
    """A line through the logarithms of the steps' means. first, last: of it, at the first and the last step; mean: of
    all trajectories."""

    name: str
    steps: tuple[int, int]
    first: float
    last: float
    mean: float

    @property
    def text(self) -> str:
        """In words."""
        each = math.expm1(math.log(self.last / self.first) / (self.steps[1] - self.steps[0]))
        ends = f"{self.first:.3g} at step {self.steps[0]:,} to {self.last:.3g} at step {self.steps[1]:,}"
        return f"{self.name}: from {ends} ({each:+.2%} a step)"

    @property
    def points(self) -> list[list[float]]:
        """Points (step, factor of the mean), as ``run.response_growth`` and ``turns_growth`` take them; linear between,
        not exponential."""
        steps = np.unique(np.linspace(*self.steps, 5).round())
        logs = np.interp(steps, self.steps, np.log([self.first, self.last]))
        return [[int(step), round(math.exp(log) / self.mean, 4)] for step, log in zip(steps, logs, strict=True)]


def trends_of(found: Sequence[Trajectory]) -> list[Trend]:
    """What grows or shrinks over the steps of trajectories that did not fail; nothing where fewer than LEAST_STEPS are
    known. A quantity must be above 0 in the mean of every step."""
    rows = [one for one in found if one.step is not None and not one.failed]
    steps, place = np.unique([one.step for one in rows], return_inverse=True)
    out = list[Trend]()
    if steps.size < LEAST_STEPS:
        return out
    for name, of in _OF.items():
        values = np.array([of(one) for one in rows])
        known = np.isfinite(values)
        # A step of which nothing is known has a mean of 0, and with it the quantity is left out below.
        counts = np.bincount(place[known], minlength=steps.size)
        means = np.bincount(place[known], values[known], steps.size) / np.maximum(counts, 1)
        if not (means > 0).all() or np.ptp(means) == 0:
            continue
        from scipy.stats import linregress  # half a second of import, for runs of several steps alone

        line = linregress(steps, np.log(means))
        if line.pvalue < BY_CHANCE:
            first, last = (math.exp(line.intercept + line.slope * float(steps[at])) for at in (0, -1))
            out.append(Trend(name, (int(steps[0]), int(steps[-1])), first, last, float(values[known].mean())))
    return out
