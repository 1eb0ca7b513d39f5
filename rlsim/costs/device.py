"""A hardware profile with every measured table that answers for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from rlsim.costs.borrowed import TableSource, borrowed_tables
from rlsim.costs.collectives import Collectives
from rlsim.costs.operators import Operators
from rlsim.costs.reference import table_device
from rlsim.hardware.tables import OperatorTables
from rlsim.schema.hardware import HardwareProfile


@dataclass(frozen=True)
class Device:
    """What operator times depend on. Tables are compared by identity, everything else by value.

    reference: the profile that ``tables`` were measured on. lent: tables of ``rlsim calibrate`` for what they lack.
    """

    profile: HardwareProfile
    tables: OperatorTables | None
    reference: HardwareProfile
    lent: TableSource | None

    @property
    def operators(self) -> Operators:
        """Seconds of single operations."""
        return Operators(self.profile, self.tables, self.reference, self.lent)

    @property
    def fabric(self) -> Collectives:
        """Seconds of collective operations."""
        return Collectives(self.profile, self.tables, self.reference)


def device_of(profile: HardwareProfile, engine: str, tables: OperatorTables | None = None) -> Device:
    """The device of ``profile`` with its tables of ``engine``, or with the given ones.

    Raises InputError where the tables that the profile names are missing.
    """
    return _device(profile, engine) if tables is None else _with_tables(profile, tables)


@lru_cache(maxsize=32)
def _device(profile: HardwareProfile, engine: str) -> Device:
    if profile.operator_tables is None:
        return _with_tables(profile, None)
    return _with_tables(profile, OperatorTables.load(profile.operator_tables, engine))


def _with_tables(profile: HardwareProfile, tables: OperatorTables | None) -> Device:
    reference = table_device(profile)
    return Device(profile, tables, reference, borrowed_tables(profile, reference, tables))
