"""The table of times: phases of both arms, the step, throughput."""

from __future__ import annotations

from rlsim.report import words
from rlsim.report.columns import Cell, Paint, Row, align
from rlsim.report.words import decimals_for, fixed, percent, ratio
from rlsim.results import Arm, Projection, Quantity

RULE = Row("-")
REMARK_INDENT = len("  candidate   ")


def times_lines(projection: Projection, width: int, paint: Paint) -> list[str]:
    """Baseline, candidate and speedup of every phase; one arm and its shares where nothing is drafted."""
    compared = words.speculates(projection.candidate)
    heads = ("baseline", "candidate", "speedup") if compared else ("mean", "of step")
    title = paint.bold("Time per step") + paint.dim("  seconds, mean [90 % interval]")
    return [title, *align(heads, _rows(projection, compared), width, paint), *_remarks(projection, compared, width)]


def _rows(projection: Projection, compared: bool) -> list[Row]:
    arms = (projection.baseline, projection.candidate) if compared else (projection.candidate,)
    asynchronous = words.is_async(projection)
    decimals = decimals_for(max(arm.step_s.mean for arm in arms))
    order = dict.fromkeys(p.phase for arm in arms for p in words.step_pieces(arm, asynchronous))
    rows: list[Row | None] = []
    for phase in order:
        rows.append(_phase_row(projection, arms, phase, _label(phase, asynchronous), decimals))
        if phase == "prepare" and not asynchronous:
            rows.append(_phase_row(projection, arms, "refit", "  of which refit", decimals))
    rows.append(RULE)
    rows.append(_row("step", arms, [arm.step_s for arm in arms], decimals, projection.end_to_end_speedup, strong=True))
    if asynchronous:
        rows.append(_phase_row(projection, arms, "generation", "generation (busy)", decimals))
    rows.append(_throughput(projection, arms))
    return [row for row in rows if row is not None]


def _label(phase: str, asynchronous: bool) -> str:
    return "refit pause" if asynchronous and phase == "refit" else words.phase_label(phase)


def _phase_row(projection: Projection, arms: tuple[Arm, ...], phase: str, label: str, decimals: int) -> Row | None:
    """The row of one phase; None where no arm spends time on it."""
    asynchronous = words.is_async(projection)
    if phase == "other":
        rests = [sum(p.seconds for p in words.step_pieces(arm, asynchronous) if p.phase == "other") for arm in arms]
        return Row(label, (*(Cell(fixed(rest, decimals)) for rest in rests), Cell("")))
    durations = [arm.phases[f"{phase}_s"] for arm in arms]
    if not any(duration.mean for duration in durations):
        return None
    return _row(label, arms, durations, decimals, projection.rollout_speedup if phase == "generation" else None)


def _row(
    label: str,
    arms: tuple[Arm, ...],
    values: list[Quantity],
    decimals: int,
    speedup: Quantity | None,
    strong: bool = False,
) -> Row:
    if len(arms) == 1:
        last = Cell(percent(values[0].mean / arms[0].step_s.mean) if arms[0].step_s.mean else "-")
    elif speedup is not None:
        last = Cell(f"{speedup.mean:.2f}x", f"{speedup.low:.2f}", f"{speedup.high:.2f}")
        strong = True
    else:
        last = Cell(ratio(values[0].mean, values[1].mean))
    return Row(label, (*(_cell(value, decimals) for value in values), last), strong)


def _cell(value: Quantity, decimals: int) -> Cell:
    return Cell(fixed(value.mean, decimals), fixed(value.low, decimals), fixed(value.high, decimals))


def _throughput(projection: Projection, arms: tuple[Arm, ...]) -> Row:
    rates = [arm.tokens_per_s_per_gpu for arm in arms]
    decimals = max(0, decimals_for(max(rate.mean for rate in rates)) - 1)
    last = Cell(ratio(rates[1].mean, rates[0].mean)) if len(arms) == 2 else Cell("")
    return Row("tokens/s/GPU", (*(_cell(rate, decimals) for rate in rates), last))


def _remarks(projection: Projection, compared: bool, width: int) -> list[str]:
    lines = [] if compared else words.hanging(_PLAIN_REMARK, 2, width)
    if not words.is_async(projection):
        return lines
    arms = [("baseline", projection.baseline), ("candidate", projection.candidate)][0 if compared else 1 :]
    for name, arm in arms:
        label = f"  {name}   " if compared else "  "
        lines += words.hanging(_pace(arm), REMARK_INDENT if compared else 2, width, label)
        lines += words.hanging(_ages(arm), REMARK_INDENT if compared else 2, width)
    return lines


_PLAIN_REMARK = "Baseline and candidate are the same: set speculation.method and speculation.draft_length to compare."


def _pace(arm: Arm) -> str:
    if words.trainer_sets_pace(arm):
        return f"the trainer sets the pace: it waits {percent(words.waiting_share(arm))} of the step for generation"
    return f"generation sets the pace: the trainer waits {percent(words.waiting_share(arm))} of the step for it"


def _ages(arm: Arm) -> str:
    ages = ", ".join(
        f"{age} {'step' if age == 1 else 'steps'} {percent(share)}"
        for age, share in sorted(arm.staleness.items())
        if share > 0
    )
    return f"age of consumed samples: {ages}" if ages else "no samples consumed"
