"""Import of the operators that aiconfigurator-core lacks, from its successor aisimulate (Apache-2.0).

What a device's tables already hold stays as it is: everything fitted rests on it. Only operators of recurrent layers
and of sparse attention are added beside them, with a record of their own.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import yaml

from rlsim.calibration import aisimulate_tables as raw_files
from rlsim.calibration.aiconfigurator import (
    DEVICES,
    ImportReport,
    Source,
    read_all,
    write_tables,
)
from rlsim.calibration.aisimulate_tables import DISTRIBUTION, open_package
from rlsim.calibration.package_tables import Package, collected_until, current_version, find_table, read_sheet
from rlsim.errors import InputError
from rlsim.files.reading import shown_path
from rlsim.tables import files
from rlsim.tables.files import METADATA, read_metadata

RECORD = f"{DISTRIBUTION}.yaml"
"""Record of the added operators, beside the metadata.yaml of those that were there before."""
BACKENDS = ("vllm", "sglang", "trtllm")


_source = partial(Source, least_share=0.0)
SOURCES = (
    _source(files.DELTA_RULE_DECODE, "linear_attention", ("gdn",), raw_files.adapt_delta_rule_decode),
    _source(files.DELTA_RULE_PREFILL, "linear_attention", ("gdn",), raw_files.adapt_delta_rule_prefill),
    _source(files.CONVOLUTION_DECODE, "linear_attention", ("mamba2", "gdn"), raw_files.adapt_convolution_decode),
    _source(files.CONVOLUTION_PREFILL, "linear_attention", ("mamba2", "gdn"), raw_files.adapt_convolution_prefill),
    _source(files.SPARSE_DECODE, "sparse_attention", ("dsa_generation_module",), raw_files.adapt_sparse_decode),
    _source(files.SPARSE_PREFILL, "sparse_attention", ("dsa_context_module",), raw_files.adapt_sparse_prefill),
)


def list_systems(source: Path) -> list[tuple[str, str, str]]:
    """(system, backend, engine version) of everything that can be added, sorted."""
    found = set()
    with open_package(source) as package:
        for path in sorted((package.systems / "data").glob("*/*/*")):
            system, family, backend = path.parts[-3:]
            if family not in raw_files.FAMILIES or backend not in BACKENDS:
                continue
            version = _current(package, system, backend)
            here = [item for item in SOURCES if item.family == family]
            tables = [find_table(package, system, family, backend, name, version) for i in here for name in i.names]
            found |= {(system, backend, table.parent.name) for table in tables if table is not None}
    return sorted(found)


def import_tables(
    system: str, backend: str, out_folder: Path, source: Path, beside: Path | None = None
) -> ImportReport:
    """Write the added tables of ``system`` and ``backend`` to ``out_folder``/<device>/<backend>/.

    source: wheel or folder of the package. beside: folder of tables that these will lie beside (default out_folder);
    where it has none of this device and engine, the record is written as their metadata.yaml. Raises InputError where
    the package, the system or the engine is missing; nothing is written then.
    """
    device_folder = Path(DEVICES.get(system, system)) / backend
    with open_package(source, system) as package:
        sheet = read_sheet(package, system, DISTRIBUTION)
        version = _current(package, system, backend)
        tables, reports, device = read_all(SOURCES, package, (system, backend, version), sheet, DISTRIBUTION)
        reports = {name: report for name, report in reports.items() if report.rows_selected}
        dates = collected_until(package, system)
        if not tables:
            raise InputError(
                f"{DISTRIBUTION} {package.version} has no operators of {system} with {backend} that could be added; "
                f"--list shows what it has ({shown_path(source)})"
            )
        missing = tuple(item.layout.name for item in SOURCES if item.layout.name not in tables)
        folder = out_folder / device_folder
        report = ImportReport(system, backend, version, device, folder, reports, missing)
        write_tables(folder, SOURCES, tables)
        name = _record_name((beside or out_folder) / device_folder)
        _write_record(folder / name, report, package, dates)
    return report


def _current(package: Package, system: str, backend: str) -> str:
    return current_version(package, system, backend, DISTRIBUTION)


def _record_name(folder: Path) -> str:
    """The record is the metadata of a folder that has no others' tables."""
    if not (folder / METADATA).is_file():
        return METADATA
    mine = read_metadata(folder).get("source", {}).get("package") == DISTRIBUTION
    return METADATA if mine else RECORD


def _write_record(path: Path, report: ImportReport, package: Package, dates: str) -> None:
    done = "selected, checked, made monotone and rounded"
    content = report.record(DISTRIBUTION, package.version, dates, done)
    path.write_text(yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True), encoding="utf-8")
