"""Any table of measured figures beside its predictions, with the intervals that a projection would have; and a user's
measured times on top of a posterior: what was expected of them, what they change."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rlsim.errors import InputError, shortened
from rlsim.evidence import Kind
from rlsim.evidence.acceptance import CURVES, SPECULATION
from rlsim.evidence.iterations import ITERATIONS
from rlsim.evidence.memory.rows import MEMORY
from rlsim.evidence.phases import PHASE_ROWS, agent_runs, run_rows
from rlsim.evidence.rollouts import ROLLOUTS
from rlsim.evidence.rollouts import UNIT as RATE
from rlsim.evidence.rows import FURTHER_SPREAD, Comparison, compare
from rlsim.evidence.steps import STEPS
from rlsim.evidence.structure import ERRORS, Reasons, compared_times, own_step_times, structures
from rlsim.evidence.tables import Table, kind_of, unit_slip
from rlsim.evidence.training import TRAINING
from rlsim.evidence.transfers import TRANSFERS
from rlsim.evidence.wild import WILD_ROWS
from rlsim.files.reading import shown_path
from rlsim.parameters.posterior import DEFAULT, Posterior, load_posterior
from rlsim.parameters.sets import Fitted, shipped
from rlsim.parameters.terms import current, moved
from rlsim.projection.uncertainty.evidence import MEASURED_S, Evidence
from rlsim.projection.uncertainty.evidence import Kind as TimeKind
from rlsim.projection.uncertainty.learning import updated
from rlsim.projection.uncertainty.predictive import around, between, error_draws, log_draws
from rlsim.results import Interval
from rlsim.results.record import widened
from rlsim.results.validation import Validation
from rlsim.schema.base import changed
from rlsim.units import FloatArray

Progress = Callable[[int, int], object]
COMPARISONS: Mapping[Kind, Comparison] = {
    Kind.STEPS: STEPS,
    Kind.ITERATIONS: ITERATIONS,
    Kind.TRAINING: TRAINING,
    Kind.TRANSFERS: TRANSFERS,
    Kind.PHASES: PHASE_ROWS,
    Kind.CURVES: CURVES,
    Kind.ROLLOUTS: ROLLOUTS,
    Kind.WILD: WILD_ROWS,
    Kind.SPECULATION: SPECULATION,
    Kind.MEMORY: MEMORY,
}


def validate_table(
    path: Path,
    kind: str | None = None,
    progress: Progress | None = None,
    seed: int = 0,
    replications: int | None = None,
) -> Validation:
    """Every row of the table at ``path`` beside its prediction; only the part of a step that it measured is simulated.

    kind: of the table (:class:`Kind`); by default by its columns. progress: called with (done, all) rows. seed: of
    every draw. replications: of every simulated step. Raises InputError where the file is no such table.
    """
    if kind is not None and kind not in list(Kind):
        raise InputError(f"kind must be one of {', '.join(Kind)}; got {shortened(repr(kind), 40)}")
    chosen = kind_of(path) if kind is None else Kind(kind)
    table = replace(Table.read(path, chosen), seed=seed, replications=replications, progress=progress)
    found = with_posterior_intervals(validated(chosen, table), chosen, table)
    ratios = [row.measured / row.predicted for row in found.rows if row.measured and row.predicted]
    slip = unit_slip(chosen, table, ratios)
    return found.model_copy(update={"remarks": (*found.remarks, slip)}) if slip else found


def validated(kind: Kind, table: Table, fitted: Fitted | None = None) -> Validation:
    """Every measured row of a table of ``kind`` beside its prediction under ``fitted`` (default: as rlsim prices)."""
    of = COMPARISONS[kind]
    rows = compare(table, of, of.predictor(table, fitted or current()))
    if kind is Kind.PHASES:
        # Single steps of agents are one draw of their trajectories each, so that runs are compared by their median.
        rows += [row for run in agent_runs(table.rows, table.seed) for row in run_rows(run)]
    fields = of.extra_fields(table, rows) if of.extra_fields else {}
    return Validation.of(kind, rows, table=table.name, digest=table.digest, **fields)


def with_posterior_intervals(found: Validation, kind: Kind, table: Table) -> Validation:
    """``found`` with intervals drawn from the posterior as those of a projection; kinds without a simulated step."""
    fitted = current()
    if kind not in ERRORS or fitted.posterior is None:
        return found
    rows = list(found.rows)
    for place, evidence in structures(kind, rows, table, fitted):
        row = rows[place]
        logs = log_draws(fitted.posterior, evidence.slopes, evidence.groups)
        times = np.exp(logs + error_draws(fitted.posterior, ERRORS[kind], row.id))
        # Draws are factors on a time; a rate falls as its time rises.
        low, high = between(1 / times if row.unit == RATE else times)
        predicted = row.predicted or 0.0
        # Draws of skewed groups may lie to one side of the prediction, which its interval must hold.
        drawn = Interval(predicted, predicted * min(1.0, low), predicted * max(1.0, high))
        held = widened(drawn, float(row.details.get(FURTHER_SPREAD) or 0.0))
        rows[place] = changed(row, low=held.low, high=held.high)
    fields = {name: getattr(found, name) for name in ("table", "digest", "remarks", "speculation_pairs", "ttft")}
    return Validation.of(found.kind, rows, **fields)


SURPRISING = 0.02
"""Two-sided probability below which a measured time contradicts what was expected of it."""


@dataclass(frozen=True)
class OwnTime:
    """A measured time of the user. expected, now: predicted seconds with their 90 % interval, before and after the
    user's rows.

    tail: two-sided probability of a time at least as far from what was expected.
    """

    id: str
    kind: TimeKind
    measured_s: float
    expected: Interval
    now: Interval
    tail: float

    @property
    def remark(self) -> str:
        """A warning where the time contradicts other rows or measurements; empty without any."""
        if not self.now.low <= self.measured_s <= self.now.high:
            return "contradicts the other rows: check what it ran"
        return "contradicts the measurements of others" if self.tail < SURPRISING else ""


@dataclass(frozen=True)
class Learned:
    """The user's table taken in: the posterior with it, each time beside its predictions, and reasons."""

    table: str
    posterior: Posterior
    times: tuple[OwnTime, ...]
    skipped: Reasons


def learn(path: Path, name: str | None = None, progress: Callable[[int, int], object] | None = None) -> Learned:
    """Take the measured times of ``path``, a table of any kind of time, as evidence on top of the shipped posterior.

    Raises InputError where the file is no such table or none of its rows can be used.
    """
    before, kind = load_posterior(DEFAULT), kind_of(path)
    assert before is not None
    if kind is Kind.CURVES:
        raise InputError(f"{shown_path(path)}: curves are no measured times; see rlsim validate --help for tables")
    table = replace(Table.read(path), progress=progress)
    stepwise = kind in (Kind.STEPS, Kind.PHASES)
    rows, skipped = own_step_times(table, before) if stepwise else _other_times(kind, table, before)
    if not rows:
        first = next((f": {shortened(name)}: {reason}" for name, reason in skipped.items()), "")
        raise InputError(f"{shown_path(path)}: none of its rows can be used{shortened(first, 300)}")
    about = {"own_rows": len(rows), "own_table": path.name, "own_digest": table.digest}
    after, again = updated(before, rows, name or path.stem, about), rows
    if stepwise:
        # Deviations may be large, and what they do to a step is not linear: once more around where they now are.
        again = own_step_times(table, before, after)[0]
        after = updated(before, again, name or path.stem, about)
    times = tuple(_time(*pair, before, after) for pair in zip(rows, again, strict=True))
    if slip := unit_slip(kind, table, [time.measured_s / time.expected.mean for time in times]):
        raise InputError(f"{shown_path(path)}: {slip} Nothing was learnt")
    return Learned(path.name, after, times, skipped)


def _other_times(kind: Kind, table: Table, before: Posterior) -> tuple[list[Evidence], Reasons]:
    """Rows without a simulated step as evidence; slopes are taken where the posterior has its mean."""
    sets = moved(shipped(), before.shifts)
    return compared_times(kind, validated(kind, table, sets).rows, table, sets)


def _time(row: Evidence, again: Evidence, before: Posterior, after: Posterior) -> OwnTime:
    """row, again: the same measured time, linearised around ``before`` and near ``after``."""
    measured_s = float(row.about[MEASURED_S])
    # Evidence stores the measured time and its log ratio to the prediction, not the prediction itself.
    expected = measured_s * float(np.exp(_middle(row, before, before) - row.surprise))
    now = measured_s * float(np.exp(_middle(again, after, before) - again.surprise))
    draws, drawn_now = np.exp(_deviations(row, before)), np.exp(_deviations(again, after))
    below = float(np.mean(expected * draws < measured_s))
    tail = 2 * min(below, 1 - below)
    return OwnTime(row.id, row.kind, measured_s, around(expected, draws), around(now, drawn_now), tail)


def _middle(row: Evidence, posterior: Posterior, around_it: Posterior) -> float:
    """ln(time / predicted) under ``posterior``, where the prediction is around the moved terms of ``around_it``."""
    changes = {name: posterior.mean_of(name) - around_it.mean_of(name) for name in row.slopes}
    moved_by = sum(slope * changes[name] for name, slope in row.slopes.items())
    return moved_by + sum(share * posterior.mean_of(group) for group, share in row.groups.items())


def _deviations(row: Evidence, posterior: Posterior) -> FloatArray:
    """Draws of the logarithm of the time around its middle, its own error included."""
    return log_draws(posterior, row.slopes, row.groups) + error_draws(posterior, row.kind, row.id)
