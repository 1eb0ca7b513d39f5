"""The files of ``rlsim plan --out``: ranked.csv, pareto.png, best.yaml, plan.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    save_picture(pareto_figure(plan.as_dict()), folder / "pareto.png")


def pareto_figure(plan: Mapping[str, Any]) -> Figure:
    """Every plan with final numbers as a point of step time and cost, the front as a line, the best ones marked.

    plan: the content of plan.json. KeyError and TypeError where it is none.
    """
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    heading(figure, f"{plan['scenario']}: plans by {plan['objective'].replace('_', ' ')}")
    axes = plain_axes(figure, (1, 1, 1), "", "cost per step (USD)", "step time (s)")
    shown = {row["plan"]: row for row in (*plan["near"], *plan["by_group"])}
    for number, lag in enumerate(sorted({row["lag"] for row in shown.values()})):
        places = [_place(row) for row in shown.values() if row["lag"] == lag]
        color = LINE_COLORS[number % len(LINE_COLORS)]
        axes.scatter(
            [cost for cost, _ in places],
            [step_s for _, step_s in places],
            s=12,
            color=color,
            label=f"lag {lag}" if lag else "synchronous",
        )
    axes.plot(*zip(*map(_place, plan["pareto"]), strict=True), color=GREY, linewidth=1.0, zorder=0)
    best, near = plan["best"], plan["best_near_evidence"]
    axes.scatter(*_place(best), 90, facecolors="none", edgecolors=INK, label="best")
    if near is not None and near["plan"] != best["plan"]:
        cost, step_s = _place(near)
        axes.scatter(cost, step_s, 90, marker="s", facecolors="none", edgecolors=INK, label="best near the evidence")
    axes.legend(fontsize=8, frameon=False)
    return figure


def _place(row: Mapping[str, Any]) -> tuple[float, float]:
    """Cost and time of a plan's step."""
    return row["cost_per_step_usd"], row["step_s"]
