"""The cells of each operator as data: parameters and declared work (standard library only)."""

from __future__ import annotations

from collections.abc import Iterable

from rlsim.calibration.cell import Cell, make_cell
from rlsim.calibration.dims import ModelDims
from rlsim.units import BYTES_PER_ELEMENT

ELEMENT_BYTES = BYTES_PER_ELEMENT["bf16"]
CPU_CACHE_BYTES = 32 * 2**20
"""Assumed share of a CPU's last-level cache where the device does not tell."""
ENQUEUE_CONTEXT = 128
"""Cached tokens at which the host work of an eager step is measured: so few that the device has next to nothing to
do.
"""
_ADAM_BYTES_PER_PARAMETER = 28.0
"""fp32 parameter, gradient and two moments read; parameter and two moments written."""
_ADAM_FLOPS_PER_PARAMETER = 15.0
"""Multiplications, additions, square root and division of one AdamW update, counted one each."""
_MESSAGE_FACTOR = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0, "broadcast": 1.0}


def gemm(m: int, n: int, k: int, dtype: str = "bf16") -> Cell:
    """[m, k] x [k, n] with a cold weight."""
    size = BYTES_PER_ELEMENT[dtype]
    return make_cell(
        "gemm",
        2.0 * m * n * k,
        (m * k + n * k) * size + m * n * ELEMENT_BYTES,
        {"m": m, "n": n, "k": k, "dtype": dtype},
    )


def cached_attention(batch: int, queries: int, context: int, dims: ModelDims) -> Cell:
    """``queries`` new tokens per sequence (1: decode, k+1: verification) on ``context`` cached ones, bottom-right
    causal.
    """
    pairs = queries * context + queries * (queries + 1) // 2
    flops = 4.0 * batch * pairs * dims.heads * dims.head_dim
    rows = 2 * (context + queries) * dims.kv_heads + 2 * queries * dims.heads
    op = "decode_attention" if queries == 1 else "verify_attention"
    return make_cell(
        op,
        flops,
        batch * rows * dims.head_dim * ELEMENT_BYTES,
        {"batch": batch, "queries": queries, "context": context, **_heads(dims)},
    )


def prefill_attention(batch: int, tokens: int, dims: ModelDims) -> Cell:
    """Causal attention of ``batch`` prompts of ``tokens`` tokens without a cached prefix."""
    flops = 2.0 * batch * tokens * (tokens + 1) * dims.heads * dims.head_dim
    moved = 2 * batch * tokens * (dims.heads + dims.kv_heads) * dims.head_dim * ELEMENT_BYTES
    return make_cell("prefill_attention", flops, moved, {"batch": batch, "tokens": tokens, **_heads(dims)})


def attention_plan(batch: int, queries: int, context: int, dims: ModelDims) -> Cell:
    """Index tensors that all layers of one forward share."""
    return make_cell(
        "attention_plan",
        0.0,
        8.0 * batch * queries,
        {"batch": batch, "queries": queries, "context": context, **_heads(dims)},
    )


def moe(tokens: int, dims: ModelDims, distribution: str) -> Cell:
    """Routed feed-forward of one layer. Bytes assume the expected number of distinct experts under even routing."""
    touched = dims.experts * (1.0 - (1.0 - dims.top_k / dims.experts) ** tokens)
    flops = 6.0 * tokens * dims.top_k * dims.hidden * dims.width
    moved = (3.0 * touched * dims.hidden * dims.width + 2.0 * tokens * dims.hidden) * ELEMENT_BYTES
    return make_cell(
        "moe",
        flops,
        moved,
        {
            "tokens": tokens,
            "hidden": dims.hidden,
            "width": dims.width,
            "experts": dims.experts,
            "top_k": dims.top_k,
            "distribution": distribution,
        },
    )


def elementwise(rows: int, dims: ModelDims) -> list[Cell]:
    """Norm, residual addition, activation, rotation (with the per-head norm) and cache write of one layer on ``rows``
    tokens.
    """
    hidden, width = dims.hidden, dims.width
    qk, kv = (dims.heads + dims.kv_heads) * dims.head_dim, 2 * dims.kv_heads * dims.head_dim
    return [
        make_cell("rms_norm", 4.0 * rows * hidden, 2 * rows * hidden * ELEMENT_BYTES, {"rows": rows, "width": hidden}),
        make_cell("residual_add", rows * hidden, 3 * rows * hidden * ELEMENT_BYTES, {"rows": rows, "width": hidden}),
        make_cell("activation", 5.0 * rows * width, 3 * rows * width * ELEMENT_BYTES, {"rows": rows, "width": width}),
        make_cell(
            "rotary",
            6.0 * rows * qk,
            2 * rows * qk * ELEMENT_BYTES,
            {"rows": rows, "qk_norm": dims.qk_norm, **_heads(dims)},
        ),
        make_cell(
            "cache_write",
            0.0,
            2 * rows * kv * ELEMENT_BYTES,
            {"rows": rows, "kv_heads": dims.kv_heads, "head_dim": dims.head_dim},
        ),
    ]


def sampling_softmax(rows: int, vocabulary: int) -> Cell:
    """Logits in BF16 to probabilities in fp32."""
    return make_cell(
        "sampling_softmax", 5.0 * rows * vocabulary, rows * vocabulary * 6.0, {"rows": rows, "vocabulary": vocabulary}
    )


def sampling_draw(rows: int, vocabulary: int) -> Cell:
    """One token per row of probabilities."""
    return make_cell(
        "sampling_draw", 2.0 * rows * vocabulary, rows * vocabulary * 4.0, {"rows": rows, "vocabulary": vocabulary}
    )


def rejection(batch: int, draft_length: int, vocabulary: int, draft_vocabulary: int) -> Cell:
    """Acceptance test of ``draft_length`` tokens per sequence and the draw from the residual."""
    moved = 4.0 * batch * (3 * vocabulary + draft_vocabulary)
    return make_cell(
        "rejection",
        4.0 * batch * vocabulary,
        moved,
        {"batch": batch, "draft_length": draft_length, "vocabulary": vocabulary, "draft_vocabulary": draft_vocabulary},
    )


def copies(sizes: Iterable[int], with_host_link: bool) -> list[Cell]:
    """Copies of ``sizes`` bytes inside device memory (read and written) and over the host link (moved once)."""
    cells = []
    for size in sizes:
        cells.append(make_cell("device_copy", 0.0, 2.0 * size, {"bytes": size}))
        if with_host_link:
            cells += [make_cell(op, 0.0, float(size), {"bytes": size}) for op in ("host_to_device", "device_to_host")]
    return cells


def launches() -> list[Cell]:
    """Cost of one smallest kernel launched eagerly, of one inside a replayed graph, and of replaying a one-kernel
    graph.
    """
    return [make_cell(op, 1.0, 8.0, {}) for op in ("launch_eager", "launch_in_graph", "graph_replay")]


def host_work(model: str, layers: int, parts: Iterable[str] = ("layer", "draft_pass", "tail")) -> list[Cell]:
    """Host seconds to enqueue one part of an eager step: a target layer, a draft pass, or head with verification."""
    return [make_cell("host_enqueue", 0.0, 0.0, {"model": model, "layers": layers, "part": part}) for part in parts]


def training(tokens: Iterable[int], model: str, dims: ModelDims) -> list[Cell]:
    """Forward, and forward with backward, of one layer over one sequence."""
    cells = []
    for count in tokens:
        weights = dims.hidden * (dims.qkv_width + dims.heads * dims.head_dim + 3 * dims.width * (dims.top_k or 1))
        forward = 2.0 * count * weights + 2.0 * count * (count + 1) * dims.heads * dims.head_dim
        moved = weights * ELEMENT_BYTES + 8.0 * count * dims.hidden * ELEMENT_BYTES
        for op, factor in (("layer_forward", 1.0), ("layer_forward_backward", 3.0)):
            cells.append(make_cell(op, factor * forward, factor * moved, {"tokens": count, "model": model}))
    return cells


def optimizer_step(parameters: int) -> Cell:
    """AdamW on ``parameters`` fp32 master weights."""
    return make_cell(
        "optimizer_step",
        _ADAM_FLOPS_PER_PARAMETER * parameters,
        _ADAM_BYTES_PER_PARAMETER * parameters,
        {"parameters": parameters},
    )


def collectives(sizes: Iterable[int], ranks: int) -> list[Cell]:
    """Collectives over ``ranks`` devices; bytes are the message per rank times (n-1)/n, twice for an all-reduce."""
    share = (ranks - 1) / ranks
    return [
        make_cell(op, 0.0, factor * share * size, {"bytes": size, "ranks": ranks})
        for size in sizes
        for op, factor in _MESSAGE_FACTOR.items()
    ]


def composite(model: str, layers: int, batch: int, draft_length: int, context: int, mode: str) -> Cell:
    """A whole decode iteration (draft_length 0) or speculative step; the self-check predicts it from other cells."""
    op = "speculative_step" if draft_length else "decode_iteration"
    return make_cell(
        op,
        0.0,
        0.0,
        {
            "model": model,
            "layers": layers,
            "batch": batch,
            "draft_length": draft_length,
            "context": context,
            "mode": mode,
        },
    )


def _heads(dims: ModelDims) -> dict[str, int]:
    return {"heads": dims.heads, "kv_heads": dims.kv_heads, "head_dim": dims.head_dim}
