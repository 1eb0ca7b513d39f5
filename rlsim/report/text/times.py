"""The table of times: what differs between baseline and candidate, the step, throughput and cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlsim.report import format as fmt
from rlsim.report.style import Style
from rlsim.report.table import RULE, Row, cell, table
from rlsim.report.text import findings
from rlsim.results import Interval, Projection, Variant
from rlsim.units import SECONDS_PER_HOUR


@dataclass(frozen=True)
class _Line:
    """A phase of the step, or what is ``inside`` the phase before it, in each side shown."""

    phase: str
    values: tuple[Interval, ...]
    inside: bool = False


def times_lines(projection: Projection, style: Style) -> list[str]:
    """Phases of both sides and their speedups, equal ones in one row; one side's shares where nothing is drafted."""
    arms = projection.variants
    decimals = fmt.decimals_for(max(arm.step_s.mean for arm in arms.values()))
    lines = _phase_lines(projection, list(arms.values()))
    same = [line for line in lines if len({fmt.fixed(value.mean, decimals) for value in line.values}) < len(arms)]
    rows = [_row(projection, line, decimals) for line in lines if line not in same]
    if same:
        sums = [sum(line.values[i].mean for line in same if not line.inside) for i in range(len(arms))]
        rows.append(Row(("same in both", *(fmt.fixed(total, decimals) for total in sums), "")))
    rows += [RULE, _row(projection, _Line("step", tuple(arm.step_s for arm in arms.values())), decimals)]
    if projection.asynchronous:
        rows.append(_row(projection, _Line("generation_s", _phase(arms.values(), "generation_s")), decimals))
    heads = ("", *arms, "speedup") if len(arms) == 2 else ("", "mean", "of step")
    title = style.bold("Time per step") + style.dim("  seconds, mean [90 % interval]")
    remarks = [_same(projection, same, decimals)] if same else []
    remarks += [f"USD {price_note(projection)}"]
    text = [line for remark in remarks for line in style.wrapped(remark, "  ")]
    return [title, *table(heads, [*rows, *_rates(projection)], style), *text, *_remarks(projection, style)]


def cost_usd(projection: Projection, seconds: Interval) -> Interval:
    """Price in USD of all GPUs, busy or not, for ``seconds``."""
    rate = projection.num_gpus * projection.price_per_gpu_hour_usd / SECONDS_PER_HOUR
    return seconds.times(rate)


def price_note(projection: Projection) -> str:
    """The price behind every cost, and the key that changes it."""
    price, source = projection.price_per_gpu_hour_usd, projection.price_source
    return f"at {price:.2f} per GPU and hour (hardware.price_per_gpu_hour_usd, {source})"


def _phase_lines(projection: Projection, arms: Sequence[Variant]) -> list[_Line]:
    columns = [findings.step_phases(arm, projection.asynchronous) for arm in arms]
    lines = []
    for phase in dict.fromkeys(name for column in columns for name in column):
        if phase == "other":
            rests = [column.get(phase, 0.0) for column in columns]
            lines.append(_Line(phase, tuple(Interval(rest, rest, rest) for rest in rests)))
        elif any(column[phase] for column in columns):
            lines.append(_Line(phase, _phase(arms, phase)))
        if phase == "prepare_s" and not projection.asynchronous:
            lines.append(_Line("refit_s", _phase(arms, "refit_s"), inside=True))
    return lines


def _phase(arms: Iterable[Variant], phase: str) -> tuple[Interval, ...]:
    return tuple(arm.phases[phase] for arm in arms)


def _row(projection: Projection, line: _Line, decimals: int) -> Row:
    label = "step" if line.phase == "step" else fmt.phase_label(line.phase, projection.asynchronous)
    cells = [cell(value, decimals) for value in line.values]
    name = f"  of which {label}" if line.inside else label
    if len(cells) == 1:
        return Row((name, *cells, fmt.percent(line.values[0].mean / projection.candidate.step_s.mean)))
    speedups = {"step": projection.end_to_end_speedup, "generation_s": projection.rollout_speedup}
    if line.phase in speedups:
        speedup = speedups[line.phase]
        return Row((name, *cells, cell(speedup, 2, "x")), strong=True)
    before, after = (value.mean for value in line.values)
    if line.phase == "exposed_generation_s":
        # A ratio of a wait that nearly vanished says nothing.
        verb = "saves" if before >= after else "adds"
        return Row((name, *cells, f"{verb} {fmt.seconds(abs(before - after))}"))
    return Row((name, *cells, fmt.ratio(before, after)))


def _rates(projection: Projection) -> list[Row]:
    """Throughput and cost, whose ratio is that of the step."""
    arms = projection.variants.values()
    rows = []
    for label, values in (
        ("tokens/s/GPU", [arm.tokens_per_s_per_gpu for arm in arms]),
        ("USD/step", [cost_usd(projection, arm.step_s) for arm in arms]),
    ):
        decimals = max(0, 2 - math.floor(math.log10(max(value.mean for value in values))))
        rows.append(Row((label, *(cell(value, decimals) for value in values), "")))
    return rows


def _same(projection: Projection, lines: Sequence[_Line], decimals: int) -> str:
    """The phases behind the row of what is the same in both."""
    out = ""
    for line in lines:
        label = fmt.phase_label(line.phase, projection.asynchronous)
        value = fmt.fixed(line.values[0].mean, decimals)
        out += f" (of which {label} {value})" if line.inside else f", {label} {value}"
    return f"same in both: {out.removeprefix(', ')} s"


def _remarks(projection: Projection, style: Style) -> list[str]:
    """Who sets the pace of an asynchronous step and how old its samples are; how to get a comparison."""
    arms = projection.variants
    remarks = [] if len(arms) == 2 else [_PLAIN_REMARK]
    if projection.asynchronous:
        remarks += [(f"{name}: " if len(arms) == 2 else "") + _pace(arm) for name, arm in arms.items()]
        ages = {name: _ages(arm) for name, arm in arms.items()}
        if len(set(ages.values())) == 1:
            ages = {"": next(iter(ages.values()))}
        remarks += [f"age of consumed samples{name and f' ({name})'}: {age}" for name, age in ages.items()]
    spent = {name: _tokens(arm) for name, arm in arms.items()}
    if len(set(spent.values())) == 1:
        spent = {"": next(iter(spent.values()))}
    remarks += [f"generated tokens{name and f' ({name})'}: {text}" for name, text in spent.items() if text]
    return [line for remark in remarks for line in style.wrapped(remark, "  ")]


_PLAIN_REMARK = "Baseline and candidate are the same: set speculation.method and speculation.draft_length to compare."


def _pace(arm: Variant) -> str:
    share = fmt.percent(findings.waiting_share(arm))
    if findings.trainer_sets_pace(arm):
        return f"the trainer sets the pace: it waits {share} of the step for generation"
    return f"generation sets the pace: the trainer waits {share} of the step for it"


def _tokens(arm: Variant) -> str:
    """Where response tokens went, where not all of them were trained on."""
    ledger = arm.ledger
    if ledger is None or not ledger.generated:
        return ""
    lost = {
        "dropped as too old": ledger.stale,
        "of groups that no step can use": ledger.discarded,
        "generated again after updates": ledger.regenerated,
    }
    text = [f"{fmt.percent(value / ledger.generated)} {what}" for what, value in lost.items() if value > 0]
    return ", ".join(text)


def _ages(arm: Variant) -> str:
    shares = [(age, fmt.percent(share)) for age, share in sorted(arm.staleness.items()) if share > 0]
    return ", ".join(f"{age} {'step' if age == 1 else 'steps'} {share}" for age, share in shares)
