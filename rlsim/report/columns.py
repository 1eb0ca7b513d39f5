"""Aligned columns of numbers with intervals, and the paint on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Paint:
    """ANSI emphasis, applied after padding so that it never shifts a column."""

    active: bool

    def bold(self, text: str) -> str:
        """What to read first."""
        return self._wrap(text, "1")

    def dim(self, text: str) -> str:
        """What to read last."""
        return self._wrap(text, "2")

    def _wrap(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.active and text.strip() else text


@dataclass(frozen=True)
class Cell:
    """A printed number, with the printed ends of its interval where it has one."""

    mean: str
    low: str = ""
    high: str = ""


@dataclass(frozen=True)
class Row:
    """A labelled line of cells; the label ``-`` draws a rule. ``strong`` rows are bold."""

    label: str
    cells: tuple[Cell, ...] = ()
    strong: bool = False


@dataclass(frozen=True)
class _Widths:
    """Characters of a column: mean, low end, high end and its heading."""

    mean: int
    low: int
    high: int
    head: int

    @property
    def interval(self) -> int:
        return self.low + self.high + len(" [, ]") if self.high else 0

    @property
    def total(self) -> int:
        return max(self.mean + self.interval, self.head)


INDENT = "  "
GAP = "   "


def align(heads: Sequence[str], rows: Sequence[Row], width: int, paint: Paint) -> list[str]:
    """Lines of a table: labels left, numbers right-aligned mean by mean and bound by bound.

    Where the lines would exceed ``width``, all columns but the last lose their intervals.
    """
    columns = _measure(heads, rows)
    label = max(len(row.label) for row in rows)
    if _line_width(label, columns) > width:
        rows = [Row(row.label, _without_intervals(row.cells), row.strong) for row in rows]
        columns = _measure(heads, rows)
    head = (
        INDENT
        + " " * label
        + "".join(GAP + _heading(name, column) for name, column in zip(heads, columns, strict=True))
    )
    rule = INDENT + "─" * (_line_width(label, columns) - len(INDENT))
    return [paint.dim(head)] + [
        paint.dim(rule) if row.label == "-" else _line(row, label, columns, paint) for row in rows
    ]


def _measure(heads: Sequence[str], rows: Sequence[Row]) -> list[_Widths]:
    filled = [row.cells for row in rows if row.cells]
    return [
        _Widths(
            mean=max(len(cells[i].mean) for cells in filled),
            low=max(len(cells[i].low) for cells in filled),
            high=max(len(cells[i].high) for cells in filled),
            head=len(head),
        )
        for i, head in enumerate(heads)
    ]


def _line_width(label: int, columns: Sequence[_Widths]) -> int:
    return len(INDENT) + label + sum(len(GAP) + column.total for column in columns)


def _without_intervals(cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    return tuple(cell if i == len(cells) - 1 else Cell(cell.mean) for i, cell in enumerate(cells))


def _heading(name: str, column: _Widths) -> str:
    return name.rjust(max(column.mean, len(name))).ljust(column.total)


def _line(row: Row, label: int, columns: Sequence[_Widths], paint: Paint) -> str:
    emphasise = paint.bold if row.strong else str
    text = INDENT + emphasise(row.label.ljust(label))
    for cell, column in zip(row.cells, columns, strict=True):
        mean = cell.mean.rjust(column.mean)
        interval = (
            f" [{cell.low.rjust(column.low)}, {cell.high.rjust(column.high)}]" if cell.high else " " * column.interval
        )
        text += GAP + emphasise(mean) + paint.dim(interval) + " " * (column.total - column.mean - column.interval)
    return text.rstrip()
