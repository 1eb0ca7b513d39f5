"""The measured runs that lie nearest to a scenario, and whether any lies near it.

A distance is what two measured runs that differ as much miss each other by, a standard deviation in logarithms fitted
to all pairs of measured runs (:mod:`rlsim.projection.uncertainty.variogram`); it grows with every difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlsim.errors import InputError
from rlsim.files.archives import unarchived
from rlsim.files.reading import TABLE_BYTES, read_bytes, shown_path
from rlsim.parameters.posterior import evidence_path
from rlsim.projection.uncertainty.evidence import SCHEMA
from rlsim.projection.uncertainty.features import (
    FEATURES,
    HALVES,
    About,
    Coded,
    Feature,
    Half,
    about,
    differences,
    run_of,
)
from rlsim.projection.uncertainty.features import FloatArray as Coordinates
from rlsim.projection.uncertainty.variogram import squared
from rlsim.results import Difference, Neighbour
from rlsim.schema.scenario import Scenario
from rlsim.units import FloatArray

NEAR = 0.20
"""Distance below which a run is near: one that differs so much misses its neighbour by up to 22 % two times in three.
The bound of grade B (:mod:`rlsim.projection.uncertainty.support`). Assumption."""
KEPT = 65_536


@dataclass(frozen=True, eq=False)
class Runs:
    """Measured runs of a kind with their coordinates, and the weights of differences. lines: of the file, one a row;
    places: of the runs among them."""

    lines: list[bytes]
    places: NDArray[np.int64]
    coded: Coded
    weights: Mapping[str, float]

    def distances(self, told: About) -> FloatArray:
        """Distance of each run to another; shape (runs,)."""
        apart = differences(self.coded.kind, self.coded.values, self.coded.place(told))
        return np.sqrt(squared(self.coded.kind, self.weights, apart))

    def row(self, run: int) -> tuple[str, About]:
        """Id of a run's row, and what it ran."""
        kind, name, told = json.loads(self.lines[self.places[run]])
        return name, run_of(self.coded.kind, kind, told) or {}


def near_evidence(scenario: Scenario) -> bool:
    """Whether measured runs lie near ``scenario``: a whole step, or both an engine's iteration and a training step.

    Near is a distance below ``NEAR``. Raises InputError where the shipped evidence is missing.
    """
    if distance(scenario, "step") <= NEAR:
        return True
    return distance(scenario, "iteration") <= NEAR and distance(scenario, "training") <= NEAR


def distance(scenario: Scenario, kind: Half) -> float:
    """Distance to the nearest measured run of ``kind``; infinite where there is none."""
    return _least(kind, tuple(about(scenario, kind).items()), _version())


@lru_cache(maxsize=KEPT)
def _least(kind: Half, told: tuple[tuple[str, str | float], ...], version: tuple[Path, int, int]) -> float:
    runs = _read(*version)[kind]
    return float(np.min(runs.distances(dict(told)), initial=np.inf))


def nearest(scenario: Scenario, kind: Half, count: int = 3) -> tuple[Neighbour, ...]:
    """The ``count`` measured runs of ``kind`` nearest to ``scenario``; of those that ran the same, the first alone."""
    runs, told = _read(*_version())[kind], about(scenario, kind)
    found = runs.distances(told)
    out: dict[tuple[Difference, ...], Neighbour] = {}
    for run in np.argsort(found, kind="stable").tolist():
        if len(out) == count:
            break
        name, measured = runs.row(run)
        apart = differences(kind, runs.coded.values[run], runs.coded.place(told))
        told_apart = tuple(sorted(_told(runs, apart, told, measured), key=lambda item: -item.squared))
        out.setdefault(told_apart, Neighbour(name, float(found[run]), told_apart))
    return tuple(out.values())


def _told(runs: Runs, apart: Coordinates, asked: About, measured: About) -> list[Difference]:
    """What a run differs in, in words."""
    return [
        Difference(one.text, shown(one, asked), shown(one, measured), runs.weights.get(one.name, 0.0) * value)
        for one, value in zip(FEATURES[runs.coded.kind], apart.tolist(), strict=True)
        if value > 0
    ]


def shown(feature: Feature, told: About) -> str:
    """What a run has of a feature, as readers see it."""
    value = told.get(feature.name, "")
    if feature.sized:
        return f"{float(value or 0.0):,.4g}"
    return str(value) or "not told"


def _version() -> tuple[Path, int, int]:
    """The shipped evidence, by the state of its file."""
    path = evidence_path()
    try:
        state = path.stat()
    except OSError as error:
        raise InputError(f"{shown_path(path)}: no such file") from error
    return path, state.st_mtime_ns, state.st_size


@lru_cache(maxsize=2)
def _read(path: Path, modified_ns: int, size: int) -> dict[Half, Runs]:
    """Runs by kind, without slopes and groups, which are most of the file."""
    content = read_bytes(path, TABLE_BYTES)
    try:
        arrays = unarchived(content, lambda name: not name.startswith(("slopes", "groups")))
        header, lines = json.loads(arrays["header"].tobytes()), arrays["rows"].tobytes().splitlines()
        if header["schema"] != SCHEMA:
            raise ValueError(f"its schema is {str(header['schema'])[:40]!r}")
        return {
            kind: Runs(
                lines,
                arrays[f"{kind}_places"].astype(np.int64),
                Coded(kind, arrays[f"{kind}_values"].astype(np.float32), header["vocabulary"][kind]),
                header["distances"][kind],
            )
            for kind in HALVES
        }
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{shown_path(path)}: is no evidence of rlsim ({str(error)[:80]})") from None
