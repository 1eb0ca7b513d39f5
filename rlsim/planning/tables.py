"""Result rows to CSV and Parquet, column by column, the same bytes for the same rows."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
_IDENTITY = b"rlsim.sweep"


def columns_of(rows: Sequence[Row]) -> list[str]:
    """All columns in the order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def write_csv(rows: Sequence[Row], path: Path, columns: Sequence[str] | None = None) -> None:
    """One line per row; numbers with 9 significant digits, nothing where a row has no value."""
    names = list(columns or columns_of(rows))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_text(row.get(name)) for name in names] for row in rows)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def write_parquet(
    rows: Sequence[Row], path: Path, columns: Sequence[str] | None = None, identity: str | None = None
) -> None:
    """The same rows with types: whole numbers, floats or text per column, null where a row has no value.

    identity: what :func:`parquet_identity` tells of the file later.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(columns or columns_of(rows))
    arrays = {name: _column([row.get(name) for row in rows]) for name in names}
    table = pa.table(arrays)
    pq.write_table(table.replace_schema_metadata({_IDENTITY: identity}) if identity else table, path)


def parquet_identity(path: Path) -> str | None:
    """The identity that a file was written with; None where it has none or is no such file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found = pq.read_schema(path).metadata
    except (OSError, pa.ArrowException):
        return None
    return found[_IDENTITY].decode() if found and _IDENTITY in found else None


def _column(values: list[Any]) -> Any:
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    whole = all(-(2**63) <= value < 2**63 for value in values if isinstance(value, int))
    if kinds <= {int} and whole:
        return pa.array(values, pa.int64())
    if kinds <= {int, float} and whole:
        return pa.array([None if v is None else float(v) for v in values], pa.float64())
    return pa.array([None if v is None else str(v) for v in values], pa.string())
