"""What two own rows are worth: of every group left out as a whole two runs are given back, the rest predicted."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from rlsim.projection.uncertainty.evidence import Evidence
from rlsim.units import FloatArray
from rlsim.validation.hierarchy import DEGREES, GROUP_DEGREES, Design, Spreads, Weights, solve
from rlsim.validation.scores import short
from rlsim.validation.update import conditioned

OWN = 2
"""Rows that are given back."""
LEAST_REST = 2
"""Runs at least that are left to predict."""
MOST_PAIRS = 8
"""Pairs of a group; where it has more, so many of them drawn."""


@dataclass(frozen=True)
class OwnRowsScore:
    """Median of |predicted / measured - 1| over the other runs of a left-out group, before and after two of its own.

    grouping: what is left out; groups: how many had runs enough; n: predictions behind the medians.
    """

    grouping: str
    kind: str
    groups: int
    n: int
    before: float
    after: float

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {name: short(value) if isinstance(value, float) else value for name, value in asdict(self).items()}


def own_rows_score(
    grouping: str,
    rows: tuple[Evidence, ...],
    design: Design,
    spreads: Spreads,
    weights: Weights,
    names: NDArray[np.str_],
    kind: str,
) -> OwnRowsScore | None:
    """Two own rows over all groups of a kind. names: the group of each row. None where no group has enough."""
    before, after, groups = list[FloatArray](), list[FloatArray](), 0
    ids, kinds = np.array([row.id for row in rows]), np.array(design.kinds)
    for name in sorted(set(names.tolist()) - {""}):
        mine = names == name
        runs = sorted(set(ids[mine & (kinds == kind)].tolist()))
        if len(runs) < OWN + LEAST_REST:
            continue
        groups += 1
        left_out = _LeftOut(design, spreads, weights, mine)
        for pair in _pairs(runs):
            own = np.flatnonzero(mine & np.isin(ids, pair))
            rest = np.flatnonzero(mine & (kinds == kind) & ~np.isin(ids, pair))
            for out, values in zip((before, after), left_out.errors(own, rest), strict=True):
                out.append(values)
    if not before:
        return None
    medians = [float(np.median(np.concatenate(values))) for values in (before, after)]
    return OwnRowsScore(grouping, kind, groups, sum(len(one) for one in before), *medians)


def _pairs(runs: list[str]) -> list[tuple[str, ...]]:
    every = list(itertools.combinations(runs, OWN)) if len(runs) <= 24 else []
    if 0 < len(every) <= MOST_PAIRS:
        return every
    generator = np.random.default_rng(0)
    return [tuple(generator.choice(runs, OWN, replace=False).tolist()) for _ in range(MOST_PAIRS)]


class _LeftOut:
    """The posterior without a group, known columns first."""

    def __init__(self, design: Design, spreads: Spreads, weights: Weights, left_out: NDArray[np.bool_]) -> None:
        found = solve(design, spreads, weights, ~left_out)
        informed, touched = design.informed(~left_out), np.abs(design.matrix[left_out]).sum(axis=0) > 0
        known, fresh = np.flatnonzero(informed & touched), np.flatnonzero(~informed & touched)
        self.columns = np.concatenate([known, fresh])
        self.mean, self.covariance = found.mean[known], found.covariance()[np.ix_(known, known)]
        # New columns are centred where their families are, which the surprise is taken from.
        self.shift = design.matrix[:, fresh] @ design.middle[fresh]
        self.fresh = design.new_scales(spreads)[fresh]
        self.errors_of, self.design = design.scales(spreads), design

    def errors(self, own: NDArray[np.intp], rest: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        """Errors of the rows ``rest`` as shares, without and with the rows ``own``."""
        matrix, surprise = self.design.matrix[:, self.columns], self.design.surprise - self.shift
        found = conditioned(
            self.mean,
            self.covariance,
            matrix[own],
            surprise[own],
            self.errors_of[own],
            self.fresh,
            (DEGREES, GROUP_DEGREES),
        )
        start = np.concatenate([self.mean, np.zeros(len(self.fresh))])
        before, after = (np.abs(np.expm1(matrix[rest] @ mean - surprise[rest])) for mean in (start, found.mean))
        return np.asarray(before), np.asarray(after)
