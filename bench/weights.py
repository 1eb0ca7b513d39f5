"""Copies of a model's weights, tensor by tensor or packed: inside device memory, and between device and host."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench.cases import Case
from bench.timing import Call
from bench.workbench import Prepared, UnsupportedError, Workbench


def weight_tensors(case: Case, device: torch.device, pinned: bool = False) -> list[Tensor]:
    """``tensors`` equal BF16 tensors of ``bytes`` in all, written once, so that host pages are there."""
    count = case.number("tensors")
    size = case.number("bytes") // count // torch.bfloat16.itemsize
    return [torch.ones(size, dtype=torch.bfloat16, device=device, pin_memory=pinned) for _ in range(count)]


def pack(tensors: list[Tensor], bucket: Tensor) -> None:
    """Write flat ``tensors`` one behind the other into ``bucket``."""
    torch.cat(tensors, out=bucket)


def unpack(bucket: Tensor, tensors: list[Tensor]) -> None:
    """The inverse of :func:`pack`."""
    torch._foreach_copy_(tensors, list(bucket.split([tensor.numel() for tensor in tensors])))


def _weight_copy(case: Case, on: Workbench) -> Prepared:
    """Weights to other tensors of the same device: ``tensors`` by a copy each, ``foreach`` by one call for all,
    ``bucket`` packed, copied in one piece and unpacked.
    """
    sources, targets = weight_tensors(case, on.device), weight_tensors(case, on.device)
    path = case.text("path")
    if path == "foreach":
        return Prepared([lambda: torch._foreach_copy_(targets, sources)], mode="eager")
    if path == "tensors":
        return Prepared([_one_by_one(sources, targets)], mode="eager")
    packed, received = (torch.empty(_elements(sources), dtype=sources[0].dtype, device=on.device) for _ in range(2))

    def bucket() -> None:
        pack(sources, packed)
        received.copy_(packed)
        unpack(received, targets)

    return Prepared([bucket], mode="eager")


def _elements(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _one_by_one(sources: list[Tensor], targets: list[Tensor]) -> Call:
    def call() -> None:
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source, non_blocking=True)

    return call


def _host_weight_copy(case: Case, on: Workbench) -> Prepared:
    """Weights over the host link, a copy for each tensor. ``pinned`` memory is there before; ``pageable`` memory is
    there when it is read and allocated when it is written, as an offload does.
    """
    if on.device.type != "cuda":
        raise UnsupportedError("a CPU has no host link")
    pinned, held = case.text("memory") == "pinned", weight_tensors(case, on.device)
    if case.text("direction") == "to_host" and not pinned:
        return Prepared([lambda: [torch.empty(len(one), dtype=one.dtype).copy_(one) for one in held]], mode="eager")
    host = weight_tensors(case, torch.device("cpu"), pinned)
    ends = (host, held) if case.text("direction") == "to_device" else (held, host)
    return Prepared([_one_by_one(*ends)], mode="eager")


WEIGHT_OPERATORS: dict[str, Callable[[Case, Workbench], Prepared]] = {
    "weight_copy": _weight_copy,
    "host_weight_copy": _host_weight_copy,
}
