"""What the page says of every answer but a projection."""

import itertools
from collections.abc import Sequence
from functools import partial

from rlsim.report import format as fmt
from rlsim.report.figures.bars import Bar, BarRow, checked_figure, improvement_figure
from rlsim.report.figures.grids import draft_figure, plan_figure, run_figure, size_figure, sweep_figures
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
    listed,
    picture,
    ranged,
    speedup,
    table,
)
from rlsim.report.table import Table
from rlsim.report.text import attribution as wording
from rlsim.report.text import improvement as drafting
from rlsim.report.text import run as run_text
from rlsim.report.text.plan import candidates_table, objective_text, recommendation, sure_words
from rlsim.report.text.planning import split_of, splits_of
from rlsim.report.text.validation import errors_of, largest_errors, notes, rows_table, scores_table
from rlsim.results import Interval
from rlsim.results.check import Check, Improvement
from rlsim.results.planning import DeviceSize, DraftCurve, Sizing
from rlsim.results.record import Row
from rlsim.results.run import Run
from rlsim.results.sweep import Change, Plan, SweepResult, interval_in
from rlsim.results.validation import Validation
from rlsim.units import JOULES_PER_KWH


def run_part(run: Run) -> Part:
    """The run."""
    unit_s, unit = run_text.unit_of(run)
    side = run.candidate
    figures = [_rounded("The run takes", side.seconds.over(unit_s), unit)]
    if run.speedup is not None:
        figures.append(speedup("Speed-up", run.speedup))
    figures += [
        _rounded("Cost", side.cost_usd, "USD"),
        _rounded("Energy, at most", side.energy_at_most_j.over(JOULES_PER_KWH), "kWh"),
        ("GPU seconds at work", fmt.percent(side.busy_share), ""),
    ]
    taken = {name: side.seconds.over(unit_s) for name, side in run.sides.items()}
    bars = [BarRow(name, fmt.number(value.mean), [Bar(value)]) for name, value in taken.items()]
    note = run_text.course_note(run)
    sections: Sections = {
        "run-totals": [picture("run-duration", bars, run_text.totals_table(run), unit=unit)],
        "run-course": [picture("run-steps", run_figure(run), run_text.course_table(run), course=note)],
        "run-time": [_ledger(run)],
        "run-assumptions": assumed(run.assumptions, run.warnings),
    }
    where = f"{run.num_gpus:,} {run.hardware}" if run.num_gpus and run.hardware else ""
    given = (run.model, where, f"seed {run.seed}", f"replications {run.replications}", f"digest {run.digest}")
    about = [run.question, ", ".join(filter(None, given))]
    return Part("run", run.scenario, run_text.headline(run), figures, sections, about)


def _rounded(name: str, value: Interval, unit: str) -> KeyFigure:
    return ranged(name, value, partial(fmt.fixed, decimals=fmt.decimals_for(value.mean, digits=2)), unit)


def _ledger(run: Run) -> Block:
    (unit_s, unit), sides = run_text.unit_of(run), run.sides
    bars = []
    for cause in run_text.causes_of(run):
        losses = {name: side.ledger.get(cause, run_text.NO_LOSS).seconds for name, side in sides.items()}
        shares = " → ".join(fmt.percent(losses[name].mean / side.seconds.mean, 1) for name, side in sides.items())
        bars_of_cause = [
            Bar.of(loss.mean / unit_s, VARIANT_COLORS[name], loss.over(unit_s)) for name, loss in losses.items()
        ]
        bars.append(BarRow(run_text.LABELS[cause], shares, bars_of_cause))
    colors = {VARIANT_COLORS[name]: name for name in sides} if len(sides) > 1 else None
    return picture("run-ledger", bars, run_text.ledger_table(run), colors, unit=unit)


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
    rows = rows_table("Rows, the largest errors first; rows.csv has all", largest_errors(found), full_names=True)
    scores = scores_table("Scores of the groups", found.groups)
    sections: Sections = {
        "validation-rows": [picture("validation-scatter", scatter(found), rows)],
        "validation-groups": [picture("validation-errors", ratios(found), scores)],
        "validation-skipped": counted((row.skipped for row in found.rows if row.skipped), "row"),
    }
    return Part("validation", f"Validation: {found.kind}", words, figures, sections, [*found.remarks, *notes(found)])


SHORTER, LONGER = LINE_COLORS[2], LINE_COLORS[1]
SWEEP_COLUMNS = ("status", "limit", "step_s", "rollout_speedup", "end_to_end_speedup", "cost_per_step_usd")


def plan_part(plan: Plan) -> Part:
    """The plan."""
    best, measure = plan.best, plan.objective.replace("_", " ")
    figures = [
        ranged("A step takes", best.numbers.step, fmt.seconds),
        (f"{measure.capitalize()}, {sure_words(plan)}", objective_text(plan), ""),
        ("Cost per step", f"{fmt.number(best.numbers.cost_per_step_usd)} USD", ""),
    ]
    if best.beats_current is not None:
        figures.append(("Beats the scenario as it is", fmt.percent(best.beats_current), "of the draws"))
    counts = f"{plan.considered:,} considered, {plan.configurations:,} configurations, {plan.simulated:,} simulated"
    against = [BarRow(one.rival, f"wins {fmt.percent(one.wins)}", [Bar(one.ratio)]) for one in plan.against[:MOST_ROWS]]
    rivals = picture("plan-against", against) if against else Text("It has no rivals.")
    sections: Sections = {
        "plan-plans": _plans(plan),
        "plan-way": [*_way(plan.waterfall), *_constraints(plan)],
        "plan-rivals": [rivals],
        "plan-assumptions": assumed(plan.assumptions, ()),
    }
    where = f"{plan.model} on {best.numbers.num_gpus:,} {plan.hardware}" if plan.model else ""
    price = f"{plan.price_per_gpu_hour_usd:.2f} USD per GPU and hour" if plan.price_per_gpu_hour_usd else ""
    about = [", ".join(filter(None, (where, price))), f"Limited by {best.numbers.limit}.", f"Combinations: {counts}."]
    return Part("plan", plan.scenario, recommendation(plan), figures, sections, about)


def _way(changes: Sequence[Change]) -> list[Block]:
    if not changes:
        return []
    first, last = changes[0], changes[-1]
    bars = [BarRow(first.what, fmt.seconds(first.step_s), [Bar.of(first.step_s, GREY)])]
    for before, after in itertools.pairwise(changes):
        bar = Bar(areas=[(before.step_s, after.step_s, SHORTER if after.step_s <= before.step_s else LONGER)])
        bars.append(BarRow(after.what, f"{after.step_s - before.step_s:+.2f} s", [bar]))
    bars.append(BarRow("best plan", fmt.seconds(last.step_s), [Bar.of(last.step_s, LINE_COLORS[0])]))
    numbers = table("plan-waterfall", [(one.what, f"{one.step_s:.2f}") for one in changes])
    return [picture("plan-waterfall", bars, numbers)]


def _constraints(plan: Plan) -> list[Block]:
    rows = [
        (
            *(one.constraint, one.unit, fmt.number(one.limit), fmt.number(one.value)),
            "-" if one.probability is None else fmt.percent(one.probability),
        )
        for one in plan.constraints
    ]
    return [table("plan-constraints", rows)] if rows else []


def _plans(plan: Plan) -> list[Block]:
    front = picture("plan-pareto", plan_figure(plan))
    bars = [BarRow(row.name, fmt.seconds(row.step_s), [Bar(row.numbers.step)]) for row in plan.finalists[:MOST_ROWS]]
    return [candidates_table(plan), front, *([picture("plan-finalists", bars)] if bars else [])]


def sweep_part(sweep: SweepResult) -> Part:
    """The sweep."""
    # Fastest first: the pictures show the head of this list.
    done = sorted(sweep.done, key=lambda row: float(row["step_s"]))
    axes = [name for keys in sweep.axes for name in keys.split(",")]
    best, count = done[0], len(sweep.rows)
    figures = [ranged("Shortest step", interval_in(best, "step_s"), fmt.seconds)]
    if "end_to_end_speedup" in best:
        figures.append(speedup("Its speed-up by speculation", interval_in(best, "end_to_end_speedup")))
    figures.append(("Cells", f"{count:,}", f"{count - len(done):,} cannot run"))
    pictures = [picture(f"sweep-{name}", figure) for name, figure in sweep_figures(sweep).items()]
    reasons = [str(row.get("reason", "")) for row in sweep.rows if row.get("status") != "ok"]
    sections: Sections = {
        "sweep-cells": [*_keys(sweep, done), *pictures, _cells(sweep, done, axes)],
        "sweep-reasons": counted(reasons, "cell"),
    }
    where = ", ".join(f"{axis} = {best[axis]}" for axis in axes)
    headline = f"Of {count:,} cells the shortest step takes {fmt.seconds(best['step_s'])}, at {where}."
    title = f"Sweep over {' and '.join(axis.rpartition('.')[2] for axis in axes)}"
    return Part("sweep", title, headline, figures, sections)


def _keys(sweep: SweepResult, done: Sequence[Row]) -> list[Block]:
    """A picture for each of several keys: the shortest step at each of its values, over all others."""
    found: list[Block] = []
    for number, key in enumerate(sweep.columns if len(sweep.columns) > 1 else ()):
        fastest = {str(row[key]): row for row in reversed(done)}  # the fastest is the first of all
        shown = [(value, fastest[value]) for value in sweep.columns[key] if value in fastest][:MOST_ROWS]
        bars = [
            BarRow(f"{key.rpartition('.')[2]} {value}", fmt.seconds(row["step_s"]), [Bar(interval_in(row, "step_s"))])
            for value, row in shown
        ]
        found.append(picture(f"sweep-key-{number}", bars, axis=key))
    return found


def _cells(sweep: SweepResult, done: Sequence[Row], axes: Sequence[str]) -> Block:
    bars, split = [], splits_of(sweep)
    for row in done[:MOST_ROWS]:
        step = interval_in(row, "step_s")
        label = ", ".join(f"{axis.rpartition('.')[2]} {row[axis]}" for axis in axes)
        label += "".join(f" ({split_of(row)} GPUs)" for _ in split)
        bars.append(BarRow(label, fmt.seconds(step.mean), [Bar(step)]))
    shown = [*axes, *split, *(name for name in SWEEP_COLUMNS if any(name in row for row in sweep.rows))]
    rows = [{**row, **{name: split_of(row) for name in split if row["status"] == "ok"}} for row in sweep.rows]
    cells = [
        [fmt.number(value) if isinstance(value := row.get(name, ""), float) else str(value) for name in shown]
        for row in rows
    ]
    sides = "<" * (len(axes) + len(split) + 2) + ">"
    numbers = Table("Every cell; results.csv has all columns.", "", shown, cells, sides)
    which = "cells" if len(done) <= MOST_ROWS else f"{MOST_ROWS} fastest cells"
    return picture("sweep-steps", bars, numbers, shown=which)


def check_part(found: Check) -> Part:
    """The check of a run."""
    step = found.step
    figures = [] if step.measured_s is None else [("Your step", fmt.seconds(step.measured_s), "")]
    figures += [
        ranged("Expected", step.expected_s, fmt.seconds),
        ("Healthy", fmt.percent(found.healthy), "probability"),
        ("A cause on no list", fmt.percent(found.unlisted), "probability"),
    ]
    rows = [
        (one.title, fmt.percent(one.probability), f"{one.gain_s:.1f}", ", ".join(one.changes), wording.cure_words(one))
        for group in found.groups
        for one in group.members
    ]
    sections: Sections = {
        "check-times": [picture("check-phases", checked_figure(found), wording.phases_table(found))],
        "check-faults": [table("check-causes", rows)] if rows else [Text("No known fault explains it.")],
        "check-tests": listed(map(wording.test_words, found.tests)),
        "check-stated": listed(map(wording.stated_words, found.stated)),
        "check-remarks": listed(found.remarks),
    }
    about = [f"{found.model} on {found.num_gpus:,} {found.hardware}, {found.mode}", found.source]
    about.append(f"{found.tried} known faults simulated on this scenario.")
    headline = wording.verdict_words(found)
    return Part("check", found.scenario, headline, figures, sections, about)


def improvement_part(found: Improvement) -> Part:
    """What would shorten a step, of the parts that were asked for."""
    moves, idle, ladder, inputs = found.moves, found.idle, found.headroom, found.inputs
    drawn = improvement_figure(found)
    words, sections = list[str](), dict[str, Sequence[Block]]()
    if moves is not None:
        words.append(wording.best_technique(moves))
        asked = [(one.name, one.asks, " ".join(one.changes)) for one in wording.faster(moves)]
        sections["improvement-moves"] = [
            wording.techniques_table(moves), table("improvement-asked", asked),
            *listed(wording.left_out_words(moves)),
        ]  # fmt: skip
    if idle is not None:
        words.append(wording.idle_words(idle))
        shown = (wording.idle_table(idle), wording.removals_table(idle), wording.policies_table(idle))
        sections["improvement-idle"] = shown
    if ladder is not None:
        words.append(wording.headroom_words(ladder))
        sections["improvement-ideal"] = [
            wording.ladder_table(ladder),
            *listed(map(wording.rung_words, ladder.rungs[1:])),
        ]
    if inputs is not None:
        rows = [(one.source, fmt.percent(one.share), f"{one.saved_s:.2f}") for one in inputs.sources]
        sections["improvement-inputs"] = [table("improvement-inputs", rows)]
    first = next(iter(sections), "")
    if drawn is not None:
        sections[first] = [picture("improvement-steps", drawn), *sections[first]]
    headline, *about = words or ["What is worth measuring."]
    return Part("improvement", found.scenario, headline, [], sections, about)


def size_part(found: Sizing) -> Part:
    """Clusters for a model."""
    figures: list[KeyFigure] = []
    best = next((one for one in found.devices if one.device == found.best), None)
    chosen = None if best is None else best.at(best.chosen)
    if best is not None and chosen is not None:
        figures = [
            ("Take", f"{chosen.gpus:,} {best.device}", chosen.layout),
            ranged("A step takes", chosen.step_s, fmt.seconds),
            (
                "It costs",
                f"{fmt.fixed(chosen.usd_per_step, 2)} USD",
                f"at {best.usd_per_gpu_hour:.2f} per GPU and hour",
            ),
        ]
    able = any(one.sizes for one in found.devices)
    sections: Sections = {
        "size-steps": [picture("size-curve", size_figure(found))] if able else [],
        "size-clusters": [block for one in found.devices for block in _device(one)],
        "size-assumptions": assumed(run_text.assumed_words(found), ()),
    }
    return Part("size", found.model, run_text.recommendation(found), figures, sections, [run_text.task_words(found)])


def draft_part(found: DraftCurve) -> Part:
    """Draft lengths by what they gain."""
    best = found.chosen
    figures = (
        [speedup("Rollout", best.rollout_speedup), speedup("Step", best.step_speedup)] if best.draft_length else []
    )
    sections: Sections = {
        "k-gains": [picture("k-curve", draft_figure(found))],
        "k-lengths": [drafting.draft_table(found), *map(Text, drafting.draft_notes(found))],
    }
    return Part("k", found.scenario, drafting.draft_headline(found), figures, sections, drafting.assumed_drafter(found))


def _device(one: DeviceSize) -> list[Block]:
    clusters: list[Block] = [run_text.clusters_table(one)] if one.sizes else []
    notes = [one.reason if one.sizes else f"{one.device}: {one.reason}", run_text.share_words(one)]
    return [*clusters, *(Text(words) for words in notes if words)]
