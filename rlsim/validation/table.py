"""Reading tables that nobody vouches for, and writing tables that spreadsheets may open."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import IO

from rlsim.errors import InputError, shortened
from rlsim.files.reading import TABLE_BYTES, read_text, shown_path

MAX_ROWS = 10_000
"""Rows of one table. A larger file is refused before anything is simulated."""
MAX_LINE_CHARACTERS = 100_000
MAX_CELL_CHARACTERS = 10_000
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""First characters that spreadsheets take for a formula (OWASP, CSV injection)."""


@dataclass(frozen=True)
class TableRow:
    """One record: the line it ends on, its cells by column (stripped), and why it cannot be read, if so."""

    line: int
    cells: Mapping[str, str]
    problem: str = ""


def read_table(path: Path, needed: Sequence[str]) -> list[TableRow]:
    """All records of a UTF-8 CSV with a header line.

    Columns may stand in any order; unknown ones are kept. Raises InputError, naming file and line or column, where the
    file is no such table, lacks a needed column or has more than MAX_ROWS records. A record with too many or too few
    cells is returned with its ``problem``.
    """
    text = read_text(path, TABLE_BYTES)
    return list(_records(io.StringIO(text, newline=""), shown_path(path), needed))


def read_columns(path: Path) -> list[str]:
    """Names of the columns of a UTF-8 CSV, in order; raises InputError as :func:`read_table` does."""
    text = read_text(path, TABLE_BYTES)
    try:
        header = next(csv.reader(_short_lines(io.StringIO(text, newline=""), shown_path(path)), strict=True), [])
    except csv.Error as error:
        raise InputError(f"{shown_path(path)}: line 1: not CSV ({error})") from error
    columns = [name.strip() for name in header]
    _check_header(columns, shown_path(path), ())
    return columns


def _records(file: IO[str], path: str, needed: Sequence[str]) -> Iterator[TableRow]:
    reader = csv.reader(_short_lines(file, path), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(header, path, needed)
        count = 0
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            count += 1
            if count > MAX_ROWS:
                raise InputError(f"{path}: has more than {MAX_ROWS:,} rows; validate it in parts")
            yield _row(reader.line_num, header, cells)
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num}: not CSV ({error})") from error


def _short_lines(file: IO[str], path: str) -> Iterator[str]:
    """Lines of the file, none of which can fill the memory."""
    number = 0
    while line := file.readline(MAX_LINE_CHARACTERS + 1):
        number += 1
        if len(line) > MAX_LINE_CHARACTERS:
            raise InputError(
                f"{path}: line {number} is longer than {MAX_LINE_CHARACTERS:,} characters; is this a table?"
            )
        yield line


def _check_header(header: Sequence[str], path: str, needed: Sequence[str]) -> None:
    if not any(header):
        raise InputError(f"{path}: is empty; a header line with {', '.join(needed) or 'column names'} is needed")
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise InputError(f"{path}: column {shortened(', '.join(twice))} appears more than once")
    missing = [name for name in needed if name not in header]
    if missing:
        others = [name for name in header if name not in needed]
        raise InputError(f"{path}: column {', '.join(with_hint(name, others) for name in missing)} is missing")


def with_hint(name: str, header: Sequence[str]) -> str:
    """A missing column, with the column of the table that it may have been meant by."""
    near = get_close_matches(name, header, n=1, cutoff=0.75)
    return f"{name} (there is '{shortened(near[0])}')" if near else name


def _row(line: int, header: Sequence[str], cells: Sequence[str]) -> TableRow:
    record = {name: cell.strip() for name, cell in zip(header, cells, strict=False) if name}
    if len(cells) != len(header):
        return TableRow(line, record, f"line {line} has {len(cells)} cells, the header {len(header)}")
    long = [name for name, cell in record.items() if len(cell) > MAX_CELL_CHARACTERS]
    if long:
        return TableRow(
            line,
            {k: v[:200] for k, v in record.items()},
            f"{long[0]} is longer than {MAX_CELL_CHARACTERS:,} characters",
        )
    return TableRow(line, record)


def safe_cell(text: str) -> str:
    """Text that no spreadsheet runs: an apostrophe before whatever looks like a formula."""
    return "'" + text if text.lstrip().startswith(_FORMULA_STARTS) or text.startswith(_FORMULA_STARTS) else text


def write_table(columns: Sequence[str], rows: Sequence[Sequence[str | float | int | bool | None]]) -> str:
    """CSV text; text cells are made safe for spreadsheets, numbers keep nine significant digits, None is blank."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: str | float | int | bool | None) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return safe_cell(value) if isinstance(value, str) else f"{value:.9g}"
