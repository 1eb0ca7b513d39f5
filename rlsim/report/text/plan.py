"""A plan in a terminal: what to take, what it brings, what else was near."""

import itertools
import shlex

from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style, sections
from rlsim.report.table import Table, cell
from rlsim.report.text.planning import eager_remark
from rlsim.results.sweep import Plan
from rlsim.units import SECONDS_PER_HOUR

NEARLY_SURE = 0.99
"""That memory suffices: beyond it plans do not say so."""


def render_plan(plan: Plan, style: Style = DEFAULT_STYLE) -> str:
    """The best plan and what to set for it, the finalists, cost against time, and how sure the order is."""
    lag = next((f"{one.limit:g}" for one in plan.constraints if one.constraint == "policy lag"), "0")
    counts = (
        f"{plan.scenario}, a lag of at most {lag} (--max-staleness): {plan.configurations:,} configurations fit of "
        f"{plan.considered:,}; {plan.simulated} simulated, all others excluded by bounds of their means"
    )
    heading = style.bold(f"Best by {plan.objective.replace('_', ' ')}, {sure_words(plan)}: {objective_text(plan)}")
    rows = [(row.name, row.numbers.row()) for row in plan.finalists]
    return sections(
        style.wrapped(counts),
        [heading, *style.paragraphs([recommendation(plan), *plan.verdict, *_best_lines(plan)])],
        [style.bold("Set"), *style.wrapped(" ".join(map(shlex.quote, plan.changes)), "  ")] if plan.changes else [],
        candidates_table(plan).lines(style),
        *map(style.wrapped, [*_front(plan), *_unsure(plan), *eager_remark(rows)]),
    )


def sure_words(plan: Plan) -> str:
    """Name of the statistic of the objective: mean, or 90 % sure."""
    return "mean" if plan.statistic == "mean" else "90 % sure"


def objective_text(plan: Plan) -> str:
    """The objective's value of the best plan with its unit, seconds as in every table."""
    unit = fmt.NAMES["objectives"][plan.objective]
    value = plan.objective_value
    return f"{f'{value:,.1f}' if unit == 's' and value >= 1 else fmt.number(value)} {unit}"


def recommendation(plan: Plan) -> str:
    """The one sentence for who decides: what to take, what it brings, and how likely it does not."""
    best, n = plan.best, plan.best.numbers
    takes, costs = fmt.seconds(n.step_s.mean), fmt.fixed(n.cost_per_step_usd, 2)
    if plan.current is not None:
        takes += f" in place of {fmt.seconds(plan.current.step_s.mean)}"
        costs += f" in place of {fmt.fixed(plan.current.cost_per_step_usd, 2)}"
    if (current := plan.current) is not None and _stays(plan):
        now, price = fmt.seconds(current.step_s.mean), fmt.fixed(current.cost_per_step_usd, 2)
        takes, costs = fmt.seconds(n.step_s.mean), fmt.fixed(n.cost_per_step_usd, 2)
        lags = "".join(f" (lags to {one.limit:g})" for one in plan.constraints if one.constraint == "policy lag")
        stay = f"Stay with the scenario as it is: a step takes {now} and costs {price} USD"
        if n.digest == current.digest:
            return f"{stay}, the least of what was searched{lags}."
        other = f"{best.name}, the best of what was searched{lags}, takes {takes} and costs {costs} USD"
        return f"{stay}; {other} and beats it in {_chance(best.beats_current or 0.0)}."
    text = f"Take {best.name}: a step takes {takes} and costs {costs} USD"
    if best.beats_current is None:
        return f"{text}."
    return f"{text}; the risk that it gains nothing is {_chance(1 - best.beats_current)}."


def _stays(plan: Plan) -> bool:
    """Whether nothing that was searched more likely beats the scenario as it is than not, on as many GPUs, and it fits
    as surely as a plan must and has no limit that it might not keep."""
    beats, current = plan.best.beats_current, plan.current
    if plan.current_fits is not None and plan.current_fits < plan.fit_probability:
        return False
    free = all(one.constraint in ("memory", "policy lag") for one in plan.constraints)
    same = current is not None and current.num_gpus == plan.best.numbers.num_gpus
    return beats is not None and beats <= 0.5 and free and same


def _front(plan: Plan) -> list[str]:
    """The finalists that no other beats in both cost and step time, where they are more than the best one."""
    if (names := [row.name for row in plan.pareto]) == [plan.best.name]:
        return ["No other finalist is cheaper per step."]
    return [f"No finalist is both faster and cheaper than these, the cheapest first: {'; '.join(names)}."]


def _unsure(plan: Plan) -> list[str]:
    """A sentence on layouts that fit too improbably to be offered."""
    return [
        f"Not offered, since memory suffices with less than {fmt.percent(plan.fit_probability)}: {len(plan.unsure)} of "
        f"the engines and trainers, first {first.layout} ({fmt.percent(first.fits)}); --risk takes more."
        for first in plan.unsure[:1]
    ]


def _best_lines(plan: Plan) -> list[str]:
    n, best = plan.best.numbers, plan.best
    step = f"step {n.step.mean:.1f} s [{n.step.low:.1f}, {n.step.high:.1f}]"
    money = f"{fmt.fixed(n.cost_per_step_usd, 2)} USD and at most {fmt.kwh(n.energy_per_step_j)} kWh per step"
    lines = [
        f"{step}, {money}",
        fmt.price_remark([n.cost_per_step_usd / n.step_s.mean / n.num_gpus * SECONDS_PER_HOUR]),
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
    """A line with the speed-up over the scenario as it is, and the part of each change in it."""
    if not plan.waterfall:
        return []
    gains = [(after.what, before.step_s / after.step_s) for before, after in itertools.pairwise(plan.waterfall)]
    # As printed: a change of 1.00x would only lengthen the list.
    changes = ", ".join(f"{what} {gain:.2f}x" for what, gain in gains if f"{gain:.2f}" != "1.00")
    now, best = plan.waterfall[0].step_s, plan.best.step_s
    return [f"the scenario as it is takes {now:.1f} s per step: {now / best:.2f}x{changes and f' ({changes})'}"]


def _constraints(plan: Plan) -> list[str]:
    """With what probability each constraint holds, that of memory last."""
    lines = []
    for one in plan.constraints:
        sure = _chance(one.probability or 0.0)
        if one.unit == "s per step":
            lines.append(f"keeps to the {one.constraint} ({one.limit:.1f} {one.unit}) with {sure}")
        elif one.constraint == "memory":
            lines.append(f"takes {fmt.percent(one.value)} of the memory of its fullest GPU, which fits with {sure}")
    return lines


def _chance(share: float) -> str:
    """A share of the draws; none of them proves certainty."""
    return "> 99 %" if share > 0.995 else "< 1 %" if share < 0.005 else fmt.percent(share)


def candidates_table(plan: Plan) -> Table:
    """The finalists and how they compare, the best first; where it is narrow, the last column alone keeps intervals."""
    wins = {one.rival: _chance(one.wins) for one in plan.against}
    shown = []
    for row in plan.finalists:
        n, beats = row.numbers, row.beats_current
        sure = "" if row.step_p90_s is None else f"{row.step_p90_s:.1f}"
        chances = "-" if beats is None else _chance(beats), wins.get(row.name, "-")
        fits = "" if row.fits is None or row.fits >= NEARLY_SURE else f" (fits with {fmt.percent(row.fits)})"
        shown.append((f"{row.name}{fits}", n.limit, fmt.fixed(n.cost_per_step_usd, 2), *chances, sure, cell(n.step, 1)))
    heads = ("", "limited by", "USD/step", "beats now", "first beats it", "90 % sure", "step (s)")
    return Table("Candidates", "shares of 2,048 draws of the model's error, common to all", heads, shown, "<<>")
