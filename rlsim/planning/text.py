"""Sweeps, plans, comparisons and sensitivities in a terminal."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlsim.planning.breakeven import ACCEPTANCE_KEY, DRAFT_KEYS, break_even_lengths
from rlsim.planning.objective import SECONDS_PER_HOUR, UNITS
from rlsim.planning.results import BATCH_KEYS, Comparison, Plan, PlanRow, Sensitivity, SweepResult, interval_columns
from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import RULE, Cell, Row, cell, table
from rlsim.results import Interval

SHOWN = 10
KILOWATT_HOUR_J = 3.6e6


def render_sweep(result: SweepResult, style: Style = DEFAULT_STYLE) -> str:
    """Counts, the fastest cells, break-even acceptance lengths, and why cells cannot run."""
    names = [axis.name for axis in result.axes]
    batch_varies = any(key in BATCH_KEYS for axis in result.axes for key in axis.keys)
    done = sorted(result.done, key=lambda row: row["step_s"] / (result.samples(row) if batch_varies else 1))
    shown = done[:SHOWN]
    per_sample = ["ms/sample"] if batch_varies else []
    heads = [*(name.rpartition(".")[2] for name in names), *per_sample, "step (s)", "rollout", "end to end", "USD/step"]
    cells: list[list[Cell | str]] = [
        [
            *(str(row[name]) for name in names),
            *(f"{1e3 * row['step_s'] / result.samples(row):.2f}" for _ in per_sample),
            cell(_interval(row, "step_s"), 1),
            *(cell(_interval(row, f"{part}_speedup"), 2, "x") for part in ("rollout", "end_to_end")),
            f"{row['cost_per_step_usd']:.2f}",
        ]
        for row in shown
    ]
    sides = [">" if all(isinstance(row[name], int | float) for row in shown) else "<" for name in names]
    title = f"Fastest {len(shown)}" + (" by time per consumed sample" if batch_varies else "")
    prices = {row["cost_per_step_usd"] / row["step_s"] / row["num_gpus"] * SECONDS_PER_HOUR for row in shown}
    counts = f"{len(result.rows)} cells, {len(done)} can run, {result.replications} replications each"
    lines = [
        *style.wrapped(f"{result.scenario}: {counts}"),
        "",
        style.bold(title) + style.dim("  mean [90 % interval]"),
    ]
    lines += [*table(heads, cells, style, "".join(sides) + ">"), *style.wrapped(_price(prices), "  ")]
    return "\n".join([*lines, *_break_even(result, style), *_reasons(result, style)]) + "\n"


def _interval(row: Mapping[str, Any], name: str) -> Interval:
    return Interval(*(row[column] for column in interval_columns(name)))


def _price(usd_per_gpu_hour: Iterable[float]) -> str:
    """The price behind all that is said of money."""
    shown = sorted({f"{price:.2f}" for price in usd_per_gpu_hour})
    return f"USD at {' or '.join(shown)} per GPU and hour (hardware.price_per_gpu_hour_usd)"


def _break_even(result: SweepResult, style: Style) -> list[str]:
    names = [axis.name for axis in result.axes]
    draft = next((name for name in DRAFT_KEYS if name in names), None)
    if draft is None or sorted(names) != sorted([draft, ACCEPTANCE_KEY]):
        return []
    lengths = break_even_lengths(result.done, draft)
    if not lengths:
        return ["", "No draft length breaks even within these acceptance lengths."]
    rows = [[str(k), f"{length:.2f}"] for k, length in lengths.items()]
    title = style.bold("The rollout breaks even at acceptance length")
    return ["", title, *table(["k", "acceptance length"], rows, style, ">")]


def _reasons(result: SweepResult, style: Style) -> list[str]:
    reasons: dict[tuple[str, str], int] = {}
    for row in result.rows:
        if row["status"] != "ok":
            key = (row["status"], row["reason"])
            reasons[key] = reasons.get(key, 0) + 1
    if not reasons:
        return []
    most = sorted(reasons.items(), key=lambda item: -item[1])
    rows = [(str(count), f"{status}: {reason}") for (status, reason), count in most[:SHOWN]]
    if len(most) > SHOWN:
        rows.append(("", f"and {len(most) - SHOWN} more reasons"))
    return ["", style.bold("Cells that cannot run"), *table(("", ""), rows, style, "><")]


def render_plan(plan: Plan, changes: Sequence[str], style: Style = DEFAULT_STYLE) -> str:
    """The best plan and what to set for it, what is about as good, cost against time, and how sure the order is."""
    best, measure = plan.best, plan.objective.measure
    proof = "all others excluded by bounds" if plan.exhaustive else "sampled; better ones may exist"
    counts = (
        f"{plan.scenario}: {plan.configurations:,} configurations fit of {plan.considered:,}; {plan.simulated} "
        f"simulated, {proof}"
    )
    lines = [
        *style.wrapped(counts),
        "",
        style.bold(f"Best by {measure.replace('_', ' ')}: {plan.objective_value:,.6g} {UNITS[measure]}"),
        *(line for remark in (best.name, *_best_lines(plan)) for line in style.wrapped(remark, "  ")),
        "",
        style.bold("Set"),
        *(f"  --set {shlex.quote(change)}" for change in changes),
        "",
        *_plans("Within 3 % of it", plan.near, style),
        *_plans("Cost against time", plan.pareto, style),
    ]
    if len(plan.by_group) > len(plan.pareto):
        lines += _plans("Best of each cluster size and lag", plan.by_group, style)
    return "\n".join([*lines, *_confidence(plan, style)]).rstrip() + "\n"


def _best_lines(plan: Plan) -> list[str]:
    n = plan.best.numbers
    step = f"step {n.step_s.mean:.1f} s [{n.step_s.low:.1f}, {n.step_s.high:.1f}]"
    money = f"{n.cost_per_step_usd:.2f} USD and at most {n.energy_per_step_j / KILOWATT_HOUR_J:.1f} kWh per step"
    lines = [
        f"{step}, {money}",
        _price([n.cost_per_step_usd / n.step_s.mean / n.num_gpus * SECONDS_PER_HOUR]),
        f"limited by {n.limit}; one of {plan.best.trainers} trainer layouts that fit",
        *_from_here(plan),
    ]
    if plan.objective.steps is not None:
        hours, cost = (value * plan.objective.steps for value in (n.step_s.mean / 3600, n.cost_per_step_usd))
        lines.append(f"{plan.objective.steps:,} steps: {hours:,.2f} hours, {cost:,.0f} USD")
    return lines


def _from_here(plan: Plan) -> list[str]:
    """What the plan gains on the scenario as it is, and which change brings how much of it."""
    if not plan.waterfall:
        return []
    gains = [(after.what, before.step_s / after.step_s) for before, after in itertools.pairwise(plan.waterfall)]
    told = ", ".join(f"{what} {gain:.2f}x" for what, gain in gains if f"{gain:.2f}" != "1.00")
    now, best = plan.waterfall[0].step_s, plan.best.step_s
    return [f"the scenario as it is takes {now:.1f} s per step: {now / best:.2f}x{told and f' ({told})'}"]


def _plans(title: str, rows: Sequence[PlanRow], style: Style) -> list[str]:
    shown = [
        (row.name, cell(row.numbers.step_s, 1), f"{row.numbers.cost_per_step_usd:.2f}", row.numbers.limit)
        for row in rows
    ]
    return [style.bold(title), *table(["", "step (s)", "USD/step", "limited by"], shown, style, "<>><"), ""]


def _confidence(plan: Plan, style: Style) -> list[str]:
    if not plan.confidence:
        return []
    rows = [
        [item.second, fmt.percent(item.wins), f"{item.ratio_low:.3f} to {item.ratio_high:.3f}", str(item.draws)]
        for item in plan.confidence
    ]
    return [style.bold("The best plan beats"), *table(["", "in draws", "step relative to it", "draws"], rows, style)]


def render_comparison(comparison: Comparison, style: Style = DEFAULT_STYLE) -> str:
    """Differences of the scenarios, phases side by side, and the phase that explains the difference."""
    first, second = comparison.names
    names = (first, second) if first != second else (f"A ({first})", f"B ({second})")
    lines = [f"{names[0]} against {names[1]}", ""]
    if comparison.differences:
        rows = [[key, _brief(a), _brief(b)] for key, (a, b) in comparison.differences.items()]
        lines += [style.bold("Scenario"), *table(["", *names], rows, style, "<"), ""]
    else:
        lines += ["The scenarios do not differ.", ""]
    phases = [
        [
            _phase_name(change.phase, comparison),
            f"{change.before_s:.1f}",
            f"{change.after_s:.1f}",
            f"{change.after_s - change.before_s:+.1f}",
            "" if change.share is None else fmt.percent(change.share),
        ]
        for change in comparison.phases
    ]
    gap = comparison.step_s[1].mean - comparison.step_s[0].mean
    step = Row(("step", *(cell(side, 1) for side in comparison.step_s), f"{gap:+.1f}", ""), strong=True)
    money = ["USD per step", *(f"{cost:.2f}" for cost in comparison.cost_per_step_usd), "", ""]
    lines += [style.bold("Time per step") + style.dim("  seconds, mean [90 % interval]")]
    lines += table(["", *names, "difference", "share"], [*phases, RULE, step, money], style)
    lines += style.wrapped(_price(comparison.price_per_gpu_hour_usd), "  ")
    pairing = "on the same drawn work" if comparison.paired else "on different work"
    lines += ["", f"Speedup {fmt.times(comparison.speedup)}, {pairing}."]
    if comparison.explains is not None:
        lines.append(f"Most of the difference is {_phase_name(comparison.explains.phase, comparison)}.")
    return "\n".join(lines) + "\n"


def _phase_name(phase: str, comparison: Comparison) -> str:
    """Asynchronous steps hold the wait for a generator only, not its busy time."""
    if phase != "generation" or "async" not in comparison.modes:
        return phase
    return "exposed generation" if set(comparison.modes) == {"async"} else "generation (exposed where asynchronous)"


def _brief(value: Any) -> str:
    text = "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def render_sensitivity(sensitivity: Sensitivity, style: Style = DEFAULT_STYLE) -> str:
    """Uncertain inputs by what they contribute to the interval of the step."""
    rows = [
        [
            item.key,
            *(f"{end:.4g}" for end in (item.low, item.high)),
            fmt.percent(item.share),
            fmt.signed_percent(item.narrowed - 1),
            item.reason,
        ]
        for item in sensitivity.contributions
        if item.share >= 0.005
    ]
    step = (
        f"{sensitivity.scenario}: step {sensitivity.median_s:.1f} s, 90 % of draws between {sensitivity.low_s:.1f} and "
        f"{sensitivity.high_s:.1f} s"
    )
    method = (
        f"{sensitivity.samples} points, {sensitivity.failed} of which cannot run; the fitted polynomial explains "
        f"{fmt.percent(sensitivity.fit)} of the variance. {len(sensitivity.contributions) - len(rows)} further inputs "
        "contribute less than 0.5 % each."
    )
    heads = ["", "low", "high", "of the variance", "interval if known", "what it is"]
    answer = [style.bold("What to measure next"), *table(heads, rows, style, "<>>>><")]
    return "\n".join([*style.wrapped(step), "", *answer, "", *style.wrapped(method)]) + "\n"
