"""A device in numbers from its measurements, and the hardware profile made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import ValidationError

from bench.cases import CPU_CACHE_BYTES
from bench.measurements import Measurement, Measurements, Metadata
from rlsim.calibration.columns import BOUND_RATIO, Efficiencies, efficiency
from rlsim.costs.engine.layers import UNCOMPILED_LAUNCHES
from rlsim.errors import InputError
from rlsim.files.lookup import catalogue
from rlsim.files.yaml import lists_beside
from rlsim.schema.base import changed
from rlsim.schema.hardware import BOUNDS, HardwareProfile, SourcedValue
from rlsim.schema.messages import as_input_error
from rlsim.tables.operators import Efficiency
from rlsim.tables.profile import load_profile
from rlsim.units import GIGA, MICROSECOND, TERA

_FEWEST_CASES = 3
_EFFICIENCY_OPS = ("gemm", "decode_attention", "verify_attention", "prefill_attention", "moe")
_PRECISION = "bf16"


LAUNCHES = ("launch_eager_s", "launch_in_graph_s", "graph_replay_s")
HOST_SECONDS = (*LAUNCHES, "enqueue_layer_s", "enqueue_draft_pass_s", "enqueue_tail_s")
"""Host seconds of one launch, of a launch inside a replayed graph and of a replay; and, where the device was asked, to
enqueue parts of an eager step."""


@dataclass(frozen=True)
class DeviceRates:
    """Best rates that the cases reached, launch costs, and per operation the share of these rates that was achieved.

    flops: best rate by precision. eager_launch_s: host seconds of an eager layer over the launches that the cost model
    counts in one. host: HOST_SECONDS by name. training: share of the BF16 rate that the largest layer reached forward
    and with its backward pass, and of the memory bandwidth that the largest optimizer step reached.
    """

    flops: Mapping[str, float]
    memory_bytes_per_s: float
    host_link_bytes_per_s: float | None
    link_bytes_per_s: float | None
    link_latency_s: float | None
    eager_launch_s: float
    host: Mapping[str, float]
    efficiency: Efficiencies
    training: Mapping[str, float]

    def text(self) -> str:
        """The rates in a few lines."""
        rates = ", ".join(f"{precision} {rate / TERA:.3g} TFLOP/s" for precision, rate in self.flops.items())
        launch = f"eager launch {self.eager_launch_s / MICROSECOND:.1f} us"
        lines = [f"measured: {rates}, memory {self.memory_bytes_per_s / GIGA:.4g} GB/s, {launch}"]
        if self.training:
            shares = ", ".join(f"{name} {share:.2f}" for name, share in self.training.items())
            lines.append(f"training, share of these rates: {shares}")
        return "\n".join(lines)


def rates_of(measured: Measurements) -> DeviceRates:
    """Rates and shares from the cases. Raises InputError where copies, launches or matrix products are missing."""
    rates = {precision: _best_product(measured, precision) for precision in (_PRECISION, "fp8")}
    flops = {precision: rate for precision, rate in rates.items() if rate is not None}
    cache = measured.metadata.l2_bytes or 0
    # A copy that fits the L2 cache shows the rate of the cache.
    bandwidth = _best_bytes([record for record in measured.of("device_copy") if record.case.number("bytes") > cache])
    if bandwidth is None or _PRECISION not in flops:
        raise InputError("the measurements lack a BF16 matrix product or a copy in device memory")
    host = _host(measured)
    return DeviceRates(
        flops=flops,
        memory_bytes_per_s=bandwidth,
        host_link_bytes_per_s=_best_bytes(measured.of("host_to_device")),
        link_bytes_per_s=_best_bytes(measured.of("all_gather")),
        # The smallest message shows the latency alone.
        link_latency_s=min((record.seconds for record in measured.of("all_reduce")), default=None),
        eager_launch_s=_launch_s(host, measured.metadata.device_type),
        host=host,
        efficiency=_efficiency(measured, flops, bandwidth),
        training=_training(measured, flops[_PRECISION], bandwidth),
    )


def _best_bytes(records: Sequence[Measurement]) -> float | None:
    return max((record.case.bytes / record.seconds for record in records), default=None)


def _best_product(measured: Measurements, precision: str) -> float | None:
    chosen = (record for record in measured.of("gemm") if record.case.text("dtype") == precision)
    return max((record.case.flops / record.seconds for record in chosen), default=None)


def _training(measured: Measurements, flops: float, bandwidth: float) -> Mapping[str, float]:
    layers = [one for one in measured.of("layer_forward", "layer_forward_backward") if one.case.text("mode") != "graph"]
    # Smallest first: of each operation the largest is written last and stays.
    layers.sort(key=lambda record: record.case.flops)
    shares = {record.case.op: record.case.flops / record.seconds / flops for record in layers}
    for record in sorted(measured.of("optimizer_step"), key=lambda record: record.case.bytes):
        shares["optimizer_step"] = record.case.bytes / record.seconds / bandwidth
    return {op: round(share, 4) for op, share in shares.items()}


def _host(measured: Measurements) -> Mapping[str, float]:
    seconds: dict[str, float] = {}
    for record in measured.of("launch_eager", "launch_in_graph", "graph_replay"):
        seconds[f"{record.case.op}_s"] = record.seconds
    for record in measured.of("host_enqueue"):
        seconds[f"enqueue_{record.case.text('part')}_s"] = record.seconds
    if not seconds.keys() >= set(LAUNCHES):
        raise InputError("the measurements lack launches or the replay of a graph")
    return {name: float(f"{seconds[name]:.4g}") for name in HOST_SECONDS if name in seconds}


def _launch_s(host: Mapping[str, float], device_type: str) -> float:
    """Host seconds of one launch as the cost model counts them; on a CPU, where host and device are one, of a smallest
    kernel.
    """
    if device_type != "cuda" or "enqueue_layer_s" not in host:
        return host["launch_eager_s"]
    return host["enqueue_layer_s"] / UNCOMPILED_LAUNCHES


def _efficiency(measured: Measurements, flops: Mapping[str, float], bandwidth: float) -> Efficiencies:
    """Share of the best rates, by operation and precision, of the cases bound by each."""
    found: dict[str, dict[str, Efficiency]] = {}
    for op in _EFFICIENCY_OPS:
        for precision, rate in flops.items():
            records = [r for r in measured.of(op) if (r.case.text("dtype") or _PRECISION) == precision]
            if records:
                found.setdefault(op, {})[precision] = _shares(records, rate, bandwidth)
    return found


def _shares(records: Sequence[Measurement], rate: float, bandwidth: float) -> Efficiency:
    seconds = np.array([record.seconds for record in records])
    compute = np.array([record.case.flops for record in records]) / rate
    memory = np.array([record.case.bytes for record in records]) / bandwidth
    small = float(np.median(np.sort(seconds)[:_FEWEST_CASES]))
    # Near the floor of the fastest cases a time is launch and no share of a rate.
    large, chosen = seconds > BOUND_RATIO * small, []
    for ideal, other in ((compute, memory), (memory, compute)):
        bound = (ideal > BOUND_RATIO * other) & large
        # The rates are the best of other cases, which noise may let a case exceed.
        chosen.append(np.minimum(ideal[bound] / seconds[bound], 1.0))
    return efficiency(chosen[0], chosen[1], _FEWEST_CASES, small)


def profile_of(
    name: str, tables: str, rates: DeviceRates, metadata: Metadata, own_tables: bool = False
) -> HardwareProfile:
    """Profile of the device: a shipped one of that name with the host link as measured, else one made of measurements.

    A shipped profile keeps its launch cost, which an engine's own kernels showed: a bare torch loop launches faster.

    tables: what the profile names as its tables, a system under calibration/ or a folder; a shipped profile keeps the
    imported ones unless ``own_tables``. Rates of a shipped profile stay those of the datasheet, since tables are shares
    of them. Raises InputError where a figure is none of any device.
    """
    if name not in catalogue("hardware_profiles"):
        try:
            return _unknown_profile(name, tables, rates, metadata)
        except ValidationError as error:
            where = (
                f"what was measured of '{name}'; a machine that did something else meanwhile is to be measured again"
            )
            raise as_input_error(error, where, HardwareProfile) from error
    shipped = load_profile(name)
    if rates.host_link_bytes_per_s:
        link = _known(metadata, rates.host_link_bytes_per_s, "pinned copy")
        shipped = changed(shipped, host_link_bandwidth_bytes_per_s=link)
    return changed(shipped, operator_tables=tables) if own_tables else shipped


def _known(metadata: Metadata, value: float, what: str) -> SourcedValue:
    """A measured quantity with its origin."""
    origin = f"rlsim calibrate on {metadata.device}, torch {metadata.torch}, {metadata.date[:10]}"
    return SourcedValue(value=float(f"{value:.6g}"), source="measured", ref=f"{origin}: {what}")


def _quantity(metadata: Metadata, key: str, value: float | None, fallback: float | None) -> SourcedValue:
    """A quantity as measured, else the stated value or ``fallback``, with the reason."""
    entry = lists_beside(__file__, "device_profile.yaml")[key]
    stand_in, reason = entry.get("value", fallback), entry.get("otherwise", "")
    if "busy" in entry and value is not None:
        least, most, unit = BOUNDS[key]
        if not least <= value <= most:
            gave = f"{entry['measured']} gave {value:.3g} {unit}, which no link does: the machine was busy"
            return SourcedValue(value=stand_in, source="assumed", ref=f"{gave}; {entry['busy']}")
    if value or stand_in is None:
        return _known(metadata, value or 0.0, entry["measured"])
    return SourcedValue(value=stand_in, source="assumed", ref=reason)


def _unknown_profile(name: str, tables: str, measured: DeviceRates, metadata: Metadata) -> HardwareProfile:
    bandwidth, bf16, launch_s = measured.memory_bytes_per_s, measured.flops[_PRECISION], measured.eager_launch_s
    # Measured, and the device's own figure where nothing was; the network is never measured.
    found: dict[str, tuple[float | None, float | None]] = {
        "memory_bandwidth_bytes_per_s": (bandwidth, None),
        "bf16_flops": (bf16, None),
        "fp8_flops": (measured.flops.get("fp8"), bf16),
        "nvlink_bandwidth_bytes_per_s": (measured.link_bytes_per_s, bandwidth),
        "nvlink_domain_gpus": (metadata.device_count, None),
        "gpus_per_node": (metadata.device_count, None),
        "nvlink_latency_s": (measured.link_latency_s, launch_s),
        "host_memory_bytes": (metadata.host_memory_bytes, None),
        "host_link_bandwidth_bytes_per_s": (measured.host_link_bytes_per_s, bandwidth),
        "l2_bytes": (metadata.l2_bytes, CPU_CACHE_BYTES),
        "eager_launch_s": (launch_s, None),
    }
    of_device = "memory of the device as torch reports it"
    return HardwareProfile(
        name=name,
        description=f"{metadata.device}, measured by rlsim",
        host_cpu=metadata.host_cpu,
        operator_tables=tables,
        memory_bytes=SourcedValue(value=metadata.device_memory_bytes, source="measured", ref=of_device),
        **{
            key: _quantity(metadata, key, *found.get(key, (None, None)))
            for key in lists_beside(__file__, "device_profile.yaml")
        },
    )
