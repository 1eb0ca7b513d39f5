"""What the page says of a plan: the best one, the way to it, its rivals, time against cost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from rlsim.files.reading import TABLE_BYTES
from rlsim.report import format as fmt
from rlsim.report.page.charts import Bar, Row, Scale, Segment, Words, bar_chart, forest
from rlsim.report.page.folder import needed_file
from rlsim.report.page.markup import Markup, joined, tag
from rlsim.report.page.page import KeyFigure, Part, Section, table
from rlsim.report.page.plots import Point, scatter
from rlsim.results import Interval
from rlsim.results.plan import Against, Change, ConstraintMet, Plan, PlanRow

MOST_POINTS = 300


def plan_part(folder: Path, notes: list[str]) -> Part:
    """The plan in ``folder``."""
    plan = Plan.read(needed_file(folder, "plan.json"), TABLE_BYTES)
    best, step = plan.best, interval_of(plan.best)
    measure = plan.objective.replace("_", " ")
    headline = f"Best by {measure} ({plan.statistic}): {best.name}. A step takes {fmt.seconds(step.mean)}"
    if plan.current is not None:
        headline += f" in place of {fmt.seconds(plan.current.step_s.mean)} as the scenario is"
    figures = [
        KeyFigure("A step takes", fmt.seconds(step.mean), f"{fmt.seconds(step.low)} to {fmt.seconds(step.high)}"),
        KeyFigure(f"{measure.capitalize()}, {plan.statistic}", fmt.number(plan.objective_value)),
        KeyFigure("Cost per step", f"{fmt.number(best.numbers.cost_per_step_usd)} USD"),
    ]
    if best.beats_current is not None:
        figures.append(KeyFigure("Beats the scenario as it is", fmt.percent(best.beats_current), "of the draws"))
    counts = f"{plan.considered:,} considered, {plan.configurations:,} configurations, {plan.simulated:,} simulated"
    about = [f"Limited by {best.numbers.limit}.", f"Combinations: {counts}."]
    sections = [
        Section("plan-way", "The way there", joined((_waterfall(plan.waterfall), _constraints(plan.constraints)))),
        Section("plan-rivals", "Against its rivals", _against(plan.against)),
        Section("plan-plans", "Plans", joined((_pareto(plan), _finalists(plan.finalists)))),
    ]
    return Part("plan", plan.scenario, f"{headline}.", figures, sections, about)


def interval_of(row: PlanRow) -> Interval:
    """The step in seconds; without width where only the search has seen it."""
    step = row.numbers.step_s
    return step if isinstance(step, Interval) else Interval(step.mean, step.mean, step.mean)


def _waterfall(changes: Sequence[Change]) -> Markup:
    steps = [(one.what, one.step_s) for one in changes]
    if not steps:
        return joined(())
    rows = [Row(steps[0][0], fmt.seconds(steps[0][1]), [Bar([Segment(0, steps[0][1], "baseline", steps[0][0])])])]
    for (_, before), (what, after) in itertools.pairwise(steps):
        tone = "measured" if after <= before else "series1"
        change = f"{after - before:+.2f} s"
        rows.append(Row(what, change, [Bar([Segment(after, before, tone, change)] if after != before else [])]))
    rows.append(
        Row("best plan", fmt.seconds(steps[-1][1]), [Bar([Segment(0, steps[-1][1], "candidate", "best plan")])])
    )
    words = Words(
        "plan-waterfall",
        "From the scenario as it is to the best plan",
        "; ".join(f"{row.label} {row.value}" for row in rows),
        "Seconds per step; each change comes on top of those above it.",
    )
    numbers = table(("stage", "step (s)"), [(what, f"{s:.2f}") for what, s in steps], "Step after each stage.")
    return bar_chart(words, rows, Scale(0, max(s for _, s in steps) or 1.0), numbers, unit="s")


def _constraints(constraints: Sequence[ConstraintMet]) -> Markup:
    rows = [
        (
            one.constraint,
            one.unit,
            fmt.number(one.limit),
            fmt.number(one.value),
            "-" if one.probability is None else fmt.percent(one.probability),
        )
        for one in constraints
    ]
    if not rows:
        return joined(())
    heads = ("constraint", "unit", "at most", "the plan takes", "kept with probability")
    return joined((tag("h3", "How it keeps the constraints"), table(heads, rows, "Constraints of the best plan.", 2)))


def _against(rivals: Sequence[Against]) -> Markup:
    found = [(one.rival, one.wins, one.ratio) for one in rivals]
    if not found:
        return tag("p", "It has no rivals.", class_="dim")
    rows = [(name, f"wins {fmt.percent(wins)}", ratio) for name, wins, ratio in found[:40]]
    words = Words(
        "plan-against",
        "How much better it is than each rival",
        "; ".join(f"{name}: {wins}, {fmt.times(ratio)}" for name, wins, ratio in rows),
        "The rival's measure over the plan's, mean and 90 % interval over common draws; the dashed line is a tie.",
    )
    cells = [(name, fmt.percent(wins), ratio) for name, wins, ratio in found]
    return forest(words, rows, table(("rival", "wins", "ratio"), cells, "The best plan against others."), rule=1.0)


def _pareto(plan: Plan) -> Markup:
    best, front = plan.best.name, {row.name for row in plan.pareto}
    unique = {
        row.name: (row.numbers.cost_per_step_usd, row.step_s)
        for row in (*plan.finalists, *plan.pareto, plan.best)[:MOST_POINTS]
    }
    points = [
        Point(
            cost, Interval(step, step, step), f"{name}: {step:.2f} s, {cost:.4g} USD", "" if name in front else "hollow"
        )
        for name, (cost, step) in sorted(unique.items(), key=lambda each: each[0] in front)
    ]
    if best in unique:
        cost, step = unique[best]
        points.append(Point(cost, Interval(step, step, step), f"best: {best}", "best"))
    words = Words(
        "plan-pareto",
        "Step time against cost",
        f"{len(unique)} plans; on the front of step time and cost: {', '.join(sorted(front))[:300]}.",
        "Filled: no plan is both faster and cheaper; ringed: the best by the objective.",
    )
    cells = [(name, f"{step:.2f}", fmt.number(cost)) for name, (cost, step) in unique.items()]
    numbers = table(("plan", "step (s)", "USD per step"), cells, "Plans drawn.")
    return scatter(words, points, numbers, ("USD per step", "step time (s)"))


def _finalists(rows: Sequence[PlanRow]) -> Markup:
    shown = [(row.name, interval_of(row)) for row in rows[:20]]
    if not shown:
        return joined(())
    words = Words(
        "plan-finalists",
        "The best plan and the other finalists",
        "; ".join(f"{name}: {fmt.seconds(step.mean)}" for name, step in shown),
        "Seconds per step, mean and 90 % interval.",
    )
    cells = [
        (
            row.name[:200],
            interval_of(row),
            "-" if row.step_p90_s is None else fmt.number(row.step_p90_s),
            fmt.number(row.numbers.cost_per_step_usd),
        )
        for row in rows
    ]
    heads = ("plan", "step (s)", "90 % sure (s)", "USD per step")
    numbers = table(heads, cells, "Finalists by rank; ranked.csv has all plans and columns.")
    return forest(words, [(name, fmt.seconds(step.mean), step) for name, step in shown], numbers, unit="s")
