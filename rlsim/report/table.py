"""The one table of the terminal and of pages: aligned columns, numbers with intervals, never wider than a terminal."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rlsim.report.format import decimals_for, fixed
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.results import Interval

INDENT = "  "
LEAST_TEXT = 8
"""Least width of a column of text, however narrow the terminal is."""


@dataclass(frozen=True)
class Cell:
    """A printed number, with the printed ends of its interval where it has one."""

    text: str
    low: str = ""
    high: str = ""


@dataclass(frozen=True)
class Row:
    """A line of cells; ``strong`` rows are bold."""

    cells: Sequence[Cell | str]
    strong: bool = False


RULE = Row(())
Cells = Row | Sequence[Cell | str]
"""A line of a table."""


@dataclass(frozen=True)
class Table:
    """A table and what its numbers are: of the terminal by :meth:`lines`, and of a page.

    heads: one for each column; nothing is printed for them where all are empty. rows: cells as text, or as
    :class:`Cell` with an interval; :data:`RULE` draws a rule, :class:`Row` makes a line bold. align: ``<`` for columns
    of text and ``>`` for numbers, the last letter for all further columns.
    """

    title: str
    note: str
    heads: Sequence[str]
    rows: Sequence[Cells]
    align: str = "<>"

    @property
    def sides(self) -> str:
        """The letter of each column."""
        return (self.align + self.align[-1] * len(self.heads))[: len(self.heads)]

    @property
    def body(self) -> list[Row]:
        """The rows, all as :class:`Row`."""
        return [row if isinstance(row, Row) else Row(row) for row in self.rows]

    def lines(self, style: Style) -> list[str]:
        """The title and the table in a terminal; nothing where it has no rows."""
        if not self.rows:
            return []
        title = style.bold(self.title) + (style.dim(f"  {self.note}") if self.note else "")
        return [title, *table(self.heads, self.rows, style, self.align)]


def cell(value: Interval, decimals: int, unit: str = "") -> Cell:
    """A mean with its interval; alone where the interval has no width."""
    ends = () if value.low == value.high else (fixed(value.low, decimals), fixed(value.high, decimals))
    return Cell(fixed(value.mean, decimals) + unit, *ends)


def cells(label: str, values: Sequence[Interval]) -> Sequence[Cell | str]:
    """A row of means with their intervals, all with as many decimals as the largest needs."""
    decimals = decimals_for(max(value.mean for value in values), digits=2)
    return label, *(cell(value, decimals) for value in values)


def table(heads: Sequence[str], rows: Sequence[Cells], style: Style, align: str = "<>") -> list[str]:
    """Lines of a :class:`Table` without its title, and without trailing blanks.

    Means and ends of intervals align one by one. Where the lines exceed ``style.width``, columns first move together,
    then all but the last lose their intervals, then the widest column of text is narrowed and its entries go on in
    further lines.
    """
    shape = Table("", "", heads, rows, align)
    sides, lines = shape.sides, shape.body
    body = [[each if isinstance(each, Cell) else Cell(style.readable(each)) for each in row.cells] for row in lines]
    top = [Cell(style.readable(head)) for head in heads]
    for gap, intervals in ((3, True), (2, True), (2, False), (1, False)):
        if not intervals:
            # The last column keeps its intervals: tables put their most important number there.
            body = [[*(Cell(one.text) for one in row[:-1]), *row[-1:]] for row in body]
        columns = [_Column(sides[i], [row[i] for row in body if row], top[i]) for i in range(len(heads))]
        if _width(columns, gap) <= style.width:
            break
    _narrow(columns, gap, style.width)
    rule = [style.dim(INDENT + style.readable("─") * (_width(columns, gap) - len(INDENT)))]
    # Plain style inside: codes of bold within dim would end it early.
    printed = [style.dim(line) for line in _row_lines(top, False, columns, gap, DEFAULT_STYLE)] if any(heads) else []
    for row, filled in zip(lines, body, strict=True):
        printed += _row_lines(filled, row.strong, columns, gap, style) if filled else rule
    return printed


class _Column:
    """Widths of a column: of its means, of the ends of its intervals, and in all."""

    def __init__(self, side: str, cells: Sequence[Cell], head: Cell) -> None:
        self.side = side
        with_interval = [cell for cell in cells if cell.high]
        self.low = max((len(cell.low) for cell in with_interval), default=0)
        self.high = max((len(cell.high) for cell in with_interval), default=0)
        self.mean = max((len(cell.text) for cell in with_interval or (*cells, head)), default=0)
        interval = self.low + self.high + len(" [, ]") if with_interval else 0
        texts = [cell.text for cell in (*cells, head)]
        self.total = max(self.mean + interval, *map(len, texts))
        self.least = max(_indent(text) + max(map(len, text.split()), default=0) for text in texts)

    def parts(self, cell: Cell) -> list[tuple[str, str]]:
        """(mean, interval) of each line of a cell, padded to the column."""
        if self.side == "<":
            hang = " " * _indent(cell.text)
            lines = textwrap.wrap(cell.text, self.total, subsequent_indent=hang, break_on_hyphens=False) or [""]
            return [(line.ljust(self.total), "") for line in lines]
        if not cell.high:
            # Beside intervals a word or a number without one stands under the means, as far as it fits there.
            return [(cell.text.rjust(self.mean).ljust(self.total), "")]
        interval = f" [{cell.low.rjust(self.low)}, {cell.high.rjust(self.high)}]"
        return [(cell.text.rjust(self.mean), interval.ljust(self.total - self.mean))]


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _width(columns: Sequence[_Column], gap: int) -> int:
    return len(INDENT) + sum(column.total for column in columns) + gap * (len(columns) - 1)


def _narrow(columns: Sequence[_Column], gap: int, width: int) -> None:
    """Take what exceeds ``width`` from the widest columns of text, down to their longest words, then to LEAST_TEXT."""
    for broken in (False, True):
        while (excess := _width(columns, gap) - width) > 0:
            room = {i: c.total - (LEAST_TEXT if broken else c.least) for i, c in enumerate(columns) if c.side == "<"}
            widest = max((i for i in room if room[i] > 0), key=lambda i: columns[i].total, default=None)
            if widest is None:
                break
            # Four at a time and then the widest again, so that columns shrink evenly.
            columns[widest].total -= min(excess, room[widest], 4)


def _row_lines(cells: Sequence[Cell], strong: bool, columns: Sequence[_Column], gap: int, style: Style) -> list[str]:
    """A row, as many lines as its tallest cell has."""
    every = [column.parts(cell) for column, cell in zip(columns, cells, strict=True)]
    emphasise = style.bold if strong else str
    out = []
    for i in range(max(map(len, every))):
        texts = [
            parts[i] if i < len(parts) else (" " * column.total, "")
            for parts, column in zip(every, columns, strict=True)
        ]
        shown = [emphasise(mean) + style.dim(interval) for mean, interval in texts]
        # Blanks at the end would wrap in a terminal that is exactly as wide.
        out.append((INDENT + (" " * gap).join(shown)).rstrip())
    return out
