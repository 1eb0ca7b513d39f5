"""What the page says of a plan and a sweep."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rlsim.files.reading import TABLE_BYTES
from rlsim.report import format as fmt
from rlsim.report.figures.bars import Bar, BarRow, bars_figure, intervals_figure
from rlsim.report.figures.grids import plan_figure, sweep_figures
from rlsim.report.figures.style import GREY, LINE_COLORS
from rlsim.report.folder import file_in, read_sweep
from rlsim.report.page.parts import (
    Block,
    Entries,
    Part,
    Section,
    Text,
    picture,
    speedup,
    table,
    timed,
)
from rlsim.results import Interval
from rlsim.results.plan import Change, Plan, PlanRow
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


def plan_part(folder: Path, notes: list[str]) -> Part:
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
    first, last = changes[0], changes[-1]
    rows = [BarRow(first.what, fmt.seconds(first.step_s), [Bar([(0.0, first.step_s, GREY)])])]
    for before, after in itertools.pairwise(changes):
        color = SHORTER if after.step_s <= before.step_s else LONGER
        text = f"{after.step_s - before.step_s:+.2f} s"
        rows.append(
            BarRow(
                after.what, text, [Bar([(min(after.step_s, before.step_s), max(after.step_s, before.step_s), color)])]
            )
        )
    rows.append(BarRow("best plan", fmt.seconds(last.step_s), [Bar([(0.0, last.step_s, LINE_COLORS[0])])]))
    numbers = table(
        ("stage", "step (s)"), [(one.what, f"{one.step_s:.2f}") for one in changes], "Step after each stage."
    )
    words = (
        "From the scenario as it is to the best plan",
        "Seconds per step; each change comes on top of those above it.",
    )
    return [picture("plan-waterfall", words, lambda: bars_figure(rows, "seconds"), numbers)]


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
        return Text("It has no rivals.", dim=True)
    rows = [(one.rival, f"wins {fmt.percent(one.wins)}", one.ratio) for one in plan.against[:MOST_ROWS]]
    cells = [(one.rival, fmt.percent(one.wins), one.ratio) for one in plan.against]
    words = (
        "How much better it is than each rival",
        "The rival's measure over the plan's, mean and 90 % interval over common draws; dashed: a tie.",
    )
    numbers = table(("rival", "wins", "ratio"), cells, "The best plan against others.")
    return picture("plan-against", words, lambda: intervals_figure(rows, "ratio", 1.0), numbers)


def _plans(plan: Plan) -> list[Block]:
    cells = [
        (
            row.name,
            _step_of(row),
            "-" if row.step_p90_s is None else fmt.number(row.step_p90_s),
            fmt.number(row.numbers.cost_per_step_usd),
        )
        for row in plan.finalists
    ]
    heads = ("plan", "step (s)", "90 % sure (s)", "USD per step")
    numbers = table(heads, cells, "Finalists by rank; ranked.csv has all plans and columns.")
    words = "Step time against cost", "The line: no plan is both faster and cheaper; ringed: the best by the objective."
    blocks: list[Block] = [picture("plan-pareto", words, lambda: plan_figure(plan))]
    rows = [(row.name, fmt.seconds(row.step_s), _step_of(row)) for row in plan.finalists[:MOST_ROWS]]
    if rows:
        words = "The best plan and the other finalists", "Seconds per step, mean and 90 % interval."
        blocks.append(picture("plan-finalists", words, lambda: intervals_figure(rows, "seconds"), numbers))
    return blocks


def sweep_part(folder: Path, notes: list[str]) -> Part:
    """The sweep in ``folder``."""
    sweep = read_sweep(folder)
    done, axes = (
        sorted(sweep.done, key=lambda row: float(row["step_s"])),
        [name for keys in sweep.axes for name in keys.split(",")],
    )
    best, count = done[0], len(sweep.rows)
    figures = [timed("Shortest step", interval_in(best, "step_s"))]
    if "end_to_end_speedup" in best:
        figures.append(speedup("Its speed-up by speculation", interval_in(best, "end_to_end_speedup")))
    figures.append(("Cells", f"{count:,}", f"{count - len(done):,} cannot run"))
    note = "Axes that it does not show stay at the values that its heading names."
    drawn = sweep_figures(sweep)
    blocks: list[Block] = [
        picture(f"sweep-{name}", (SWEEP_TITLES[name], note), partial(drawn.__getitem__, name)) for name in drawn
    ]
    sections = [Section("sweep-cells", "Cells", [*blocks, _cells(sweep, done, axes)]), *_reasons(sweep)]
    where = ", ".join(f"{axis} = {best[axis]}" for axis in axes)
    headline = f"Of {count:,} cells the shortest step takes {fmt.seconds(best['step_s'])}, at {where}."
    title = f"Sweep over {' and '.join(axis.rpartition('.')[2] for axis in axes)}"
    return Part("sweep", title, headline, figures, sections)


def _cells(sweep: SweepResult, done: Sequence[dict[str, object]], axes: Sequence[str]) -> Block:
    rows = [
        (", ".join(f"{axis.rpartition('.')[2]} {row[axis]}" for axis in axes), fmt.seconds(value.mean), value)
        for row in done[:MOST_ROWS]
        if (value := interval_in(row, "step_s"))
    ]
    shown = [*axes, *(name for name in SWEEP_COLUMNS if any(name in row for row in sweep.rows))]
    cells = [
        [fmt.number(value) if isinstance(value := row.get(name, ""), float) else str(value) for name in shown]
        for row in sweep.rows
    ]
    words = "Step time of the cells" if len(done) <= MOST_ROWS else f"Step time of the {MOST_ROWS} fastest cells"
    numbers = table(shown, cells, "Every cell; results.csv has all columns.", len(axes) + 2)
    return picture(
        "sweep-steps", (words, "Seconds, mean and 90 % interval."), lambda: intervals_figure(rows, "seconds"), numbers
    )


def _reasons(sweep: SweepResult) -> list[Section]:
    reasons = Counter(str(row.get("reason", "")) for row in sweep.rows if row.get("status") != "ok")
    entries = [f"{count:,} {'cell' if count == 1 else 'cells'}: {reason}" for reason, count in reasons.items()]
    return [Section("sweep-reasons", "Cells that cannot run", [Entries(entries)])] if entries else []
