"""The waterfall of a blame: from the step as it is to the one without any idle cause."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlsim.report.figures.style import DPI, GREY, INK, LINE_COLORS, picture_style
from rlsim.results.blame import Blame

LEAST_S = 0.005
"""Removals shown, as a share of the step."""


@picture_style()
def waterfall_figure(blame: Blame) -> Figure:
    """The step in seconds, what each removal takes off it, and the work that is left."""
    shown = [one for one in blame.removals if abs(one.chain_s) >= LEAST_S * blame.step_s]
    figure = Figure(figsize=(9.0, 1.3 + 0.42 * (len(shown) + 2)), facecolor="white", dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    names = ["step as it is", *(f"without {one.cause}" for one in shown), "work"]
    axes.barh(0, blame.step_s, color=INK, height=0.6)
    _label(axes, blame.step_s, 0, f"{blame.step_s:.1f} s")
    at_s = peak_s = blame.step_s
    for row, one in enumerate(shown, start=1):
        saves = one.chain_s >= 0
        axes.barh(row, one.chain_s, left=at_s - one.chain_s, color=LINE_COLORS[0 if saves else 1], height=0.6)
        axes.plot([at_s, at_s], [row - 1, row], color=GREY, linewidth=0.8)
        _label(axes, max(at_s, at_s - one.chain_s), row, f"{-one.chain_s:+.1f} s")
        at_s -= one.chain_s
        peak_s = max(peak_s, at_s)
    rest_s = at_s - blame.left_s
    last = len(shown) + 1
    axes.barh(last, blame.left_s, color=GREY, height=0.6)
    axes.plot([at_s, at_s], [last - 1, last], color=GREY, linewidth=0.8)
    small = f" ({rest_s:+.1f} s of smaller causes)" if abs(rest_s) >= 0.05 else ""
    _label(axes, blame.left_s, last, f"{blame.left_s:.1f} s{small}")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * peak_s)
    axes.set_xlabel("seconds per step")
    axes.set_title(f"{blame.scenario}: what keeps {blame.num_gpus:,} GPUs waiting", loc="left")
    return figure


def _label(axes: Axes, x: float, y: float, text: str) -> None:
    axes.annotate(text, (x, y), (5, 0), textcoords="offset points", va="center", color=INK)
