"""Files of a results folder as checked values; whoever wrote them may mean harm."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.files.reading import read_text, shown_path
from rlsim.results.record import LARGEST, Interval

TEXT_CHARACTERS = 2000
"""Longest text that a report repeats."""
FIELD_CHARACTERS = 100_000
MOST_LINES = 1_000_000
MOST_DIGITS = 25


class Node:
    """A value of a JSON document that knows where it stands. Its methods raise InputError naming file and key."""

    def __init__(self, value: Any, file: str, path: str = "") -> None:
        self._value, self._file, self._path = value, file, path

    def at(self, key: str) -> Node:
        """The value of a key that must be there."""
        found = self.get(key)
        if found is None:
            raise self._wrong(f"key '{self._below(key)}' is missing")
        return found

    def get(self, key: str) -> Node | None:
        """The value of a key; None where the key is missing or null."""
        value = self._mapping().get(key)
        return None if value is None else Node(value, self._file, self._below(key))

    def number(self) -> float:
        """A finite number."""
        value = self._value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(f"{self._name} must be a number, got {_told(value)}")
        if not -LARGEST <= value <= LARGEST:  # a NaN fails, too
            raise self._wrong(f"{self._name} must be a number between -1e18 and 1e18, got {_told(value)}")
        return float(value)

    def integer(self) -> int:
        """A whole number."""
        value = self.number()
        if not value.is_integer():
            raise self._wrong(f"{self._name} must be a whole number, got {_told(self._value)}")
        return int(value)

    def text(self) -> str:
        """Text of at most TEXT_CHARACTERS; what is longer ends in dots."""
        if not isinstance(self._value, str):
            raise self._wrong(f"{self._name} must be text, got {_told(self._value)}")
        return shortened(self._value, TEXT_CHARACTERS)

    def elements(self) -> list[Node]:
        """The values of a list."""
        return [Node(value, self._file, f"{self._path}[{i}]") for i, value in enumerate(self.raw_list())]

    def raw_list(self) -> list[Any]:
        """The values of a list, unchecked: for lists of many."""
        if not isinstance(self._value, list):
            raise self._wrong(f"{self._name} must be a list, got {_told(self._value)}")
        return self._value

    def items(self) -> Iterator[tuple[str, Node]]:
        """Keys and values of a mapping."""
        return ((shortened(key), Node(value, self._file, self._below(key))) for key, value in self._mapping().items())

    def texts(self) -> tuple[str, ...]:
        """A list of texts."""
        return tuple(each.text() for each in self.elements())

    def number_at(self, key: str) -> float | None:
        """The number of a key, None where there is none."""
        found = self.get(key)
        return None if found is None else found.number()

    def text_at(self, key: str) -> str:
        """The text of a key, empty where there is none."""
        found = self.get(key)
        return "" if found is None else found.text()

    def _mapping(self) -> dict[str, Any]:
        if not isinstance(self._value, dict):
            raise self._wrong(f"{self._name} must be a mapping, got {_told(self._value)}")
        return self._value

    def _below(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    @property
    def _name(self) -> str:
        return f"'{shortened(self._path, 120)}'" if self._path else "the document"

    def _wrong(self, what: str) -> InputError:
        return InputError(f"{self._file}: {what}")


def _told(value: Any) -> str:
    """A value as a message repeats it; long whole numbers are not written out."""
    if isinstance(value, int) and abs(value) >= 10**MOST_DIGITS:
        return "a longer one"
    return shortened(json.dumps(value)) if isinstance(value, str | int | float | bool | None) else type(value).__name__


def read_json(path: Path, most_bytes: int) -> Node:
    """The document of a JSON file. Raises InputError naming the file where it is too large, no text or no JSON."""
    text, name = read_text(path, most_bytes), shown_path(path)
    try:
        return Node(json.loads(text), name)
    except RecursionError as error:
        raise InputError(f"{name}: is nested too deeply") from error
    except ValueError as error:
        raise InputError(f"{name}: is no JSON ({shortened(str(error), 120)})") from error


def read_csv(path: Path, most_bytes: int) -> list[dict[str, str]]:
    """Lines of a CSV file by the names of its columns.

    Raises InputError naming file and line where a line has other columns than the first, or a field is too long.
    """
    text, name = read_text(path, most_bytes), shown_path(path)
    reader = csv.reader(io.StringIO(text, newline=""))
    before = csv.field_size_limit(FIELD_CHARACTERS)
    try:
        heads = next(reader, [])
        if not heads or len(set(heads)) < len(heads):
            raise InputError(f"{name}: its first line must name every column once")
        rows: list[dict[str, str]] = []
        for line in reader:
            if len(line) != len(heads):
                raise InputError(f"{name}: line {reader.line_num} has {len(line)} columns, the first has {len(heads)}")
            if len(rows) == MOST_LINES:
                raise InputError(f"{name}: has more than {MOST_LINES:,} lines")
            rows.append(dict(zip(heads, line, strict=True)))
    except csv.Error as error:
        raise InputError(f"{name}: line {reader.line_num} is no CSV ({error})") from error
    finally:
        csv.field_size_limit(before)
    return rows


def parsed_number(text: str) -> float | None:
    """The number that a field of a CSV file holds; None where it holds none that is finite and in bounds."""
    if len(text) > MOST_DIGITS + 8:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) <= LARGEST else None


def parsed_interval(row: dict[str, str], names: tuple[str, str, str]) -> Interval | None:
    """Mean and ends from the columns ``names``; the mean alone where a column of an end is empty."""
    mean, low, high = (parsed_number(row.get(name, "")) for name in names)
    if mean is None:
        return None
    return Interval(mean, mean if low is None else low, mean if high is None else high)
