"""The picture of a projection: where a step's time goes, and what runs when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.patches
import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rlsim.report import words
from rlsim.report.lane_plot import draw_lanes, lanes_height, shown_window
from rlsim.report.palette import ARM_COLORS, BACKGROUND, GREY, INK, phase_color, text_color
from rlsim.report.words import Piece
from rlsim.results import Arm, Curve, Projection

FloatArray = NDArray[np.float64]
WIDTH_IN = 11.0
DPI = 150
BAR_HEIGHT = 0.56
LEFT_IN, PLOT_IN, RESULT_IN = 1.3, 9.4, 1.8
"""Room left of the panels, their width, and what of it is kept free right of the bars."""
ABOVE_IN, BELOW_IN = 0.36, 0.62
"""Room over a panel for its title and under it for its axis."""
TITLE_CHARACTERS = 100
KEY_COLUMNS = 6
MOST_POINTS = 4000
"""Points of a curve that a picture of this width can show."""


def phases_figure(projection: Projection, path: Path) -> None:
    """Write the picture as PNG: the step of both arms as stacked bars, then running sequences over time.

    An asynchronous projection also shows lanes of trainer and generator. The same projection gives the same bytes with
    the same matplotlib. OSError passes through.
    """
    arms = _arms(projection)
    asynchronous = words.is_async(projection)
    lane_height = lanes_height(arms) if asynchronous else 0.0
    curves = [(name, arm, curve) for name, arm in arms if (curve := _running(arm)) is not None]
    title = words.wrapped(words.headline(projection), TITLE_CHARACTERS)
    with _own_style():
        key_rows = 1 + (len(_key_phases(projection)) > KEY_COLUMNS)
        page = _Page(
            [
                0.26 * len(title) + 0.64 + 0.37 * key_rows,
                0.34 + 0.72 * len(arms),
                *([lane_height] if lane_height else []),
                *([2.2] if curves else []),
            ]
        )
        _title(page, projection, title)
        bars = page.panel("Time of one step" + (", on the trainer's path" if asynchronous else ""))
        _bars(bars, projection, arms)
        if lane_height:
            draw_lanes(page.panel("What runs when"), arms)
        if curves:
            _curves(page.panel("Sequences being generated"), asynchronous, curves)
        page.save(path)


class _Page:
    """A figure laid out in inches from the top: a head, then panels of given heights."""

    def __init__(self, heights_in: Sequence[float]) -> None:
        self.height_in = sum(heights_in) + (len(heights_in) - 1) * (ABOVE_IN + BELOW_IN)
        self.figure = Figure(figsize=(WIDTH_IN, self.height_in), dpi=DPI, facecolor="white")
        self.canvas = FigureCanvasAgg(self.figure)
        self._left = list(heights_in[1:])
        self._top = heights_in[0]

    def panel(self, title: str) -> Axes:
        """Axes of the next height with a title above their left end."""
        height = self._left.pop(0)
        self._top += ABOVE_IN
        axes = self.figure.add_axes(
            (LEFT_IN / WIDTH_IN, 1 - (self._top + height) / self.height_in, PLOT_IN / WIDTH_IN, height / self.height_in)
        )
        self.text(LEFT_IN, self._top - 0.12, title, fontweight="bold", va="bottom", fontsize=10.5)
        self._top += height + BELOW_IN
        return axes

    def text(self, x_in: float, down_in: float, text: str, **style: Any) -> None:
        """Text at inches from the left and from the top."""
        self.figure.text(x_in / WIDTH_IN, 1 - down_in / self.height_in, text, **style)

    def save(self, path: Path) -> None:
        """Write the PNG without a date."""
        self.figure.savefig(path, format="png", dpi=DPI, metadata={"Software": "rlsim"})


@contextmanager
def _own_style() -> Iterator[None]:
    """Matplotlib's defaults whatever the user's matplotlibrc says, with our fonts and lines."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.size": 10.5,
                "axes.edgecolor": GREY,
                "axes.labelcolor": INK,
                "text.color": INK,
                "xtick.color": INK,
                "ytick.color": INK,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "svg.hashsalt": "rlsim",
            }
        )
        yield


def _arms(projection: Projection) -> list[tuple[str, Arm]]:
    if not words.speculates(projection.candidate):
        return [("autoregressive", projection.candidate)]
    return [("baseline", projection.baseline), ("candidate", projection.candidate)]


def _title(page: _Page, projection: Projection, lines: Sequence[str]) -> None:
    page.text(0.25, 0.22, "\n".join(lines), fontsize=12.5, fontweight="bold", va="top", linespacing=1.3)
    mode = "asynchronous" if words.is_async(projection) else "synchronous"
    about = f"{projection.scenario}: {projection.model}, {mode}, seed {projection.seed}; intervals hold 90 %"
    page.text(0.25, 0.28 + 0.26 * len(lines), about, fontsize=9.5, color=GREY, va="top")
    _key(page, projection, 0.52 + 0.26 * len(lines))


def _bars(axes: Axes, projection: Projection, arms: Sequence[tuple[str, Arm]]) -> None:
    asynchronous = words.is_async(projection)
    pieces = [[p for p in words.step_pieces(arm, asynchronous) if p.seconds > 0] for _, arm in arms]
    longest = max(sum(p.seconds for p in row) for row in pieces) or 1.0
    axes.set_xlim(0, longest * PLOT_IN / (PLOT_IN - RESULT_IN))
    axes.set_ylim(-0.5, len(arms) - 0.62)
    rows = [len(arms) - 1 - index for index in range(len(arms))]
    for (name, arm), row, y in zip(arms, pieces, rows, strict=True):
        _stack(axes, row, y)
        end = sum(p.seconds for p in row)
        _result(axes, words.seconds(arm.step_s.mean), projection if name == "candidate" else None, end, y)
    if len(arms) == 2:
        _connect(axes, pieces, rows)
    axes.set_yticks(rows, [name for name, _ in arms])
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= longest * 1.001])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_bounds(0, longest)
    axes.set_xlabel("seconds", x=longest / axes.get_xlim()[1] / 2)


def _result(axes: Axes, total: str, projection: Projection | None, end: float, y: float) -> None:
    """Beside a bar: its length, and for the candidate the two speedups."""
    place: dict[str, Any] = {"textcoords": "offset points", "annotation_clip": False}
    if projection is None:
        axes.annotate(total, (end, y), xytext=(7, 0), va="center", fontsize=12, fontweight="bold", **place)
        return
    axes.annotate(total, (end, y), xytext=(7, 13), va="center", fontsize=12, fontweight="bold", **place)
    lines = (f"step {words.times(projection.end_to_end_speedup)}", f"rollout {words.times(projection.rollout_speedup)}")
    for line, drop in zip(lines, (-2, -15), strict=True):
        axes.annotate(line, (end, y), xytext=(7, drop), va="center", fontsize=9, **place)


def _stack(axes: Axes, row: Sequence[Piece], y: float) -> None:
    start = 0.0
    for piece in row:
        color = phase_color(piece.phase)
        axes.barh(y, piece.seconds, left=start, height=BAR_HEIGHT, color=color, edgecolor="white", linewidth=1.0)
        _inside(axes, piece, start, y, color)
        start += piece.seconds


def _inside(axes: Axes, piece: Piece, start: float, y: float, color: str) -> None:
    """Name and seconds in the bar, the seconds alone, or nothing: whatever fits without touching the edges."""
    centre = start + piece.seconds / 2
    for label in (f"{words.phase_label(piece.phase)}\n{words.seconds(piece.seconds)}", words.seconds(piece.seconds)):
        text = axes.text(
            centre, y, label, ha="center", va="center", color=text_color(color), fontsize=9.5, linespacing=1.25
        )
        box = text.get_window_extent().transformed(axes.transData.inverted())
        if box.width < 0.9 * piece.seconds:
            return
        text.remove()


def _connect(axes: Axes, pieces: Sequence[Sequence[Piece]], rows: Sequence[int]) -> None:
    """Shaded bands from every phase of the baseline to the same phase of the candidate."""
    upper, lower = (_edges(row) for row in pieces)
    top, bottom = rows[0] - BAR_HEIGHT / 2, rows[1] + BAR_HEIGHT / 2
    for phase, (left, right) in upper.items():
        if phase in lower:
            low_left, low_right = lower[phase]
            axes.fill(
                [left, right, low_right, low_left],
                [top, top, bottom, bottom],
                color=phase_color(phase),
                alpha=0.16,
                linewidth=0,
            )


def _edges(row: Sequence[Piece]) -> dict[str, tuple[float, float]]:
    edges, start = {}, 0.0
    for piece in row:
        edges[piece.phase] = (start, start + piece.seconds)
        start += piece.seconds
    return edges


def _key_phases(projection: Projection) -> dict[str, list[float]]:
    """Seconds in each shown arm by phase, phases that take none left out."""
    asynchronous = words.is_async(projection)
    rows = [{p.phase: p.seconds for p in words.step_pieces(arm, asynchronous)} for _, arm in _arms(projection)]
    order = dict.fromkeys(phase for row in rows for phase in row)
    found = {phase: [row.get(phase, 0.0) for row in rows] for phase in order}
    return {phase: values for phase, values in found.items() if any(values)}


def _key(page: _Page, projection: Projection, down_in: float) -> None:
    """Every phase with its seconds in both arms, so that segments too small for a label are told too."""
    asynchronous = words.is_async(projection)
    order = _key_phases(projection)
    handles = [matplotlib.patches.Patch(color=phase_color(phase)) for phase in order]
    labels = []
    for phase, values in order.items():
        name = "refit pause" if asynchronous and phase == "refit" else words.phase_label(phase)
        labels.append(f"{name}\n" + " → ".join(words.seconds(value) for value in values))
    page.figure.legend(
        handles,
        labels,
        loc="upper left",
        bbox_to_anchor=(0.25 / WIDTH_IN, 1 - down_in / page.height_in),
        ncols=max(1, min(KEY_COLUMNS, len(order))),
        frameon=False,
        fontsize=9,
        handlelength=1.0,
        handleheight=1.0,
        columnspacing=1.5,
        borderaxespad=0.0,
        borderpad=0.0,
        handletextpad=0.5,
    )


def _running(arm: Arm) -> Curve | None:
    """The arm's curve of running sequences, else its first one."""
    filled = [curve for curve in arm.curves if len(curve.times_s) > 1]
    return next((curve for curve in filled if "running" in curve.name), filled[0] if filled else None)


def _curves(axes: Axes, asynchronous: bool, curves: Sequence[tuple[str, Arm, Curve]]) -> None:
    end, highest = 0.0, 0.0
    for name, arm, curve in curves:
        times, values = _in_view(curve, shown_window(arm) if asynchronous and arm.spans else None)
        color = ARM_COLORS[name]
        label = name if asynchronous else f"{name}: all done after {words.seconds(float(times[-1]))}"
        axes.step(times, values, where="post", color=color, linewidth=1.8, label=label, zorder=3)
        axes.fill_between(times, values, step="post", color=color, alpha=0.14, linewidth=0)
        end, highest = max(end, float(times[-1])), max(highest, float(values.max()))
        if not asynchronous:
            axes.plot([times[-1]], [0], marker="o", color=color, markersize=6, clip_on=False, zorder=4)
    axes.set_xlim(0, (end or 1.0) * 1.005)
    axes.set_ylim(0, (highest or 1.0) * 1.06)
    axes.grid(axis="y", color=BACKGROUND, zorder=0)
    axes.set_axisbelow(True)
    axes.set_ylabel(words.plain(curves[0][2].name))
    axes.set_xlabel("seconds" if asynchronous else "seconds since generation began")
    axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, ncols=2, borderaxespad=0.1)


def _in_view(curve: Curve, window: tuple[float, float] | None) -> tuple[FloatArray, FloatArray]:
    """Times from the start of the view and values, thinned to what a picture can show."""
    times, values = np.asarray(curve.times_s, float), np.asarray(curve.values, float)
    first, last = window or (float(times[0]), float(times[-1]))
    inside = np.flatnonzero((times >= first) & (times <= last))
    if inside.size < 2:
        inside, first = np.arange(times.size), float(times[0])
    kept = np.unique(np.append(inside[:: max(1, inside.size // MOST_POINTS)], inside[-1]))
    return times[kept] - first, values[kept]
