"""Whole engine steps: decode iterations and speculative steps, replayed, eager or compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from bench.attention import cached_attention, plan_attention
from bench.cases import COMPILED, Case
from bench.launches import enqueue_seconds, kernel_count, require_graphs
from bench.measurements import Facts
from bench.speculation import Sampling, State, Target, random_state, speculative_step, target_forward
from bench.timing import Call, Mode
from bench.transformer import cache_capacity
from bench.workbench import Prepared, UnsupportedError, Workbench

Forward = Callable[[Target, State, Tensor, Tensor, str], tuple[Tensor, Tensor]]
"""A target's forward pass, as :func:`bench.speculation.target_forward`."""


def _step(case: Case, on: Workbench) -> Prepared:
    """The step at a held context, replayed or eager."""
    call, kernel = _held_step(case, on, target_forward)
    return Prepared([call], mode=cast("Mode", case.text("mode")), facts=Facts(kernel=kernel))


def _depth_iteration(case: Case, on: Workbench) -> Prepared:
    """A decode iteration with the number of its kernels; ``compiled``: layers and head by torch.compile, sampling as it
    stands.
    """
    mode = case.text("mode")
    require_graphs(mode, on.device)
    call, kernel = _held_step(case, on, _compiled(target_forward) if mode == COMPILED else target_forward)
    if mode == COMPILED:
        _compile_now(call)
    facts = Facts(kernel=kernel, kernels=kernel_count(call, on.device))
    if mode == "graph":
        return Prepared([call], facts=facts)
    return Prepared([call], mode="eager", facts=replace(facts, host_s=enqueue_seconds(call, on.device)))


def _held_step(case: Case, on: Workbench, forward: Forward) -> tuple[Call, str]:
    """The step, after which lengths are set back so that repetitions do equal work, and its attention kernels."""
    batch, context, k = case.number("batch"), case.number("context"), int(case.params.get("draft_length", 0))
    target, head = on.model(case.text("model"), case.number("layers"))
    state = random_state(target, batch, context, k, cache_capacity(context + k + 1))
    kernels = (_kernel(target, state, 1, context, on), _kernel(target, state, k + 1, context, on))
    sampling = Sampling()

    def call() -> None:
        speculative_step(target, head, state, k, sampling, kernels, forward=forward)
        state.lengths.fill_(context)

    return call, " ".join(kernels)


def _compiled(forward: Forward) -> Forward:
    """``forward`` by torch.compile, without the guards that torch checks at each call: engines drop them too."""
    # Without guards the code of one depth would answer for another.
    torch.compiler.reset()
    without = getattr(torch.compiler, "skip_all_guards_unsafe", None)
    options: dict[str, Any] | None = {"guard_filter_fn": without} if without else None
    made: Forward = torch.compile(forward, dynamic=False, options=options)
    return made


def _compile_now(call: Call) -> None:
    """Compile by a first call, outside of what is timed."""
    try:
        call()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler lacks on a machine
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UnsupportedError(f"torch.compile does not work here: {reason}") from error


def _kernel(target: Target, state: State, queries: int, context: int, on: Workbench) -> str:
    """Fastest attention kernel for this step's shape, as the operator cases choose it."""
    dims, cache = target.dims, state.target_cache[0]
    batch, capacity = cache.keys.shape[:2]
    query = on.random(batch, queries, dims.heads, dims.head_dim)
    key, value = (tensor[:, context : context + queries] for tensor in (cache.keys, cache.values))

    def make(kernel: str) -> Call:
        plan = plan_attention(kernel, state.lengths, queries, capacity, dims.group)
        return lambda: cached_attention(plan, query, key, value, cache.keys, cache.values)

    return on.fastest(dims, (batch, queries, context), make)


STEP_OPERATORS: dict[str, Callable[[Case, Workbench], Prepared]] = {
    "decode_iteration": _step,
    "speculative_step": _step,
    "depth_iteration": _depth_iteration,
}
