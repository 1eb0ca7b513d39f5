"""Uncertain numbers of simulations: what the model does not know of them, and what their length misses."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.projection.uncertainty.predictive import DRAWS, around, simulation_draws
from rlsim.results import Interval
from rlsim.units import FloatArray

SHARP = 1.0 / 3.0
"""Share of the model's error up to which the simulation's own widens an interval by less than 6 %."""
NEGLIGIBLE = 0.001
"""Relative error of a simulation that nobody decides by."""


class Estimate(Struct, frozen=True, eq=False):
    """A number of a simulated scenario, or a ratio of two.

    factors: draws over the mean of all that the model does not know, shape (DRAWS,). parts: means of independent parts
    of the simulation, whose spread is its own error; those of equal index of two estimates are of the same drawn work.
    error: standard error of the mean by them, as a share of it, with so many degrees of freedom; 0 of a single part,
    which says nothing of it. carried: what of it no further part lessens, by which one pool of engines stands for many,
    with the sign by which it moves together in all that is simulated so. fitted: batches behind the regression that
    moved the parts, 0 where none did.
    """

    mean: float
    factors: FloatArray
    parts: FloatArray
    error: float
    degrees: int
    carried: float = 0.0
    fitted: int = 0

    @classmethod
    def of(cls, mean: float, factors: FloatArray, parts: FloatArray, carried: float = 0.0, fitted: int = 0) -> Estimate:
        """An estimate whose simulation error is that of the mean of ``parts``, and what is ``carried`` over.

        A slope ``fitted`` to n batches leaves n - 2 degrees of freedom of them, and misses itself by 1 / (n - 3) of the
        variance in the mean where batches are normal (Cochran, Sampling Techniques, 3rd ed., chapter 7).
        """
        error, degrees = relative_error(parts, mean), max(1, len(parts) - 1)
        if fitted > 3:
            error *= math.sqrt((fitted - 1) / (fitted - 3))
            degrees = min(degrees, fitted - 2)
        return cls(mean, factors, parts, math.hypot(error, carried), degrees, carried, fitted)

    @property
    def draws(self) -> FloatArray:
        """The number in every draw, both errors in it, shape (DRAWS,)."""
        return self.mean * self.factors * self._missed()

    @property
    def believed(self) -> FloatArray:
        """The number in every draw of what the model does not know, shape (DRAWS,): without the simulation's own error,
        which no measurement lessens, and whose draws from few parts (Student's t) have no mean."""
        return self.mean * self.factors

    @property
    def interval(self) -> Interval:
        """The number with the 90 % interval of both errors."""
        return around(self.mean, self.factors * self._missed())

    @property
    def model_error(self) -> float:
        """Standard deviation of the logarithm of what the model does not know."""
        return float(np.std(np.log(np.maximum(self.factors, 1e-12))))

    @property
    def settled(self) -> bool:
        """Whether more simulation would change nothing that matters."""
        return self.error <= max(SHARP * self.model_error, NEGLIGIBLE)

    def times(self, factor: float) -> Estimate:
        """The number times a known ``factor``."""
        return replace(self, mean=factor * self.mean, parts=factor * self.parts)

    def over(self, other: Estimate) -> Estimate:
        """This over another one on the same drawn work: what moves both alike cancels.

        The standard error of a ratio of paired means is that of the residuals before - ratio * after (Cochran, Sampling
        Techniques, 3rd ed., eq. 6.13). Parts of different number do not pair: their errors add up in squares.
        """
        if min(self.mean, other.mean) <= 0:
            return Estimate.of(1.0, np.ones(DRAWS), np.ones(1))
        mean, factors = self.mean / other.mean, self.factors / other.factors
        if len(self.parts) == len(other.parts):
            residuals = self.parts - self.parts.mean() / other.parts.mean() * other.parts
            parts = mean * (1.0 + residuals / self.parts.mean())
            return Estimate.of(mean, factors, parts, self.carried - other.carried, max(self.fitted, other.fitted))
        error = math.hypot(self.error, other.error)
        # One part says nothing of its error: that of the other is all that is known.
        one, two = self if self.error else other, other if other.error else self
        return Estimate(mean, factors, np.array([mean]), error, min(one.degrees, two.degrees))

    def above(self, bound: float) -> float:
        """Probability that the number is larger than ``bound``; where all draws equal it, a half."""
        draws = self.draws
        return float(np.mean(draws > bound) + 0.5 * np.mean(draws == bound))

    def _missed(self) -> FloatArray:
        """Factors by which the simulation may miss: Student's t by its independent parts."""
        return np.exp(self.error * simulation_draws(self.degrees)) if self.error else np.ones(DRAWS)


def relative_error(parts: FloatArray, mean: float) -> float:
    """Standard error of the mean of independent ``parts`` as a share of ``mean``; 0 where they say nothing of it."""
    return float(np.std(parts, ddof=1) / (math.sqrt(len(parts)) * abs(mean))) if len(parts) > 1 and mean else 0.0
