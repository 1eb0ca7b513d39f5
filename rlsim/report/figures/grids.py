"""The pictures of sweeps and plans (speed-up over k and acceptance length, step time over an axis or against cost), of
clusters by size, and of how a run's steps evolve."""

import itertools
from collections.abc import Sequence
from typing import Any

import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from rlsim.report.figures.bars import TIP
from rlsim.report.figures.style import BACKGROUND, GREY, INK, LINE_COLORS, VARIANT_COLORS, picture_style, plain_axes
from rlsim.report.text.improvement import draft_headline
from rlsim.report.text.run import headline
from rlsim.results import Interval, sweep
from rlsim.results.planning import DraftCurve, Sizing
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
TICK_CHARACTERS = 36
"""Characters of tick labels that stand side by side under one of two panels, with those that part them."""
MOST_BANDS = 4
"""Lines that are drawn with the bands of their intervals; more bands hide each other and the lines."""

Rows = Sequence[Row]


@picture_style()
def sweep_figures(result: sweep.SweepResult) -> dict[str, Figure]:
    """Pictures of a sweep by name, as its axes allow: heatmap, scaling, else lines over the first numeric axis.

    Further axes are fixed at the first cell that can run; the heading says at which values.
    """
    axes = result.columns
    draft = next((name for name in sweep.DRAFT_KEYS if name in axes), None)
    out: dict[str, Figure] = {}
    if result.done and draft is not None and sweep.ACCEPTANCE_KEY in axes:
        rows, title = _slice(result, (draft, sweep.ACCEPTANCE_KEY))
        out["heatmap"] = _heatmap(rows, draft, title)
    if result.done and SIZE_KEY in axes:
        out["scaling"] = _scaling(result, SIZE_KEY)
    numeric = [name for name in axes if all(isinstance(row[name], int | float) for row in result.done)]
    if result.done and not out and numeric:
        longest = max(numeric, key=lambda name: len(axes[name]) > 1)
        out["lines"] = _scaling(result, longest)
    return out


def _scaling(result: sweep.SweepResult, x: str) -> Figure:
    """Step time with its interval, and the end-to-end speed-up by speculation where anything drafts, over ``x``.

    One line for each value of the lag, or else of the first further axis with several.
    """
    others = [name for name, values in result.columns.items() if name != x and len(values) > 1]
    series = next((name for name in (*LAG_KEYS, *others) if name in others), None)
    rows, title = _slice(result, (x, series) if series else (x,))
    drafted = any(row[SPEEDUPS[1][0]] != 1.0 for row in rows)
    panels = (STEP, SPEEDUPS[1]) if drafted else (STEP,)
    figure = _titled((9.0 if drafted else 6.0, 3.8), title)
    for place, (column, name) in enumerate(panels, start=1):
        axes = plain_axes(figure, (1, len(panels), place), name, "GPUs" if x == SIZE_KEY else x, "")
        _series(axes, rows, x, series, column)
        _ticks(axes, sorted({row[x] for row in rows}), x == SIZE_KEY)
        if column != STEP[0]:
            axes.axhline(1.0, color=GREY, linewidth=0.8, linestyle="--")
    return figure


def _ticks(axes: Axes, places: Sequence[float], doubling: bool) -> None:
    """A tick at each place where they are few; doubling: of places that grow by factors."""
    if doubling and len(places) > 1:
        axes.set_xscale("log", base=2)
    labels = [f"{value:,.10g}" for value in places]
    if len(places) <= MOST_TICKS and sum(len(label) + 1 for label in labels) <= TICK_CHARACTERS:
        axes.set_xticks(places, labels)
        axes.minorticks_off()
    elif not doubling:
        axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.yaxis.set_major_formatter("{x:,.10g}")


def _draw_line(
    axes: Axes,
    color: str,
    label: str | None,
    points: Sequence[tuple[float, Interval, str]],
    style: str = "-",
    band: bool = True,
) -> None:
    """Means over their places within the band of their intervals; each point has its text as a tooltip on a page."""
    places, values = [place for place, _, _ in points], [value for _, value, _ in points]
    ends = [value.low for value in values], [value.high for value in values]
    if len(points) > 1 and band:
        axes.fill_between(places, *ends, color=color, alpha=0.08, linewidth=0)
    elif band:
        # A band over a single point has no width.
        axes.vlines(places, *ends, color=color)
    axes.plot(places, [value.mean for value in values], color=color, label=label, linestyle=style)
    for place, value, text in points:
        axes.plot([place], [value.mean], color=color, marker="o", markersize=3, gid=f"{TIP}{text}")


def _slice(result: sweep.SweepResult, free: Sequence[str]) -> tuple[Rows, str]:
    """Rows in which every axis that is not free has the value of the first one, and a heading that says so."""
    first = result.done[0]
    fixed = {name: len(values) for name, values in result.columns.items() if name not in free}
    rows = [row for row in result.done if all(row[name] == first[name] for name in fixed)]
    values = [f"{name} = {first[name]}" + (f" (1 of {n} values)" if n > 1 else "") for name, n in fixed.items()]
    return rows, "; ".join([result.scenario, *values])


def _titled(size: tuple[float, float], text: str) -> Figure:
    """An empty picture of ``size`` inches with ``text`` as its title."""
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
    # Symmetric about 1, so that white means no change; 1.05 keeps noise from filling the colours.
    most = max(1.05, float(np.nanmax(table)), 1.0 / float(np.nanmin(table)))
    axes.set_facecolor(BACKGROUND)
    image = axes.imshow(table, origin="lower", aspect="auto", cmap="RdBu", norm=LogNorm(1 / most, most))
    bar = figure.colorbar(image, ax=axes)
    ticks = [v for v in SPEEDUP_TICKS if 1 / most <= v <= most]
    bar.set_ticks(ticks, labels=[f"{v:g}" for v in ticks])
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=8)
    # More numbers than that overlap.
    if table.size > 140:
        return
    for (y, x), value in np.ndenumerate(table):
        if np.isfinite(value):
            dark = abs(np.log(value)) > 0.65 * np.log(most)
            axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=7, color="white" if dark else INK)


def _series(axes: Axes, rows: Rows, x: str, series: str | None, column: str) -> None:
    groups = list(dict.fromkeys(row[series] if series else "" for row in rows))
    for number, group in enumerate(groups):
        members = sorted((row for row in rows if not series or row[series] == group), key=lambda row: row[x])
        label = f"{series.rpartition('.')[2]} {group}" if series else ""
        # Beyond the colours a line of a used one is dashed.
        color, style = LINE_COLORS[number % len(LINE_COLORS)], ("-", "--", ":")[number // len(LINE_COLORS) % 3]
        points = []
        for row in members:
            value, place = sweep.interval_in(row, column), f"{x.rpartition('.')[2]} {row[x]}:"
            text = f"{label} {place} {value.mean:.4g} [{value.low:.4g}, {value.high:.4g}]".lstrip()
            points.append((row[x], value, text))
        _draw_line(axes, color, str(group) or None, points, style, len(groups) <= MOST_BANDS)
    if len(groups) > MOST_BANDS:
        axes.set_title(f"{axes.get_title(loc='left')}, means alone", fontsize=9, loc="left", color=INK)
    if series and len(groups) > 1:
        columns = 1 + len(groups) // len(LINE_COLORS)
        axes.legend(title=series, title_fontsize=8, fontsize=8, frameon=False, ncols=columns, handlelength=2.6)


@picture_style()
def plan_figure(plan: sweep.Plan) -> Figure:
    """Every finalist by cost in USD and seconds of a step, the front as a line, the best marked."""
    figure = _titled((7.0, 4.2), f"{plan.scenario}: plans by {plan.objective.replace('_', ' ')}")
    axes = plain_axes(figure, (1, 1, 1), "", "cost per step (USD)", "step time (s)")
    # Loops that another key or their style lets run ahead keep their own lag and override none.
    lags = sorted({row.overrides.get("lag") for row in plan.finalists}, key=lambda lag: -1 if lag is None else lag)
    for color, lag in zip(itertools.cycle(LINE_COLORS), lags, strict=False):
        members = [row for row in plan.finalists if row.overrides.get("lag") == lag]
        ahead = "own lag" if lag is None else f"lag {lag}" if lag else "synchronous"
        axes.scatter(*_places(members), s=12, color=color, label=ahead)
    axes.plot(*_places(plan.pareto), color=GREY, linewidth=1.0, zorder=0)
    axes.scatter(*_places([plan.best]), s=90, facecolors="none", edgecolors=INK, label="best")
    axes.legend(fontsize=8, frameon=False)
    return figure


def _places(rows: Sequence[sweep.PlanRow]) -> tuple[list[float], list[float]]:
    """Costs in USD and seconds of the steps of plans."""
    return [row.numbers.cost_per_step_usd for row in rows], [row.step_s for row in rows]


@picture_style()
def size_figure(sizing: Sizing) -> Figure:
    """Step and price of a step over the GPUs of each device; the knee ringed, what to take filled."""
    figure = _titled((9.0, 3.8), f"{sizing.model}: clusters that train it (large dot: what to take; ring: the knee)")
    for place, (name, limit) in enumerate(((STEP[1], sizing.deadline_s), ("USD per step", sizing.budget_usd)), start=1):
        axes = plain_axes(figure, (1, 2, place), name, "GPUs", "")
        for color, one in zip(itertools.cycle(LINE_COLORS), (one for one in sizing.devices if one.sizes), strict=False):
            points = []
            for size in one.sizes:
                text = f"{size.step_s.mean:.1f} s, {size.usd_per_step:.2f} USD; {size.layout}"
                value = size.step_s if place == 1 else Interval(*[size.usd_per_step] * 3)
                points.append((size.gpus, value, f"{size.gpus:,} {one.device}: {text}"))
                if size.gpus in (one.knee, one.chosen):
                    filled = color if size.gpus == one.chosen else "white"
                    axes.scatter([size.gpus], [value.mean], s=60, facecolors=filled, edgecolors=color, zorder=3)
            _draw_line(axes, color, one.device, points, band=len(sizing.devices) <= MOST_BANDS)
        _ticks(axes, sorted({size.gpus for one in sizing.devices for size in one.sizes}), doubling=True)
        axes.set_ylim(bottom=0)
        if limit is not None:
            axes.axhline(limit, color=GREY, linewidth=0.8, linestyle="--", label="limit")
    figure.axes[0].legend(fontsize=8, frameon=False)
    return figure


@picture_style()
def draft_figure(found: DraftCurve) -> Figure:
    """Speed-ups of rollout and step over the draft length, and the share of decoding at live batches that gain."""
    figure = _titled((9.0, 3.8), draft_headline(found))
    axes = plain_axes(figure, (1, 2, 1), "speed-up", "draft length k", "")
    for color, name, values in zip(
        LINE_COLORS,
        ("rollout", "step"),
        ([one.rollout_speedup for one in found.lengths], [one.step_speedup for one in found.lengths]),
        strict=False,
    ):
        points = [
            (one.draft_length, value, f"k = {one.draft_length}: {name} {value.mean:.2f}x")
            for one, value in zip(found.lengths, values, strict=True)
        ]
        _draw_line(axes, color, name, points)
    axes.axhline(1.0, color=GREY, linewidth=0.8, linestyle="--")
    axes.legend(fontsize=8, frameon=False)
    shares = plain_axes(figure, (1, 2, 2), "share of decoding, of iterations", "draft length k", "")
    lengths = [one.draft_length for one in found.lengths]
    drafted = [one for one in found.lengths if one.draft_length]  # without drafts nothing gains
    for color, name, given in zip(
        LINE_COLORS,
        ("decoding at live batches that gain", "iterations outside graphs"),
        ([one.pays_share for one in drafted], [one.eager_share for one in drafted]),
        strict=False,
    ):
        shares.plot([one.draft_length for one in drafted], given, color=color, marker="o", markersize=3, label=name)
    shares.set_ylim(-0.03, 1.25)  # room for the legend above all shares
    shares.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    shares.legend(fontsize=8, frameon=False, loc="upper right")
    for one in (axes, shares):
        one.set_xticks(lengths)
    return figure


WIDTH_IN, PANEL_IN = 10.0, 1.55
SMOOTHED_SHARE = 0.02
"""Share of the run over which the lines are averaged, twice; single steps stand behind them as dots. The line of the
step is that of the undisturbed one."""
FEW_STEPS = 200
PANELS = (
    ("step_s", "step (s)"),
    ("exposed_generation_s", "exposed\ngeneration (s)"),
    ("response_tokens", "response\n(tokens)"),
    ("acceptance_length", "tokens per\nverification"),
    ("staleness", "age of samples\n(steps)"),
    ("lost", "lost so far\n(hours)"),
)


@picture_style()
def run_figure(run: Run) -> Figure:
    """One panel for each quantity that says anything, steps from left to right."""
    panels = _panels(run)
    figure = _titled((WIDTH_IN, PANEL_IN * len(panels) + 1.4), f"{run.scenario}: {headline(run)}")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (column, label) in zip(axes, panels, strict=True):
        _panel(axis, run, column, label)
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    axes[-1].set_xlabel("training step")
    if len(run.sides) > 1:
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower right", ncols=2, frameon=False)
    figure.align_ylabels()
    return figure


def _panels(run: Run) -> list[tuple[str, str]]:
    """Panels that differ from a constant, and the step always."""
    sides = run.sides.values()
    disturbed = any(cause != "steps" for side in sides for cause in side.ledger)
    shown = {
        "step_s": True,
        "lost": disturbed,
        "acceptance_length": any(side.speculates for side in sides),
        **({} if run.asynchronous else {"exposed_generation_s": False}),
    }
    return [
        (column, f"{label}; line:\nundisturbed" if disturbed and column == "step_s" else label)
        for column, label in PANELS
        if shown.get(column, column not in shown and any(np.ptp(side.steps[column]) > 0 for side in sides))
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
        # Single extreme steps would flatten all others.
        tops.append(max(float(np.quantile(values, 0.995)), float(line.max())))
        # Rasterised: a run has up to 100,000 steps. Few steps are seen as dots of their own.
        few = len(steps) <= FEW_STEPS
        axis.plot(steps, values, ".", ms=6 if few else 1.6, color=color, alpha=0.6 if few else 0.35, rasterized=True)
        axis.plot(steps, line, color=color, lw=1.8, label=name)
    if tops and column != "acceptance_length":
        axis.set_ylim(0, 1.08 * max(tops) or 1.0)
    axis.set_ylabel(label, fontsize=9)
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
        # Differences of running sums: a window of any width costs the same.
        sums = np.concatenate([[0.0], np.cumsum(out)])
        out = np.asarray((sums[high] - sums[low]) / (high - low), dtype=np.float64)
    return out
