"""What a page consists of: parts with sections of texts, lists, tables and pictures; their words: pictures.yaml."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.figure import Figure

from rlsim.errors import readable
from rlsim.files.yaml import lists_beside
from rlsim.report import format as fmt
from rlsim.report.figures.bars import BarRow, bars_figure
from rlsim.report.page.svg import inline_svg
from rlsim.report.table import Table, cell
from rlsim.results import Interval

WORDS = lists_beside(__file__, "pictures.yaml")
"""Titles of sections; title, note, unit and rule of pictures; caption, heads and sides of their numbers."""
MOST_ROWS = 24
"""Rows of a picture; the table below it has more."""


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
Sections = Mapping[str, Sequence[Block]]
"""What stands below the title of each section; those with nothing are left out."""
KeyFigure = tuple[str, str, str]
"""A number to read first: its name, the number, and what belongs to it (its interval)."""


@dataclass(frozen=True)
class Part:
    """What the page says of one kind of results. kind: as people call it; about: what was asked, in a line each."""

    kind: str
    name: str
    headline: str
    figures: Sequence[KeyFigure]
    sections: Sections
    about: Sequence[str] = ()


def table(key: str, rows: Iterable[Sequence[str | Interval]], columns: Iterable[str] = ()) -> Table:
    """The table ``key`` with further ``columns``, of texts and of means with their intervals."""
    words = WORDS[key]
    cells = [
        [cell(value, fmt.decimals_for(abs(value.mean))) if isinstance(value, Interval) else value for value in row]
        for row in rows
    ]
    return Table(words["caption"], "", [*words["heads"], *columns], cells, words.get("align", "<>"))


def picture(
    key: str,
    drawn: Figure | Sequence[BarRow],
    numbers: Table | None = None,
    colors: Mapping[str, str] | None = None,
    **said: str,
) -> Picture:
    """The picture ``key`` inside the page, a figure or rows of bars; colors: what they mean.

    said: what its words leave open, and the unit where they name none.
    """
    words = WORDS[key.rstrip("-0123456789")]
    title, note = (words[name].format_map(said) for name in ("title", "note"))
    if not isinstance(drawn, Figure):
        drawn = bars_figure(drawn, words.get("unit") or said["unit"], colors, words.get("rule"))
    return Picture(key, title, note, inline_svg(drawn, key, readable(f"{title}. {note}")), numbers)


def ranged(name: str, value: Interval, show: Callable[[float], str], unit: str = "") -> KeyFigure:
    """A number with its interval."""
    mean, low, high = (show(each) for each in (value.mean, value.low, value.high))
    return name, f"{mean} {unit}".strip(), f"{low} to {high} {unit}".strip()


def speedup(name: str, value: Interval) -> KeyFigure:
    """A speed-up with its interval."""
    return ranged(name, value, "{:.2f}x".format)


def assumed(assumptions: Sequence[str], warnings: Sequence[str]) -> list[Block]:
    """What the answer takes for granted, warnings first."""
    return [*([Entries(warnings, "Warnings")] if warnings else []), *([Entries(assumptions)] if assumptions else [])]


def counted(reasons: Iterable[str], what: str) -> list[Block]:
    """How many rows or cells there are for each reason."""
    found = Counter(reasons).most_common()
    entries = [f"{n:,} {what}{'' if n == 1 else 's'}: {reason}" for reason, n in found]
    return [Entries(entries)] if entries else []
