"""Lines over an axis, points in a plane, and heat maps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rlsim.report import format as fmt
from rlsim.report.page.charts import AXIS, LINE, Scale, Words, figure, grid
from rlsim.report.page.markup import Markup, joined, tag
from rlsim.report.page.palette import HEAT_SHARES
from rlsim.results import Interval

PLOT, PLANE = 190, 320
"""Heights of lines over time and of a plane of points, in pixels."""
MOST_POINTS = 400
"""Points of a line; a screen shows no more."""
VIEW = 1000
"""Units of the stretched picture that lines are drawn in."""


@dataclass(frozen=True)
class Line:
    """A curve through (x, y); steps: it stays at a value until the next one. dash: 1 for a dashed one."""

    name: str
    tone: str
    x: Sequence[float]
    y: Sequence[float]
    dash: int = 0
    steps: bool = False


@dataclass(frozen=True)
class Point:
    """A point with its interval along y, and what a pointer shows. kind: a class of the style sheet."""

    x: float
    y: Interval
    title: str
    kind: str = ""


def line_plot(
    words: Words, lines: Sequence[Line], data: Markup, unit: str, top: str, least: float | None = 0.0
) -> Markup:
    """Curves over a common axis. unit: of x; top: what y is.

    least: y begins here or lower; None: at the least value.
    """
    xs = [x for line in lines for x in line.x]
    ys = [y for line in lines for y in line.y]
    across = Scale(min(xs), max(xs))
    up = _padded(min(ys) if least is None else min(least, *ys), max(ys))
    plane, numbers = _plane(across, up, PLOT, unit, top)
    drawn = [
        tag(
            "svg",
            *(_curve(line, across, up) for line in lines),
            x=0,
            y=LINE,
            width="100%",
            height=PLOT,
            viewBox=f"0 0 {VIEW} {VIEW}",
            preserveAspectRatio="none",
            overflow="visible",
        )
    ]
    key = line_legend(lines) if len(lines) > 1 else None
    return figure(words, [*plane, *drawn, *numbers], LINE + PLOT + AXIS, data, key)


def line_legend(lines: Sequence[Line]) -> Markup:
    """Samples of the lines and their names."""
    return tag(
        "ul",
        *(
            tag(
                "li",
                tag(
                    "svg",
                    tag("path", d="M0,7 H34", class_=f"curve dash{line.dash} s-{line.tone}"),
                    width=34,
                    height=14,
                    aria_hidden="true",
                ),
                line.name,
            )
            for line in lines
        ),
        class_="legend",
    )


def _curve(line: Line, across: Scale, up: Scale) -> Markup:
    points = thinned(line.x, line.y)
    places = [(VIEW * across.percent(x) / 100, VIEW * (1 - up.percent(y) / 100)) for x, y in points]
    path = f"M{places[0][0]:.0f},{places[0][1]:.0f}"
    for (_, before), (x, y) in itertools.pairwise(places):
        path += f"H{x:.0f}V{y:.0f}" if line.steps and y != before else f"L{x:.0f},{y:.0f}"
    return tag("path", tag("title", line.name), d=path, class_=f"curve dash{line.dash} s-{line.tone}")


def thinned(xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
    """At most MOST_POINTS points of a curve, in order: of each stretch the least and the greatest value."""
    points = list(zip(xs, ys, strict=True))
    if len(points) <= MOST_POINTS:
        return points
    size = math.ceil(len(points) / (MOST_POINTS // 2 - 1))
    kept: dict[int, None] = {0: None}
    for start in range(0, len(points), size):
        stretch = range(start, min(start + size, len(points)))
        kept |= dict.fromkeys(
            sorted((min(stretch, key=lambda i: points[i][1]), max(stretch, key=lambda i: points[i][1])))
        )
    kept[len(points) - 1] = None
    return [points[i] for i in kept]


def _plane(across: Scale, up: Scale, height: float, unit: str, top: str) -> tuple[list[Markup], list[Markup]]:
    """Grid with the numbers of x, and the numbers of y, which stand on their lines and over what is drawn."""
    drawn = [tag("g", *grid(across, height, unit), transform=f"translate(0,{LINE})")]
    numbers = [tag("text", top, x=0, y=LINE - 7, class_="dim small")]
    for value in up.ticks():
        y = LINE + height * (1 - up.percent(value) / 100)
        drawn += [tag("line", x1="0%", x2="100%", y1=y, y2=y, class_="grid")]
        if y > LINE + 8:
            numbers.append(tag("text", fmt.number(value), x=0, y=y - 3, class_="dim small"))
    return drawn, numbers


def _padded(low: float, high: float) -> Scale:
    room = 0.06 * (high - low) or 0.5 * abs(high) or 1.0
    return Scale(low if low == 0 else low - room, high + room)


def scatter(
    words: Words,
    points: Sequence[Point],
    data: Markup,
    labels: tuple[str, str],
    *,
    logarithmic: bool = False,
    diagonal: bool = False,
) -> Markup:
    """Points over x and y (``labels``: what they are). diagonal: both axes are the same, and a line marks x = y."""
    xs = [point.x for point in points]
    ys = [value for point in points for value in (point.y.low, point.y.mean, point.y.high)]
    if diagonal:
        xs = ys = [*xs, *ys]
    across, up = _ends(xs, logarithmic), _ends(ys, logarithmic)
    drawn, numbers = _plane(across, up, PLANE, labels[0], labels[1])
    if diagonal:
        drawn.append(tag("line", x1="0%", y1=LINE + PLANE, x2="100%", y2=LINE, class_="rule"))
    for point in points:
        x = f"{across.percent(point.x)}%"
        low, mid, high = (
            LINE + PLANE * (1 - up.percent(value) / 100) for value in (point.y.low, point.y.mean, point.y.high)
        )
        if low != high:
            drawn.append(tag("line", x1=x, x2=x, y1=low, y2=high, class_="spread"))
        kind = f"point {point.kind}".strip()
        drawn.append(tag("circle", tag("title", point.title), cx=x, cy=mid, r=8 if "best" in kind else 4, class_=kind))
    return figure(words, [*drawn, *numbers], LINE + PLANE + AXIS, data)


def _ends(values: Sequence[float], logarithmic: bool) -> Scale:
    low, high = min(values), max(values)
    if logarithmic:
        return Scale(low / 1.08, high * 1.08, logarithmic=True)
    room = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return Scale(low - room, high + room)


def heat_map(
    caption: str,
    across: Sequence[str],
    up: Sequence[str],
    values: Mapping[tuple[int, int], float],
    corner: str,
    *,
    middle: float | None,
    smaller_is_better: bool = False,
) -> Markup:
    """A table whose cells are tinted by their values: every value is written in its cell.

    across, up: names of columns and rows; values: by (column, row). middle: the value without a tint, None for that
    between the ends.
    """
    levels = _levels(list(values.values()), middle, smaller_is_better)
    head = tag("tr", tag("th", corner, scope="col"), *(tag("th", name, scope="col") for name in across))
    rows = []
    for j, name in enumerate(up):
        cells = [tag("th", name, scope="row")]
        for i in range(len(across)):
            value = values.get((i, j))
            cells.append(
                tag("td", "·", class_="none") if value is None else tag("td", _short(value), class_=f"h{levels(value)}")
            )
        rows.append(tag("tr", *cells))
    made = tag("table", tag("thead", head), tag("tbody", *rows), class_="heat")
    region = tag("div", made, class_="scroll", tabindex=0, role="region", aria_label=caption)
    return joined((tag("p", caption, class_="note"), region))


def _short(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else fmt.number(float(f"{value:.3g}"))


def _levels(values: Sequence[float], middle: float | None, smaller_is_better: bool) -> Callable[[float], int]:
    """The tint of a value: an index of :func:`rlsim.report.page.palette.heat`, worst to best, even in logarithms."""
    positive = all(value > 0 for value in values)
    plain = [math.log(value) if positive else value for value in values]
    centre = (min(plain) + max(plain)) / 2 if middle is None else math.log(middle) if positive else middle
    reach = max((abs(value - centre) for value in plain), default=0.0) or 1.0
    most = len(HEAT_SHARES)

    def level(value: float) -> int:
        off = ((math.log(value) if positive else value) - centre) / reach
        return most + round((-off if smaller_is_better else off) * most)

    return level
