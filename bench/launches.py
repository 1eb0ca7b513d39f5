"""Launches: how many kernels a call launches, and chains of kernels that last a given time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from bench.cases import Case
from bench.timing import Call, Mode, StopRule, capture_into, measure_host, warm_up
from bench.workbench import Prepared, UnsupportedError, Workbench

_CHAIN = 64
"""Kernels in a chain; as many as hide what its ends cost."""
_DRIVER = "libcuda.so.1"
_BRIEF = StopRule(min_repeats=3, max_repeats=9, target_spread=0.03, max_seconds=0.1)


def kernel_count(call: Call, device: torch.device) -> int | None:
    """Kernels and copies that ``call`` launches: nodes of a CUDA graph captured of it, as the driver counts them.

    None on a CPU, and where this torch does not hand its graphs out. What cannot be captured raises as a capture does.
    """
    if device.type != "cuda":
        return None
    warm_up([call])
    try:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
    except TypeError:  # before torch 2.8
        return None
    capture_into(graph, [call])
    return graph_nodes(graph)


def graph_nodes(graph: Any) -> int | None:
    """Nodes of a captured ``torch.cuda.CUDAGraph`` that kept its graph; None where the driver does not tell."""
    count = ctypes.c_size_t()
    # A graph of the runtime is one of the driver, and the driver's library has one name in every release.
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return None
    failed = driver.cuGraphGetNodes(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(count))
    return None if failed else int(count.value)


def enqueue_seconds(call: Call, device: torch.device) -> float | None:
    """Host seconds to launch all kernels of ``call`` from an idle device; None on a CPU, which does the work itself."""
    if device.type != "cuda":
        return None
    return measure_host([call], device, _BRIEF).seconds_median


def require_graphs(mode: str, device: torch.device) -> None:
    """UnsupportedError where ``mode`` is one that only a GPU has: eager work alone runs everywhere."""
    if mode != "eager" and device.type != "cuda":
        raise UnsupportedError("a CPU replays no graphs and hides no launches")


def _launch_chain(case: Case, on: Workbench) -> Prepared:
    """Kernels one after the other on the same ``elements`` FP32 values, each of which waits for the one before."""
    mode = case.text("mode")
    require_graphs(mode, on.device)
    x: Tensor = torch.zeros(case.number("elements"), device=on.device)
    return Prepared([lambda: x.add_(1.0)] * _CHAIN, mode=cast("Mode", mode))


LAUNCH_OPERATORS: dict[str, Callable[[Case, Workbench], Prepared]] = {"launch_chain": _launch_chain}
