"""Result rows to CSV and Parquet, column by column, the same bytes for the same rows."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


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


def write_parquet(rows: Sequence[Row], path: Path, columns: Sequence[str] | None = None) -> None:
    """The same rows with types: whole numbers, floats or text per column, null where a row has no value."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(columns or columns_of(rows))
    arrays = {name: _column([row.get(name) for row in rows]) for name in names}
    pq.write_table(pa.table(arrays), path)


def _column(values: list[Any]) -> Any:
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int}:
        return pa.array(values, pa.int64())
    if kinds <= {int, float}:
        return pa.array([None if v is None else float(v) for v in values], pa.float64())
    return pa.array([None if v is None else str(v) for v in values], pa.string())
