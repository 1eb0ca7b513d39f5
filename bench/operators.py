"""torch kernels of every operator that a case can name: from a case to the calls to time."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from bench.attention import cached_attention, plan_attention
from bench.cases import Case, ModelDims
from bench.drafting import DRAFT_OPERATORS
from bench.fused_verification import draft_indices, fused_verify, missing_for, random_state
from bench.host import HOST_OPERATORS
from bench.launches import LAUNCH_OPERATORS
from bench.measurements import Facts
from bench.moe import deal, expert_feed_forward, random_experts, routing_load
from bench.rejection import Draft, draw, sampling_probabilities, verify
from bench.steps import STEP_OPERATORS
from bench.timing import Call
from bench.training import TRAINING_OPERATORS
from bench.training_steps import TRAINING_STEP_OPERATORS
from bench.transformer import (
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
from bench.weights import WEIGHT_OPERATORS
from bench.workbench import Prepared, UnsupportedError, Workbench

_FP8 = torch.float8_e4m3fn
_FP8_CAPABILITY = (8, 9)


def prepare(case: Case, on: Workbench) -> Prepared:
    """Buffers and calls of ``case``. Raises UnsupportedError where the device cannot run it."""
    return OPERATORS[case.op](case, on)


def supports_fp8(device: torch.device) -> bool:
    """Whether the device multiplies FP8 matrices."""
    return (
        device.type == "cuda"
        and torch.cuda.get_device_capability(device) >= _FP8_CAPABILITY
        and hasattr(torch, "_scaled_mm")
    )


def _dims(case: Case) -> ModelDims:
    """Dimensions of which only the heads matter."""
    heads, kv_heads, head_dim = (case.number(name) for name in ("heads", "kv_heads", "head_dim"))
    return ModelDims(hidden=heads * head_dim, heads=heads, kv_heads=kv_heads, head_dim=head_dim, width=1, vocabulary=1)


def _gemm(case: Case, on: Workbench) -> Prepared:
    m, n, k = (case.number(name) for name in "mnk")
    if case.text("dtype") == "fp8":
        return _gemm_fp8(m, n, k, on)
    copies = on.copies(n * k * on.dtype.itemsize)
    weights = on.keep("weights", f"{n}x{k} bf16", lambda: [on.random(n, k).mul_(k**-0.5) for _ in range(copies)])
    x = on.random(m, k)
    return Prepared([_linear(x, weight) for weight in weights])


def _linear(x: Tensor, weight: Tensor) -> Call:
    return lambda: F.linear(x, weight)


def _gemm_fp8(m: int, n: int, k: int, on: Workbench) -> Prepared:
    if not supports_fp8(on.device):
        raise UnsupportedError("this device has no FP8 matrix product")
    copies = on.copies(n * k)
    weights = on.keep("weights", f"{n}x{k} fp8", lambda: [on.random(n, k).to(_FP8) for _ in range(copies)])
    x, one = on.random(m, k).to(_FP8), torch.ones((), device=on.device)

    def product(weight: Tensor) -> Call:
        return lambda: torch._scaled_mm(
            x, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    return Prepared([product(weight) for weight in weights], facts=Facts(kernel="torch._scaled_mm"))


def _cached_attention(case: Case, on: Workbench) -> Prepared:
    batch, queries, context = (case.number(name) for name in ("batch", "queries", "context"))
    dims, capacity = _dims(case), cache_capacity(context + queries)
    copies = min(8, on.copies(2 * batch * capacity * dims.kv_heads * dims.head_dim * on.dtype.itemsize))
    caches = [empty_cache(dims, batch, capacity, on.device, on.dtype) for _ in range(copies)]
    lengths = torch.full((batch,), context, device=on.device)
    query = on.random(batch, queries, dims.heads, dims.head_dim)

    def call(kernel: str, copy: int) -> Call:
        plan, cache = plan_attention(kernel, lengths, queries, capacity, dims.group), caches[copy]
        key, value = cache.keys[:, context : context + queries], cache.values[:, context : context + queries]
        return lambda: cached_attention(plan, query, key, value, cache.keys, cache.values)

    kernel = on.fastest(dims, (batch, queries, context), lambda name: call(name, 0))
    return Prepared([call(kernel, copy) for copy in range(copies)], facts=Facts(kernel=kernel))


def _prefill_attention(case: Case, on: Workbench) -> Prepared:
    batch, tokens = case.number("batch"), case.number("tokens")
    dims = _dims(case)
    query = on.random(batch, dims.heads, tokens, dims.head_dim)
    key, value = (on.random(batch, dims.kv_heads, tokens, dims.head_dim) for _ in "kv")
    return Prepared([lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)])


def _moe(case: Case, on: Workbench) -> Prepared:
    tokens, hidden, width, experts, top_k = (case.number(n) for n in ("tokens", "hidden", "width", "experts", "top_k"))
    on_cuda = on.device.type == "cuda"
    if on_cuda and not hasattr(torch, "_grouped_mm"):
        raise UnsupportedError("this torch has no grouped matrix product")
    weights = on.keep(
        "weights",
        f"moe {hidden}/{width}/{experts}",
        lambda: random_experts(hidden, width, experts, on.device, on.dtype),
    )
    dealt = deal(case.text("distribution"), tokens, experts, top_k)
    active, imbalance = routing_load(dealt, experts)
    chosen = torch.tensor(dealt.tolist(), device=on.device)
    scale = torch.full((tokens, top_k), 1.0 / top_k, device=on.device)

    def call(x: Tensor) -> Call:
        return lambda: expert_feed_forward(x, weights, scale, chosen)

    calls = [call(on.random(tokens, hidden)) for _ in range(4)]
    return Prepared(calls, facts=Facts("torch._grouped_mm" if on_cuda else "torch", active, imbalance))


def _one_operand(
    function: Callable[[Tensor], Tensor], rows_by: str = "width", factor: int = 1
) -> Callable[[Case, Workbench], Prepared]:
    """Operator on one tensor [rows, factor x ``rows_by``]; hot, as the operator before it has just written it."""

    def make(case: Case, on: Workbench) -> Prepared:
        x = on.random(case.number("rows"), factor * case.number(rows_by))
        return Prepared([lambda: function(x)])

    return make


def _rms_norm(case: Case, on: Workbench) -> Prepared:
    x, weight = on.random(case.number("rows"), case.number("width")), on.random(case.number("width"))
    return Prepared([lambda: rms_norm(x, weight)])


def _rotary(case: Case, on: Workbench) -> Prepared:
    rows, dims = case.number("rows"), _dims(case)
    split = on.random(rows, 1, dims.heads + 2 * dims.kv_heads, dims.head_dim)
    angles = rope_table(rows, dims.head_dim, on.device)[:, None]
    layer = _norms_only(dims, case.number("qk_norm"), on)
    return Prepared([lambda: condition_qkv(split, layer, dims, angles)])


def _norms_only(dims: ModelDims, qk_norm: int, on: Workbench) -> LayerWeights:
    """A layer whose matrices are a single column: only the norms on queries and keys are used."""
    small = ModelDims(1, dims.heads, dims.kv_heads, dims.head_dim, 1, 1, qk_norm=qk_norm)
    return random_layer(small, on.device, on.dtype)


def _cache_write(case: Case, on: Workbench) -> Prepared:
    rows, kv_heads, head_dim = (case.number(name) for name in ("rows", "kv_heads", "head_dim"))
    dims = ModelDims(1, kv_heads, kv_heads, head_dim, 1, 1)
    cache = empty_cache(dims, rows, 4, on.device, on.dtype)
    key, value = (on.random(rows, 1, kv_heads, head_dim) for _ in "kv")
    slots = torch.randint(4, (rows, 1), device=on.device)
    return Prepared([lambda: write_cache(cache, slots, key, value)])


def _rejection(case: Case, on: Workbench) -> Prepared:
    batch, k, vocabulary, drafts = (case.number(n) for n in ("batch", "draft_length", "vocabulary", "draft_vocabulary"))
    device = on.device
    target = torch.randn(batch, k + 1, vocabulary, device=device).softmax(-1)
    if k == 0:
        return Prepared([lambda: verify(target, Draft(torch.empty(batch, 0, dtype=torch.long, device=device)))])
    probabilities = torch.randn(batch, k, drafts, device=device).softmax(-1)
    indices, to_target = draw(probabilities), torch.randperm(vocabulary, device=device)[:drafts]
    draft = Draft(to_target[indices], probabilities, indices, to_target)
    return Prepared([lambda: verify(target, draft)])


def _fused_verification(case: Case, on: Workbench) -> Prepared:
    """Verification from logits: by the Triton kernels, or by softmax and ``verify`` in torch."""
    batch, k, vocabulary, drafts = (case.number(n) for n in ("batch", "draft_length", "vocabulary", "draft_vocabulary"))
    device, kernel = on.device, case.text("kernel")
    if kernel == "triton" and (missing := missing_for(device)):
        raise UnsupportedError(missing)
    logits = on.random(batch, k + 1, vocabulary)
    draft, to_draft = Draft(torch.empty(batch, 0, dtype=torch.long, device=device)), None
    if k:
        probabilities = torch.randn(batch, k, drafts, device=device).softmax(-1)
        indices, to_target = draw(probabilities), torch.randperm(vocabulary, device=device)[:drafts]
        draft = Draft(to_target[indices], probabilities, indices, to_target)
        to_draft = draft_indices(to_target, vocabulary)
    if kernel == "torch":
        return Prepared([lambda: verify(_softmax_of(logits), draft)], facts=Facts(kernel=kernel))
    state = random_state(0, device)

    def call() -> object:
        return fused_verify(logits, 1.0, draft, state, to_draft)

    try:
        call()
    except Exception as error:  # a compiler that is missing or fails raises what it likes
        raise UnsupportedError(f"triton cannot compile the kernels here: {str(error)[:200]}") from error
    return Prepared([call], facts=Facts(kernel=kernel))


def _softmax_of(logits: Tensor) -> Tensor:
    return sampling_probabilities(logits, 1.0)


def _sampling_draw(case: Case, on: Workbench) -> Prepared:
    weights = torch.rand(case.number("rows"), case.number("vocabulary"), device=on.device)
    return Prepared([lambda: draw(weights)])


OPERATORS: dict[str, Callable[[Case, Workbench], Prepared]] = {
    "gemm": _gemm,
    "decode_attention": _cached_attention,
    "verify_attention": _cached_attention,
    "prefill_attention": _prefill_attention,
    "moe": _moe,
    "rms_norm": _rms_norm,
    "residual_add": _one_operand(lambda x: x + x),
    "activation": _one_operand(gated_activation, factor=2),
    "rotary": _rotary,
    "cache_write": _cache_write,
    "sampling_softmax": _one_operand(_softmax_of, rows_by="vocabulary"),
    "sampling_draw": _sampling_draw,
    "rejection": _rejection,
    "fused_verification": _fused_verification,
    **HOST_OPERATORS,
    **TRAINING_OPERATORS,
    **TRAINING_STEP_OPERATORS,
    **STEP_OPERATORS,
    **LAUNCH_OPERATORS,
    **DRAFT_OPERATORS,
    **WEIGHT_OPERATORS,
}
