"""What the page says of a run, a validation and a blame."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

from rlsim.report import format as fmt
from rlsim.report.figures.bars import Bar, BarRow, bars_figure, intervals_figure
from rlsim.report.figures.run import run_figure
from rlsim.report.figures.style import GREY, LINE_COLORS, VARIANT_COLORS
from rlsim.report.figures.validation import ratios, scatter
from rlsim.report.figures.waterfall import waterfall_figure
from rlsim.report.folder import file_in, read_run, read_validation
from rlsim.report.page.parts import (
    Block,
    Entries,
    KeyFigure,
    Part,
    Section,
    Table,
    Text,
    assumptions_section,
    picture,
    speedup,
    table,
)
from rlsim.report.text.run import LABELS, headline, unit_of
from rlsim.report.text.validation import notes as comparisons
from rlsim.results import Interval
from rlsim.results.blame import Blame
from rlsim.results.run import Run
from rlsim.results.validation import Validation
from rlsim.units import JOULES_PER_KWH

MOST_ROWS = 24
"""Rows of a picture; the table below it has more."""
POOLS = {"generation": LINE_COLORS[0], "training": LINE_COLORS[2]}
COURSE = {
    "step_s": "step (s)",
    "exposed_generation_s": "exposed generation (s)",
    "response_tokens": "response (tokens)",
    "acceptance_length": "acceptance length",
    "staleness": "Age of the samples (steps)",
}


def run_part(folder: Path, notes: list[str]) -> Part:
    """The run in ``folder``; ``notes`` takes what had to be left out."""
    run = read_run(folder, notes)
    scale, unit = unit_of(max(side.seconds.mean for side in run.sides.values()))
    side = run.candidate
    figures = [_ranged("The run takes", side.seconds.times(1 / scale), unit)]
    if run.speedup is not None:
        figures.append(speedup("Speed-up", run.speedup))
    figures += [
        _ranged("Cost", side.cost_usd, "USD"),
        _ranged("Energy, at most", side.energy_at_most_j.times(1e-3 / JOULES_PER_KWH), "MWh"),
        ("GPU seconds at work", fmt.percent(side.busy_share), ""),
    ]
    sections = [
        Section("run-totals", "The run", [_totals(run, scale, unit)]),
        Section("run-course", "How the steps evolve", [_course(run)]),
        Section("run-time", "Where the time goes", [_ledger(run, scale, unit)]),
        *assumptions_section("run", run.assumptions, run.warnings),
    ]
    where = f"{run.num_gpus:,} {run.hardware}" if run.num_gpus and run.hardware else ""
    given = (run.model, where, f"seed {run.seed}", f"replications {run.replications}", f"digest {run.digest}")
    lines = [line for line in (run.question, ", ".join(filter(None, given))) if line]
    return Part("run", run.scenario, headline(run), figures, sections, lines)


def _ranged(name: str, value: Interval, unit: str) -> KeyFigure:
    places = max(0, fmt.decimals_for(value.mean) - 1)
    mean, low, high = (fmt.fixed(each, places) for each in (value.mean, value.low, value.high))
    return name, f"{mean} {unit}", f"{low} to {high} {unit}"


def _totals(run: Run, scale: float, unit: str) -> Block:
    sides = run.sides
    values = {name: side.seconds.times(1 / scale) for name, side in sides.items()}
    rows = [(name, fmt.number(value.mean), value) for name, value in values.items()]
    counts = {
        "samples": "samples trained on",
        "generated_tokens": "tokens generated",
        "trained_tokens": "tokens trained on",
    }
    cells: list[list[str | Interval]] = [[f"time ({unit})", *values.values()]]
    cells.append(["cost (USD)", *(side.cost_usd for side in sides.values())])
    cells += [[label, *(fmt.number(getattr(side, key)) for side in sides.values())] for key, label in counts.items()]
    words = "Duration of the run", "Mean and 90 % interval: the model's error, and what chance brings."
    return picture(
        "run-duration", words, lambda: intervals_figure(rows, unit), table(("", *sides), cells, "Totals of the run.")
    )


def _course(run: Run) -> Block:
    cells: list[list[str | Interval]] = [
        [
            f"{name}, steps {part.first:,} to {part.last:,}",
            part.step_s,
            *(fmt.number(getattr(part, key)) for key in list(COURSE)[1:]),
        ]
        for name, side in run.sides.items()
        for part in side.parts
    ]
    numbers = table(("", *COURSE.values()), cells, "Means over parts of the run; steps.csv has every step.")
    words = "Every step of the run", "Dots: steps; lines: means over neighbouring steps."
    return picture("run-steps", words, lambda: run_figure(run), numbers)


def _ledger(run: Run, scale: float, unit: str) -> Block:
    sides, nothing = run.sides, Interval(0.0, 0.0, 0.0)
    rows: list[BarRow] = []
    cells: list[list[str | Interval]] = []
    for cause in (cause for cause in LABELS if any(cause in side.ledger for side in sides.values())):
        losses = {name: side.ledger.get(cause) for name, side in sides.items()}
        taken = {name: (loss.seconds if loss else nothing).times(1 / scale) for name, loss in losses.items()}
        shares = " → ".join(
            fmt.percent(taken[name].mean * scale / side.seconds.mean, 1) for name, side in sides.items()
        )
        bars = [Bar([(0.0, value.mean, VARIANT_COLORS[name])], value) for name, value in taken.items()]
        rows.append(BarRow(LABELS[cause], shares, bars))
        cells.append(
            [LABELS[cause], *taken.values(), *(fmt.number(loss.events if loss else 0.0) for loss in losses.values())]
        )
    heads = ("cause", *sides, *(f"{name}, times" for name in sides))
    words = (
        "What the seconds of the run go to",
        f"{unit.capitalize()}, mean and 90 % interval of such runs; per cent of the run.",
    )
    key = {VARIANT_COLORS[name]: name for name in sides} if len(sides) > 1 else None
    return picture("run-ledger", words, lambda: bars_figure(rows, unit, key), table(heads, cells, f"In {unit}."))


def validation_part(folder: Path, notes: list[str]) -> Part:
    """The validation in ``folder``."""
    found = read_validation(folder)
    score, count = found.score, f"{len(found.scored):,} of {len(found.rows):,} measured values were predicted"
    figures: list[KeyFigure] = [("Rows predicted", f"{len(found.scored):,}", f"of {len(found.rows):,}")]
    words = f"{count}."
    if score.n:
        median, bias = fmt.percent(score.median_abs_error or 0.0, 1), fmt.signed_percent(score.bias or 0.0, 1)
        inside = fmt.percent(score.coverage or 0.0)
        figures = [
            ("Median error", median, "of the measured value"),
            ("90 % of errors within", fmt.percent(score.p90_abs_error or 0.0, 1), ""),
            ("Bias", bias, "median of predicted over measured"),
            ("Inside their interval", inside, "of 90 % intervals"),
            *figures,
        ]
        words = f"{count}, with a median error of {median}; {inside} lie in the interval."
    scattered = "Predicted beside measured", "On the diagonal both agree; both axes are logarithmic."
    groups = [
        (
            *(name, f"{one.n:,}", *(fmt.percent(it or 0.0, 1) for it in (one.median_abs_error, one.p90_abs_error))),
            *(fmt.signed_percent(one.bias or 0.0, 1), fmt.percent(one.coverage or 0.0)),
        )
        for name, one in found.groups.items()
    ]
    heads = ("group", "rows", "median error", "90 % within", "bias", "in the interval")
    by_group = "Predicted over measured by group", "A point for each row; bars: medians of the groups."
    reasons = Counter(row.skipped for row in found.rows if row.skipped).most_common()
    entries = [f"{n:,} {'row' if n == 1 else 'rows'}: {reason}" for reason, n in reasons]
    sections = [
        Section(
            "validation-rows",
            "Predicted beside measured",
            [picture("validation-scatter", scattered, partial(scatter, found), _rows(found))],
        ),
        Section(
            "validation-groups",
            "Errors by group",
            [
                picture(
                    "validation-errors", by_group, partial(ratios, found), table(heads, groups, "Scores of the groups.")
                )
            ],
        ),
        *([Section("validation-skipped", "Rows left out", [Entries(entries)])] if entries else []),
    ]
    return Part(
        "validation", f"Validation: {found.kind}", words, figures, sections, [*found.remarks, *comparisons(found)]
    )


def _rows(found: Validation) -> Table:
    worst = sorted(found.scored, key=lambda row: -abs(row.error or 0.0))
    cells = [
        (
            *(row.id, row.group, f"{row.measured or 0.0:.4g}", f"{row.predicted or 0.0:.4g}"),
            f"{row.low or 0.0:.4g} to {row.high or 0.0:.4g} {row.unit}",
            fmt.signed_percent(row.error or 0.0, 1),
        )
        for row in worst
    ]
    heads = ("row", "group", "measured", "predicted", "90 % interval", "error")
    return table(heads, cells, "Rows, the largest errors first; rows.csv has all.", 2)


def blame_part(folder: Path, notes: list[str]) -> Part:
    """The blame in ``folder``."""
    blame = Blame.read(file_in(folder, "blame.json"))
    step_s, idle = fmt.seconds(blame.step_s), fmt.percent(1 - blame.work_share)
    figures = [
        ("A step takes", step_s, ""),
        ("Without any idle cause", fmt.seconds(blame.left_s), ""),
        ("GPUs are idle", idle, "of all GPU time"),
    ]
    if blame.removals:
        largest = max(blame.removals, key=lambda one: one.saved_s)
        figures.append(("Largest gain alone", fmt.seconds(largest.saved_s), largest.cause))
    removed = [
        (one.cause, one.how, f"{one.step_s:.2f}", f"{one.saved_s:+.2f}", f"{one.chain_s:+.2f}")
        for one in blame.removals
    ]
    heads = ("cause", "how", "step (s)", "saves alone (s)", "saves in turn (s)")
    words = (
        "From the step as it is to one of work alone",
        "Seconds per step; each cause is taken away after those above it, on the same drawn work.",
    )
    waterfall = picture(
        "blame-waterfall", words, lambda: waterfall_figure(blame), table(heads, removed, "Removals.", 2)
    )
    tried = [
        (one.name, one.reason, "-", "-") if one.step_s is None
        else (one.name, one.how, f"{one.step_s:.2f}", f"{blame.step_s - one.step_s:+.2f}")
        for one in blame.what_ifs
    ]  # fmt: skip
    policies = table(("policy", "how", "step (s)", "saves (s)"), tried, "Tried on the same drawn work.", 2)
    sections = [
        Section("blame-idle", "Idle GPU time", [_idle(blame)]),
        Section("blame-removals", "Without its causes", [waterfall]),
        Section(
            "blame-policies", "Policies against the tail", [policies if tried else Text("None was tried.", dim=True)]
        ),
    ]
    headline = f"A step takes {step_s}; its {blame.num_gpus:,} GPUs are idle {idle} of it."
    return Part("blame", blame.scenario, headline, figures, sections, [f"digest {blame.digest}"])


def _idle(blame: Blame) -> Block:
    if not blame.idle:
        return Text("No GPU is idle.", dim=True)
    rows = [
        BarRow(
            f"{one.pool}: {one.cause}",
            fmt.percent(one.share, 1),
            [Bar([(0.0, 100 * one.share, POOLS.get(one.pool, GREY))])],
        )
        for one in blame.idle[:MOST_ROWS]
    ]
    cells = [(one.pool, one.cause, f"{one.gpu_s:,.0f}", fmt.percent(one.share, 1)) for one in blame.idle]
    numbers = table(("pool", "waits for", "GPU-seconds", "share"), cells, "Idle GPU-seconds per step.", 2)
    key = {POOLS.get(one.pool, GREY): one.pool for one in blame.idle}
    words = "What GPUs wait for", "Share of all GPU time of a step."
    return picture("blame-idle-causes", words, lambda: bars_figure(rows, "%", key), numbers)
