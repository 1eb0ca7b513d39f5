"""Tables of measured figures that nobody vouches for: kinds by columns, rows, and the numbers in cells."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from rlsim.errors import InputError, shortened
from rlsim.evidence import Kind
from rlsim.files.reading import TABLE_BYTES, read_text, shown_path
from rlsim.files.yaml import lists_beside

Row = Mapping[str, str]
"""Cells of a row by column."""

MAX_ROWS = 10_000
"""Rows of one table. A larger file is refused before anything is simulated."""
MAX_LINE_CHARACTERS = 100_000
MAX_CELL_CHARACTERS = 10_000
BLANKS = ("", "-", "n/a", "na", "none", "null")
"""What stands in cells without a number."""
SHARES = ("share", "ratio", "rate", "utilization", "efficiency", "mfu")
"""Words of columns that hold shares, which may be percentages."""
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d*)?")


# Of alternatives separated by | one must be there. The first kind whose columns are all there is the table's.
COLUMNS = {
    Kind.STEPS: "id model gpu num_gpus on_off_policy prompts_per_step generations_per_prompt max_seq_len avg_seq_len "
    "total_step_time_s",
    Kind.ITERATIONS: "id engine model precision gpu decode_gpus_per_engine isl osl "
    "est_decoding_reqs_per_engine|decode_batch_per_engine|concurrency tpot_ms|decode_step_ms_est spec_method",
    Kind.TRAINING: "id model gpu num_gpus precision gbs seq_len step_time_s|implied_step_time_s",
    Kind.TRANSFERS: "id model gpu method train_gpus|gen_gpus|num_gpus refit_s|time_s",
    Kind.PHASES: "id model gpu num_gpus prompts_per_step samples_per_prompt|generations_per_prompt "
    "total_step_s|train_step_time_s|total_step_time_s train_s|policy_training_time_s",
    Kind.CURVES: "id curve_kind series x_name x y_name y",
    Kind.ROLLOUTS: "id engine model precision gpu decode_gpus_per_engine isl osl num_requests|notes "
    "tokens_per_s_per_gpu spec_method",
    Kind.SPECULATION: "id model draft gpu engine batch_or_concurrency k acceptance_length speedup|sd_tokens_per_s",
    Kind.MEMORY: "id kind framework model gpu measured_quantity value",
    Kind.WILD: "id source framework generation_s|logprob_total_s|train_s|total_step_s",
}
STEP_COLUMNS = tuple(COLUMNS[Kind.STEPS].split())
"""Columns of a measured RL step without which nothing can be simulated."""


class SkippedRow(Exception):  # noqa: N818 - a reason rather than an accident
    """Why a row is not simulated."""


@dataclass(frozen=True)
class TableRow:
    """One record: the line it ends on, its cells by column (stripped), and why it cannot be read, if so."""

    line: int
    cells: Mapping[str, str]
    problem: str = ""


@dataclass(frozen=True)
class Table:
    """A table to compare. digest: of its cells. seed, replications: of whatever is drawn (None: those
    of a scenario); progress: of (done, all). folder: where it lies, for what lies beside it."""

    name: str
    rows: Sequence[TableRow]
    digest: str = ""
    seed: int = 0
    replications: int | None = None
    progress: Callable[[int, int], object] | None = None
    folder: Path | None = None

    @classmethod
    def read(cls, path: Path, kind: Kind | None = None) -> Table:
        """The table at ``path``. Raises InputError where it is no table, lacks a column of ``kind`` or has no rows."""
        if kind is not None and (missing := _missing(kind, columns := read_columns(path))):
            raise InputError(f"{shown_path(path)}: is no table of {kind}: {_lacking(missing, columns)}")
        rows = read_table(path, ())
        if not rows:
            raise InputError(f"{shown_path(path)}: has a header but no rows")
        return cls(path.name, rows, table_digest(rows), folder=path.parent)

    def report(self, done: int) -> None:
        """Report that ``done`` rows are compared."""
        if self.progress is not None:
            self.progress(done, len(self.rows))


def kind_of(path: Path) -> Kind:
    """Kind of the table at ``path`` by its columns. Raises InputError naming the nearest kind and what it lacks."""
    columns, table = read_columns(path), shown_path(path)
    missing = {kind: _missing(kind, columns) for kind in COLUMNS}
    found = next((kind for kind, entries in missing.items() if not entries), None)
    if found is not None:
        return found
    # By share: else a kind with few columns would be the nearest of any table.
    nearest = min(COLUMNS, key=lambda kind: len(missing[kind]) / len(COLUMNS[kind].split()))
    if len(missing[nearest]) == len(COLUMNS[nearest].split()):
        known = ", ".join(COLUMNS)
        raise InputError(f"{table}: has no column of any kind of table ({known}); see rlsim validate --help")
    lacking = _lacking(missing[nearest], columns)
    raise InputError(f"{table}: is of no kind that is known; for {nearest}, the nearest, {lacking}")


def _missing(kind: Kind, columns: Sequence[str]) -> list[list[str]]:
    """Entries of COLUMNS of which the table has no column."""
    entries = [entry.split("|") for entry in COLUMNS[kind].split()]
    return [entry for entry in entries if not any(name in columns for name in entry)]


def _lacking(missing: Sequence[Sequence[str]], columns: Sequence[str]) -> str:
    """Text that names what a table lacks, each with the column of the table that it may be a misspelling of."""
    named = [" or ".join(entry) for entry in missing]
    for place, entry in enumerate(missing):
        if len(entry) == 1 and (near := get_close_matches(entry[0], columns, n=1, cutoff=0.75)):
            named[place] += f" (there is '{shortened(near[0])}')"
    listed = shortened(", ".join(named), 300)
    return f"column {listed} is missing" if len(missing) == 1 else f"columns {listed} are missing"


def read_table(path: Path, needed: Sequence[str]) -> list[TableRow]:
    """All records of a UTF-8 CSV with a header line.

    Columns may stand in any order; unknown ones stay. Raises InputError, naming file and line or column, where the
    file is no such table, lacks a needed column or has more than MAX_ROWS records. A record with too many or too few
    cells is returned with its ``problem``.
    """
    lines, name = _lines(path), shown_path(path)
    header = _header(next(lines, (1, []))[1], name, needed)
    out: list[TableRow] = []
    for number_of_line, cells in lines:
        if any(cell.strip() for cell in cells):
            if len(out) == MAX_ROWS:
                raise InputError(f"{name}: has more than {MAX_ROWS:,} rows; validate it in parts")
            out.append(_table_row(number_of_line, header, cells))
    return out


def read_columns(path: Path) -> list[str]:
    """Names of the columns of a UTF-8 CSV, in order; raises InputError as :func:`read_table` does."""
    return _header(next(_lines(path), (1, []))[1], shown_path(path))


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Cells of each line of a UTF-8 CSV with the number of the line that they end on."""
    text = read_text(path, TABLE_BYTES)
    name, file = shown_path(path), io.StringIO(text, newline="")

    def short_lines() -> Iterator[str]:
        # A limit, so that a file without line ends is refused before csv takes it for one row.
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_CHARACTERS + 1), ""), start=1):
            if len(line) > MAX_LINE_CHARACTERS:
                most = f"{MAX_LINE_CHARACTERS:,} characters"
                raise InputError(f"{name}: line {number} is longer than {most}; is this a table?")
            yield line

    # Strict: an unclosed quote is an error and not a cell that swallows the rest of the file.
    reader = csv.reader(short_lines(), strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise InputError(f"{name}: line {reader.line_num}: not CSV ({error})") from error


def _header(cells: Sequence[str], path: str, needed: Sequence[str] = ()) -> list[str]:
    """Names of the columns; raises InputError where one stands twice or a needed one is missing."""
    header = [name.strip() for name in cells]
    if not any(header):
        raise InputError(f"{path}: is empty; a header line with {', '.join(needed) or 'column names'} is needed")
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise InputError(f"{path}: column {shortened(', '.join(twice))} appears more than once")
    if missing := [[name] for name in needed if name not in header]:
        raise InputError(f"{path}: {_lacking(missing, [name for name in header if name not in needed])}")
    return header


def _table_row(line: int, header: Sequence[str], cells: Sequence[str]) -> TableRow:
    # A wrong number of cells is reported below, with the id that the row may still have.
    record = {name: cell.strip() for name, cell in zip(header, cells, strict=False) if name}
    if len(cells) != len(header):
        return TableRow(line, record, f"line {line} has {len(cells)} cells, the header {len(header)}")
    long = [name for name, cell in record.items() if len(cell) > MAX_CELL_CHARACTERS]
    if long:
        shown = {name: cell[:200] for name, cell in record.items()}
        return TableRow(line, shown, f"{long[0]} is longer than {MAX_CELL_CHARACTERS:,} characters")
    return TableRow(line, record)


def table_digest(records: Sequence[TableRow]) -> str:
    """First 16 hex digits of the SHA-256 of all cells in order."""
    # Sorted, so that the order of columns does not matter.
    content = json.dumps([sorted(record.cells.items()) for record in records], separators=(",", ":"))
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]


MOST = 1e15
"""Largest number of a cell: above every time, size and count of a run, and below what a scenario refuses."""


def number(row: Row, column: str, default: float | None = None) -> float:
    """A finite, non-negative number from a cell as people write them; SkippedRow names the column otherwise.

    Blank, or one of BLANKS: the default. Commas may part thousands, and a share may be a percentage (86.6%).
    """
    text = row.get(column, "").strip()
    if text.lower() in BLANKS:
        if default is None:
            raise SkippedRow(f"{column} is not given")
        return default
    percentage = text.endswith("%")
    if percentage and not any(word in column for word in SHARES):
        raise SkippedRow(f"{column} is no share; got {text[:40]!r}")
    plain = text.removesuffix("%").strip()
    try:
        # Only whole groups of three count as thousands: 1,5 is a decimal comma, refused rather than read as 15.
        value = float(plain.replace(",", "") if _THOUSANDS.fullmatch(plain) else plain) / (100 if percentage else 1)
    except ValueError:
        raise SkippedRow(f"{column} is not a number: {text[:40]!r}") from None
    if not math.isfinite(value) or value < 0:
        raise SkippedRow(f"{column} must be finite and not negative; got {text[:40]}")
    if value > MOST:
        raise SkippedRow(f"{column} must be at most {MOST:g}; got {text[:40]}")
    return value


def length_tokens(row: Row, column: str, default: int | None = None) -> int:
    """A length of at least one token; means (610.1) are rounded."""
    tokens = round(number(row, column, default))
    if not tokens:
        raise SkippedRow(f"{column} must be at least 1 token; got {row.get(column, '')[:40]}")
    return tokens


def whole_number(row: Row, column: str, default: int | None = None) -> int:
    """A number of things; SkippedRow where the cell holds none."""
    value = number(row, column, default)
    if value != int(value) or value < 1:
        raise SkippedRow(f"{column} must be a whole number of at least 1; got {row.get(column, '')[:40]}")
    return int(value)


PARALLEL = {"tensor": "tp", "pipeline": "pp", "context": "cp", "expert": "ep"}


def parallel(row: Row, side: str, *ways: str) -> dict[str, int]:
    """Parallel sizes of a section of a scenario, of columns such as ``train_tp``; 1 where a row gives none."""
    return {f"{way}_parallel": whole_number(row, f"{side}{PARALLEL[way]}", 1) for way in ways}


def measured_value(row: Row, *columns: str) -> float | None:
    """The first of ``columns`` that holds a number above 0; None where none does."""
    for column in columns:
        try:
            value = number(row, column, 0.0)
        except SkippedRow:
            continue
        if value:
            return value
    return None


def flag(row: Row, column: str, default: bool) -> bool:
    """Whether a cell says true; ``default`` where it is blank."""
    text = row.get(column, "").strip().lower()
    return text.startswith("true") if text else default


SLIP_FACTOR = 20.0
"""Measured over predicted, or the reverse, in the median of a table, from which on its unit is doubted: no row of a
published table is off by as much. Slips of a unit are factors of 60 (minutes) and more."""
_MEANT = {("ms", False): "seconds for milliseconds?", ("s", True): "milliseconds for seconds?"}
"""What a column of such a unit likely holds, by whether its values are larger than predicted."""


def unit_slip(kind: Kind, table: Table, ratios: Sequence[float]) -> str:
    """What is likely wrong with the unit of the measured column of ``table``; empty where nothing is.

    ratios: measured over predicted of its rows.
    """
    if not ratios or 1 / SLIP_FACTOR <= (middle := float(np.median(ratios))) <= SLIP_FACTOR:
        return ""
    column = _column(kind, table)
    unit = next((word for word in ("ms", "s") if word in column.split("_")), "")
    factor, side = (middle, "above") if middle > 1 else (1 / middle, "below")
    meant = _MEANT.get((unit, middle > 1), "another unit?")
    return f"{column} is {factor:,.0f} times {side} its prediction in the median: {meant}"


def _column(kind: Kind, table: Table) -> str:
    """The column that holds the measured values of a table: of alternatives the first that has any."""
    names: list[str] = lists_beside(__file__)["measured_columns"][kind]
    return next((name for name in names if any(record.cells.get(name) for record in table.rows)), names[0])
