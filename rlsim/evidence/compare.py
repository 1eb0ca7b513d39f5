"""Any table of measured figures beside its predictions, with the intervals that a projection would have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlsim.errors import InputError, shortened
from rlsim.evidence.acceptance import CURVES
from rlsim.evidence.iterations import ITERATIONS
from rlsim.evidence.phases import PHASE_ROWS, agent_runs, run_rows
from rlsim.evidence.rollouts import ROLLOUTS
from rlsim.evidence.rollouts import UNIT as RATE
from rlsim.evidence.rows import Comparison, compare
from rlsim.evidence.steps import STEPS
from rlsim.evidence.structure import ERRORS, structures
from rlsim.evidence.tables import Kind, Table, kind_of
from rlsim.evidence.training import TRAINING
from rlsim.evidence.transfers import TRANSFERS
from rlsim.parameters.sets import Fitted
from rlsim.parameters.terms import current
from rlsim.projection.uncertainty.predictive import between, error_draws, log_draws
from rlsim.results.validation import Validation
from rlsim.schema.base import changed

Progress = Callable[[int, int], object]
COMPARISONS: Mapping[Kind, Comparison] = {
    Kind.STEPS: STEPS,
    Kind.ITERATIONS: ITERATIONS,
    Kind.TRAINING: TRAINING,
    Kind.TRANSFERS: TRANSFERS,
    Kind.PHASES: PHASE_ROWS,
    Kind.CURVES: CURVES,
    Kind.ROLLOUTS: ROLLOUTS,
}


def validate_table(
    path: Path, kind: str | None = None, progress: Progress | None = None, seed: int = 0, replications: int = 4
) -> Validation:
    """Every row of the table at ``path`` beside its prediction; only the part of a step that it measured is simulated.

    kind: of the table (:class:`Kind`); by default by its columns. progress: called with (done, all) rows. seed: of
    every draw. replications: of every simulated step. Raises InputError where the file is no such table.
    """
    if kind is not None and kind not in list(Kind):
        raise InputError(f"kind must be one of {', '.join(Kind)}; got {shortened(repr(kind), 40)}")
    chosen = kind_of(path) if kind is None else Kind(kind)
    table = replace(Table.read(path, chosen), seed=seed, replications=replications, progress=progress)
    return with_posterior_intervals(validated(chosen, table), chosen, table)


def validated(kind: Kind, table: Table, fitted: Fitted | None = None) -> Validation:
    """Every measured row of a table of ``kind`` beside its prediction under ``fitted`` (default: as rlsim prices)."""
    of = COMPARISONS[kind]
    rows = compare(table, of, of.predictor(table, fitted or current()))
    if kind is Kind.PHASES:
        rows += [row for run in agent_runs(table.rows, table.seed) for row in run_rows(run)]
    told = of.told(table, rows) if of.told else {}
    return Validation.of(kind, rows, table=table.name, digest=table.digest, **told)


def with_posterior_intervals(found: Validation, kind: Kind, table: Table) -> Validation:
    """``found`` with intervals drawn from the posterior as those of a projection; kinds without a simulated step."""
    fitted = current()
    if kind not in ERRORS or fitted.posterior is None:
        return found
    rows = list(found.rows)
    for place, one in structures(kind, rows, table.rows, fitted, seed=table.seed):
        row = rows[place]
        logs = log_draws(fitted.posterior, one.slopes, one.groups)
        times = np.exp(logs + error_draws(fitted.posterior, ERRORS[kind], row.id))
        low, high = between(1 / times if row.unit == RATE else times)
        predicted = row.predicted or 0.0
        rows[place] = changed(row, low=predicted * min(1.0, low), high=predicted * max(1.0, high))
    fields = {name: getattr(found, name) for name in ("table", "digest", "remarks", "speculation_pairs", "ttft")}
    return Validation.of(found.kind, rows, **fields)
