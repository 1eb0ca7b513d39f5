"""Sweeps, plans, comparisons and sensitivities in a terminal."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from rlsim.planning.breakeven import ACCEPTANCE_KEY, break_even_lengths
from rlsim.planning.objective import SECONDS_PER_HOUR, UNITS
from rlsim.planning.results import BATCH_KEYS, Comparison, Plan, PlanRow, Sensitivity, SweepResult

SHOWN = 10
DRAFT_KEYS = ("speculation.draft_length", "k")
KILOWATT_HOUR_J = 3.6e6


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns padded to their widest entry; the first left-aligned, the others right."""
    widths = [max(len(line[i]) for line in (heads, *rows)) for i in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = cells
        right = "".join(f"  {cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True))
        return f"  {first:<{widths[0]}}{right}".rstrip()

    return [line(heads), *(line(row) for row in rows)]


def render_sweep(result: SweepResult) -> str:
    """Counts, the fastest cells, break-even acceptance lengths, and why cells cannot run."""
    names = [axis.name for axis in result.axes]
    batch_varies = any(key in BATCH_KEYS for axis in result.axes for key in axis.keys)
    done = sorted(result.done, key=lambda row: row["step_s"] / (result.samples(row) if batch_varies else 1))
    lines = [
        f"{result.scenario}: {len(result.rows)} cells, {len(done)} can run, {result.replications} replications each"
    ]
    per_sample = ["ms/sample"] if batch_varies else []
    heads = [*(name.rpartition(".")[2] for name in names), "step (s)", *per_sample, "rollout", "end to end", "USD/step"]
    shown = [
        [
            *(str(row[name]) for name in names),
            f"{row['step_s']:.1f}",
            *(f"{1e3 * row['step_s'] / result.samples(row):.2f}" for _ in per_sample),
            f"{row['rollout_speedup']:.2f}x",
            f"{row['end_to_end_speedup']:.2f}x",
            f"{row['cost_per_step_usd']:.2f}",
        ]
        for row in done[:SHOWN]
    ]
    title = f"Fastest {len(shown)}" + (" by time per consumed sample" if batch_varies else "")
    prices = {row["cost_per_step_usd"] / row["step_s"] / row["num_gpus"] * SECONDS_PER_HOUR for row in done[:SHOWN]}
    lines += ["", title, *table(heads, shown), *_price(prices)]
    return "\n".join([*lines, *_break_even(result), *_reasons(result)]) + "\n"


def _price(usd_per_gpu_hour: Iterable[float]) -> list[str]:
    """The price behind all that is said of money."""
    shown = sorted({f"{price:.2f}" for price in usd_per_gpu_hour})
    return [f"  USD at {' or '.join(shown)} per GPU and hour (hardware.price_per_gpu_hour_usd)"]


def _break_even(result: SweepResult) -> list[str]:
    names = [axis.name for axis in result.axes]
    draft = next((name for name in DRAFT_KEYS if name in names), None)
    if draft is None or sorted(names) != sorted([draft, ACCEPTANCE_KEY]):
        return []
    lengths = break_even_lengths(result.done, draft)
    if not lengths:
        return ["", "No draft length breaks even within these acceptance lengths."]
    rows = [[str(k), f"{length:.2f}"] for k, length in lengths.items()]
    return ["", "The rollout breaks even at acceptance length", *table(["k", "acceptance length"], rows)]


def _reasons(result: SweepResult) -> list[str]:
    reasons: dict[tuple[str, str], int] = {}
    for row in result.rows:
        if row["status"] != "ok":
            key = (row["status"], row["reason"])
            reasons[key] = reasons.get(key, 0) + 1
    if not reasons:
        return []
    most = sorted(reasons.items(), key=lambda item: -item[1])
    lines = [f"  {count:5d} {status}: {reason}" for (status, reason), count in most[:SHOWN]]
    rest = len(most) - SHOWN
    return ["", "Cells that cannot run", *lines, *([f"  and {rest} more reasons"] if rest > 0 else [])]


def render_plan(plan: Plan, changes: Sequence[str]) -> str:
    """The best plan and what to set for it, what is about as good, cost against time, and how sure the order is."""
    best, measure = plan.best, plan.objective.measure
    proof = "all others excluded by bounds" if plan.exhaustive else "sampled; better ones may exist"
    lines = [
        f"{plan.scenario}: {plan.configurations:,} configurations fit of {plan.considered:,}; {plan.simulated} "
        f"simulated, {proof}",
        "",
        f"Best by {measure.replace('_', ' ')}: {plan.objective_value:,.6g} {UNITS[measure]}",
        f"  {best.name}",
        *_best_lines(plan),
        "",
        "Set",
        *(f"  --set {quoted(change)}" for change in changes),
        "",
        *_plans("Within 3 % of it", plan.near),
        *_plans("Cost against time", plan.pareto),
    ]
    if len(plan.by_group) > len(plan.pareto):
        lines += _plans("Best of each cluster size and lag", plan.by_group)
    return "\n".join([*lines, *_confidence(plan)]).rstrip() + "\n"


def quoted(change: str) -> str:
    """An override as a shell takes it."""
    return shlex.quote(change)


def _best_lines(plan: Plan) -> list[str]:
    n = plan.best.numbers
    step = f"step {n.step_s.mean:.1f} s [{n.step_s.low:.1f}, {n.step_s.high:.1f}]"
    money = f"{n.cost_per_step_usd:.2f} USD and at most {n.energy_per_step_j / KILOWATT_HOUR_J:.1f} kWh per step"
    lines = [
        f"  {step}, {money}",
        *_price([n.cost_per_step_usd / n.step_s.mean / n.num_gpus * SECONDS_PER_HOUR]),
        f"  limited by {n.limit}; one of {plan.best.trainers} trainer layouts that fit",
        *_from_here(plan),
    ]
    if plan.objective.steps is not None:
        hours, cost = (value * plan.objective.steps for value in (n.step_s.mean / 3600, n.cost_per_step_usd))
        lines.append(f"  {plan.objective.steps:,} steps: {hours:,.2f} hours, {cost:,.0f} USD")
    return lines


def _from_here(plan: Plan) -> list[str]:
    """What the plan gains on the scenario as it is, and which change brings how much of it."""
    if not plan.waterfall:
        return []
    gains = [(after.what, before.step_s / after.step_s) for before, after in itertools.pairwise(plan.waterfall)]
    told = ", ".join(f"{what} {gain:.2f}x" for what, gain in gains if f"{gain:.2f}" != "1.00")
    now, best = plan.waterfall[0].step_s, plan.best.step_s
    return [f"  the scenario as it is takes {now:.1f} s per step: {now / best:.2f}x{told and f' ({told})'}"]


def _plans(title: str, rows: Sequence[PlanRow]) -> list[str]:
    shown = [[row.name, f"{row.step_s:.1f}", f"{row.numbers.cost_per_step_usd:.2f}", row.numbers.limit] for row in rows]
    return [*table([title, "step (s)", "USD/step", "limited by"], shown), ""]


def _confidence(plan: Plan) -> list[str]:
    if not plan.confidence:
        return []
    rows = [
        [item.second, f"{item.wins:.0%}", f"{item.ratio_low:.3f} to {item.ratio_high:.3f}", str(item.draws)]
        for item in plan.confidence
    ]
    return table(["The best plan beats", "in draws", "step relative to it", "draws"], rows)


def render_comparison(comparison: Comparison) -> str:
    """Differences of the scenarios, phases side by side, and the phase that explains the difference."""
    first, second = comparison.names
    names = (first, second) if first != second else (f"A ({first})", f"B ({second})")
    lines = [f"{names[0]} against {names[1]}", ""]
    if comparison.differences:
        rows = [[key, _brief(a), _brief(b)] for key, (a, b) in comparison.differences.items()]
        lines += [*table(["Scenario", *names], rows), ""]
    else:
        lines += ["The scenarios do not differ.", ""]
    phases = [
        [
            _phase_name(change.phase, comparison),
            f"{change.before_s:.1f}",
            f"{change.after_s:.1f}",
            f"{change.after_s - change.before_s:+.1f}",
            "" if change.share is None else f"{change.share:z.0%}",
        ]
        for change in comparison.phases
    ]
    steps = [f"{quantity.mean:.1f}" for quantity in comparison.step_s]
    gap = comparison.step_s[1].mean - comparison.step_s[0].mean
    phases.append(["step", *steps, f"{gap:+.1f}", ""])
    phases.append(["USD per step", *(f"{cost:.2f}" for cost in comparison.cost_per_step_usd), "", ""])
    lines += table(["Seconds", *names, "difference", "share"], phases)
    lines += _price(comparison.price_per_gpu_hour_usd)
    ratio = comparison.speedup
    pairing = "on the same drawn work" if comparison.paired else "on different work"
    lines += ["", f"Speedup {ratio.mean:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}], {pairing}."]
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


def render_sensitivity(sensitivity: Sensitivity) -> str:
    """Uncertain inputs by what they contribute to the interval of the step."""
    rows = [
        [item.key, f"{item.low:.4g}", f"{item.high:.4g}", f"{item.share:.0%}", f"{item.narrowed - 1:+.0%}", item.reason]
        for item in sensitivity.contributions
        if item.share >= 0.005
    ]
    lines = [
        f"{sensitivity.scenario}: step {sensitivity.median_s:.1f} s, 90 % of draws between {sensitivity.low_s:.1f} and "
        f"{sensitivity.high_s:.1f} s",
        "",
        *table(["What to measure next", "low", "high", "of the variance", "interval if known", "what it is"], rows),
        "",
        f"{sensitivity.samples} points, {sensitivity.failed} of which cannot run; the fitted polynomial explains "
        f"{sensitivity.fit:.0%} of the variance.",
    ]
    hidden = len(sensitivity.contributions) - len(rows)
    return "\n".join([*lines, f"{hidden} further inputs contribute less than 0.5 % each."]) + "\n"
