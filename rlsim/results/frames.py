"""Rows to pandas: one type per column, so that files and notebooks read them back as they were."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

LARGEST_INT = 2**63 - 1


def frame_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> DataFrame:
    """A table with whole numbers, floats or text in each column, and nothing where a row has no value.

    columns: default all, in the order of first appearance.
    """
    from pandas import DataFrame, Series

    names = list(columns or dict.fromkeys(name for row in rows for name in row))
    return DataFrame({name: Series(*_column([row.get(name) for row in rows])) for name in names})


def _column(values: list[Any]) -> tuple[list[Any], None, str]:
    """Values, no index, and the type that holds them all: text where whole numbers exceed 64 bits."""
    given = [value for value in values if value is not None]
    types = {type(value) for value in given}
    numeric = bool(given) and types <= {int, float} and all(abs(v) <= LARGEST_INT for v in given if type(v) is int)
    if numeric and types == {int}:
        return values, None, "int64" if len(given) == len(values) else "Int64"
    if numeric:
        return values, None, "float64"
    return [None if value is None else str(value) for value in values], None, "str"


def write_csv(frame: DataFrame, path: Path) -> None:
    """One line per row; numbers with 9 significant digits, nothing where a row has no value."""
    frame.to_csv(path, index=False, float_format="%.9g", lineterminator="\n")


def write_parquet(frame: DataFrame, path: Path, identity: str, scenario: str) -> None:
    """The same rows with types, and in the file's metadata what they are the results of."""
    frame.attrs |= {"identity": identity, "scenario": scenario}
    frame.to_parquet(path, index=False)


def identity_in(path: Path) -> str | None:
    """What :func:`write_parquet` was given, None where the file is missing or none of its own."""
    return _attribute(path, "identity")


def scenario_in(path: Path) -> str:
    """The name of the scenario that :func:`write_parquet` was given, else that of the folder."""
    return _attribute(path, "scenario") or path.resolve().parent.name


def _attribute(path: Path, name: str) -> str | None:
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import read_schema

    try:
        known = json.loads(read_schema(path).metadata[b"pandas"])
        return str(known["attributes"][name])
    except (OSError, ArrowInvalid, KeyError, TypeError, ValueError):
        return None
