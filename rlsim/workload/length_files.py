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

from rlsim.datafiles import TRACE_BYTES, read_text, shown_path
from rlsim.errors import VALUE_CHARACTERS, InputError, shortened
from rlsim.hardware.lookup import delivered_lengths, length_file

FloatArray = NDArray[np.float64]
Subject = Literal["prompt", "response", "observation", "time"]

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
    "observation": ("observation_tokens", "observation_length"),
    "time": ("seconds", "environment_s", "duration_s"),
}
_KEYS: dict[Subject, str] = {
    "prompt": "workload.prompt_tokens",
    "response": "workload.response_tokens",
    "observation": "workload.agent.observation_tokens",
    "time": "workload.agent.environment_s",
}
_UNITS: dict[Subject, str] = {"time": "seconds"}
_QUANTILE = "quantile"
_PROMPT_IDS = ("prompt_id", "prompt_index", "group_id", "group", "uid", "hash_ids")


def read_lengths(path: str, column: str | None, subject: Subject) -> tuple[FloatArray, FloatArray]:
    """Inverse distribution function of the lengths in a file: (quantiles, tokens), both increasing from 0 to 1.

    path: JSONL or CSV; a bare file name is also looked for among the tables delivered with the scenarios.
    column: key or column with the token counts; guessed for the known formats, and where a CSV has a single column.
    Columns of a CSV without a header (its first line holds numbers only) are called 1, 2, ...
    A CSV with a column ``quantile`` is taken as the inverse distribution function itself; any other file as one
    observation a row, the i-th smallest of n standing for the quantiles around (i - 1/2) / n.

    Raises InputError naming the file and the line of anything that is not a non-negative number.
    """
    file = _find(path)
    text, where = read_text(file, TRACE_BYTES), shown_path(file)
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


def key_of(subject: Subject) -> str:
    """Key of the scenario that asks for a file of lengths."""
    return _KEYS[subject]


def ignored_ids(path: str) -> str:
    """Columns of a length file that tell which rows belong to one prompt, joined by commas; nothing uses them."""
    with _find(path).open(encoding="utf-8-sig", errors="replace") as file:
        head = next((line for line in file if line.strip() and line[0] != "#"), "")
    try:
        names = list(json.loads(head)) if head.lstrip().startswith("{") else next(csv.reader([head]))
    except ValueError:
        return ""
    return ", ".join(name for name in (str(item).strip() for item in names) if name in _PROMPT_IDS)


def _find(path: str) -> Path:
    found = length_file(path)
    if found is None:
        known = ", ".join(sorted(p.name for p in delivered_lengths().glob("*.csv"))) or "none"
        raise InputError(f"{shown_path(Path(path))}: length file not found (delivered tables: {known})")
    return found


def _json_rows(text: str, where: str) -> list[tuple[int, dict[str, Any]]]:
    return list(_json_objects(text.splitlines(), where))


def _json_objects(lines: Iterable[str], where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{where}, line {number}: not JSON ({shortened(str(error))})") from error
        if not isinstance(row, dict):
            raise InputError(f"{where}, line {number}: a JSON object is needed, got {type(row).__name__}")
        yield number, row


def _csv_rows(text: str, where: str) -> list[tuple[int, dict[str, Any]]]:
    lines = [(n, line) for n, line in enumerate(text.splitlines(), start=1) if line.strip() and line[0] != "#"]
    if not lines:
        return []
    header = [cell.strip() for cell in next(csv.reader([lines[0][1]]))]
    if all(_is_number(cell) for cell in header):
        header = [str(position) for position in range(1, len(header) + 1)]
    else:
        del lines[0]
    rows: list[tuple[int, dict[str, Any]]] = []
    for number, line in lines:
        cells = next(csv.reader([line]))
        if len(cells) != len(header):
            raise InputError(f"{where}, line {number}: {len(cells)} cells where the header has {len(header)}")
        rows.append((number, dict(zip(header, cells, strict=True))))
    return rows


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _names(row: dict[str, Any]) -> str:
    return shortened(", ".join(str(name) for name in row), 2 * VALUE_CHARACTERS)


def _guess(row: dict[str, Any], where: str, subject: Subject) -> str:
    for name in _COLUMNS[subject]:
        if name in row:
            return name
    values = [name for name in row if name != _QUANTILE]
    if len(values) == 1:
        return values[0]
    raise InputError(
        f"{where}: which column holds the {_UNITS.get(subject, f'{subject} tokens')}? Set {key_of(subject)}.column to "
        "one of: " + _names(row)
    )


def _number(row: dict[str, Any], name: str, where: str, line: int) -> float:
    if name not in row:
        raise InputError(f"{where}, line {line}: no column '{shortened(name)}'; there is {_names(row)}")
    value = row[name]
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise InputError(f"{where}, line {line}: '{name}' must be a number of at least 0; got {shortened(repr(value))}")
    return number


def _check_inverse(quantiles: FloatArray, tokens: FloatArray, where: str) -> tuple[FloatArray, FloatArray]:
    if quantiles.size < 2 or quantiles[0] != 0 or quantiles[-1] != 1 or np.any(np.diff(quantiles) <= 0):
        raise InputError(f"{where}: column '{_QUANTILE}' must increase from 0 to 1")
    if np.any(np.diff(tokens) < 0) or tokens[-1] <= 0:
        raise InputError(f"{where}: tokens must not decrease over '{_QUANTILE}' and must end above 0")
    return quantiles, tokens
