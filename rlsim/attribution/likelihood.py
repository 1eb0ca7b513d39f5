"""How well hypotheses explain what was measured: likelihoods of patterns of phases, in logarithms.

A time v counts as u = log(v + f), f a hundredth of a step, so that phases of next to no time say next to nothing. Under
a hypothesis with pattern p, u is distributed around u(p) as a multivariate Student's t whose scale is the model's own
error (the covariance of the draws behind the healthy run's intervals, which all hypotheses share) and the noise of the
measurement. Along a fault's severity the likelihood is averaged, so that one that fits anything is not preferred for it
(Kass and Raftery 1995, doi:10.1080/01621459.1995.10476572).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from rlsim.files.records import dataclass
from rlsim.units import FloatArray

DEGREES = 5.0
"""Degrees of freedom of the likelihood: model errors have heavier tails than a normal distribution. Assumption."""
FLOOR = 0.01
"""Share of a step that is added to times before their logarithm is taken."""
BETWEEN = 16
"""Points of a path from one simulated severity to the next, so close that neighbours differ by less than the noise."""
LEAST_NOISE = 0.005
UNLISTED_DEVIATION = 1.0
"""Deviation of the logarithm of each phase under a cause that is in no list: any phase up to several times off."""
CUT = 0.005
"""Share of the draws at either end that the covariance leaves out."""


@dataclass(frozen=True, eq=False)
class Observed:
    """What was measured, by name, with the floors of its logarithms and the deviations of its noise and of the model.

    error: covariance of the model's error of the logarithms, shape (n, n).
    """

    names: tuple[str, ...]
    values: FloatArray
    floors: FloatArray
    noise: FloatArray
    error: FloatArray

    def logs(self, pattern: Mapping[str, float]) -> FloatArray:
        """The pattern's logarithms of what was measured."""
        return np.log(np.array([max(0.0, pattern[name]) for name in self.names]) + self.floors)

    @property
    def measured_logs(self) -> FloatArray:
        """Logarithms of the measured values."""
        return np.log(self.values + self.floors)

    def log_likelihood(self, logs: FloatArray) -> float:
        """Of a pattern's logarithms."""
        return student_log_density(self.measured_logs - logs, self.error + np.diag(self.noise**2))

    def log_likelihood_unlisted(self, logs: FloatArray) -> float:
        """Of a cause that is in no list, around the healthy pattern."""
        spread = np.eye(len(self.names)) * UNLISTED_DEVIATION**2
        return student_log_density(self.measured_logs - logs, self.error + spread)

    def agree(self, first: FloatArray, second: FloatArray) -> bool:
        """Whether two patterns differ by less than the noise of each measurement."""
        return bool(np.all(np.abs(first - second) <= self.noise))


def covariance(expected: FloatArray, factors: FloatArray, floors: FloatArray) -> FloatArray:
    """Of the logarithms of ``expected`` values under the draws of their factors, shape (n, draws)."""
    logs = np.log(np.maximum(0.0, expected[:, None] * factors) + floors[:, None])
    low, high = np.quantile(logs, (CUT, 1 - CUT), axis=1, keepdims=True)
    return np.atleast_2d(np.cov(np.clip(logs, low, high)))


def student_log_density(residual: FloatArray, scale: FloatArray) -> float:
    """Logarithm of the density of a multivariate Student's t with DEGREES, up to a constant of the dimension."""
    size = len(residual)
    distance = float(residual @ np.linalg.solve(scale, residual))
    return float(-0.5 * np.linalg.slogdet(scale)[1] - 0.5 * (DEGREES + size) * math.log1p(distance / DEGREES))


@dataclass(frozen=True, eq=False)
class Path:
    """A fault's patterns by severity. severities: of its points; logs: shape (points, n)."""

    severities: FloatArray
    logs: FloatArray

    @classmethod
    def through(cls, simulated: Sequence[tuple[float, FloatArray]], whole: bool = False) -> Path:
        """Through simulated points, linear in the logarithms of severity and times; whole: nothing between them."""
        severities, logs = [simulated[0][0]], [simulated[0][1]]
        for (low, before), (high, after) in pairwise(simulated):
            for share in [1.0] if whole else np.arange(1, BETWEEN + 1) / BETWEEN:
                severities.append(low ** (1 - share) * high**share)
                logs.append((1 - share) * before + share * after)
        return cls(np.array(severities), np.array(logs))


@dataclass(frozen=True, eq=False)
class Fit:
    """How well a path explains: logarithm of its mean likelihood, and its best point."""

    log_likelihood: float
    severity: float
    logs: FloatArray


def fitted(observed: Observed, path: Path) -> Fit:
    """The path's mean likelihood and best severity."""
    each = np.array([observed.log_likelihood(logs) for logs in path.logs])
    best = int(np.argmax(each))
    mean = float(each[best] + math.log(np.mean(np.exp(each - each[best]))))
    return Fit(mean, float(path.severities[best]), path.logs[best])


def probabilities(log_weights: Sequence[float]) -> FloatArray:
    """Shares of one of weights given as logarithms."""
    logs = np.array(log_weights)
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())
