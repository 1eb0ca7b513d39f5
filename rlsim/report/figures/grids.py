"""The pictures of sweeps and plans (speed-up over k and acceptance length, step time over an axis or against cost), of
clusters by size, and of how a run's steps evolve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from rlsim.report.figures.bars import TIP
from rlsim.report.figures.style import BACKGROUND, GREY, INK, LINE_COLORS, VARIANT_COLORS, picture_style, plain_axes
from rlsim.report.style import Style
from rlsim.report.text.run import headline
from rlsim.results import sweep
from rlsim.results.answer import interval_columns
from rlsim.results.planning import DeviceSize, Sizing
from rlsim.results.record import Row
from rlsim.results.run import Run
from rlsim.units import FloatArray

SIZE_KEY = "cluster.num_gpus"
LAG_KEYS = ("lag", "loop.policy_lag")
SPEEDUP_TICKS = (0.25, 0.33, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3, 4, 6)
SPEEDUPS = (
    ("rollout_speedup", "Rollout, speed-up by speculation"),
    ("end_to_end_speedup", "End to end, speed-up by speculation"),
)
STEP = ("step_s", "Step time (s)")
MOST_TICKS = 12

Rows = Sequence[Row]


@picture_style()
def sweep_figures(result: sweep.SweepResult) -> dict[str, Figure]:
    """What the axes allow, by name: heatmap, scaling, else lines over the first numeric axis.

    Further axes are fixed at the first cell that can run; the heading says at which values.
    """
    axes = result.columns
    draft = next((name for name in sweep.DRAFT_KEYS if name in axes), None)
    out: dict[str, Figure] = {}
    if result.done and draft is not None and sweep.ACCEPTANCE_KEY in axes:
        rows, title = _slice(result, (draft, sweep.ACCEPTANCE_KEY))
        out["heatmap"] = _heatmap(rows, draft, title)
    if result.done and SIZE_KEY in axes:
        out["scaling"] = _lines(result, SIZE_KEY)
    numeric = [name for name in axes if all(isinstance(row[name], int | float) for row in result.done)]
    if result.done and not out and numeric:
        longest = max(numeric, key=lambda name: len(axes[name]) > 1)
        out["lines"] = _lines(result, longest)
    return out


def _lines(result: sweep.SweepResult, x: str) -> Figure:
    """Step time with its interval, and the end-to-end speed-up by speculation, over the axis ``x``.

    One line for each value of the lag, or else of the first further axis with several.
    """
    others = [name for name, values in result.columns.items() if name != x and len(values) > 1]
    series = next((name for name in (*LAG_KEYS, *others) if name in others), None)
    rows, title = _slice(result, (x, series) if series else (x,))
    figure = _titled((9.0, 3.8), title)
    places = sorted({row[x] for row in rows})
    for place, (column, name) in enumerate((STEP, SPEEDUPS[1]), start=1):
        axes = plain_axes(figure, (1, 2, place), name, "GPUs" if x == SIZE_KEY else x, "")
        _series(axes, rows, x, series, column)
        if x == SIZE_KEY and len(places) > 1:
            axes.set_xscale("log", base=2)
        if len(places) <= MOST_TICKS:
            axes.set_xticks(places, [f"{value:,.10g}" for value in places])
            axes.minorticks_off()
        if column != STEP[0]:
            axes.axhline(1.0, color=GREY, linewidth=0.8, linestyle="--")
    return figure


def _slice(result: sweep.SweepResult, free: Sequence[str]) -> tuple[Rows, str]:
    """Rows in which every axis that is not free has the value of the first one, and a heading that says so."""
    first = result.done[0]
    fixed = {name: len(values) for name, values in result.columns.items() if name not in free}
    rows = [row for row in result.done if all(row[name] == first[name] for name in fixed)]
    values = [f"{name} = {first[name]}" + (f" (1 of {n} values)" if n > 1 else "") for name, n in fixed.items()]
    return rows, "; ".join([result.scenario, *values])


def _titled(size: tuple[float, float], text: str) -> Figure:
    """A picture so many inches wide and high, and what the whole of it is of."""
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(text, fontsize=10, x=0.01, ha="left", color=INK, wrap=True)
    return figure


def _heatmap(rows: Rows, draft: str, title: str) -> Figure:
    """Rollout and end-to-end speed-up over k and acceptance length; the line is where each breaks even."""
    ks = sorted({row[draft] for row in rows})
    lengths = sorted({row[sweep.ACCEPTANCE_KEY] for row in rows})
    size = (max(7.0, 1.1 * len(ks) + 4.0), max(3.6, 0.26 * len(lengths) + 1.8))
    figure = _titled(size, title)
    known = False
    for place, (column, name) in enumerate(SPEEDUPS, start=1):
        table = np.full((len(lengths), len(ks)), np.nan)
        for row in rows:
            table[lengths.index(row[sweep.ACCEPTANCE_KEY]), ks.index(row[draft])] = row[column]
        axes = plain_axes(figure, (1, 2, place), name, "k, drafted tokens", "acceptance length" if place == 1 else "")
        axes.grid(visible=False)
        _cells(figure, axes, table)
        axes.set_xticks(range(len(ks)), [str(k) for k in ks])
        shown = range(0, len(lengths), max(1, len(lengths) // MOST_TICKS))
        axes.set_yticks(list(shown), [f"{lengths[i]:g}" for i in shown])
        breaks = sorted(sweep.break_even_lengths(rows, draft, column).items())
        crossings = [float(np.interp(length, lengths, range(len(lengths)))) for _, length in breaks]
        style: dict[str, Any] = {"color": INK, "alpha": 0.5, "linewidth": 1, "marker": "o", "markersize": 3}
        axes.plot([ks.index(k) for k, _ in breaks], crossings, label="break-even", **style)
        known |= bool(breaks)
    if known:
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower left", fontsize=8, frameon=False)
    return figure


def _cells(figure: Figure, axes: Axes, table: FloatArray) -> None:
    most = max(1.05, float(np.nanmax(table)), 1.0 / float(np.nanmin(table)))
    axes.set_facecolor(BACKGROUND)
    image = axes.imshow(table, origin="lower", aspect="auto", cmap="RdBu", norm=LogNorm(1 / most, most))
    bar = figure.colorbar(image, ax=axes)
    ticks = [v for v in SPEEDUP_TICKS if 1 / most <= v <= most]
    bar.set_ticks(ticks, labels=[f"{v:g}" for v in ticks])
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=8)
    if table.size > 140:
        return
    for (y, x), value in np.ndenumerate(table):
        if np.isfinite(value):
            dark = abs(np.log(value)) > 0.65 * np.log(most)
            axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=7, color="white" if dark else INK)


def _series(axes: Axes, rows: Rows, x: str, series: str | None, column: str) -> None:
    groups = list(dict.fromkeys(row[series] if series else "" for row in rows))
    for number, group in enumerate(groups):
        own = sorted((row for row in rows if not series or row[series] == group), key=lambda row: row[x])
        color = LINE_COLORS[number % len(LINE_COLORS)]
        places, values = [row[x] for row in own], np.array([row[column] for row in own])
        low, high = (np.array([row[name] for row in own]) for name in interval_columns(column)[1:])
        label = f"{series.rpartition('.')[2]} {group}" if series else None
        if len(own) > 1:
            axes.fill_between(places, low, high, color=color, alpha=0.08, linewidth=0)
            axes.plot(places, values, color=color, marker="o", markersize=3, label=label)
            for place, value, least, most in zip(places, values, low, high, strict=True):
                shown = " ".join(filter(None, (label, f"{x.rpartition('.')[2]} {place}:")))
                told = f"{shown} {value:.4g} [{least:.4g}, {most:.4g}]"
                axes.plot([place], [value], color=color, marker="o", markersize=3, gid=f"{TIP}{told}")
        else:
            ends = [values - low, high - values]
            axes.errorbar(places, values, ends, color=color, fmt="o", markersize=3, label=label)
    if series and len(groups) > 1:
        axes.legend(fontsize=8, frameon=False)


@picture_style()
def plan_figure(plan: sweep.Plan) -> Figure:
    """Every finalist by cost in USD and seconds of a step, the front as a line, the best marked."""
    figure = _titled((7.0, 4.2), f"{plan.scenario}: plans by {plan.objective.replace('_', ' ')}")
    axes = plain_axes(figure, (1, 1, 1), "", "cost per step (USD)", "step time (s)")
    for number, lag in enumerate(sorted({row.overrides["lag"] for row in plan.finalists})):
        places = [_place(row) for row in plan.finalists if row.overrides["lag"] == lag]
        color, label = LINE_COLORS[number % len(LINE_COLORS)], f"lag {lag}" if lag else "synchronous"
        costs, steps = zip(*places, strict=True)
        axes.scatter(costs, steps, s=12, color=color, label=label)
    axes.plot(*zip(*map(_place, plan.pareto), strict=True), color=GREY, linewidth=1.0, zorder=0)
    axes.scatter(*_place(plan.best), 90, facecolors="none", edgecolors=INK, label="best")
    axes.legend(fontsize=8, frameon=False)
    return figure


def _place(row: sweep.PlanRow) -> tuple[float, float]:
    """Cost in USD and seconds of a plan's step."""
    return row.numbers.cost_per_step_usd, row.step_s


@picture_style()
def size_figure(sizing: Sizing) -> Figure:
    """Step and price of a step over the GPUs of each device; the knee ringed, what to take filled."""
    figure = _titled((9.0, 3.8), f"{sizing.model}: clusters that train it")
    panels = [
        (plain_axes(figure, (1, 2, 1), STEP[1], "GPUs", ""), "step_s", sizing.deadline_s),
        (plain_axes(figure, (1, 2, 2), "USD per step", "GPUs", ""), "usd_per_step", sizing.budget_usd),
    ]
    places = sorted({size.gpus for one in sizing.devices for size in one.sizes})
    for axes, column, limit in panels:
        for number, one in enumerate(one for one in sizing.devices if one.sizes):
            _sizes(axes, one, column, LINE_COLORS[number % len(LINE_COLORS)])
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [f"{value:,}" for value in places])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        if limit is not None:
            axes.axhline(limit, color=GREY, linewidth=0.8, linestyle="--", label="limit")
    panels[0][0].legend(fontsize=8, frameon=False)
    return figure


def _sizes(axes: Axes, one: DeviceSize, column: str, color: str) -> None:
    places = [size.gpus for size in one.sizes]
    values = [size.step_s.mean if column == "step_s" else size.usd_per_step for size in one.sizes]
    axes.plot(places, values, color=color, marker=".", label=one.device)
    if column == "step_s":
        ends = [size.step_s.low for size in one.sizes], [size.step_s.high for size in one.sizes]
        axes.fill_between(places, *ends, color=color, alpha=0.08, linewidth=0)
    for gpus, size, value in zip(places, one.sizes, values, strict=True):
        told = f"{gpus:,} {one.device}: {size.step_s.mean:.1f} s, {size.usd_per_step:.2f} USD; {size.layout}"
        filled = color if gpus == one.chosen else "none"
        shown = 60 if gpus in (one.knee, one.chosen) else 8
        axes.scatter([gpus], [value], s=shown, facecolors=filled, edgecolors=color, gid=f"{TIP}{told}", zorder=3)


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
