"""Pictures of what was measured: phases in a log, lengths in a trace, checked engine steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlsim.report.figures.bars import Bar, BarRow, bars_figure
from rlsim.report.figures.style import BACKGROUND, GREY, INK, LINE_COLORS, picture_style
from rlsim.report.text.attribution import LABELS
from rlsim.results import Interval
from rlsim.results.check import Check
from rlsim.units import FloatArray

POINTS = 400
BANDS = ((0.2, 0.12), (0.1, 0.2))
"""Shaded deviations from the diagonal as shares, and how dark they are."""
SIDES = (
    (INK, "o", "measured: median, 10 to 90 % of the steps"),
    (GREY, "s", "predicted, 90 % interval of the median"),
    (LINE_COLORS[0], "D", "predicted with this run"),
)


def log_figure(title: str, phases: Mapping[str, Sequence[Interval | None]]) -> Figure:
    """Seconds of each phase by its label: measured, predicted, and predicted with the run; None is left out."""
    rows = []
    for label, values in phases.items():
        told = [(value, side) for value, side in zip(values, SIDES, strict=True) if value is not None]
        rows.append(BarRow(label, "", [Bar(value, color=color, mark=mark) for value, (color, mark, _) in told]))
    return bars_figure(rows, "seconds of a step", {color: words for color, _, words in SIDES}, title=title)


def checked_figure(check: Check) -> Figure:
    """Seconds of each phase of a checked run: measured, expected, and under the best explanation."""
    best = check.groups[0].members[0] if check.groups and not check.likely_healthy else None
    sides = {INK: "measured", GREY: "expected, 90 % interval"} | ({LINE_COLORS[0]: best.title} if best else {})
    rows = []
    for one in check.phases:
        bars = [Bar(one.expected_s, color=GREY, mark="s")]
        if one.measured_s is not None:
            bars.append(Bar(Interval(one.measured_s, one.measured_s, one.measured_s), color=INK, mark="o"))
        if best is not None and one.phase in best.phases_s:
            value = best.phases_s[one.phase]
            bars.append(Bar(Interval(value, value, value), color=LINE_COLORS[0], mark="D"))
        rows.append(BarRow(LABELS[one.phase], "", bars))
    return bars_figure(rows, "seconds of a step", sides, title=f"{check.scenario}: measured beside expected")


@dataclass(frozen=True, eq=False)
class MeasuredLengths:
    """Lengths in tokens with what stands for them. cdf: of the lognormal; quantiles: levels and tokens, where the
    lognormal is too far off; cap: longest response in tokens, where there is one."""

    name: str
    tokens: FloatArray
    cdf: Callable[[FloatArray], FloatArray]
    quantiles: tuple[FloatArray, FloatArray] | None
    cap: float | None


@picture_style()
def lengths_figure(title: str, shown: Sequence[MeasuredLengths]) -> Figure:
    """Cumulative distributions of lengths in tokens: measured, lognormal, table of quantiles."""
    figure = Figure(figsize=(5.2 * len(shown) + 0.4, 4.2), facecolor=BACKGROUND, layout="constrained")
    for place, one in enumerate(shown):
        axes = figure.add_subplot(1, len(shown), place + 1)
        _lengths(axes, one)
        if one.cap is not None:
            axes.axvline(one.cap, color=GREY, linewidth=0.8, linestyle=":")
        if place == 0:
            axes.set_ylabel("share of samples up to this length")
            axes.legend(frameon=False, loc="upper left")
    figure.suptitle(title, x=0.01, ha="left")
    return figure


def _lengths(axes: Axes, one: MeasuredLengths) -> None:
    fine = np.linspace(0.0, 1.0, POINTS)
    measured = np.maximum(np.quantile(one.tokens, fine, method="hazen"), 1.0)
    grid = np.geomspace(measured[0], max(measured[-1], measured[0] * 1.01), POINTS)
    axes.plot(measured, fine, color=INK, linewidth=2.2, label="measured", drawstyle="steps-post")
    chosen = "" if one.quantiles is None else " (too far off)"
    axes.plot(grid, one.cdf(grid), color=LINE_COLORS[1], linewidth=1.4, linestyle="--", label=f"lognormal{chosen}")
    if one.quantiles is not None:
        levels, tokens = one.quantiles
        axes.plot(np.maximum(tokens, 1.0), levels, "o", color=LINE_COLORS[0], markersize=3.5, label="quantiles")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(-0.02, 1.04)
    axes.set_xlabel(f"{one.name} tokens")


@dataclass(frozen=True)
class CheckedSteps:
    """Engine steps of one kind in milliseconds; label: of the kind."""

    label: str
    marker: str
    measured_ms: Sequence[float]
    predicted_ms: Sequence[float]


@picture_style()
def check_figure(title: str, steps: Sequence[CheckedSteps]) -> Figure:
    """Predicted over measured milliseconds with the 10 and 20 % bands."""
    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    axes = figure.add_subplot()
    measured = [value for one in steps for value in one.measured_ms]
    ends = [min(measured) / 1.5, max(measured) * 1.5]
    for band, shade in BANDS:
        low, high = ([end * (1 + side * band) for end in ends] for side in (-1, 1))
        axes.fill_between(ends, low, high, color=GREY, alpha=shade, lw=0)
    axes.plot(ends, ends, color=INK, lw=0.8)
    for one in steps:
        axes.scatter(one.measured_ms, one.predicted_ms, s=18, marker=one.marker, label=one.label, alpha=0.8)
    axes.set(xscale="log", yscale="log", xlim=ends, xlabel="measured [ms]", ylabel="predicted [ms]", title=title)
    axes.legend(fontsize=8)
    return figure
