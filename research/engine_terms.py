"""What engine iterations take beyond tables and links: host time by engine, small kernels by layer, fitted to tables.

Run by hand: ``python -m research.engine_terms decode_iterations.csv [more.csv...]``. It prices every row without these
terms, in which the rest is linear, and finds them all at once by least squares of the logarithm with a soft absolute
loss and no group, a setup that was published many times weighing as one. Printed: the terms
(``calibration/engines/serving.yaml``), errors as fitted and with every model, device and release left out, and of each
engine its rows and the spread of its errors where its rows on a device were left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from scipy.optimize import least_squares

from rlsim.evidence import Kind, engines
from rlsim.evidence.compare import validated
from rlsim.evidence.joint import NOT_A_LOAD
from rlsim.evidence.structure import tokens_of
from rlsim.evidence.tables import Table
from rlsim.parameters.sets import Fitted, shipped
from rlsim.schema.base import changed
from rlsim.schema.engine_parameters import EngineFamily, LayerKernels
from rlsim.schema.scenario import Scenario
from rlsim.units import FloatArray

HOST = ("iteration_s", "sequence_s", "drafting_iteration_s", "drafting_sequence_s")
SCALE_S = {"sequence_s": 3e-5, "drafting_sequence_s": 3e-5, "iteration_s": 1e-3, "drafting_iteration_s": 1e-3}
LAYER_SCALE_S = 2e-5
"""Standard deviations of the terms before anything was measured, around none."""
NOISE = 0.08
"""Error of a measured time at which the loss turns from its square to its size."""
LEFT_OUT = ("model", "device", "release", "engine on device")


@dataclass(frozen=True)
class Row:
    """A measured iteration in seconds, what it takes without the terms, and the seconds that one of each term adds.

    about: what it can be left out by. setup: rows of one engine, model, device and layout share their weight.
    """

    measured_s: float
    base_s: float
    slopes: Mapping[str, float]
    about: Mapping[str, str]
    setup: str


def rows_of(path: Path) -> Iterator[Row]:
    """Rows of a table of iterations that can be predicted."""
    table = Table.read(path, Kind.ITERATIONS)
    for row, record in zip(validated(Kind.ITERATIONS, table, _without_terms(shipped())).rows, table.rows, strict=True):
        if row.predicted is None or row.measured is None or row.measured < NOT_A_LOAD * row.predicted:
            continue
        load = engines.load_of(record.cells)
        setup = engines.engine_setup(record.cells, load)
        tokens, engine = tokens_of(row), setup.engine
        about = {"model": setup.model.name, "device": setup.hardware.name, "release": f"{engine.name} {engine.version}"}
        about |= {"engine": engine.name, "engine on device": f"{engine.name} on {setup.hardware.name}"}
        layout = f"{engine.tensor_parallel}, {engine.attention_data_parallel}, {setup.speculation.draft_length}"
        own = f"{about}, {engine.weight_precision}, {layout}"
        slopes = {name: seconds / tokens for name, seconds in _slopes(setup, load).items()}
        yield Row(1e-3 * row.measured, 1e-3 * row.predicted, slopes, about, own)


def _without_terms(sets: Fitted) -> Fitted:
    def bare(family: EngineFamily) -> EngineFamily:
        return changed(family, **dict.fromkeys(HOST, 0.0))

    families = tuple(bare(family) for family in sets.engines.families)
    return replace(sets, engines=changed(sets.engines, layers=LayerKernels(), families=families))


def _slopes(setup: Scenario, load: engines.Load) -> dict[str, float]:
    """Seconds that an iteration takes longer for each second of a term."""
    engine, sequences = setup.engine, np.ceil(load.batch / setup.engine.attention_data_parallel)
    host = {"iteration_s": 1.0, "sequence_s": float(sequences)}
    if setup.speculation.active:
        host |= {f"drafting_{name}": value for name, value in host.items()}
    out = {f"{engine.name}/{name}": value for name, value in host.items()}
    for name in LayerKernels.model_fields:
        seconds = LayerKernels.model_validate({name: 1.0}).seconds(setup.model, engine.weight_precision)
        out |= {f"layers/{name}": seconds} if seconds else {}
    return out


def fit(rows: list[Row], names: list[str]) -> FloatArray:
    """Seconds of the terms ``names``, none below 0."""
    scales = np.array([SCALE_S.get(name.split("/")[1], LAYER_SCALE_S) for name in names])
    design = np.array([[row.slopes.get(name, 0.0) for name in names] for row in rows]) * scales
    base, measured = (np.array([getattr(row, name) for row in rows]) for name in ("base_s", "measured_s"))
    setups = [row.setup for row in rows]
    counts = {setup: setups.count(setup) for setup in set(setups)}
    weights = np.array([counts[setup] ** -0.5 for setup in setups])

    def misses(terms: FloatArray) -> FloatArray:
        return np.concatenate((weights * np.log((base + design @ terms) / measured) / NOISE, terms))

    found = least_squares(misses, np.full(len(names), 0.3), bounds=(0.0, np.inf), loss="soft_l1")
    return np.asarray(found.x * scales)


def errors(rows: list[Row], names: list[str], terms: FloatArray) -> FloatArray:
    """Predicted over measured time, less 1."""
    extra = np.array([sum(row.slopes.get(name, 0.0) * s for name, s in zip(names, terms, strict=True)) for row in rows])
    times = np.array([(row.base_s, row.measured_s) for row in rows])
    return np.asarray((times[:, 0] + extra) / times[:, 1] - 1)


def left_out(rows: list[Row], names: list[str], by: str) -> FloatArray:
    """Errors of ``rows``, each by a fit to those that are not of its model, device, release or engine on a device."""
    out, values = np.empty(len(rows)), np.array([row.about[by] for row in rows])
    for value in np.unique(values):
        own = np.flatnonzero(values == value)
        terms = fit([row for row in rows if row.about[by] != value], names)
        out[own] = errors([rows[place] for place in own], names, terms)
    return out


def _said(found: FloatArray) -> str:
    return f"median {np.median(np.abs(found)):.1%}, p90 {np.quantile(np.abs(found), 0.9):.1%}"


def _kind(row: Row) -> tuple[str, bool]:
    """Its engine, and whether it speculates."""
    return row.about["engine"], any("drafting" in name for name in row.slopes)


def main(paths: list[str]) -> None:
    """Print the terms of tables, and what they are worth."""
    rows = [row for path in paths for row in rows_of(Path(path))]
    names = sorted({name for row in rows for name in row.slopes})
    terms = fit(rows, names)
    for name, seconds in zip(names, terms, strict=True):
        print(f"{name}: {seconds:.3g}")
    print(f"{len(rows)} rows: {_said(errors(rows, names, terms))}")
    for by in LEFT_OUT:
        missed = left_out(rows, names, by)
        print(f"{by} left out: {_said(missed)}")
    engine, drafting = (np.array(column) for column in zip(*map(_kind, rows), strict=True))
    for name in np.unique(engine):
        plain, error = np.sum((engine == name) & ~drafting), np.std(np.log1p(missed[engine == name]))
        print(
            f"{name}: {plain} rows without speculation, {np.sum((engine == name) & drafting)} with, error {error:.3g}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
