"""What rows of predicted beside measured say together: errors as shares of what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlsim.results.record import rounded
from rlsim.statistics import P90_DEVIATIONS


class Compared(Protocol):
    """A row that can be scored: both values, and the 90 % interval of the predicted one."""

    @property
    def group(self) -> str:
        """What it is scored together with."""

    @property
    def predicted(self) -> float | None:
        """In the unit of the row; None where it was skipped."""

    @property
    def measured(self) -> float | None:
        """In the unit of the row."""

    @property
    def covered(self) -> bool | None:
        """Whether the interval holds the measured value."""

    @property
    def half_width(self) -> float | None:
        """Factor that the interval reaches either way, sqrt(high / low); None where there is no interval."""


@dataclass(frozen=True)
class Score:
    """Errors of ``n`` rows as shares of the measured values; None where nothing was scored.

    median_abs_error, p90_abs_error: quantiles (linear between order statistics) of |predicted / measured - 1|. bias:
    median of predicted / measured - 1. coverage: share of rows whose measured value lies inside its 90 % interval.
    half_width: median factor that these intervals reach either way, sqrt(high / low); coverage says nothing without it.
    """

    n: int
    median_abs_error: float | None = None
    p90_abs_error: float | None = None
    bias: float | None = None
    coverage: float | None = None
    half_width: float | None = None

    @classmethod
    def of(cls, rows: Iterable[Compared]) -> Score:
        """The score of all ``rows`` that were predicted."""
        known = [row for row in rows if row.predicted is not None and row.measured]
        errors = [float(row.predicted or 0.0) / float(row.measured or 1.0) - 1 for row in known]
        covered = sum(bool(row.covered) for row in known) / len(known) if known else None
        widths = [row.half_width for row in known if row.half_width is not None]
        return replace(cls.of_errors(errors), coverage=covered, half_width=float(np.median(widths)) if widths else None)

    @classmethod
    def of_errors(cls, errors: Sequence[float]) -> Score:
        """The score of signed errors as shares."""
        if not errors:
            return cls(0)
        absolute = np.abs(errors)
        median, p90 = np.quantile(absolute, 0.5), np.quantile(absolute, 0.9)
        return cls(len(errors), float(median), float(p90), float(np.median(errors)))

    def as_dict(self) -> dict[str, float | int | None]:
        """For JSON."""
        return {
            "n": self.n,
            "median_abs_error": short(self.median_abs_error),
            "p90_abs_error": short(self.p90_abs_error),
            "bias": short(self.bias),
            "coverage": short(self.coverage),
            "half_width": short(self.half_width),
        }


def scores_by_group(rows: Sequence[Compared]) -> dict[str, Score]:
    """The score of each group that has scored rows, largest first."""
    groups: dict[str, list[Compared]] = {}
    for row in rows:
        if row.predicted is not None and row.measured:
            groups.setdefault(row.group, []).append(row)
    found = {name: Score.of(members) for name, members in groups.items()}
    return dict(sorted(found.items(), key=lambda item: (-item[1].n, item[0])))


def half_width(low: float | None, high: float | None) -> float | None:
    """The factor that an interval of times reaches either way of its middle, sqrt(high / low)."""
    return float(np.sqrt(high / low)) if low and high else None


def short(value: float | None) -> float | None:
    """Nine significant digits: results are the same bytes on machines that add in another order."""
    return None if value is None else rounded(value)


def robust_deviation(residuals: NDArray[np.float64]) -> float:
    """Standard deviation that a normal distribution with the same 90th percentile of |residual| would have."""
    return float(np.quantile(np.abs(residuals), 0.9) / P90_DEVIATIONS)
