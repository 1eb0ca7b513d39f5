"""What the page says of a plan and a sweep."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rlsim.report import format as fmt
from rlsim.report.figures.bars import Bar, BarRow
from rlsim.report.figures.grids import plan_figure, sweep_figures
from rlsim.report.figures.style import GREY, LINE_COLORS
from rlsim.report.page.parts import MOST_ROWS, Block, Part, Sections, Text, counted, picture, ranged, speedup, table
from rlsim.report.table import Table
from rlsim.report.text.plan import plans_table, rivals_table
from rlsim.results import Interval
from rlsim.results.plan import Change, Plan, PlanRow
from rlsim.results.record import Row
from rlsim.results.sweep import SweepResult, interval_in

SHORTER, LONGER = LINE_COLORS[2], LINE_COLORS[1]
SWEEP_COLUMNS = ("status", "limit", "step_s", "rollout_speedup", "end_to_end_speedup", "cost_per_step_usd")


def plan_part(plan: Plan) -> Part:
    """The plan."""
    best, step = plan.best, _step_of(plan.best)
    measure = plan.objective.replace("_", " ")
    words = f"Best by {measure} ({plan.statistic}): {best.name}. A step takes {fmt.seconds(step.mean)}"
    if plan.current is not None:
        words += f" in place of {fmt.seconds(plan.current.step_s.mean)} as the scenario is"
    figures = [
        ranged("A step takes", step, fmt.seconds),
        (f"{measure.capitalize()}, {plan.statistic}", fmt.number(plan.objective_value), ""),
        ("Cost per step", f"{fmt.number(best.numbers.cost_per_step_usd)} USD", ""),
    ]
    if best.beats_current is not None:
        figures.append(("Beats the scenario as it is", fmt.percent(best.beats_current), "of the draws"))
    counts = f"{plan.considered:,} considered, {plan.configurations:,} configurations, {plan.simulated:,} simulated"
    against = [BarRow(one.rival, f"wins {fmt.percent(one.wins)}", [Bar(one.ratio)]) for one in plan.against[:MOST_ROWS]]
    rivals = picture("plan-against", against, rivals_table(plan)) if against else Text("It has no rivals.")
    sections: Sections = {
        "plan-way": [*_way(plan.waterfall), *_constraints(plan)],
        "plan-rivals": [rivals],
        "plan-plans": _plans(plan),
    }
    about = [f"Limited by {best.numbers.limit}.", f"Combinations: {counts}."]
    return Part("plan", plan.scenario, f"{words}.", figures, sections, about)


def _step_of(row: PlanRow) -> Interval:
    """The step in seconds; without width where only the search has seen it."""
    step = row.numbers.step_s
    return step if isinstance(step, Interval) else Interval(step.mean, step.mean, step.mean)


def _way(changes: Sequence[Change]) -> list[Block]:
    if not changes:
        return []
    first, last = changes[0], changes[-1]
    bars = [BarRow(first.what, fmt.seconds(first.step_s), [Bar.of(first.step_s, GREY)])]
    for before, after in itertools.pairwise(changes):
        bar = Bar.between(before.step_s, after.step_s, SHORTER if after.step_s <= before.step_s else LONGER)
        bars.append(BarRow(after.what, f"{after.step_s - before.step_s:+.2f} s", [bar]))
    bars.append(BarRow("best plan", fmt.seconds(last.step_s), [Bar.of(last.step_s, LINE_COLORS[0])]))
    numbers = table("plan-waterfall", [(one.what, f"{one.step_s:.2f}") for one in changes])
    return [picture("plan-waterfall", bars, numbers)]


def _constraints(plan: Plan) -> list[Block]:
    rows = [
        (
            *(one.constraint, one.unit, fmt.number(one.limit), fmt.number(one.value)),
            "-" if one.probability is None else fmt.percent(one.probability),
        )
        for one in plan.constraints
    ]
    return [table("plan-constraints", rows)] if rows else []


def _plans(plan: Plan) -> list[Block]:
    front = picture("plan-pareto", plan_figure(plan))
    bars = [BarRow(row.name, fmt.seconds(row.step_s), [Bar(_step_of(row))]) for row in plan.finalists[:MOST_ROWS]]
    numbers = plans_table("Finalists by rank; ranked.csv has all plans and columns", plan.finalists)
    return [front, picture("plan-finalists", bars, numbers)] if bars else [front]


def sweep_part(sweep: SweepResult) -> Part:
    """The sweep."""
    done = sorted(sweep.done, key=lambda row: float(row["step_s"]))
    axes = [name for keys in sweep.axes for name in keys.split(",")]
    best, count = done[0], len(sweep.rows)
    figures = [ranged("Shortest step", interval_in(best, "step_s"), fmt.seconds)]
    if "end_to_end_speedup" in best:
        figures.append(speedup("Its speed-up by speculation", interval_in(best, "end_to_end_speedup")))
    figures.append(("Cells", f"{count:,}", f"{count - len(done):,} cannot run"))
    pictures = [picture(f"sweep-{name}", figure) for name, figure in sweep_figures(sweep).items()]
    reasons = [str(row.get("reason", "")) for row in sweep.rows if row.get("status") != "ok"]
    sections: Sections = {
        "sweep-cells": [*pictures, _cells(sweep, done, axes)],
        "sweep-reasons": counted(reasons, "cell"),
    }
    where = ", ".join(f"{axis} = {best[axis]}" for axis in axes)
    headline = f"Of {count:,} cells the shortest step takes {fmt.seconds(best['step_s'])}, at {where}."
    title = f"Sweep over {' and '.join(axis.rpartition('.')[2] for axis in axes)}"
    return Part("sweep", title, headline, figures, sections)


def _cells(sweep: SweepResult, done: Sequence[Row], axes: Sequence[str]) -> Block:
    bars = []
    for row in done[:MOST_ROWS]:
        step = interval_in(row, "step_s")
        label = ", ".join(f"{axis.rpartition('.')[2]} {row[axis]}" for axis in axes)
        bars.append(BarRow(label, fmt.seconds(step.mean), [Bar(step)]))
    shown = [*axes, *(name for name in SWEEP_COLUMNS if any(name in row for row in sweep.rows))]
    cells = [
        [fmt.number(value) if isinstance(value := row.get(name, ""), float) else str(value) for name in shown]
        for row in sweep.rows
    ]
    sides = "<" * (len(axes) + 2) + ">"
    numbers = Table("Every cell; results.csv has all columns.", "", shown, cells, sides)
    which = "cells" if len(done) <= MOST_ROWS else f"{MOST_ROWS} fastest cells"
    return picture("sweep-steps", bars, numbers, shown=which)
