"""The picture of a projection: where a step's time goes, and what runs when."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.patches
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from rlsim.report import format as fmt
from rlsim.report.figures.style import (
    BACKGROUND,
    DPI,
    GREY,
    INK,
    PHASE_COLORS,
    VARIANT_COLORS,
    picture_style,
    text_color,
    text_that_fits,
)
from rlsim.report.style import Style
from rlsim.report.text import findings
from rlsim.report.timeline import SHOWN_STEPS, TRAINER, Lane, lanes, window_of
from rlsim.results import Curve, Interval, Projection, Variant
from rlsim.units import FloatArray

MOST_LANES = 6
"""Rows per arm, the trainer first."""
HEIGHT = 0.78
LANE_IN, HEAD_ROWS = 0.27, 0.85
"""Inches of a row; rows that the name of an arm takes."""
WIDTH_IN = 11.0
BAR_HEIGHT = 0.56
LEFT_IN, PLOT_IN, RESULT_IN = 1.3, 9.4, 1.8
"""Room left of the panels, their width, and what of it stays free right of the bars."""
ABOVE_IN, BELOW_IN = 0.36, 0.62
"""Room over a panel for its title and under it for its axis."""
TITLE_CHARACTERS = 100
KEY_COLUMNS = 6
CURVES_IN = 2.2
MOST_POINTS = 4000
"""Points of a curve that a picture of this width can show."""
OTHER_LINES = ("--", ":")
"""Lines of the curves beside running sequences: trajectories with environments, and with the judge."""


@picture_style()
def phases_figure(projection: Projection) -> Figure:
    """The step of both arms as stacked bars, then running sequences over time; lanes of trainer and generator between
    them where generation runs beside training."""
    title = Style(TITLE_CHARACTERS).wrapped(f"{projection.scenario}: {findings.headline(projection)}")
    lanes = {"asynchronous": [_lanes, _curves], "synchronous": [_curves]}.get(projection.order, [])
    return _page(projection, title, [_bars, *lanes])


@picture_style()
def step_figure(projection: Projection) -> Figure:
    """The step of both arms as stacked bars in seconds."""
    return _page(projection, (), [_bars])


@picture_style()
def timeline_figure(projection: Projection) -> Figure:
    """Lanes of trainer and generator over the last steps, and running sequences over time in seconds."""
    return _page(projection, (), [_lanes, _curves])


Panel = Callable[[Axes, Projection], tuple[str, str]]
"""Draws into axes; gives the title that stands over their left end, and a note behind it."""


def _page(projection: Projection, title: Sequence[str], panels: Sequence[Panel]) -> Figure:
    """Laid out in inches from the top: a title, the key of the phases where there are bars, and the panels."""
    arms, phases = projection.variants.values(), _key_phases(projection)
    head_in = 0.26 * len(title) + 0.64 if title else 0.2 if _bars in panels else 0.0
    down_in = head_in + (0.37 * (1 + (len(phases) > KEY_COLUMNS)) if _bars in panels else 0.0)
    heights_in: dict[Panel, float] = {_bars: 0.34 + 0.8 * len(arms), _curves: CURVES_IN}
    if _lanes in panels:
        heights_in[_lanes] = LANE_IN * sum(len(_shown(arm)) + HEAD_ROWS for arm in arms)
    height_in = down_in + sum(heights_in[panel] + ABOVE_IN + BELOW_IN for panel in panels)
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, facecolor="white")
    # Texts can only be measured with a canvas; without pyplot a figure has none.
    FigureCanvasAgg(figure)

    def text(x_in: float, y_in: float, words: str, **style: Any) -> Text:
        return figure.text(x_in / WIDTH_IN, 1 - y_in / height_in, words, **style)

    if title:
        text(0.25, 0.22, "\n".join(title), fontsize=12.5, fontweight="bold", va="top", linespacing=1.3)
        about = f"{projection.model}, {projection.order}, seed {projection.seed}; brackets: 90 % interval"
        text(0.25, head_in - 0.36, about, fontsize=9.5, color=GREY, va="top")
    if _bars in panels:
        _key(figure, phases, projection.asynchronous, 1 - (head_in - 0.12) / height_in)
    for panel in panels:
        down_in += ABOVE_IN + heights_in[panel]
        place = (LEFT_IN, height_in - down_in, PLOT_IN, heights_in[panel])
        axes = figure.add_axes(tuple(np.divide(place, [WIDTH_IN, height_in] * 2)))
        name, note = panel(axes, projection)
        named = text(LEFT_IN, down_in - heights_in[panel] - 0.12, name, fontweight="bold", va="bottom", fontsize=10.5)
        behind: dict[str, Any] = {"xycoords": named, "textcoords": "offset points", "annotation_clip": False}
        axes.annotate(note, (1, 0), xytext=(9, 0), va="bottom", fontsize=9, color=GREY, **behind)
        down_in += BELOW_IN
    return figure


def _lanes(axes: Axes, projection: Projection) -> tuple[str, str]:
    """One row for each lane, baseline above candidate, each arm from the start of its own shown steps."""
    arms = projection.variants
    axes.set_xlim(0, _longest_s(arms) * 1.005)
    axes.set_ylim(-sum(len(_shown(arm)) + HEAD_ROWS for arm in arms.values()), 0)
    y = 0.0
    ticks: dict[float, str] = {}
    for name, arm in arms.items():
        y -= HEAD_ROWS
        axes.text(0, y + 0.05, name, va="bottom", fontsize=9, color=VARIANT_COLORS[name], fontweight="bold")
        for lane in _shown(arm):
            _draw_lane(axes, lane, y - 0.5, _window(arm))
            ticks[y - 0.5] = lane.name
            y -= 1
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"seconds over at most {SHOWN_STEPS} steps; the number in a span is the step it works for")
    return "What runs when", "last steps of the first replication"


def _longest_s(arms: Mapping[str, Variant]) -> float:
    """Seconds that the longest of the shown windows takes."""
    return max(end - start for start, end in map(_window, arms.values()))


def _window(arm: Variant) -> tuple[float, float]:
    """From the start of the trainer's first shown step to the end of its last one, in seconds."""
    return window_of(span for span in arm.spans if span.actor == TRAINER)


def _shown(arm: Variant) -> list[Lane]:
    start, end = _window(arm)
    rows = lanes(s for s in arm.spans if s.end_s > start and s.start_s < end)
    # sorted is stable: the trainer first, all others in the order in which they appear.
    return sorted(rows, key=lambda lane: lane.actor != TRAINER)[:MOST_LANES]


def _draw_lane(axes: Axes, lane: Lane, y: float, window: tuple[float, float]) -> None:
    for span in lane.spans:
        left, right = max(span.start_s, window[0]) - window[0], min(span.end_s, window[1]) - window[0]
        if right <= left:
            continue
        color = PHASE_COLORS[span.phase]
        axes.barh(y, right - left, left=left, height=HEIGHT, color=color, edgecolor="white", linewidth=0.8)
        if span.actor not in ("environment", "judge"):  # at any time there are trajectories of several steps
            text_that_fits(axes, (left, right, y), [str(span.step)], 0.7, color=text_color(color), fontsize=8.5)


def _bars(axes: Axes, projection: Projection) -> tuple[str, str]:
    """The bars of a step; the note gives the time that generation takes beside an asynchronous one."""
    arms, note = projection.variants, "mean of the simulated steps; whisker: 90 % interval"
    if projection.asynchronous:
        busy = " → ".join(fmt.seconds(arm.phases.generation_s.mean) for arm in arms.values())
        note = f"trainer's path, {note}; beside it generation is busy for {busy}"
    phases = [findings.step_phases(arm, projection.asynchronous) for arm in arms.values()]
    bar, whisker = max(sum(row.values()) for row in phases), max(arm.step_s.high for arm in arms.values())
    longest = max(bar, whisker)
    axes.set_xlim(0, max(bar * PLOT_IN / (PLOT_IN - RESULT_IN), longest * 1.01))
    axes.set_ylim(-0.56, len(arms) - 0.62)
    rows = [len(arms) - 1 - index for index in range(len(arms))]
    if len(arms) == 2:
        _connect(axes, phases, rows)
    for (name, arm), row, y in zip(arms.items(), phases, rows, strict=True):
        _stack(axes, row, y, projection.asynchronous)
        step_s = arm.step_s
        ends = [[step_s.mean - step_s.low], [step_s.high - step_s.mean]]
        below = y - BAR_HEIGHT / 2 - 0.09
        axes.errorbar(step_s.mean, below, xerr=ends, fmt="o", markersize=3.5, color=INK, linewidth=1.3, capsize=3.5)
        _result(axes, projection if name == "candidate" else None, step_s, sum(row.values()), y)
    labels = [name if len(arms) == 1 else f"{name}\n{fmt.variant_label(arm)}" for name, arm in arms.items()]
    axes.set_yticks(rows, labels)
    # The axis ends with the longest bar; right of it stand results, not seconds.
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= longest * 1.001])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_bounds(0, longest)
    axes.set_xlabel("seconds", x=longest / axes.get_xlim()[1] / 2)
    return "Time of one step", note


def _result(axes: Axes, projection: Projection | None, step_s: Interval, end: float, y: float) -> None:
    """Beside a bar: the length of its step, and the speedups of a candidate's ``projection``."""
    lines = []
    if projection is not None:
        speedups = {"step": projection.end_to_end_speedup, "rollout": projection.rollout_speedup}
        lines = [f"{name} {fmt.times(speedup)}" for name, speedup in speedups.items()]
    place: dict[str, Any] = {"textcoords": "offset points", "annotation_clip": False, "va": "center"}
    top = 6.5 * len(lines)
    axes.annotate(fmt.seconds(step_s.mean), (end, y), xytext=(7, top), fontsize=12, fontweight="bold", **place)
    for index, line in enumerate(lines):
        axes.annotate(line, (end, y), xytext=(7, top - 15 - 12 * index), fontsize=9, **place)


def _stack(axes: Axes, phases: Mapping[str, float], y: float, asynchronous: bool) -> None:
    """A bar of phases with their names and seconds, the seconds alone, or nothing: whatever fits."""
    start = 0.0
    for phase, seconds in phases.items():
        if seconds > 0:
            color, size = PHASE_COLORS[phase], fmt.seconds(seconds)
            axes.barh(y, seconds, left=start, height=BAR_HEIGHT, color=color, edgecolor="white", linewidth=1.0)
            labels = [f"{fmt.phase_label(phase, asynchronous)}\n{size}", size]
            style: dict[str, Any] = {"fontsize": 9.5, "linespacing": 1.25}
            text_that_fits(axes, (start, start + seconds, y), labels, 0.85, color=text_color(color), **style)
            start += seconds


def _connect(axes: Axes, phases: Sequence[Mapping[str, float]], rows: Sequence[int]) -> None:
    """Shaded bands from every phase of the baseline to the same phase of the candidate."""
    upper, lower = (
        dict(zip(row, itertools.pairwise([0.0, *itertools.accumulate(row.values())]), strict=True)) for row in phases
    )
    top, bottom = rows[0] - BAR_HEIGHT / 2, rows[1] + BAR_HEIGHT / 2
    for phase, (left, right) in upper.items():
        low_left, low_right = lower.get(phase, (left, left))
        corners = [left, right, low_right, low_left], [top, top, bottom, bottom]
        axes.fill(*corners, color=PHASE_COLORS[phase], alpha=0.16, linewidth=0)


def _key_phases(projection: Projection) -> dict[str, list[float]]:
    """Seconds in each shown arm by phase, phases that take none left out."""
    rows = [findings.step_phases(arm, projection.asynchronous) for arm in projection.variants.values()]
    found = {phase: [row.get(phase, 0.0) for row in rows] for row in rows for phase in row}
    return {phase: values for phase, values in found.items() if any(values)}


def _key(figure: Figure, phases: Mapping[str, Sequence[float]], asynchronous: bool, top: float) -> None:
    """Every phase with its seconds in both arms, so that segments too small for a label are there too."""
    handles = [matplotlib.patches.Patch(color=PHASE_COLORS[phase]) for phase in phases]
    labels = [
        f"{fmt.phase_label(phase, asynchronous)}\n" + " → ".join(dict.fromkeys(map(fmt.seconds, values)))
        for phase, values in phases.items()
    ]
    style: dict[str, Any] = {
        **{"loc": "upper left", "bbox_to_anchor": (0.25 / WIDTH_IN, top)},
        **{"fontsize": 9, "handlelength": 1.0, "handleheight": 1.0, "columnspacing": 1.5, "handletextpad": 0.5},
        **{"frameon": False, "borderaxespad": 0.0, "borderpad": 0.0},
    }
    figure.legend(handles, labels, ncols=min(KEY_COLUMNS, len(phases)), **style)


def _curves(axes: Axes, projection: Projection) -> tuple[str, str]:
    """Running sequences over time, and trajectories with environments and the judge."""
    arms, asynchronous = projection.variants, projection.asynchronous
    *_, last = arms
    curves, end, highest = arms[last].curves, 0.0, 0.0
    for name, arm in arms.items():
        color, window = VARIANT_COLORS[name], _window(arm) if asynchronous else None
        running, *others = arm.curves
        others = [curve for curve in others if curve.name.startswith("trajectories with")]
        times, values = in_view(running, window)
        label = name if asynchronous else f"{name}: last one done after {fmt.seconds(float(times[-1]))}"
        axes.step(times, values, where="post", color=color, linewidth=1.8, label=label, zorder=3)
        axes.fill_between(times, values, step="post", color=color, alpha=0.14, linewidth=0)
        end, highest = max(end, float(times[-1])), max(highest, float(values.max()))
        if not asynchronous:
            axes.plot([times[-1]], [0], marker="o", color=color, markersize=6, clip_on=False, zorder=4)
        for curve, line in zip(others, OTHER_LINES, strict=False):
            times, values = in_view(curve, window)
            other = curve.name.removeprefix("trajectories ") if name == last else None
            axes.step(times, values, line, where="post", color=color, linewidth=1.2, label=other, zorder=3)
            highest = max(highest, float(values.max()))
    axes.set_xlim(0, (_longest_s(arms) if asynchronous else end) * 1.005)
    axes.set_ylim(0, highest * 1.06)
    axes.grid(axis="y", color=BACKGROUND, zorder=0)
    axes.set_axisbelow(True)
    axes.set_ylabel("trajectories" if len(curves) > 1 else curves[0].name)
    axes.set_xlabel("seconds" if asynchronous else "seconds since generation began")
    # Half a sequence is none: rounded, ticks of 2.5 would stand at unequal steps.
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    # Synchronous curves fall: their upper right is free. Asynchronous ones fill the panel.
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": 4, "borderaxespad": 0.1}
    axes.legend(framealpha=1.0, edgecolor="none", fontsize=9.5, **(place if asynchronous else {"loc": "upper right"}))
    title = "Trajectories under way" if len(curves) > 1 else "Sequences being generated"
    return title, "the same steps" if asynchronous else "first step of the first replication alone"


def in_view(curve: Curve, window: tuple[float, float] | None) -> tuple[FloatArray, FloatArray]:
    """Times from the start of the view and values, from its start to its end and thinned to what a picture can show."""
    times, values = np.asarray(curve.times_s, float), np.asarray(curve.values, float)
    first, last = window or (float(times[0]), float(times[-1]))
    inside = np.flatnonzero((times >= first) & (times <= last))
    # The last change of each moment that a picture can tell apart: any other thinning may leave a burst half done.
    moments = np.floor((times[inside] - first) / max(last - first, 1e-9) * MOST_POINTS)
    last_changes = inside[np.append(np.diff(moments) > 0, True)] if inside.size else inside
    at = np.concatenate(([first], times[last_changes], [last]))
    return at - first, values[np.maximum(0, np.searchsorted(times, at, side="right") - 1)]
