"""From a measurements.json to what scenarios use: operator tables, metadata, and a hardware profile."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
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
from rlsim.calibration.selfcheck import SelfCheck, check_picture, check_text, self_check
from rlsim.calibration.table_writing import write_table
from rlsim.files.lookup import catalogue
from rlsim.files.writing import staged_folder
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.tables import files
from rlsim.tables.files import LATENCY, METADATA, TableLayout
from rlsim.tables.operators import tables_folder
from rlsim.tables.profile import load_profile

ENGINE = "measured"
SCHEMA = "rlsim.tables/1"
CELLS = "cells.parquet"
_NOTES = (
    "moe holds routing given, permutation, grouped products and weighted sum; weights of gemm cold, activations hot",
    "fp8 gemm has one scale per tensor and leaves out the quantisation of the activations",
    "elementwise kernels are torch's own, norm and residual addition not fused",
)

Row = Mapping[str, Value]
Adapt = Callable[[Case], Row]


@dataclass(frozen=True)
class MeasuredTables:
    """What was written: profile file, folder of the tables, rows by table, the self-check, the device in numbers."""

    name: str
    profile: Path
    tables: Path
    rows: dict[str, int]
    check: SelfCheck
    rates: DeviceRates

    def text(self, style: Style = DEFAULT_STYLE) -> str:
        """Summary for a terminal."""
        counts = ", ".join(f"{name} {count}" for name, count in self.rows.items())
        written = [f"profile {self.profile}", f"tables {self.tables}: {counts}"]
        return "\n".join([*written, self.rates.text(), check_text(self.check, style)])


def make_tables(measured: Measurements, out: Path, name: str, own_tables: bool = False) -> MeasuredTables:
    """Write ``out``/<system>/measured/ (tables, metadata, self-check) and ``out``/<name>.yaml (profile), whole or
    not at all.

    own_tables: whether the profile of a shipped device shall name the tables in ``out`` instead of the imported ones.
    Raises InputError where the measurements are incomplete, or ``out`` cannot be written.
    """
    rates = rates_of(measured)
    tables = tables_of(measured.of())
    system = system_of(name)
    profile = profile_of(name, _tables_reference(out, system), rates, measured.metadata, own_tables)
    with staged_folder(out) as stage:
        folder = stage / system / ENGINE
        folder.mkdir(parents=True)
        for layout, table in tables.items():
            write_table(folder, layout, table)
        _write_cells(folder / CELLS, measured.of())
        check = self_check(measured, folder, profile, rates)
        (folder / "selfcheck.txt").write_text(check_text(check) + "\n", encoding="utf-8")
        if check.points:
            from rlsim.report.figures.style import save_picture

            save_picture(check_picture(check), folder / "selfcheck.png")
        _write_circumstances(folder / METADATA, system, measured, rates, check, tables)
        _write_yaml(stage / f"{name}.yaml", profile.model_dump(mode="json"))
    rows = {layout.name: len(table[LATENCY]) for layout, table in tables.items()}
    return MeasuredTables(name, out / f"{name}.yaml", out / system / ENGINE, rows, check, rates)


def system_of(name: str) -> str:
    """Folder of a device's tables: what a shipped profile of that name says, else the name itself."""
    if name not in catalogue("hardware_profiles"):
        return name
    return load_profile(name).operator_tables or name


def _tables_reference(out: Path, system: str) -> str:
    """Name of the tables where ``out`` is rlsim's own calibration folder, else their folder, so that a profile finds
    them.
    """
    own = tables_folder()
    return system if out.resolve() == own.resolve() else str(out.resolve() / system)


def tables_of(records: Sequence[Measurement]) -> dict[TableLayout, Columns]:
    """Rows by layout, in the columns of the imported tables; of a row measured twice the one of a replayed graph."""
    rows: dict[TableLayout, dict[frozenset[tuple[str, Value]], Mapping[str, Value | float]]] = {}
    for record in sorted(records, key=lambda record: record.case.text("mode") == "graph"):
        for layout, adapt in (target[1:] for target in _TARGETS if target[0] == record.case.op):
            row = {**adapt(record.case), "kernel": record.facts.kernel or "torch"}
            identity = frozenset((name, row[name]) for name in (*layout.keys, *layout.sizes))
            rows.setdefault(layout, {})[identity] = {**row, LATENCY: record.seconds}
    return {layout: _columns(list(found.values())) for layout, found in rows.items()}


def _columns(rows: Sequence[Mapping[str, Value | float]]) -> Columns:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _heads(params: Row) -> Row:
    return {"kv_precision": "bf16", **{name: params[name] for name in ("head_dim", "heads", "kv_heads")}}


def _decode(case: Case) -> Row:
    context = case.number("context") + case.number("queries")
    return {**_heads(case.params), "batch": case.number("batch"), "context_tokens": context}


def _verify(case: Case) -> Row:
    """Its context is that of the first query, so that all numbers of queries share one axis."""
    return {**_decode(case), "context_tokens": case.number("context") + 1, "queries": case.number("queries")}


def _prefill(case: Case) -> Row:
    return {**_heads(case.params), "batch": case.number("batch"), "prompt_tokens": case.number("tokens")}


def _moe(case: Case) -> Row:
    return {"precision": "bf16", "tensor_parallel": 1, "expert_parallel": 1, **case.params}


def _rejection(case: Case) -> Row:
    return {**case.params, "queries": case.number("draft_length") + 1}


def _vocabulary(op: str) -> Adapt:
    return lambda case: {"op": op, **case.params}


def _message(case: Case) -> Row:
    return {"mode": case.text("mode"), "num_gpus": case.number("ranks"), "message_bytes": case.number("bytes")}


def _collective(op: str) -> Adapt:
    return lambda case: {"op": op, "num_gpus": case.number("ranks"), "message_bytes": case.number("bytes")}


def _elementwise(case: Case) -> Row:
    """Operators on heads count their width in values; a rotation with the norm before it is an operator of its own."""
    p = case.params
    if case.op == "rotary":
        width = (case.number("heads") + case.number("kv_heads")) * case.number("head_dim")
        return {"op": "norm_rotary" if p["qk_norm"] else "rotary", "width": width, "rows": p["rows"]}
    width = case.number("kv_heads") * case.number("head_dim") if case.op == "cache_write" else case.number("width")
    return {"op": case.op, "width": width, "rows": p["rows"]}


_TARGETS: tuple[tuple[str, TableLayout, Adapt], ...] = (
    ("gemm", files.GEMM, lambda case: {"precision": case.text("dtype"), **case.params}),
    ("decode_attention", files.DECODE_ATTENTION, _decode),
    ("decode_attention", files.VERIFY_ATTENTION, _verify),
    ("verify_attention", files.VERIFY_ATTENTION, _verify),
    ("prefill_attention", files.PREFILL_ATTENTION, _prefill),
    ("moe", files.MOE, _moe),
    ("all_reduce", files.ALL_REDUCE, _message),
    ("all_gather", files.COLLECTIVES, _collective("all_gather")),
    ("reduce_scatter", files.COLLECTIVES, _collective("reduce_scatter")),
    ("all_to_all", files.COLLECTIVES, _collective("alltoall")),
    ("sampling_softmax", files.SAMPLING, _vocabulary("softmax")),
    ("sampling_draw", files.SAMPLING, _vocabulary("draw")),
    ("rejection", files.REJECTION, _rejection),
    *(
        (op, files.ELEMENTWISE, _elementwise)
        for op in ("rms_norm", "residual_add", "activation", "rotary", "cache_write")
    ),
)
"""Tables that an operator's cases go to. Decode attention stands among verification too, as its case of one query:
what several queries cost is told against the same kernels.
"""


def _write_cells(path: Path, records: Sequence[Measurement]) -> None:
    """Every measured case with its work, spread and facts: what the other tables rest on."""
    samples = [asdict(record.sample) for record in records if record.sample]
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
    check: SelfCheck,
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
        "notes": list(_NOTES),
        "operations": {layout.name: {"rows_kept": len(table[LATENCY])} for layout, table in tables.items()},
        "unsupported": sorted({record.unsupported for record in measured.records if record.unsupported}),
        "host": {name: value for name, value in asdict(rates.host).items() if value is not None},
        "self_check": check.summary(),
        "efficiency": efficiencies_as_yaml(rates.efficiency),
        "training": dict(rates.training),
    }
    _write_yaml(path, content)


def _write_yaml(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(yaml.safe_dump(dict(content), sort_keys=False, width=120, allow_unicode=True), encoding="utf-8")
