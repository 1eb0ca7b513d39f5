"""torch kernels of every operator that a cell can name: from a cell to the calls to time."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from rlsim.calibration.attention import cached_attention, plan_attention
from rlsim.calibration.cell import Cell
from rlsim.calibration.dims import ModelDims
from rlsim.calibration.moe import moe_feed_forward, random_experts, route, routing_load
from rlsim.calibration.operators_host import HOST_OPERATORS
from rlsim.calibration.operators_step import STEP_OPERATORS
from rlsim.calibration.operators_training import TRAINING_OPERATORS
from rlsim.calibration.rejection import Draft, draw, sampling_probabilities, verify
from rlsim.calibration.timing import Call
from rlsim.calibration.transformer import (
    LayerWeights,
    cache_capacity,
    condition_qkv,
    empty_cache,
    gated_activation,
    random_layer,
    rms_norm,
    rope_table,
    write_cache,
)
from rlsim.calibration.workbench import Prepared, UnsupportedError, Workbench

_FP8 = torch.float8_e4m3fn
_FP8_CAPABILITY = (8, 9)
_SKEW = 1.0
"""Standard deviation added to the routing logits, which have unit variance when even: a stated choice; imbalance is
measured.
"""


def prepare(cell: Cell, bench: Workbench) -> Prepared:
    """Buffers and calls of ``cell``. Raises UnsupportedError where the device cannot run it."""
    return OPERATORS[cell.op](cell, bench)


def supports_fp8(device: torch.device) -> bool:
    """Whether the device multiplies FP8 matrices."""
    return (
        device.type == "cuda"
        and torch.cuda.get_device_capability(device) >= _FP8_CAPABILITY
        and hasattr(torch, "_scaled_mm")
    )


def _dims(cell: Cell) -> ModelDims:
    """Dimensions of which only the heads matter."""
    heads, kv_heads, head_dim = (cell.number(name) for name in ("heads", "kv_heads", "head_dim"))
    return ModelDims(hidden=heads * head_dim, heads=heads, kv_heads=kv_heads, head_dim=head_dim, width=1, vocabulary=1)


def _gemm(cell: Cell, bench: Workbench) -> Prepared:
    m, n, k = (cell.number(name) for name in "mnk")
    if cell.text("dtype") == "fp8":
        return _gemm_fp8(m, n, k, bench)
    copies = bench.copies(n * k * bench.dtype.itemsize)
    weights = bench.keep("weights", f"{n}x{k} bf16", lambda: [bench.random(n, k).mul_(k**-0.5) for _ in range(copies)])
    x = bench.random(m, k)
    return Prepared([_linear(x, weight) for weight in weights])


def _linear(x: Tensor, weight: Tensor) -> Call:
    return lambda: F.linear(x, weight)


def _gemm_fp8(m: int, n: int, k: int, bench: Workbench) -> Prepared:
    if not supports_fp8(bench.device):
        raise UnsupportedError("this device has no FP8 matrix product")
    copies = bench.copies(n * k)
    weights = bench.keep("weights", f"{n}x{k} fp8", lambda: [bench.random(n, k).to(_FP8) for _ in range(copies)])
    x, one = bench.random(m, k).to(_FP8), torch.ones((), device=bench.device)

    def product(weight: Tensor) -> Call:
        return lambda: torch._scaled_mm(
            x, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    return Prepared([product(weight) for weight in weights], facts={"kernel": "torch._scaled_mm"})


def _cached_attention(cell: Cell, bench: Workbench) -> Prepared:
    batch, queries, context = (cell.number(name) for name in ("batch", "queries", "context"))
    dims, capacity = _dims(cell), cache_capacity(context + queries)
    copies = min(8, bench.copies(2 * batch * capacity * dims.kv_heads * dims.head_dim * bench.dtype.itemsize))
    caches = [empty_cache(dims, batch, capacity, bench.device, bench.dtype) for _ in range(copies)]
    lengths = torch.full((batch,), context, device=bench.device)
    query = bench.random(batch, queries, dims.heads, dims.head_dim)

    def call(kernel: str, copy: int) -> Call:
        plan, cache = plan_attention(kernel, lengths, queries, capacity, dims.group), caches[copy]
        key, value = cache.keys[:, context : context + queries], cache.values[:, context : context + queries]
        return lambda: cached_attention(plan, query, key, value, cache.keys, cache.values)

    kernel = bench.fastest(dims, (batch, queries, context), lambda name: call(name, 0))
    return Prepared([call(kernel, copy) for copy in range(copies)], facts={"kernel": kernel})


def _attention_plan(cell: Cell, bench: Workbench) -> Prepared:
    batch, queries, context = (cell.number(name) for name in ("batch", "queries", "context"))
    dims, capacity = _dims(cell), cache_capacity(context + queries)
    kernel = bench.kernels(dims)[0]
    lengths, angles = (
        torch.full((batch,), context, device=bench.device),
        rope_table(capacity, dims.head_dim, bench.device),
    )
    return Prepared([lambda: angles[plan_attention(kernel, lengths, queries, capacity, dims.group).slots]])


def _prefill_attention(cell: Cell, bench: Workbench) -> Prepared:
    batch, tokens = cell.number("batch"), cell.number("tokens")
    dims = _dims(cell)
    query = bench.random(batch, dims.heads, tokens, dims.head_dim)
    key, value = (bench.random(batch, dims.kv_heads, tokens, dims.head_dim) for _ in "kv")
    return Prepared([lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)])


def _moe(cell: Cell, bench: Workbench) -> Prepared:
    tokens, hidden, width, experts, top_k = (cell.number(n) for n in ("tokens", "hidden", "width", "experts", "top_k"))
    on_cuda = bench.device.type == "cuda"
    if on_cuda and not hasattr(torch, "_grouped_mm"):
        raise UnsupportedError("this torch has no grouped matrix product")
    weights = bench.keep(
        "weights",
        f"moe {hidden}/{width}/{experts}",
        lambda: random_experts(hidden, width, experts, bench.device, bench.dtype),
    )
    skewed = cell.text("distribution") == "skewed"
    generator = torch.Generator(device=bench.device).manual_seed(experts)
    skew = _SKEW * torch.randn(experts, device=bench.device, generator=generator) if skewed else None
    inputs = [bench.random(tokens, hidden) for _ in range(4)]
    loads = [routing_load(route(x, weights.router, top_k, skew)[1], experts) for x in inputs]
    facts = {
        "active_experts": sum(active for active, _ in loads) / len(loads),
        "imbalance": sum(imbalance for _, imbalance in loads) / len(loads),
    }

    def call(x: Tensor) -> Call:
        return lambda: moe_feed_forward(x, weights, top_k, skew)

    return Prepared([call(x) for x in inputs], facts=facts)


def _one_operand(
    function: Callable[[Tensor], Tensor], rows_by: str = "width", factor: int = 1
) -> Callable[[Cell, Workbench], Prepared]:
    """Operator on one tensor [rows, factor x ``rows_by``]; hot, as the operator before it has just written it."""

    def make(cell: Cell, bench: Workbench) -> Prepared:
        x = bench.random(cell.number("rows"), factor * cell.number(rows_by))
        return Prepared([lambda: function(x)])

    return make


def _rms_norm(cell: Cell, bench: Workbench) -> Prepared:
    x, weight = bench.random(cell.number("rows"), cell.number("width")), bench.random(cell.number("width"))
    return Prepared([lambda: rms_norm(x, weight)])


def _rotary(cell: Cell, bench: Workbench) -> Prepared:
    rows, dims = cell.number("rows"), _dims(cell)
    split = bench.random(rows, 1, dims.heads + 2 * dims.kv_heads, dims.head_dim)
    angles = rope_table(rows, dims.head_dim, bench.device)[:, None]
    layer = _norms_only(dims, cell.number("qk_norm"), bench)
    return Prepared([lambda: condition_qkv(split, layer, dims, angles)])


def _norms_only(dims: ModelDims, qk_norm: int, bench: Workbench) -> LayerWeights:
    """A layer whose matrices are a single column: only the norms on queries and keys are used."""
    small = ModelDims(1, dims.heads, dims.kv_heads, dims.head_dim, 1, 1, qk_norm=qk_norm)
    return random_layer(small, bench.device, bench.dtype)


def _cache_write(cell: Cell, bench: Workbench) -> Prepared:
    rows, kv_heads, head_dim = (cell.number(name) for name in ("rows", "kv_heads", "head_dim"))
    dims = ModelDims(1, kv_heads, kv_heads, head_dim, 1, 1)
    cache = empty_cache(dims, rows, 4, bench.device, bench.dtype)
    key, value = (bench.random(rows, 1, kv_heads, head_dim) for _ in "kv")
    slots = torch.randint(4, (rows, 1), device=bench.device)
    return Prepared([lambda: write_cache(cache, slots, key, value)])


def _rejection(cell: Cell, bench: Workbench) -> Prepared:
    batch, k, vocabulary, drafts = (cell.number(n) for n in ("batch", "draft_length", "vocabulary", "draft_vocabulary"))
    device = bench.device
    target = torch.randn(batch, k + 1, vocabulary, device=device).softmax(-1)
    if k == 0:
        return Prepared([lambda: verify(target, Draft(torch.empty(batch, 0, dtype=torch.long, device=device)))])
    probabilities = torch.randn(batch, k, drafts, device=device).softmax(-1)
    indices, to_target = draw(probabilities), torch.randperm(vocabulary, device=device)[:drafts]
    draft = Draft(to_target[indices], probabilities, indices, to_target)
    return Prepared([lambda: verify(target, draft)])


def _softmax_of(logits: Tensor) -> Tensor:
    return sampling_probabilities(logits, 1.0)


def _sampling_draw(cell: Cell, bench: Workbench) -> Prepared:
    weights = torch.rand(cell.number("rows"), cell.number("vocabulary"), device=bench.device)
    return Prepared([lambda: draw(weights)])


OPERATORS: dict[str, Callable[[Cell, Workbench], Prepared]] = {
    "gemm": _gemm,
    "decode_attention": _cached_attention,
    "verify_attention": _cached_attention,
    "prefill_attention": _prefill_attention,
    "attention_plan": _attention_plan,
    "moe": _moe,
    "rms_norm": _rms_norm,
    "residual_add": _one_operand(lambda x: x + x),
    "activation": _one_operand(gated_activation, factor=2),
    "rotary": _rotary,
    "cache_write": _cache_write,
    "sampling_softmax": _one_operand(_softmax_of, rows_by="vocabulary"),
    "sampling_draw": _sampling_draw,
    "rejection": _rejection,
    **HOST_OPERATORS,
    **TRAINING_OPERATORS,
    **STEP_OPERATORS,
}
