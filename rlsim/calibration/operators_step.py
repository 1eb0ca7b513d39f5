"""Composite operators: a whole decode iteration or speculative step of the reference model."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from rlsim.calibration.attention import cached_attention, plan_attention
from rlsim.calibration.cell import Cell
from rlsim.calibration.reference_speculation import Sampling, State, Target, random_state, speculative_step
from rlsim.calibration.timing import Call, Mode
from rlsim.calibration.transformer import cache_capacity
from rlsim.calibration.workbench import Prepared, Workbench


def _step(cell: Cell, bench: Workbench) -> Prepared:
    """The step at a held context: lengths are set back after it, so that repetitions do equal work."""
    batch, k, context = (cell.number(name) for name in ("batch", "draft_length", "context"))
    target, head = bench.model(cell.text("model"), cell.number("layers"))
    state = random_state(target, batch, context, k, cache_capacity(context + k + 1))
    kernels = (_kernel(target, state, 1, context, bench), _kernel(target, state, k + 1, context, bench))
    sampling = Sampling()

    def call() -> None:
        speculative_step(target, head, state, k, sampling, kernels)
        state.lengths.fill_(context)

    mode = cast("Mode", cell.text("mode"))
    return Prepared([call], mode=mode, facts={"kernels": list(kernels)})


def _kernel(target: Target, state: State, queries: int, context: int, bench: Workbench) -> str:
    """Fastest attention kernel for this step's shape, as the operator cells choose it."""
    dims, cache = target.dims, state.target_cache[0]
    batch, capacity = cache.keys.shape[:2]
    query = bench.random(batch, queries, dims.heads, dims.head_dim)
    key, value = (tensor[:, context : context + queries] for tensor in (cache.keys, cache.values))

    def make(kernel: str) -> Call:
        plan = plan_attention(kernel, state.lengths, queries, capacity, dims.group)
        return lambda: cached_attention(plan, query, key, value, cache.keys, cache.values)

    return bench.fastest(dims, (batch, queries, context), make)


STEP_OPERATORS: dict[str, Callable[[Cell, Workbench], Prepared]] = {
    "decode_iteration": _step,
    "speculative_step": _step,
}
