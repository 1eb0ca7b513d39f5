"""What the page says of a run, a validation and a blame."""

from __future__ import annotations

from functools import partial

from rlsim.report import format as fmt
from rlsim.report.figures.bars import Bar, BarRow, waterfall_figure
from rlsim.report.figures.run import run_figure
from rlsim.report.figures.style import GREY, LINE_COLORS, VARIANT_COLORS
from rlsim.report.figures.validation import ratios, scatter
from rlsim.report.page.parts import (
    MOST_ROWS,
    Block,
    KeyFigure,
    Part,
    Sections,
    Text,
    assumed,
    counted,
    picture,
    ranged,
    speedup,
)
from rlsim.report.text import blame as blamed
from rlsim.report.text import run as told
from rlsim.report.text.validation import errors_of, largest_errors, notes, rows_table, scores_table
from rlsim.results import Interval
from rlsim.results.blame import Blame
from rlsim.results.run import Run
from rlsim.results.validation import Validation
from rlsim.units import JOULES_PER_KWH

POOLS = {"generation": LINE_COLORS[0], "training": LINE_COLORS[2]}


def run_part(run: Run) -> Part:
    """The run."""
    unit_s, unit = told.unit_of(run)
    side = run.candidate
    figures = [_rounded("The run takes", side.seconds.over(unit_s), unit)]
    if run.speedup is not None:
        figures.append(speedup("Speed-up", run.speedup))
    figures += [
        _rounded("Cost", side.cost_usd, "USD"),
        _rounded("Energy, at most", side.energy_at_most_j.over(1e3 * JOULES_PER_KWH), "MWh"),
        ("GPU seconds at work", fmt.percent(side.busy_share), ""),
    ]
    taken = {name: side.seconds.over(unit_s) for name, side in run.sides.items()}
    bars = [BarRow(name, fmt.number(value.mean), [Bar(value)]) for name, value in taken.items()]
    sections: Sections = {
        "run-totals": [picture("run-duration", bars, told.totals_table(run), unit=unit)],
        "run-course": [picture("run-steps", run_figure(run), told.course_table(run), course=told.COURSE_NOTE)],
        "run-time": [_ledger(run)],
        "run-assumptions": assumed(run.assumptions, run.warnings),
    }
    where = f"{run.num_gpus:,} {run.hardware}" if run.num_gpus and run.hardware else ""
    given = (run.model, where, f"seed {run.seed}", f"replications {run.replications}", f"digest {run.digest}")
    lines = [line for line in (run.question, ", ".join(filter(None, given))) if line]
    return Part("run", run.scenario, told.headline(run), figures, sections, lines)


def _rounded(name: str, value: Interval, unit: str) -> KeyFigure:
    return ranged(name, value, partial(fmt.fixed, decimals=fmt.decimals_for(value.mean, digits=2)), unit)


def _ledger(run: Run) -> Block:
    (unit_s, unit), sides = told.unit_of(run), run.sides
    bars = []
    for cause in told.causes_of(run):
        losses = {name: side.ledger.get(cause, told.NO_LOSS).seconds for name, side in sides.items()}
        shares = " → ".join(fmt.percent(losses[name].mean / side.seconds.mean, 1) for name, side in sides.items())
        own = [Bar.of(loss.mean / unit_s, VARIANT_COLORS[name], loss.over(unit_s)) for name, loss in losses.items()]
        bars.append(BarRow(told.LABELS[cause], shares, own))
    colors = {VARIANT_COLORS[name]: name for name in sides} if len(sides) > 1 else None
    return picture("run-ledger", bars, told.ledger_table(run), colors, unit=unit, capital=unit.capitalize())


def validation_part(found: Validation) -> Part:
    """The validation."""
    score, count = found.score, f"{len(found.scored):,} of {len(found.rows):,} measured values were predicted"
    figures: list[KeyFigure] = [("Rows predicted", f"{len(found.scored):,}", f"of {len(found.rows):,}")]
    words = f"{count}."
    if score.n:
        bias, median, p90 = errors_of(score)
        inside = fmt.percent(score.coverage or 0.0)
        figures = [
            ("Median error", median, "of the measured value"),
            ("90 % of errors within", p90, ""),
            ("Bias", bias, "median of predicted over measured"),
            ("Inside their interval", inside, "of 90 % intervals"),
            *figures,
        ]
        words = f"{count}, with a median error of {median}; {inside} lie in the interval."
    rows = rows_table("Rows, the largest errors first; rows.csv has all", largest_errors(found), whole=True)
    scores = scores_table("Scores of the groups", found.groups)
    sections: Sections = {
        "validation-rows": [picture("validation-scatter", scatter(found), rows)],
        "validation-groups": [picture("validation-errors", ratios(found), scores)],
        "validation-skipped": counted((row.skipped for row in found.rows if row.skipped), "row"),
    }
    return Part("validation", f"Validation: {found.kind}", words, figures, sections, [*found.remarks, *notes(found)])


def blame_part(blame: Blame) -> Part:
    """The blame."""
    step_s = fmt.seconds(blame.step_s)
    figures = [
        ("A step takes", step_s, ""),
        ("Without any idle cause", fmt.seconds(blame.left_s), ""),
        ("GPUs are idle", fmt.percent(1 - blame.work_share), "of all GPU time"),
    ]
    if blame.removals:
        largest = max(blame.removals, key=lambda one: one.saved_s)
        figures.append(("Largest gain alone", fmt.seconds(largest.saved_s), largest.cause))
    policies = blamed.policies_table(blame)
    sections: Sections = {
        "blame-idle": [_idle(blame)],
        "blame-removals": [picture("blame-waterfall", waterfall_figure(blame), blamed.removals_table(blame))],
        "blame-policies": [policies if policies.rows else Text("None was tried.")],
    }
    headline = f"A step takes {step_s}; {blamed.idle_words(blame)}"
    return Part("blame", blame.scenario, headline, figures, sections, [f"digest {blame.digest}"])


def _idle(blame: Blame) -> Block:
    if not blame.idle:
        return Text("No GPU is idle.")
    colors = {one.pool: POOLS.get(one.pool, GREY) for one in blame.idle}
    bars = [
        BarRow(f"{one.pool}: {one.cause}", fmt.percent(one.share, 1), [Bar.of(100 * one.share, colors[one.pool])])
        for one in blame.idle[:MOST_ROWS]
    ]
    key = {color: pool for pool, color in colors.items()}
    return picture("blame-idle-causes", bars, blamed.idle_table(blame), key)
