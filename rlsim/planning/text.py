"""Sweeps, plans and comparisons in a terminal."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlsim.planning.breakeven import ACCEPTANCE_KEY, DRAFT_KEYS, break_even_lengths
from rlsim.planning.objective import UNITS
from rlsim.planning.results import BATCH_KEYS, Comparison, Plan, PlanRow, SweepResult, interval_columns
from rlsim.projection.assumptions import TOLD_EAGER_SHARE
from rlsim.projection.expenses import SECONDS_PER_HOUR
from rlsim.projection.uncertainty.predictive import DRAWS
from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import RULE, Cell, Row, cell, table
from rlsim.results import Interval

SHOWN = 10
SHOWN_RIVALS = 6
KILOWATT_HOUR_J = 3.6e6


def render_sweep(result: SweepResult, style: Style = DEFAULT_STYLE) -> str:
    """Counts, the fastest cells, break-even acceptance lengths, and why cells cannot run."""
    names = [axis.name for axis in result.axes]
    batch_varies = any(key in BATCH_KEYS for axis in result.axes for key in axis.keys)
    done = sorted(result.done, key=lambda row: row["step_s"] / (result.samples(row) if batch_varies else 1))
    shown = done[:SHOWN]
    per_sample = ["ms/sample"] if batch_varies else []
    # The step stands last: where the terminal is narrow, the last column alone keeps its intervals.
    heads = [*(name.rpartition(".")[2] for name in names), *per_sample, "USD/step", "rollout", "end to end", "step (s)"]
    cells: list[list[Cell | str]] = [
        [
            *(str(row[name]) for name in names),
            *(f"{1e3 * row['step_s'] / result.samples(row):.2f}" for _ in per_sample),
            f"{row['cost_per_step_usd']:.2f}",
            *(cell(_interval(row, f"{part}_speedup"), 2, "x") for part in ("rollout", "end_to_end")),
            cell(_interval(row, "step_s"), 1),
        ]
        for row in shown
    ]
    sides = [">" if all(isinstance(row[name], int | float) for row in shown) else "<" for name in names]
    title = f"Fastest {len(shown)}" + (" by time per consumed sample" if batch_varies else "")
    prices = {row["cost_per_step_usd"] / row["step_s"] / row["num_gpus"] * SECONDS_PER_HOUR for row in shown}
    counts = f"{len(result.rows)} cells, {len(done)} can run, {result.replications} replications each"
    if result.replications < result.own_replications:
        counts += f" (project takes {result.own_replications}: --replications {result.own_replications} says the same)"
    lines = [
        *style.wrapped(f"{result.scenario}: {counts}"),
        "",
        style.bold(title) + style.dim("  mean [90 % interval]"),
    ]
    lines += [*table(heads, cells, style, "".join(sides) + ">"), *style.wrapped(_price(prices), "  ")]
    remarks = [
        *(f"With {text}." for text in result.caveats),
        *eager_remark([(_cell_name(row, names), row) for row in done]),
    ]
    lines += [line for remark in remarks for line in ("", *style.wrapped(remark))]
    return "\n".join([*lines, *_break_even(result, style), *_reasons(result, style)]) + "\n"


def _cell_name(row: Mapping[str, Any], names: Sequence[str]) -> str:
    return " ".join(f"{name.rpartition('.')[2]}={row[name]}" for name in names)


def eager_remark(cells: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """What hangs on an engine's captured graphs, where some of the named cells go beyond them."""
    beyond = [(row["eager_share"], name) for name, row in cells if row.get("eager_share", 0.0) > TOLD_EAGER_SHARE]
    if not beyond:
        return []
    share, worst = max(beyond, key=lambda one: one[0])
    limits = sorted({int(row["captured_tokens"]) for _, row in cells})
    return [
        f"Warning: {len(beyond)} of {len(cells)} go beyond the largest captured CUDA graph "
        f"({' or '.join(map(str, limits))} tokens, engine.max_captured_tokens), up to {fmt.percent(share)} of the "
        f"iterations ({worst}). What a launch costs is known within a factor of two, and the limit is the engine's "
        "default unless stated: check what yours captures before you choose by this cliff."
    ]


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
        ahead = {row["rollout_speedup"] > 1.0 for row in result.done}
        told = "does better or worse than none" if len(ahead) > 1 else "wins" if True in ahead else "loses"
        return ["", f"Each draft length {told} at all of these acceptance lengths; none breaks even between them."]
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
    proof = "all others excluded by bounds of their means"
    where = ", layouts near the evidence alone" if plan.only_near else ""
    counts = (
        f"{plan.scenario}: {plan.configurations:,} configurations fit of {plan.considered:,}; {plan.simulated} "
        f"simulated, {proof}{where}"
    )
    lines = [
        *style.wrapped(counts),
        "",
        style.bold(_heading(plan)),
        *(line for remark in (plan.best.name, *_best_lines(plan)) for line in style.wrapped(remark, "  ")),
        "",
        *_near_evidence(plan, style),
        style.bold("Set"),
        *(f"  --set {shlex.quote(change)}" for change in changes),
        "",
        *_plans("Within 3 % of it", plan.near, style),
        *_plans("Cost against time", plan.pareto, style),
    ]
    if len(plan.by_group) > len(plan.pareto):
        lines += _plans("Best of each cluster size and lag", plan.by_group, style)
    shown = {row.name: row.numbers.row() for row in (plan.best, *plan.near, *plan.pareto, *plan.by_group)}
    for remark in eager_remark(list(shown.items())):
        lines += [*style.wrapped(remark), ""]
    return "\n".join([*lines, *_against(plan, style)]).rstrip() + "\n"


def _heading(plan: Plan) -> str:
    measure, statistic = plan.objective.measure, plan.objective.statistic
    name, value = measure.replace("_", " "), f"{plan.objective_value:,.6g} {UNITS[measure]}"
    if statistic == "regret":
        return f"Best by expected regret of {name}: {value} in the mean"
    return f"Best by {name}, " + (f"mean: {value}" if statistic == "mean" else f"90 % sure: {value}")


def _best_lines(plan: Plan) -> list[str]:
    n = plan.best.numbers
    step = f"step {n.step_s.mean:.1f} s"
    if isinstance(n.step_s, Interval):
        step += f" [{n.step_s.low:.1f}, {n.step_s.high:.1f}]"
    money = f"{n.cost_per_step_usd:.2f} USD and at most {n.energy_per_step_j / KILOWATT_HOUR_J:.1f} kWh per step"
    lines = [
        f"{step}, {money}",
        _price([n.cost_per_step_usd / n.step_s.mean / n.num_gpus * SECONDS_PER_HOUR]),
        f"limited by {n.limit}; one of {plan.best.trainers} trainer layouts that fit",
        *_outlook(plan),
        *_from_here(plan),
        *_constraints(plan),
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


def _outlook(plan: Plan) -> list[str]:
    """How sure the best plan is to be the best choice."""
    seen = plan.best.outlook
    if seen is None:
        return []
    beats = "" if seen.beats_current is None else f"; beats the scenario as it is in {_chance(seen.beats_current)}"
    return [f"90 % sure to take at most {seen.p90_s:.1f} s; expected regret {_share(seen.expected_regret)}{beats}"]


def _constraints(plan: Plan) -> list[str]:
    """With what probability each constraint holds."""
    lines = [
        f"keeps to the {one.constraint} ({one.limit:.1f} {one.unit}) with {_chance(one.probability)}"
        for one in plan.constraints
        if one.probability is not None and one.unit == "s per step"
    ]
    memory = [one for one in plan.constraints if one.constraint == "memory"]
    lines += [
        f"takes {fmt.percent(one.value)} of the memory of its fullest GPU (allowed {fmt.percent(one.limit)}); no "
        "measurement bounds the memory model"
        for one in memory
    ]
    return lines


def _near_evidence(plan: Plan, style: Style) -> list[str]:
    """The best plan that measured runs lie near, and what either costs against the other."""
    near, best, rival = plan.best_near, plan.best, plan.against_near
    title = style.bold("Best near the evidence")
    if near is None or rival is None:
        return [title, *style.wrapped("none: no measured run lies near any plan that was met", "  "), ""]
    if near.layout == best.layout:
        return [title, *style.wrapped("the same plan: measured runs lie near it", "  "), ""]
    seen = near.outlook
    sure = "" if seen is None else f", 90 % sure to take at most {seen.p90_s:.1f} s"
    lines = [
        near.name,
        f"step {near.step_s:.1f} s{sure}; {fmt.times(rival.ratio)} {_effort(plan)} of the best anywhere, which beats "
        f"it in {_chance(rival.wins)}",
    ]
    return [title, *(line for remark in lines for line in style.wrapped(remark, "  ")), ""]


def _chance(share: float) -> str:
    """A share of the draws; none of them proves certainty."""
    return "> 99 %" if share > 0.995 else "< 1 %" if share < 0.005 else fmt.percent(share)


def _effort(plan: Plan) -> str:
    return {"cost_per_step": "the cost", "energy_per_step": "the energy"}.get(plan.objective.measure, "the step")


def _share(share: float) -> str:
    return fmt.percent(share, 1)


def _plans(title: str, rows: Sequence[PlanRow], style: Style) -> list[str]:
    """The step stands last: where the terminal is narrow, the last column alone keeps its intervals."""
    shown: list[list[Cell | str]] = []
    for row in rows:
        step, seen = row.numbers.step_s, row.outlook
        sure = ["", "", ""]
        if seen is not None:
            beats = "-" if seen.beats_current is None else _chance(seen.beats_current)
            sure = [_share(seen.expected_regret), beats, f"{seen.p90_s:.1f}"]
        told = cell(step, 1) if isinstance(step, Interval) else f"{step.mean:.1f}"
        shown.append([row.name, row.numbers.limit, f"{row.numbers.cost_per_step_usd:.2f}", *sure, told])
    heads = ["", "limited by", "USD/step", "regret", "beats now", "90 % sure", "step (s)"]
    return [style.bold(title), *table(heads, shown, style, "<<>"), ""]


def _against(plan: Plan, style: Style) -> list[str]:
    if not plan.against:
        return []
    rows: list[list[Cell | str]] = [
        [item.rival, _chance(item.wins), cell(item.ratio, 3)] for item in plan.against[:SHOWN_RIVALS]
    ]
    title = style.bold("The best plan beats") + style.dim(
        f"  shares of {DRAWS:,} draws of the model's error, common to all"
    )
    return [
        title,
        *table(["", "in", f"its {_effort(plan).removeprefix('the ')} over the best plan's"], rows, style, "<>>"),
    ]


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
    if comparison.warnings:
        lines += ["", *style.numbered("Warnings", comparison.warnings)]
    return "\n".join(lines) + "\n"


def _phase_name(phase: str, comparison: Comparison) -> str:
    """Asynchronous steps hold the wait for a generator only, not its busy time."""
    if phase != "generation" or "async" not in comparison.modes:
        return phase
    return "exposed generation" if set(comparison.modes) == {"async"} else "generation (exposed where asynchronous)"


def _brief(value: Any) -> str:
    text = "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
