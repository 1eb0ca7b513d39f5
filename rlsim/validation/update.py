"""A few further measured times on top of a posterior, without fitting anything else again.

The posterior is normal (mean m, covariance P over terms and known groups); groups that it does not know enter with the
spread of their family. With H the derivatives of the new rows and R the variances of their errors,

    K = P H' (H P H' + R)^-1,    m' = m + K (y - H m),    P' = P - K H P,

where errors and new groups are Student's t, taken as normals of random precision as in the joint fit
(:mod:`rlsim.validation.hierarchy`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky

from rlsim.costs.operators.groups import family_of
from rlsim.parameters.posterior import Posterior
from rlsim.projection.uncertainty.evidence import Evidence
from rlsim.projection.uncertainty.predictive import UNMEASURED_SPREAD
from rlsim.units import FloatArray

ROUNDS = 12
JITTER = 1e-10
"""Added to the diagonal of a covariance, in squares of a logarithm, against rounding."""


@dataclass(frozen=True)
class Conditioned:
    """Mean, shape (columns,), and covariance of all columns given the rows."""

    mean: FloatArray
    covariance: FloatArray


def conditioned(
    mean: FloatArray,
    covariance: FloatArray,
    matrix: FloatArray,
    surprise: FloatArray,
    errors: FloatArray,
    fresh: FloatArray,
    degrees: tuple[float, float],
    fresh_mean: FloatArray | None = None,
) -> Conditioned:
    """The normal posterior of columns given rows ``surprise = matrix @ columns + error``.

    mean, covariance: of the known columns, which come first. matrix: shape (rows, known + fresh columns). errors: scale
    of each row's error. fresh: scale of each column that was never measured. degrees: of
    Student's t of errors and of these columns. fresh_mean: where these are centred, 0 by default.
    """
    known, rows, news = len(mean), np.ones(len(surprise)), np.ones(len(fresh))
    start = np.concatenate([mean, np.zeros(len(fresh)) if fresh_mean is None else fresh_mean])
    out = Conditioned(start, np.zeros((len(start), len(start))))
    for _ in range(ROUNDS):
        whole = np.zeros((len(start), len(start)))
        whole[:known, :known] = covariance
        whole[range(known, len(start)), range(known, len(start))] = fresh**2 / news
        crossed = whole @ matrix.T
        factor = cho_factor(matrix @ crossed + np.diag(errors**2 / rows + JITTER), lower=True)
        found = start + crossed @ cho_solve(factor, surprise - matrix @ start)
        after = whole - crossed @ cho_solve(factor, crossed.T)
        out = Conditioned(found, (after + after.T) / 2)
        misses = (surprise - matrix @ found) ** 2 + np.einsum("ij,ij->i", matrix @ out.covariance, matrix)
        squares = (found - start)[known:] ** 2 + np.diag(out.covariance)[known:]
        rows = (degrees[0] + 1) / (degrees[0] + misses / errors**2)
        news = (degrees[1] + 1) / (degrees[1] + squares / fresh**2)
    return out


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
    moved = np.zeros(len(columns))
    moved[: posterior.terms] = posterior.mean[: posterior.terms]
    found = conditioned(
        posterior.mean - moved[: len(posterior.mean)],
        posterior.factor @ posterior.factor.T,
        matrix,
        np.array([row.surprise for row in rows]),
        np.array([posterior.errors[row.kind] for row in rows] if errors is None else errors),
        np.array([posterior.spreads.get(family_of(group), UNMEASURED_SPREAD) for group in groups]),
        (posterior.degrees, posterior.group_degrees),
        np.array([posterior.mean_of(group) for group in groups]),
    )
    counts = Counter(group for row in rows for group in row.groups)
    return replace(
        posterior,
        name=name,
        columns=columns,
        mean=found.mean + moved,
        factor=cholesky(found.covariance + JITTER * np.eye(len(columns)), lower=True),
        rows={column: posterior.rows.get(column, 0) + counts[column] for column in columns[posterior.terms :]},
        fit={**posterior.fit, **about},
        description=f"{posterior.name} with {len(rows)} further measured times (docs/uncertainty.md).",
    )
