"""Hardware profile: one GPU, its node, its fabric; every number with the place it comes from."""

import math
from collections.abc import Iterator, Mapping
from typing import Literal

from rlsim.errors import InputError
from rlsim.files.yaml import lists_beside
from rlsim.schema.base import Name, PositiveFloat, Strict
from rlsim.units import GIGA, KILO, MEGA, MICROSECOND, TERA

Provenance = Literal["datasheet", "measured", "assumed"]


Bounds = Mapping[str, tuple[float, float, str]]


def _bounds(name: str) -> Bounds:
    return {key: tuple(limits) for key, limits in lists_beside(__file__, "hardware.yaml")[name].items()}


BOUNDS, UNMEASURED_BOUNDS = _bounds("bounds"), _bounds("unmeasured_bounds")
"""Least and greatest values of a key and their unit, of any profile and of one that nobody measured."""
_SLIPS = {
    "bytes/s": {"GB/s": GIGA, "TB/s": TERA},
    "FLOP/s": {"TFLOP/s": TERA, "PFLOP/s": KILO * TERA},
    "bytes": {"MB": MEGA, "GB": GIGA, "TB": TERA},
    "seconds": {"microseconds": MICROSECOND, "nanoseconds": KILO**-3},
}
"""Units that datasheets use instead, by what one of them is in the unit that the key names."""
_PREFIXES = {"bytes/s": "GB/s for TB/s?", "FLOP/s": "TFLOP/s for PFLOP/s?", "bytes": "MB for GB?"}
"""What a value was likely taken for that is a thousand times too small, by the unit of its key."""


def _slip(value: float, least: float, most: float, unit: str) -> str:
    """The unit that ``value`` was likely meant in: that which brings it nearest to the middle of the bounds.

    >>> _slip(1790, *BOUNDS["memory_bandwidth_bytes_per_s"])
    ': if those are GB/s, write 1.79e+12'
    >>> _slip(-1, *BOUNDS["memory_bandwidth_bytes_per_s"])
    ''
    >>> _slip(1.8e9, *UNMEASURED_BOUNDS["memory_bandwidth_bytes_per_s"])
    ': GB/s for TB/s? write 1.8e+12'
    """
    if least <= KILO * value <= most and unit in _PREFIXES:
        return f": {_PREFIXES[unit]} write {KILO * value:.4g}"
    # Only units that bring it within the bounds: any other value is no slip of a unit.
    meant = {name: value * factor for name, factor in _SLIPS[unit].items() if least <= value * factor <= most}
    if not meant:
        return ""
    name = min(meant, key=lambda one: abs(math.log(meant[one] ** 2 / (least * most))))
    return f": if those are {name}, write {meant[name]:.4g}"


class SourcedValue(Strict):
    """A number with its origin. ``float(q)`` and ``int(q)`` give the number."""

    value: PositiveFloat
    """The number, in the unit that the key names."""
    source: Provenance
    """Kind of origin."""
    ref: Name
    """Document, table or reason."""

    def __float__(self) -> float:
        return self.value

    def __int__(self) -> int:
        return int(self.value)


class HardwareProfile(Strict):
    """One GPU type in its system. Rates are dense and per GPU; link rates are per GPU and direction."""

    name: Name
    """Name of the profile."""
    description: Name
    """The system in one sentence."""
    memory_bytes: SourcedValue
    """Memory of one GPU as its driver reports it."""
    memory_bandwidth_bytes_per_s: SourcedValue
    """Peak bandwidth of the GPU memory."""
    bf16_flops: SourcedValue
    """Peak dense BF16 rate in FLOP/s."""
    fp8_flops: SourcedValue
    """Peak dense FP8 rate in FLOP/s."""
    nvfp4_flops: SourcedValue | None = None
    """Peak dense NVFP4 rate in FLOP/s; null without."""
    nvlink_bandwidth_bytes_per_s: SourcedValue
    """NVLink rate."""
    nvlink_domain_gpus: SourcedValue
    """GPUs that reach each other over NVLink."""
    gpus_per_node: SourcedValue
    """GPUs under one operating system."""
    nvlink_latency_s: SourcedValue
    """Time of a small-message step over NVLink, in a graph."""
    network_bandwidth_bytes_per_s: SourcedValue
    """Rate of the scale-out network."""
    network_latency_s: SourcedValue
    """Latency of one message over the network."""
    host_link_bandwidth_bytes_per_s: SourcedValue
    """Rate between a GPU and its host."""
    host_memory_bytes: SourcedValue
    """Host memory of one node."""
    l2_bytes: SourcedValue
    """Last-level cache of the GPU."""
    power_w: SourcedValue
    """Power limit of one GPU."""
    price_per_gpu_hour_usd: SourcedValue
    """Price of a GPU hour; set your own."""
    host_cpu: Name
    """Host processor."""
    eager_launch_s: SourcedValue
    """Host time per operator that an eager launch adds to one replayed from a graph."""
    operator_tables: Name | None = None
    """Folder of measured operator tables under calibration/; null without."""

    def _problems(self) -> Iterator[str]:
        yield from self._in_their_units()
        yield from self._nodes_fill_the_domain()

    def _in_their_units(self) -> Iterator[str]:
        # A core of a processor is slower than any GPU, and is measured.
        measured = "measured" in (self.memory_bandwidth_bytes_per_s.source, self.bf16_flops.source)
        for key, limits in BOUNDS.items():
            quantity = getattr(self, key)
            least, most, unit = limits if measured else UNMEASURED_BOUNDS.get(key, limits)
            if quantity is not None and not least <= quantity.value <= most:
                slip = _slip(quantity.value, least, most, unit)
                yield (f"{key}.value must be in {unit}, between {least:g} and {most:g}; got {quantity.value:g}{slip}")

    def _nodes_fill_the_domain(self) -> Iterator[str]:
        for key in ("nvlink_domain_gpus", "gpus_per_node"):
            value = float(getattr(self, key))
            if value != int(value):
                yield f"{key} must be a whole number, got {value:g}"
        # Groups fill a node, then the domain: neither may end in the midst of the other.
        domain, node = int(self.nvlink_domain_gpus), int(self.gpus_per_node)
        if domain % node and node % domain:
            yield f"gpus_per_node {node} and nvlink_domain_gpus {domain} do not divide each other"

    @property
    def rack(self) -> bool:
        """Whether NVLink joins several nodes."""
        return self.nvlink_domain_gpus.value > self.gpus_per_node.value

    def flops(self, precision: str) -> float:
        """Peak dense FLOP/s at ``precision`` (bf16, fp8 or nvfp4). InputError where the GPU has no such unit.

        Weights in MXFP4 meet activations in FP8 where four bits have a unit, elsewhere in BF16; INT4 does everywhere.
        """
        rates = {"bf16": self.bf16_flops, "fp8": self.fp8_flops, "nvfp4": self.nvfp4_flops}
        if precision == "int4":
            precision = "bf16"
        elif precision == "mxfp4":
            # Without units for four bits weights are unpacked to BF16 before they are multiplied.
            precision = "bf16" if self.nvfp4_flops is None else "fp8"
        rate = rates.get(precision)
        if rate is None:
            known = ", ".join(name for name, quantity in rates.items() if quantity is not None)
            raise InputError(f"hardware '{self.name}' has no {precision} rate; it has {known}")
        return rate.value
