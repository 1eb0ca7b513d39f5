"""Deviations of users' runs by family, fitted with partial pooling and tested by leaving sources out.

With y the mean of ln(measured / predicted) of a phase over the rows of a source and family,

    y = all + level_1 + level_2 + ... + source + error,

where the levels are those of :func:`rlsim.costs.users.families` (backend, then experts or not, then framework), each a
normal draw of one spread, and sources normal draws of another; both are the likeliest of a grid. A family's entry is
what a new source of it is expected to have: its mean, and the spread that its levels, its source and the uncertainty of
the mean leave, times the factor at which left-out sources fall inside as often as they should.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np
from msgspec import Struct

from rlsim.schema.users import UserDeviation
from rlsim.units import FloatArray

OVERALL_SPREAD = 0.5
"""Standard deviation of what all users' runs have in common, before any is seen. Assumption."""
SPREADS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.75)
"""Spreads of levels and of sources that are tried."""
MOST = 1.2
"""Deviations count as no more than this, in logarithms: beyond a factor of 3.3 something else was wrong with the run."""
ROW_ERROR = 0.1
"""Standard deviation of the logarithm of a single measured step around the mean of its source."""
NORMAL_90 = 1.645


class Deviation(Struct, frozen=True):
    """What one source's rows of one family take over the prediction: mean of ln(measured / predicted), and rows."""

    phase: str
    source: str
    families: tuple[str, ...]
    log_ratio: float
    rows: int


def fitted_deviations(phase: str, found: Sequence[Deviation]) -> list[UserDeviation]:
    """Entries of every family of ``found``, all of one phase."""
    factor = left_out_factor(found)
    names = dict.fromkeys(family for one in found for family in one.families)
    model = _Pooled.of(found)
    out = []
    for name in names:
        mean, spread = model.expected(_chain(name, found))
        of = [one for one in found if name in one.families]
        sources, rows = len({one.source for one in of}), sum(one.rows for one in of)
        about = {"sources": sources, "rows": rows}
        out.append(UserDeviation(phase=phase, family=name, mean=mean, spread=factor * spread, **about))
    return out


def left_out_factor(found: Sequence[Deviation]) -> float:
    """Factor on spreads at which nine of ten left-out sources lie inside, at least 1."""
    misses = []
    for source in dict.fromkeys(one.source for one in found):
        rest = [one for one in found if one.source != source]
        if rest:
            model = _Pooled.of(rest)
            for one in found:
                if one.source == source:
                    mean, spread = model.expected(one.families)
                    misses.append(abs(_within(one.log_ratio) - mean) / spread)
    return max(1.0, float(np.quantile(misses, 0.9)) / NORMAL_90) if misses else 1.0


def _chain(name: str, found: Iterable[Deviation]) -> tuple[str, ...]:
    """A family with those that hold it, the most specific first."""
    families = next(one.families for one in found if name in one.families)
    return families[families.index(name) :]


def _within(log_ratio: float) -> float:
    return min(MOST, max(-MOST, log_ratio))


class _Pooled(Struct, frozen=True):
    """The pooled model given its spreads. depth: levels of a whole chain, the family of all runs not counted."""

    found: Sequence[Deviation]
    level: float
    source: float
    depth: int
    solved: FloatArray
    inverse: FloatArray

    @classmethod
    def of(cls, found: Sequence[Deviation]) -> _Pooled:
        """The model with the likeliest spreads."""
        depth = max(len(one.families) for one in found) - 1
        values = np.array([_within(one.log_ratio) for one in found])
        best: tuple[float, _Pooled] | None = None
        for level, source in product(SPREADS, SPREADS):
            covariance = np.array([[_shared(a, b, level, source) for b in found] for a in found])
            covariance += np.diag([ROW_ERROR**2 / one.rows for one in found])
            inverse = np.linalg.inv(covariance)
            likelihood = -0.5 * (values @ inverse @ values + np.linalg.slogdet(covariance)[1])
            if best is None or likelihood > best[0]:
                best = likelihood, cls(found, level, source, depth, inverse @ values, inverse)
        assert best is not None
        return best[1]

    def expected(self, families: Sequence[str]) -> tuple[float, float]:
        """Mean and standard deviation of the deviation of a new source of ``families``, the most specific first."""
        shared = np.array([OVERALL_SPREAD**2 + self.level**2 * _common(one.families, families) for one in self.found])
        whole = OVERALL_SPREAD**2 + self.level**2 * self.depth + self.source**2
        variance = whole - float(shared @ self.inverse @ shared)
        return float(shared @ self.solved), math.sqrt(max(variance, self.source**2))


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Levels that two chains share beside that of all runs."""
    return max(0, len(set(one) & set(other)) - 1)


def _shared(one: Deviation, other: Deviation, level: float, source: float) -> float:
    own = source**2 if one.source == other.source else 0.0
    return OVERALL_SPREAD**2 + level**2 * _common(one.families, other.families) + own
