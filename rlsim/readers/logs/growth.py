"""How the steps of a run grow: what of it their work accounts for, and what grows with nothing that the log tells."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from rlsim.errors import Infeasible, InputError
from rlsim.projection.summary import mean_value
from rlsim.projection.variant import simulate_variant
from rlsim.readers.logs.changes import LEARNT, STALLED, WORK
from rlsim.readers.logs.naming import PHASES
from rlsim.readers.logs.reading import RunLog
from rlsim.readers.logs.steady import DRIFT, Steady, steady_of, warmup_of, with_facts
from rlsim.report.format import percent
from rlsim.schema.scenario import Scenario
from rlsim.units import FloatArray, IntArray

LEAST_STEPS = 3 * LEARNT
LENGTH = "response_tokens"
DEVIATIONS = 5.0
"""Standard errors of its slope from which on a quantity grows: one healthy run of a million does by chance."""
EVIDENCE = 3.0
"""Logarithm of the likelihood by which one jump must explain growth better than a line: twenty times as likely."""


class Growth(Struct, frozen=True):
    """Of a run's steps from ``first`` to ``last``, each the median of a window at that end. seconds, work: both ends by
    name, of what moved. by_work: what of the ratio of the steps the work accounts for, as the scenario has it; None
    where nobody knows. begun: the step with which it began where it is one jump, else None."""

    first: int
    last: int
    recent: int
    seconds: Mapping[str, tuple[float, float]]
    work: Mapping[str, tuple[float, float]]
    by_work: float | None
    begun: int | None

    @property
    def ratio(self) -> float:
        """Last over first seconds of a step."""
        before, after = self.seconds["step"]
        return after / before

    @property
    def leaks(self) -> bool:
        """Whether steps grow beyond what their work accounts for."""
        return self.by_work is not None and self.ratio > (1 + DRIFT) * self.by_work

    @property
    def text(self) -> str:
        """In words."""
        before, after = self.seconds["step"]
        each = math.expm1(math.log(self.ratio) / max(1, self.last - self.first))
        how = f"by {percent(each, 2)} a step" if self.begun is None else f"most of it with step {self.begun:,}"
        out = f"steps grow from {before:.4g} to {after:.4g} s ({self.ratio:.2f}x), {how}"
        moved = ", ".join(f"{name.replace('_', ' ')} {a:.4g} to {b:.4g}" for name, (a, b) in self.work.items())
        if moved:
            out += f"; {moved}"
            out += "" if self.by_work is None else f", which accounts for {self.by_work:.2f}x"
        if not self.leaks:
            return out if moved else f"{out}; the log does not say whether responses grew"
        parts = {name: b - a for name, (a, b) in self.seconds.items() if name != "step"}
        where = max(parts, key=lambda name: parts[name]).replace("_", " ") if parts else ""
        most = f", most of it in {where}" if where else ""
        what = "the rest grows with nothing that the log tells" if moved else "and no length or acceptance does"
        causes = "a leak, memory in fragments, or a node that slows"
        return f"{out}; {what}{most}: {causes if self.begun is None else 'a node that slows, a neighbour, a setting'}"


def growth_of(log: RunLog, scenario: Scenario | None, beyond: float = 1.0) -> Growth | None:
    """How the steps of ``log`` grow past its warm-up; None where they do not by DRIFT more than ``beyond``, or the log
    is too short. scenario: what says how long steps of other work take."""
    start = warmup_of(log)
    count = len(log.steps) - start
    if count < LEAST_STEPS or "step" not in log.values or not _moves(log.values["step"][start:]):
        return None
    window = max(LEARNT, count // 5)
    ends = (log.steps[start], log.steps[start + window - 1]), (log.steps[-window], log.steps[-1])
    before, after = (steady_of(log, one) for one in ends)
    both: dict[str, tuple[float, float]] = {
        name: (one.median, after.found[name].median) for name, one in before.found.items() if name in after.found
    }
    if both["step"][1] <= (1 + DRIFT) * beyond * both["step"][0]:
        return None
    moved = {name for name in both if name == "step" or _moves(log.values[name][start:])}
    work = {name: both[name] for name in WORK if name in moved}
    by_work = 1.0 if LENGTH in both and not work else None
    if work and scenario is not None:
        by_work = _by_work(scenario, before, after)
    jump = _jump(log.values["step"][start:])
    begun = None if jump is None else log.steps[start + jump]
    times: dict[str, tuple[float, float]] = {name: both[name] for name in PHASES if name in moved}
    return Growth(ends[0][0], ends[1][1], ends[1][0], times, work, by_work, begun)


def _by_work(scenario: Scenario, before: Steady, after: Steady) -> float | None:
    """Times that a step takes longer with the work of ``after``; None where the scenario cannot say."""
    try:
        sides = [with_facts(scenario, one)[0] for one in (before, after)]
        seconds = [mean_value(simulate_variant(one), lambda step: step.seconds) for one in sides]
    except (InputError, Infeasible):
        return None
    # with_facts leaves lengths of agents out: where it changes nothing, the scenario says nothing of this work.
    return None if sides[0] == sides[1] else seconds[1] / seconds[0]


def _logs(values: FloatArray) -> tuple[IntArray, FloatArray]:
    """Places and logarithms of the values, without steps that stall."""
    places = np.flatnonzero(np.isfinite(values) & (values > 0))
    logs = np.log(values[places])
    if not logs.size:
        return places, logs
    near = np.abs(logs - np.median(logs)) < STALLED
    # Many such steps are no stalls but another level.
    return (places[near], logs[near]) if near.mean() >= 1 - DRIFT else (places, logs)


def _moves(values: FloatArray) -> bool:
    """Whether the line through the values' logarithms moves by DRIFT or more, and surely."""
    places, logs = _logs(values)
    if logs.size < LEAST_STEPS:
        return False
    line = _line(places, logs)
    return bool(abs(line.slope) > max(DEVIATIONS * line.stderr, math.log1p(DRIFT) / np.ptp(places)))


def _line(places: IntArray, logs: FloatArray) -> Any:
    from scipy.stats import linregress  # half a second of import, which logs that are too short to grow are spared

    return linregress(places, logs)


def _jump(values: FloatArray) -> int | None:
    """The place of the one step with which the values are others, where that explains them better than a line does."""
    places, logs = _logs(values)
    left = logs.size * float(logs.var()) * (1 - _line(places, logs).rvalue ** 2)
    # Three values on either side at least: the variance of fewer explains anything.
    splits = range(3, logs.size - 2)
    apart = [at * logs[:at].var() + (logs.size - at) * logs[at:].var() for at in splits]
    # Of normal residuals the log-likelihood is -n/2 times the logarithm of their sum of squares.
    best = int(np.argmin(apart))
    return int(places[splits[best]]) if apart[best] < left * math.exp(-2 * EVIDENCE / logs.size) else None
