"""Assumptions on copies of weights: on the device, over the host link, and between processes by CUDA IPC."""

from __future__ import annotations

from collections.abc import Sequence

from bench.cases import HANDED_OVER
from bench.measurements import Measurement, Measurements
from research.assumptions.rows import Assumption, Basis, assumed, by, of_mode, slope_of, taken
from rlsim.costs.transfer.job import HostCopies, links_of
from rlsim.costs.transfer.methods import TransferTerms
from rlsim.schema.engine_parameters import OTHER

_PATHS = {"tensors": "a copy for each tensor", "foreach": "one call for all tensors", "bucket": "pack, copy, unpack"}


def transfer_assumptions(measured: Measurements, basis: Basis) -> list[Assumption]:
    """Seconds of a tensor, which are the slope over the number of tensors of as many bytes, and the rate of one."""
    return [*_on_device(measured, basis), *_over_the_link(measured, basis), *_handed_over(measured, basis)]


def _on_device(measured: Measurements, basis: Basis) -> list[Assumption]:
    terms = basis.fitted.transfers
    values, host = terms.values, TransferTerms.of(terms, OTHER).host(links_of(basis.profile))
    used = {
        "tensors": ("load_tensor_s", values.load_tensor_s * host),
        "foreach": ("load_tensor_s", values.load_tensor_s * host),
        "bucket": ("export_tensor_s + load_tensor_s", (values.export_tensor_s + values.load_tensor_s) * host),
    }
    rows: list[Assumption] = []
    for path, (name, value) in used.items():
        own = of_mode(measured.of("weight_copy"), path, "path")
        rows += assumed(name, value, _fitted(basis, name), _per_tensor(own), f"{_PATHS[path]}, per tensor")
        rows += assumed("none (device copies)", None, "", _rate(own), f"{_PATHS[path]}, one tensor", "bytes/s")
    return rows


def _over_the_link(measured: Measurements, basis: Basis) -> list[Assumption]:
    """Copies between device and host memory, as an offload and an onload of a trainer make them."""
    values, links = basis.fitted.transfers.values, links_of(basis.profile)
    rows: list[Assumption] = []
    for memory in ("pinned", "pageable"):
        copies = HostCopies(values, links, pinned=memory == "pinned")
        for direction, price in (("to_device", copies.in_s), ("to_host", copies.out_s)):
            own = of_mode(of_mode(measured.of("host_weight_copy"), memory, "memory"), direction, "direction")
            way = "in" if direction == "to_device" else "out"
            grace = "_grace" if links.grace and way == "out" else ""
            name = "host_link_share x host link" if copies.pinned else f"pageable_{way}{grace}_bytes_per_s"
            what = f"{memory} {direction.replace('_', ' ')}"
            rate = 1.0 / price(1.0, 0.0)
            rows += assumed(name, rate, _fitted(basis, name), _rate(own), f"{what}, one tensor", "bytes/s")
            per_tensor = price(0.0, 1.0)
            name = "copy_s" if per_tensor else "none (pinned tensors)"
            rows += assumed(name, per_tensor or None, _fitted(basis, name), _per_tensor(own), f"{what}, per tensor")
    return rows


def _handed_over(measured: Measurements, basis: Basis) -> list[Assumption]:
    """Two processes on one GPU: handles of all tensors, or of one bucket that is packed before and unpacked after."""
    terms = basis.fitted.transfers
    values, host = terms.values, TransferTerms.of(terms, OTHER).host(links_of(basis.profile))
    name = "export_tensor_s + load_tensor_s + ipc_tensor_s"
    used = (values.export_tensor_s + values.load_tensor_s + values.ipc_tensor_s) * host
    packed = (values.export_tensor_s + values.load_tensor_s) * host
    each, bucket = (of_mode(measured.of(HANDED_OVER), path, "path") for path in ("tensors", "bucket"))
    free, short = "none (IPC copies)", "export_tensor_s + load_tensor_s"
    return [
        *assumed(name, used, _fitted(basis, name), _per_tensor(each), "CUDA IPC: a handle for each tensor, per tensor"),
        *assumed(short, packed, _fitted(basis, short), _per_tensor(bucket), "CUDA IPC: one bucket, per tensor"),
        *assumed(free, None, "", _rate(each), "CUDA IPC: one tensor", "bytes/s"),
        *assumed(free, None, "", _rate(bucket), "CUDA IPC: one bucket of one tensor", "bytes/s"),
    ]


def _per_tensor(records: Sequence[Measurement]) -> float | None:
    return slope_of(records, by("tensors"), taken)


def _rate(records: Sequence[Measurement]) -> float | None:
    """Weights per second in the fewest tensors, each byte counted once."""
    fewest = min(records, key=by("tensors"), default=None)
    return None if fewest is None else fewest.case.number("bytes") / fewest.seconds


def _fitted(basis: Basis, name: str) -> str:
    """Where the values of an expression over the fitted ones come from."""
    terms = basis.fitted.transfers
    if name.startswith("none"):
        return ""
    kind = "assumed" if any(word in terms.assumed for word in name.split()) else "fitted"
    return f"{kind}: transfers/{terms.name}"
