"""Measured curves: acceptance length over drafted tokens beside rlsim's acceptance process; nothing predicts the rest.

A point is predicted by the two-parameter process (first acceptance and its decay) fitted to the other points of its
series.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import least_squares

from rlsim.errors import shortened
from rlsim.evidence.rows import MeasuredRow, Prediction, compare, named
from rlsim.evidence.tables import Row, SkippedRow, Table, measured_value, number
from rlsim.hardware.parameters import Fitted
from rlsim.results.validation import Validation
from rlsim.workload.acceptance import two_parameter_rates

ACCEPTANCE_BY_K = "acceptance_by_k"
LEAST_OTHERS = 2
"""Other points of a series, at least: the process has two parameters."""
LEAST_DEVIATION = 0.01
"""Standard deviation of the logarithm of a prediction, at least: published lengths have two decimals."""
MOST_DRAFTED = 64


def validate_curves(table: Table, fitted: Fitted | None = None) -> Validation:
    """Every point of a table of curves beside its prediction; nothing is drawn, and no fitted value counts."""
    series: dict[str, dict[int, list[float]]] = {}
    for (_, problem), record in zip(named(table), table.rows, strict=True):
        try:
            drafted, length = _point(record.cells)
        except SkippedRow:
            continue
        if not problem:
            series.setdefault(record.cells["series"], {}).setdefault(drafted, []).append(length)

    def predict(row: MeasuredRow) -> Prediction:
        drafted, length = _point(row.cells)
        others = []
        for k, lengths in series[row.cells["series"]].items():
            count = len(lengths) - (k == drafted)
            if count:
                others.append((k, (sum(lengths) - (length if k == drafted else 0.0)) / count))
        if len(others) < LEAST_OTHERS:
            raise SkippedRow(f"its series has fewer than {LEAST_OTHERS} other draft lengths to fit the process to")
        (first, decay), deviation = fitted_process(others)
        predicted = acceptance_length(first, decay, drafted)
        return Prediction.within(predicted, deviation, first_acceptance=first, acceptance_decay=decay)

    return Validation.of("curves", compare(table, _described, predict), table=table.name, digest=table.digest)


def _described(name: str, cells: Row) -> list[MeasuredRow]:
    unit, about = shortened(cells.get("unit", "") or "1", 12), ("series", "x_name", "y_name")
    details = {column: cells.get(column, "") for column in about}
    return [MeasuredRow(name, cells.get("curve_kind", ""), unit, measured_value(cells, "y"), cells, details)]


def _point(cells: Row) -> tuple[int, float]:
    """Drafted tokens and acceptance length of a row; SkippedRow where it is no point of such a curve."""
    if cells["curve_kind"] != ACCEPTANCE_BY_K:
        raise SkippedRow("nothing of rlsim predicts this yet")
    drafted, length = number(cells, "x"), number(cells, "y")
    if drafted % 1 or not 1 <= drafted <= MOST_DRAFTED or not 1 <= length <= drafted + 1:
        raise SkippedRow("x must be a whole number of drafted tokens, and y an acceptance length up to x + 1")
    return int(drafted), length


def fitted_process(points: Sequence[tuple[int, float]]) -> tuple[tuple[float, float], float]:
    """First acceptance and decay of a series of (drafted tokens, acceptance length), and the deviation of its log."""

    def off(parameters: np.typing.NDArray[np.float64]) -> list[float]:
        return [math.log(acceptance_length(parameters[0], parameters[1], k) / length) for k, length in points]

    found = least_squares(off, [0.8, 0.98], bounds=([0.0, 0.3], [1.0, 1.0]))
    spare = max(1, len(points) - 2)
    deviation = math.sqrt(float(np.sum(np.square(off(found.x)))) / spare)
    return (float(found.x[0]), float(found.x[1])), max(LEAST_DEVIATION, deviation)


def acceptance_length(first: float, decay: float, drafted: int) -> float:
    """Mean tokens of a verification of ``drafted`` tokens with two-parameter acceptance."""
    return 1.0 + float(two_parameter_rates(float(first), float(decay), drafted).sum())
