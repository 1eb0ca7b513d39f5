"""Rows of bars and of numbers with their intervals over one axis; phases in a log, lengths in a trace, checks."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from rlsim.report import format as fmt
from rlsim.report.figures.style import BACKGROUND, DPI, GREY, INK, LINE_COLORS, counts_axis, picture_style
from rlsim.report.text.attribution import LABELS, faster
from rlsim.results import Interval
from rlsim.results.check import Check, Improvement

if TYPE_CHECKING:
    from rlsim.readers.traces.process import Test
    from rlsim.readers.traces.workload import Lengths

WIDTH_IN, BAR_IN, ROW_GAP_IN = 9.0, 0.2, 0.13
TIP = "tip:"
"""Beginning of the id of a drawn thing whose rest a page shows where it is hovered over."""
LABEL_CHARACTERS, TEXT_CHARACTERS = 44, 90
KEY_COLUMNS = 4


@dataclass(frozen=True)
class Bar:
    """An interval as a whisker with its mean as a mark, over areas from start to end, each in its colour.

    limit: a mark across. color, mark: of the whisker.
    """

    interval: Interval | None = None
    areas: Sequence[tuple[float, float, str]] = ()
    limit: float | None = None
    color: str = INK
    mark: str = "o"

    @classmethod
    def of(cls, length: float, color: str, interval: Interval | None = None) -> Bar:
        """A bar from zero in one colour."""
        return cls(interval, [(0.0, length, color)])


@dataclass(frozen=True)
class BarRow:
    """A label, bars under each other, and a text behind them."""

    label: str
    text: str
    bars: Sequence[Bar]


@picture_style()
def bars_figure(
    rows: Sequence[BarRow], unit: str, key: Mapping[str, str] | None = None, rule: float | None = None, title: str = ""
) -> Figure:
    """Rows of bars over an axis in ``unit``. key: what colours mean. rule: a dashed line; zero may then be far off."""
    labels = [textwrap.wrap(row.label[: 4 * LABEL_CHARACTERS], LABEL_CHARACTERS) or [""] for row in rows]
    heights = [
        max(len(row.bars) * BAR_IN, 0.17 * len(label)) + ROW_GAP_IN for row, label in zip(rows, labels, strict=True)
    ]
    above_in = (0.24 * -(-len(key) // KEY_COLUMNS) + 0.1 if key else 0.0) + (0.3 if title else 0.0)
    figure = Figure(figsize=(WIDTH_IN, sum(heights) + 0.55 + above_in), dpi=DPI, layout="constrained")
    axes = _axes(figure, unit, sum(heights))
    places, ends = [], [0.0]
    for i, row in enumerate(rows):
        middle = sum(heights[:i]) + (heights[i] - ROW_GAP_IN) / 2
        places.append(middle)
        # Texts come from files and would else squeeze the axes.
        text = row.text[:TEXT_CHARACTERS]
        axes.annotate(text, (1.01, middle), xycoords=("axes fraction", "data"), va="center", fontsize=9, color=INK)
        for number, bar in enumerate(row.bars):
            before = set(axes.get_children())
            ends += _draw(axes, bar, middle + BAR_IN * (number - (len(row.bars) - 1) / 2))
            # barh and plot return several artists each; whatever is new belongs to this bar.
            for artist in set(axes.get_children()) - before:
                artist.set_gid(f"{TIP}{_tooltip(row, bar, unit)}")
    axes.set_yticks(places, ["\n".join(label) for label in labels], fontsize=9)
    if rule is None:
        # "or 1.0": bars of no length need an axis all the same.
        axes.set_xlim(min(ends), 1.01 * max(ends) or 1.0)
    else:
        axes.axvline(rule, color=INK, lw=0.9, ls="--")
    if title:
        axes.set_title(title, fontsize=10.5, loc="left")
    if key:
        handles = [Patch(color=color, label=words) for color, words in key.items()]
        figure.legend(handles=handles, loc="outside upper left", ncols=KEY_COLUMNS, frameon=False, fontsize=9)
    return figure


def _tooltip(row: BarRow, bar: Bar, unit: str) -> str:
    """Text shown where a bar is hovered over: its label, its value with the interval, and the text behind it."""
    value = bar.interval
    if value is None:
        return f"{row.label}: {row.text}"
    mean, low, high = (fmt.number(each) for each in (value.mean, value.low, value.high))
    return f"{row.label}: {mean} [{low}, {high}] {unit}"


def _axes(figure: Figure, unit: str, height: float) -> Axes:
    axes = figure.add_subplot()
    # Reversed: the first row stands on top.
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


def _draw(axes: Axes, bar: Bar, y: float) -> list[float]:
    """The ends of all that is drawn of it."""
    ends = [end for start, stop, _ in bar.areas for end in (start, stop)]
    for start, end, color in bar.areas:
        axes.barh(y, end - start, left=start, height=0.86 * BAR_IN, color=color, edgecolor="white", lw=0.8)
    if (value := bar.interval) is not None:
        axes.plot([value.low, value.high], [y, y], color=bar.color, linewidth=1.3, marker="|", markersize=6)
        axes.plot(value.mean, y, bar.mark, color=bar.color, markersize=4)
        ends += [value.low, value.high]
    if bar.limit is not None:
        axes.plot([bar.limit] * 2, [y - 0.6 * BAR_IN, y + 0.6 * BAR_IN], color=INK, lw=2)
        ends.append(bar.limit)
    return ends


def stacked(sizes: Sequence[tuple[float, str]]) -> Bar:
    """Areas one after the other, those of no size left out: (size, colour) of each."""
    areas, start = [], 0.0
    for size, color in sizes:
        if size > 0:
            areas.append((start, start + size, color))
            start += size
    return Bar(areas=areas)


MARKS = ((INK, "o"), (GREY, "s"), (LINE_COLORS[0], "D"))
"""Of what was measured, of what was expected of it, and of what is expected now."""


def beside_figure(title: str, phases: Mapping[str, Sequence[Interval | None]], sides: Sequence[str]) -> Figure:
    """Seconds of each phase by its label on each of the ``sides``, in the order of MARKS; None is left out."""
    rows = []
    for label, values in phases.items():
        marked = [(value, mark) for value, mark in zip(values, MARKS, strict=False) if value is not None]
        rows.append(BarRow(label, "", [Bar(value, color=color, mark=mark) for value, (color, mark) in marked]))
    key = {color: words for (color, _), words in zip(MARKS, sides, strict=False)}
    return bars_figure(rows, "seconds of a step", key, title=title)


def checked_figure(check: Check) -> Figure:
    """Seconds of each phase of a checked run: measured, expected, and under the best explanation."""
    best = check.groups[0].members[0] if check.groups and not check.likely_healthy else None
    phases: dict[str, list[Interval | None]] = {}
    for one in check.phases:
        explained = None if best is None else best.phases_s.get(one.phase)
        points = [None if seconds is None else Interval(*[seconds] * 3) for seconds in (one.measured_s, explained)]
        phases[LABELS[one.phase]] = [points[0], one.expected_s, points[1]]
    sides = ["measured", "expected, 90 % interval", *([] if best is None else [best.title])]
    return beside_figure(f"{check.scenario}: measured beside expected", phases, sides)


MOST_MOVES, MOST_CAUSES = 12, 4
SAME, OTHER, CAUSE, IDEAL = (LINE_COLORS[place] for place in (2, 0, 4, 5))
"""Of moves with the same update and with another one, of causes of idle time, and of the ideal."""


def improvement_figure(found: Improvement) -> Figure | None:
    """The step as it is, under each move that shortens it, without each cause of idle time, and at each rung of the
    ideal, with what the moves gain. None where neither was asked for."""
    moves, idle, ladder = found.moves, found.idle, found.headroom
    steps = [moves.step_s.mean] if moves else [each.step_s for each in (ladder, idle) if each]
    if not steps:
        return None
    rows = [BarRow("now", "", [Bar.of(steps[0], GREY, moves.step_s if moves else None)])]
    for one in faster(moves)[:MOST_MOVES] if moves else ():
        bar = Bar.of(one.step_s.mean, SAME if one.same_update else OTHER, one.step_s)
        rows.append(BarRow(one.name, fmt.times(one.speedup), [bar]))
    causes = sorted((each for each in idle.removals if each.saved_s > 0), key=lambda each: each.step_s) if idle else ()
    rows += [BarRow(f"without {each.cause}", "", [Bar.of(each.step_s, CAUSE)]) for each in causes[:MOST_CAUSES]]
    rungs = ladder.rungs[1:] if ladder else ()
    rows += [BarRow(each.name, "", [Bar.of(each.step_s, IDEAL)]) for each in rungs]
    key = {SAME: "move, same update", OTHER: "move, another update", CAUSE: "a cause of idle time gone",
           IDEAL: "ideal, one on the other"}  # fmt: skip
    drawn = {color for row in rows for bar in row.bars for _, _, color in bar.areas}
    shown = {color: words for color, words in key.items() if color in drawn}
    return bars_figure(rows, "seconds of a step", shown, title=f"{found.scenario}: what would shorten a step")


POINTS = 400


@picture_style()
def lengths_figure(title: str, shown: Sequence[Lengths], cap: float | None) -> Figure:
    """Cumulative distributions of lengths in tokens: measured, lognormal, table of quantiles where that is too far off.

    cap: longest of the first ones, the responses, in tokens; None without one.
    """
    figure = Figure(figsize=(5.2 * len(shown) + 0.4, 4.2), layout="constrained")
    for place, one in enumerate(shown):
        axes = figure.add_subplot(1, len(shown), place + 1)
        _lengths(axes, one)
        if place == 0:
            if cap is not None:
                axes.axvline(cap, color=GREY, linewidth=0.8, linestyle=":")
            axes.set_ylabel("share of samples up to this length")
            axes.legend(frameon=False, loc="upper left")
    figure.suptitle(title, x=0.01, ha="left")
    return figure


@picture_style()
def process_figure(title: str, tests: Sequence[Test]) -> Figure:
    """Cumulative distributions of trajectories, measured and drawn from a fitted process, with the test's p."""
    figure = Figure(figsize=(3.4 * len(tests) + 0.4, 3.6), layout="constrained")
    fine = np.linspace(0.0, 1.0, POINTS)
    for place, one in enumerate(tests):
        axes = figure.add_subplot(1, len(tests), place + 1)
        for values, color, label in ((one.measured, INK, "measured"), (one.drawn, LINE_COLORS[1], "fitted process")):
            axes.plot(np.quantile(values, fine, method="hazen"), fine, color=color, linewidth=1.6, label=label)
        axes.set_xlabel(f"{one.name} (p = {one.p:.2f})")
        # Long tails would press the rest to the left; environments may take no time at all.
        counts_axis(axes)
        if one.measured.min() < 1:
            axes.set_xscale("symlog")
            axes.xaxis.set_major_formatter("{x:,.0f}")
        if place == 0:
            axes.set_ylabel("share of trajectories up to it")
            axes.legend(frameon=False, loc="upper left")
    figure.suptitle(title, x=0.01, ha="left")
    return figure


def _lengths(axes: Axes, one: Lengths) -> None:
    fine = np.linspace(0.0, 1.0, POINTS)
    # At least 1 token: the axis is logarithmic.
    measured = np.maximum(np.quantile(one.tokens, fine, method="hazen"), 1.0)
    grid = np.geomspace(measured[0], max(measured[-1], measured[0] * 1.01), POINTS)
    axes.plot(measured, fine, color=INK, linewidth=2.2, label="measured", drawstyle="steps-post")
    near = one.lognormal or one.constant
    chosen = "" if near else " (too far off)"
    axes.plot(grid, one.fit.cdf(grid), color=LINE_COLORS[1], linewidth=1.4, linestyle="--", label=f"lognormal{chosen}")
    if not near:
        levels, tokens = one.quantiles
        axes.plot(np.maximum(tokens, 1.0), levels, "o", color=LINE_COLORS[0], markersize=3.5, label="quantiles")
    counts_axis(axes)
    axes.set_ylim(-0.02, 1.04)
    axes.set_xlabel(f"{one.name} tokens")
