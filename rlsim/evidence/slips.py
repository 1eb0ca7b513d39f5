"""Tables whose times are off by so much that their unit must be another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlsim.evidence.tables import Kind, Table
from rlsim.files.yaml import lists_beside

FACTOR = 20.0
"""Measured over predicted, or the reverse, in the median of a table, from which on its unit is doubted: no row of a
published table is off by as much. Slips of a unit are factors of 60 (minutes) and more."""
_MEANT = {("ms", False): "seconds for milliseconds?", ("s", True): "milliseconds for seconds?"}
"""What a column of such a unit likely holds, by whether its values are larger than predicted."""


def unit_slip(kind: Kind, table: Table, ratios: Sequence[float]) -> str:
    """What is likely wrong with the unit of the measured column of ``table``; empty where nothing is.

    ratios: measured over predicted of its rows.
    """
    middle = float(np.median(ratios)) if len(ratios) else 1.0
    if 1 / FACTOR <= middle <= FACTOR:
        return ""
    column = _column(kind, table)
    unit = next((word for word in ("ms", "s") if word in column.split("_")), "")
    factor, side = (middle, "above") if middle > 1 else (1 / middle, "below")
    meant = _MEANT.get((unit, middle > 1), "another unit?")
    return f"{column} is {factor:,.0f} times {side} its prediction in the median: {meant}"


def _column(kind: Kind, table: Table) -> str:
    """The column that holds the measured values of a table: of alternatives the first that has any."""
    names: list[str] = lists_beside(__file__)["measured_columns"][kind]
    return next((name for name in names if any(record.cells.get(name) for record in table.rows)), names[0])
