"""When a run is no longer what it was: the level of its first steady steps, and cumulative sums against it.

Each quantity is a one-sided cumulative sum of its logarithm in either direction (Page 1954, doi:10.2307/2333009), in
deviations of the run's own steps. Its last rise from zero is when the change began.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from rlsim.readers.logs.naming import PHASES
from rlsim.readers.logs.reading import RunLog
from rlsim.readers.logs.steady import warmup_of
from rlsim.units import FloatArray

LEARNT = 10
"""Steady steps that a level is learnt from."""
ALLOWANCE, LIMIT = 1.5, 6.0
"""Deviations of a step that are no change, and the sum of those beyond at which a change is told: with the level's own
error, 1 of 1,000 healthy runs of 200 steps alarmed at 5 % noise of a step, none at 2 %, 21 at 10 % (simulated)."""
LEAST_DEVIATION = 0.05
"""Deviation of a step's logarithm at least. Assumption: what steps of one run differ by."""
WIDER = 1.5
"""Times the deviation of LEARNT steps that is taken for theirs: nine runs of ten have less (chi-squared, 9 degrees)."""
FAR = 6.0
"""Deviations of the others by which the furthest step of a level is none of it: a validation or a checkpoint that no
timer tells, without which 16 of 50 runs that slow by 1.3 are missed at 3 % noise, and none with it. Of 600 healthy runs
at 10 % noise 8 alarm in place of 6; 14 with five deviations (simulated)."""
STALLED = 0.5
"""Logarithm of a step over the median from which on it says nothing of the others. Assumption."""
SMALL = 0.02
"""Share of a step below which a phase counts as this much, so that it moves only where it grows beyond."""
WORK = ("response_tokens", "prompt_tokens", "acceptance_length", "turns")
"""What a run's work changes by itself: lengths grow, drafts fall behind."""


class Change(Struct, frozen=True):
    """A quantity that moved. since: the step with which it began; before, after: its level in seconds or tokens."""

    quantity: str
    since: int
    found: int
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after / self.before if self.before > 0 else math.inf

    @property
    def work(self) -> bool:
        """Whether the run's work is another, and not its pace."""
        return self.quantity in WORK


class Level(Struct, frozen=True, eq=False):
    """What a run takes by itself: medians by quantity over ``steps`` steps from ``first`` on."""

    first: int
    steps: int
    medians: Mapping[str, float]


def level_of(log: RunLog, first: int = 0, steps: int = LEARNT) -> Level | None:
    """The level of a run's steps from the place ``first`` on; None before it has enough of them."""
    start = max(first, warmup_of(log)) if first == 0 else first
    if len(log.steps) - start < steps:
        return None
    found = {name: _finite(values[start : start + steps]) for name, values in log.values.items()}
    return Level(log.steps[start], steps, {name: float(np.median(one)) for name, one in found.items() if one.size})


def changes_of(log: RunLog) -> tuple[tuple[Change, ...], Level | None]:
    """The changes of a run, in the order in which they were found, and its level now.

    After a change the level of that quantity is learnt anew from the step with which it began; the others keep theirs,
    so that nothing is missed meanwhile.
    """
    level, out = level_of(log), list[Change]()
    if level is None:
        return (), None
    medians, least = dict(level.medians), SMALL * level.medians.get("step", 0.0)
    for name in (*PHASES, *WORK):
        if name in medians:
            found, medians[name] = _changes(log, name, least if name in PHASES else 0.0)
            out += found
    out.sort(key=lambda one: (one.found, one.since, one.quantity))
    first = max((one.since for one in out), default=level.first)
    return tuple(out), Level(first, min(LEARNT, len(log.steps) - log.steps.index(first)), medians)


def _changes(log: RunLog, name: str, least: float) -> tuple[list[Change], float]:
    """The changes of one quantity, which counts as ``least`` at least, and its level after them."""
    values, place, out = log.values[name], warmup_of(log), list[Change]()
    while True:
        learnt = values[place : place + LEARNT]
        # Of a phase that is printed as nothing, next to nothing: whatever it grows to is some times as much.
        before = (float(np.median(_finite(learnt))) or least) if _finite(learnt).size else 0.0
        start = place + LEARNT
        if before <= 0 or start >= values.size:
            return out, before
        found = _alarm(np.maximum(values[start:], least), max(before, least), _deviation(np.maximum(learnt, least)))
        if found is None:
            return out, before
        place, at = start + found[0], start + found[1]
        out.append(Change(name, log.steps[place], log.steps[at], before, _after(values, place, at)))


def _after(values: FloatArray, since: int, at: int) -> float:
    return float(np.median(_finite(values[since : at + 1])))


def _deviation(values: FloatArray) -> float:
    """Deviation of the logarithm of a level's steps, at most as far above what few steps show as WIDER."""
    above = _finite(values)
    logs = np.sort(np.log(above[above > 0]))
    if logs.size < 3:
        return 2 * LEAST_DEVIATION
    # Without the step that is furthest from the middle, which may have stalled.
    far = int(np.argmax(np.abs(logs - np.median(logs))))
    others = np.delete(logs, far)
    away = float(abs(logs[far] - np.median(logs)))
    limit = min(STALLED, FAR * max(LEAST_DEVIATION / WIDER, float(others.std(ddof=1))))
    kept = others if away > limit else logs
    return max(LEAST_DEVIATION, WIDER * float(kept.std(ddof=1)))


def _alarm(values: FloatArray, before: float, deviation: float) -> tuple[int, int] | None:
    """Places at which a change began and was found; None where there is none."""
    sums, began = [0.0, 0.0], [0, 0]
    for place, value in enumerate(values.tolist()):
        if not math.isfinite(value) or value <= 0:
            continue
        moved = math.log(value / before) / deviation
        for side, away in enumerate((moved, -moved)):
            # One step that stalls is no change: no step counts for more than half the limit.
            grown = sums[side] + min(away - ALLOWANCE, LIMIT / 2)
            if sums[side] <= 0 < grown:
                began[side] = place
            sums[side] = max(0.0, grown)
            if sums[side] >= LIMIT:
                return began[side], place
    return None


def _finite(values: FloatArray) -> FloatArray:
    return values[np.isfinite(values)]


def relative(level: Level, now: Level, expected: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    """What a run that met expectations at ``level`` would take now, seconds by phase: expected, moved as it moved.

    A phase that was next to nothing is moved by seconds: its ratio says nothing of one that was expected otherwise.
    Where the phases take other shares of the step than expected, so that moved by their ratios they no longer fit into
    it, the step moves by what they do and, for the rest of it, as much as it did.
    """
    small, out = SMALL * level.medians.get("step", 0.0), dict[str, float]()
    for name in names:
        if expected.get(name, 0) > 0 and level.medians.get(name, 0) > 0 and name in now.medians:
            before, after = level.medians[name], now.medians[name]
            out[name] = (
                expected[name] * after / before if before >= small else expected[name] + max(0.0, after - before)
            )
    parts = [name for name in out if name != "step"]
    if sum(out[name] for name in parts) > out.get("step", math.inf):
        moved_s = sum(now.medians[name] - level.medians[name] for name in parts)
        rest_s = now.medians["step"] - level.medians["step"] - moved_s
        added_s = sum(out[name] - expected[name] for name in parts)
        scale = expected["step"] / level.medians["step"]
        out["step"] = max(sum(out[name] for name in parts), expected["step"] + added_s + scale * rest_s)
    return out
