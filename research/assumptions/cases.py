"""Cases that no operator table takes and that stand beside what the cost model assumes: launches in and out of graphs,
draft passes, copies of weights, layers of a trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from pydantic import TypeAdapter

from bench.cases import COMPILED, ENQUEUE_CONTEXT, HANDED_OVER, Case, CaseList, ModelDims
from rlsim.calibration.cases import CaseAxes, axes_for, cached_work, case_list, ordered
from rlsim.calibration.training_cases import ELEMENT_BYTES, trained_layer
from rlsim.costs.operators import work
from rlsim.costs.operators.work import Work
from rlsim.files.yaml import lists_beside
from rlsim.tables.operators import ExpertShape

DEPTH_BATCH, DEPTH_CONTEXT = 1, ENQUEUE_CONTEXT
"""Sequences and cached tokens of the iterations of several depths: little for the device to do beside its launches."""
DRAFT_CONTEXT = 2048
"""Cached tokens of the draft passes on a GPU."""


@dataclass(frozen=True)
class AssumptionAxes:
    """Axes of the cases.

    depths: layers of the decode iterations that tell the time of a kernel; compiled_depths: of those by torch.compile.
    chain_elements: FP32 values of a kernel, by which it lasts longer. drafts: draft lengths; draft_batches: sequences.
    weight_tensors: how many tensors hold ``weight_bytes`` in all. replayed_tokens: of the training layers that are
    replayed as a graph, for the models ``trained``.
    """

    depths: tuple[int, ...]
    compiled_depths: tuple[int, ...]
    chain_elements: tuple[int, ...]
    drafts: tuple[int, ...]
    draft_batches: tuple[int, ...]
    weight_bytes: int
    weight_tensors: tuple[int, ...]
    trained: tuple[str, ...]
    replayed_tokens: tuple[int, ...]


def with_assumptions(wanted: CaseList, axes: CaseAxes, own: AssumptionAxes, on_gpu: bool) -> CaseList:
    """The cases of a run and all of these, in the order of their value."""
    further = assumption_cases(axes, own, wanted.models, on_gpu)
    return replace(wanted, cases=ordered((*wanted.cases, *further), axes, wanted.models, on_gpu))


def wider_list(device_type: str, quick: bool) -> CaseList:
    """Everything that a quick or full run of rlsim calibrate on ``cuda`` or ``cpu`` measures, and these cases."""
    name = f"{'gpu' if device_type == 'cuda' else 'cpu'}_{'quick' if quick else 'full'}"
    own = TypeAdapter(AssumptionAxes).validate_python(lists_beside(__file__, "cases.yaml")[name])
    return with_assumptions(case_list(device_type, quick), axes_for(device_type, quick), own, device_type == "cuda")


def assumption_cases(axes: CaseAxes, own: AssumptionAxes, models: Mapping[str, ModelDims], on_gpu: bool) -> list[Case]:
    """All of them along the axes; graphs, compiled code, the host link and CUDA IPC on a GPU alone."""
    checked = axes.checked_model
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


def _total(parts: Iterable[Work]) -> tuple[float, float]:
    """FLOPs and bytes of all parts."""
    known = list(parts)
    return sum(float(one.flops) for one in known), sum(float(one.bytes) for one in known)
