"""Published tables in small, and swept.

A sweep is one row of a kind with each of its cells in turn as other published rows have it, blank, or another number,
all in one table, whose every number and every row left out is then compared.
"""

import csv
import io
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlsim.evidence.compare import validate_table
from rlsim.evidence.structure import step_times
from rlsim.evidence.tables import Table, TableRow
from rlsim.files.reading import data_folder
from rlsim.parameters.sets import shipped

PUBLISHED = data_folder("calibration") / "published"


def some_rows(name: str, count: int = 6) -> str:
    """Some rows of a published table."""
    head, *rows = (PUBLISHED / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    return "\n".join((head, *rows[:: max(1, len(rows) // count)])) + "\n"


def published(name: str) -> list[dict[str, str]]:
    """Rows of a published table."""
    with (PUBLISHED / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


VARIED = ("measured_quantity", "framework", "method", "spec_method", "optimizer", "recompute", "offload", "loss_chunk")
"""Columns of words, of which more are tried."""


def swept(row: dict[str, str], others: Sequence[dict[str, str]], most: int) -> Iterator[dict[str, str]]:
    """``row``, and with each cell as up to ``most`` others have it, blank, or as another number."""
    yield row
    for column in dict.fromkeys(key for one in (row, *others) for key in one):
        old = row.get(column, "")
        values = dict.fromkeys(one.get(column, "") for one in others)
        if column in ("id", "source_path", "source_commit", "source_ref", "measured_date", "notes", "dataset"):
            continue
        tried = [value for value in values if value][: most + 5 * (column in VARIED)]
        if tried in ([], [old]) and old.replace(".", "", 1).isdigit():
            tried.append(f"{2 * float(old):g}")
        for number, value in enumerate(dict.fromkeys([*tried, ""])):
            if value != old:
                yield {**row, column: value, "id": f"{row['id']}-{column}-{number}"}


def compared(rows: Sequence[dict[str, str]], scenarios: Sequence[str] = (), **options: Any) -> Any:
    """The validation of a table of ``rows``, with scenarios of users' runs beside it."""
    with tempfile.TemporaryDirectory() as folder:
        path = as_table(Path(folder), rows)
        for name in scenarios:
            (path.parent / "scenarios").mkdir(exist_ok=True)
            shutil.copy(PUBLISHED / "wild" / "scenarios" / f"{name}.yaml", path.parent / "scenarios")
        return validate_table(path, **options)


def as_table(folder: Path, rows: Sequence[dict[str, str]]) -> Path:
    """A table of ``rows`` in ``folder``."""
    columns, text = list(dict.fromkeys(key for row in rows for key in row)), io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    (folder / "t.csv").write_text(text.getvalue(), encoding="utf-8")
    return folder / "t.csv"


def sweep_of(name: str, base: dict[str, str] | int, most: int = 2, **options: Any) -> Any:
    """The validation of one row with each of its cells changed in turn. base: the row, or the place of a published."""
    every = published(name)
    row = every[base] if isinstance(base, int) else base
    return compared(list(swept(row, every, most)), **options)


def as_evidence(rows: Sequence[dict[str, str]]) -> Any:
    """Measured steps as evidence of the joint fit: how far each time lies from its prediction, and what moves it."""
    table = Table("t", [TableRow(number, row) for number, row in enumerate(rows)])
    found, reasons = step_times(table, shipped())
    times = [[one.kind, one.id, one.surprise, len(one.slopes), sum(one.slopes.values())] for one in found]
    return [times, sorted(reasons)]
