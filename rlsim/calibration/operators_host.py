"""Copies, launches and host work as operators."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rlsim.calibration.attention import plan_attention
from rlsim.calibration.cases import ENQUEUE_CONTEXT
from rlsim.calibration.cell import Cell
from rlsim.calibration.reference_speculation import (
    Sampling,
    draft_pass,
    propose,
    random_state,
)
from rlsim.calibration.rejection import Draft, sampling_probabilities, verify
from rlsim.calibration.timing import Call, capture
from rlsim.calibration.transformer import LayerCache, LayerWeights, cache_capacity, decoder_layer
from rlsim.calibration.workbench import Prepared, UnsupportedError, Workbench

_LAUNCHES = 64
_ENQUEUE_BATCH = 1


def _device_copy(cell: Cell, bench: Workbench) -> Prepared:
    size = cell.number("bytes")
    pairs = [
        tuple(torch.randint(0, 100, (size,), device=bench.device, dtype=torch.uint8) for _ in range(2))
        for _ in range(bench.copies(2 * size))
    ]

    def call(pair: tuple[torch.Tensor, ...]) -> Call:
        return lambda: pair[0].copy_(pair[1])

    return Prepared([call(pair) for pair in pairs])


def _host_copy(to_device: bool) -> Callable[[Cell, Workbench], Prepared]:
    def make(cell: Cell, bench: Workbench) -> Prepared:
        if bench.device.type != "cuda":
            raise UnsupportedError("a CPU has no host link")
        size = cell.number("bytes")
        host = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
        device = torch.zeros(size, dtype=torch.uint8, device=bench.device)
        source, destination = (host, device) if to_device else (device, host)
        return Prepared([lambda: destination.copy_(source, non_blocking=True)], mode="eager")

    return make


def _small_kernel(bench: Workbench) -> Call:
    x = torch.zeros(1, device=bench.device)
    return lambda: x.add_(1.0)


def _launch_eager(_: Cell, bench: Workbench) -> Prepared:
    return Prepared([_small_kernel(bench)] * _LAUNCHES, mode="eager")


def _launch_in_graph(_: Cell, bench: Workbench) -> Prepared:
    return Prepared([_small_kernel(bench)] * _LAUNCHES)


def _graph_replay(_: Cell, bench: Workbench) -> Prepared:
    """Host seconds to replay a graph of one kernel; without graphs, to call the kernel."""
    call = _small_kernel(bench)
    call()
    if bench.device.type != "cuda":
        return Prepared([call], mode="eager")
    return Prepared([capture([call])] * _LAUNCHES, mode="eager", host_only=True)


def _host_enqueue(cell: Cell, bench: Workbench) -> Prepared:
    """One part of an eager step at batch 1, whose device work is short: what remains is the host's."""
    target, head = bench.model(cell.text("model"), cell.number("layers"))
    dims, capacity = target.dims, cache_capacity(ENQUEUE_CONTEXT + 2)
    kernel = bench.kernels(dims)[0]
    state = random_state(target, _ENQUEUE_BATCH, ENQUEUE_CONTEXT, 1, capacity)
    token = state.tokens[:, :1]
    if cell.text("part") == "layer":
        plan = plan_attention(kernel, state.lengths, 1, capacity, dims.group)
        hidden, angles = bench.random(_ENQUEUE_BATCH, 1, dims.hidden), state.angles[plan.slots]

        def layer_call(layer: LayerWeights, cache: LayerCache) -> Call:
            return lambda: decoder_layer(hidden, layer, cache, dims, plan, angles)

        pairs = zip(target.layers, state.target_cache, strict=True)
        return Prepared([layer_call(layer, cache) for layer, cache in pairs], host_only=True)
    if cell.text("part") == "draft_pass":
        feature = bench.random(_ENQUEUE_BATCH, 1, dims.hidden)
        return Prepared(
            [lambda: draft_pass(head, target, state, token, feature, state.lengths, kernel)], host_only=True
        )
    draft = propose(head, target, state, 1, Sampling(), (kernel, kernel))
    logits = bench.random(_ENQUEUE_BATCH, 2, dims.vocabulary)

    def tail() -> None:
        verify(
            sampling_probabilities(logits, 1.0),
            Draft(draft.tokens, draft.probabilities, draft.indices, draft.to_target),
        )

    return Prepared([tail], host_only=True)


HOST_OPERATORS: dict[str, Callable[[Cell, Workbench], Prepared]] = {
    "device_copy": _device_copy,
    "host_to_device": _host_copy(True),
    "device_to_host": _host_copy(False),
    "launch_eager": _launch_eager,
    "launch_in_graph": _launch_in_graph,
    "graph_replay": _graph_replay,
    "host_enqueue": _host_enqueue,
}
