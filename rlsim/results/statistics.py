"""Intervals from a few replications, without pulling in a statistics package at start-up."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlsim.results import Interval

CONFIDENCE = 0.90
P90_DEVIATIONS = 1.6448536269514722
"""Standard deviations within which 90 % of the absolute values of a normal distribution lie."""
_EXACT = {1: 6.313751514675043, 2: 2.919985580353726}


def student_t95(degrees: int) -> float:
    """95 % quantile of Student's t: exact for 1 and 2 degrees, Cornish-Fisher expansion beyond (error below 0.3 %).

    Abramowitz and Stegun, 26.7.5.
    """
    if degrees in _EXACT:
        return _EXACT[degrees]
    z, v = P90_DEVIATIONS, float(degrees)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / v ** (i + 1) for i, term in enumerate(terms))


def interval(values: Sequence[float], floor: float = 0.0) -> Interval:
    """Mean of ``values`` and the 90 % interval for one more such value (normal prediction interval)."""
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, mean, mean)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (count - 1))
    half = student_t95(count - 1) * deviation * math.sqrt(1 + 1 / count)
    return Interval(mean, min(mean, max(floor, mean - half)), mean + half)


def widened(quantity: Interval, deviation: float) -> Interval:
    """A positive quantity whose interval also holds a model error: standard deviation ``deviation`` of its logarithm.

    Half-widths on the log scale add in squares; zero stays zero.
    """
    if quantity.mean <= 0 or deviation <= 0:
        return quantity
    model = P90_DEVIATIONS * deviation
    below = math.log(quantity.mean / quantity.low) if quantity.low > 0 else math.inf
    above = math.log(quantity.high / quantity.mean)
    low = quantity.mean * math.exp(-math.hypot(below, model)) if math.isfinite(below) else 0.0
    return Interval(quantity.mean, low, quantity.mean * math.exp(math.hypot(above, model)))
