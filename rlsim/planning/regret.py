"""Regret of a choice among alternatives, and how much of it knowing something would save.

Alternatives are draws of their step times, shape (alternatives, draws), the same draws of the unknown for all. Choosing
now takes the least mean; its expected regret is what always knowing better would save, the expected value of perfect
information. Knowing x alone saves

    min_a E[t_a] - E_x[min_a E[t_a | x]] >= 0,

its expected value of partial perfect information, where E[t_a | x] is a regression of the draws of t_a on those of x
(Strong, Oakley and Brennan 2014, doi:10.1177/0272989X13505910), here a cubic polynomial.
"""

from __future__ import annotations

import numpy as np

from rlsim.projection.uncertainty.predictive import HIGH, LOW
from rlsim.units import FloatArray

DEGREE = 3
"""Of the polynomial; steps are close to exponential in normal variables of some 10 %."""
GRID = (np.arange(200) + 0.5) / 200
"""Quantiles at which the value of a stated input is averaged."""


def regret(steps: FloatArray) -> float:
    """Expected regret of the alternative of least mean; steps: shape (alternatives, draws)."""
    return float(steps.mean(axis=1).min() - steps.min(axis=0).mean())


def regrets(steps: FloatArray) -> FloatArray:
    """Expected regret of each alternative, shape (alternatives,)."""
    return np.asarray(steps.mean(axis=1) - steps.min(axis=0).mean())


def fitted(known: FloatArray, values: FloatArray) -> FloatArray:
    """Regression of draws on those of what is known: E[values | known], shape of ``values`` (..., draws).

    Without spread in ``known`` the mean.
    """
    spread = float(np.std(known))
    if spread == 0:
        return np.broadcast_to(values.mean(axis=-1, keepdims=True), values.shape)
    design = np.vander((known - known.mean()) / spread, DEGREE + 1)
    found, *_ = np.linalg.lstsq(design, np.atleast_2d(values).T, rcond=None)
    return np.asarray((design @ found).T.reshape(values.shape))


def saved(steps: FloatArray, known: FloatArray) -> float:
    """Expected regret that knowing a quantity saves; known: its draws, shape (draws,)."""
    expected = fitted(known, steps)
    # The means of a least-squares fit with a constant are those of the draws, so that this is never negative.
    return max(0.0, float(expected.mean(axis=1).min() - expected.min(axis=0).mean()))


def narrowed(values: FloatArray, known: FloatArray) -> float:
    """Width of the 90 % interval of draws when a quantity is known, over the width now."""
    before, after = (np.subtract(*np.quantile(each, (HIGH, LOW))) for each in (values, values - fitted(known, values)))
    return float(after / before) if before > 0 else 1.0


def through(points: FloatArray, values: FloatArray, at: FloatArray) -> FloatArray:
    """Values at ``at`` of the parabola through three points."""
    return np.asarray(np.polyval(np.polyfit(points, values, 2), at))


def saved_by_input(means: FloatArray, effects: FloatArray) -> float:
    """Expected regret that knowing a stated input saves, beyond the model's.

    means: expected steps, shape (alternatives,). effects: what the input does to the logarithm of each at equally
    likely values of it, shape (alternatives, values).
    """
    steps = means[:, None] * np.exp(effects)
    return max(0.0, regret(steps))
