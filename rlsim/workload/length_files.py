"""Length files of others: Mooncake JSONL, Azure CSV, quantile tables and plain columns of token counts."""

from __future__ import annotations

import csv
import json
import math
from array import array
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlsim.errors import VALUE_CHARACTERS, InputError, shortened
from rlsim.files.lookup import delivered_lengths, length_file
from rlsim.files.reading import TRACE_BYTES, read_text, shown_path, text_lines
from rlsim.units import FloatArray

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
QUANTILE = "quantile"
PROMPT_IDS = ("prompt_id", "prompt_index", "group_id", "group", "uid", "hash_ids")


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
    rows = rows_of(text, where)
    line, first = next(rows, (0, None))
    if first is None:
        raise InputError(f"{where}: no rows; at least one length is needed")
    name = column or guessed_column(first, where, subject)
    inverse = QUANTILE in first and name != QUANTILE
    # Numbers alone are kept: rows of served requests hold hundreds of hashes each.
    found = array("d")
    for number, row in chain([(line, first)], rows):
        found.append(number_in(row, name, where, number))
        if inverse:
            found.append(number_in(row, QUANTILE, where, number))
    tokens = np.array(found)
    if inverse:
        return _check_inverse(tokens[1::2], tokens[::2], where)
    tokens.sort()
    if tokens[-1] <= 0:
        raise InputError(f"{where}: every length in '{name}' is 0")
    quantiles = (np.arange(tokens.size) + 0.5) / tokens.size
    return np.concatenate(([0.0], quantiles, [1.0])), np.concatenate((tokens[:1], tokens, tokens[-1:]))


def rows_of(text: str, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, row) of a text of JSON objects, one a line, or of a CSV; its comments begin with #.

    Raises InputError naming ``where`` and the line of what cannot be read.
    """
    return _json_objects(text, where) if text.lstrip().startswith("{") else _csv_rows(text, where)


def key_of(subject: Subject) -> str:
    """Key of the scenario that asks for a file of lengths."""
    return _KEYS[subject]


def ignored_ids(path: str) -> str:
    """Columns of a length file that tell which rows belong to one prompt, joined by commas; nothing uses them."""
    with _find(path).open(encoding="utf-8-sig", errors="replace") as file:
        head = next((line for line in file if line.strip() and line[0] != "#"), "")
    try:
        names = list(json.loads(head)) if head.lstrip().startswith("{") else next(csv.reader([head]))
    except (ValueError, RecursionError, csv.Error):
        return ""
    return ", ".join(name for name in (str(item).strip() for item in names) if name in PROMPT_IDS)


def _find(path: str) -> Path:
    found = length_file(path)
    if found is None:
        known = ", ".join(sorted(p.name for p in delivered_lengths().glob("*.csv"))) or "none"
        raise InputError(f"{shown_path(Path(path))}: length file not found (delivered tables: {known})")
    return found


def _json_objects(text: str, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in text_lines(text, where):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}, line {number}: not JSON ({shortened(str(error))})") from error
        if not isinstance(row, dict):
            raise InputError(f"{where}, line {number}: a JSON object is needed, got {type(row).__name__}")
        yield number, row


def _csv_rows(text: str, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    header: list[str] | None = None
    for number, line in text_lines(text, where):
        if not line.strip() or line[0] == "#":
            continue
        cells = _cells(line, where, number)
        if header is None:
            header = [cell.strip() for cell in cells]
            if not all(_is_number(cell) for cell in header):
                continue
            header = [str(position) for position in range(1, len(header) + 1)]
        if len(cells) != len(header):
            raise InputError(f"{where}, line {number}: {len(cells)} cells where the header has {len(header)}")
        yield number, dict(zip(header, cells, strict=True))


def _cells(line: str, where: str, number: int) -> list[str]:
    try:
        return next(csv.reader([line]))
    except csv.Error as error:
        raise InputError(f"{where}, line {number}: not CSV ({shortened(str(error))})") from error


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _names(row: Mapping[str, Any]) -> str:
    return shortened(", ".join(str(name) for name in row), 2 * VALUE_CHARACTERS)


def known_column(row: Mapping[str, Any], subject: Subject) -> str | None:
    """The column of ``row`` that the known formats keep ``subject`` in; None where it has none."""
    return next((name for name in _COLUMNS[subject] if name in row), None)


def guessed_column(row: Mapping[str, Any], where: str, subject: Subject) -> str:
    """The column of a known format, or the only one. Raises InputError that lists the columns."""
    known = known_column(row, subject)
    if known is not None:
        return known
    values = [name for name in row if name != QUANTILE]
    if len(values) == 1:
        return values[0]
    raise InputError(
        f"{where}: which column holds the {_UNITS.get(subject, f'{subject} tokens')}? Set {key_of(subject)}.column to "
        "one of: " + _names(row)
    )


def number_in(row: Mapping[str, Any], name: str, where: str, line: int) -> float:
    """The number of at least 0 in column ``name``. Raises InputError naming ``where`` and the line."""
    if name not in row:
        raise InputError(f"{where}, line {line}: no column '{shortened(name)}'; there is {_names(row)}")
    value = row[name]
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise InputError(f"{where}, line {line}: '{name}' must be a number of at least 0; got {shortened(repr(value))}")
    return number


def _check_inverse(quantiles: FloatArray, tokens: FloatArray, where: str) -> tuple[FloatArray, FloatArray]:
    if quantiles.size < 2 or quantiles[0] != 0 or quantiles[-1] != 1 or np.any(np.diff(quantiles) <= 0):
        raise InputError(f"{where}: column '{QUANTILE}' must increase from 0 to 1")
    if np.any(np.diff(tokens) < 0) or tokens[-1] <= 0:
        raise InputError(f"{where}: tokens must not decrease over '{QUANTILE}' and must end above 0")
    return quantiles, tokens
