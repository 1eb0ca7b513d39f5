"""A hardware profile with every measured table that answers for it: its own, then what a measured device lends.

Imported tables hold no verification attention, sampling or rejection; only ``rlsim calibrate`` measures them. A device
that was never measured takes them from one that was: its share of that device's roofline carries over.
"""

import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.operators.collectives import PROFILE_NETWORK, Collectives, Network
from rlsim.costs.operators.operators import Operators, TableSource
from rlsim.results.record import P90_DEVIATIONS
from rlsim.schema.hardware import HardwareProfile
from rlsim.tables.files import MEASURED, available
from rlsim.tables.fingerprint import exchange_entry, tables_state
from rlsim.tables.operators import OperatorTables
from rlsim.tables.profile import list_profiles, load_profile, table_device


class Device(Struct, frozen=True, dict=True):
    """What operator times depend on. Tables are compared by identity, everything else by value.

    reference: the profile that ``tables`` were measured on. lent: tables of ``rlsim calibrate`` for what they lack.
    siblings: tables of other engines on the same device. stands_in: ``tables`` are one of these, for want of own ones.
    rack_aligned: whether groups of GPUs lie in one NVLink domain (:class:`rlsim.schema.loop.Cluster`).
    network: between nodes, where it is not the profile's.
    """

    profile: HardwareProfile
    tables: OperatorTables | None
    reference: HardwareProfile
    lent: TableSource | None
    siblings: tuple[OperatorTables, ...] = ()
    stands_in: bool = False
    rack_aligned: bool = True
    network: Network = PROFILE_NETWORK

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
            self.profile, self.tables, self.reference, exchange_tables(), self.stands_in, self.rack_aligned,
            self.network,
        )  # fmt: skip


def device_of(
    profile: HardwareProfile,
    engine: str,
    tables: OperatorTables | None = None,
    rack_aligned: bool = True,
    network: Network = PROFILE_NETWORK,
) -> Device:
    """The device of ``profile`` with its tables of ``engine``, or with the given ones.

    An engine that was not measured on the device takes the tables of one that was. Raises InputError where the tables
    that the profile names are missing.
    """
    if tables is None:
        found = _device(profile, engine, rack_aligned, tables_state(profile))
        return found if network == PROFILE_NETWORK else _on_network(found, network)
    reference = table_device(profile)
    lent = borrowed_tables(profile, reference, tables)
    return Device(profile, tables, reference, lent, rack_aligned=rack_aligned, network=network)


@lru_cache(maxsize=40)
def _on_network(device: Device, network: Network) -> Device:
    return replace(device, network=network)


@lru_cache(maxsize=40)
def _device(profile: HardwareProfile, engine: str, rack_aligned: bool, state: int) -> Device:
    """state: of the tables when they were read."""
    system, reference, known = profile.operator_tables, table_device(profile), available()
    others = [name for where, name in known if where == system and name not in (engine, MEASURED)]
    siblings = tuple(OperatorTables.load(str(system), name) for name in others)
    stands_in = bool(others) and not {(system, engine), (system, MEASURED)} & set(known)
    tables = None
    if stands_in:
        # In the order of their names the last is vLLM, which was measured on every device.
        *rest, tables = siblings
        siblings = tuple(rest)
    elif system is not None:
        tables = OperatorTables.load(system, engine)
    lent = borrowed_tables(profile, reference, tables)
    return Device(profile, tables, reference, lent, siblings, stands_in, rack_aligned)


def exchange_tables() -> TableSource | None:
    """The shipped tables with the all-to-all around experts over NVLink; measured on GB200 alone.

    Every other device carries them over by its NVLink; they are read only where experts spread over several nodes of
    one domain.
    """
    entry = exchange_entry()
    return None if entry is None else TableSource(OperatorTables.load(*entry), load_profile(entry[0]))


TRANSFER_ERROR = 2.0
"""How much further a time carried over from another device may be off than on the device itself. Assumption."""


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
    # Most installations hold none: then the other profiles need not be read.
    shipped = [one for one in map(load_profile, list_profiles() if systems else ()) if one.operator_tables in systems]
    if not shipped:
        return None

    def distance(device: HardwareProfile) -> float:
        rates = device.memory_bandwidth_bytes_per_s.value, profile.memory_bandwidth_bytes_per_s.value
        return abs(math.log(rates[0] / rates[1]))

    nearest = min(shipped, key=distance)
    return TableSource(OperatorTables.load(str(nearest.operator_tables), MEASURED, folder), nearest, transferred=True)


DATASHEET_ERROR = 0.25
"""Standard deviation of the logarithm of a time that is modelled from a datasheet alone, beyond what is missed with
measured tables. From the shipped measured times priced as if their devices had no tables: the 90th percentile of
|ln(measured / predicted)| is then 0.467 instead of 0.234 on 293 engine iterations and 0.376 instead of 0.168 on 373
training steps, which as normal spreads asks for 0.25 and 0.20 more (docs/uncertainty.md; ``python -m
research.datasheets``). All of them are NVIDIA's data-centre GPUs."""


GENERATION_BIAS, TRAINING_BIAS = 0.04, 0.12
"""Logarithms by which measured iterations and training steps take longer than a device's datasheet lets expect at the
shares of :mod:`rlsim.costs.operators.operators`: medians of ln(measured / predicted) of the shipped rows priced without
tables (docs/uncertainty.md; ``python -m research.datasheets``)."""


def datasheet_factors(generating: Device, training: Device) -> tuple[float, float]:
    """Factors on the times of generation, and of log-probs and training, of devices without any measured table."""
    biases = (generating, GENERATION_BIAS), (training, TRAINING_BIAS)
    generation, train = (1.0 if one.operators.sources else math.exp(bias) for one, bias in biases)
    return generation, train


def tables_error(sources: Sequence[TableSource]) -> float:
    """Standard deviation of the logarithm of a time that the self-checks of the tables in use claim.

    :data:`DATASHEET_ERROR` where there are no tables at all.

    From the 90th percentile of the absolute errors of composites, which no table has seen, read as a factor;
    TRANSFER_ERROR times as much where a table was measured on another device. Zero where no table carries a self-check
    (imported ones): the error of the global parameters then holds theirs.
    """
    error = 0.0 if sources else DATASHEET_ERROR
    for source in sources:
        p90 = float((source.tables.metadata.get("self_check") or {}).get("p90_abs_error") or 0.0)
        error = max(error, math.log1p(p90) / P90_DEVIATIONS * (TRANSFER_ERROR if source.transferred else 1.0))
    return error
