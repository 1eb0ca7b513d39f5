"""Scores of left-out groups for a terminal, for docs/ACCURACY.md and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlsim.report import table as terminal
from rlsim.report.format import percent
from rlsim.report.style import BACKGROUND, DEFAULT_STYLE, DPI, GREY, LINE_COLORS, Style, picture_style, save_picture
from rlsim.validation import markdown
from rlsim.validation.cross import KIND_TITLES, SCORED, TITLES, CrossScore, CrossValidation, Ranks
from rlsim.validation.plots import heading

PICTURE = "reliability.png"
HEAD = (
    "left out", "rows of", "rows", "groups", "median error", "in 50 %", "in 80 %", "in 90 %", "half width", "CRPS",
    "interval score", "one factor: in 90 %", "CRPS", "interval score",
)  # fmt: skip
_HOW = """Whole groups of measurements are left out of the joint fit and predicted by the rest
([uncertainty.md](uncertainty.md)). An interval of 90 % is right where it holds 90 % of the rows; CRPS and the interval
score of the 90 % interval (in logarithms, smaller is better; Gneiting and Raftery 2007, doi:10.1198/016214506000001437)
tell whether it is also narrow. Beside it what one log-normal factor for all rows of a half would have scored around
the same predictions. Written by `rlsim validate --cross`."""


def cross_text(found: CrossValidation, style: Style = DEFAULT_STYLE) -> str:
    """For a terminal."""
    title = style.bold("Groups left out of the joint fit and predicted by the rest")
    lines = [title, *terminal.table(HEAD, [_cells(score) for score in found.scores], style, "<<" + ">" * 12)]
    return "\n".join([*lines, "", *_own_lines(found)])


def _own_lines(found: CrossValidation) -> list[str]:
    return [
        f"Two own rows after leaving out {TITLES[score.grouping]} ({KIND_TITLES[score.kind]}, {score.groups} of them): "
        f"median error on its other rows {percent(score.before, 1)} -> {percent(score.after, 1)}"
        for score in found.own_rows
    ]


def cross_section(found: CrossValidation | None) -> str:
    """Markdown, a section of docs/ACCURACY.md, or that it was left out."""
    if found is None:
        return "## Left-out groups\n\nLeft out of this document; `rlsim validate --published --cross` writes them."
    rows = [_cells(score) for score in found.scores]
    picture = f"![Reliability of the intervals]({PICTURE})\n\nShare of left-out times below each quantile of its"
    picture += " prediction: on the diagonal where the intervals are what they say."
    own = "\n".join(f"- {line}." for line in _own_lines(found))
    return "\n\n".join(["## Left-out groups", _HOW, markdown.table(HEAD, rows), own, picture])


def _cells(score: CrossScore) -> list[str]:
    return [
        TITLES[score.grouping], KIND_TITLES[score.kind], str(score.n), str(score.groups),
        percent(score.median_error, 1),
        *(percent(share) for share in score.coverage), f"±{percent(score.width)}", f"{score.crps:.3f}",
        f"{score.interval_score:.2f}", percent(score.single_coverage), f"{score.single_crps:.3f}",
        f"{score.single_interval_score:.2f}",
    ]  # fmt: skip


def draw_reliability(found: CrossValidation, path: Path) -> None:
    """Share of left-out times below each quantile of their predictions, a panel for each kind of time."""
    with picture_style():
        figure = Figure(figsize=(10.4, 3.9), dpi=DPI, facecolor="white")
        heading(figure, "Do 90 % intervals hold 90 %?", "groups left out of the joint fit and predicted by the rest")
        for number, kind in enumerate(SCORED):
            axes = figure.add_axes((0.06 + 0.238 * number, 0.24, 0.2, 0.53))
            _panel(axes, kind, [ranks for ranks in found.ranks if ranks.kind == kind])
            if number == 0:
                axes.set_ylabel("share of times below it")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False, fontsize=8)
        save_picture(figure, path)


def _panel(axes: Axes, kind: str, ranks: Sequence[Ranks]) -> None:
    levels = np.linspace(0, 1, 101)
    axes.set_title(KIND_TITLES[kind], fontsize=10, loc="left")
    axes.fill_between(levels, levels - 0.05, levels + 0.05, color=BACKGROUND, linewidth=0)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1.0)
    for number, grouping in enumerate(TITLES):
        for one in ranks:
            if one.grouping == grouping:
                shares = [float(np.mean(one.values <= level)) for level in levels]
                axes.plot(
                    levels, shares, color=LINE_COLORS[number % len(LINE_COLORS)], linewidth=1.4, label=TITLES[grouping]
                )
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="quantile of the prediction")
