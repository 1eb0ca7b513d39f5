"""Further fits to curves of acceptance: one decay for each kind of drafter, and courses over training steps.

``python -m research.acceptance CURVES.csv [--draft-length K] [--within TOKENS]`` prints both. Over training steps it
gives ``speculation.drift`` twice (:mod:`research.drift`): its trend, and a line within a tolerance at every step.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from scipy.optimize import least_squares

from research.drift import fit_trend, fit_within
from rlsim.errors import InputError, RlsimError
from rlsim.evidence.acceptance import DRIFT, NEEDED, Lengths, acceptance_length, curves_of, read_curves
from rlsim.evidence.tables import TableRow, read_table
from rlsim.units import FloatArray

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
    texts = [name, *(row.cells.get("setting", "") for row in records if row.cells.get("series") == name)]
    for text in texts:
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


def main() -> int:
    """Fit and print. Exit status 2 for what is no such table."""
    parser = argparse.ArgumentParser(prog="python -m research.acceptance", description="Fit acceptance to curves.")
    parser.add_argument("table", type=Path, metavar="CURVES.csv")
    parser.add_argument("--draft-length", type=int, default=3, help="of runs over training steps")
    parser.add_argument("--within", type=float, default=0.1, help="tolerance in tokens at every step")
    given = parser.parse_args()
    try:
        records = read_table(given.table, NEEDED)
        lengths, drifts = read_curves(given.table, records), curves_of(given.table, records, DRIFT)
        for name, points in drifts.items():
            if max(y for _, y in points) > given.draft_length + 1:
                raise InputError(f"series {name[:60]} reaches more than --draft-length {given.draft_length} allows")
    except RlsimError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for family, (decay, firsts) in fit_families(records, lengths).items():
        print(f"{family}: decay {decay} over {len(firsts)} series")
    for name, points in drifts.items():
        print(f"{name}: {fit_trend(points, given.draft_length).as_dict(given.within)}")
        print(f"{name}: {fit_within(points, given.draft_length, given.within).as_dict(given.within)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
