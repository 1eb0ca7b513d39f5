"""A device in numbers from its measured cells, and the hardware profile made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlsim.calibration.cases import CPU_CACHE_BYTES
from rlsim.costs.layers import ATTENTION_LAUNCHES, DENSE_LAUNCHES
from rlsim.errors import InputError
from rlsim.hardware.lookup import catalogue
from rlsim.hardware.profile import load_profile
from rlsim.schema.hardware import HardwareProfile
from rlsim.units import GIGA, MICROSECOND, TERA

_BOUND_RATIO = 2.0
"""How far compute and memory time must be apart for a cell to count as bound by the larger."""
_FEWEST_CELLS = 3
_EFFICIENCY_OPS = {"gemm": "dtype", "decode_attention": "", "verify_attention": "", "prefill_attention": "", "moe": ""}
_PRECISION = "bf16"

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Measured:
    """Best rates that the cells reached, launch costs, and per operation the share of these rates that was achieved.

    flops: best rate by precision. eager_launch_s: host seconds of an eager layer over the launches that the cost model
    counts in one. host: seconds of launches and of enqueueing the parts of an eager step.
    """

    flops: dict[str, float]
    memory_bytes_per_s: float
    host_link_bytes_per_s: float | None
    link_bytes_per_s: float | None
    link_latency_s: float | None
    eager_launch_s: float
    host: dict[str, float]
    efficiency: dict[str, dict[str, dict[str, float]]]

    def text(self) -> str:
        """The rates in one line."""
        rates = ", ".join(f"{precision} {rate / TERA:.3g} TFLOP/s" for precision, rate in self.flops.items())
        launch = f"eager launch {self.eager_launch_s / MICROSECOND:.1f} us"
        return f"measured: {rates}, memory {self.memory_bytes_per_s / GIGA:.4g} GB/s, {launch}"


def summarise_device(records: Records, circumstances: Mapping[str, Any]) -> Measured:
    """Rates and shares from the cells. Raises InputError where copies or matrix products are missing."""
    good = [record for record in records if "sample" in record]
    rates = {precision: _best_product(good, precision) for precision in (_PRECISION, "fp8")}
    flops = {precision: rate for precision, rate in rates.items() if rate is not None}
    bandwidth = _best(good, "device_copy", "bytes", _beyond_cache(circumstances))
    if bandwidth is None or _PRECISION not in flops:
        raise InputError("the measurements lack a BF16 matrix product or a copy in device memory")
    host = _host(good)
    return Measured(
        flops=flops,
        memory_bytes_per_s=bandwidth,
        host_link_bytes_per_s=_best(good, "host_to_device", "bytes"),
        link_bytes_per_s=_best(good, "all_gather", "bytes"),
        link_latency_s=_least(good, "all_reduce"),
        eager_launch_s=_launch_s(host, str(circumstances["device_type"])),
        host=host,
        efficiency=_efficiency(good, flops, bandwidth),
    )


def _beyond_cache(circumstances: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], bool]:
    """Copies too large for the last-level cache, as far as it is known."""
    cache = circumstances.get("l2_bytes") or 0
    return lambda params: params["bytes"] > cache


def _best(
    records: Records, op: str, work: str, wanted: Callable[[Mapping[str, Any]], bool] = lambda _: True
) -> float | None:
    rates = [r[work] / r["sample"]["seconds_median"] for r in records if r["op"] == op and wanted(r["params"])]
    return max(rates, default=None)


def _best_product(records: Records, precision: str) -> float | None:
    return _best(records, "gemm", "flops", lambda params: bool(params["dtype"] == precision))


def _least(records: Records, op: str) -> float | None:
    return min((record["sample"]["seconds_median"] for record in records if record["op"] == op), default=None)


def _seconds(records: Records, op: str) -> float:
    found = _least(records, op)
    if found is None:
        raise InputError(f"the measurements lack '{op}'")
    return found


def _host(records: Records) -> dict[str, float]:
    names = ("launch_eager", "launch_in_graph", "graph_replay")
    host = {f"{name}_s": _seconds(records, name) for name in names}
    for record in records:
        if record["op"] == "host_enqueue":
            host[f"enqueue_{record['params']['part']}_s"] = record["sample"]["seconds_median"]
    return {name: float(f"{seconds:.4g}") for name, seconds in host.items()}


def _launch_s(host: Mapping[str, float], device_type: str) -> float:
    """Host seconds of one launch as the cost model counts them; on a CPU, where host and device are one, of a smallest
    kernel.
    """
    layer = host.get("enqueue_layer_s")
    if device_type != "cuda" or layer is None:
        return host["launch_eager_s"]
    return layer / (ATTENTION_LAUNCHES + DENSE_LAUNCHES)


def _efficiency(
    records: Records, flops: Mapping[str, float], bandwidth: float
) -> dict[str, dict[str, dict[str, float]]]:
    """Median and 90th percentile share of the best rates, by operation and precision, of the cells bound by each."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for op, key in _EFFICIENCY_OPS.items():
        for precision, rate in flops.items():
            cells = [r for r in records if r["op"] == op and (r["params"][key] if key else _PRECISION) == precision]
            shares = _shares(cells, rate, bandwidth)
            if shares:
                found.setdefault(op, {})[precision] = shares
    return found


def _shares(cells: Records, rate: float, bandwidth: float) -> dict[str, float]:
    if not cells:
        return {}
    seconds = np.array([cell["sample"]["seconds_median"] for cell in cells])
    compute, memory = (np.array([cell[work] for cell in cells]) for work in ("flops", "bytes"))
    compute, memory = compute / rate, memory / bandwidth
    small = np.median(np.sort(seconds)[:_FEWEST_CELLS])
    shares: dict[str, float] = {}
    for kind, ideal, other in (("compute", compute, memory), ("memory", memory, compute)):
        chosen = (ideal > _BOUND_RATIO * other) & (seconds > _BOUND_RATIO * small)
        if chosen.sum() >= _FEWEST_CELLS:
            share = np.minimum(ideal[chosen] / seconds[chosen], 1.0)
            shares[f"{kind}_median"] = round(float(np.median(share)), 4)
            shares[f"{kind}_p90"] = round(float(np.percentile(share, 90)), 4)
    return {**shares, "floor_s": float(f"{small:.4g}")}


def profile_of(
    name: str, tables: str, measured: Measured, circumstances: Mapping[str, Any], own_tables: bool = False
) -> dict[str, Any]:
    """Profile of the device: a shipped one of that name with the host link as measured, else one made of measurements.

    A shipped profile keeps its launch cost, which an engine's own kernels showed: a bare torch loop launches faster.

    tables: what the profile names as its tables, a system under calibration/ or a folder; a shipped profile keeps the
    imported ones unless ``own_tables``. Rates of a shipped profile stay those of the datasheet, since tables are shares
    of them.
    """
    if name in catalogue("hardware_profiles"):
        content = load_profile(name).model_dump(mode="json")
        content.update(_host_link(measured, circumstances))
        return {**content, "operator_tables": tables} if own_tables else content
    content = _unknown_profile(name, tables, measured, circumstances)
    HardwareProfile.model_validate(content)
    return content


def _origin(circumstances: Mapping[str, Any]) -> str:
    return f"rlsim calibrate on {circumstances['device']}, torch {circumstances['torch']}, {circumstances['date'][:10]}"


def _quantity(value: float, source: str, ref: str) -> dict[str, Any]:
    return {"value": float(f"{value:.6g}") if value != int(value) else int(value), "source": source, "ref": ref}


def _host_link(measured: Measured, circumstances: Mapping[str, Any]) -> dict[str, Any]:
    """The link to host memory as measured; nothing where the device has none."""
    if not measured.host_link_bytes_per_s:
        return {}
    link = _quantity(measured.host_link_bytes_per_s, "measured", f"{_origin(circumstances)}: pinned copy")
    return {"host_link_bandwidth_bytes_per_s": link}


class _Origins:
    """Quantities with their origin: measured here, or assumed for a reason."""

    def __init__(self, circumstances: Mapping[str, Any]) -> None:
        self._origin = _origin(circumstances)

    def known(self, value: float, what: str) -> dict[str, Any]:
        return _quantity(value, "measured", f"{self._origin}: {what}")

    def assumed(self, value: float, reason: str) -> dict[str, Any]:
        return _quantity(value, "assumed", reason)

    def either(self, value: float | None, what: str, fallback: float, reason: str) -> dict[str, Any]:
        return self.known(value, what) if value else self.assumed(fallback, reason)


def _unknown_profile(name: str, tables: str, measured: Measured, circumstances: Mapping[str, Any]) -> dict[str, Any]:
    of = _Origins(circumstances)
    bandwidth, bf16 = measured.memory_bytes_per_s, measured.flops[_PRECISION]
    return {
        "name": name,
        "description": f"{circumstances['device']}, measured by rlsim",
        "host_cpu": str(circumstances["host_cpu"]),
        "operator_tables": tables,
        "memory_bytes": of.known(circumstances["device_memory_bytes"], "as torch reports it"),
        "memory_bandwidth_bytes_per_s": of.known(bandwidth, "best copy in device memory, bytes read and written"),
        "bf16_flops": of.known(bf16, "best BF16 matrix product"),
        "fp8_flops": of.either(
            measured.flops.get("fp8"), "best FP8 matrix product", bf16, "no FP8 unit: the BF16 rate"
        ),
        "nvfp4_flops": None,
        **_fabric_quantities(of, measured, int(circumstances["device_count"])),
        "host_memory_bytes": of.known(circumstances["host_memory_bytes"], "as the operating system reports it"),
        "host_link_bandwidth_bytes_per_s": of.either(
            measured.host_link_bytes_per_s, "pinned copy to the device", bandwidth, "the device is the host"
        ),
        "l2_bytes": of.either(
            circumstances.get("l2_bytes"), "as torch reports it", CPU_CACHE_BYTES, "typical cache share of a server CPU"
        ),
        "power_w": of.assumed(200.0, "typical package power of a server CPU or GPU; set your own"),
        "price_per_gpu_hour_usd": of.assumed(1.0, "round default, no offer; set your own"),
        "eager_launch_s": of.known(
            measured.eager_launch_s, "host time of an eager layer by the launches in it; on a CPU a smallest kernel"
        ),
    }


def _fabric_quantities(of: _Origins, measured: Measured, count: int) -> dict[str, Any]:
    """Links between the devices of the machine as measured where it has several; the network is never measured."""
    no_fabric = "one machine was measured; set the figure of your network"
    rate, latency = measured.link_bytes_per_s, measured.link_latency_s
    return {
        "nvlink_bandwidth_bytes_per_s": of.either(
            rate, "best all-gather between the devices", measured.memory_bytes_per_s, "one device: its own memory"
        ),
        "nvlink_domain_gpus": of.known(count, "devices of the machine"),
        "gpus_per_node": of.known(count, "devices of the machine"),
        "nvlink_latency_s": of.either(
            latency, "smallest all-reduce between the devices", measured.eager_launch_s, "one device: its launch cost"
        ),
        "network_bandwidth_bytes_per_s": of.assumed(1.25e9, f"10 Gb/s Ethernet; {no_fabric}"),
        "network_latency_s": of.assumed(5e-5, f"round trip of an Ethernet switch; {no_fabric}"),
    }
