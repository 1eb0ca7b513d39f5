"""Lanes of trainer and generator over the last steps of an asynchronous run."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from rlsim.report.figures.style import PHASE_COLORS, VARIANT_COLORS, text_color, text_that_fits
from rlsim.report.timeline import SHOWN_STEPS, TRAINER, Lane, lanes, window_of
from rlsim.results import Variant

MOST_LANES = 6
"""Rows per arm, the trainer first."""
HEIGHT = 0.78
LANE_IN, HEAD_ROWS = 0.27, 0.85
"""Inches of a row; rows that the name of an arm takes."""


def lanes_height(arms: Mapping[str, Variant]) -> float:
    """Inches that the lanes of all arms take."""
    return LANE_IN * sum(len(_shown(arm)) + HEAD_ROWS for arm in arms.values())


def draw_lanes(axes: Axes, arms: Mapping[str, Variant]) -> None:
    """One row for each lane, baseline above candidate, each arm from the start of its own shown steps."""
    axes.set_xlim(0, longest_window_s(arms) * 1.005)
    total = sum(len(_shown(arm)) + HEAD_ROWS for arm in arms.values())
    axes.set_ylim(-total, 0)
    y = 0.0
    ticks: list[tuple[float, str]] = []
    for name, arm in arms.items():
        y -= HEAD_ROWS
        axes.text(0, y + 0.05, name, va="bottom", fontsize=9, color=VARIANT_COLORS[name], fontweight="bold")
        for lane in _shown(arm):
            _row(axes, lane, y - 0.5, shown_window(arm))
            ticks.append((y - 0.5, lane.name))
            y -= 1
    axes.set_yticks([tick for tick, _ in ticks], [label for _, label in ticks], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"seconds over at most {SHOWN_STEPS} steps; the number in a span is the step it works for")


def longest_window_s(arms: Mapping[str, Variant]) -> float:
    """Seconds that the longer of the shown windows takes."""
    return max(end - start for start, end in (shown_window(arm) for arm in arms.values()))


def shown_window(arm: Variant) -> tuple[float, float]:
    """From the start of the trainer's first shown step to the end of its last one, in seconds."""
    return window_of(span for span in arm.spans if span.actor == TRAINER)


def _shown(arm: Variant) -> list[Lane]:
    start, end = shown_window(arm)
    rows = lanes(s for s in arm.spans if s.end_s > start and s.start_s < end)
    return sorted(rows, key=lambda lane: lane.actor != TRAINER)[:MOST_LANES]


def _row(axes: Axes, lane: Lane, y: float, window: tuple[float, float]) -> None:
    for span in lane.spans:
        left, right = max(span.start_s, window[0]) - window[0], min(span.end_s, window[1]) - window[0]
        if right <= left:
            continue
        color = PHASE_COLORS[span.phase]
        axes.barh(y, right - left, left=left, height=HEIGHT, color=color, edgecolor="white", linewidth=0.8)
        if span.actor not in ("environment", "judge"):  # at any time there are trajectories of several steps
            text_that_fits(axes, (left, right, y), [str(span.step)], 0.7, color=text_color(color), fontsize=8.5)
