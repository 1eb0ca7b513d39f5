"""The joint fit: fitted terms, deviations of groups and heavy-tailed errors of all measured times at once.

For every measured time i, with y_i = ln(measured / predicted) around the values where the fit starts,

    y_i = sum_j J_ij z_j + sum_g C_ig b_g + e_i,
    z_j ~ N(p_j, s_f(j)^2),   b_g ~ Student-t(6, t_f(g)),   e_i ~ Student-t(3, q_k(i)).

J: derivatives by fitted terms z; p and s: where they are centred and their spread before any measurement. b: deviation
of a group (a release, a device, a model, a pair of them...), t: scale of its family f. q: scale of the error of a kind
k of measured time. The scales t and q maximise the marginal likelihood by expectation maximisation, Student's t as a
normal of random precision (Lange, Little and Taylor 1989, doi:10.2307/2290063); z and b given them are normal, in
closed form (Laplace's approximation at the values where the predictions are linearised).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from rlsim.costs.operators.groups import family_of
from rlsim.parameters.sets import Fitted
from rlsim.parameters.terms import Term, limits_of, term_family
from rlsim.projection.uncertainty.evidence import Evidence
from rlsim.units import BoolArray, FloatArray

DEGREES = 3.0
"""Degrees of freedom of the errors: published tables hold runs with mistakes of a factor of two."""
GROUP_DEGREES = 6.0
"""Degrees of freedom of groups and of terms with siblings: releases and models differ, yet seldom by a mistake."""
ROUNDS = 80
HASTE = 1.6
"""Exponent on each change of a spread: expectation maximisation creeps where families can stand for each other."""
STEP_ERROR = 0.02
"""Error of a published step time itself (an average over a few steps, rounded). What a prediction misses beyond is of
its phases: that is what another layout of the same run shares or does not share. Assumption: totals alone cannot tell
these apart."""
PHASES = ("generation", "logprob", "train", "refit")
"""Measured phases of steps have one scale of error: of each there are four rows at most, too few for a scale each."""
BEYOND = 1e-9
"""Deviation by which a mean may exceed a bound."""
MOST_SPREAD = {"trainer on device": 0.03}
"""Largest scale of a family: a device's kernels are in its tables, so that what is left of it is small. Wider, a family
with few members takes what terms miss of the models that happened to run there."""
PRIOR_COUNT, PRIOR_SPREAD = 2.0, 0.06
"""What the spread of a family is taken for before it is fitted, as so many groups: one with few members says little."""


@dataclass(frozen=True)
class Spreads:
    """Scales of the groups of each family and of the errors of each kind, in logarithms.

    new: factor on the scale of a member that was never measured, by how the names of families begin
    (:mod:`left_out`); 1 for others.
    """

    families: Mapping[str, float]
    errors: Mapping[str, float]
    new: Mapping[str, float] = field(default_factory=dict)

    def of_new(self, family: str) -> float:
        """Scale of a member of ``family`` that was never measured, from the scale of those that were."""
        factors = (factor for begin, factor in self.new.items() if family.startswith(begin))
        return self.families[family] * next(factors, 1.0)


@dataclass(frozen=True)
class Weights:
    """Factors on the precision of rows and of columns, below 1 for outliers.

    columns: 1 for terms of no family.
    """

    rows: FloatArray
    columns: FloatArray

    @classmethod
    def even(cls, design: Design) -> Weights:
        """Weights of 1 for all rows and columns."""
        return cls(np.ones(len(design.log_error)), np.ones(len(design.columns)))


@dataclass(frozen=True)
class Design:
    """Measured times as arrays. matrix: shape (rows, terms + groups); columns: names of both. bounds: least and
    largest mean of every column, shape (2, columns), where no value goes any further; None for none.
    """

    log_error: FloatArray
    matrix: FloatArray
    columns: tuple[str, ...]
    terms: int
    spread: FloatArray
    centre: FloatArray
    kinds: tuple[str, ...]
    families: tuple[str, ...] = field(default=())
    term_families: tuple[str, ...] = field(default=())
    bounds: FloatArray | None = None

    @classmethod
    def of(cls, rows: Sequence[Evidence], terms: Sequence[Term], sets: Fitted | None = None) -> Design:
        """The design of ``rows``; terms that move none of them stay in with their prior.

        sets: around which the rows were linearised; terms move within the limits that they have there.
        """
        groups = sorted({group for row in rows for group in row.groups})
        columns = (*(term.name for term in terms), *groups)
        place = {name: column for column, name in enumerate(columns)}
        matrix = np.zeros((len(rows), len(columns)))
        for at, row in enumerate(rows):
            for name, value in (*row.slopes.items(), *row.groups.items()):
                matrix[at, place[name]] = value
        bounds = None
        if sets is not None:
            # Terms have physical limits; deviations of groups have none.
            bounds = np.array([limits_of(sets, term.name) for term in terms] + [(-np.inf, np.inf)] * len(groups)).T
        return cls(
            np.array([row.surprise for row in rows]),
            matrix,
            columns,
            len(terms),
            np.array([term.spread for term in terms]),
            np.array([term.centre for term in terms]),
            tuple(row.kind for row in rows),
            tuple(family_of(group) for group in groups),
            tuple(term_family(term.name) for term in terms),
            bounds,
        )

    @property
    def families_of(self) -> NDArray[np.str_]:
        """Family of every column; "" for terms of none."""
        return np.array([*self.term_families, *self.families])

    @property
    def middle(self) -> FloatArray:
        """Prior mean of every column: centres of terms, 0 for deviations of groups."""
        return np.concatenate([self.centre, np.zeros(len(self.families))])

    def column_scales(self, spreads: Spreads) -> FloatArray:
        """Scale of the deviation of every column: what is fitted of its family, else what it was assumed to be."""
        stated = [*self.spread.tolist(), *(0.0 for _ in self.families)]
        return np.array(
            [spreads.families[name] if name else scale for name, scale in zip(self.families_of, stated, strict=True)]
        )

    def new_scales(self, spreads: Spreads) -> FloatArray:
        """Scale of every column as a member of its family that was never measured; 0 for terms of none."""
        return np.array([spreads.of_new(name) if name else 0.0 for name in self.families_of])

    def informed(self, used: BoolArray) -> BoolArray:
        """Mask of the columns that some of the rows ``used`` have; terms of no family always count."""
        return np.asarray((np.abs(self.matrix[used]).sum(axis=0) > 0) | (self.families_of == ""))

    def scales(self, spreads: Spreads) -> FloatArray:
        """Scale of the error of every row."""
        return np.array([spreads.errors[kind] for kind in self.kinds])


@dataclass(frozen=True)
class Solution:
    """Posterior of all columns: mean, and lower factor of the covariance's inverse as scipy's cho_factor gives it."""

    mean: FloatArray
    factor: tuple[FloatArray, bool]

    def covariance(self) -> FloatArray:
        """Covariance of all columns."""
        return np.asarray(cho_solve(self.factor, np.eye(len(self.mean))))

    def variances(self, matrix: FloatArray) -> FloatArray:
        """Variance of each row of ``matrix`` times the columns."""
        return np.asarray(np.einsum("ij,ji->i", matrix, cho_solve(self.factor, matrix.T)))


def solve(
    design: Design, spreads: Spreads, weights: Weights, used: BoolArray | None = None, held: FloatArray | None = None
) -> Solution:
    """Posterior of terms and groups from the rows ``used`` (all by default).

    held: mean of each column that is not to be solved for, as of terms that lie at an optimum of their own, NaN for the
    others. Whichever of those would leave the design's bounds is held on them in turn; the covariance is that of all.
    """
    precision = weights.rows / design.scales(spreads) ** 2
    if used is not None:
        # Unused rows get no precision instead of being cut out: columns and their order stay those of the design.
        precision = np.where(used, precision, 0.0)
    weighted = design.matrix * precision[:, None]
    normal = design.matrix.T @ weighted
    columns = weights.columns
    if used is not None:
        # A column without rows is a new draw: what is known of it from rows that were left out must not count.
        columns = np.where(design.informed(used), columns, 1.0)
    prior = columns / design.column_scales(spreads) ** 2
    # The prior keeps the matrix positive definite where no row informs a column.
    normal[np.diag_indices_from(normal)] += prior
    factor = cho_factor(normal, lower=True)
    wanted = weighted.T @ design.log_error + prior * design.middle
    held = np.full(len(columns), np.nan) if held is None else held.copy()
    while True:
        mean, free = held.copy(), np.isnan(held)
        if free.all():
            mean = np.asarray(cho_solve(factor, wanted))
        else:
            rest = wanted[free] - normal[np.ix_(free, ~free)] @ held[~free]
            mean[free] = cho_solve(cho_factor(normal[np.ix_(free, free)], lower=True), rest)
        nearest = mean if design.bounds is None else np.clip(mean, *design.bounds)
        beyond = free & (np.abs(mean - nearest) > BEYOND)
        if not beyond.any():
            return Solution(mean, factor)
        # Columns are only ever added to those held, so that the loop ends after as many rounds as there are columns.
        held[beyond] = nearest[beyond]


def fit_spreads(design: Design, progress: Callable[[str], object] = lambda line: None) -> tuple[Spreads, Weights]:
    """Spreads of all families and errors by expectation maximisation over all rows, and the weights."""
    every = np.ones(len(design.log_error), dtype=bool)
    start = {
        name: float(np.mean(design.spread[np.array(design.term_families) == name]))
        for name in sorted(set(design.term_families) - {""})
    }
    spreads = Spreads({**start, **dict.fromkeys(design.families, 0.08)}, dict.fromkeys(design.kinds, 0.08))
    weights, kinds, families = Weights.even(design), np.array(design.kinds), design.families_of
    for number in range(ROUNDS):
        found = solve(design, spreads, weights, every)
        covariance = found.covariance()
        # Expected squares hold the variance of the posterior as well: means alone would let spreads shrink to zero.
        squares = (found.mean - design.middle) ** 2 + np.diag(covariance)
        errors = design.log_error - design.matrix @ found.mean
        errors = errors**2 + np.einsum("ij,ij->i", design.matrix @ covariance, design.matrix)
        informed = design.informed(every)
        of_families = {}
        for name, before in spreads.families.items():
            mine = (families == name) & informed
            after = _spread(squares[mine], weights.columns[mine], start.get(name, PRIOR_SPREAD))
            of_families[name] = min(MOST_SPREAD.get(name, np.inf), before * (after / before) ** HASTE)
        of_kinds = {}
        for kind in dict.fromkeys(design.kinds):
            mine = np.isin(kinds, PHASES if kind in PHASES else (kind,))
            measured = _spread(errors[mine], weights.rows[mine], PRIOR_SPREAD)
            of_kinds[kind] = STEP_ERROR if kind == "step" else measured
        # Phases that no row measured get the pooled scale too: intervals draw an error for every phase.
        pooled = next((of_kinds[kind] for kind in PHASES if kind in of_kinds), PRIOR_SPREAD)
        spreads = Spreads(of_families, dict.fromkeys(PHASES, pooled) | of_kinds)
        columns = design.column_scales(spreads)
        weights = Weights(
            # Expected precision of a Student's t given its residual: (nu + 1) / (nu + r^2 / scale^2).
            (DEGREES + 1) / (DEGREES + errors / design.scales(spreads) ** 2),
            np.where(families == "", 1.0, (GROUP_DEGREES + 1) / (GROUP_DEGREES + squares / columns**2)),
        )
        if number % 10 == 9:
            progress(f"round {number + 1} of {ROUNDS}")
    return spreads, weights


def _spread(squares: FloatArray, weights: FloatArray, prior: float) -> float:
    """Scale of a family or of errors; prior: what PRIOR_COUNT members more are taken for."""
    total = float(weights @ squares) + PRIOR_COUNT * prior**2
    return float(np.sqrt(total / (len(squares) + PRIOR_COUNT)))
