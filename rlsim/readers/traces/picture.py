"""Measured lengths beside the distributions that stand for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlsim.readers.traces.workload import Lengths, TraceAnswer
from rlsim.report.style import BACKGROUND, GREY, INK, LINE_COLORS, picture_style, save_picture

POINTS = 400


@picture_style()
def draw_lengths(answer: TraceAnswer, path: Path) -> Path:
    """Write cumulative distributions as PNG: measured, lognormal, table of quantiles. Equal answers, equal bytes."""
    shown = [one for one in (answer.response, answer.prompt) if one is not None]
    figure = Figure(figsize=(5.2 * len(shown) + 0.4, 4.2), facecolor=BACKGROUND, layout="constrained")
    for place, one in enumerate(shown):
        axes = figure.add_subplot(1, len(shown), place + 1)
        _draw(axes, one)
        if answer.cap is not None and not answer.cap_of_sequence and one is answer.response:
            axes.axvline(answer.cap, color=GREY, linewidth=0.8, linestyle=":")
        if place == 0:
            axes.set_ylabel("share of samples up to this length")
            axes.legend(frameon=False, loc="upper left")
    cut = f", {answer.truncated:.1%} cut at {answer.cap:,.0f}" if answer.cap is not None else ""
    figure.suptitle(f"{answer.requests.response.size:,} samples{cut}", x=0.01, ha="left")
    return save_picture(figure, path)


def _draw(axes: Axes, one: Lengths) -> None:
    levels, tokens = one.quantiles
    fine = np.linspace(0.0, 1.0, POINTS)
    measured = np.maximum(np.quantile(one.tokens, fine, method="hazen"), 1.0)
    grid = np.geomspace(measured[0], max(measured[-1], measured[0] * 1.01), POINTS)
    axes.plot(measured, fine, color=INK, linewidth=2.2, label="measured", drawstyle="steps-post")
    chosen = "" if one.lognormal or one.constant else " (too far off)"
    axes.plot(grid, one.fit.cdf(grid), color=LINE_COLORS[1], linewidth=1.4, linestyle="--", label=f"lognormal{chosen}")
    if not (one.lognormal or one.constant):
        axes.plot(np.maximum(tokens, 1.0), levels, "o", color=LINE_COLORS[0], markersize=3.5, label="quantiles")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(-0.02, 1.04)
    axes.set_xlabel(f"{one.name} tokens")
