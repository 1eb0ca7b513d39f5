"""Are 90 % intervals 90 % intervals? Whole groups of measurements are left out of the joint fit in turn and predicted.

A grouping (release, device, model, framework, the newest release of everything, tenths of all runs) splits the shipped
evidence. For each of its groups the posterior of the rest predicts the group's rows; spreads and weights stay those of
the whole fit, whose estimation a single group hardly moves. Of every left-out release and framework two rows are also
given back. Scores are those of Gneiting and Raftery 2007 (doi:10.1198/016214506000001437).
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlsim.costs.operators.groups import family_of
from rlsim.evidence.hierarchy import DEGREES, GROUP_DEGREES, Design, Spreads, Weights, fit_spreads, solve
from rlsim.evidence.left_out import OF_WIDTH, software, with_new_scales
from rlsim.evidence.memory import left_out as memory
from rlsim.files.yaml import lists_beside
from rlsim.parameters.sets import Fitted, shipped
from rlsim.parameters.terms import moved
from rlsim.projection.uncertainty.evidence import Evidence, EvidenceTable, load_evidence
from rlsim.projection.uncertainty.learning import Prior, conditioned
from rlsim.results.record import P90_DEVIATIONS
from rlsim.results.validation import CrossScore, CrossValidation, OwnRowsScore, Ranks
from rlsim.schema.engine_parameters import version_order
from rlsim.units import BoolArray, FloatArray

DRAWS = 2000
LEVELS = (0.5, 0.8, 0.9)
SCORED = ("step", "iteration", "training", "transfer")
"""Kinds of measured times that are scored; phases of steps are few."""
FOLDS = 10
NEWEST = {name: tuple(release) for name, release in lists_beside(__file__)["newest"].items()}
"""Releases from which on a row counts as the newest of its software: what came out in 2026."""
GIVEN_BACK = 2
"""Rows that are given back."""
LEAST_REST = 2
"""Runs at least that are left to predict."""
MOST_PAIRS = 8
"""Pairs of a group; where it has more, so many of them drawn."""


@dataclass(frozen=True)
class Fit:
    """The joint fit of all rows, of which groups are left out."""

    rows: Sequence[Evidence]
    design: Design
    spreads: Spreads
    weights: Weights

    @classmethod
    def of(cls, table: EvidenceTable) -> Fit:
        """The fit of the rows of ``table``."""
        design = Design.of(table.rows, table.terms, moved(shipped(), table.shifts))
        spreads, weights = fit_spreads(design)
        return cls(table.rows, design, with_new_scales(design, spreads, weights, table.rows), weights)

    def names(self, grouping: str) -> NDArray[np.str_]:
        """Group of each row; empty where it has none."""
        return np.array([GROUPINGS[grouping](row) for row in self.rows])


def validate_cross(
    table: EvidenceTable | None = None, progress: Callable[[int, int], object] | None = None
) -> CrossValidation:
    """Leave out every group of every grouping of ``table`` (by default the shipped evidence) and score its rows."""
    fit = Fit.of(table or load_evidence())
    memory_scores = _memory_scores() if table is None else ()
    kinds = np.array(fit.design.kinds)
    single = np.array([single_factor(row, shipped()) for row in fit.rows])
    scores, ranks = [], []
    for done, grouping in enumerate(GROUPINGS, start=1):
        names = fit.names(grouping)
        draws = left_out_draws(fit, names)
        for kind in SCORED:
            chosen = np.flatnonzero((names != "") & (kinds == kind))
            if len(chosen):
                about = {"grouping": grouping, "kind": kind, "groups": len(set(names[chosen].tolist()))}
                log_error = fit.design.log_error[chosen]
                scores.append(CrossScore(**about, **_scores(log_error, draws[chosen], single[chosen])))
                below = np.mean(draws[chosen] < log_error[:, None], axis=1)
                ranks.append(Ranks(grouping=grouping, kind=kind, values=tuple(below.tolist())))
        if progress is not None:
            progress(done, len(GROUPINGS) + 1)
    given_back = [own_rows_score(fit, grouping, kind) for grouping in ("release", "framework") for kind in SCORED]
    own_rows = tuple(score for score in given_back if score is not None)
    return CrossValidation(scores=(*scores, *memory_scores), ranks=tuple(ranks), own_rows=own_rows)


def _memory_scores() -> tuple[CrossScore, ...]:
    """Scores of published memory, whose terms are fitted apart from those of times."""
    found = [(grouping, one) for grouping in memory.GROUPINGS for one in memory.left_out(grouping, DRAWS)]
    return tuple(
        CrossScore(grouping=grouping, kind=one.kind, groups=one.groups, **_scores(one.log_error, one.draws, one.single))
        for grouping, one in found
    )


def left_out_draws(fit: Fit, names: NDArray[np.str_]) -> FloatArray:
    """Draws of ln(measured / predicted) of every row from the posterior without its group; shape (rows, DRAWS).

    names: the group of each row; those without one stay in every fit and have no draws (NaN).
    """
    out = np.full((len(names), DRAWS), np.nan)
    for name in sorted(set(names.tolist()) - {""}):
        left_out = names == name
        out[left_out] = predictive_draws(fit, ~left_out, left_out)
    return out


def predictive_draws(fit: Fit, used: BoolArray, wanted: BoolArray) -> FloatArray:
    """Draws of the rows ``wanted`` from the posterior of the rows ``used``; shape (wanted rows, DRAWS)."""
    design, spreads = fit.design, fit.spreads
    found = solve(design, spreads, fit.weights, used)
    matrix, informed = design.matrix[wanted], design.informed(used)
    # Columns without rows are new draws from their heavy-tailed population, the others are normal.
    generator = np.random.default_rng(0)
    known = np.where(informed, matrix, 0.0)
    # One vector of draws serves all rows: scores look at one row at a time, whatever they share.
    out = (known @ found.mean)[:, None] + np.sqrt(found.variances(known))[:, None] * generator.standard_normal(DRAWS)
    scales, middle = design.new_scales(spreads), design.middle
    for column in np.flatnonzero(~informed & (np.abs(matrix).sum(axis=0) > 0)):
        out += np.outer(matrix[:, column], middle[column] + scales[column] * generator.standard_t(GROUP_DEGREES, DRAWS))
    errors = design.scales(spreads)[wanted]
    return out + errors[:, None] * generator.standard_t(DEGREES, (len(errors), DRAWS))


def _scores(log_error: FloatArray, draws: FloatArray, single: FloatArray) -> dict[str, Any]:
    """Fields of a CrossScore; single: standard deviation of one log-normal factor around the same predictions."""
    middle = np.median(draws, axis=1)
    bounds = [np.quantile(draws, ((1 - level) / 2, (1 + level) / 2), axis=1) for level in LEVELS]
    (low, high), half = bounds[-1], P90_DEVIATIONS * single
    # The factor is centred on the same medians, so that scores compare widths and not point predictions.
    normal = middle[:, None] + single[:, None] * np.random.default_rng(0).standard_normal(DRAWS)
    return {
        "n": len(log_error),
        "median_error": float(np.median(np.abs(np.expm1(middle - log_error)))),
        "coverage": tuple(float(np.mean((log_error >= below) & (log_error <= above))) for below, above in bounds),
        "width": float(np.median(np.exp((high - low) / 2) - 1)),
        "crps": _crps(log_error, draws),
        "interval_score": _interval_score(log_error, low, high),
        "single_coverage": float(np.mean(np.abs(log_error - middle) <= half)),
        "single_crps": _crps(log_error, normal),
        "single_interval_score": _interval_score(log_error, middle - half, middle + half),
    }


def _interval_score(values: FloatArray, low: FloatArray, high: FloatArray) -> float:
    """Width of the 90 % intervals and twenty times what lies outside, mean over ``values``."""
    # 2 / alpha is the price at which the true quantiles have the best expected score (Gneiting and Raftery, section
    # 6.2).
    penalty = 2 / (1 - LEVELS[-1])
    return float(np.mean(high - low + penalty * (np.maximum(low - values, 0) + np.maximum(values - high, 0))))


def _crps(values: FloatArray, draws: FloatArray) -> float:
    """Continuous ranked probability score, mean over ``values``; draws: shape (values, draws)."""
    ordered = np.sort(draws, axis=1)
    count = ordered.shape[1]
    # Half the mean distance of two draws follows from their order; all pairs of 2,000 draws would be 4 million a row.
    ranks = (2 * np.arange(1, count + 1) - count - 1) / count**2
    return float(np.mean(np.mean(np.abs(ordered - values[:, None]), axis=1) - ordered @ ranks))


def own_rows_score(fit: Fit, grouping: str, kind: str) -> OwnRowsScore | None:
    """Errors of left-out groups before and after two of their rows are given back. None where no group has enough."""
    before, after, groups = list[FloatArray](), list[FloatArray](), 0
    names = fit.names(grouping)
    ids, kinds = np.array([row.id for row in fit.rows]), np.array(fit.design.kinds)
    # Sorted, since the order of a set of strings changes between processes.
    for name in sorted(set(names.tolist()) - {""}):
        members = names == name
        runs = sorted(set(ids[members & (kinds == kind)].tolist()))
        if len(runs) < GIVEN_BACK + LEAST_REST:
            continue
        groups += 1
        errors = _errors_without(fit, members)
        for pair in _pairs(runs):
            rest = np.flatnonzero(members & (kinds == kind) & ~np.isin(ids, pair))
            first, then = errors(np.flatnonzero(members & np.isin(ids, pair)), rest)
            before.append(first)
            after.append(then)
    if not before:
        return None
    errors_before, errors_after = np.concatenate(before), np.concatenate(after)
    medians = {"before": float(np.median(errors_before)), "after": float(np.median(errors_after))}
    return OwnRowsScore(grouping=grouping, kind=kind, groups=groups, n=len(errors_before), **medians)


def _pairs(runs: list[str]) -> list[tuple[str, ...]]:
    if math.comb(len(runs), GIVEN_BACK) <= MOST_PAIRS:
        return list(itertools.combinations(runs, GIVEN_BACK))
    generator = np.random.default_rng(0)
    return [tuple(generator.choice(runs, GIVEN_BACK, replace=False).tolist()) for _ in range(MOST_PAIRS)]


def _errors_without(
    fit: Fit, members: BoolArray
) -> Callable[[NDArray[np.intp], NDArray[np.intp]], tuple[FloatArray, FloatArray]]:
    """Errors of rows as shares, without and with some given rows, where the posterior is that without a group."""
    design = fit.design
    found = solve(design, fit.spreads, fit.weights, ~members)
    informed, touched = design.informed(~members), np.abs(design.matrix[members]).sum(axis=0) > 0
    # Columns that no row of the group has cannot change what is predicted of it; leaving them out keeps the update
    # small.
    known, new = np.flatnonzero(informed & touched), np.flatnonzero(~informed & touched)
    covariance, new_scales = found.covariance()[np.ix_(known, known)], design.new_scales(fit.spreads)[new]
    prior = Prior(found.mean[known], covariance, design.middle[new], new_scales, (DEGREES, GROUP_DEGREES))
    start = np.concatenate([prior.mean, prior.new_mean])
    matrix, log_error = design.matrix[:, np.concatenate([known, new])], design.log_error  # known columns first
    scales = design.scales(fit.spreads)

    def errors(given: NDArray[np.intp], rest: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        then, _ = conditioned(prior, matrix[given], log_error[given], scales[given])
        before, after = (np.abs(np.expm1(matrix[rest] @ mean - log_error[rest])) for mean in (start, then))
        return np.asarray(before), np.asarray(after)

    return errors


def single_factor(row: Evidence, sets: Fitted) -> float:
    """Standard deviation of the one log-normal factor that the fit of the row's half gives all of its times."""
    if row.kind == "iteration":
        return sets.engines.family(str(row.about["engine"])).error
    if row.kind == "training":
        return sets.training.error
    if row.kind == "transfer":
        return sets.transfers.error_of(str(row.about["framework"]))
    return sets.steps.step_error


def _newest(row: Evidence) -> str:
    release, name = str(row.about.get("release", "")), software(row)
    return "newest" if release and name in NEWEST and tuple(version_order(release)) >= NEWEST[name] else ""


def _fold(row: Evidence) -> str:
    """A tenth of all runs; the phases of a run and the loads of one engine setup stay together."""
    setup = next((group for group in row.groups if family_of(group) == "engine setup"), row.id)
    # A hash, not a shuffle: rows added to the tables leave all others in their tenth.
    return str(int(hashlib.sha256(setup.encode()).hexdigest(), 16) % FOLDS)


GROUPINGS: Mapping[str, Callable[[Evidence], str]] = {
    **OF_WIDTH,
    "framework": software,
    "newest": _newest,
    "runs": _fold,
}
