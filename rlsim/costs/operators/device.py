"""A hardware profile with every measured table that answers for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from rlsim.costs.operators.borrowed import TableSource, borrowed_tables
from rlsim.costs.operators.collectives import Collectives
from rlsim.costs.operators.operators import Operators
from rlsim.schema.hardware import HardwareProfile
from rlsim.tables.fingerprint import exchange_entry, tables_state
from rlsim.tables.operators import MEASURED, OperatorTables, available
from rlsim.tables.profile import load_profile, table_device


@dataclass(frozen=True)
class Device:
    """What operator times depend on. Tables are compared by identity, everything else by value.

    reference: the profile that ``tables`` were measured on. lent: tables of ``rlsim calibrate`` for what they lack.
    siblings: tables of other engines on the same device. stands_in: ``tables`` are one of these, for want of own ones.
    rack_aligned: whether groups of GPUs lie in one NVLink domain (:class:`rlsim.schema.loop.Cluster`).
    """

    profile: HardwareProfile
    tables: OperatorTables | None
    reference: HardwareProfile
    lent: TableSource | None
    siblings: tuple[OperatorTables, ...] = ()
    stands_in: bool = False
    rack_aligned: bool = True

    @property
    def stand_in(self) -> str | None:
        """Engine whose tables stand in; None where the device has the engine's own, or none at all."""
        return str(self.tables.metadata["engine"]) if self.stands_in and self.tables is not None else None

    @cached_property
    def operators(self) -> Operators:
        """Seconds of single operations."""
        return Operators(self.profile, self.tables, self.reference, self.lent, self.siblings, self.stands_in)

    @cached_property
    def fabric(self) -> Collectives:
        """Seconds of collective operations."""
        return Collectives(
            self.profile, self.tables, self.reference, exchange_tables(), self.stands_in, self.rack_aligned
        )


def device_of(
    profile: HardwareProfile, engine: str, tables: OperatorTables | None = None, rack_aligned: bool = True
) -> Device:
    """The device of ``profile`` with its tables of ``engine``, or with the given ones.

    An engine that was not measured on the device takes the tables of one that was. Raises InputError where the tables
    that the profile names are missing.
    """
    device = _device(profile, engine, tables_state(profile)) if tables is None else _with_tables(profile, tables)
    return device if rack_aligned else _unaligned(device)


@lru_cache(maxsize=8)
def _unaligned(device: Device) -> Device:
    return replace(device, rack_aligned=False)


@lru_cache(maxsize=32)
def _device(profile: HardwareProfile, engine: str, state: int) -> Device:
    """state: of the tables when they were read."""
    if profile.operator_tables is None:
        return _with_tables(profile, None)
    system = profile.operator_tables
    others = [name for where, name in available() if where == system and name not in (engine, MEASURED)]
    siblings = tuple(OperatorTables.load(system, name) for name in others)
    if others and not {(system, engine), (system, MEASURED)} & set(available()):
        # In the order of their names the last is vLLM, which was measured on every device.
        return replace(_with_tables(profile, siblings[-1], siblings[:-1]), stands_in=True)
    return _with_tables(profile, OperatorTables.load(system, engine), siblings)


def _with_tables(
    profile: HardwareProfile, tables: OperatorTables | None, siblings: tuple[OperatorTables, ...] = ()
) -> Device:
    reference = table_device(profile)
    return Device(profile, tables, reference, borrowed_tables(profile, reference, tables), siblings)


def exchange_tables() -> TableSource | None:
    """The shipped tables with the all-to-all around experts over NVLink; measured on GB200 alone.

    Every other device carries them over by its NVLink; they are read only where experts spread over several nodes of
    one domain.
    """
    entry = exchange_entry()
    return None if entry is None else TableSource(OperatorTables.load(*entry), load_profile(entry[0]))
