"""A user's own measured times as evidence on top of the posterior: what was expected of them, what they change.

Nothing else is fitted again: one row moves what it tells of (its stack, its device, its layout) as far as the spread of
such groups allows, five move it further, and what they contradict is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlsim.costs.operators.groups import phase_groups
from rlsim.errors import InputError, RlsimError, shortened
from rlsim.files.reading import shown_path
from rlsim.parameters.posterior import DEFAULT, Posterior, load_posterior
from rlsim.parameters.sets import Fitted, shipped
from rlsim.parameters.terms import moved
from rlsim.projection.uncertainty.evidence import MEASURED_S, Evidence
from rlsim.projection.uncertainty.evidence import Kind as TimeKind
from rlsim.projection.uncertainty.predictive import around, error_draws, log_draws
from rlsim.projection.variant import simulate_variant
from rlsim.report.format import percent
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import table
from rlsim.results import Interval
from rlsim.units import FloatArray
from rlsim.validation.evidence import (
    REPLICATIONS,
    in_order,
    measured_times,
    simulated_evidence,
    with_sets,
)
from rlsim.validation.halves import TableRecords
from rlsim.validation.iterations import validate_iterations
from rlsim.validation.kind import Kind
from rlsim.validation.kinds import kind_of
from rlsim.validation.measured import MeasuredTable, Names
from rlsim.validation.phase_rows import known_phases, phase_scenario
from rlsim.validation.rows import NEEDED, SkippedRow, number, scenario_of
from rlsim.validation.structure import iteration_structures, training_structures, transfer_structures
from rlsim.validation.table import TableRow, read_columns, read_table
from rlsim.validation.training_rows import validate_training
from rlsim.validation.transfer_rows import validate_transfers
from rlsim.validation.update import updated
from rlsim.validation.validate import table_digest

SURPRISING = 0.02
"""Two-sided probability below which a measured time contradicts what was expected of it."""
MOST_SAMPLES = 65_536
"""Samples of one simulated step, more than any published one by a factor of ten."""


@dataclass(frozen=True)
class OwnTime:
    """One own measured time. expected, now: prediction with its 90 % interval before and after all own rows, seconds.

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
        """What a reader must know of it."""
        if not self.now.low <= self.measured_s <= self.now.high:
            return "contradicts the other rows: check what it ran"
        return "contradicts the measurements of others" if self.tail < SURPRISING else ""


@dataclass(frozen=True)
class Learned:
    """What a table of own rows says: the posterior with it, each time beside its predictions, and what was left out."""

    table: str
    posterior: Posterior
    times: tuple[OwnTime, ...]
    skipped: Mapping[str, str]

    def text(self, style: Style = DEFAULT_STYLE) -> str:
        """For a terminal."""
        rows = [
            (
                shortened(time.id, 40),
                time.kind,
                f"{time.measured_s:.4g}",
                *(f"{it.mean:.4g} [{it.low:.4g}, {it.high:.4g}]" for it in (time.expected, time.now)),
                time.remark,
            )
            for time in self.times
        ]
        errors = [
            [abs(getattr(time, side).mean / time.measured_s - 1) for time in self.times] for side in ("expected", "now")
        ]
        title = (
            f"{self.table}: {len(self.times)} measured times; median error {percent(float(np.median(errors[0])), 1)} "
            f"before them, {percent(float(np.median(errors[1])), 1)} with them"
        )
        heads = ("row", "time", "measured (s)", "expected [90 %]", "with all rows [90 %]", "")
        shown = len(heads) if any(row[-1] for row in rows) else len(heads) - 1
        lines = [
            *style.wrapped(title),
            "",
            *table(heads[:shown], [row[:shown] for row in rows], style, "<<>>><"[:shown]),
        ]
        if self.skipped:
            reasons = [(shortened(name), shortened(reason, 200)) for name, reason in self.skipped.items()]
            lines += ["", f"{len(self.skipped)} rows not used:", *table(("", ""), reasons, style, "<<")]
        return "\n".join(lines)


def learn(path: Path, name: str | None = None, tell: Callable[[str], object] = lambda line: None) -> Learned:
    """Take the measured times of ``path``, a table of any kind of time, as evidence on top of the shipped posterior.

    Raises InputError where the file is no such table or none of its rows can be used.
    """
    before = load_posterior(DEFAULT)
    assert before is not None
    rows, skipped = own_evidence(path, moved(shipped(), before.shifts), tell)
    if not rows:
        first = next((f": {shortened(name)}: {reason}" for name, reason in skipped.items()), "")
        raise InputError(f"{shown_path(path)}: none of its rows can be used{shortened(first, 300)}")
    records = read_table(path, ())
    about = {"own_rows": len(rows), "own_table": path.name, "own_digest": table_digest(records)}
    after = updated(before, rows, name or path.stem, about)
    times = tuple(_time(row, before, after) for row in rows)
    return Learned(path.name, after, times, skipped)


def own_evidence(
    path: Path, sets: Fitted, tell: Callable[[str], object] = lambda line: None
) -> tuple[list[Evidence], Mapping[str, str]]:
    """Rows of ``path`` around ``sets``, and by id why others are left out."""
    kind = kind_of(read_columns(path), shown_path(path))
    records = read_table(path, ())
    if kind in (Kind.STEPS, Kind.PHASES):
        return _steps(records, kind, sets, tell)
    if kind is Kind.CURVES:
        raise InputError(f"{shown_path(path)}: curves are no measured times; see rlsim validate --help for tables")
    given = TableRecords(path.name, "", records)
    found: MeasuredTable
    if kind is Kind.ITERATIONS:
        found = validate_iterations(given, sets.engines)
        rows = in_order("iteration", found.rows, iteration_structures(found.rows, records, sets))
    elif kind is Kind.TRAINING:
        found = validate_training(given, sets)
        rows = in_order("training", found.rows, training_structures(found.rows, records, sets))
    else:
        found = validate_transfers(given, sets.transfers)
        rows = in_order("transfer", found.rows, transfer_structures(found.rows, records, sets))
    return rows, {row.id: row.skipped for row in found.rows if row.skipped}


def _steps(
    records: Sequence[TableRow], kind: Kind, sets: Fitted, tell: Callable[[str], object]
) -> tuple[list[Evidence], Mapping[str, str]]:
    rows, skipped, names = list[Evidence](), dict[str, str](), Names()
    for done, record in enumerate(records, start=1):
        name = names.of(record)
        try:
            names.check(record)
            rows += _step(record.cells, name, kind, sets)
        except (SkippedRow, RlsimError) as reason:
            skipped[f"{name}, line {record.line}" if name in skipped else name] = str(reason).splitlines()[0]
        if done % 20 == 0:
            tell(f"{done} of {len(records)} rows")
    return rows, skipped


def _step(cells: Mapping[str, str], name: str, kind: Kind, sets: Fitted) -> list[Evidence]:
    """The step of a row and its phases. Raises SkippedRow and RlsimError."""
    whole = all(column in cells for column in NEEDED)
    if kind is Kind.STEPS and number(cells, "total_step_time_s") <= 0:
        raise SkippedRow("total_step_time_s must be above 0")
    scenario = scenario_of(cells, replications=REPLICATIONS) if whole else phase_scenario(cells, 0)
    samples = scenario.workload.samples_per_step * scenario.workload.generated_batch_factor
    if samples > MOST_SAMPLES:
        raise SkippedRow(f"{samples:,.0f} samples in one step are more than {MOST_SAMPLES:,}")
    simulation = scenario.simulation.model_copy(update={"replications": REPLICATIONS})
    scenario = with_sets(scenario.model_copy(update={"simulation": simulation}), sets)
    measured = measured_times(cells, scenario) if whole else _phases(cells, scenario.loop.mode)
    if not measured:
        raise SkippedRow("no time of it is given")
    return simulated_evidence(name, simulate_variant(scenario), measured, phase_groups(scenario))


def _phases(cells: Mapping[str, str], mode: str) -> dict[TimeKind, float]:
    """Times of a table of phases; an asynchronous generation is busy time, of which its record tells nothing."""
    known, out = known_phases(cells), dict[TimeKind, float]()
    kinds: tuple[TimeKind, ...] = ("step", "generation", "logprob", "train", "refit")
    for kind in kinds:
        if kind in known and (kind != "generation" or mode == "sync"):
            out[kind] = known[kind]
    return out


def _time(row: Evidence, before: Posterior, after: Posterior) -> OwnTime:
    expected, now = _logs(row, before, before), _logs(row, after, before)
    below, measured_s = float(np.mean(expected < row.surprise)), float(row.about[MEASURED_S])
    predicted_s = measured_s / float(np.exp(row.surprise))
    tail = 2 * min(below, 1 - below)
    return OwnTime(row.id, row.kind, measured_s, _interval(predicted_s, expected), _interval(predicted_s, now), tail)


def _logs(row: Evidence, posterior: Posterior, around_it: Posterior) -> FloatArray:
    """Draws of ln(time / predicted), where the prediction stands around the moved terms of ``around_it``."""
    changes = {name: posterior.mean_of(name) - around_it.mean_of(name) for name in row.slopes}
    middle = sum(slope * changes[name] for name, slope in row.slopes.items())
    middle += sum(share * posterior.mean_of(group) for group, share in row.groups.items())
    return middle + log_draws(posterior, row.slopes, row.groups) + error_draws(posterior, row.kind, row.id)


def _interval(predicted_s: float, logs: FloatArray) -> Interval:
    middle = float(np.exp(np.median(logs)))
    return around(predicted_s * middle, np.exp(logs) / middle)
