"""One assumption of the cost model beside what a device measured of it, and how measured points become one number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bench.measurements import Measurement
from rlsim.parameters.sets import Fitted
from rlsim.report.format import number, seconds
from rlsim.schema.hardware import HardwareProfile
from rlsim.tables.operators import OperatorTables
from rlsim.units import GIGA

Unit = Literal["s", "bytes/s", "1"]
Read = Callable[[Measurement], float | None]


@dataclass(frozen=True)
class Assumption:
    """A parameter that rlsim uses, and the measured value of the same quantity; None where rlsim counts nothing.

    name: of the parameter, as the code or a calibration file calls it. origin: where its value comes from.
    what: the measured quantity.
    """

    name: str
    used: float | None
    origin: str
    measured: float
    what: str
    unit: Unit = "s"

    @property
    def ratio(self) -> float | None:
        """Measured over used."""
        return None if not self.used else self.measured / self.used

    def shown(self, value: float | None) -> str:
        """``value`` with its unit; a dash without one."""
        if value is None:
            return "-"
        if self.unit == "s":
            return seconds(value)
        return f"{number(value / GIGA)} GB/s" if self.unit == "bytes/s" else number(value)


@dataclass(frozen=True)
class Basis:
    """What rlsim uses for the measured device.

    profile: as projections have it, before this measurement changed anything. tables: of this measurement, with its
    host times. fitted: the sets under calibration/, as their files hold them.
    """

    profile: HardwareProfile
    tables: OperatorTables
    fitted: Fitted


def assumed(
    name: str, used: float | None, origin: str, measured: float | None, what: str, unit: Unit = "s"
) -> list[Assumption]:
    """One row; none where nothing was measured, or no positive finite value came out of it."""
    if measured is None or not math.isfinite(measured) or measured <= 0:
        return []
    return [Assumption(name, used, origin, measured, what, unit)]


def slope(points: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Least-squares slope of (x, y); None below two different x. Points of which a number is missing do not count.

    >>> slope([(1.0, 3.0), (2.0, 5.0), (3.0, 7.0), (4.0, None)])
    2.0
    """
    known = [(x, y) for x, y in points if x is not None and y is not None]
    if len({x for x, _ in known}) < 2:
        return None
    x, y = (np.array(side, dtype=np.float64) for side in zip(*known, strict=True))
    centred = x - x.mean()
    return float(centred @ y / (centred @ centred))


def slope_of(records: Iterable[Measurement], x: Read, y: Read) -> float | None:
    """:func:`slope` of what ``x`` and ``y`` read of each record."""
    return slope((x(record), y(record)) for record in records)


def of_mode(records: Sequence[Measurement], mode: str, key: str = "mode") -> list[Measurement]:
    """The records whose parameter ``key`` is ``mode``."""
    return [record for record in records if record.case.text(key) == mode]


def by(name: str) -> Callable[[Measurement], float]:
    """Reads an integer parameter of the case."""
    return lambda record: float(record.case.number(name))


def taken(record: Measurement) -> float:
    """Seconds of one call."""
    return record.seconds


def launched(record: Measurement) -> float | None:
    """Kernels of one call."""
    return None if record.facts.kernels is None else float(record.facts.kernels)


def host_taken(record: Measurement) -> float | None:
    """Host seconds to launch one call."""
    return record.facts.host_s


def divided(value: float | None, by_value: float | None) -> float | None:
    """Quotient of two measured values; None where one is missing."""
    return None if value is None or not by_value else value / by_value
