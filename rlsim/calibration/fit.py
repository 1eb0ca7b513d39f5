"""From a measurements.json to what scenarios use: operator tables, circumstances, and a hardware profile."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from rlsim.calibration.columns import Columns
from rlsim.calibration.fit_profile import Measured, profile_of, summarise_device
from rlsim.calibration.selfcheck import SelfCheck, check_records, check_text, read_measurements
from rlsim.calibration.selfcheck_picture import draw_check
from rlsim.calibration.table_writing import write_table
from rlsim.datafiles import data_folder
from rlsim.hardware import table_files as files
from rlsim.hardware.lookup import catalogue
from rlsim.hardware.profile import load_profile
from rlsim.hardware.table_files import CIRCUMSTANCES, LATENCY, TableLayout
from rlsim.hardware.tables import CALIBRATION
from rlsim.outputs import staged_folder

ENGINE = "measured"
SCHEMA = "rlsim.tables/1"
CELLS = "cells.parquet"
_COLLECTIVE_NAMES = {"all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "all_to_all": "alltoall"}
_KERNELS = {"gemm": "torch.nn.functional.linear", "moe": "torch._grouped_mm"}

Row = dict[str, Any]
Adapt = Callable[[Mapping[str, Any]], Row]


@dataclass(frozen=True)
class Fit:
    """What a fit wrote: profile file, folder of the tables, rows by table, the self-check and the device in numbers."""

    name: str
    profile: Path
    tables: Path
    rows: dict[str, int]
    check: SelfCheck
    measured: Measured

    def text(self) -> str:
        """Summary for a terminal."""
        counts = ", ".join(f"{name} {count}" for name, count in self.rows.items())
        lines = [
            f"profile {self.profile}",
            f"tables {self.tables}: {counts}",
            self.measured.text(),
            check_text(self.check),
        ]
        return "\n".join(lines)


def fit_measurements(measurements: Path, out: Path, name: str, own_tables: bool = False) -> Fit:
    """Write ``out``/<system>/measured/ (tables, circumstances, self-check) and ``out``/<name>.yaml (profile), whole or
    not at all.

    own_tables: whether the profile of a shipped device shall name the tables in ``out`` instead of the imported ones.
    Raises InputError where the measurements are missing or incomplete, or ``out`` cannot be written.
    """
    whole = read_measurements(measurements)
    records, circumstances = whole["cells"], whole["circumstances"]
    check = check_records(records, circumstances)
    measured = summarise_device(records, circumstances)
    tables = tables_of(records)
    system = system_of(name)
    target = out / system / ENGINE
    with staged_folder(out) as stage:
        folder = stage / system / ENGINE
        folder.mkdir(parents=True)
        for layout, table in tables.items():
            write_table(folder, layout, table)
        _write_cells(folder / CELLS, records)
        _write_check(folder, check)
        _write_yaml(folder / CIRCUMSTANCES, _circumstances(system, records, circumstances, measured, check, tables))
        _write_yaml(
            stage / f"{name}.yaml",
            profile_of(name, _tables_reference(out, system), measured, circumstances, own_tables),
        )
    rows = {layout.name: len(table[LATENCY]) for layout, table in tables.items()}
    return Fit(name, out / f"{name}.yaml", target, rows, check, measured)


def system_of(name: str) -> str:
    """Folder of a device's tables: what a shipped profile of that name says, else the name itself."""
    if name not in catalogue("hardware_profiles"):
        return name
    return load_profile(name).operator_tables or name


def _tables_reference(out: Path, system: str) -> str:
    """Name of the tables where ``out`` is rlsim's own calibration folder, else their folder, so that a profile finds
    them.
    """
    own = data_folder(CALIBRATION)
    return system if out.resolve() == own.resolve() else str(out.resolve() / system)


def tables_of(records: Sequence[Mapping[str, Any]]) -> dict[TableLayout, Columns]:
    """Rows by layout, in the columns of the imported tables."""
    rows: dict[TableLayout, list[Row]] = {}
    for record in records:
        if "sample" not in record:
            continue
        kernel = record.get("facts", {}).get("kernel") or _KERNELS.get(record["op"], "torch")
        for layout, adapt in (target[1:] for target in _TARGETS if target[0] == record["op"]):
            row = {**adapt(record["params"]), "kernel": kernel, LATENCY: record["sample"]["seconds_median"]}
            rows.setdefault(layout, []).append(row)
    return {layout: _columns(found) for layout, found in rows.items()}


def _columns(rows: Sequence[Row]) -> Columns:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _heads(params: Mapping[str, Any]) -> Row:
    return {
        "head_dim": params["head_dim"],
        "kv_precision": "bf16",
        "heads": params["heads"],
        "kv_heads": params["kv_heads"],
    }


def _attention(params: Mapping[str, Any]) -> Row:
    return {**_heads(params), "batch": params["batch"], "context_tokens": params["context"] + params["queries"]}


def _moe(params: Mapping[str, Any]) -> Row:
    shape = {name: params[name] for name in ("hidden", "width", "top_k", "experts", "distribution", "tokens")}
    return {"precision": "bf16", "tensor_parallel": 1, "expert_parallel": 1, **shape}


def _collective(op: str) -> Adapt:
    return lambda p: {"op": _COLLECTIVE_NAMES[op], "num_gpus": p["ranks"], "message_bytes": p["bytes"]}


def _verify(params: Mapping[str, Any]) -> Row:
    """Its context is that of the first query, so that all numbers of queries share one axis."""
    return {**_attention({**params, "queries": 1}), "queries": params["queries"]}


def _rejection(params: Mapping[str, Any]) -> Row:
    kept = {name: params[name] for name in ("vocabulary", "draft_vocabulary", "batch")}
    return {**kept, "queries": params["draft_length"] + 1}


_TARGETS: tuple[tuple[str, TableLayout, Adapt], ...] = (
    ("gemm", files.GEMM, lambda p: {"precision": p["dtype"], "n": p["n"], "k": p["k"], "m": p["m"]}),
    ("decode_attention", files.DECODE_ATTENTION, _attention),
    ("decode_attention", files.VERIFY_ATTENTION, _verify),
    ("verify_attention", files.VERIFY_ATTENTION, _verify),
    (
        "prefill_attention",
        files.PREFILL_ATTENTION,
        lambda p: {**_heads(p), "batch": p["batch"], "prompt_tokens": p["tokens"]},
    ),
    ("moe", files.MOE, _moe),
    ("all_reduce", files.ALL_REDUCE, lambda p: {"mode": "eager", "num_gpus": p["ranks"], "message_bytes": p["bytes"]}),
    *((op, files.COLLECTIVES, _collective(op)) for op in _COLLECTIVE_NAMES),
    ("sampling_softmax", files.SAMPLING, lambda p: {"op": "softmax", **p}),
    ("sampling_draw", files.SAMPLING, lambda p: {"op": "draw", **p}),
    ("rejection", files.REJECTION, _rejection),
)
"""Tables that an operator's cells go to. Decode attention stands among verification too, as its case of one query:
what several queries cost is told against the same kernels.
"""


def _write_cells(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Every measured cell with its work, spread and facts: what the other tables rest on."""
    measured = [record for record in records if "sample" in record]
    columns: dict[str, list[Any]] = {
        "op": [record["op"] for record in measured],
        "parameters": [json.dumps(record["params"], sort_keys=True) for record in measured],
        "flops": [record["flops"] for record in measured],
        "bytes": [record["bytes"] for record in measured],
        "facts": [json.dumps(record.get("facts", {}), sort_keys=True) for record in measured],
    }
    for name in ("seconds_median", "seconds_low", "seconds_high", "repeats", "spread", "throttled"):
        columns[name] = [record["sample"][name] for record in measured]
    pq.write_table(pa.table(columns), path, compression="zstd", compression_level=19)


def _write_check(folder: Path, check: SelfCheck) -> None:
    (folder / "selfcheck.txt").write_text(check_text(check) + "\n", encoding="utf-8")
    if check.points:
        draw_check(check, folder / "selfcheck.png")


def _circumstances(
    system: str,
    records: Sequence[Mapping[str, Any]],
    circumstances: Mapping[str, Any],
    measured: Measured,
    check: SelfCheck,
    tables: Mapping[TableLayout, Columns],
) -> dict[str, Any]:
    unsupported = sorted({str(record["unsupported"]) for record in records if "unsupported" in record})
    return {
        "schema": SCHEMA,
        "system": system,
        "device": circumstances["device"],
        "engine": ENGINE,
        "engine_version": f"torch {circumstances['torch']}",
        "source": {"package": "rlsim", "benchmark_version": circumstances["benchmark_version"]},
        "measured": dict(circumstances),
        "notes": [
            "moe includes the router's product, sorting and combination; weights of gemm cold, activations hot",
            "fp8 gemm has one scale per tensor and leaves out the quantisation of the activations",
            "all_reduce and collectives were launched eagerly",
        ],
        "operations": {layout.name: {"rows_kept": len(table[LATENCY])} for layout, table in tables.items()},
        "unsupported": unsupported,
        "host": measured.host,
        "self_check": {
            "composites": len(check.points),
            "median_abs_error": round(check.median_abs_error, 4) if check.points else None,
            "p90_abs_error": round(check.p90_abs_error, 4) if check.points else None,
        },
        "efficiency": measured.efficiency,
    }


def _write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(dict(content), sort_keys=False, width=120, allow_unicode=True), encoding="utf-8")
