"""Cases that no operator table takes and that stand beside what the cost model assumes: launches in and out of graphs,
draft passes, copies of weights, layers of a trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from bench.cases import COMPILED, ENQUEUE_CONTEXT, HANDED_OVER, Case, ModelDims
from rlsim.calibration.case_axes import AssumptionAxes, CaseAxes
from rlsim.costs.operators import work
from rlsim.costs.operators.work import Work
from rlsim.tables.operators import ExpertShape
from rlsim.units import BYTES_PER_ELEMENT

ELEMENT_BYTES = BYTES_PER_ELEMENT["bf16"]
DEPTH_BATCH, DEPTH_CONTEXT = 1, ENQUEUE_CONTEXT
"""Sequences and cached tokens of the iterations of several depths: little for the device to do beside its launches."""
DRAFT_CONTEXT = 2048
"""Cached tokens of the draft passes on a GPU."""
BACKWARD_WORK = 3.0
"""FLOPs and bytes of forward and backward over those of forward: two products for each one."""


def assumption_cases(axes: CaseAxes, models: Mapping[str, ModelDims], on_gpu: bool) -> list[Case]:
    """All of them along ``axes``; graphs, compiled code, the host link and CUDA IPC on a GPU alone."""
    own, checked = axes.assumed, axes.checked_model
    dims = models[checked]
    modes = ("graph", "eager") if on_gpu else ("eager",)
    cases = [chained(n, mode) for n in own.chain_elements for mode in modes]
    cases += [depth_iteration(checked, dims, depth, mode) for depth in own.depths for mode in modes]
    if on_gpu:
        cases += [depth_iteration(checked, dims, depth, COMPILED) for depth in own.compiled_depths]
    context = min(DRAFT_CONTEXT, max(axes.contexts))
    passed = ("one_graph", "graph_each", "eager") if on_gpu else ("eager",)
    cases += [
        draft_passes(checked, dims, axes.checked_layers, (batch, k, context), mode)
        for batch in own.draft_batches
        for k in own.drafts
        for mode in passed
    ]
    cases += _weight_copies(own, on_gpu)
    graphs = own.replayed_tokens if on_gpu else ()
    return cases + [
        trained_layer("layer_forward_backward", tokens, model, models[model], "graph")
        for model in own.trained
        if model in models
        for tokens in graphs
    ]


def chained(elements: int, mode: str) -> Case:
    """A kernel that reads and writes ``elements`` FP32 values, one of many that wait for each other."""
    return Case("launch_chain", {"elements": elements, "mode": mode}, 1.0 * elements, 8.0 * elements)


def depth_iteration(model: str, dims: ModelDims, layers: int, mode: str) -> Case:
    """A decode iteration of ``layers`` layers with embedding, head and sampling; graph, eager or compiled."""
    head = work.gemm(DEPTH_BATCH, dims.vocabulary, dims.hidden, ELEMENT_BYTES)
    amount = _total([_decoder_layer(dims, DEPTH_BATCH, 1, DEPTH_CONTEXT, dims.hidden)] * layers + [head])
    sizes = {"layers": layers, "batch": DEPTH_BATCH, "context": DEPTH_CONTEXT}
    return Case("depth_iteration", {"model": model, **sizes, "mode": mode}, *amount)


def draft_passes(model: str, target: ModelDims, layers: int, point: tuple[int, int, int], mode: str) -> Case:
    """k passes of the EAGLE-3 head at ``point`` (batch, k, context): the first over k + 1 positions of a sequence."""
    batch, k, context = point
    dims, passes = target.draft_layer, []
    fused = work.gemm(batch * (k + 1), dims.hidden, 3 * dims.hidden, ELEMENT_BYTES)
    head = work.gemm(batch, dims.vocabulary, dims.hidden, ELEMENT_BYTES)
    for step in range(k):
        passes += [_decoder_layer(dims, batch, 1 if step else k + 1, context, 2 * dims.hidden), head]
    sizes = {"layers": layers, "batch": batch, "draft_length": k, "context": context}
    return Case("draft_passes", {"model": model, **sizes, "mode": mode}, *_total([fused, *passes]))


def trained_layer(op: str, tokens: int, model: str, dims: ModelDims, mode: str = "eager") -> Case:
    """Forward (``layer_forward``), or that with the backward pass, of one layer over one sequence."""
    weights = dims.hidden * (dims.qkv_width + dims.heads * dims.head_dim + 3 * dims.width * (dims.top_k or 1))
    forward = 2.0 * tokens * weights + float(work.causal_attention_flops(tokens**2, dims.heads, dims.head_dim))
    moved = weights * ELEMENT_BYTES + 8.0 * tokens * dims.hidden * ELEMENT_BYTES
    factor = BACKWARD_WORK if op == "layer_forward_backward" else 1.0
    stated = {"mode": mode} if mode != "eager" else {}
    return Case(op, {"tokens": tokens, "model": model, **stated}, factor * forward, factor * moved)


def _weight_copies(axes: AssumptionAxes, on_gpu: bool) -> list[Case]:
    """Copies of weights in several numbers of tensors; bytes are those read and written at least, packing included."""
    moved, cases = float(axes.weight_bytes), []
    for count in axes.weight_tensors:
        sizes = {"bytes": axes.weight_bytes, "tensors": count}
        for path, passes in (("tensors", 2.0), ("foreach", 2.0), ("bucket", 6.0)):
            cases.append(Case("weight_copy", {**sizes, "path": path}, 0.0, passes * moved))
        if not on_gpu:
            continue
        for memory in ("pinned", "pageable"):
            for direction in ("to_device", "to_host"):
                params = {**sizes, "memory": memory, "direction": direction}
                cases.append(Case("host_weight_copy", params, 0.0, moved))
        for path, passes in (("tensors", 2.0), ("bucket", 4.0)):
            cases.append(Case(HANDED_OVER, {**sizes, "path": path}, 0.0, passes * moved))
    return cases


def _decoder_layer(dims: ModelDims, batch: int, queries: int, context: int, input_width: int) -> Work:
    """Products and attention of one layer on ``queries`` new tokens of each sequence."""
    rows = batch * queries
    shapes = [(dims.qkv_width, input_width), (dims.hidden, dims.heads * dims.head_dim)]
    parts = []
    if dims.experts:
        shapes.append((dims.experts, dims.hidden))
        shape = ExpertShape("bf16", dims.hidden, dims.width, dims.top_k, dims.experts, 1, 1)
        parts.append(work.grouped_experts(rows, shape))
    else:
        shapes += [(2 * dims.width, dims.hidden), (dims.hidden, dims.width)]
    parts += [work.gemm(rows, n, k, ELEMENT_BYTES) for n, k in shapes]
    return Work(*(np.asarray(number) for number in _total([*parts, cached_work(dims, batch, queries, context)])))


def cached_work(dims: ModelDims, batch: int, queries: int, context: int) -> Work:
    """Attention of ``queries`` new tokens of each sequence to ``context`` cached ones and themselves."""
    cached = batch * (context + queries)
    once = work.decode_attention(cached, dims.heads, dims.kv_heads, dims.head_dim, ELEMENT_BYTES)
    return Work(once.flops * queries, once.bytes)


def _total(parts: Iterable[Work]) -> tuple[float, float]:
    """FLOPs and bytes of all parts."""
    known = list(parts)
    return sum(float(one.flops) for one in known), sum(float(one.bytes) for one in known)
