"""Length distributions as functions of a standard normal score, capped and moved to a published mean."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rlsim.errors import InputError
from rlsim.schema.agent import ConstantTime, ConstantTurns, LognormalTime, LognormalTurns, QuantileTime, Time, Turns
from rlsim.schema.lengths import ConstantLength, Length, LognormalLength, QuantileLength
from rlsim.units import FloatArray, IntArray
from rlsim.workload.length_files import Subject, key_of, read_lengths

_POINTS = 4096


@dataclass(frozen=True, eq=False)
class LengthDistribution:
    """Uncapped length as a non-decreasing function of a standard normal score.

    Either exp(location + sigma z), or scale times an inverse distribution function at Phi(z).
    """

    location: float = 0.0
    sigma: float = 0.0
    scale: float = 1.0
    quantiles: FloatArray | None = None
    tokens: FloatArray | None = None

    def at(self, scores: FloatArray) -> FloatArray:
        """Lengths in tokens at normal scores, shape of ``scores``."""
        if self.quantiles is None or self.tokens is None:
            return np.exp(self.location + self.sigma * scores)
        return np.interp(_normal_cdf(scores), self.quantiles, self.scale * self.tokens)

    def scaled(self, factor: float) -> LengthDistribution:
        """The distribution of ``factor`` times the lengths; nothing is solved for again."""
        return replace(self, location=self.location + math.log(factor), scale=factor * self.scale)


def whole_tokens(lengths: FloatArray, cap: IntArray | int) -> IntArray:
    """Lengths rounded to whole tokens, at least 1 and at most ``cap``."""
    return np.clip(np.rint(lengths), 1, cap).astype(np.int64)


def solve_distribution(length: Length, caps: FloatArray, subject: Subject) -> LengthDistribution:
    """Distribution whose mean after truncation is ``length.mean_tokens``, where that is given.

    caps: representative caps in tokens (equal shares of the samples each). Raises InputError where no distribution has
    that mean because it reaches the mean cap.
    """
    if isinstance(length, ConstantLength):
        return LengthDistribution(location=math.log(length.tokens))
    if isinstance(length, LognormalLength):
        _check_mean(length.mean_tokens, caps, subject)
        sigma = length.log_sigma
        location = _increasing_root(
            lambda mu: sum(limited_lognormal_mean(mu, sigma, cap) for cap in caps) / caps.size - length.mean_tokens
        )
        return LengthDistribution(location=location, sigma=sigma)
    if isinstance(length, QuantileLength):
        quantiles, tokens = np.asarray(length.quantiles), np.asarray(length.tokens)
    else:
        quantiles, tokens = read_lengths(length.path, length.column, subject)
    scale = 1.0
    if length.mean_tokens is not None:
        _check_mean(length.mean_tokens, caps, subject)
        scale = _scale_for(length.mean_tokens, quantiles, tokens, caps, subject)
    return LengthDistribution(scale=scale, quantiles=quantiles, tokens=tokens)


def solve_turns(turns: Turns, most: int) -> LengthDistribution:
    """Distribution of the turns of a trajectory. most: where it is cut, before the mean that the section gives."""
    if isinstance(turns, ConstantTurns):
        return LengthDistribution(location=math.log(turns.turns))
    if isinstance(turns, LognormalTurns):
        if most == 1:
            return LengthDistribution()
        sigma = turns.log_sigma
        location = _increasing_root(lambda mu: limited_lognormal_mean(mu, sigma, most) - turns.mean_turns)
        return LengthDistribution(location=location, sigma=sigma)
    return LengthDistribution(quantiles=np.asarray(turns.quantiles), tokens=np.asarray(turns.turns))


def solve_time(time: Time) -> LengthDistribution:
    """Distribution of a time in seconds, in place of tokens."""
    if isinstance(time, ConstantTime):
        return LengthDistribution(quantiles=np.array([0.0, 1.0]), tokens=np.full(2, time.seconds))
    if isinstance(time, LognormalTime):
        return LengthDistribution(location=math.log(time.mean_s) - time.log_sigma**2 / 2, sigma=time.log_sigma)
    if isinstance(time, QuantileTime):
        return LengthDistribution(quantiles=np.asarray(time.quantiles), tokens=np.asarray(time.seconds))
    quantiles, seconds = read_lengths(time.path, time.column, "time")
    return LengthDistribution(quantiles=quantiles, tokens=seconds)


def limited_lognormal_mean(location: float, sigma: float, cap: float) -> float:
    """E[min(X, cap)] for ln X normal with mean ``location`` and standard deviation ``sigma``; tokens.

    Limited expected value of the lognormal (Klugman, Panjer, Willmot, Loss Models, appendix A.5.1).

    >>> round(limited_lognormal_mean(7.0, 0.0, 2000.0), 3) == round(math.exp(7.0), 3)
    True
    """
    if sigma == 0:
        return min(math.exp(min(location, 700.0)), cap)
    z = (math.log(cap) - location) / sigma
    below = math.erfc((sigma - z) / math.sqrt(2)) / 2
    mean = math.exp(location + sigma * sigma / 2) * below if below > 0 else 0.0
    return mean + cap * math.erfc(z / math.sqrt(2)) / 2


def _check_mean(mean: float, caps: FloatArray, subject: Subject) -> None:
    bound = float(caps.mean())
    if mean >= bound:
        raise InputError(
            f"{key_of(subject)}.mean_tokens must be below {bound:g}, the cap that "
            f"workload.max_sequence_tokens leaves it; got {mean:g}"
        )


def _scale_for(mean: float, quantiles: FloatArray, tokens: FloatArray, caps: FloatArray, subject: Subject) -> float:
    points = np.interp((np.arange(_POINTS) + 0.5) / _POINTS, quantiles, tokens)
    reach = float(caps.mean()) * float(np.mean(points > 0))
    if mean >= reach:
        raise InputError(
            f"{key_of(subject)}.mean_tokens must be below {reach:g}, as the other lengths are 0; got {mean:g}"
        )

    def gap(log_scale: float) -> float:
        return float(np.mean([np.minimum(math.exp(log_scale) * points, cap).mean() for cap in caps])) - mean

    return math.exp(_increasing_root(gap))


def _increasing_root(function: Callable[[float], float]) -> float:
    """Root of an increasing function in -30..60 (logarithms of tokens or scales) by bisection, to 1e-12."""
    low, high = -30.0, 60.0
    while high - low > 1e-12 * max(1.0, abs(low)):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return high


def _normal_cdf(scores: FloatArray) -> FloatArray:
    grid, values = _normal_table()
    return np.interp(scores, grid, values)


@functools.cache
def _normal_table() -> tuple[FloatArray, FloatArray]:
    """Phi on a grid of 1/256 over -9..9; linear interpolation is good to 5e-7."""
    grid = np.arange(-9 * 256, 9 * 256 + 1) / 256
    return grid, np.array([0.5 * math.erfc(-z / math.sqrt(2)) for z in grid.tolist()])
