"""Copies, launches and host work as operators."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench.attention import plan_attention
from bench.cases import ENQUEUE_CONTEXT, Case
from bench.rejection import Draft, sampling_probabilities, verify
from bench.speculation import (
    Sampling,
    draft_pass,
    propose,
    random_state,
)
from bench.timing import Call, capture
from bench.transformer import LayerCache, LayerWeights, cache_capacity, decoder_layer
from bench.workbench import Prepared, UnsupportedError, Workbench

_LAUNCHES = 64
_ENQUEUE_BATCH = 1


def _device_copy(case: Case, on: Workbench) -> Prepared:
    size = case.number("bytes")
    pairs = [
        tuple(torch.randint(0, 100, (size,), device=on.device, dtype=torch.uint8) for _ in range(2))
        for _ in range(on.copies(2 * size))
    ]

    def call(pair: tuple[torch.Tensor, ...]) -> Call:
        return lambda: pair[0].copy_(pair[1])

    return Prepared([call(pair) for pair in pairs])


def _host_copy(to_device: bool) -> Callable[[Case, Workbench], Prepared]:
    def make(case: Case, on: Workbench) -> Prepared:
        if on.device.type != "cuda":
            raise UnsupportedError("a CPU has no host link")
        size = case.number("bytes")
        host = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
        device = torch.zeros(size, dtype=torch.uint8, device=on.device)
        source, destination = (host, device) if to_device else (device, host)
        return Prepared([lambda: destination.copy_(source, non_blocking=True)], mode="eager")

    return make


def _small_kernel(on: Workbench) -> Call:
    x = torch.zeros(1, device=on.device)
    return lambda: x.add_(1.0)


def _launch_eager(_: Case, on: Workbench) -> Prepared:
    return Prepared([_small_kernel(on)] * _LAUNCHES, mode="eager")


def _launch_in_graph(_: Case, on: Workbench) -> Prepared:
    return Prepared([_small_kernel(on)] * _LAUNCHES)


def _graph_replay(_: Case, on: Workbench) -> Prepared:
    """Host seconds to replay a graph of one kernel; without graphs, to call the kernel."""
    call = _small_kernel(on)
    call()
    if on.device.type != "cuda":
        return Prepared([call], mode="eager")
    return Prepared([capture([call])] * _LAUNCHES, mode="eager", host_only=True)


def _host_enqueue(case: Case, on: Workbench) -> Prepared:
    """One part of an eager step at batch 1, whose device work is short: what remains is the host's."""
    target, head = on.model(case.text("model"), case.number("layers"))
    dims, capacity = target.dims, cache_capacity(ENQUEUE_CONTEXT + 2)
    kernel = on.kernels(dims)[0]
    state = random_state(target, _ENQUEUE_BATCH, ENQUEUE_CONTEXT, 1, capacity)
    token = state.tokens[:, :1]
    if case.text("part") == "layer":
        plan = plan_attention(kernel, state.lengths, 1, capacity, dims.group)
        hidden, angles = on.random(_ENQUEUE_BATCH, 1, dims.hidden), state.angles[plan.slots]

        def layer_call(layer: LayerWeights, cache: LayerCache) -> Call:
            return lambda: decoder_layer(hidden, layer, cache, dims, plan, angles)

        pairs = zip(target.layers, state.target_cache, strict=True)
        return Prepared([layer_call(layer, cache) for layer, cache in pairs], host_only=True)
    if case.text("part") == "draft_pass":
        feature = on.random(_ENQUEUE_BATCH, 1, dims.hidden)
        return Prepared(
            [lambda: draft_pass(head, target, state, token, feature, state.lengths, kernel)], host_only=True
        )
    draft = propose(head, target, state, 1, Sampling(), (kernel, kernel))
    logits = on.random(_ENQUEUE_BATCH, 2, dims.vocabulary)

    def tail() -> None:
        verify(
            sampling_probabilities(logits, 1.0),
            Draft(draft.tokens, draft.probabilities, draft.indices, draft.to_target),
        )

    return Prepared([tail], host_only=True)


HOST_OPERATORS: dict[str, Callable[[Case, Workbench], Prepared]] = {
    "device_copy": _device_copy,
    "host_to_device": _host_copy(True),
    "device_to_host": _host_copy(False),
    "launch_eager": _launch_eager,
    "launch_in_graph": _launch_in_graph,
    "graph_replay": _graph_replay,
    "host_enqueue": _host_enqueue,
}
