"""The picture of a run: how its steps evolve."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rlsim.report.figures.style import BACKGROUND, GREY, VARIANT_COLORS, picture_style
from rlsim.report.style import Style
from rlsim.report.text.run import headline
from rlsim.results.run import Run
from rlsim.units import FloatArray

WIDTH_IN, PANEL_IN, TITLE_IN = 10.0, 1.55, 0.75
SMOOTHED_SHARE = 0.02
"""Share of the run over which the lines are averaged, twice; single steps stand behind them as dots. The line of the
step is that of the undisturbed one."""
PANELS = (
    ("step_s", "step (s); line:\nundisturbed"),
    ("exposed_generation_s", "exposed\ngeneration (s)"),
    ("response_tokens", "response\n(tokens)"),
    ("acceptance_length", "tokens per\nverification"),
    ("staleness", "age of samples\n(steps)"),
    ("lost", "lost so far\n(hours)"),
)
TITLE_CHARACTERS = 100


@picture_style()
def run_figure(run: Run) -> Figure:
    """One panel for each quantity that says anything, steps from left to right."""
    panels = _panels(run)
    title = Style(TITLE_CHARACTERS).wrapped(f"{run.scenario}: {headline(run)}")
    top = 0.25 * len(title) + 0.55
    height = top + PANEL_IN * len(panels) + 0.6
    figure = Figure(figsize=(WIDTH_IN, height))
    FigureCanvasAgg(figure)
    figure.text(0.02, 1 - 0.12 / height, "\n".join(title), va="top", fontweight="bold")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    figure.subplots_adjust(left=0.13, right=0.97, top=1 - top / height, bottom=0.55 / height, hspace=0.28)
    for axis, (column, label) in zip(axes, panels, strict=True):
        _panel(axis, run, column, label)
    axes[-1].set_xlabel("training step")
    if len(run.sides) > 1:
        handles, labels = axes[0].get_legend_handles_labels()
        place = (0.97, 1 - (top - 0.38) / height)
        figure.legend(handles, labels, loc="upper right", bbox_to_anchor=place, ncols=2, frameon=False)
    return figure


def _panels(run: Run) -> list[tuple[str, str]]:
    """Panels that differ from a constant, and the step always."""
    sides = run.sides.values()

    says = {
        "step_s": True,
        "lost": any(cause != "steps" for side in sides for cause in side.ledger),
        "acceptance_length": any(side.speculates for side in sides),
        **({} if run.asynchronous else {"exposed_generation_s": False}),
    }
    return [
        (column, label)
        for column, label in PANELS
        if says.get(column, column not in says and any(np.ptp(side.steps[column]) > 0 for side in sides))
    ]


def _panel(axis: Axes, run: Run, column: str, label: str) -> None:
    sides = run.sides
    # What both sides have in common is drawn once.
    same = column == "response_tokens"
    shown = dict(list(sides.items())[-1:]) if same else sides
    tops = []
    for name, side in shown.items():
        steps = np.asarray(side.steps["step"])
        color = GREY if same and len(sides) > 1 else VARIANT_COLORS[name]
        if column == "lost":
            lost = np.cumsum(np.asarray(side.steps["step_s"]) - np.asarray(side.steps["steps_s"])) / 3600.0
            axis.plot(steps, lost, color=color, lw=1.8, label=name)
            continue
        values = np.asarray(side.steps[column])
        line = _smoothed(side.steps["steps_s"] if column == "step_s" else values)
        tops.append(max(float(np.quantile(values, 0.995)), float(line.max())))
        axis.plot(steps, values, ".", ms=1.6, color=color, alpha=0.35, rasterized=True)
        axis.plot(steps, line, color=color, lw=1.8, label=name)
    if tops and column != "acceptance_length":
        axis.set_ylim(0, 1.08 * max(tops) or 1.0)
    axis.set_ylabel(label, fontsize=9)
    axis.yaxis.set_label_coords(-0.075, 0.5)
    axis.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4))
    axis.yaxis.set_major_formatter("{x:,.10g}")
    axis.xaxis.set_major_formatter("{x:,.10g}")
    axis.grid(color=BACKGROUND, lw=0.7)
    axis.set_axisbelow(True)
    axis.margins(x=0.01)


def _smoothed(values: FloatArray | Sequence[float]) -> FloatArray:
    """Mean over neighbouring steps, fewer of them at the ends; twice, or steps that alternate would shine through."""
    out = np.asarray(values, dtype=np.float64)
    half, number = max(1, round(SMOOTHED_SHARE * len(out) / 2)), np.arange(len(out))
    low, high = np.maximum(number - half, 0), np.minimum(number + half + 1, len(out))
    for _ in range(2):
        sums = np.concatenate([[0.0], np.cumsum(out)])
        out = np.asarray((sums[high] - sums[low]) / (high - low), dtype=np.float64)
    return out
