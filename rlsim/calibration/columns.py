"""Tables in long form as plain columns, and views of them as lines along one size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import asdict
from numpy.typing import NDArray
from pandas import DataFrame

from rlsim.tables.operators import Efficiency
from rlsim.units import FloatArray

Columns = dict[str, NDArray[Any]]
IntArray = NDArray[np.intp]
Efficiencies = Mapping[str, Mapping[str, Efficiency]]
"""Achieved share of a device's rates by operation and precision."""


BOUND_RATIO = 2.0
"""How far compute and memory time must be apart for a row to count as bound by the larger."""


def efficiency(computed: FloatArray, moved: FloatArray, fewest: int, floor_s: float | None) -> Efficiency:
    """Median and 90th percentile of the shares that rows bound by arithmetic and by bytes reached; none of too few."""

    def share(reached: FloatArray, quantile: float) -> float | None:
        return round(float(np.quantile(reached, quantile)), 4) if reached.size >= fewest else None

    compute, memory = ([share(reached, quantile) for quantile in (0.5, 0.9)] for reached in (computed, moved))
    floor = None if floor_s is None else float(f"{floor_s:.4g}")
    return Efficiency(compute[0], compute[1], memory[0], memory[1], floor)


def efficiencies_as_yaml(found: Efficiencies) -> dict[str, object]:
    """The shares as metadata.yaml states them: what was not fitted is left out."""
    return {
        op: {
            precision: {name: value for name, value in asdict(share).items() if value is not None}
            for precision, share in of.items()
        }
        for op, of in found.items()
    }


def row_count(table: Columns) -> int:
    """Rows of a table."""
    return len(next(iter(table.values()))) if table else 0


def take(table: Columns, rows: NDArray[Any]) -> Columns:
    """The rows given by a mask or by positions."""
    return {name: column[rows] for name, column in table.items()}


def group_ids(table: Columns, names: Sequence[str]) -> IntArray:
    """Number of the group each row belongs to; groups are equal in all columns ``names``, numbered in sorted order."""
    groups = DataFrame({name: table[name] for name in names}).groupby(list(names))
    return np.asarray(groups.ngroup(), dtype=np.intp)


@dataclass(frozen=True)
class Lines:
    """Latency as lines along one size: values[line, place], NaN where there is no row.

    sizes: ascending values of the size. line, place: position of every row of the table in ``values``.
    """

    values: FloatArray
    sizes: FloatArray
    line: IntArray
    place: IntArray

    def rows(self, dense: NDArray[Any]) -> NDArray[Any]:
        """Back from an array of the shape of ``values`` to one entry per row."""
        return dense[self.line, self.place]


def lines_along(table: Columns, size: str, others: Sequence[str], column: str = "latency_s") -> Lines:
    """Lines of ``column`` along ``size`` for every combination of ``others``."""
    line = group_ids(table, others)
    sizes, place = np.unique(table[size], return_inverse=True)
    values = np.full((line.max(initial=-1) + 1, len(sizes)), np.nan)
    values[line, place] = table[column]
    return Lines(values, sizes.astype(np.float64), line, place)
