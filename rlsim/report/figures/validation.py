"""Pictures of predicted beside measured: a scatter, ratios by group, the reliability of intervals, and of the real loop
phases of every configuration and speed-ups by draft length."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from rlsim.errors import shortened
from rlsim.report.figures.style import BACKGROUND, DPI, GREY, INK, LINE_COLORS, PHASE_COLORS, heading, picture_style
from rlsim.report.format import percent, signed_percent
from rlsim.report.text.validation import GROUPING_TITLES, TIME_TITLES, TITLES, errors_of
from rlsim.results.loop_check import LoopCheck, LoopRow, speedups_of
from rlsim.results.validation import ComparedRow, CrossValidation, Validation

MARKERS = ("o", "s", "^", "D", "v", "P")
MOST_KEYS = 21
"""Groups with a colour and a mark each in a scatter; smaller ones share grey."""
MOST_GROUPS = 40
"""Groups with a line each in a picture of ratios, the largest first."""
LEAST_RATIO, MOST_RATIO, BAND = 0.2, 5.0, 0.2
"""Range of predicted over measured that is shown (what lies beyond stands at its end), half the shaded band."""
_RATIO_TICKS = (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
_TICKS, _FINE_TICKS = (tuple(m * 10.0**e for e in range(-3, 7) for m in each) for each in ((1, 2, 5), range(1, 10)))


@picture_style()
def scatter(found: Validation, title: str = "") -> Figure:
    """Measured against predicted value of every scored row with its interval, both axes logarithmic."""
    figure = _titled(title or f"Measured and predicted: {TITLES[found.kind]}", found, 10.2, 7.0)
    if found.scored:
        _scattered(figure.add_axes((0.075, 0.085, 0.55, 0.80)), found)
    return figure


def _titled(title: str, found: Validation, width: float, height: float) -> Figure:
    """A page in inches with its title, and below it table, rows, bias, errors and coverage."""
    figure, score = Figure(figsize=(width, height), dpi=DPI, facecolor="white"), found.score
    if score.n:
        _, median, p90 = errors_of(score)
        line = (
            f"{shortened(found.table, 50)}{found.table and ': '}{score.n:,} of {len(found.rows):,} rows; "
            f"bias {signed_percent(score.bias or 0)}, median error {median}, p90 {p90}"
        )
        if score.half_width is not None:
            line += f", {percent(score.coverage or 0)} inside 90 % intervals (x{score.half_width:.2f})"
    else:
        line = shortened(found.table, 80)
        figure.text(0.5, 0.5, "no row could be simulated", ha="center", color=GREY)
    heading(figure, title, line)
    return figure


def _scattered(axes: Axes, found: Validation) -> None:
    rows, few = found.scored, len(found.scored) <= 200
    for index, group in enumerate(found.groups):
        members = [row for row in rows if row.group == group]
        named = index < MOST_KEYS
        color = LINE_COLORS[index % len(LINE_COLORS)] if named else GREY
        marker = MARKERS[index // len(LINE_COLORS) % len(MARKERS)] if named else "."
        label = shortened(group, 46) if named else "smaller groups" if index == MOST_KEYS else None
        x, y, low, high = (_values(members, name) for name in ("measured", "predicted", "low", "high"))
        axes.plot(x, y, marker, color=color, markersize=4, alpha=0.65, markeredgewidth=0, label=label, zorder=3)
        if few and any(high):
            # A lower end near 0 would leave a logarithmic axis.
            axes.vlines(x, np.maximum(low, np.array(y) / 100), high, color=color, alpha=0.4, linewidth=1.2, zorder=2)
    values = _values(rows, "measured") + _values(rows, "predicted")
    ends = np.array([min(values) / 1.35, max(values) * 1.35])
    axes.fill_between(ends, ends * (1 - BAND), ends * (1 + BAND), color=BACKGROUND, linewidth=0, zorder=0)
    axes.plot(ends, ends, color=GREY, linewidth=1.0, zorder=1)
    units = ", ".join(dict.fromkeys(row.unit for row in rows))
    names = {"xlabel": f"measured, {units}; shade: ± {percent(BAND)}", "ylabel": f"predicted, {units}"}
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, **names)
    axes.set_aspect("equal")
    for axis in (axes.xaxis, axes.yaxis):
        coarse, fine = ([tick for tick in ticks if ends[0] <= tick <= ends[1]] for ticks in (_TICKS, _FINE_TICKS))
        # Within less than a decade 1, 2, 5 leave too few ticks.
        _plain_ticks(axis, coarse if len(coarse) > 2 else fine)
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False, fontsize=8, labelspacing=0.35)


@picture_style()
def ratios(found: Validation, by: str = "") -> Figure:
    """Predicted over measured of every scored row: a line for each group with its median as a bar.

    by: detail of the rows that colours stand for; none without.
    """
    groups = list(reversed(list(found.groups)[:MOST_GROUPS]))
    names = sorted({_label(row, by) for row in found.scored if row.group in groups}) or [""]
    keys = 0.26 * math.ceil((len(names) + 1) / 3)
    height = 2.2 + keys + 0.40 * max(2, len(groups))
    figure = _titled(f"Predicted over measured: {TITLES[found.kind]}", found, 10.5, height)
    if not found.scored:
        return figure
    axes = figure.add_axes((0.36, (0.75 + keys) / height, 0.61, 1 - (1.75 + keys) / height))
    for place, group in enumerate(groups):
        _ratio_line(axes, [row for row in found.scored if row.group == group], place, names, by)
    axes.axvspan(1 - BAND, 1 + BAND, color=BACKGROUND, alpha=0.8, linewidth=0, zorder=0)
    axes.axvline(1.0, color=GREY, linewidth=1.0, zorder=1)
    axes.set(xscale="log", xlim=(LEAST_RATIO, MOST_RATIO), ylim=(-0.6, len(groups) - 0.4))
    labels = [f"{shortened(group, 54)}  ({found.groups[group].n})" for group in groups]
    axes.set_yticks(range(len(groups)), labels, fontsize=7.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("predicted over measured; in brackets the number of rows", fontsize=9)
    _plain_ticks(axes.xaxis, _RATIO_TICKS)
    axes.plot([], [], color=INK, linewidth=1.4, label=f"median; shade: ± {percent(BAND)}")
    handles, texts = axes.get_legend_handles_labels()
    # Every group adds the names again; the legend shows each once.
    unique = dict(zip(texts, handles, strict=True))
    figure.legend(unique.values(), unique.keys(), loc="lower center", ncols=3, frameon=False, fontsize=8.5)
    return figure


def _ratio_line(axes: Axes, rows: Sequence[ComparedRow], place: int, names: Sequence[str], by: str) -> None:
    """Ratios of one group spread around ``place`` by name, and their median."""
    ratio = np.array([1 + (row.error or 0.0) for row in rows])
    for index, name in enumerate(names):
        # A little inside the ends, where a mark would be cut in half.
        values = np.clip(ratio[[_label(row, by) == name for row in rows]], LEAST_RATIO * 1.03, MOST_RATIO / 1.03)
        if values.size:
            across = place + min(0.2, 0.62 / len(names)) * (index - (len(names) - 1) / 2)
            color, marker = LINE_COLORS[index % len(LINE_COLORS)], MARKERS[index % len(MARKERS)]
            label = shortened(name, 38) or None
            axes.plot(values, [across] * len(values), marker, color=color, label=label, markersize=4.2, alpha=0.7)
    middle = float(np.clip(np.median(ratio), LEAST_RATIO, MOST_RATIO))
    axes.plot([middle, middle], [place - 0.38, place + 0.38], color=INK, linewidth=1.4, zorder=2)


@picture_style()
def reliability(found: CrossValidation) -> Figure:
    """Share of left-out times below each quantile of their predictions, a panel for each kind of time."""
    figure = Figure(figsize=(10.4, 3.9), dpi=DPI, facecolor="white")
    heading(figure, "Do 90 % intervals hold 90 %?", "groups left out of the joint fit and predicted by the rest")
    levels = np.linspace(0, 1, 101)
    for number, (kind, title) in enumerate(TIME_TITLES.items()):
        axes = figure.add_axes((0.06 + 0.238 * number, 0.24, 0.2, 0.53))
        axes.set_title(title, fontsize=10, loc="left")
        axes.fill_between(levels, levels - 0.05, levels + 0.05, color=BACKGROUND, linewidth=0)
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=1.0)
        for color, (grouping, label) in zip(itertools.cycle(LINE_COLORS), GROUPING_TITLES.items(), strict=False):
            for one in found.ranks:
                if (one.kind, one.grouping) == (kind, grouping):
                    shares = [float(np.mean(np.array(one.values) <= level)) for level in levels]
                    axes.plot(levels, shares, color=color, linewidth=1.4, label=label)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="quantile of the prediction")
    figure.axes[0].set_ylabel("share of times below it")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _label(row: ComparedRow, by: str) -> str:
    return str(row.details.get(by) or "not given").split(" (")[0] if by else ""


def _values(rows: Sequence[ComparedRow], name: str) -> list[float]:
    return [float(getattr(row, name) or 0.0) for row in rows]


def _plain_ticks(axis: Axis, ticks: Sequence[float]) -> None:
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:,g}")


STACKED = {
    "shared": ("prepare_s", "generation_s", "data_s", "logprob_s", "train_s"),
    "split": ("exposed_generation_s", "data_s", "logprob_s", "train_s", "refit_s"),
}
"""Phases that add up to a step."""
BAR = 0.36


@picture_style()
def loop_check_figure(found: LoopCheck) -> Figure:
    """Above, two bars a configuration, the upper one measured; the whisker is the predicted 90 % interval of the step.
    Below, generation's speed-up by drafted tokens."""
    figure = Figure(figsize=(9.0, 2.6 + 0.42 * len(found.rows)), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[0.42 * len(found.rows), 2.2])
    for place, row in enumerate(found.rows):
        _bars(above, row, place)
    above.set_yticks(range(len(found.rows)), [row.name for row in found.rows], fontsize=9)
    above.invert_yaxis()
    names = dict.fromkeys(name for stack in STACKED.values() for name in stack)
    for name in names:
        above.barh(0, 0, color=PHASE_COLORS[name], label=name.removesuffix("_s").replace("_", " "))
    above.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    above.set_xlabel("seconds of a step: measured above, predicted below (paler)")
    _speedups(below, found)
    figure.suptitle(found.device, x=0.01, ha="left", fontsize=10)
    return figure


def _bars(axes: Axes, row: LoopRow, place: int) -> None:
    for side, offset, alpha in (("measured_s", -BAR / 2, 1.0), ("predicted_s", BAR / 2, 0.55)):
        left = 0.0
        for name in STACKED[row.settings["placement"]]:
            width = getattr(row.phases[name], side)
            axes.barh(place + offset, width, BAR, left=left, color=PHASE_COLORS[name], alpha=alpha)
            left += width
    low, high = row.interval
    axes.plot([low, high], [place + BAR / 2] * 2, color=INK, lw=1.0)


def _speedups(axes: Axes, found: LoopCheck) -> None:
    drafters = dict.fromkeys(row.settings["drafter"] for row in found.rows if row.speedup)
    for color, drafter in zip(LINE_COLORS, drafters, strict=False):
        speedups = speedups_of(found.rows, drafter)
        k = sorted(speedups)
        axes.plot(k, [speedups[length].measured for length in k], "o-", color=color, label=f"{drafter}, measured")
        axes.plot(
            k,
            [speedups[length].predicted for length in k],
            "s--",
            color=color,
            alpha=0.7,
            label=f"{drafter}, predicted",
        )
    axes.axhline(1.0, color=GREY, lw=0.8)
    axes.set(xlabel="drafted tokens k", ylabel="speed-up of generation")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
