"""What ``rlsim calibrate cases``, ``device`` and ``measurements`` call."""

import re
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from pandas import MultiIndex

import bench.__main__ as program
from bench import BenchError
from bench.cases import Case, write_cases
from bench.measurements import Measurements, read_measurements
from rlsim.calibration.cases import case_list
from rlsim.calibration.columns import Columns, row_count, take
from rlsim.calibration.device_profile import rates_of
from rlsim.calibration.measured_tables import make_tables, rows_of, system_of
from rlsim.calibration.selfcheck import self_check
from rlsim.calibration.table_writing import write_table
from rlsim.errors import InputError, shortened
from rlsim.files.lookup import catalogue
from rlsim.files.writing import staged_folder
from rlsim.files.yaml import lists_beside
from rlsim.report.format import signed_percent
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import table
from rlsim.tables.files import KERNEL, LAYOUTS, METADATA, TableLayout, available, read_columns, read_metadata
from rlsim.tables.interpolation import TableTime
from rlsim.tables.operators import OperatorTables
from rlsim.tables.profile import load_profile
from rlsim.units import BoolArray

OWN = "rlsim: "
"""Prefix of the kernel column of a row that the user measured."""


@dataclass(frozen=True)
class Merged:
    """Rows of one table: imported ones left, replaced and added by measured ones, and measured ones left out.

    left_out: sizes that are no node of the imported grid; there they would turn their neighbours into guesses.
    """

    imported: int
    replaced: int
    added: int
    left_out: int


def merge_tables(measured: Path, imported: Path, out: Path) -> dict[str, Merged]:
    """Write the tables of folder ``imported`` with those of folder ``measured`` over them to folder ``out``.

    Returns what became of each table's rows. Raises InputError where a folder holds no tables or ``out`` cannot be
    written.
    """
    stated, about = read_metadata(imported), read_metadata(measured)
    merged: dict[str, Merged] = {}
    # Staged: a folder of tables that a reader finds is complete.
    with staged_folder(out) as stage:
        for layout in LAYOUTS:
            table, report = _merge(layout, read_columns(measured, layout), read_columns(imported, layout))
            if row_count(table):
                write_table(stage, layout, table)
                merged[layout.name] = report
        stated["merged"] = {
            "measured": about.get("measured", {}),
            "rows": {name: vars(report) for name, report in merged.items()},
        }
        # Host times and self-check are the user's machine's, whatever measured the rest.
        stated.update({name: about[name] for name in ("host", "self_check") if name in about})
        text = yaml.safe_dump(stated, sort_keys=False, width=120, allow_unicode=True)
        (stage / METADATA).write_text(text, encoding="utf-8")
    return merged


def merged_text(merged: dict[str, Merged], out: Path) -> str:
    """Text with counts of imported, replaced, added and left-out rows by table."""
    lines = [f"merged tables {out}"]
    for name, rows in merged.items():
        changes = f"{rows.replaced} replaced, {rows.added} added, {rows.left_out} left out (not on the imported grid)"
        lines.append(f"  {name}: {rows.imported} imported rows kept, {changes}")
    return "\n".join(lines)


def _merge(layout: TableLayout, measured: Columns, imported: Columns) -> tuple[Columns, Merged]:
    if not row_count(measured):
        return imported, Merged(row_count(imported), 0, 0, 0)
    measured = {**measured, KERNEL: np.array([f"{OWN}{kernel}" for kernel in measured[KERNEL]])}
    if not row_count(imported):
        return measured, Merged(0, 0, row_count(measured), 0)
    on_grid = take(measured, _on_grid(layout, measured, imported))
    # Measured rows win: they are of the very device.
    overridden = _among(imported, on_grid, (*layout.keys, *layout.sizes))
    rest = take(imported, ~overridden)
    table = {name: np.concatenate([rest[name], on_grid[name]]) for name in imported}
    replaced = int(overridden.sum())
    counts = Merged(row_count(rest), replaced, row_count(on_grid) - replaced, row_count(measured) - row_count(on_grid))
    return table, counts


def _among(one: Columns, other: Columns, names: Sequence[str]) -> BoolArray:
    """Rows of one table whose columns ``names`` are those of a row of another."""
    rows, known = (MultiIndex.from_arrays([table[name] for name in names]) for table in (one, other))
    return np.asarray(rows.isin(known), dtype=np.bool_)


def _on_grid(layout: TableLayout, measured: Columns, imported: Columns) -> BoolArray:
    """Rows whose key is new, or whose every size is a node of the imported grid of that key."""
    nodes = [_among(measured, imported, (*layout.keys, size)) for size in layout.sizes]
    return np.asarray(np.all(nodes, axis=0) | ~_among(measured, imported, layout.keys))


REFERENCE_ENGINE = "vllm"
COMPARED = ("gemm", "decode_attention", "prefill_attention", "moe", "all_reduce")
"""Operators that are set beside the imported tables."""


@dataclass(frozen=True)
class Ratio:
    """Measured over imported seconds of one operator: how many cases, and quantiles of the ratio."""

    op: str
    cases: int
    p10: float
    median: float
    p90: float


def compare(measured: Measurements, tables: OperatorTables) -> list[Ratio]:
    """Ratios for the operators that both have, over cases inside the imported range."""
    ratios: dict[str, list[float]] = {}
    for record in measured.of():
        found = _imported(record.case, tables)
        # Beyond the imported range the table extrapolates: the ratio would be that of a guess.
        if found is not None and bool(np.all(found.measured)):
            label = f"{record.case.op} {record.case.text('dtype') or record.case.text('distribution') or 'bf16'}"
            ratios.setdefault(label, []).append(record.seconds / float(found.seconds))
    return [Ratio(op, len(r), *(float(q) for q in np.percentile(r, [10, 50, 90]))) for op, r in ratios.items()]


def _imported(case: Case, tables: OperatorTables) -> TableTime | None:
    """Seconds of a case from the imported tables, in the first table that it goes to."""
    if case.op not in COMPARED:
        return None
    layout, row = next(rows_of(case))
    found = tables.at(layout, tuple(row[name] for name in layout.keys), *(row[name] for name in layout.sizes))
    if found is None and case.op == "all_reduce":
        return tables.collective_s(case.op, case.number("ranks"), case.number("bytes"))
    return found


def comparison_text(measured: Measurements, name: str, style: Style = DEFAULT_STYLE) -> str:
    """Table of the ratios for device ``name``; empty where no tables of it were imported."""
    if name not in catalogue("hardware_profiles"):
        return ""
    system = load_profile(name).operator_tables
    if system is None or (system, REFERENCE_ENGINE) not in available():
        return ""
    ratios = compare(measured, OperatorTables.load(system, REFERENCE_ENGINE))
    rows = [(r.op, str(r.cases), f"{r.p10:.2f}", f"{r.median:.2f}", f"{r.p90:.2f}") for r in ratios]
    title = f"measured over imported ({system}, {REFERENCE_ENGINE}) seconds"
    lines = [title, *table(("operator", "cases", "p10", "median", "p90"), rows, style)]
    # Kernels of an engine are fused, those of the reference engine are torch's: the difference is what fusing saves.
    folder = OperatorTables.load(system, REFERENCE_ENGINE).folder
    check = self_check(measured, folder, load_profile(name), rates_of(measured)).as_engines_run
    if check.points:
        signed = signed_percent(statistics.median(point.error for point in check.points), 1)
        lines.append(f"engine steps predicted from the imported tables: {signed} in the median")
    return "\n".join(lines)


MEASUREMENTS = "measurements.json"


class CalibrationResult(NamedTuple):
    """Outcome of a calibration: ``profile`` can be named in a scenario's hardware key; ``text`` is for people."""

    profile: Path
    text: str


@contextmanager
def _as_input_errors() -> Iterator[None]:
    """Errors of the benchmark as InputError."""
    try:
        yield
    except BenchError as error:
        raise InputError(str(error)) from error


def write_case_list(device_type: str, quick: bool, path: Path) -> str:
    """Write what a quick or full run on ``cuda`` or ``cpu`` measures to ``path``; says how many cases."""
    if device_type not in ("cuda", "cpu"):
        raise InputError(f"cases are made for --device cuda or cpu, not '{device_type[:60]}'")
    wanted = case_list(device_type, quick)
    with _as_input_errors():
        write_cases(path, wanted)
    chosen = "" if device_type == "cuda" else f" --device {device_type}"
    command = f"python -m bench run {path.name} --out DIR{chosen}"
    return f"{len(wanted.cases)} cases: {path}; measure them with the folder bench/ beside it: {command}"


def calibrate_device(
    device: str,
    out: Path,
    quick: bool,
    resume: bool = True,
    name: str | None = None,
    style: Style = DEFAULT_STYLE,
    budget_s: float | None = None,
) -> CalibrationResult:
    """Measure ``device`` (cpu, cuda, cuda:N) into ``out`` and make tables of it there, in at most ``budget_s`` seconds.

    An interrupted call is continued by the same call unless ``resume`` is False. Raises InputError for everything that
    a user can mend (no torch, no GPU, folder not writable).
    """
    _checked(name)
    with _as_input_errors():
        cases = case_list(device.partition(":")[0], quick)
        summary = program.measure(cases, device, out, resume, None, budget_s)
    made = calibrate_measurements(out, out, name, style=style)
    return made._replace(text=f"{summary}\n\n{made.text}")


def calibrate_measurements(
    measurements: Path, out: Path, name: str | None = None, merge_over: str | None = None, style: Style = DEFAULT_STYLE
) -> CalibrationResult:
    """Make tables of what ``python -m bench`` measured: ``measurements`` is its folder, or the file in it.

    name: of the profile; None takes a shipped one's where the device is known, else one made from the device's name.
    merge_over: engine (vllm, sglang, trtllm) over whose imported tables of the device the measured rows are laid; the
    merged tables go to ``out``/<system>/<engine>, and the profile names them.
    """
    with _as_input_errors():
        measured = read_measurements(measurements / MEASUREMENTS if measurements.is_dir() else measurements)
    chosen = _checked(name) or profile_name(measured.metadata.device, measured.metadata.device_type)
    imported = None if merge_over is None else OperatorTables.load(system_of(chosen), merge_over).folder
    made = make_tables(measured, out, chosen, own_tables=merge_over is not None)
    texts = [made.text(style), comparison_text(measured, chosen, style)]
    if merge_over is not None and imported is not None:
        merged_to = out / system_of(chosen) / merge_over
        texts.append(merged_text(merge_tables(made.tables, imported, merged_to), merged_to))
    return CalibrationResult(made.profile, "\n\n".join(text for text in texts if text))


def _checked(name: str | None) -> str | None:
    """A profile's name, which becomes that of a file and of a folder. Raises InputError."""
    if name and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise InputError(f"--name: must be letters, digits, '_', '-' and '.', got '{shortened(name)}'")
    return name


def profile_name(device: str, device_type: str) -> str:
    """Profile name of a device as torch reports it: ``cpu_local`` for any CPU."""
    if device_type == "cpu":
        return "cpu_local"
    for pattern, known in lists_beside(__file__, "known_devices.yaml").items():
        if re.search(pattern, device):
            return str(known)
    # _local keeps it apart from the shipped profiles.
    words = re.sub(r"[^a-z0-9]+", "_", device.lower().removeprefix("nvidia")).strip("_")
    return f"{words}_local"
