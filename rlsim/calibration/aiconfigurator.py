"""Import of measured operator tables from the aiconfigurator-core package (Apache-2.0).

Reads the package's Parquet files, rejects rows that cannot be right, thins and smooths the rest, and writes compact
tables that :class:`rlsim.tables.operators.OperatorTables` reads, with their metadata.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import yaml

from rlsim.calibration import package_tables as package_files
from rlsim.calibration import table_checks as checks
from rlsim.calibration.columns import Columns, Lines, efficiencies_as_yaml, lines_along, row_count
from rlsim.calibration.package_tables import DISTRIBUTION, Package, RawTable, Sheet, Source, sources_of
from rlsim.calibration.table_writing import efficiencies, write_table
from rlsim.errors import InputError
from rlsim.tables import files
from rlsim.tables.files import METADATA, TableLayout
from rlsim.units import BoolArray

SCHEMA = "rlsim.tables/1"
LICENSE = "Apache-2.0"
COPYRIGHT = "Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved."
UNBOUNDED = (files.QUANTIZE, files.EXPERT_EXCHANGE, files.CONVOLUTION_DECODE, files.CONVOLUTION_PREFILL)
"""Operations without a least time: a difference of two times, an exchange that routing decides, and convolutions whose
few bytes the cache may hold."""
MODEL_SIZES = ("n", "k", "heads", "channels")
"""Sizes that are dimensions of a model: kernels change with them, so latency need not grow smoothly."""
MOVED = 0.01
"""Relative change from which a row counts as smoothed."""


SOURCES = sources_of("aiconfigurator")


@dataclass(frozen=True)
class OperationReport:
    """What became of one operation's rows.

    rows_in_file: rows of the package's file; rows_selected: those rlsim uses (precisions, thinned m, no windows);
    rejected: rows by reason; smoothed: remaining rows that isotonic regression moved by more than 1 %.
    """

    engine_version: str
    rows_in_file: int
    rows_selected: int
    rows_kept: int
    rejected: dict[str, int]
    smoothed: int


DEVICES = {"gb200": "gb200_nvl72", "gb300": "gb300_nvl72"}
"""Devices that are called otherwise here than in the package, by the package's name."""


@dataclass(frozen=True)
class ImportReport:
    """Outcome of an import. missing: operations of which the package has no table for this system and engine."""

    system: str
    backend: str
    version: str
    device: str
    folder: Path
    operations: dict[str, OperationReport]
    missing: tuple[str, ...]

    def text(self) -> str:
        """The report as lines for a terminal."""
        lines = [f"{self.system} ({self.device}), {self.backend} {self.version} -> {self.folder}"]
        for name, report in self.operations.items():
            remaining, selected = report.rows_kept, report.rows_selected
            lines.append(f"  {name}: {remaining} of {selected} rows kept, {report.smoothed} smoothed")
            lines += [f"    rejected {count}: {reason}" for reason, count in report.rejected.items()]
        return "\n".join([*lines, *(f"  {name}: not measured" for name in self.missing)])

    def write(self, path: Path, package: Package, done: str, further: Mapping[str, object] | None = None) -> None:
        """Write to ``path`` what a folder of tables says of their origin. done: with the rows, by rlsim."""
        origin = {"package": package.distribution, "version": package.version}
        content = {
            "schema": SCHEMA,
            "system": self.system,
            "device": self.device,
            "engine": self.backend,
            "engine_version": self.version,
            "source": {**origin, "license": LICENSE, "copyright": COPYRIGHT},
            "collected_until": package_files.collected_until(package, self.system),
            "changes": f"rows {done} by rlsim; see calibration/README.md",
            "operations": {name: asdict(item) for name, item in self.operations.items()},
            "missing": list(self.missing),
            **(further or {}),
        }
        path.write_text(yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True), encoding="utf-8")


def list_systems(source: Path | None = None) -> list[tuple[str, str, str]]:
    """(system, backend, engine version) of everything the package measured GEMM for, sorted.

    source: see :func:`import_tables`. Raises InputError where the package is missing.
    """
    package = package_files.find_package(source)
    found = set()
    for path in sorted((package.systems / "data").glob("*/gemm/*")):
        system, backend = path.parent.parent.name, path.name
        version = package_files.current_version(package, system, backend)
        newest = package_files.find_table(package, (system, "gemm", backend), "gemm", version)
        if newest is not None:
            found.add((system, backend, newest.parent.name))
    return sorted(found)


def import_tables(system: str, backend: str, out_folder: Path, source: Path | None = None) -> ImportReport:
    """Write the tables of ``system`` and ``backend`` to ``out_folder``/<device>/<backend>/ and say what was rejected.

    source: folder of an unpacked package (it holds ``systems/``); None takes the installed one. The engine version is
    the one the package declares current; an operation that lacks it takes the newest older one, as its report says.
    Raises InputError where the package, the system or the engine is missing; nothing is written then.
    """
    package = package_files.find_package(source)
    sheet = package_files.read_sheet(package, system)
    # The version that the package itself declares current, since folders of older and newer ones lie beside it.
    version = package_files.current_version(package, system, backend)
    tables, reports, device = read_all(SOURCES, package, (system, backend, version), sheet)
    if not tables:
        known = ", ".join(f"{name} ({engine})" for name, engine, _ in list_systems(source))
        raise InputError(f"{DISTRIBUTION} {package.version} has no tables of {system} with {backend}; known: {known}")
    folder = out_folder / DEVICES.get(system, system) / backend
    missing = tuple(item.layout.name for item in SOURCES if item.layout.name not in reports)
    report = ImportReport(system, backend, version, device, folder, reports, missing)
    try:
        write_tables(folder, SOURCES, tables)
        done = "selected, checked, thinned, made monotone and rounded"
        shares = {"efficiency": efficiencies_as_yaml(efficiencies(tables, sheet))}
        report.write(folder / METADATA, package, done, shares)
    except OSError as error:
        raise InputError(f"cannot write tables to {folder}: {error}") from error
    return report


def read_all(
    sources: Sequence[Source], package: Package, asked: tuple[str, str, str], sheet: Sheet
) -> tuple[dict[str, Columns], dict[str, OperationReport], str]:
    """Checked tables by operation, what became of each operation's rows, and the device that they were measured on.

    asked: system, backend and version of the engine. Operations without a file have no report.
    """
    tables: dict[str, Columns] = {}
    reports: dict[str, OperationReport] = {}
    device = ""
    for item in sources:
        path = item.path(package, *asked)
        if path is None:
            continue
        raw = package_files.read_raw(path, item, package.distribution)
        device = device or raw.device
        table, report = checked_table(item.layout, raw, sheet)
        if row_count(table) > item.least_share * row_count(raw.columns):
            tables[item.layout.name] = table
        elif row_count(table):
            rejected = {**report.rejected, "too few of the operation's rows are left": row_count(table)}
            report = replace(report, rows_kept=0, rejected=rejected, smoothed=0)
        reports[item.layout.name] = report
    return tables, reports, device


def write_tables(folder: Path, sources: Sequence[Source], tables: Mapping[str, Columns]) -> None:
    """Write the tables of ``sources`` that there are into ``folder``, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for item in sources:
        if item.layout.name in tables:
            write_table(folder, item.layout, tables[item.layout.name])


def checked_table(layout: TableLayout, raw: RawTable, sheet: Sheet) -> tuple[Columns, OperationReport]:
    """Rows that pass the checks of their operation, made monotone, and what became of the others."""
    table, rejected = checks.apply_checks(raw.columns, _checks_of(layout, sheet))
    # Isotonic along sizes of the work alone: between models another kernel may well be faster.
    smooth_over = [size for size in layout.sizes if size not in MODEL_SIZES]
    others = [*layout.keys, *(size for size in layout.sizes if size not in smooth_over)]
    before = table["latency_s"]
    after = checks.monotone(table, smooth_over, others) if row_count(table) else before
    smoothed = int((np.abs(after / before - 1.0) > MOVED).sum())
    report = OperationReport(
        raw.engine_version, raw.rows_in_file, row_count(raw.columns), row_count(table), rejected, smoothed
    )
    return {**table, "latency_s": after}, report


def _checks_of(layout: TableLayout, sheet: Sheet) -> list[tuple[str, checks.Check]]:
    """Named checks of one operation, in the order in which they apply."""
    names = [*layout.keys, *layout.sizes]
    listed: list[tuple[str, checks.Check]] = [
        # Order counts: what compares a row with its neighbours must find sound ones.
        ("latency is not a positive finite number", checks.not_positive),
        ("slower kernel of a row measured twice", lambda table: checks.duplicated(table, names)),
    ]
    impossible = partial(checks.impossible, layout.name, sheet=sheet)
    if layout is files.MOE:
        routing = ("precision", "hidden", "width", "top_k", "experts", "distribution")
        alike = [name for name in names if name != "precision"]
        curve = [name for name in names if name != "distribution"]
        listed += [
            ("faster than the datasheet allows: not routed as labelled", checks.curve_with(impossible, routing)),
            ("kernel slower than bf16 of the same shape", lambda t: checks.slower_than_bf16(t, alike)),
            ("balanced, yet slower than a power law", lambda t: checks.balanced_slower_than_uneven(t, curve)),
        ]
    elif layout not in UNBOUNDED:
        listed.append(("faster than the datasheet allows", impossible))
    if layout is files.GEMM:
        listed.append(("host-bound plateau", lambda table: checks.host_bound(layout.name, table, sheet)))
    # Latency must grow smoothly in these sizes, with the exponent of the work.
    smooth = [(size, at) for size, at in zip(layout.sizes, layout.growth, strict=True) if size not in MODEL_SIZES]
    lines = {
        axis: partial(lines_along, size=axis, others=[name for name in names if name != axis]) for axis, _ in smooth
    }
    for axis, exponent in smooth:
        grows = partial(checks.faster_growth_than_work, growth=exponent)
        listed.append((f"slower than larger {axis}", _along(checks.slower_than_larger, lines[axis])))
        listed.append((f"slower than the work grows with {axis}", _along(grows, lines[axis])))
    if len(smooth) == 2:
        first, second = (_along(checks.off_its_neighbours, lines[axis]) for axis in lines)
        listed.append((f"off its neighbours in {' and '.join(lines)}", lambda t: first(t) & second(t)))
    return listed


def _along(check: Callable[[Lines], BoolArray], lines: Callable[[Columns], Lines]) -> checks.Check:
    return lambda table: check(lines(table))
