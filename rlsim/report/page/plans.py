"""What the page says of a plan and a sweep."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rlsim.files.reading import TABLE_BYTES
from rlsim.report import format as fmt
from rlsim.report.figures.bars import Bar, BarRow, bars_figure
from rlsim.report.figures.grids import plan_figure, sweep_figures
from rlsim.report.figures.style import GREY, LINE_COLORS
from rlsim.report.folder import file_in, read_sweep
from rlsim.report.page.parts import Block, Entries, Part, Section, Text, picture, speedup, table, timed
from rlsim.report.text.plan import plans_table, rivals_table
from rlsim.results import Interval
from rlsim.results.plan import Change, Plan, PlanRow
from rlsim.results.record import Row
from rlsim.results.sweep import SweepResult, interval_in

MOST_ROWS = 24
"""Rows of a picture; the table below it has more."""
SHORTER, LONGER = LINE_COLORS[2], LINE_COLORS[1]
SWEEP_TITLES = {
    "heatmap": "Speed-up by speculation over drafted tokens and acceptance length",
    "scaling": "Step and speed-up over the number of GPUs",
    "lines": "Step and speed-up over the axis",
}
SWEEP_COLUMNS = ("status", "limit", "step_s", "rollout_speedup", "end_to_end_speedup", "cost_per_step_usd")


def plan_part(folder: Path, left_out: list[str]) -> Part:
    """The plan in ``folder``."""
    plan = Plan.read(file_in(folder, "plan.json"), TABLE_BYTES)
    best, step = plan.best, _step_of(plan.best)
    measure = plan.objective.replace("_", " ")
    words = f"Best by {measure} ({plan.statistic}): {best.name}. A step takes {fmt.seconds(step.mean)}"
    if plan.current is not None:
        words += f" in place of {fmt.seconds(plan.current.step_s.mean)} as the scenario is"
    figures = [
        timed("A step takes", step),
        (f"{measure.capitalize()}, {plan.statistic}", fmt.number(plan.objective_value), ""),
        ("Cost per step", f"{fmt.number(best.numbers.cost_per_step_usd)} USD", ""),
    ]
    if best.beats_current is not None:
        figures.append(("Beats the scenario as it is", fmt.percent(best.beats_current), "of the draws"))
    counts = f"{plan.considered:,} considered, {plan.configurations:,} configurations, {plan.simulated:,} simulated"
    sections = [
        Section("plan-way", "The way there", [*_way(plan.waterfall), *_constraints(plan)]),
        Section("plan-rivals", "Against its rivals", [_against(plan)]),
        Section("plan-plans", "Plans", _plans(plan)),
    ]
    about = [f"Limited by {best.numbers.limit}.", f"Combinations: {counts}."]
    return Part("plan", plan.scenario, f"{words}.", figures, sections, about)


def _step_of(row: PlanRow) -> Interval:
    """The step in seconds; without width where only the search has seen it."""
    step = row.numbers.step_s
    return step if isinstance(step, Interval) else Interval(step.mean, step.mean, step.mean)


def _way(changes: Sequence[Change]) -> list[Block]:
    if not changes:
        return []
    rows = [BarRow(changes[0].what, fmt.seconds(changes[0].step_s), [Bar.of(changes[0].step_s, GREY)])]
    for before, after in itertools.pairwise(changes):
        color = SHORTER if after.step_s <= before.step_s else LONGER
        bar = Bar.between(before.step_s, after.step_s, color)
        rows.append(BarRow(after.what, f"{after.step_s - before.step_s:+.2f} s", [bar]))
    rows.append(BarRow("best plan", fmt.seconds(changes[-1].step_s), [Bar.of(changes[-1].step_s, LINE_COLORS[0])]))
    stages = [(one.what, f"{one.step_s:.2f}") for one in changes]
    return [
        picture(
            "plan-waterfall",
            "From the scenario as it is to the best plan",
            "Seconds per step; each change comes on top of those above it.",
            bars_figure(rows, "seconds"),
            table(("stage", "step (s)"), stages, "Step after each stage."),
        )
    ]


def _constraints(plan: Plan) -> list[Block]:
    rows = [
        (
            *(one.constraint, one.unit, fmt.number(one.limit), fmt.number(one.value)),
            "-" if one.probability is None else fmt.percent(one.probability),
        )
        for one in plan.constraints
    ]
    heads = ("constraint", "unit", "at most", "the plan takes", "met with probability")
    return [table(heads, rows, "How it keeps the constraints.", 2)] if rows else []


def _against(plan: Plan) -> Block:
    if not plan.against:
        return Text("It has no rivals.")
    shown = plan.against[:MOST_ROWS]
    rows = [BarRow(one.rival, f"wins {fmt.percent(one.wins)}", [Bar(one.ratio)]) for one in shown]
    note = "The rival's measure over the plan's, mean and 90 % interval over common draws; dashed: a tie."
    title, figure = "How much better it is than each rival", bars_figure(rows, "ratio", rule=1.0)
    return picture("plan-against", title, note, figure, rivals_table(plan))


def _plans(plan: Plan) -> list[Block]:
    note = "The line: no plan is both faster and cheaper; ringed: the best by the objective."
    blocks: list[Block] = [picture("plan-pareto", "Step time against cost", note, plan_figure(plan))]
    shown = plan.finalists[:MOST_ROWS]
    if shown:
        figure = bars_figure(
            [BarRow(row.name, fmt.seconds(row.step_s), [Bar(_step_of(row))]) for row in shown], "seconds"
        )
        title, note = "The best plan and the other finalists", "Seconds per step, mean and 90 % interval."
        numbers = plans_table("Finalists by rank; ranked.csv has all plans and columns", plan.finalists)
        blocks.append(picture("plan-finalists", title, note, figure, numbers))
    return blocks


def sweep_part(folder: Path, left_out: list[str]) -> Part:
    """The sweep in ``folder``."""
    sweep = read_sweep(folder)
    done = sorted(sweep.done, key=lambda row: float(row["step_s"]))
    axes = [name for keys in sweep.axes for name in keys.split(",")]
    best, count = done[0], len(sweep.rows)
    figures = [timed("Shortest step", interval_in(best, "step_s"))]
    if "end_to_end_speedup" in best:
        figures.append(speedup("Its speed-up by speculation", interval_in(best, "end_to_end_speedup")))
    figures.append(("Cells", f"{count:,}", f"{count - len(done):,} cannot run"))
    note = "Axes that it does not show stay at the values that its heading names."
    blocks: list[Block] = [
        picture(f"sweep-{name}", SWEEP_TITLES[name], note, figure) for name, figure in sweep_figures(sweep).items()
    ]
    reasons = Counter(str(row.get("reason", "")) for row in sweep.rows if row.get("status") != "ok")
    entries = [f"{number:,} {'cell' if number == 1 else 'cells'}: {reason}" for reason, number in reasons.items()]
    sections = [
        Section("sweep-cells", "Cells", [*blocks, _cells(sweep, done, axes)]),
        *([Section("sweep-reasons", "Cells that cannot run", [Entries(entries)])] if entries else []),
    ]
    where = ", ".join(f"{axis} = {best[axis]}" for axis in axes)
    headline = f"Of {count:,} cells the shortest step takes {fmt.seconds(best['step_s'])}, at {where}."
    title = f"Sweep over {' and '.join(axis.rpartition('.')[2] for axis in axes)}"
    return Part("sweep", title, headline, figures, sections)


def _cells(sweep: SweepResult, done: Sequence[Row], axes: Sequence[str]) -> Block:
    rows = []
    for row in done[:MOST_ROWS]:
        step = interval_in(row, "step_s")
        label = ", ".join(f"{axis.rpartition('.')[2]} {row[axis]}" for axis in axes)
        rows.append(BarRow(label, fmt.seconds(step.mean), [Bar(step)]))
    shown = [*axes, *(name for name in SWEEP_COLUMNS if any(name in row for row in sweep.rows))]
    cells = [
        [fmt.number(value) if isinstance(value := row.get(name, ""), float) else str(value) for name in shown]
        for row in sweep.rows
    ]
    title = "Step time of the cells" if len(done) <= MOST_ROWS else f"Step time of the {MOST_ROWS} fastest cells"
    numbers = table(shown, cells, "Every cell; results.csv has all columns.", len(axes) + 2)
    return picture("sweep-steps", title, "Seconds, mean and 90 % interval.", bars_figure(rows, "seconds"), numbers)
