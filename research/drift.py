"""A measured course of acceptance as ``speculation.drift``: a broken line in the logit of conditional acceptance.

The trend has as many knots as leave-one-out errors bear; the line within a tolerance runs through as few knots as a
search finds, and follows the noise of the run as far as that tolerance asks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from rlsim.schema.speculation import MAX_LOGIT, Drift, Speculation
from rlsim.units import FloatArray
from rlsim.workload.acceptance import Acceptance, acceptance_of, moved_rates
from rlsim.workload.acceptance_steps import acceptance_at

Points = Sequence[tuple[float, float]]
MOST_TREND_KNOTS = 12
ROUNDS = 4
"""Fits in turn with the acceptance of the first step, on which the moves of all others rest."""
SLACK = 1e-9
MOVES = np.linspace(-MAX_LOGIT, MAX_LOGIT, 8001)
"""Moves of the logit between which lengths are inverted: a step of 0.0025 leaves less than 1e-6 tokens."""
NO_BETTER = 0.01
"""Share by which a leave-one-out error must fall for a further knot."""
MARGIN = 1e-4
"""Tokens by which the line keeps off the tolerance, so that rounding does not carry it beyond."""


@dataclass(frozen=True)
class DriftFit:
    """``speculation`` of a fitted course, and its deviation from every point in tokens.

    steps, logit_shift: knots. error_tokens: leave-one-out root mean square of a trend; None of a line that was made to
    stay within a tolerance.
    """

    draft_length: int
    acceptance_length: float
    steps: tuple[float, ...]
    logit_shift: tuple[float, ...]
    off_tokens: tuple[float, ...]
    error_tokens: float | None = None

    @property
    def speculation(self) -> Speculation:
        """The fitted course as a scenario states it."""
        return _speculation(self.draft_length, self.acceptance_length, self.steps, self.logit_shift)

    @property
    def worst_tokens(self) -> float:
        """Largest deviation."""
        return max(map(abs, self.off_tokens))

    @property
    def rms_tokens(self) -> float:
        """Root mean square of the deviations."""
        return math.sqrt(sum(off * off for off in self.off_tokens) / len(self.off_tokens))

    def beyond(self, within_tokens: float) -> int:
        """Points that lie further off than a tolerance."""
        return sum(abs(off) > within_tokens for off in self.off_tokens)

    def as_dict(self, within_tokens: float) -> dict[str, object]:
        """For a YAML file."""
        drift = {"steps": list(self.steps), "logit_shift": list(self.logit_shift)}
        out: dict[str, object] = {
            "speculation": {
                "draft_length": self.draft_length,
                "acceptance_length": self.acceptance_length,
                **({"drift": drift} if self.steps else {}),
            },
            "parameters": 1 + max(0, len(self.steps) - 1),
            "points": len(self.off_tokens),
            "rms_tokens": round(self.rms_tokens, 4),
            "worst_tokens": round(self.worst_tokens, 4),
            f"points_beyond_{within_tokens:g}": self.beyond(within_tokens),
        }
        return out if self.error_tokens is None else {**out, "left_out_rms_tokens": round(self.error_tokens, 4)}


def fit_trend(points: Points, draft_length: int) -> DriftFit:
    """Least squares in the logit with 1 to MOST_TREND_KNOTS equally spaced knots, as many as have the least
    leave-one-out error; a knot needs three points."""
    steps, lengths = _columns(points)
    counts = range(1, max(1, min(MOST_TREND_KNOTS, np.unique(steps).size // 3)) + 1)
    fits = [_trend(steps, lengths, draft_length, count) for count in counts]
    least = min(fit.error_tokens or 0.0 for fit in fits)
    return next(fit for fit in fits if (fit.error_tokens or 0.0) <= least * (1 + NO_BETTER) + MARGIN)


def fit_within(points: Points, draft_length: int, within_tokens: float) -> DriftFit:
    """A broken line within ``within_tokens`` of every point: knots are set where it is furthest off, then those taken
    away that it does without; of such lines the one nearest to the points. Where points of one step lie further apart
    than that, as near as it gets."""
    steps, lengths = _columns(points)
    start = float(lengths[steps == steps[0]].mean())
    fit = None
    for _ in range(ROUNDS):
        base = _base(start, draft_length)
        tolerance = max(within_tokens - MARGIN, 0.0)
        low, middle, high = (_moves(base, lengths + off) for off in (-tolerance, 0.0, tolerance))
        knots = _knots(steps, low, high)
        fit = _emitted(points, draft_length, base, knots, _nearest(steps, knots, low, middle, high))
        start = fit.acceptance_length
    assert fit is not None
    return fit


def _trend(steps: FloatArray, lengths: FloatArray, draft_length: int, count: int) -> DriftFit:
    knots = np.linspace(steps[0], steps[-1], count) if count > 1 else steps[:1]
    start, points = float(lengths.mean()), list(zip(steps.tolist(), lengths.tolist(), strict=True))
    fit, error = None, 0.0
    for _ in range(ROUNDS):
        base = _base(start, draft_length)
        basis, moves = _basis(steps, knots), _moves(base, lengths)
        hat = basis @ np.linalg.pinv(basis)
        off = (moves - hat @ moves) / np.maximum(1.0 - np.diag(hat), SLACK)
        slope = (base.moved(0.01).mean - base.moved(-0.01).mean) / 0.02
        error = slope * float(np.sqrt(np.mean(off**2)))
        fit = _emitted(points, draft_length, base, knots, np.linalg.pinv(basis) @ moves, error)
        start = fit.acceptance_length
    assert fit is not None
    return fit


def _columns(points: Points) -> tuple[FloatArray, FloatArray]:
    steps, lengths = np.array(sorted(points), dtype=np.float64).T
    return steps, lengths


def _base(acceptance_length: float, draft_length: int) -> Acceptance:
    return acceptance_of(_speculation(draft_length, acceptance_length))


def _speculation(
    draft_length: int, acceptance_length: float, steps: tuple[float, ...] = (), shifts: tuple[float, ...] = ()
) -> Speculation:
    drift = Drift(steps=steps, logit_shift=shifts) if steps else None
    return Speculation(method="eagle3", draft_length=draft_length, acceptance_length=acceptance_length, drift=drift)


def _moves(base: Acceptance, lengths: FloatArray) -> FloatArray:
    """Moves of the logit that give these acceptance lengths, or come nearest to them."""
    return np.interp(lengths, 1.0 + moved_rates(base, MOVES).sum(axis=1), MOVES)


def _basis(steps: FloatArray, knots: FloatArray) -> FloatArray:
    """Values of a broken line at ``steps`` from those at its knots, shape (steps, knots)."""
    return np.column_stack([np.interp(steps, knots, one) for one in np.eye(len(knots))])


def _slack(steps: FloatArray, knots: FloatArray, low: FloatArray, high: FloatArray) -> tuple[float, FloatArray]:
    """Least common widening of the tube low..high that a line with these knots stays in, and that line at steps."""
    basis = _basis(steps, knots)
    wider = -np.ones((len(steps), 1))
    above, below = np.hstack([basis, wider]), np.hstack([-basis, wider])
    found = linprog(
        [0.0] * len(knots) + [1.0], np.vstack([above, below]), np.concatenate([high, -low]),
        bounds=[(-MAX_LOGIT, MAX_LOGIT)] * len(knots) + [(0.0, None)], method="highs",
    )  # fmt: skip
    return float(found.x[-1]), np.asarray(basis @ found.x[:-1])


def _knots(steps: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Few knots of a line that stays in the tube."""
    places = np.unique(steps)
    knots = np.unique(places[[0, -1]])
    slack, line = _slack(steps, knots, low, high)
    while slack > SLACK and knots.size < places.size:
        outside = np.maximum(line - high, low - line)
        outside[np.isin(steps, knots)] = -np.inf
        knots = np.unique(np.append(knots, steps[int(np.argmax(outside))]))
        slack, line = _slack(steps, knots, low, high)
    while knots.size > 2:
        fewer = (knots[knots != knot] for knot in knots[1:-1])
        spared = next((rest for rest in fewer if _slack(steps, rest, low, high)[0] <= max(slack, SLACK)), None)
        if spared is None:
            break
        knots = spared
    return knots


def _nearest(steps: FloatArray, knots: FloatArray, low: FloatArray, middle: FloatArray, high: FloatArray) -> FloatArray:
    """Values at the knots of the line with the least sum of deviations from ``middle`` that stays in the tube."""
    slack = _slack(steps, knots, low, high)[0] + SLACK
    basis, size = _basis(steps, knots), len(steps)
    own, nothing = -np.eye(size), np.zeros((size, size))
    rows = np.block([[basis, own], [-basis, own], [basis, nothing], [-basis, nothing]])
    limits = np.concatenate([middle, -middle, high + slack, slack - low])
    bounds = [(-MAX_LOGIT, MAX_LOGIT)] * len(knots) + [(0.0, None)] * size
    found = linprog([0.0] * len(knots) + [1.0] * size, rows, limits, bounds=bounds, method="highs")
    return np.asarray(found.x[: len(knots)])


def _emitted(
    points: Points,
    draft_length: int,
    base: Acceptance,
    knots: FloatArray,
    values: FloatArray,
    error_tokens: float | None = None,
) -> DriftFit:
    """The fit as it is written, rounded, with the deviations of exactly that."""
    length = round(base.moved(float(values[0])).mean, 4)
    steps: tuple[float, ...] = ()
    shifts: tuple[float, ...] = ()
    if len(knots) > 1:
        steps = tuple(round(float(step), 2) for step in knots)
        shifts = tuple(round(float(value - values[0]), 4) for value in values)
    found = _speculation(draft_length, length, steps, shifts)
    off = tuple(_at(found, step) - measured for step, measured in sorted(points))
    return DriftFit(draft_length, length, steps, shifts, off, error_tokens)


def _at(speculation: Speculation, step: float) -> float:
    """Acceptance length at a step, between whole ones interpolated."""
    whole = math.floor(step)
    below, above = (acceptance_at(speculation, number).mean for number in (whole, math.ceil(step)))
    return below + (step - whole) * (above - below)
