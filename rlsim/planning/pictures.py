"""The pictures of a sweep: speedup over k and acceptance length, speedup over cluster size by lag, or step time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rlsim.planning.breakeven import break_even_lengths
from rlsim.report.palette import BACKGROUND, GREY, INK

if TYPE_CHECKING:
    from rlsim.planning.sweeping import SweepResult

DPI = 150
DRAFT_KEYS = ("speculation.draft_length", "k")
ACCEPTANCE_KEY = "speculation.acceptance_length"
SIZE_KEY = "cluster.num_gpus"
LAG_KEYS = ("lag", "loop.policy_lag")
LINE_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222")
"""Okabe and Ito's set, as in rlsim.report.palette."""
SPEEDUP_TICKS = (0.25, 0.33, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3, 4, 6)
SPEEDUPS = (("rollout_speedup", "Rollout speedup"), ("end_to_end_speedup", "End-to-end speedup"))

Rows = Sequence[dict[str, Any]]
FloatArray = NDArray[np.float64]


def draw_sweep(result: SweepResult, folder: Path) -> list[Path]:
    """Draw what the axes allow into ``folder``: heatmap.png, scaling.png, else lines.png over the first numeric axis.

    Further axes are fixed at their first value. The same rows give the same bytes with the same matplotlib.
    """
    names = [axis.name for axis in result.axes]
    draft = next((name for name in DRAFT_KEYS if name in names), None)
    lag = next((name for name in LAG_KEYS if name in names), None)
    rows = [row for row in result.rows if row["status"] == "ok"]
    out = []
    if rows and draft is not None and ACCEPTANCE_KEY in names:
        out.append(_save(heatmap(_fixed(rows, names, (draft, ACCEPTANCE_KEY)), draft), folder / "heatmap.png"))
    if rows and SIZE_KEY in names:
        shown = _fixed(rows, names, (SIZE_KEY, lag) if lag else (SIZE_KEY,))
        out.append(_save(scaling(shown, lag), folder / "scaling.png"))
    numeric = [name for name in names if all(isinstance(row[name], int | float) for row in rows)]
    if rows and not out and numeric:
        series = next((name for name in names if name != numeric[0]), None)
        shown = _fixed(rows, names, (numeric[0], series) if series else (numeric[0],))
        out.append(_save(lines(shown, numeric[0], series), folder / "lines.png"))
    return out


def _fixed(rows: Rows, names: Sequence[str], free: Sequence[str]) -> Rows:
    """Rows in which every axis that is not free has the value of the first row."""
    others = [name for name in names if name not in free]
    return [row for row in rows if all(row[name] == rows[0][name] for name in others)]


def _save(figure: Figure, path: Path) -> Path:
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=DPI, metadata={"Software": None})
    return path


def _axes(figure: Figure, place: tuple[int, int, int], title: str, x: str, y: str) -> Axes:
    axes = figure.add_subplot(*place)
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    return axes


def heatmap(rows: Rows, draft: str) -> Figure:
    """Rollout and end-to-end speedup over k and acceptance length; the line is where the rollout breaks even."""
    ks = sorted({row[draft] for row in rows})
    lengths = sorted({row[ACCEPTANCE_KEY] for row in rows})
    figure = Figure(figsize=(max(7.0, 1.1 * len(ks) + 4.0), max(3.6, 0.26 * len(lengths) + 1.8)), layout="constrained")
    for place, (column, title) in enumerate(SPEEDUPS, start=1):
        table = np.full((len(lengths), len(ks)), np.nan)
        for row in rows:
            table[lengths.index(row[ACCEPTANCE_KEY]), ks.index(row[draft])] = row[column]
        axes = _axes(figure, (1, 2, place), title, "k, drafted tokens", "acceptance length" if place == 1 else "")
        _cells(figure, axes, table)
        axes.set_xticks(range(len(ks)), [str(k) for k in ks])
        shown = range(0, len(lengths), max(1, len(lengths) // 12))
        axes.set_yticks(list(shown), [f"{lengths[i]:g}" for i in shown])
        _break_even_line(axes, break_even_lengths(rows, draft, column), ks, lengths)
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


def _break_even_line(axes: Axes, lengths_at: dict[Any, float], ks: Sequence[Any], lengths: Sequence[float]) -> None:
    known = [(ks.index(k), float(np.interp(a, lengths, range(len(lengths))))) for k, a in lengths_at.items()]
    if known:
        axes.plot(*zip(*sorted(known), strict=True), color=INK, linewidth=1.5, marker="o", markersize=3)
        x, y = max(known)
        axes.annotate("break-even", (x, y), (0, -11), textcoords="offset points", ha="center", fontsize=7, color=INK)


def scaling(rows: Rows, lag: str | None) -> Figure:
    """Rollout and end-to-end speedup over the number of GPUs, one line per policy lag."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    for place, (column, title) in enumerate(SPEEDUPS, start=1):
        axes = _axes(figure, (1, 2, place), title, "GPUs", "speedup" if place == 1 else "")
        _series(axes, rows, SIZE_KEY, lag, column)
        axes.axhline(1.0, color=GREY, linewidth=0.8, linestyle="--")
        axes.set_xscale("log", base=2)
        sizes = sorted({row[SIZE_KEY] for row in rows})
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
    return figure


def lines(rows: Rows, x: str, series: str | None) -> Figure:
    """Step time with its interval, and end-to-end speedup, over one axis."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    for place, (column, title) in enumerate((("step_s", "Step time (s)"), SPEEDUPS[1]), start=1):
        _series(_axes(figure, (1, 2, place), title, x, ""), rows, x, series, column)
    return figure


def _series(axes: Axes, rows: Rows, x: str, series: str | None, column: str) -> None:
    groups = list(dict.fromkeys(row[series] if series else "" for row in rows))
    for number, group in enumerate(groups):
        own = sorted((row for row in rows if not series or row[series] == group), key=lambda row: row[x])
        color = LINE_COLORS[number % len(LINE_COLORS)]
        places = [row[x] for row in own]
        low, high = (_bound(own, column, side) for side in ("low", "high"))
        axes.fill_between(places, low, high, color=color, alpha=0.08, linewidth=0)
        label = f"{series.rpartition('.')[2]} {group}" if series else None
        axes.plot(places, [row[column] for row in own], color=color, marker="o", markersize=3, label=label)
    axes.grid(color=BACKGROUND, linewidth=0.6)
    axes.set_axisbelow(True)
    if series and len(groups) > 1:
        axes.legend(fontsize=8, frameon=False)


def _bound(rows: Rows, column: str, side: str) -> list[float]:
    name = f"step_{side}_s" if column == "step_s" else f"{column}_{side}"
    return [row[name] for row in rows]
