"""90 % intervals of the rows of a measured half from the draws of the posterior, in place of one factor for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlsim.parameters.fitted import current
from rlsim.parameters.sets import Fitted
from rlsim.projection.uncertainty.predictive import between, error_draws, log_draws
from rlsim.validation.kind import Kind
from rlsim.validation.measured import MeasuredRow, MeasuredTable
from rlsim.validation.structure import (
    Structure,
    iteration_structures,
    training_structures,
    transfer_structures,
)
from rlsim.validation.table import TableRow

_Structures = Callable[[Sequence[MeasuredRow], Sequence[TableRow], Fitted], Iterator[Structure]]
STRUCTURES: Mapping[Kind, tuple[str, _Structures]] = {
    Kind.ITERATIONS: ("iteration", iteration_structures),
    Kind.TRAINING: ("training", training_structures),
    Kind.TRANSFERS: ("transfer", transfer_structures),
}
"""Kinds of tables whose rows are predicted without a simulated step, and what their errors are called."""


def with_drawn_bounds(found: MeasuredTable, kind: Kind, records: Sequence[TableRow]) -> MeasuredTable:
    """``found`` with the intervals of its rows drawn as those of a projection are; other kinds as they are."""
    fitted = current()
    if kind not in STRUCTURES or fitted.posterior is None:
        return found
    error, structures = STRUCTURES[kind]
    rows = list(found.rows)
    for one in structures(found.rows, records, fitted):
        row = rows[one.place]
        logs = log_draws(fitted.posterior, one.slopes, one.groups) + error_draws(fitted.posterior, error, row.id)
        low, high = between(np.exp(logs))
        predicted = row.predicted or 0.0
        rows[one.place] = replace(row, low=predicted * min(1.0, low), high=predicted * max(1.0, high))
    return replace(found, rows=tuple(rows))
