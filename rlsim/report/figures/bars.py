"""Rows of bars and of numbers with their intervals over one axis."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from rlsim.report import format as fmt
from rlsim.report.figures.style import BACKGROUND, DPI, INK, picture_style
from rlsim.results import Interval

WIDTH_IN, BAR_IN, ROW_GAP_IN = 9.0, 0.2, 0.13
LABEL_CHARACTERS, TEXT_CHARACTERS = 44, 90
KEY_COLUMNS = 4


@dataclass(frozen=True)
class Bar:
    """Areas from start to end, each in its colour; interval: a whisker over them; limit: a mark across."""

    areas: Sequence[tuple[float, float, str]]
    interval: Interval | None = None
    limit: float | None = None


@dataclass(frozen=True)
class BarRow:
    """A label, bars under each other, and a text behind them."""

    label: str
    text: str
    bars: Sequence[Bar]


@picture_style()
def bars_figure(rows: Sequence[BarRow], unit: str, key: Mapping[str, str] | None = None) -> Figure:
    """Rows of bars over an axis in ``unit``. key: what colours mean."""
    key_in = 0.24 * -(-len(key) // KEY_COLUMNS) + 0.1 if key else 0.0
    heights = [max(len(row.bars) * BAR_IN, 0.17 * len(_lines(row.label))) + ROW_GAP_IN for row in rows]
    figure = Figure(figsize=(WIDTH_IN, sum(heights) + 0.55 + key_in), dpi=DPI, layout="constrained")
    axes = _axes(figure, unit, sum(heights))
    ends = [0.0]
    places, top = [], 0.0
    for row, height in zip(rows, heights, strict=True):
        places.append(top + (height - ROW_GAP_IN) / 2)
        for number, bar in enumerate(row.bars):
            y = top + BAR_IN * (number + 0.5)
            for start, end, color in bar.areas:
                axes.barh(y, end - start, left=start, height=0.86 * BAR_IN, color=color, edgecolor="white", lw=0.8)
                ends += [start, end]
            if bar.interval is not None:
                _whisker(axes, bar.interval, y)
                ends += [bar.interval.high]
            if bar.limit is not None:
                axes.plot([bar.limit] * 2, [y - 0.6 * BAR_IN, y + 0.6 * BAR_IN], color=INK, lw=2)
                ends.append(bar.limit)
        top += height
    _labels(axes, rows, places)
    axes.set_xlim(min(ends), 1.01 * max(ends) or 1.0)
    if key:
        handles = [Patch(color=color, label=words) for color, words in key.items()]
        figure.legend(handles=handles, loc="outside upper left", ncols=KEY_COLUMNS, frameon=False, fontsize=9)
    return figure


@picture_style()
def intervals_figure(rows: Sequence[tuple[str, str, Interval]], unit: str, rule: float | None = None) -> Figure:
    """Means with 90 % intervals over an axis in ``unit``: (label, text, interval) in rows. rule: a dashed line."""
    shown = [BarRow(label, text, ()) for label, text, _ in rows]
    heights = [0.17 * len(_lines(row.label)) + 0.15 for row in shown]
    figure = Figure(figsize=(WIDTH_IN, sum(heights) + 0.55), dpi=DPI, layout="constrained")
    axes = _axes(figure, unit, sum(heights))
    places = [sum(heights[:i]) + height / 2 for i, height in enumerate(heights)]
    for place, (_, _, value) in zip(places, rows, strict=True):
        _whisker(axes, value, place)
    _labels(axes, shown, places)
    if rule is None:
        axes.set_xlim(left=min(0.0, *(value.low for _, _, value in rows)))
    else:
        axes.axvline(rule, color=INK, lw=0.9, ls="--")
    return figure


def _axes(figure: Figure, unit: str, height: float) -> Axes:
    axes = figure.add_subplot()
    axes.set_ylim(height, 0)
    axes.grid(axis="x", color=BACKGROUND, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(lambda value, _: fmt.number(float(f"{value:.6g}")))
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=9)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(unit, fontsize=9)
    return axes


def _labels(axes: Axes, rows: Sequence[BarRow], places: Sequence[float]) -> None:
    axes.set_yticks(places, ["\n".join(_lines(row.label)) for row in rows], fontsize=9)
    for row, place in zip(rows, places, strict=True):
        text = row.text[:TEXT_CHARACTERS]
        axes.annotate(text, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=9, color=INK)


def _whisker(axes: Axes, value: Interval, y: float) -> None:
    axes.plot([value.low, value.high], [y, y], color=INK, linewidth=1.3, marker="|", markersize=6)
    axes.plot(value.mean, y, "o", color=INK, markersize=4)


def _lines(label: str) -> list[str]:
    return textwrap.wrap(label[: 4 * LABEL_CHARACTERS], LABEL_CHARACTERS) or [""]
