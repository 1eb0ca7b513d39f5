"""Measured tables by the device they come from: a profile's own, then what a device that rlsim measured lends.

Imported tables hold no verification attention, sampling or rejection; only ``rlsim calibrate`` measures them. A device
that was never measured takes them from one that was: its share of that device's roofline carries over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlsim.results.statistics import P90_DEVIATIONS
from rlsim.schema.hardware import HardwareProfile
from rlsim.tables.operators import MEASURED, OperatorTables, available
from rlsim.tables.profile import list_profiles, load_profile

TRANSFER_ERROR = 2.0
"""How much further a time carried over from another device may be off than on the device itself. Assumption."""


@dataclass(frozen=True)
class TableSource:
    """Tables and the profile of the device that they were measured on; transferred: not the projected device."""

    tables: OperatorTables
    device: HardwareProfile
    transferred: bool = False


def borrowed_tables(
    profile: HardwareProfile, reference: HardwareProfile, tables: OperatorTables | None, folder: Path | None = None
) -> TableSource | None:
    """Tables that ``rlsim calibrate`` made for the profile's own system, else for the shipped device nearest to it.

    reference: the device on which the profile's own ``tables`` were measured. Nearest is the device with the most
    similar memory bandwidth, which bounds all that is lent. folder: a calibration folder; default is that of this
    installation. None where the own tables carry a self-check (rlsim made them or was merged into them), and where no
    shipped device was measured.
    """
    if tables is not None and tables.metadata.get("self_check"):
        return None
    systems = {system for system, engine in available(folder) if engine == MEASURED}
    if profile.operator_tables in systems:
        return TableSource(OperatorTables.load(str(profile.operator_tables), MEASURED, folder), reference)
    shipped = [device for device in map(load_profile, list_profiles()) if device.operator_tables in systems]
    if not shipped:
        return None

    def distance(device: HardwareProfile) -> float:
        rates = device.memory_bandwidth_bytes_per_s.value, profile.memory_bandwidth_bytes_per_s.value
        return abs(math.log(rates[0] / rates[1]))

    nearest = min(shipped, key=distance)
    return TableSource(OperatorTables.load(str(nearest.operator_tables), MEASURED, folder), nearest, transferred=True)


def tables_error(sources: Sequence[TableSource]) -> float:
    """Standard deviation of the logarithm of a time that the self-checks of the tables in use claim.

    From the 90th percentile of the absolute errors of composites, which no table has seen, read as a factor;
    TRANSFER_ERROR times as much where a table was measured on another device. Zero where no table carries a self-check
    (imported ones): the error of the global parameters then holds theirs.
    """
    error = 0.0
    for source in sources:
        p90 = float((source.tables.metadata.get("self_check") or {}).get("p90_abs_error") or 0.0)
        error = max(error, math.log1p(p90) / P90_DEVIATIONS * (TRANSFER_ERROR if source.transferred else 1.0))
    return error
