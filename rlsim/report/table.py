"""The one table of the terminal: aligned columns, numbers with intervals, never wider than the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlsim.report.style import Style

INDENT = "  "
LEAST_TEXT = 8
"""Characters that a text column keeps however narrow the terminal is."""


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


def table(
    heads: Sequence[str], rows: Sequence[Row | Sequence[Cell | str]], style: Style, align: str = "<>"
) -> list[str]:
    """Lines of a table, without trailing blanks.

    heads: one for each column; nothing is printed for them where all are empty. rows: cells as text, or as
    :class:`Cell` with an interval; :data:`RULE` draws a rule, :class:`Row` makes a line bold. Means and ends of
    intervals align one by one. align: ``<`` for columns of text and ``>`` for numbers, the last letter for all further
    columns.
    Where the lines exceed ``style.width``, columns first move together, then all but the last lose their intervals,
    then the widest column of text is narrowed and its entries go on in further lines.
    """
    sides = align + align[-1] * len(heads)
    lines = [row if isinstance(row, Row) else Row(row) for row in rows]
    cells = [[_cell(cell, style) for cell in row.cells] for row in lines]
    top = [_cell(head, style) for head in heads]
    for gap, intervals in ((3, True), (2, True), (2, False), (1, False)):
        body = cells if intervals else [_without_intervals(row) for row in cells]
        columns = [_Column(sides[i], [row[i] for row in body if row], top[i]) for i in range(len(heads))]
        if _width(columns, gap) <= style.width:
            break
    _narrow(columns, gap, style.width)
    rule = [style.dim(INDENT + style.readable("─") * (_width(columns, gap) - len(INDENT)))]
    printed = [style.dim(line) for line in _lines(Row(top), columns, gap, Style())] if any(heads) else []
    for row, filled in zip(lines, body, strict=True):
        printed += _lines(replace(row, cells=filled), columns, gap, style) if filled else rule
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
        self.total = max([self.mean + interval, *(len(cell.text) for cell in (*cells, head))])

    def parts(self, cell: Cell) -> list[tuple[str, str]]:
        """(mean, interval) of each line of a cell, padded to the column."""
        if self.side == "<":
            hang = " " * (len(cell.text) - len(cell.text.lstrip()) + 2)
            fitting = [cell.text] if len(cell.text) <= self.total else []
            lines = fitting or textwrap.wrap(cell.text, self.total, subsequent_indent=hang) or [""]
            return [(line.ljust(self.total), "") for line in lines]
        if not cell.high:
            # Beside intervals a word or a number without one stands under the means, as far as it fits there.
            return [(cell.text.rjust(self.mean).ljust(self.total), "")]
        interval = f" [{cell.low.rjust(self.low)}, {cell.high.rjust(self.high)}]"
        return [(cell.text.rjust(self.mean), interval.ljust(self.total - self.mean))]


def _cell(cell: Cell | str, style: Style) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(style.readable(cell))


def _without_intervals(cells: Sequence[Cell]) -> list[Cell]:
    return [cell if i == len(cells) - 1 else Cell(cell.text) for i, cell in enumerate(cells)]


def _width(columns: Sequence[_Column], gap: int) -> int:
    return len(INDENT) + sum(column.total for column in columns) + gap * (len(columns) - 1)


def _narrow(columns: Sequence[_Column], gap: int, width: int) -> None:
    """Take what exceeds ``width`` from the widest columns of text."""
    while (excess := _width(columns, gap) - width) > 0:
        texts = [column for column in columns if column.side == "<" and column.total > LEAST_TEXT]
        if not texts:
            return
        widest = max(texts, key=lambda column: column.total)
        others = [column.total for column in texts if column is not widest]
        widest.total -= min(excess, max(1, widest.total - max([LEAST_TEXT, *others])))


def _lines(row: Row, columns: Sequence[_Column], gap: int, style: Style) -> list[str]:
    """A row, as many lines as its tallest cell has."""
    every = [column.parts(cell) for column, cell in zip(columns, row.cells, strict=True)]
    emphasise = style.bold if row.strong else str
    out = []
    for i in range(max(map(len, every))):
        texts = [parts[i] if i < len(parts) else (" " * column.total, "") for parts, column in zip(every, columns)]
        shown = [emphasise(mean) + style.dim(interval) for mean, interval in texts]
        out.append((INDENT + (" " * gap).join(shown)).rstrip())
    return out
