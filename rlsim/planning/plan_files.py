"""The files of ``rlsim plan --out``: ranked.csv, pareto.png, best.yaml, plan.json."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure

from rlsim.planning.frames import write_csv
from rlsim.planning.pictures import heading, plain_axes
from rlsim.planning.results import Plan
from rlsim.report.style import GREY, INK, LINE_COLORS, picture_style, save_picture


@picture_style()
def write_plan(plan: Plan, folder: Path) -> None:
    """Write into the existing ``folder``. best.yaml is a whole scenario that ``rlsim project`` takes."""
    write_csv(plan.to_frame(), folder / "ranked.csv")
    (folder / "best.yaml").write_text(plan.best_scenario, encoding="utf-8", newline="\n")
    (folder / "plan.json").write_text(json.dumps(plan.as_dict(), indent=2) + "\n", encoding="utf-8", newline="\n")
    save_picture(pareto_figure(plan), folder / "pareto.png")


def pareto_figure(plan: Plan) -> Figure:
    """Every plan with final numbers as a point of step time and cost, the front as a line, the best ones marked."""
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    heading(figure, f"{plan.scenario}: plans by {plan.objective.measure.replace('_', ' ')}")
    axes = plain_axes(figure, (1, 1, 1), "", "cost per step (USD)", "step time (s)")
    shown = list(dict.fromkeys((*plan.near, *plan.by_group)))
    for number, lag in enumerate(sorted({row.layout.split.lag for row in shown})):
        rows = [row for row in shown if row.layout.split.lag == lag]
        color = LINE_COLORS[number % len(LINE_COLORS)]
        label = "synchronous" if lag == 0 else f"lag {lag}"
        costs = [row.numbers.cost_per_step_usd for row in rows]
        axes.scatter(costs, [row.step_s for row in rows], s=12, color=color, label=label)
    front = [(row.numbers.cost_per_step_usd, row.step_s) for row in plan.pareto]
    axes.plot(*zip(*front, strict=True), color=GREY, linewidth=1.0, zorder=0)
    best = (plan.best.numbers.cost_per_step_usd, plan.best.step_s)
    axes.scatter(*best, s=90, facecolors="none", edgecolors=INK, label="best")
    if plan.best_near is not None and plan.best_near.layout != plan.best.layout:
        near = (plan.best_near.numbers.cost_per_step_usd, plan.best_near.step_s)
        axes.scatter(*near, s=90, marker="s", facecolors="none", edgecolors=INK, label="best near the evidence")
    axes.legend(fontsize=8, frameon=False)
    return figure
