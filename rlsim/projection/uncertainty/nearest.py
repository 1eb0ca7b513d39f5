"""The measured runs that differ least from a scenario, and what they differ in.

Runs are ordered by plain counts: each name that differs (a model, a device, a release...) counts one, each doubling of
a size half. The order says where to look and is no measure of error: that is the interval's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rlsim.errors import InputError
from rlsim.files.reading import shown_path
from rlsim.parameters.posterior import evidence_path
from rlsim.projection.uncertainty.evidence import Arrays, read_archive
from rlsim.projection.uncertainty.features import (
    FEATURES,
    RUN_KINDS,
    About,
    Coded,
    RunKind,
    about,
    differences,
    run_of,
)
from rlsim.projection.uncertainty.predictive import between, cached_with_run, prediction_of
from rlsim.projection.uncertainty.sources import mean_shares, shares_by_kind, sources_of
from rlsim.projection.variant import SimulatedVariant
from rlsim.results.projection import Difference, MeasuredRun, NearestRuns, Support, VarianceSource
from rlsim.schema.scenario import Scenario

DOUBLING = 0.5
"""What a doubling of a size counts, another name being 1. Assumption."""


class Runs(Struct, frozen=True, eq=False):
    """Measured runs of a kind with their coordinates. lines: of the file, one a row; ends: of each; places: of the runs
    among them."""

    lines: NDArray[np.uint8]
    ends: NDArray[np.intp]
    places: NDArray[np.int64]
    coded: Coded

    def row(self, run: int) -> tuple[str, About]:
        """Id of a run's row, and what it ran."""
        place = self.places[run]
        first = self.ends[place - 1] + 1 if place else 0
        kind, name, ran = json.loads(self.lines[first : self.ends[place]].tobytes())
        return name, cast(About, run_of(self.coded.kind, kind, ran))


def nearest(scenario: Scenario, kind: RunKind, count: int = 3) -> tuple[MeasuredRun, ...]:
    """The ``count`` measured runs of ``kind`` that differ least; of those that ran the same, the first alone.

    Raises InputError where the shipped evidence is missing.
    """
    runs, asked = _read(*_version())[kind], about(scenario, kind)
    weights = np.array([DOUBLING if feature.sized else 1.0 for feature in FEATURES[kind]], dtype=np.float32)
    apart = differences(kind, runs.coded.values, runs.coded.place(asked))
    out: dict[tuple[Difference, ...], MeasuredRun] = {}
    weighed = apart * weights  # added up by NumPy: BLAS's order of it depends on the machine
    # Stable: equally distant runs stay in the order of the file on every machine.
    for run in np.argsort(weighed.sum(axis=1), kind="stable").tolist():
        # Rows are parsed as they are reached: reading all of them takes longer than finding the nearest.
        if len(out) == count:
            break
        name, measured = runs.row(run)
        ranked = sorted(zip(FEATURES[kind], weighed[run].tolist(), strict=True), key=lambda one: -one[1])
        found = tuple(
            Difference(feature=one.text, asked=one.shown(asked), measured=one.shown(measured))
            for one, amount in ranked
            if amount > 0
        )
        out.setdefault(found, MeasuredRun(id=name, differences=found))
    return tuple(out.values())


def _version() -> tuple[Path, int, int]:
    """The shipped evidence, by the state of its file."""
    path = evidence_path()
    try:
        state = path.stat()
    except OSError as error:
        raise InputError(f"{shown_path(path)}: no such file") from error
    return path, state.st_mtime_ns, state.st_size


@lru_cache(maxsize=2)
def _read(path: Path, modified_ns: int, size: int) -> dict[RunKind, Runs]:
    """Runs by kind, without slopes and groups, which are most of the file."""

    def by_kind(header: Mapping[str, Any], arrays: Arrays) -> dict[RunKind, Runs]:
        lines, out = arrays["rows"].view(np.uint8).ravel(), dict[RunKind, Runs]()
        ends = np.append(np.flatnonzero(lines == ord("\n")), lines.size)
        for kind in RUN_KINDS:
            coded = Coded(kind, arrays[f"{kind}_values"].astype(np.float32), header["vocabulary"][kind])
            out[kind] = Runs(lines, ends, arrays[f"{kind}_places"].astype(np.int64), coded)
        return out

    return read_archive(path, by_kind, lambda name: not name.startswith(("slopes", "groups")))


NEIGHBOURS = 3
"""Measured runs that are named of each kind."""


@cached_with_run
def support_of(run: SimulatedVariant) -> Support:
    """Half-width of the step's interval, its sources, and the measured runs nearest to a simulated scenario."""
    predicted = prediction_of(run)
    low, high = between(predicted.step_factor)
    shares = {**shares_by_kind(mean_shares(predicted)), "step": 1.0}
    found = (NearestRuns(kind=k, share=shares[k], runs=nearest(run.scenario, k, NEIGHBOURS)) for k in RUN_KINDS)
    sources = (VarianceSource(**one.fields) for one in sources_of(run))
    return Support(half_width=math.sqrt(high / low) - 1, nearest=tuple(found), sources=tuple(sources))
