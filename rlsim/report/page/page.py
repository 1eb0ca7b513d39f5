"""The page around the charts: head, key figures, sections, tables."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlsim.report import format as fmt
from rlsim.report.page.markup import Child, Markup, joined, tag
from rlsim.report.page.patterns import pattern_definitions
from rlsim.report.page.stylesheet import stylesheet
from rlsim.results import Interval

MOST_ROWS = 300
"""Rows of a table that a page shows; the file beside it has all."""
MOST_ENTRIES = 200
"""Entries of a list."""


@dataclass(frozen=True)
class Section:
    """A part of the page with its own heading; ``key`` is its id, ``title`` its entry in the contents."""

    key: str
    title: str
    body: Markup


@dataclass(frozen=True)
class KeyFigure:
    """A number to read first: what it is, the number, and what belongs to it (its interval)."""

    name: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class Part:
    """What the page says of one kind of results. kind: as people call it; about: what was asked, in a line each."""

    kind: str
    name: str
    headline: str
    figures: Sequence[KeyFigure]
    sections: Sequence[Section]
    about: Sequence[str] = ()


def page(parts: Sequence[Part], notes: Sequence[str]) -> str:
    """The document. notes: what the folder holds that the report had to leave out.

    It forbids itself scripts, network and foreign styles (Content-Security-Policy); its one style sheet is named by its
    hash.
    """
    style = stylesheet()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{parts[0].name}: {', '.join(part.kind for part in parts)} (rlsim)"),
        Markup(f"<style>{style}</style>"),
    )
    body = tag(
        "body",
        pattern_definitions(),
        tag("header", *_opening(parts[0], "h1"), _warnings("Left out", notes), _contents(parts)),
        tag("main", *(child for i, part in enumerate(parts) for child in _body(part, first=i == 0))),
        tag(
            "footer",
            tag("p", "Made by rlsim report from the files of one folder. No script, nothing from the network."),
        ),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en').html}\n"


def _opening(part: Part, heading: str) -> list[Child]:
    return [
        tag("p", f"rlsim {part.kind}", class_="eyebrow"),
        tag(heading, part.name),
        tag("p", part.headline, class_="headline"),
        *(tag("p", line, class_="about") for line in part.about),
        tag("dl", *(_figure(each) for each in part.figures), class_="figures") if part.figures else None,
    ]


def _figure(figure: KeyFigure) -> Markup:
    remark = tag("span", figure.remark) if figure.remark else None
    return tag("div", tag("dt", figure.name), tag("dd", figure.value, remark))


def _contents(parts: Sequence[Part]) -> Markup:
    links = [tag("li", tag("a", each.title, href=f"#{each.key}")) for part in parts for each in part.sections]
    return tag("nav", tag("ul", *links), aria_label="Contents")


def _body(part: Part, first: bool) -> list[Child]:
    opening = [] if first else [tag("section", *_opening(part, "h2"))]
    return [*opening, *(tag("section", tag("h2", each.title), each.body, id=each.key) for each in part.sections)]


def _warnings(title: str, entries: Sequence[str]) -> Markup | None:
    return tag("div", tag("h3", title), numbered(entries), class_="warn") if entries else None


def numbered(entries: Sequence[str]) -> Markup:
    """A numbered list; entries beyond MOST_ENTRIES are counted."""
    rest = len(entries) - MOST_ENTRIES
    more = tag("p", f"And {rest:,} more in the file.", class_="note") if rest > 0 else None
    return joined((tag("ol", *(tag("li", each) for each in entries[:MOST_ENTRIES]), class_="list"), more))


def assumptions_section(key: str, assumptions: Sequence[str], warnings: Sequence[str]) -> list[Section]:
    """What the answer takes for granted, warnings first; nothing where there is neither."""
    if not assumptions and not warnings:
        return []
    body = joined((_warnings("Warnings", warnings), numbered(assumptions) if assumptions else None))
    return [Section(f"{key}-assumptions", "Assumptions", body)]


Cell = str | Interval | Markup


def table(heads: Sequence[str], rows: Iterable[Sequence[Cell]], caption: str, text_columns: int = 1) -> Markup:
    """A table: the first ``text_columns`` columns hold text, the others numbers; intervals stand behind their means.

    Rows beyond MOST_ROWS are counted in the caption.
    """
    every = list(rows)
    rest = len(every) - MOST_ROWS
    told = f"{caption} The first {MOST_ROWS:,} of {len(every):,} rows." if rest > 0 else caption
    number = [None if i < text_columns else "num" for i in range(len(heads))]
    head = tag("tr", *(tag("th", text, scope="col", class_=side) for text, side in zip(heads, number, strict=True)))
    body = (
        tag("tr", *(_cell(cell, side, i == 0) for i, (cell, side) in enumerate(zip(row, number, strict=True))))
        for row in every[:MOST_ROWS]
    )
    made = tag("table", tag("caption", told), tag("thead", head), tag("tbody", *body))
    return tag("div", made, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _cell(cell: Cell, side: str | None, first: bool) -> Markup:
    content = interval_text(cell) if isinstance(cell, Interval) else cell
    return tag("th", content, scope="row", class_=side) if first else tag("td", content, class_=side)


def interval_text(value: Interval, decimals: int | None = None) -> Markup:
    """``43.7 [32.7, 57.5]`` with the ends dimmed; alone where the interval has no width."""
    places = fmt.decimals_for(abs(value.mean)) if decimals is None else decimals
    if value.low == value.high:
        return joined((fmt.fixed(value.mean, places),))
    ends = f" [{fmt.fixed(value.low, places)}, {fmt.fixed(value.high, places)}]"
    return joined((fmt.fixed(value.mean, places), tag("i", ends)))


def details(summary: str, *content: Child) -> Markup:
    """What is folded away until somebody opens it."""
    return tag("details", tag("summary", summary), *content)
