"""Pictures of measured halves: measured against predicted, and predicted over measured by running batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from rlsim.errors import shortened
from rlsim.report.format import percent, signed_percent
from rlsim.report.style import BACKGROUND, DPI, GREY, LINE_COLORS, picture_style, save_picture
from rlsim.validation.measured import MeasuredRow, MeasuredTable
from rlsim.validation.plots import MARKERS, decimal_ticks, heading
from rlsim.validation.scores import Score

MOST_KEYS = 21
"""Groups with a colour and a mark of their own; smaller ones share grey."""
MOST_PANELS, PANELS_IN_A_ROW = 30, 4
LEAST_RATIO, MOST_RATIO = 0.2, 8.0
"""Range of predicted over measured that panels show; what lies beyond stands at its end."""
_RATIO_TICKS = (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0, 8.0)
_BATCH_TICKS = (1, 8, 64, 512, 4096)


def measured_scatter(found: MeasuredTable, path: Path) -> None:
    """Measured against predicted value of every scored row, both axes logarithmic; colour and shape tell the group."""
    rows = found.scored
    with picture_style():
        figure = Figure(figsize=(10.2, 7.0), dpi=DPI, facecolor="white")
        axes = figure.add_axes((0.075, 0.085, 0.55, 0.80))
        heading(figure, f"Measured and predicted {found.kind}", table_score(found))
        if rows:
            _points(axes, rows, list(found.groups))
        else:
            axes.text(0.5, 0.5, "no row could be simulated", ha="center", transform=axes.transAxes, color=GREY)
        save_picture(figure, path)


def _points(axes: Axes, rows: Sequence[MeasuredRow], groups: Sequence[str]) -> None:
    for index, group in enumerate(groups):
        own = index < MOST_KEYS
        members = [row for row in rows if row.group == group]
        label = shortened(group, 46) if own else "smaller groups" if index == MOST_KEYS else None
        axes.plot(
            [float(row.measured or 0.0) for row in members],
            [float(row.predicted or 0.0) for row in members],
            MARKERS[index // len(LINE_COLORS) % len(MARKERS)] if own else ".",
            color=LINE_COLORS[index % len(LINE_COLORS)] if own else GREY,
            markersize=4, alpha=0.65, markeredgewidth=0, label=label,
        )  # fmt: skip
    values = [float(v) for row in rows for v in (row.measured, row.predicted) if v]
    ends = np.array([min(values) / 1.35, max(values) * 1.35])
    axes.fill_between(ends, ends * 0.8, ends * 1.2, color=BACKGROUND, linewidth=0, zorder=0, label="± 20 %")
    axes.plot(ends, ends, color=GREY, linewidth=1.0, zorder=1)
    units = ", ".join(dict.fromkeys(row.unit for row in rows))
    axes.set(
        xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel=f"measured, {units}", ylabel=f"predicted, {units}"
    )
    axes.set_aspect("equal")
    decimal_ticks(axes, ends)
    axes.legend(
        loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False, fontsize=8, borderaxespad=0.0, labelspacing=0.35
    )


def by_batch(found: MeasuredTable, path: Path) -> None:
    """Predicted over measured of every scored iteration by its running batch, one panel for each engine and device.

    Colour tells the model; open marks speculate. Both axes are logarithmic.
    """
    panels: dict[tuple[str, str], list[MeasuredRow]] = {}
    for row in found.scored:
        panels.setdefault((str(row.details["engine"]), str(row.details["gpu"])), []).append(row)
    kept = dict(sorted(sorted(panels.items(), key=lambda item: -len(item[1]))[:MOST_PANELS]))
    models = list(dict.fromkeys(str(row.details["model"]) for rows in kept.values() for row in rows))
    columns = min(PANELS_IN_A_ROW, max(1, len(kept)))
    lines = max(1, math.ceil(len(kept) / columns))
    keys = math.ceil((len(models) + 1) / 4)
    width, height = max(7.5, 3.1 * columns), 2.55 * lines + 1.35 + 0.24 * keys
    with picture_style():
        figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
        heading(figure, "Predicted over measured iteration, by running batch", table_score(found))
        grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
        figure.subplots_adjust(
            left=0.6 / width, right=1 - 0.15 / width, top=1 - 1.1 / height, bottom=(0.75 + 0.24 * keys) / height,
            wspace=0.08, hspace=0.34,
        )  # fmt: skip
        for axes, (name, rows) in zip(grid.flat, kept.items(), strict=False):
            _panel(axes, shortened(" on ".join(name), 36), rows, models)
        for axes in list(grid.flat)[len(kept) :]:
            axes.set_visible(False)
        _model_key(figure, models)
        save_picture(figure, path)


def _panel(axes: Axes, name: str, rows: Sequence[MeasuredRow], models: Sequence[str]) -> None:
    for index, model in enumerate(models):
        for speculative in (False, True):
            chosen = [r for r in rows if r.details["model"] == model and bool(r.details["speculative"]) == speculative]
            color = LINE_COLORS[index % len(LINE_COLORS)]
            axes.plot(
                [float(row.details["batch"] or 1.0) for row in chosen],
                np.clip([1 + (row.error or 0.0) for row in chosen], LEAST_RATIO * 1.02, MOST_RATIO / 1.02),
                MARKERS[index // len(LINE_COLORS) % len(MARKERS)],
                color=color, markersize=3.6, alpha=0.7, markeredgewidth=0.8 if speculative else 0.0,
                markerfacecolor="white" if speculative else color,
            )  # fmt: skip
    score = Score.of(rows)
    axes.axhspan(0.8, 1.25, color=BACKGROUND, alpha=0.8, linewidth=0, zorder=0)
    axes.axhline(1.0, color=GREY, linewidth=1.0, zorder=1)
    axes.set(xscale="log", yscale="log", ylim=(LEAST_RATIO, MOST_RATIO))
    told = f"{len(rows)} rows, bias {signed_percent(score.bias or 0)}, median {percent(score.median_abs_error or 0)}"
    axes.set_title(name, fontsize=9.5, loc="left", pad=15, fontweight="bold")
    axes.text(0.0, 1.02, told, transform=axes.transAxes, fontsize=7.5, color=GREY, va="bottom")
    for axis, ticks in ((axes.xaxis, _BATCH_TICKS), (axes.yaxis, _RATIO_TICKS)):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.tick_params(labelsize=7.5, labelbottom=True)


def _model_key(figure: Figure, models: Sequence[str]) -> None:
    axes = figure.add_axes((0, 0, 1, 1), frameon=False)
    axes.set_axis_off()
    axes.set_zorder(-1)
    for index, model in enumerate(models):
        marker, color = MARKERS[index // len(LINE_COLORS) % len(MARKERS)], LINE_COLORS[index % len(LINE_COLORS)]
        axes.plot([], [], marker, color=color, label=shortened(model, 34), markersize=5)
    axes.plot([], [], "o", color=GREY, markerfacecolor="white", label="speculating (open)", markersize=5)
    axes.legend(loc="lower center", ncols=4, frameon=False, fontsize=8.5, columnspacing=1.4, handletextpad=0.3)
    width, height = figure.get_size_inches()
    keys = math.ceil((len(models) + 1) / 4)
    figure.text(0.5, (0.28 + 0.24 * keys) / height, "sequences that decode at once", ha="center", fontsize=9.5)
    figure.text(0.12 / width, 0.5, "predicted over measured", rotation=90, va="center", fontsize=9.5)


def table_score(found: MeasuredTable) -> str:
    """The line below a title: table, rows, bias, errors as shares of the measured values, coverage."""
    score = found.score
    if not score.n:
        return shortened(found.table, 80)
    errors = f"median error {percent(score.median_abs_error or 0, 1)}, p90 {percent(score.p90_abs_error or 0, 1)}"
    return (
        f"{shortened(found.table, 50)}: {score.n:,} of {len(found.rows):,} rows; "
        f"bias {signed_percent(score.bias or 0)}, {errors}, "
        f"{percent(score.coverage or 0)} inside 90 % intervals (x{score.half_width or 1.0:.2f})"
    )
