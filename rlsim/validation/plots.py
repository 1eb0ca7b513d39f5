"""Pictures of a validation: measured against predicted, and where the error comes from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from rlsim.errors import shortened
from rlsim.report.format import percent
from rlsim.report.style import BACKGROUND, DPI, GREY, INK, LINE_COLORS, PHASE_COLORS, picture_style, save_picture
from rlsim.validation.validate import RowResult, Validation

MARKERS = ("o", "s", "^", "D", "v", "P")
MOST_BARS = 80
"""Rows of the waterfall; of longer tables those with the largest errors."""
WATERFALL_PHASES = ("generation_s", "logprob_s", "train_s", "prepare_s")
_LABELS = {"generation_s": "generation", "logprob_s": "log-prob", "train_s": "train", "prepare_s": "prepare"}
_TICKS = tuple(m * 10.0**e for e in range(-3, 7) for m in (1, 2, 5))


def scatter(validation: Validation, path: Path) -> None:
    """Measured against predicted step time of every scored row with its 90 % interval, both axes logarithmic.

    Colour tells the model, shape the device, an open mark an asynchronous run. OSError passes through.
    """
    rows = validation.scored
    with picture_style():
        figure = Figure(figsize=(8.6, 7.0), dpi=DPI, facecolor="white")
        axes = figure.add_axes((0.09, 0.085, 0.64, 0.80))
        heading(figure, "Measured and predicted step time", _subtitle(validation))
        if rows:
            _points(axes, rows)
        else:
            axes.text(0.5, 0.5, "no row could be simulated", ha="center", transform=axes.transAxes, color=GREY)
        save_picture(figure, path)


def _points(axes: Axes, rows: Sequence[RowResult]) -> None:
    models = list(dict.fromkeys(_short_model(row.model) for row in rows))
    devices = list(dict.fromkeys(row.device.lower() for row in rows))
    for row in rows:
        color = LINE_COLORS[models.index(_short_model(row.model)) % len(LINE_COLORS)]
        marker = MARKERS[devices.index(row.device.lower()) % len(MARKERS)]
        x, y, low, high = (float(v or 0.0) for v in (row.measured_s, row.predicted_s, row.low_s, row.high_s))
        axes.plot(
            [x, x], [max(low, y / 100), high], color=color, alpha=0.45, linewidth=1.4, solid_capstyle="butt", zorder=2
        )
        face = "white" if row.mode.startswith("async") else color
        axes.plot(
            [x], [y], marker=marker, color=color, markerfacecolor=face, markersize=6, markeredgewidth=1.3, zorder=3
        )
    values = [float(v) for row in rows for v in (row.measured_s, row.predicted_s) if v]
    ends = np.array([min(values) / 1.35, max(values) * 1.35])
    axes.fill_between(ends, ends * 0.8, ends * 1.2, color=BACKGROUND, linewidth=0, zorder=0, label="± 20 %")
    axes.plot(ends, ends, color=GREY, linewidth=1.0, zorder=1)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured, seconds", ylabel="predicted, seconds")
    axes.set_aspect("equal")
    decimal_ticks(axes, ends)
    _scatter_key(axes, models, devices)


def decimal_ticks(axes: Axes, ends: np.typing.NDArray[np.float64]) -> None:
    """Plain numbers at 1, 2 and 5 of each decade of two logarithmic axes that run between ``ends``."""
    ticks = [t for t in _TICKS if ends[0] <= t <= ends[1]]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _scatter_key(axes: Axes, models: Sequence[str], devices: Sequence[str]) -> None:
    for index, model in enumerate(models):
        axes.plot([], [], "o", color=LINE_COLORS[index % len(LINE_COLORS)], label=shortened(model, 22))
    for index, device in enumerate(devices):
        axes.plot([], [], MARKERS[index % len(MARKERS)], color=GREY, label=shortened(device, 22))
    axes.plot([], [], "o", color=GREY, markerfacecolor="white", label="asynchronous (open)")
    axes.plot([], [], color=GREY, alpha=0.6, label="90 % interval")
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False, fontsize=9, borderaxespad=0.0)


def waterfall(validation: Validation, path: Path) -> None:
    """Signed error of every scored row, largest first, and seconds of error by phase where phases are published."""
    rows = sorted(validation.scored, key=lambda row: abs(row.error_pct or 0.0))[-MOST_BARS:]
    split = [row for row in validation.scored if _phase_errors(row)]
    heights = [0.5 + 0.20 * max(len(rows), 3), (0.5 + 0.30 * len(split)) if split else 0.0]
    total = 1.0 + sum(heights) + (1.55 if split else 0.7)
    with picture_style():
        figure = Figure(figsize=(10.0, total), dpi=DPI, facecolor="white")
        heading(figure, "Error of the predicted step time", _subtitle(validation))
        top = 1 - 1.0 / total - heights[0] / total
        _bars(figure.add_axes((0.40, top, 0.56, heights[0] / total)), sorted(rows, key=lambda r: r.error_pct or 0.0))
        if split:
            axes = figure.add_axes((0.40, 0.55 / total, 0.56, heights[1] / total))
            _stacks(axes, split)
        save_picture(figure, path)


def _bars(axes: Axes, rows: Sequence[RowResult]) -> None:
    for y, row in enumerate(rows):
        error, measured = row.error_pct or 0.0, row.measured_s or 1.0
        color = "#0072B2" if error < 0 else "#D55E00"
        axes.barh(y, error, height=0.72, color=color, alpha=0.85 if row.covered else 0.55, zorder=2)
        ends = [100 * (float(v or 0.0) / measured - 1) for v in (row.low_s, row.high_s)]
        axes.plot(ends, [y, y], color=INK, linewidth=0.9, zorder=3)
    axes.axvspan(-20, 20, color=BACKGROUND, alpha=0.6, linewidth=0, zorder=0)
    axes.axvline(0, color=GREY, linewidth=1.0, zorder=1)
    _row_names(axes, rows)
    axes.set_xlabel("error, %; line: 90 % interval, pale: measured step outside it, shade: ± 20 %", fontsize=9)


def _row_names(axes: Axes, rows: Sequence[RowResult]) -> None:
    axes.set_yticks(range(len(rows)), [shortened(row.id, 60) for row in rows], fontsize=7.5)
    axes.set_ylim(-0.6, max(len(rows), 1) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _phase_errors(row: RowResult) -> dict[str, float]:
    """Predicted minus measured seconds by published phase, and of what the phases leave of the step."""
    phases = row.phases or {}
    known = {
        name: phases[name].predicted_s - float(phases[name].measured_s or 0.0)
        for name in WATERFALL_PHASES
        if name in phases and phases[name].measured_s is not None
    }
    if not known or row.predicted_s is None or row.measured_s is None:
        return {}
    return {**known, "rest": row.predicted_s - row.measured_s - sum(known.values())}


def _stacks(axes: Axes, rows: Sequence[RowResult]) -> None:
    for y, row in enumerate(reversed(rows)):
        ends = {1: 0.0, -1: 0.0}
        for name, seconds in _phase_errors(row).items():
            side = 1 if seconds >= 0 else -1
            color = PHASE_COLORS.get(name, PHASE_COLORS["other"])
            axes.barh(y, seconds, left=ends[side], height=0.66, color=color, edgecolor="white", linewidth=0.8)
            ends[side] += seconds
        total = ends[1] + ends[-1]
        axes.plot([total], [y], marker="d", color=INK, markersize=5, zorder=4)
    axes.axvline(0, color=GREY, linewidth=1.0)
    _row_names(axes, list(reversed(rows)))
    for name, label in (*_LABELS.items(), ("rest", "rest of the step")):
        color = PHASE_COLORS.get(name, PHASE_COLORS["other"])
        axes.barh(0, 0, color=color, label=label)
    axes.plot([], [], "d", color=INK, label="sum")
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=6, frameon=False, fontsize=8.5, columnspacing=1.2, handlelength=1
    )
    axes.set_xlabel("predicted minus measured, seconds, where phases are published")


def _short_model(name: str) -> str:
    return name.split("/")[-1].removesuffix("-Instruct")


def _subtitle(validation: Validation) -> str:
    if not validation.scored:
        return shortened(validation.table, 80)
    return (
        f"{shortened(validation.table, 60)}: {len(validation.scored)} of {len(validation.rows)} rows; median error "
        f"{validation.median_abs_error_pct:.1f} %, p90 {validation.p90_abs_error_pct:.1f} %, "
        f"{percent(validation.interval_coverage or 0.0)} inside the 90 % interval"
    )


def heading(figure: Figure, title: str, subtitle: str) -> None:
    """Title and subtitle at the top left of a picture."""
    height = figure.get_size_inches()[1]
    figure.text(0.02, 1 - 0.20 / height, title, fontsize=13, fontweight="bold", va="top")
    figure.text(0.02, 1 - 0.50 / height, subtitle, fontsize=9.5, color=GREY, va="top")
