"""Pictures of predicted over measured: training steps by release, transfers and phases by group."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from rlsim.errors import shortened
from rlsim.report.format import percent, signed_percent
from rlsim.report.style import BACKGROUND, DPI, GREY, INK, LINE_COLORS, picture_style, save_picture
from rlsim.schema.engine_parameters import version_order
from rlsim.validation.measured import MeasuredRow, MeasuredTable
from rlsim.validation.measured_plots import table_score
from rlsim.validation.plots import MARKERS, heading
from rlsim.validation.scores import Score

FAMILIES = ("dense", "MoE")
BAND = 0.12
"""Half the width of the shaded band of training steps."""
WIDE_BAND = 0.25
"""The same of transfers and phases."""
LEAST_RATIO, MOST_RATIO = 0.2, 5.0
STEP_RATIO = 3.0
"""Range of predicted over measured that is shown, and its upper end for training steps; what lies beyond stands at
the end."""
MOST_GROUPS = 40
"""Groups of rows with a line of their own, the largest first."""
_TICKS = (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)

Marks = Mapping[str, tuple[str, str]]
"""Colour and shape by name."""


def by_release(found: MeasuredTable, path: Path) -> None:
    """Predicted over measured of every scored training step: a column for each release, a panel for each framework.

    Dense models above, MoE models below; colour and shape tell the device, a bar the median of a release. OSError
    passes through.
    """
    rows = [row for row in found.scored if row.details.get("family") in FAMILIES]
    releases = releases_of(rows)
    marks = _marks([_told(row, "gpu") for row in rows])
    columns = sum(len(names) + 0.6 for names in releases.values())
    width, height = max(8.0, 1.0 + 0.95 * columns), 7.2
    with picture_style():
        figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
        heading(figure, "Predicted over measured training step, by release", table_score(found))
        if rows:
            grid = figure.subplots(
                2, len(releases), squeeze=False, sharey=True, sharex="col",
                width_ratios=[len(names) + 0.6 for names in releases.values()],
            )  # fmt: skip
            figure.subplots_adjust(
                left=0.75 / width, right=1 - 0.15 / width, top=1 - 1.15 / height, bottom=0.85 / height,
                wspace=0.06, hspace=0.10,
            )  # fmt: skip
            for line, family in enumerate(FAMILIES):
                for axes, (framework, names) in zip(grid[line], releases.items(), strict=True):
                    chosen = [r for r in rows if _run(r)[0] == framework and r.details["family"] == family]
                    _columns(axes, chosen, names, marks)
                    if line == 0:
                        axes.set_title(shortened(framework, 24), fontsize=9, loc="left", pad=8, fontweight="bold")
                grid[line][0].set_ylabel(f"{family} models: predicted / measured", fontsize=9)
            _key(figure, marks, f"median; shade: ± {percent(BAND)}")
        else:
            _nothing(figure)
        save_picture(figure, path)


def by_group(found: MeasuredTable, path: Path, title: str, told: str) -> None:
    """Predicted over measured of every scored row: a line for each group, the median as a bar.

    told: detail of the rows that colour and shape tell. OSError passes through.
    """
    groups = list(found.groups)[:MOST_GROUPS]
    rows = [row for row in found.scored if row.group in groups]
    marks = _marks([_told(row, told) for row in rows])
    keys = 0.26 * math.ceil((len(marks) + 1) / 3)
    height = 2.2 + keys + 0.40 * max(2, len(groups))
    with picture_style():
        figure = Figure(figsize=(10.5, height), dpi=DPI, facecolor="white")
        heading(figure, title, table_score(found))
        if rows:
            axes = figure.add_axes((0.36, (0.75 + keys) / height, 0.61, 1 - (1.75 + keys) / height))
            for place, group in enumerate(reversed(groups)):
                members = [row for row in rows if row.group == group]
                _points(axes, members, [_told(row, told) for row in members], marks, place, along_y=False)
            axes.axvspan(1 - WIDE_BAND, 1 + WIDE_BAND, color=BACKGROUND, alpha=0.8, linewidth=0, zorder=0)
            axes.axvline(1.0, color=GREY, linewidth=1.0, zorder=1)
            axes.set(xscale="log", xlim=(LEAST_RATIO, MOST_RATIO), ylim=(-0.6, len(groups) - 0.4))
            labels = [f"{shortened(group, 54)}  ({found.groups[group].n})" for group in reversed(groups)]
            axes.set_yticks(range(len(groups)), labels, fontsize=7.5)
            axes.tick_params(axis="y", length=0)
            axes.set_xlabel("predicted over measured; in brackets the number of rows", fontsize=9)
            _ratio_ticks(axes, along_y=False)
            _key(figure, marks, f"median; shade: ± {percent(WIDE_BAND)}", per_line=3)
        else:
            _nothing(figure)
        save_picture(figure, path)


def _run(row: MeasuredRow) -> tuple[str, str]:
    """Framework and release of a row."""
    return str(row.details.get("framework") or "framework not told"), str(row.details.get("series") or "not told")


def _told(row: MeasuredRow, name: str) -> str:
    """What a row tells under ``name``; devices without case, remarks in brackets and the name of their rack."""
    given = str(row.details.get(name) or "")
    if name == "gpu":
        given = re.sub(r"\s*\(.*\)$", "", given).upper().removesuffix(" NVL72")
    return given or "not told"


def releases_of(rows: Sequence[MeasuredRow]) -> dict[str, list[str]]:
    """Releases of the rows of each framework, oldest first; the framework with the most releases first."""
    runs = sorted({_run(row) for row in rows})
    found = {framework: [name for own, name in runs if own == framework] for framework, _ in runs}
    ordered = {framework: sorted(names, key=version_order) for framework, names in found.items()}
    return dict(sorted(ordered.items(), key=lambda item: (-len(item[1]), item[0])))


def _marks(names: Sequence[str]) -> Marks:
    found = sorted(set(names))
    return {
        name: (LINE_COLORS[i % len(LINE_COLORS)], MARKERS[(i + i // len(LINE_COLORS)) % len(MARKERS)])
        for i, name in enumerate(found)
    }


def _columns(axes: Axes, rows: Sequence[MeasuredRow], names: Sequence[str], marks: Marks) -> None:
    for place, name in enumerate(names):
        members = [row for row in rows if _run(row)[1] == name]
        _points(axes, members, [_told(row, "gpu") for row in members], marks, place)
        if members:
            score = Score.of(members)
            axes.annotate(
                f"{score.n} rows\n{signed_percent(score.bias or 0.0)}", (place, STEP_RATIO / 1.05), fontsize=7,
                color=GREY, ha="center", va="top",
            )  # fmt: skip
    if not rows:
        axes.text(0.5, 0.5, "none", ha="center", va="bottom", transform=axes.transAxes, color=GREY, fontsize=8)
    axes.axhspan(1 - BAND, 1 + BAND, color=BACKGROUND, alpha=0.8, linewidth=0, zorder=0)
    axes.axhline(1.0, color=GREY, linewidth=1.0, zorder=1)
    axes.set(yscale="log", ylim=(LEAST_RATIO, STEP_RATIO), xlim=(-0.8, len(names) - 0.2))
    axes.set_xticks(range(len(names)), [shortened(name, 12) for name in names], fontsize=8)
    _ratio_ticks(axes, along_y=True)


def _points(
    axes: Axes, rows: Sequence[MeasuredRow], names: Sequence[str], marks: Marks, place: int, along_y: bool = True
) -> None:
    """Ratios of one column (or line) spread around ``place`` by the name that is told, and their median."""
    order = [name for name in marks if name in names]
    most = STEP_RATIO if along_y else MOST_RATIO
    step = min(0.2, 0.62 / max(1, len(order)))
    for name in order:
        color, marker = marks[name]
        chosen = [row for row, told in zip(rows, names, strict=True) if told == name]
        ratios = np.clip([1 + (row.error or 0.0) for row in chosen], LEAST_RATIO * 1.03, most / 1.03)
        across = np.full(len(chosen), place + step * (order.index(name) - (len(order) - 1) / 2))
        x, y = (across, ratios) if along_y else (ratios, across)
        axes.plot(x, y, marker, color=color, markersize=4.2, alpha=0.7, markeredgewidth=0, zorder=3)
    if rows:
        middle = float(np.clip(np.median([1 + (row.error or 0.0) for row in rows]), LEAST_RATIO, most))
        ends, both = [place - 0.38, place + 0.38], [middle, middle]
        axes.plot(*((ends, both) if along_y else (both, ends)), color=INK, linewidth=1.4, zorder=2)


def _ratio_ticks(axes: Axes, along_y: bool) -> None:
    axis = axes.yaxis if along_y else axes.xaxis
    axis.set_major_locator(FixedLocator(_TICKS))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.tick_params(labelsize=8)


def _key(figure: Figure, marks: Marks, median: str, per_line: int = 7) -> None:
    axes = figure.add_axes((0, 0, 1, 1), frameon=False)
    axes.set_axis_off()
    axes.set_zorder(-1)
    for name, (color, marker) in marks.items():
        axes.plot([], [], marker, color=color, label=shortened(name, 38), markersize=5)
    axes.plot([], [], color=INK, linewidth=1.4, label=median)
    axes.legend(loc="lower center", ncols=per_line, frameon=False, fontsize=8.5, columnspacing=1.4, handletextpad=0.4)


def _nothing(figure: Figure) -> None:
    figure.text(0.5, 0.5, "no row could be simulated", ha="center", color=GREY)
