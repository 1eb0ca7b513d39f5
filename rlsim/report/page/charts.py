"""Charts as inline SVG that keeps the size of its text: places along x are per cent of the width, y is in pixels."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlsim.errors import readable
from rlsim.report import format as fmt
from rlsim.report.page.markup import Child, Markup, tag
from rlsim.report.page.page import details
from rlsim.report.page.patterns import area, legend
from rlsim.report.page.stylesheet import LABEL_STEPS
from rlsim.results import Interval

BAR, BAR_GAP, ROW_GAP, LINE = 15, 4, 12, 19
"""Pixels: height of a bar, between bars of a row, between rows, of a line of text."""
AXIS = 24
CHARACTER = 7.4
"""Pixels of a character at 13 px, on the safe side."""
LABEL_CHARACTERS = 42
"""Longest line of a label, that of a phone."""
MOST_TICKS = 5
LEAST_PERCENT = 0.4
"""Areas narrower than this share of the chart are drawn this wide, or nobody would see them."""


@dataclass(frozen=True)
class Scale:
    """A linear axis from ``low`` to ``high``, or a logarithmic one between positive ends."""

    low: float
    high: float
    logarithmic: bool = False

    def percent(self, value: float) -> float:
        """Place of ``value``, 0 to 100; what lies outside is moved to the nearer end."""
        if self.logarithmic:
            part = math.log(max(value, self.low) / self.low) / (math.log(self.high / self.low) or 1.0)
        else:
            part = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(100 * min(1.0, max(0.0, part)), 3)

    def ticks(self) -> list[float]:
        """At most MOST_TICKS round values within the ends; of a logarithmic axis, two at least where it has them."""
        if self.logarithmic:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [m * 10.0**d for d in decades for m in (1, 2, 5) if self.low <= m * 10.0**d <= self.high]
            return found[:: math.ceil(len(found) / MOST_TICKS)] if found else [self.low]
        span = self.high - self.low
        if span <= 0:
            return [self.low]
        least = span / MOST_TICKS
        power = 10.0 ** math.floor(math.log10(least))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, first + MOST_TICKS + 1) if i * step <= self.high + 1e-9 * span]


@dataclass(frozen=True)
class Segment:
    """An area of a bar. tone: of the palette; title: what a pointer shows; label: written on it where it fits."""

    start: float
    end: float
    tone: str
    title: str
    label: str = ""


@dataclass(frozen=True)
class Bar:
    """Areas in a row; whisker: an interval over them; limit: a mark that they must not pass."""

    segments: Sequence[Segment] = ()
    whisker: Interval | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Row:
    """A label with its number, and the bars under it. remark: behind the number, where the chart is wide enough."""

    label: str
    value: str
    bars: Sequence[Bar]
    remark: str = ""


@dataclass(frozen=True)
class Words:
    """What a chart says in words: its id, its heading, a sentence for those who cannot see it, and a note."""

    key: str
    title: str
    description: str
    note: str = ""


def figure(words: Words, drawn: Sequence[Markup], height: float, data: Markup, key: Markup | None = None) -> Markup:
    """A chart with its heading, its legend and its numbers as a table, folded."""
    title, description = f"{words.key}-title", f"{words.key}-desc"
    picture = tag(
        "svg",
        tag("title", words.title, id=title),
        tag("desc", words.description, id=description),
        *drawn,
        class_="chart",
        height=round(height),
        role="img",
        aria_labelledby=f"{title} {description}",
    )
    return tag(
        "figure",
        tag("figcaption", words.title),
        tag("p", words.note) if words.note else None,
        picture,
        key,
        details("Numbers", data),
        id=words.key,
    )


def bar_chart(
    words: Words,
    rows: Sequence[Row],
    scale: Scale,
    data: Markup,
    *,
    keys: Mapping[str, str] | None = None,
    unit: str = "",
    rule: float | None = None,
) -> Markup:
    """Rows of bars over one axis. unit: of the axis; rule: a value that a dashed line marks."""
    drawn: list[Markup] = []
    y = 0.0
    for row in rows:
        shown, y = _row(row, scale, y)
        drawn += shown
    frame = grid(scale, y, unit)
    if rule is not None:
        x = f"{scale.percent(rule)}%"
        frame.append(tag("line", x1=x, x2=x, y1=0, y2=y, class_="rule"))
    return figure(words, [*frame, *drawn], y + AXIS, data, legend(keys) if keys else None)


def grid(scale: Scale, height: float, unit: str) -> list[Markup]:
    """Lines of the ticks, and their numbers under them; the unit stands with the last one."""
    ticks = scale.ticks()
    lines = []
    for number, value in enumerate(ticks):
        place = scale.percent(value)
        anchor = "start" if place < 4 else "end" if place > 96 else "middle"
        text = fmt.number(value) + (f" {unit}" if unit and number == len(ticks) - 1 else "")
        lines += [
            tag("line", x1=f"{place}%", x2=f"{place}%", y1=0, y2=height, class_="grid"),
            tag("text", text, x=f"{place}%", y=height + 16, text_anchor=anchor, class_="dim small"),
        ]
    return lines


def _row(row: Row, scale: Scale, y: float) -> tuple[list[Markup], float]:
    lines = label_lines(row.label)
    beside = len(lines[-1]) + len(row.value) + 2 <= LABEL_CHARACTERS
    drawn = []
    for i, line in enumerate(lines):
        last = i == len(lines) - 1
        more: list[Child] = _value(row) if last and beside else []
        y += LINE
        drawn.append(tag("text", tag("tspan", line, class_="strong"), *more, x=0, y=y - 5))
    if row.value and not beside:
        y += LINE
        drawn.append(tag("text", *_value(row)[1:], x=0, y=y - 5))
    for bar in row.bars:
        drawn += _bar(bar, scale, y)
        y += BAR + BAR_GAP
    return drawn, y - BAR_GAP + ROW_GAP


def _value(row: Row) -> list[Child]:
    needed = CHARACTER * (len(row.label) + len(row.value) + len(row.remark) + 4)
    remark = tag("tspan", f" · {row.remark}", class_=joined_classes("dim", shown_from(needed))) if row.remark else None
    return [tag("tspan", " ", dx="0.35em"), tag("tspan", row.value), remark]


def label_lines(label: str) -> list[str]:
    """A label in lines that a phone shows."""
    return textwrap.wrap(readable(label), LABEL_CHARACTERS) or [""]


def _bar(bar: Bar, scale: Scale, y: float) -> list[Markup]:
    drawn = [tag("rect", x=0, y=y, width="100%", height=BAR, class_="track")]
    for each in bar.segments:
        left, right = sorted((scale.percent(each.start), scale.percent(each.end)))
        width = max(right - left, LEAST_PERCENT)
        left = min(left, 100 - width)
        drawn += area(each.tone, each.title, x=f"{left:.3f}%", y=y, width=f"{width:.3f}%", height=BAR)
        if each.label:
            drawn += _on(each, left, width, y)
    if bar.whisker is not None:
        drawn += whisker(bar.whisker, scale, y + BAR / 2)
    if bar.limit is not None:
        x = f"{scale.percent(bar.limit)}%"
        drawn.append(tag("line", x1=x, x2=x, y1=y - 2, y2=y + BAR + 2, class_="limit"))
    return drawn


def _on(segment: Segment, left: float, width: float, y: float) -> list[Markup]:
    """The label of an area, where the chart is wide enough for it."""
    needed = 100 * (CHARACTER * len(segment.label) + 8) / width
    if needed > LABEL_STEPS[-1]:
        return []
    classes = joined_classes(f"small on-{segment.tone}", shown_from(needed))
    middle = f"{left + width / 2:.3f}%"
    return [tag("text", segment.label, x=middle, y=y + BAR - 3.5, text_anchor="middle", class_=classes)]


def shown_from(needed: float) -> str:
    """The class of what needs a chart of so many pixels; none where every chart is wide enough."""
    if needed <= LABEL_STEPS[0]:
        return ""
    return f"from{next((step for step in LABEL_STEPS if step >= needed), LABEL_STEPS[-1])}"


def joined_classes(*names: str) -> str | None:
    """Names of classes, without empty ones."""
    return " ".join(name for name in names if name) or None


def whisker(value: Interval, scale: Scale, y: float) -> list[Markup]:
    """An interval as a line with ends, on a halo that parts it from what lies under it."""
    low, high = f"{scale.percent(value.low)}%", f"{scale.percent(value.high)}%"
    if low == high:
        return []
    ends = ((low, high, y, y), (low, low, y - 4, y + 4), (high, high, y - 4, y + 4))
    return [
        tag("line", x1=x1, x2=x2, y1=y1, y2=y2, class_=kind) for kind in ("halo", "whisker") for x1, x2, y1, y2 in ends
    ]


def forest(
    words: Words, rows: Sequence[tuple[str, str, Interval]], data: Markup, *, unit: str = "", rule: float | None = None
) -> Markup:
    """Numbers with their intervals: (label, printed number, interval) in rows, a point for each mean."""
    values = [value for _, _, interval in rows for value in (interval.low, interval.mean, interval.high)]
    if rule is not None:
        values.append(rule)
    low = min(0.0, *values) if rule is None else min(values)
    room = 0.03 * (max(values) - low)
    scale = Scale(low if rule is None else low - room, max(values) + room)
    drawn: list[Markup] = []
    y = 0.0
    for label, value, interval in rows:
        shown, y = _row(Row(label, value, ()), scale, y)
        place = y - ROW_GAP + BAR_GAP + 7
        x = f"{scale.percent(interval.mean)}%"
        drawn += [*shown, *whisker(interval, scale, place), tag("circle", cx=x, cy=place, r=5, class_="point")]
        y = place + ROW_GAP
    frame = grid(scale, y, unit)
    if rule is not None:
        x = f"{scale.percent(rule)}%"
        frame.append(tag("line", x1=x, x2=x, y1=0, y2=y, class_="rule"))
    return figure(words, [*frame, *drawn], y + AXIS, data)


def stacked(parts: Sequence[tuple[str, float, str]], start: float = 0.0) -> list[Segment]:
    """(tone, size, name) one after the other from ``start``, each with its name as title and label."""
    segments = []
    for tone, size, name in parts:
        if size > 0:
            segments.append(Segment(start, start + size, tone, f"{name}: {fmt.number(size)}", name))
            start += size
    return segments


def together(*charts: Markup) -> Markup:
    """Small charts side by side where there is room."""
    return tag("div", *charts, class_="pair")
