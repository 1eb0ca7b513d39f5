"""A user's measured times on top of a posterior: what was expected of them, what they change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlsim.errors import InputError, shortened
from rlsim.evidence.compare import validated
from rlsim.evidence.structure import Reasons, compared_times, step_times
from rlsim.evidence.tables import Kind, Table, kind_of
from rlsim.files.reading import shown_path
from rlsim.files.records import dataclass
from rlsim.parameters.posterior import DEFAULT, Posterior, load_posterior
from rlsim.parameters.sets import shipped
from rlsim.parameters.terms import moved
from rlsim.projection.uncertainty.evidence import MEASURED_S, Evidence
from rlsim.projection.uncertainty.evidence import Kind as TimeKind
from rlsim.projection.uncertainty.learning import updated
from rlsim.projection.uncertainty.predictive import around, error_draws, log_draws
from rlsim.results import Interval
from rlsim.units import FloatArray

SURPRISING = 0.02
"""Two-sided probability below which a measured time contradicts what was expected of it."""


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
    """What a table of measured rows says: the posterior with it, each time beside its predictions, and reasons."""

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
    sets, table = moved(shipped(), before.shifts), replace(Table.read(path), progress=progress)
    if kind in (Kind.STEPS, Kind.PHASES):
        rows, skipped = step_times(table, sets)
    else:
        rows, skipped = compared_times(kind, validated(kind, table, sets).rows, table.rows, sets)
    if not rows:
        first = next((f": {shortened(name)}: {reason}" for name, reason in skipped.items()), "")
        raise InputError(f"{shown_path(path)}: none of its rows can be used{shortened(first, 300)}")
    about = {"own_rows": len(rows), "own_table": path.name, "own_digest": table.digest}
    after = updated(before, rows, name or path.stem, about)
    return Learned(path.name, after, tuple(_time(row, before, after) for row in rows), skipped)


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
