"""Distances between runs, fitted: how far the errors of two measured runs lie apart by what the runs differ in.

With y_i what a prediction misses of measured run i in logarithms and D_ijk how much runs i and j differ in feature k,

    (y_i - y_j)^2 ~ v_0 + sum_k v_k D_ijk,   v >= 0,

a variogram (Matheron 1963, doi:10.2113/gsecongeo.58.8.1246) whose distance adds up over features. The distance of two
runs is sqrt(sum_k v_k D_ijk): a standard deviation in logarithms beyond v_0, what runs that do not differ in anything
known miss each other by. A square counts as at most four times what is expected of it (Huber's proposal 2) and every
pair by its own variance, so that neither mistakes in tables nor far pairs set the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlsim.projection.uncertainty.evidence import Evidence, EvidenceTable
from rlsim.projection.uncertainty.features import FEATURES, HALVES, Half, differences, runs_of
from rlsim.projection.uncertainty.features import FloatArray as Coordinates
from rlsim.units import FloatArray

CLIPPED = 4.0
"""Most that a square counts, over what is expected of it (Huber 1964, doi:10.1214/aoms/1177703732)."""
KEPT_SHARE = 0.9205
"""Mean of the square of a standard normal variable that counts as at most CLIPPED: normal errors stay unbiased."""
ROUNDS = 8
PAIRS = 20_000
"""Most pairs that a fit uses."""
CANDIDATES = 200_000
"""Pairs drawn of a larger table, of which those that differ in few names are kept first."""
SEED = 20261122
NAME_PRIOR, DOUBLING_PRIOR, ERROR_PRIOR = 0.10**2, 0.05**2, 0.05**2
"""Weights of another name, of a doubling and of no difference before any pair is looked at. Assumptions."""
PRIOR_COUNT = 10.0
"""How many independent rows the priors count for: what no pair differs in keeps its prior."""
LEAST = 1e-6
"""Least expected square of a pair."""
SAME = "same"
"""Name of v_0 among the weights."""


def with_distances(table: EvidenceTable) -> EvidenceTable:
    """``table`` with fitted weights of all differences, for its file."""
    return replace(table, distances=fit_distances(table.rows))


def fit_distances(rows: Sequence[Evidence]) -> dict[str, dict[str, float]]:
    """Weights by kind and feature, and those of no difference; kinds without two rows keep the priors."""
    surprise = np.array([row.surprise for row in rows])
    out: dict[str, dict[str, float]] = {}
    for kind in HALVES:
        places, coded = runs_of(kind, ((row.kind, row.about) for row in rows))
        out[kind] = fit_weights(kind, coded.values, surprise[places])
    return out


def fit_weights(kind: Half, values: Coordinates, surprise: FloatArray) -> dict[str, float]:
    """Weights of one kind. values: coordinates of the runs, shape (runs, features); surprise: shape (runs,)."""
    features = FEATURES[kind]
    prior = np.array([ERROR_PRIOR, *(DOUBLING_PRIOR if one.sized else NAME_PRIOR for one in features)])
    names = (SAME, *(one.name for one in features))
    if len(surprise) < 2:
        return dict(zip(names, prior.tolist(), strict=True))
    first, second = _pairs(kind, values)
    matrix = np.column_stack([np.ones(len(first)), differences(kind, values[first], values[second])])
    squares = (surprise[first] - surprise[second]) ** 2
    found = _solved(matrix, squares, prior, len(surprise) / len(first))
    return {name: float(f"{weight:.4g}") for name, weight in zip(names, found.tolist(), strict=True)}


def _solved(matrix: FloatArray, squares: FloatArray, prior: FloatArray, rows_per_pair: float) -> FloatArray:
    """Non-negative weights by iterated least squares. rows_per_pair: pairs share rows, so each counts for less."""
    from scipy.optimize import nnls

    found = prior
    own = np.diag(np.sqrt(PRIOR_COUNT / 2) / prior)
    for _ in range(ROUNDS):
        expected = np.maximum(matrix @ found, LEAST)
        clipped = np.minimum(squares, CLIPPED * expected) / KEPT_SHARE
        # The square of a normal variable has a variance of twice its squared mean.
        root = np.sqrt(rows_per_pair / 2) / expected
        # An orthogonal reduction first: the solver then sees as many rows as there are weights.
        reduced, upper = np.linalg.qr(np.vstack([matrix * root[:, None], own]))
        target = np.concatenate([clipped * root, own @ prior])
        found, _ = nnls(upper, reduced.T @ target)
    return np.asarray(found, dtype=np.float64)


def _pairs(kind: Half, values: Coordinates) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of runs; of a large table as many of each number of differing names, drawn by a fixed seed."""
    count = len(values)
    first, second = np.triu_indices(count, 1) if count**2 <= 2 * PAIRS else _drawn(count)
    if len(first) <= PAIRS:
        return first, second
    named = [column for column, one in enumerate(FEATURES[kind]) if not one.sized]
    differing = differences(kind, values[first], values[second])[:, named].sum(axis=1).astype(int)
    levels = np.unique(differing)
    kept = np.concatenate([np.flatnonzero(differing == level)[: PAIRS // len(levels)] for level in levels])
    return first[kept], second[kept]


def _drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(SEED)
    first, second = generator.integers(0, count, (2, CANDIDATES))
    return first[first != second], second[first != second]


def squared(kind: Half, weights: Mapping[str, float], apart: Coordinates) -> FloatArray:
    """Squared distances of differences, shape (..., features)."""
    return np.asarray(apart @ np.array([weights.get(one.name, 0.0) for one in FEATURES[kind]]))
