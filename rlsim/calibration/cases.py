"""What to measure on a device, from model cards: every operator that the cost model asks tables for, with its least
work, and whole engine steps that hold the prediction made of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product

from pydantic import TypeAdapter

from bench.cases import COLLECTIVES, Case, CaseList, ModelDims
from rlsim.calibration.case_order import in_order, thinned, thinned_points
from rlsim.calibration.training_cases import ELEMENT_BYTES, optimizer_step, trained_layer, training_step
from rlsim.costs.operators import work
from rlsim.costs.operators.work import Work
from rlsim.files.yaml import lists_beside
from rlsim.loading.models import load_card
from rlsim.schema.drafter import default_eagle3_draft
from rlsim.schema.model import ModelCard
from rlsim.tables.operators import ExpertShape
from rlsim.units import BYTES_PER_ELEMENT

DISTRIBUTIONS = ("balanced", "power_law_1.01", "power_law_1.2")
"""Routing of the measured experts: what ``engine.expert_balance`` can name."""
_MAIN_MODELS = 2
"""Models of a list that are measured before the further ones: the first two, one dense, one of experts."""
_WIDE = 64000
"""Columns from which a product counts as an LM head, whose rows ``max_head_rows`` bounds."""
_MOST_FUSED_DRAFTED, _FUSED_BATCHES = 7, (1, 4, 16, 64, 256)
"""Draft lengths and batches at which verification from logits is measured."""
_TINY = {
    "tiny": ModelDims(256, 8, 2, 32, 768, 2048, layers=4, qk_norm=1, draft_width=768, draft_vocabulary=512),
    "tiny-moe": ModelDims(256, 8, 2, 32, 64, 2048, experts=16, top_k=2),
}
"""No published models: what a CPU can measure in seconds."""


@dataclass(frozen=True)
class CaseAxes:
    """Axes of a run. ``max_cached_tokens`` bounds batch x context, ``max_head_rows`` the rows of a vocabulary-wide
    product; ``peak_gemm`` is a product (m, n, k) that comes near the device's best rate.

    ``composites`` are (batch, draft length, context) of the self-check's engine steps; ``ranks`` numbers of GPUs that
    collectives run over; ``step_models`` (model, layers) of the whole training steps over ``step_tokens`` tokens, cut
    so that they fit a GPU of 80 GB; budget_s is the time that the whole run aims at, target_spread the one at which a
    case is done.
    """

    models: tuple[str, ...]
    checked_model: str
    checked_layers: int
    tensor_parallel: tuple[int, ...]
    rows: tuple[int, ...]
    batches: tuple[int, ...]
    queries: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[tuple[int, int], ...]
    moe_tokens: tuple[int, ...]
    train_tokens: tuple[int, ...]
    copy_bytes: tuple[int, ...]
    message_bytes: tuple[int, ...]
    optimizer_parameters: tuple[int, ...]
    composites: tuple[tuple[int, int, int], ...]
    max_cached_tokens: int
    max_head_rows: int
    peak_gemm: tuple[int, int, int]
    budget_s: float
    target_spread: float = 0.01
    ranks: tuple[int, ...] = (2, 4, 8)
    step_models: tuple[tuple[str, int], ...] = ()
    step_tokens: tuple[int, ...] = ()


def _axes(name: str) -> CaseAxes:
    """The axes of that name in case_axes.yaml."""
    stated = dict(lists_beside(__file__, "case_axes.yaml")[name])
    points = stated["composites"]
    every = product(points["batches"], points["drafts"], points["contexts"])
    stated["composites"] = [point for point in every if point[0] * point[2] <= points["most"]]
    return TypeAdapter(CaseAxes).validate_python(stated)


GPU_QUICK, GPU_FULL, CPU_QUICK, CPU_FULL = map(_axes, ("gpu_quick", "gpu_full", "cpu_quick", "cpu_full"))


def axes_for(device_type: str, quick: bool) -> CaseAxes:
    """Axes of a run on ``cuda`` or ``cpu``."""
    if device_type == "cuda":
        return GPU_QUICK if quick else GPU_FULL
    return CPU_QUICK if quick else CPU_FULL


def dims_of(card: ModelCard) -> ModelDims:
    """Dimensions that the benchmark needs of a model with grouped-query attention."""
    draft, moe = default_eagle3_draft(card), card.moe
    return ModelDims(
        hidden=card.hidden_size,
        heads=card.num_heads,
        kv_heads=card.num_kv_heads,
        head_dim=card.head_dim,
        width=card.intermediate_size if moe is None else moe.expert_intermediate_size,
        vocabulary=card.vocab_size,
        layers=card.num_layers,
        qk_norm=int(card.qk_norm),
        experts=moe.num_experts if moe else 0,
        top_k=moe.top_k if moe else 0,
        draft_width=draft.intermediate_size,
        draft_vocabulary=draft.vocab_size,
    )


def case_list(device_type: str, quick: bool) -> CaseList:
    """All cases that a quick or full run on ``cuda`` or ``cpu`` measures."""
    return cases_of(
        axes_for(device_type, quick), device_type == "cuda", f"{device_type} {'quick' if quick else 'full'}"
    )


def cases_of(axes: CaseAxes, on_gpu: bool, name: str = "custom") -> CaseList:
    """All cases of a run without duplicates, in the order of their value."""
    steps = (model for model, _ in axes.step_models)
    named = dict.fromkeys((*axes.models, axes.checked_model, *steps))
    models = {model: _TINY.get(model) or dims_of(load_card(model)) for model in named}
    cases = ordered(_cases(axes, models, on_gpu), axes, models, on_gpu)
    return CaseList(name, axes.budget_s, axes.target_spread, models, cases)


def ordered(cases: Iterable[Case], axes: CaseAxes, models: Mapping[str, ModelDims], on_gpu: bool) -> list[Case]:
    """``cases`` without duplicates in the order of their value: see :mod:`rlsim.calibration.case_order`."""
    main = replace(axes, models=axes.models[:_MAIN_MODELS])
    keys = [frozenset(case.key for case in _cases(along, models, on_gpu)) for along in (coarse_axes(main), main)]
    basis = frozenset(gemm(*axes.peak_gemm, precision).key for precision in _precisions(on_gpu))
    # Models share shapes; each is measured once.
    return in_order({case.key: case for case in cases}.values(), basis, *keys)


def coarse_axes(axes: CaseAxes) -> CaseAxes:
    """A grid of few values of each axis, their ends among them, inside that of ``axes``."""
    return replace(
        axes,
        tensor_parallel=axes.tensor_parallel[:1],
        rows=thinned(axes.rows, 8),
        batches=thinned(axes.batches, 5),
        queries=thinned(axes.queries, 3),
        contexts=thinned(axes.contexts, 4),
        prompts=thinned_points(axes.prompts, (2, 3)),
        moe_tokens=thinned(axes.moe_tokens, 8),
        train_tokens=thinned(axes.train_tokens, 3),
        composites=thinned_points(axes.composites, (4, 3, 3)),
    )


def _precisions(on_gpu: bool) -> tuple[str, ...]:
    return ("bf16", "fp8") if on_gpu else ("bf16",)


def _cases(axes: CaseAxes, models: Mapping[str, ModelDims], on_gpu: bool) -> list[Case]:
    """All cases along ``axes``, group by group, duplicates among them."""
    modes = ("graph", "eager") if on_gpu else ("eager",)
    precisions = _precisions(on_gpu)
    cases = [Case(op, {}, 1.0, 8.0) for op in ("launch_eager", "launch_in_graph", "graph_replay")]
    cases += _copies(axes.copy_bytes, on_gpu)
    cases += [gemm(*axes.peak_gemm, precision) for precision in precisions]
    for model in axes.models:
        cases += _model_cases(axes, model, models[model], precisions)
    cases += _draft_cases(axes, models[axes.checked_model].draft_layer)
    if on_gpu:
        cases += _fused_cases(axes, models[axes.checked_model])
    enqueued: dict[str, int | str] = {"model": axes.checked_model, "layers": axes.checked_layers}
    cases += [Case("host_enqueue", {**enqueued, "part": part}) for part in ("layer", "draft_pass", "tail")]
    cases += [optimizer_step(n) for n in axes.optimizer_parameters]
    cases += [
        training_step(model, models[model].with_layers(layers), tokens, recompute)
        for model, layers in axes.step_models
        for tokens in axes.step_tokens
        for recompute in ("none", "full")
    ]
    for mode in reversed(modes):
        cases += [case for ranks in axes.ranks for case in collectives(axes.message_bytes, ranks, mode)]
    for mode in modes:
        cases += [engine_step(axes.checked_model, axes.checked_layers, point, mode) for point in axes.composites]
    return cases


def _case(op: str, amount: Work, **params: int | str) -> Case:
    return Case(op, params, float(amount.flops), float(amount.bytes))


def gemm(m: int, n: int, k: int, dtype: str = "bf16") -> Case:
    """[m, k] x [k, n] with a cold weight."""
    return _case("gemm", work.gemm(m, n, k, BYTES_PER_ELEMENT[dtype]), m=m, n=n, k=k, dtype=dtype)


def cached_attention(batch: int, queries: int, context: int, dims: ModelDims) -> Case:
    """``queries`` new tokens per sequence (1: decode, k+1: verification) on ``context`` cached ones, bottom-right
    causal.
    """
    op = "decode_attention" if queries == 1 else "verify_attention"
    return _case(
        op, cached_work(dims, batch, queries, context), batch=batch, queries=queries, context=context, **_heads(dims)
    )


def cached_work(dims: ModelDims, batch: int, queries: int, context: int) -> Work:
    """Attention of ``queries`` new tokens of each sequence to ``context`` cached ones and themselves."""
    cached = batch * (context + queries)
    once = work.decode_attention(cached, dims.heads, dims.kv_heads, dims.head_dim, ELEMENT_BYTES)
    # The cache is read once for all queries of a sequence; arithmetic is for each.
    return Work(once.flops * queries, once.bytes)


def prefill_attention(batch: int, tokens: int, dims: ModelDims) -> Case:
    """Causal attention of ``batch`` prompts of ``tokens`` tokens without a cached prefix."""
    flops = work.causal_attention_flops(batch * tokens**2, dims.heads, dims.head_dim)
    moved = 2.0 * batch * tokens * (dims.heads + dims.kv_heads) * dims.head_dim * ELEMENT_BYTES
    return Case("prefill_attention", {"batch": batch, "tokens": tokens, **_heads(dims)}, float(flops), moved)


def moe(tokens: int, dims: ModelDims, distribution: str) -> Case:
    """Routed experts of one layer, routing given."""
    shape = {"hidden": dims.hidden, "width": dims.width, "experts": dims.experts, "top_k": dims.top_k}
    amount = work.grouped_experts(tokens, ExpertShape("bf16", **shape, tensor_parallel=1, expert_parallel=1))
    return _case("moe", amount, tokens=tokens, distribution=distribution, **shape)


def elementwise(rows: int, dims: ModelDims) -> list[Case]:
    """Norm, residual addition, activation, rotation (with the per-head norm) and cache write of one layer on ``rows``
    tokens.
    """
    hidden, width = dims.hidden, dims.width
    qk, kv = (dims.heads + dims.kv_heads) * dims.head_dim, dims.kv_heads * dims.head_dim
    row = rows * ELEMENT_BYTES
    heads = {"kv_heads": dims.kv_heads, "head_dim": dims.head_dim}
    return [
        Case("rms_norm", {"rows": rows, "width": hidden}, 4.0 * rows * hidden, 2.0 * row * hidden),
        Case("residual_add", {"rows": rows, "width": hidden}, 1.0 * rows * hidden, 3.0 * row * hidden),
        Case("activation", {"rows": rows, "width": width}, 5.0 * rows * width, 3.0 * row * width),
        Case("rotary", {"rows": rows, "qk_norm": dims.qk_norm, **_heads(dims)}, 6.0 * rows * qk, 2.0 * row * qk),
        Case("cache_write", {"rows": rows, **heads}, 0.0, 4.0 * row * kv),
    ]


def rejection(batch: int, draft_length: int, vocabulary: int, draft_vocabulary: int) -> Case:
    """Acceptance test of ``draft_length`` tokens per sequence and the draw from the residual."""
    sizes = {"vocabulary": vocabulary, "draft_vocabulary": draft_vocabulary}
    moved = 4.0 * batch * (3 * vocabulary + draft_vocabulary)
    return Case("rejection", {"batch": batch, "draft_length": draft_length, **sizes}, 4.0 * batch * vocabulary, moved)


def fused_verification(
    batch: int, draft_length: int, vocabulary: int, draft_vocabulary: int, kernel: str = "triton"
) -> Case:
    """Verification straight from logits in BF16, by ``kernel`` (triton, torch).

    Every logit is read once and takes part in a softmax (5 FLOPs as in ``sampling_softmax``); of each sequence one row
    is read again and drawn from, less the draft's row. The other rows of the draft are read at one token alone.
    """
    rows, drafted = batch * (draft_length + 1), min(draft_length, 1)
    sizes = {"vocabulary": vocabulary, "draft_vocabulary": draft_vocabulary}
    drawn = batch * (vocabulary + drafted * draft_vocabulary)
    moved = ELEMENT_BYTES * vocabulary * (rows + batch) + 4.0 * batch * drafted * draft_vocabulary
    params: dict[str, int | str] = {"batch": batch, "draft_length": draft_length, **sizes, "kernel": kernel}
    return Case("fused_verification", params, 5.0 * rows * vocabulary + 2.0 * drawn, moved)


def collectives(sizes: Iterable[int], ranks: int, mode: str) -> list[Case]:
    """Collectives over ``ranks`` devices; bytes are the message per rank times (n-1)/n, twice for an all-reduce.

    mode: ``graph`` replays a captured one, ``eager`` launches it from the host.
    """
    share = (ranks - 1) / ranks
    return [
        Case(
            op, {"bytes": size, "ranks": ranks, "mode": mode}, 0.0, (2.0 if op == "all_reduce" else 1.0) * share * size
        )
        for size in sizes
        for op in COLLECTIVES
    ]


def engine_step(model: str, layers: int, point: tuple[int, int, int], mode: str) -> Case:
    """A whole decode iteration (draft length 0) or speculative step; the self-check predicts it from other cases.

    point: sequences of the batch, draft length, tokens of context.
    """
    batch, draft_length, context = point
    sizes = {"layers": layers, "batch": batch, "draft_length": draft_length, "context": context}
    return Case("speculative_step" if draft_length else "decode_iteration", {"model": model, **sizes, "mode": mode})


def _copies(sizes: Iterable[int], with_host_link: bool) -> list[Case]:
    """Copies of ``sizes`` bytes inside device memory (read and written) and over the host link (moved once)."""
    linked = ("host_to_device", "device_to_host") if with_host_link else ()
    return [
        Case(op, {"bytes": size}, 0.0, (2.0 if op == "device_copy" else 1.0) * size)
        for size in sizes
        for op in ("device_copy", *linked)
    ]


def _model_cases(axes: CaseAxes, model: str, dims: ModelDims, precisions: tuple[str, ...]) -> list[Case]:
    cases: list[Case] = []
    for ways in axes.tensor_parallel:
        cases += _gemms(_shard_shapes(dims, ways), axes, precisions)
    cases += _gemms([(dims.vocabulary, dims.hidden)], axes, ("bf16",))
    points = [(b, q, c) for q in axes.queries for b in axes.batches for c in axes.contexts]
    cases += [cached_attention(b, q, c, dims) for b, q, c in points if b * c <= axes.max_cached_tokens]
    cases += [prefill_attention(b, t, dims) for b, t in axes.prompts]
    for rows in axes.rows:
        cases += elementwise(rows, dims)
    cases += _sampling_cases(axes, dims)
    if dims.experts:
        cases += _gemms([(dims.experts, dims.hidden)], axes, ("bf16",))
        cases += [moe(t, dims, d) for t in axes.moe_tokens for d in DISTRIBUTIONS]
    trained = ("layer_forward", "layer_forward_backward")
    return cases + [trained_layer(op, count, model, dims) for count in axes.train_tokens for op in trained]


def _shard_shapes(dims: ModelDims, ways: int) -> list[tuple[int, int]]:
    """(n, k) of the layer's products with ``ways``-fold tensor parallelism."""
    # Engines refuse such a split; experts are measured as a kernel of their own.
    if dims.heads % ways or dims.kv_heads % ways or dims.width % ways:
        return []
    shapes = [(dims.qkv_width // ways, dims.hidden), (dims.hidden, dims.heads * dims.head_dim // ways)]
    if not dims.experts:
        # Gate and up projection are one product in engines.
        shapes += [(2 * dims.width // ways, dims.hidden), (dims.hidden, dims.width // ways)]
    return shapes


def _gemms(shapes: Iterable[tuple[int, int]], axes: CaseAxes, precisions: Iterable[str]) -> list[Case]:
    return [
        gemm(m, n, k, precision)
        for precision in precisions
        for n, k in shapes
        for m in axes.rows
        # Logits of more rows would take gigabytes, and engines compute those of last tokens alone.
        if n < _WIDE or m <= axes.max_head_rows
    ]


def _sampling_cases(axes: CaseAxes, dims: ModelDims) -> list[Case]:
    """Softmax of logits in BF16, draw of one token per row, acceptance test with the draw after it."""
    draft_vocabulary = dims.draft_layer.vocabulary
    sampled = [r for r in axes.rows if r <= axes.max_head_rows]
    cases = []
    for vocabulary in (dims.vocabulary, draft_vocabulary):
        for rows in sampled:
            values, params = float(rows * vocabulary), {"rows": rows, "vocabulary": vocabulary}
            cases.append(Case("sampling_softmax", params, 5.0 * values, 6.0 * values))
            cases.append(Case("sampling_draw", params, 2.0 * values, 4.0 * values))
    lengths = sorted({q - 1 for q in axes.queries})
    return cases + [rejection(b, k, dims.vocabulary, draft_vocabulary) for k in lengths for b in axes.batches]


def _fused_cases(axes: CaseAxes, dims: ModelDims) -> list[Case]:
    return [
        fused_verification(batch, k, dims.vocabulary, dims.draft_layer.vocabulary, kernel)
        for k in range(_MOST_FUSED_DRAFTED + 1)
        for batch in axes.batches
        if batch in _FUSED_BATCHES
        for kernel in ("triton", "torch")
    ]


def _draft_cases(axes: CaseAxes, dims: ModelDims) -> list[Case]:
    """Products of the EAGLE-3 head of the checked model; its other operators are those of a target layer."""
    shapes = [
        # EAGLE-3 fuses hidden states of three target layers; its layer reads the embedding beside them.
        (dims.hidden, 3 * dims.hidden),
        (dims.qkv_width, 2 * dims.hidden),
        *_shard_shapes(dims, 1),
        (dims.vocabulary, dims.hidden),
    ]
    cases = _gemms(shapes, axes, ("bf16",))
    for rows in axes.rows:
        cases += elementwise(rows, dims)
    return cases


def _heads(dims: ModelDims) -> dict[str, int]:
    return {"heads": dims.heads, "kv_heads": dims.kv_heads, "head_dim": dims.head_dim}
