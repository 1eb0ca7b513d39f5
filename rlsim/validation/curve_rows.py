"""Measured curves: acceptance length over drafted tokens beside rlsim's acceptance process; nothing predicts the rest.

A point is predicted by the two-parameter process (first acceptance and its decay) fitted to the other points of its
series.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import least_squares

from rlsim.errors import RlsimError, shortened
from rlsim.validation.halves import TableRecords
from rlsim.validation.measured import MeasuredRow, MeasuredTable, Names, measured_value
from rlsim.validation.rows import SkippedRow, number
from rlsim.workload.acceptance import two_parameter_rates

ACCEPTANCE_BY_K = "acceptance_by_k"
LEAST_OTHERS = 2
"""Other points of a series, at least: the process has two parameters."""
LEAST_DEVIATION = 0.01
"""Standard deviation of the logarithm of a prediction, at least: published lengths have two decimals."""
MOST_DRAFTED = 64


def validate_curves(records: TableRecords) -> MeasuredTable:
    """Every point of a table of curves beside its prediction; nothing is drawn."""
    rows, names = [], Names()
    series: dict[str, list[tuple[int, int, float]]] = {}
    for place, record in enumerate(records.rows):
        cells = record.cells
        row = MeasuredRow(
            names.of(record),
            cells.get("curve_kind", ""),
            shortened(cells.get("unit", "") or "1", 12),
            measured_value(cells, ["y"]),
            details={name: cells.get(name, "") for name in ("series", "x_name", "y_name")},
        )
        try:
            names.check(record)
            if cells["curve_kind"] != ACCEPTANCE_BY_K:
                raise SkippedRow("nothing of rlsim predicts this yet")
            drafted, length = number(cells, "x"), number(cells, "y")
            if drafted % 1 or not 1 <= drafted <= MOST_DRAFTED or not 1 <= length <= drafted + 1:
                raise SkippedRow("x must be a whole number of drafted tokens, and y an acceptance length up to x + 1")
            series.setdefault(cells["series"], []).append((place, int(drafted), length))
        except (SkippedRow, RlsimError) as reason:
            row = row.skip(reason)
        rows.append(row)
    done = sum(row.skipped is not None for row in rows)
    for points in series.values():
        sums: dict[int, tuple[int, float]] = {}
        for _, drafted, length in points:
            count, total = sums.get(drafted, (0, 0.0))
            sums[drafted] = (count + 1, total + length)
        for place, drafted, length in points:
            count, total = sums[drafted]
            others = {**sums, drafted: (count - 1, total - length)}
            means = [(k, total / count) for k, (count, total) in others.items() if count]
            rows[place] = _predicted(rows[place], drafted, means)
            done += 1
            records.tell(done)
    return MeasuredTable("curves", records.table, records.digest, tuple(rows))


def _predicted(row: MeasuredRow, drafted: int, others: Sequence[tuple[int, float]]) -> MeasuredRow:
    if len(others) < LEAST_OTHERS:
        return row.skip(f"its series has fewer than {LEAST_OTHERS} other draft lengths to fit the process to")
    (first, decay), deviation = fitted_process(others)
    return row.predict(_length(first, decay, drafted), deviation, first_acceptance=first, acceptance_decay=decay)


def fitted_process(points: Sequence[tuple[int, float]]) -> tuple[tuple[float, float], float]:
    """First acceptance and decay of a series of (drafted tokens, acceptance length), and the deviation of its log."""

    def off(parameters: np.typing.NDArray[np.float64]) -> list[float]:
        return [math.log(_length(parameters[0], parameters[1], k) / length) for k, length in points]

    found = least_squares(off, [0.8, 0.98], bounds=([0.0, 0.3], [1.0, 1.0]))
    spare = max(1, len(points) - 2)
    deviation = math.sqrt(float(np.sum(np.square(off(found.x)))) / spare)
    return (float(found.x[0]), float(found.x[1])), max(LEAST_DEVIATION, deviation)


def _length(first: float, decay: float, drafted: int) -> float:
    return 1.0 + float(two_parameter_rates(float(first), float(decay), drafted).sum())
