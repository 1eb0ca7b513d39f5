"""A whole run in a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlsim.report import format as fmt
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import RULE, Row, cell, table
from rlsim.results import Interval
from rlsim.results.run import Run, RunSide
from rlsim.units import JOULES_PER_KWH, SECONDS_PER_HOUR

DAY_S = 86400.0
LABELS = {
    "steps": "steps, undisturbed",
    "validation": "validation",
    "checkpoints": "checkpoints",
    "stalls": "stalled publications",
    "slow_nodes": "slow nodes",
    "replica_faults": "lost replicas",
    "restarts": "restarts of the trainer",
    "steps_again": "steps done again",
}
COUNTED = ("validation", "checkpoints", "stalls", "replica_faults", "restarts")
"""Causes that happen a number of times."""


def render(run: Run, style: Style = DEFAULT_STYLE) -> str:
    """The whole answer as text: headline, totals, how the steps evolve, what was lost, assumptions, warnings."""
    sections = [
        _head(run, style),
        _totals(run, style),
        _course(run, style),
        _ledger(run, style),
        style.numbered("Assumptions", run.assumptions),
        style.numbered("Warnings", run.warnings),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def headline(run: Run) -> str:
    """What a run takes, in a sentence."""
    unit_s, unit = unit_of(max(side.seconds.mean for side in run.sides.values()))
    took = f"{run.num_steps:,} {'step takes' if run.num_steps == 1 else 'steps take'} "
    took += f"{_scaled(run.candidate.seconds, unit_s)} {unit}"
    if run.baseline is None or run.speedup is None:
        return f"{took}."
    return f"{took} in place of {_scaled(run.baseline.seconds, unit_s)} {unit}: {fmt.times(run.speedup)}."


def unit_of(seconds: float) -> tuple[float, str]:
    """The unit that a duration reads best in."""
    if seconds >= 3 * DAY_S:
        return DAY_S, "days"
    return (SECONDS_PER_HOUR, "hours") if seconds >= 2 * SECONDS_PER_HOUR else (1.0, "s")


def _per(value: Interval, unit: float) -> Interval:
    return Interval(value.mean / unit, value.low / unit, value.high / unit)


def _scaled(value: Interval, unit: float) -> str:
    decimals = max(0, 2 - math.floor(math.log10(max(value.mean / unit, 1e-9))))
    shown = [fmt.fixed(each / unit, decimals) for each in (value.mean, value.low, value.high)]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]"


def _head(run: Run, style: Style) -> list[str]:
    mode = "asynchronous" if run.asynchronous else "synchronous"
    about = (
        f"{run.scenario}: {run.model}, {run.num_gpus:,} GPUs, {mode}, seed {run.seed}, replications "
        f"{run.replications}, digest {run.digest}"
    )
    lines = [style.bold(line) for line in style.wrapped(headline(run))]
    return lines + [style.dim(line) for text in (run.question, about) for line in style.wrapped(text)]


def _totals(run: Run, style: Style) -> list[str]:
    sides = list(run.sides.values())
    unit_s, unit = unit_of(max(side.seconds.mean for side in sides))
    rows = [
        _row(f"time ({unit})", [side.seconds for side in sides], unit_s),
        _row("cost (USD)", [side.cost_usd for side in sides]),
        _row("energy, at most (MWh)", [side.energy_at_most_j for side in sides], 1e3 * JOULES_PER_KWH),
        Row(("GPU seconds at work", *(fmt.percent(side.busy_share) for side in sides))),
        Row(("samples trained on", *(f"{side.samples:,}" for side in sides))),
        Row(("tokens generated (billion)", *(fmt.number(side.generated_tokens / 1e9) for side in sides))),
        Row(("tokens trained on (billion)", *(fmt.number(side.trained_tokens / 1e9) for side in sides))),
    ]
    heads = ("", *run.sides) if len(sides) > 1 else ("", "")
    price = f"USD at {run.price_per_gpu_hour_usd:.2f} per GPU and hour (hardware.price_per_gpu_hour_usd, "
    notes = [f"{price}{run.price_source})", *(_sampling(name, side) for name, side in run.sides.items())]
    remarks = [line for note in notes for line in style.wrapped(note, "  ")]
    title = style.bold("Whole run") + style.dim("  mean [90 % interval]")
    return [title, *table(heads, rows, style), *remarks]


def _sampling(name: str, side: RunSide) -> str:
    """What the drawn work leaves open, apart from the model's error."""
    steps = f"{name}: undisturbed steps differ by {fmt.seconds(side.sampling.step_deviation_s)} (standard deviation)"
    if side.sampling.run_error_s is None:
        return f"{steps}; one run was simulated (--replications tells how much runs differ)"
    error = fmt.seconds(side.sampling.run_error_s)
    return f"{steps}; the mean run is certain to {error} (standard error over replications)"


def _row(label: str, values: Sequence[Interval], unit: float = 1.0) -> Row:
    scaled = [_per(value, unit) for value in values]
    decimals = max(0, 2 - math.floor(math.log10(max(max(value.mean for value in scaled), 1e-9))))
    return Row((label, *(cell(value, decimals) for value in scaled)))


def _course(run: Run, style: Style) -> list[str]:
    """How the steps evolve, part by part."""
    heads = ("steps", "step (s)", "exposed (s)", "acceptance", "response", "cut", "batch", "age", "tokens/s/GPU")
    rows: list[Row] = []
    for name, side in run.sides.items():
        if len(run.sides) > 1:
            rows += [RULE] if rows else []
            rows.append(Row((name, *[""] * (len(heads) - 1)), strong=True))
        decimals = fmt.decimals_for(max(part.step_s.mean for part in side.parts))
        rows += [
            Row(
                (
                    f"{part.first:,} to {part.last:,}",
                    cell(part.step_s, decimals),
                    fmt.fixed(part.exposed_generation_s, decimals),
                    f"{part.acceptance_length:.2f}",
                    f"{part.response_tokens:,.0f}",
                    fmt.percent(part.truncated_share),
                    fmt.number(part.mean_batch),
                    f"{part.staleness:.2f}",
                    fmt.number(part.tokens_per_s_per_gpu),
                )
            )
            for part in side.parts
        ]
    note = (
        "means; exposed: generation that the trainer waits for; response: tokens; cut: share of sequences at the cap; "
        "batch: sequences of a replica's decode iteration; age: of the consumed samples, in steps"
    )
    title = style.bold("How the steps evolve") + style.dim("  mean [90 % interval]")
    return [title, *table(heads, rows, style, "<>"), *style.wrapped(note, "  ")]


def _ledger(run: Run, style: Style) -> list[str]:
    """What the seconds of the run go to."""
    sides = list(run.sides.values())
    causes = [cause for cause in LABELS if any(cause in side.ledger for side in sides)]
    if causes == ["steps"]:
        return []
    unit_s, unit = unit_of(max(side.seconds.mean for side in sides))
    rows = []
    for cause in causes:
        cells: list[object] = []
        for side in sides:
            loss = side.ledger.get(cause)
            seconds = loss.seconds if loss is not None else Interval(0.0, 0.0, 0.0)
            count = f"{loss.events:,.0f}" if loss is not None and cause in COUNTED else ""
            cells += [
                cell(_per(seconds, unit_s), 2 if unit_s > 1 else 0),
                fmt.percent(seconds.mean / side.seconds.mean, 1),
                count,
            ]
        rows.append(Row((LABELS[cause], *cells)))  # type: ignore[arg-type]
    whole: list[object] = []
    for side in sides:
        whole += [fmt.fixed(side.seconds.mean / unit_s, 2 if unit_s > 1 else 0), "", ""]
    rows += [RULE, Row(("run", *whole), strong=True)]  # type: ignore[arg-type]
    names = list(run.sides) if len(sides) > 1 else [unit]
    heads = ("", *(head for name in names for head in (name, "share", "times")))
    title = style.bold("Where the time goes") + style.dim(f"  {unit}, mean [90 % interval of such runs]")
    return [title, *table(heads, rows, style)]
