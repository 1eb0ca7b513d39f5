"""Length files of others: Mooncake JSONL, Azure CSV, quantile tables and plain columns of token counts."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rlsim.datafiles import data_folder
from rlsim.errors import InputError

FloatArray = NDArray[np.float64]
Subject = Literal["prompt", "response"]

_COLUMNS: dict[Subject, tuple[str, ...]] = {
    "response": (
        "output_length",  # Mooncake
        "GeneratedTokens",  # Azure
        "output_tokens",
        "response_tokens",
        "response_length",
        "generated_tokens",
        "completion_tokens",
    ),
    "prompt": (
        "input_length",  # Mooncake
        "ContextTokens",  # Azure
        "input_tokens",
        "prompt_tokens",
        "prompt_length",
        "context_tokens",
    ),
}
_QUANTILE = "quantile"


def read_lengths(path: str, column: str | None, subject: Subject) -> tuple[FloatArray, FloatArray]:
    """Inverse distribution function of the lengths in a file: (quantiles, tokens), both increasing from 0 to 1.

    path: JSONL or CSV; a bare file name is also looked for among the tables delivered with the scenarios.
    column: key or column with the token counts; guessed for the known formats, and where a CSV has a single column.
    A CSV with a column ``quantile`` is taken as the inverse distribution function itself; any other file as one
    observation a row, the i-th smallest of n standing for the quantiles around (i - 1/2) / n.

    Raises InputError naming the file and the line of anything that is not a non-negative number.
    """
    where = _find(path)
    try:
        text = where.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: cannot be read as text ({error})") from error
    rows = _json_rows(text, where) if text.lstrip().startswith("{") else _csv_rows(text, where)
    first = next(iter(rows), None)
    if first is None:
        raise InputError(f"{where}: no rows; at least one length is needed")
    name = column or _guess(first[1], where, subject)
    tokens = np.array([_number(row, name, where, line) for line, row in rows])
    if _QUANTILE in first[1] and name != _QUANTILE:
        return _check_inverse(np.array([_number(row, _QUANTILE, where, line) for line, row in rows]), tokens, where)
    tokens.sort()
    if tokens[-1] <= 0:
        raise InputError(f"{where}: every length in '{name}' is 0")
    quantiles = (np.arange(tokens.size) + 0.5) / tokens.size
    return np.concatenate(([0.0], quantiles, [1.0])), np.concatenate((tokens[:1], tokens, tokens[-1:]))


def _find(path: str) -> Path:
    given = Path(path).expanduser()
    if given.is_file():
        return given
    folder = data_folder("scenarios") / "lengths"
    if given.name == path and (folder / path).is_file():
        return folder / path
    known = ", ".join(sorted(p.name for p in folder.glob("*.csv"))) if folder.is_dir() else "none"
    raise InputError(f"{path}: length file not found (delivered tables: {known})")


def _json_rows(text: str, where: Path) -> list[tuple[int, dict[str, Any]]]:
    return list(_json_objects(text.splitlines(), where))


def _json_objects(lines: Iterable[str], where: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{where}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise InputError(f"{where}, line {number}: a JSON object is needed, got {type(row).__name__}")
        yield number, row


def _csv_rows(text: str, where: Path) -> list[tuple[int, dict[str, Any]]]:
    lines = [(n, line) for n, line in enumerate(text.splitlines(), start=1) if line.strip() and line[0] != "#"]
    if not lines:
        return []
    header = [cell.strip() for cell in next(csv.reader([lines[0][1]]))]
    rows: list[tuple[int, dict[str, Any]]] = []
    for number, line in lines[1:]:
        cells = next(csv.reader([line]))
        if len(cells) != len(header):
            raise InputError(f"{where}, line {number}: {len(cells)} cells where the header has {len(header)}")
        rows.append((number, dict(zip(header, cells, strict=True))))
    return rows


def _guess(row: dict[str, Any], where: Path, subject: Subject) -> str:
    for name in _COLUMNS[subject]:
        if name in row:
            return name
    values = [name for name in row if name != _QUANTILE]
    if len(values) == 1:
        return values[0]
    raise InputError(
        f"{where}: which column holds the {subject} tokens? Set workload.{subject}_tokens.column to one of: "
        + ", ".join(str(name) for name in row)
    )


def _number(row: dict[str, Any], name: str, where: Path, line: int) -> float:
    if name not in row:
        raise InputError(f"{where}, line {line}: no column '{name}'; there is {', '.join(str(key) for key in row)}")
    value = row[name]
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise InputError(f"{where}, line {line}: '{name}' must be a number of at least 0; got {value!r}")
    return number


def _check_inverse(quantiles: FloatArray, tokens: FloatArray, where: Path) -> tuple[FloatArray, FloatArray]:
    if quantiles.size < 2 or quantiles[0] != 0 or quantiles[-1] != 1 or np.any(np.diff(quantiles) <= 0):
        raise InputError(f"{where}: column '{_QUANTILE}' must increase from 0 to 1")
    if np.any(np.diff(tokens) < 0) or tokens[-1] <= 0:
        raise InputError(f"{where}: tokens must not decrease over '{_QUANTILE}' and must end above 0")
    return quantiles, tokens
