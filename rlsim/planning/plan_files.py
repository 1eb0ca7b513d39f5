"""The files of ``rlsim plan --out``: ranked.csv, pareto.png, best.yaml, plan.json."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rlsim.planning.pictures import DPI, LINE_COLORS
from rlsim.planning.planner import Plan
from rlsim.planning.tables import write_csv
from rlsim.report.palette import BACKGROUND, GREY, INK


def write_plan(plan: Plan, folder: Path) -> None:
    """Write into the existing ``folder``. best.yaml is a whole scenario that ``rlsim project`` takes."""
    write_csv([row.as_dict() for row in plan.ranked], folder / "ranked.csv")
    (folder / "best.yaml").write_text(plan.best_scenario, encoding="utf-8", newline="\n")
    (folder / "plan.json").write_text(json.dumps(plan.as_dict(), indent=2) + "\n", encoding="utf-8", newline="\n")
    figure = pareto_figure(plan)
    FigureCanvasAgg(figure)
    figure.savefig(folder / "pareto.png", dpi=DPI, metadata={"Software": None})


def pareto_figure(plan: Plan) -> Figure:
    """Every plan kept by the search as a point of step time and cost, the front as a line, the best marked."""
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.add_subplot()
    lags = sorted({int(row.values["policy_lag"]) for row in plan.ranked})
    for number, lag in enumerate(lags):
        rows = [row for row in plan.ranked if row.values["policy_lag"] == lag]
        color = LINE_COLORS[number % len(LINE_COLORS)]
        label = "synchronous" if lag == 0 else f"lag {lag}"
        costs = [row.values["cost_per_step_usd"] for row in rows]
        axes.scatter(costs, [row.step_s for row in rows], s=12, color=color, label=label)
    front = [(row.values["cost_per_step_usd"], row.step_s) for row in plan.pareto]
    axes.plot(*zip(*front, strict=True), color=GREY, linewidth=1.0, zorder=0)
    best = plan.best
    axes.scatter(
        [best.values["cost_per_step_usd"]], [best.step_s], s=90, facecolors="none", edgecolors=INK, label="best"
    )
    axes.set_xlabel("cost per step (USD)", fontsize=9)
    axes.set_ylabel("step time (s)", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(color=BACKGROUND, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(fontsize=8, frameon=False)
    return figure
