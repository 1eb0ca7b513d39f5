"""From a measurements.json to what scenarios use: operator tables, metadata, and a hardware profile."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from bench.cases import Case, Value
from bench.measurements import Measurement, Measurements
from rlsim.calibration.columns import Columns, efficiencies_as_yaml
from rlsim.calibration.device_profile import DeviceRates, profile_of, rates_of
from rlsim.calibration.memory_check import MemoryCheck, memory_check, memory_text
from rlsim.calibration.selfcheck import SelfCheck, check_picture, check_text, self_check
from rlsim.calibration.table_writing import write_table
from rlsim.files.lookup import catalogue
from rlsim.files.writing import staged_folder
from rlsim.files.yaml import lists_beside
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.tables import files
from rlsim.tables.files import LATENCY, METADATA, TableLayout, tables_folder
from rlsim.tables.profile import load_profile

ENGINE = "measured"
SCHEMA = "rlsim.tables/1"
CELLS = "cells.parquet"
_LISTS = lists_beside(__file__, "measured_tables.yaml")
_LAYOUTS = {layout.name: layout for layout in files.LAYOUTS}

Row = Mapping[str, Value]


@dataclass(frozen=True)
class MeasuredTables:
    """What was written: profile file, folder of the tables, rows by table, the self-check of engine steps and of
    training steps, the device in numbers, and how many cases of the list are missing.
    """

    name: str
    profile: Path
    tables: Path
    rows: dict[str, int]
    check: SelfCheck
    rates: DeviceRates
    memory: MemoryCheck
    missing: int = 0

    def text(self, style: Style = DEFAULT_STYLE) -> str:
        """Summary for a terminal."""
        counts = ", ".join(f"{name} {count}" for name, count in self.rows.items())
        written = [f"profile {self.profile}", f"tables {self.tables}: {counts}"]
        if self.missing:
            stopped = f"{self.missing} cases are missing: the run stopped at its budget"
            written.append(f"{stopped}; tables hold what was measured, the same bench command continues")
        texts = [*written, self.rates.text(), check_text(self.check, style), memory_text(self.memory, style)]
        return "\n".join(text for text in texts if text)


def make_tables(measured: Measurements, out: Path, name: str, own_tables: bool = False) -> MeasuredTables:
    """Write ``out``/<system>/measured/ (tables, metadata, self-check) and ``out``/<name>.yaml (profile), whole or
    not at all.

    own_tables: whether the profile of a shipped device shall name the tables in ``out`` instead of the imported ones.
    Raises InputError where the measurements are incomplete, or ``out`` cannot be written.
    """
    rates = rates_of(measured)
    tables = tables_of(measured.of())
    system = system_of(name)
    # In rlsim's own calibration folder a profile names its tables, elsewhere it has to find their folder.
    reference = system if out.resolve() == tables_folder().resolve() else str(out.resolve() / system)
    profile = profile_of(name, reference, rates, measured.metadata, own_tables)
    with staged_folder(out) as stage:
        folder = stage / system / ENGINE
        folder.mkdir(parents=True)
        for layout, table in tables.items():
            write_table(folder, layout, table)
        _write_cells(folder / CELLS, measured.of())
        check = self_check(measured, folder, profile, rates)
        memory = memory_check(measured, folder, profile, rates)
        texts = [text for text in (check_text(check), memory_text(memory)) if text]
        (folder / "selfcheck.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        if check.points:
            # Matplotlib takes long to load, and most runs of the module draw nothing.
            from rlsim.report.figures.style import save_picture

            save_picture(check_picture(check), folder / "selfcheck.png")
        checks = {**check.summary(), **({"memory": memory.summary()} if memory.points else {})}
        _write_circumstances(folder / METADATA, system, measured, rates, checks, tables)
        _write_yaml(stage / f"{name}.yaml", profile.model_dump(mode="json"))
    rows = {layout.name: len(table[LATENCY]) for layout, table in tables.items()}
    written = (name, out / f"{name}.yaml", out / system / ENGINE, rows)
    return MeasuredTables(*written, check, rates, memory, measured.missing)


def system_of(name: str) -> str:
    """Folder of a device's tables: what a shipped profile of that name says, else the name itself."""
    if name not in catalogue("hardware_profiles"):
        return name
    return load_profile(name).operator_tables or name


def tables_of(records: Sequence[Measurement]) -> dict[TableLayout, Columns]:
    """Rows by layout, in the columns of the imported tables; of a row measured twice the one of a replayed graph."""
    rows: dict[TableLayout, dict[frozenset[tuple[str, Value]], Mapping[str, Value | float]]] = {}
    # Graphs last: a replayed graph has no gaps of the host and overwrites the eager row.
    for record in sorted(records, key=lambda record: record.case.text("mode") == "graph"):
        for layout, cells in rows_of(record.case):
            row = {**cells, "kernel": record.facts.kernel or "torch"}
            identity = frozenset((name, row[name]) for name in (*layout.keys, *layout.sizes))
            rows.setdefault(layout, {})[identity] = {**row, LATENCY: record.seconds}
    return {
        layout: {name: np.array([row[name] for row in found.values()]) for name in next(iter(found.values()))}
        for layout, found in rows.items()
    }


def rows_of(case: Case) -> Iterator[tuple[TableLayout, Row]]:
    """The tables that a case goes to, with its keys and sizes in each."""
    for name, stated in _LISTS["targets"].get(case.op, {}).items():
        yield _LAYOUTS[name], _table_row(case, _LAYOUTS[name], stated)


def _table_row(case: Case, layout: TableLayout, stated: Row) -> Row:
    """The columns of a case in ``layout``. stated: those that the case does not hold.

    The context of cached attention is that of the first query, so that all numbers of queries share one axis.
    Elementwise operators on heads count their width in values; a rotation with the norm before it is one of its own.
    """
    cells: dict[str, Value] = {**case.params, **stated}
    if case.op.endswith("_attention") and "context" in cells:
        cells["context_tokens"] = case.number("context") + 1
    if case.op == "rejection":
        # A verification has the drafts and the token that follows the last accepted one.
        cells["queries"] = case.number("draft_length") + 1
    if layout is files.ELEMENTWISE:
        cells["op"] = "norm_rotary" if cells.get("qk_norm") else case.op
        if "head_dim" in cells:
            heads = case.number("kv_heads") + (case.number("heads") if case.op == "rotary" else 0)
            cells["width"] = heads * case.number("head_dim")
    names = (*layout.keys, *layout.sizes)
    return {name: cells[name] if name in cells else cells[_LISTS["aliases"][name]] for name in names}


def _write_cells(path: Path, records: Sequence[Measurement]) -> None:
    """Every measured case with its work, spread and facts: what the other tables rest on."""
    samples = [asdict(record.sample) for record in records if record.sample]
    # Parameters and facts as JSON: every operator has others, and a column for each would be mostly empty.
    columns: dict[str, list[object]] = {
        "op": [record.case.op for record in records],
        "parameters": [json.dumps(dict(record.case.params), sort_keys=True) for record in records],
        "flops": [record.case.flops for record in records],
        "bytes": [record.case.bytes for record in records],
        "facts": [json.dumps(asdict(record.facts), sort_keys=True) for record in records],
        **{name: [sample[name] for sample in samples] for name in samples[0]},
    }
    pq.write_table(pa.table(columns), path, compression="zstd", compression_level=19)


def _write_circumstances(
    path: Path,
    system: str,
    measured: Measurements,
    rates: DeviceRates,
    checks: Mapping[str, object],
    tables: Mapping[TableLayout, Columns],
) -> None:
    metadata = measured.metadata
    content = {
        "schema": SCHEMA,
        "system": system,
        "device": metadata.device,
        "engine": ENGINE,
        "engine_version": f"torch {metadata.torch}",
        "source": {"package": "rlsim", "benchmark_version": metadata.benchmark_version},
        "measured": asdict(metadata),
        "notes": _LISTS["notes"],
        "operations": {layout.name: {"rows_kept": len(table[LATENCY])} for layout, table in tables.items()},
        "missing_cases": measured.missing,
        "unsupported": sorted({record.unsupported for record in measured.records if record.unsupported}),
        "host": dict(rates.host),
        "self_check": dict(checks),
        "efficiency": efficiencies_as_yaml(rates.efficiency),
        "training": dict(rates.training),
    }
    _write_yaml(path, content)


def _write_yaml(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(yaml.safe_dump(dict(content), sort_keys=False, width=120, allow_unicode=True), encoding="utf-8")
