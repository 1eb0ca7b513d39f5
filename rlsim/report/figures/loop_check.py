"""Picture of the real loop: phases of every configuration, measured over predicted, and speed-ups by draft length."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlsim.report.figures.style import GREY, INK, LINE_COLORS, PHASE_COLORS, picture_style
from rlsim.results.loop_check import LoopCheck, LoopRow, speedups_of

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
    above.legend(fontsize=8, loc="lower right", frameon=False)
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
        own = speedups_of(found.rows, drafter)
        k = sorted(own)
        axes.plot(k, [own[one].measured for one in k], "o-", color=color, label=f"{drafter}, measured")
        axes.plot(k, [own[one].predicted for one in k], "s--", color=color, alpha=0.7, label=f"{drafter}, predicted")
    axes.axhline(1.0, color=GREY, lw=0.8)
    axes.set(xlabel="drafted tokens k", ylabel="speed-up of generation")
    axes.legend(fontsize=8, loc="lower center", ncols=2, frameon=False)
