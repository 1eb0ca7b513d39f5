"""How far measured times are missed when their devices are priced from datasheets alone, with no operator table.

``python -m research.datasheets`` prints, for the shipped tables of engine iterations and training steps, the errors
with measured tables and without: what ``rlsim.costs.operators.device.DATASHEET_ERROR`` rests on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from rlsim.costs.operators import device
from rlsim.evidence.compare import validate_table
from rlsim.evidence.published import published_table
from rlsim.results.record import P90_DEVIATIONS
from rlsim.schema.base import changed
from rlsim.schema.hardware import HardwareProfile
from rlsim.units import FloatArray

TABLES = ("iterations.csv", "training_steps.csv")


@contextmanager
def datasheets_alone() -> Iterator[None]:
    """Every device as if nothing had been measured on it."""
    whole = device._device

    def bare(profile: HardwareProfile, engine: str, rack_aligned: bool, state: int) -> device.Device:
        return whole(changed(profile, operator_tables=None), engine, rack_aligned, state)

    device._device = bare  # type: ignore[assignment]
    try:
        yield
    finally:
        device._device = whole


def errors(name: str) -> FloatArray:
    """ln(measured / predicted) of the rows of a shipped table."""
    rows = validate_table(published_table(name)).rows
    return np.array([math.log(row.measured / row.predicted) for row in rows if row.measured and row.predicted])


def main() -> None:
    """Print median and 90th percentile of both, and the spread that datasheets add."""
    for name in TABLES:
        measured = errors(name)
        with datasheets_alone():
            bare = errors(name)
        widths = [float(np.quantile(np.abs(one), 0.9)) for one in (measured, bare)]
        added = math.sqrt(max(0.0, widths[1] ** 2 - widths[0] ** 2)) / P90_DEVIATIONS
        print(f"{name}: {bare.size} rows; 90 % within {widths[0]:.3f} with tables, {widths[1]:.3f} without; ", end="")
        print(f"median without {np.median(bare):+.3f}; normal spread added {added:.2f}")


if __name__ == "__main__":
    main()
