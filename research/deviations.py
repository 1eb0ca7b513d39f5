"""Deviations of users' runs by family, fitted with partial pooling and tested by leaving sources out.

With y the mean of ln(measured / predicted) of a phase over the rows of a source and family,

    y = all + level_1 + level_2 + ... + source + error,

where the levels are those of :func:`rlsim.costs.users.families` (backend, then experts or not, then framework), each a
normal draw of one spread, and sources draws of Student's t (a run that is broken is far out and tells little of the
others) of another scale; both are the likeliest of a grid. A family's entry is
what a new source of it is expected to have: its mean, and the spread that its levels, its source and the uncertainty of
the mean leave, the source's being that at which left-out ones fall inside as often as they should.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np
from msgspec import Struct

from rlsim.schema.users import UserDeviation
from rlsim.units import FloatArray

OVERALL_SPREAD = 0.2
"""Standard deviation of what all users' runs have in common, before any is seen. Assumption."""
SPREADS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.75)
"""Spreads of sources that are tried."""
LEVELS = (0.25, 0.4)
"""Spreads of a level that are tried. With so few sources the likeliest one is often none; the least is about what
frameworks differ by whose training was measured (terms of calibration/training). Assumption."""
BROKEN = 1.6
"""A factor of five, as a logarithm: beyond it a run has a fault, and says nothing of others."""
DEGREES = 1.0
"""Degrees of freedom of sources."""
ROUNDS = 8
ROW_ERROR = 0.1
"""Standard deviation of the logarithm of a single measured step around the mean of its source."""
SHARE, NORMAL_SHARE = 0.7, 1.036
"""A share of half a normal distribution, and the standard deviations within which it lies."""
FEWEST = 3
"""Left-out sources on a side from which on they say how wide it is."""
TRAINER = ("logprob", "train")
"""Phases of the trainer; the others are of engines."""
SIDES = np.geomspace(0.12, 1.5, 40)
"""Spreads of sources to one side that are tried; the least is that of the one family with four sources (FSDP of dense
models in verl: seven values around their mean by 0.10, 0.12 with the uncertainty of so few)."""


class Deviation(Struct, frozen=True):
    """What one source's rows of one family take over the prediction: mean of ln(measured / predicted), and rows.

    unsure: standard deviation of it by what nobody knows of their machines, which is drawn besides.
    """

    phase: str
    source: str
    families: tuple[str, ...]
    log_ratio: float
    rows: int
    unsure: float = 0.0

    @property
    def error(self) -> float:
        """Variance of the mean of its rows around what its software takes."""
        return ROW_ERROR**2 / self.rows + self.unsure**2


def fitted_deviations(found: Sequence[Deviation]) -> list[UserDeviation]:
    """Entries of every phase and family of ``found``."""
    phases = {
        phase: [one for one in found if one.phase == phase] for phase in dict.fromkeys(one.phase for one in found)
    }
    out = []
    for phase, of_phase in phases.items():
        # Of trainers and of engines: a phase alone has too few sources to say how far they fall.
        alike = [of for name, of in phases.items() if (name in TRAINER) == (phase in TRAINER)]
        above, below = left_out_spreads(alike)
        model = _Pooled.of(of_phase)
        for name in dict.fromkeys(family for one in of_phase for family in one.families):
            expected = model.expected(_chain(name, of_phase))
            of = [one for one in of_phase if name in one.families]
            out.append(
                UserDeviation(
                    phase=phase,
                    family=name,
                    mean=expected.mean,
                    above=expected.spread(above),
                    below=expected.spread(below),
                    sources=len({one.source for one in of}),
                    rows=sum(one.rows for one in of),
                )
            )
    return out


def left_out_spreads(phases: Sequence[Sequence[Deviation]]) -> tuple[float, float]:
    """Spreads of sources upwards and downwards: the least at which seven of ten left-out sources on that side fall
    where a normal deviation would."""
    misses: list[tuple[float, Expected, float]] = []
    for found in phases:
        for source in dict.fromkeys(one.source for one in found):
            rest = [one for one in found if one.source != source]
            model = _Pooled.of(rest) if rest else None
            for one in found:
                if one.source == source and model is not None:
                    expected = model.expected(one.families)
                    misses.append((one.log_ratio - expected.mean, expected, math.sqrt(one.error)))
    above, below = (
        _spread([(side * miss, of, error) for miss, of, error in misses if side * miss >= 0]) for side in (1.0, -1.0)
    )
    return above, below


def _spread(misses: Sequence[tuple[float, Expected, float]]) -> float:
    if len(misses) < FEWEST:
        return OVERALL_SPREAD
    for side in SIDES:
        inside = np.mean([miss <= NORMAL_SHARE * math.hypot(of.spread(side), error) for miss, of, error in misses])
        if inside >= SHARE:
            return float(side)
    return float(SIDES[-1])


def _chain(name: str, found: Iterable[Deviation]) -> tuple[str, ...]:
    """A family with those that hold it, the most specific first."""
    families = next(one.families for one in found if name in one.families)
    return families[families.index(name) :]


class Expected(Struct, frozen=True):
    """Of a new source of a family: mean deviation, and variance that the mean and levels leave."""

    mean: float
    variance: float

    def spread(self, side: float) -> float:
        """Standard deviation with sources spread by ``side``."""
        return math.sqrt(self.variance + side**2)


class _Pooled(Struct, frozen=True, eq=False):
    """The pooled model given its spreads. depth: levels of a whole chain, the family of all runs not counted."""

    found: Sequence[Deviation]
    level: float
    depth: int
    solved: FloatArray
    inverse: FloatArray

    @classmethod
    def of(cls, found: Sequence[Deviation]) -> _Pooled:
        """The model with the likeliest spreads."""
        depth = max(len(one.families) for one in found) - 1
        values = np.array([one.log_ratio for one in found])
        best: tuple[float, _Pooled] | None = None
        for level, source in product(LEVELS, SPREADS):
            likelihood, inverse = _solved(found, values, level, source)
            if best is None or likelihood > best[0]:
                best = likelihood, cls(found, level, depth, inverse @ values, inverse)
        assert best is not None
        return best[1]

    def expected(self, families: Sequence[str]) -> Expected:
        """Mean and standard deviation of the deviation of a new source of ``families``, the most specific first."""
        shared = np.array([OVERALL_SPREAD**2 + self.level**2 * _common(one.families, families) for one in self.found])
        prior = OVERALL_SPREAD**2 + self.level**2 * self.depth
        variance = prior - float(shared @ self.inverse @ shared)
        return Expected(float(shared @ self.solved), max(0.0, variance))


def _solved(found: Sequence[Deviation], values: FloatArray, level: float, source: float) -> tuple[float, FloatArray]:
    """Log-likelihood, and the inverse of the covariance with each source as a normal draw of its own precision."""
    shared = np.array([[_shared(a, b, level) for b in found] for a in found])
    rows = np.array([one.error for one in found])
    own, weights = np.array([[a.source == b.source for b in found] for a in found]), np.ones(len(found))
    for _ in range(ROUNDS):
        scale = source / np.sqrt(weights)
        covariance = shared + own * np.outer(scale, scale) + np.diag(rows)
        inverse = np.linalg.inv(covariance)
        # What is left of each value beside what its levels explain, as the draw of its source.
        left = values - shared @ inverse @ values
        weights = (DEGREES + 1) / (DEGREES + (left / source) ** 2)
    scaled = values @ inverse @ values
    prior = np.sum(0.5 * DEGREES * (np.log(weights) - weights))
    return float(-0.5 * (scaled + np.linalg.slogdet(covariance)[1]) + prior), np.asarray(inverse, dtype=np.float64)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Levels that two chains share beside that of all runs."""
    return max(0, len(set(one) & set(other)) - 1)


def _shared(one: Deviation, other: Deviation, level: float) -> float:
    return OVERALL_SPREAD**2 + level**2 * _common(one.families, other.families)
