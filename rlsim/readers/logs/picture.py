"""Phases of a run: measured, predicted, and predicted with the run."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from rlsim.readers.logs.answer import RunAnswer
from rlsim.readers.logs.text import LABELS
from rlsim.report.style import BACKGROUND, GREY, INK, LINE_COLORS, picture_style, save_picture
from rlsim.results import Interval

OFFSET = 0.22


@picture_style()
def draw_run(answer: RunAnswer, path: Path) -> Path:
    """Write measured medians with their 10th and 90th percentile and both predictions as PNG; equal answers give equal
    bytes."""
    figure = Figure(figsize=(8.6, 1.5 + 0.62 * len(answer.phases)), facecolor=BACKGROUND, layout="constrained")
    axes = figure.add_subplot()
    for row, line in enumerate(answer.phases):
        found = line.measured
        shown = Interval(found.median, found.low, found.high)
        sides = (
            (shown, INK, "o", "measured: median, 10 to 90 % of the steps"),
            (line.before, GREY, "s", "predicted, 90 % interval of the median"),
            (line.after, LINE_COLORS[0], "D", "predicted with this run"),
        )
        for place, (value, color, mark, label) in enumerate(sides):
            if value is not None:
                at = row + (place - 1) * OFFSET
                axes.plot([value.low, value.high], [at, at], color=color, linewidth=1.6)
                axes.plot(value.mean, at, mark, color=color, markersize=6, label=label if row == 0 else None)
    axes.set_yticks(range(len(answer.phases)), [LABELS.get(line.quantity, line.quantity) for line in answer.phases])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds of a step")
    steady = answer.steady
    axes.set_title(f"{answer.calibrated.name}: steps {steady.first} to {steady.last} of a run", loc="left")
    figure.legend(loc="outside lower left", frameon=False, ncols=3, fontsize=8.5)
    return save_picture(figure, path)
