"""What a page consists of: parts with sections of texts, lists, tables and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.figure import Figure

from rlsim.errors import readable
from rlsim.report import format as fmt
from rlsim.report.page.svg import inline_svg
from rlsim.report.table import Table, cell
from rlsim.results import Interval


@dataclass(frozen=True)
class Text:
    """A paragraph; code: a command behind it."""

    words: str
    code: str = ""


@dataclass(frozen=True)
class Entries:
    """A numbered list; with a title it is a warning."""

    entries: Sequence[str]
    title: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure with its heading, a note, and its numbers as a table."""

    key: str
    title: str
    note: str
    picture: Markup
    numbers: Table | None


Block = Text | Entries | Table | Picture


@dataclass(frozen=True)
class Section:
    """A part of the page with its own heading; ``key`` is its id."""

    key: str
    title: str
    blocks: Sequence[Block]


KeyFigure = tuple[str, str, str]
"""A number to read first: its name, the number, and what belongs to it (its interval)."""


@dataclass(frozen=True)
class Part:
    """What the page says of one kind of results. kind: as people call it; about: what was asked, in a line each."""

    kind: str
    name: str
    headline: str
    figures: Sequence[KeyFigure]
    sections: Sequence[Section]
    about: Sequence[str] = ()


def table(heads: Sequence[str], rows: Iterable[Sequence[str | Interval]], caption: str, text: int = 1) -> Table:
    """A table of texts and of means with their intervals; the first ``text`` columns hold no numbers."""
    cells = [
        [cell(value, fmt.decimals_for(abs(value.mean))) if isinstance(value, Interval) else value for value in row]
        for row in rows
    ]
    return Table(caption, "", heads, cells, "<" * text + ">")


def picture(key: str, title: str, note: str, figure: Figure, numbers: Table | None = None) -> Picture:
    """The figure inside the page."""
    return Picture(key, title, note, inline_svg(figure, key, readable(f"{title}. {note}")), numbers)


def timed(name: str, value: Interval) -> KeyFigure:
    """A duration with its interval."""
    return name, fmt.seconds(value.mean), f"{fmt.seconds(value.low)} to {fmt.seconds(value.high)}"


def speedup(name: str, value: Interval) -> KeyFigure:
    """A speed-up with its interval."""
    return name, f"{value.mean:.2f}x", f"{value.low:.2f}x to {value.high:.2f}x"


def assumptions_section(key: str, assumptions: Sequence[str], warnings: Sequence[str]) -> list[Section]:
    """What the answer takes for granted, warnings first; nothing where there is neither."""
    blocks = [*([Entries(warnings, "Warnings")] if warnings else []), *([Entries(assumptions)] if assumptions else [])]
    return [Section(f"{key}-assumptions", "Assumptions", blocks)] if blocks else []
