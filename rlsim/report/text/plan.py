"""A plan in a terminal."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence

from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style, sections
from rlsim.report.table import Table, cell
from rlsim.report.text.planning import eager_remark, price_remark
from rlsim.results.plan import Plan, PlanRow
from rlsim.results.record import Interval
from rlsim.units import JOULES_PER_KWH, SECONDS_PER_HOUR

SHOWN_RIVALS = 6


def render_plan(plan: Plan, style: Style = DEFAULT_STYLE) -> str:
    """The best plan and what to set for it, the finalists, cost against time, and how sure the order is."""
    counts = (
        f"{plan.scenario}: {plan.configurations:,} configurations fit of {plan.considered:,}; {plan.simulated} "
        "simulated, all others excluded by bounds of their means"
    )
    value = f"{plan.objective_value:,.6g} {fmt.NAMES['objectives'][plan.objective]}"
    sure = "mean" if plan.statistic == "mean" else "90 % sure"
    heading = style.bold(f"Best by {plan.objective.replace('_', ' ')}, {sure}: {value}")
    eager = eager_remark([(row.name, row.numbers.row()) for row in plan.finalists])
    return sections(
        style.wrapped(counts),
        [heading, *style.paragraphs([plan.best.name, *_best_lines(plan)])],
        [style.bold("Set"), *(f"  --set {shlex.quote(change)}" for change in plan.changes)],
        plans_table("Finalists", plan.finalists).lines(style),
        plans_table("Cost against time", plan.pareto).lines(style),
        *map(style.wrapped, eager),
        rivals_table(plan, SHOWN_RIVALS).lines(style),
    )


def _best_lines(plan: Plan) -> list[str]:
    n, best = plan.best.numbers, plan.best
    step = f"step {n.step_s.mean:.1f} s"
    if isinstance(n.step_s, Interval):
        step += f" [{n.step_s.low:.1f}, {n.step_s.high:.1f}]"
    money = f"{n.cost_per_step_usd:.2f} USD and at most {n.energy_per_step_j / JOULES_PER_KWH:.1f} kWh per step"
    lines = [
        f"{step}, {money}",
        price_remark([n.cost_per_step_usd / n.step_s.mean / n.num_gpus * SECONDS_PER_HOUR]),
        f"limited by {n.limit}; one of {best.trainers} trainer layouts that fit",
    ]
    if best.step_p90_s is not None:
        chance = best.beats_current
        beats = "" if chance is None else f"; beats the scenario as it is in {_chance(chance)}"
        lines.append(f"90 % sure to take at most {best.step_p90_s:.1f} s{beats}")
    lines += [*_from_here(plan), *_constraints(plan)]
    if plan.steps is not None:
        hours, cost = (value * plan.steps for value in (n.step_s.mean / SECONDS_PER_HOUR, n.cost_per_step_usd))
        lines.append(f"{plan.steps:,} steps: {hours:,.2f} hours, {cost:,.0f} USD")
    return lines


def _from_here(plan: Plan) -> list[str]:
    """What the plan gains on the scenario as it is, and which change brings how much of it."""
    if not plan.waterfall:
        return []
    gains = [(after.what, before.step_s / after.step_s) for before, after in itertools.pairwise(plan.waterfall)]
    changes = ", ".join(f"{what} {gain:.2f}x" for what, gain in gains if f"{gain:.2f}" != "1.00")
    now, best = plan.waterfall[0].step_s, plan.best.step_s
    return [f"the scenario as it is takes {now:.1f} s per step: {now / best:.2f}x{changes and f' ({changes})'}"]


def _constraints(plan: Plan) -> list[str]:
    """With what probability each constraint holds."""
    lines = [
        f"keeps to the {one.constraint} ({one.limit:.1f} {one.unit}) with {_chance(one.probability)}"
        for one in plan.constraints
        if one.probability is not None and one.unit == "s per step"
    ]
    lines += [
        f"takes {fmt.percent(one.value)} of the memory of its fullest GPU (allowed {fmt.percent(one.limit)}); no "
        "measurement bounds the memory model"
        for one in plan.constraints
        if one.constraint == "memory"
    ]
    return lines


def _chance(share: float) -> str:
    """A share of the draws; none of them proves certainty."""
    return "> 99 %" if share > 0.995 else "< 1 %" if share < 0.005 else fmt.percent(share)


def plans_table(title: str, rows: Sequence[PlanRow]) -> Table:
    """The step stands last: where the terminal is narrow, the last column alone keeps its intervals."""
    shown = []
    for row in rows:
        step, beats = row.numbers.step_s, row.beats_current
        sure = "" if row.step_p90_s is None else f"{row.step_p90_s:.1f}"
        took = cell(step, 1) if isinstance(step, Interval) else f"{step.mean:.1f}"
        chance = "-" if beats is None else _chance(beats)
        shown.append((row.name, row.numbers.limit, f"{row.numbers.cost_per_step_usd:.2f}", chance, sure, took))
    return Table(title, "", ("", "limited by", "USD/step", "beats now", "90 % sure", "step (s)"), shown, "<<>")


def rivals_table(plan: Plan, most: int | None = None) -> Table:
    """In how many draws the best plan beats its rivals, and by how much."""
    rows = [(one.rival, _chance(one.wins), cell(one.ratio, 3)) for one in plan.against[:most]]
    measure = {"cost_per_step": "cost", "energy_per_step": "energy"}.get(plan.objective, "step")
    note = "shares of 2,048 draws of the model's error, common to all"
    return Table("The best plan beats", note, ("", "in", f"its {measure} over the best plan's"), rows, "<>>")
