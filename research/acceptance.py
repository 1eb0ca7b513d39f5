"""Further fits to curves of acceptance: one decay for each kind of drafter, and a course within a tolerance.

``python -m research.acceptance CURVES.csv [--draft-length K] [--within TOKENS]`` prints both. The course is a line
through as few knots as a search finds that stays within the tolerance at every training step, which follows the noise
of the run as far as that tolerance asks; `rlsim calibrate curves` fits the trend.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares, linprog

from rlsim.errors import RlsimError
from rlsim.evidence.acceptance import (
    MARGIN,
    NEEDED,
    ROUNDS,
    SLACK,
    DriftFit,
    FloatArray,
    Lengths,
    Points,
    base_acceptance,
    basis_of,
    columns_of,
    emitted,
    moves_of,
    read_curves,
)
from rlsim.evidence.curves import acceptance_length
from rlsim.evidence.tables import TableRow, read_table
from rlsim.schema.acceptance import MAX_LOGIT

FAMILIES = ("eagle3", "eagle", "mtp", "dspark", "suffix", "ngram")
"""Kinds of drafters by the word that names them in a series or its setting."""


def fit_families(
    records: Sequence[TableRow], lengths: Mapping[str, Lengths]
) -> dict[str, tuple[float, Mapping[str, float]]]:
    """Decay of each kind of drafter with two series or more, and the first acceptance of each of its series."""
    members: dict[str, list[str]] = {}
    for name in lengths:
        family = _family(name, records)
        if family is not None:
            members.setdefault(family, []).append(name)
    return {
        family: _fit_family({name: lengths[name] for name in names})
        for family, names in members.items()
        if len(names) > 1
    }


def _family(name: str, records: Sequence[TableRow]) -> str | None:
    """Kind of drafter that a series or its setting names."""
    told = [name, *(row.cells.get("setting", "") for row in records if row.cells.get("series") == name)]
    for text in told:
        plain = text.lower().replace("-", "").replace("_", "").replace(" ", "")
        found = next((family for family in FAMILIES if family in plain), None)
        if found:
            return found
    return None


def _fit_family(series: Mapping[str, Lengths]) -> tuple[float, Mapping[str, float]]:
    def off(parameters: FloatArray) -> list[float]:
        return [
            math.log(acceptance_length(first, parameters[0], k) / length)
            for first, points in zip(parameters[1:].tolist(), series.values(), strict=True)
            for k, length in points
        ]

    size = len(series)
    found = least_squares(off, [0.95] + [0.8] * size, bounds=([0.3] + [0.0] * size, [1.0] * (size + 1)))
    decay, *firsts = found.x.tolist()
    return round(decay, 4), {name: round(first, 4) for name, first in zip(series, firsts, strict=True)}


def fit_within(points: Points, draft_length: int, within_tokens: float) -> DriftFit:
    """A broken line within ``within_tokens`` of every point: knots are set where it is furthest off, then those taken
    away that it does without; of such lines the one nearest to the points. Where points of one step lie further apart
    than that, as near as it gets."""
    steps, lengths = columns_of(points)
    start = float(lengths[steps == steps[0]].mean())
    fit = None
    for _ in range(ROUNDS):
        base = base_acceptance(start, draft_length)
        tolerance = max(within_tokens - MARGIN, 0.0)
        low, middle, high = (moves_of(base, lengths + off) for off in (-tolerance, 0.0, tolerance))
        knots = _knots(steps, low, high)
        fit = emitted(points, draft_length, base, knots, _nearest(steps, knots, low, middle, high))
        start = fit.acceptance_length
    assert fit is not None
    return fit


def _slack(steps: FloatArray, knots: FloatArray, low: FloatArray, high: FloatArray) -> tuple[float, FloatArray]:
    """Least common widening of the tube low..high that a line with these knots stays in, and that line at steps."""
    basis = basis_of(steps, knots)
    wider = -np.ones((len(steps), 1))
    above, below = np.hstack([basis, wider]), np.hstack([-basis, wider])
    found = linprog(
        [0.0] * len(knots) + [1.0], np.vstack([above, below]), np.concatenate([high, -low]),
        bounds=[(-MAX_LOGIT, MAX_LOGIT)] * len(knots) + [(0.0, None)], method="highs",
    )  # fmt: skip
    return float(found.x[-1]), np.asarray(basis @ found.x[:-1])


def _knots(steps: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Few knots of a line that stays in the tube."""
    places = np.unique(steps)
    knots = np.unique(places[[0, -1]])
    slack, line = _slack(steps, knots, low, high)
    while slack > SLACK and knots.size < places.size:
        outside = np.maximum(line - high, low - line)
        outside[np.isin(steps, knots)] = -np.inf
        knots = np.unique(np.append(knots, steps[int(np.argmax(outside))]))
        slack, line = _slack(steps, knots, low, high)
    while knots.size > 2:
        fewer = (knots[knots != knot] for knot in knots[1:-1])
        spared = next((kept for kept in fewer if _slack(steps, kept, low, high)[0] <= max(slack, SLACK)), None)
        if spared is None:
            break
        knots = spared
    return knots


def _nearest(steps: FloatArray, knots: FloatArray, low: FloatArray, middle: FloatArray, high: FloatArray) -> FloatArray:
    """Values at the knots of the line with the least sum of deviations from ``middle`` that stays in the tube."""
    slack = _slack(steps, knots, low, high)[0] + SLACK
    basis, size = basis_of(steps, knots), len(steps)
    own, nothing = -np.eye(size), np.zeros((size, size))
    rows = np.block([[basis, own], [-basis, own], [basis, nothing], [-basis, nothing]])
    limits = np.concatenate([middle, -middle, high + slack, slack - low])
    bounds = [(-MAX_LOGIT, MAX_LOGIT)] * len(knots) + [(0.0, None)] * size
    found = linprog([0.0] * len(knots) + [1.0] * size, rows, limits, bounds=bounds, method="highs")
    return np.asarray(found.x[: len(knots)])


def main() -> int:
    """Fit and print. Exit status 2 for what is no such table."""
    parser = argparse.ArgumentParser(prog="python -m research.acceptance", description="Fit acceptance to curves.")
    parser.add_argument("table", type=Path, metavar="CURVES.csv")
    parser.add_argument("--draft-length", type=int, default=3, help="of runs over training steps")
    parser.add_argument("--within", type=float, default=0.1, help="tolerance in tokens at every step")
    given = parser.parse_args()
    try:
        records = read_table(given.table, NEEDED)
        lengths, drifts = read_curves(given.table, records)
    except RlsimError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for family, (decay, firsts) in fit_families(records, lengths).items():
        print(f"{family}: decay {decay} over {len(firsts)} series")
    for name, points in drifts.items():
        fit = fit_within(points, given.draft_length, given.within)
        print(f"{name}: {fit.as_dict()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
