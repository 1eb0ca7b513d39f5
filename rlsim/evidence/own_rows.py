"""A user's measured times on top of a posterior: what was expected of them, what they change. Nothing is fitted again.

The posterior is normal (mean m, covariance P over terms and known groups); groups that it does not know enter with the
spread of their family. With H the derivatives of the new rows and R the variances of their errors,

    K = P H' (H P H' + R)^-1,    m' = m + K (y - H m),    P' = P - K H P,

where errors and new groups are Student's t, taken as normals of random precision as in the joint fit
(:mod:`rlsim.evidence.hierarchy`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky

from rlsim.costs.operators.groups import family_of
from rlsim.errors import InputError, shortened
from rlsim.evidence.tables import Kind, Table, kind_of
from rlsim.evidence.times import Reasons, compared_times, step_times
from rlsim.files.reading import shown_path
from rlsim.parameters.posterior import DEFAULT, Posterior, load_posterior
from rlsim.parameters.sets import shipped
from rlsim.parameters.terms import moved
from rlsim.projection.uncertainty.evidence import MEASURED_S, Evidence
from rlsim.projection.uncertainty.evidence import Kind as TimeKind
from rlsim.projection.uncertainty.predictive import UNMEASURED_SPREAD, around, error_draws, log_draws
from rlsim.results import Interval
from rlsim.units import FloatArray

ROUNDS = 12
JITTER = 1e-10
"""Added to the diagonal of a covariance, in squares of a logarithm, against rounding."""
SURPRISING = 0.02
"""Two-sided probability below which a measured time contradicts what was expected of it."""


@dataclass(frozen=True)
class OwnTime:
    """One own measured time. expected, now: prediction with its 90 % interval before and after all own rows, seconds.

    tail: two-sided probability of a time at least as far from what was expected.
    """

    id: str
    kind: TimeKind
    measured_s: float
    expected: Interval
    now: Interval
    tail: float

    @property
    def remark(self) -> str:
        """What a reader must know of it."""
        if not self.now.low <= self.measured_s <= self.now.high:
            return "contradicts the other rows: check what it ran"
        return "contradicts the measurements of others" if self.tail < SURPRISING else ""


@dataclass(frozen=True)
class Learned:
    """What a table of measured rows says: the posterior with it, each time beside its predictions, and reasons."""

    table: str
    posterior: Posterior
    times: tuple[OwnTime, ...]
    skipped: Reasons


@dataclass(frozen=True)
class Prior:
    """Normal known columns (mean, covariance), then new ones: Student's t around ``new_mean`` with scales ``new``.

    degrees: of freedom of the errors of rows and of new columns.
    """

    mean: FloatArray
    covariance: FloatArray
    new_mean: FloatArray
    new: FloatArray
    degrees: tuple[float, float]


@dataclass(frozen=True)
class Conditioned:
    """Mean, shape (columns,), and covariance of all columns given the rows."""

    mean: FloatArray
    covariance: FloatArray


def conditioned(prior: Prior, matrix: FloatArray, log_error: FloatArray, scales: FloatArray) -> Conditioned:
    """The normal posterior of all columns given rows ``log_error = matrix @ columns + error``.

    matrix: shape (rows, known + new columns). scales: of each row's error.
    """
    known, rows, news = len(prior.mean), np.ones(len(log_error)), np.ones(len(prior.new))
    start = np.concatenate([prior.mean, prior.new_mean])
    out = Conditioned(start, np.zeros((len(start), len(start))))
    for _ in range(ROUNDS):
        whole = np.zeros((len(start), len(start)))
        whole[:known, :known] = prior.covariance
        whole[range(known, len(start)), range(known, len(start))] = prior.new**2 / news
        crossed = whole @ matrix.T
        factor = cho_factor(matrix @ crossed + np.diag(scales**2 / rows + JITTER), lower=True)
        found = start + crossed @ cho_solve(factor, log_error - matrix @ start)
        after = whole - crossed @ cho_solve(factor, crossed.T)
        out = Conditioned(found, (after + after.T) / 2)
        misses = (log_error - matrix @ found) ** 2 + np.einsum("ij,ij->i", matrix @ out.covariance, matrix)
        squares = (found - start)[known:] ** 2 + np.diag(out.covariance)[known:]
        rows = (prior.degrees[0] + 1) / (prior.degrees[0] + misses / scales**2)
        news = (prior.degrees[1] + 1) / (prior.degrees[1] + squares / prior.new**2)
    return out


def learn(path: Path, name: str | None = None, progress: Callable[[int, int], object] | None = None) -> Learned:
    """Take the measured times of ``path``, a table of any kind of time, as evidence on top of the shipped posterior.

    Raises InputError where the file is no such table or none of its rows can be used.
    """
    before, kind = load_posterior(DEFAULT), kind_of(path)
    assert before is not None
    if kind is Kind.CURVES:
        raise InputError(f"{shown_path(path)}: curves are no measured times; see rlsim validate --help for tables")
    sets, table = moved(shipped(), before.shifts), replace(Table.read(path), progress=progress)
    simulated = kind in (Kind.STEPS, Kind.PHASES)
    rows, skipped = step_times(table, sets) if simulated else compared_times(kind, table, sets)
    if not rows:
        first = next((f": {shortened(name)}: {reason}" for name, reason in skipped.items()), "")
        raise InputError(f"{shown_path(path)}: none of its rows can be used{shortened(first, 300)}")
    about = {"own_rows": len(rows), "own_table": path.name, "own_digest": table.digest}
    after = updated(before, rows, name or path.stem, about)
    return Learned(path.name, after, tuple(_time(row, before, after) for row in rows), skipped)


def updated(
    posterior: Posterior,
    rows: Sequence[Evidence],
    name: str,
    about: Mapping[str, object],
    errors: Sequence[float] | None = None,
) -> Posterior:
    """``posterior`` with ``rows``, linearised around the sets as it moves them, as further evidence.

    errors: scale of each row's own error, in logarithms; default that of a published time of its kind.
    """
    groups = dict.fromkeys(group for row in rows for group in row.groups if posterior.place(group) is None)
    columns = (*posterior.columns, *groups)
    place = {column: number for number, column in enumerate(columns)}
    matrix = np.zeros((len(rows), len(columns)))
    for at, row in enumerate(rows):
        for column, value in (*row.slopes.items(), *row.groups.items()):
            matrix[at, place[column]] += value
    # Slopes stand around the moved terms: what the posterior says of a term is already in the prediction.
    shifts = np.zeros(len(columns))
    shifts[: posterior.terms] = posterior.mean[: posterior.terms]
    prior = Prior(
        posterior.mean - shifts[: len(posterior.mean)],
        posterior.factor @ posterior.factor.T,
        np.array([posterior.mean_of(group) for group in groups]),
        np.array([posterior.spreads.get(family_of(group), UNMEASURED_SPREAD) for group in groups]),
        (posterior.degrees, posterior.group_degrees),
    )
    scales = np.array([posterior.errors[row.kind] for row in rows] if errors is None else errors)
    found = conditioned(prior, matrix, np.array([row.surprise for row in rows]), scales)
    counts = Counter(group for row in rows for group in row.groups)
    return replace(
        posterior,
        name=name,
        columns=columns,
        mean=found.mean + shifts,
        factor=cholesky(found.covariance + JITTER * np.eye(len(columns)), lower=True),
        rows={column: posterior.rows.get(column, 0) + counts[column] for column in columns[posterior.terms :]},
        fit={**posterior.fit, **about},
        description=f"{posterior.name} with {len(rows)} further measured times (docs/uncertainty.md).",
    )


def _time(row: Evidence, before: Posterior, after: Posterior) -> OwnTime:
    expected, now = _logs(row, before, before), _logs(row, after, before)
    below, measured_s = float(np.mean(expected < row.surprise)), float(row.about[MEASURED_S])
    predicted_s = measured_s / float(np.exp(row.surprise))
    tail = 2 * min(below, 1 - below)
    return OwnTime(row.id, row.kind, measured_s, _interval(predicted_s, expected), _interval(predicted_s, now), tail)


def _logs(row: Evidence, posterior: Posterior, around_it: Posterior) -> FloatArray:
    """Draws of ln(time / predicted), where the prediction stands around the moved terms of ``around_it``."""
    changes = {name: posterior.mean_of(name) - around_it.mean_of(name) for name in row.slopes}
    middle = sum(slope * changes[name] for name, slope in row.slopes.items())
    middle += sum(share * posterior.mean_of(group) for group, share in row.groups.items())
    return middle + log_draws(posterior, row.slopes, row.groups) + error_draws(posterior, row.kind, row.id)


def _interval(predicted_s: float, logs: FloatArray) -> Interval:
    middle = float(np.exp(np.median(logs)))
    return around(predicted_s * middle, np.exp(logs) / middle)
