"""Import of the operators that aiconfigurator-core lacks, from its successor aisimulate (Apache-2.0).

What a device's tables already hold stays as it is: everything fitted rests on it. Only operators of recurrent layers
and of sparse attention are added beside them, with a record of their own.
"""

import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlsim.calibration.aiconfigurator import DEVICES, ImportReport, read_all, write_tables
from rlsim.calibration.package_tables import Package, current_version, find_table, package_in, read_sheet, sources_of
from rlsim.errors import InputError
from rlsim.files.reading import shown_path
from rlsim.tables.files import METADATA, read_metadata

DISTRIBUTION = "aisimulate"
CORE = "aisimulate_core"
FAMILIES = ("linear_attention", "sparse_attention")
"""Folders of operators that aiconfigurator-core 0.12 lacks; the others are not read."""
LARGEST_MEMBER_BYTES = 64 * 2**20
"""Largest file of a wheel that is unpacked; the largest of its tables has 3 MB."""
RECORD = f"{DISTRIBUTION}.yaml"
"""Record of the added operators, beside the metadata.yaml of those that were there before."""
BACKENDS = ("vllm", "sglang", "trtllm")


SOURCES = sources_of("aisimulate", least_share=0.0)


@contextmanager
def open_package(source: Path, system: str | None = None) -> Iterator[Package]:
    """The package in a wheel or a folder, unpacked as far as ``system`` (None: of every system) needs it.

    source: a .whl file, or the folder that holds aisimulate_core/ (or is it). Raises InputError where it is neither.
    """
    if source.is_dir():
        yield package_in(source if (source / "systems").is_dir() else source / CORE, DISTRIBUTION, shown_path(source))
        return
    if not source.is_file() or not zipfile.is_zipfile(source):
        raise InputError(f"{shown_path(source)}: is neither a wheel of {DISTRIBUTION} nor a folder of it")
    with tempfile.TemporaryDirectory(prefix="rlsim-") as folder, zipfile.ZipFile(source) as wheel:
        for member in wheel.infolist():
            if not _is_read(member.filename, system):
                continue
            # A wheel comes from outside: sizes are bounded before anything is unpacked.
            if member.file_size > LARGEST_MEMBER_BYTES:
                raise InputError(f"{shown_path(source)}: {member.filename} is larger than any table")
            wheel.extract(member, folder)
        yield package_in(Path(folder) / CORE, DISTRIBUTION, shown_path(source))


def _is_read(name: str, system: str | None) -> bool:
    parts = name.split("/")
    # Only the wheel's own metadata besides its systems, and no path out of the folder.
    if ".." in parts or parts[:2] != [CORE, "systems"]:
        return parts[0].startswith(f"{DISTRIBUTION}-") and parts[1:] in ([""], ["METADATA"])
    if len(parts) == 3:
        return name.endswith(".yaml")
    return len(parts) > 5 and parts[2] == "data" and parts[3] == (system or parts[3]) and parts[4] in FAMILIES


def list_systems(source: Path) -> list[tuple[str, str, str]]:
    """(system, backend, engine version) of everything that can be added, sorted."""
    found = set()
    with open_package(source) as package:
        for path in sorted((package.systems / "data").glob("*/*/*")):
            system, family, backend = path.parts[-3:]
            if family not in FAMILIES or backend not in BACKENDS:
                continue
            version = current_version(package, system, backend)
            here = [item for item in SOURCES if item.family == family]
            tables = [find_table(package, (system, family, backend), name, version) for i in here for name in i.files]
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
        sheet = read_sheet(package, system)
        version = current_version(package, system, backend)
        tables, reports, device = read_all(SOURCES, package, (system, backend, version), sheet)
        # Operations without a usable row are missing, not rejected.
        reports = {name: report for name, report in reports.items() if report.rows_selected}
        if not tables:
            raise InputError(
                f"{DISTRIBUTION} {package.version} has no operators of {system} with {backend} that could be added; "
                f"--list shows what it has ({shown_path(source)})"
            )
        missing = tuple(item.layout.name for item in SOURCES if item.layout.name not in tables)
        folder = out_folder / device_folder
        report = ImportReport(system, backend, version, device, folder, reports, missing)
        write_tables(folder, SOURCES, tables)
        record = folder / _record_name((beside or out_folder) / device_folder)
        report.write(record, package, "selected, checked, made monotone and rounded")
    return report


def _record_name(folder: Path) -> str:
    """The record is the metadata of a folder that has no others' tables."""
    if not (folder / METADATA).is_file():
        return METADATA
    mine = read_metadata(folder).get("source", {}).get("package") == DISTRIBUTION
    return METADATA if mine else RECORD
