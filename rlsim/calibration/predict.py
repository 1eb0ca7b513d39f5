"""Time of a composite as the sum of measured operators (standard library only)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from rlsim.calibration.cases import ENQUEUE_CONTEXT
from rlsim.calibration.cell import Cell
from rlsim.calibration.dims import ModelDims, model_dims
from rlsim.errors import InputError

Points = dict[tuple[float, ...], float]
Category = tuple[tuple[str, Any], ...]

_AXES: dict[str, tuple[str, ...]] = {
    "gemm": ("m",),
    "decode_attention": ("batch", "context"),
    "verify_attention": ("queries", "batch", "context"),
    "attention_plan": ("queries", "batch", "context"),
    "prefill_attention": ("batch", "tokens"),
    "moe": ("tokens",),
    "rms_norm": ("rows",),
    "residual_add": ("rows",),
    "activation": ("rows",),
    "rotary": ("rows",),
    "cache_write": ("rows",),
    "sampling_softmax": ("rows",),
    "sampling_draw": ("rows",),
    "rejection": ("draft_length", "batch"),
}
"""Numeric parameters along which an operator is interpolated; its other parameters must be equal."""
_COMPOSITES = ("decode_iteration", "speculative_step")
_STATE_KERNELS = 8
"""Small kernels of a step outside its operators: gather and write of tokens, features, counts and lengths."""
_PASS_KERNELS = 3
"""Small kernels of a forward: embedding, gather of the last valid row, token ids of the draft in the target's
vocabulary.
"""


class OperatorTimes:
    """Measured operator times, interpolated log-log along their numeric parameters; composites are never among them."""

    def __init__(self, records: Iterable[Mapping[str, Any]]) -> None:
        self._points: dict[tuple[str, Category], Points] = {}
        for record in records:
            if "sample" in record and record["op"] not in _COMPOSITES:
                category, at = _split(record["op"], record["params"])
                self._points.setdefault((record["op"], category), {})[at] = float(record["sample"]["seconds_median"])

    def seconds(self, op: str, **params: Any) -> float:
        """Time of ``op`` at ``params``. InputError where nothing like it was measured."""
        category, at = _split(op, params)
        points = self._points.get((op, category))
        if points is None:
            raise InputError(f"the measurements hold no '{op}' with {dict(category)}")
        return interpolate(points, at)

    def has(self, op: str, **params: Any) -> bool:
        """Whether ``op`` was measured with these parameters, apart from its numeric axes."""
        return (op, _split(op, params)[0]) in self._points


def _split(op: str, params: Mapping[str, Any]) -> tuple[Category, tuple[float, ...]]:
    axes = _AXES.get(op, ())
    category = tuple(sorted((name, value) for name, value in params.items() if name not in axes))
    return category, tuple(math.log(params[name] + (name == "draft_length")) for name in axes)


def interpolate(points: Points, at: tuple[float, ...]) -> float:
    """Seconds at coordinates ``at`` (logarithms) by linear interpolation of the logarithm, axis by axis.

    Beyond the measured range an axis continues with its last slope, limited to 0..1 (never faster when larger, never
    worse than proportional). The points need not form a full grid.
    """
    if not at:
        return points[()]
    rows: dict[float, Points] = {}
    for key, seconds in points.items():
        rows.setdefault(key[0], {})[key[1:]] = seconds
    knots = sorted(rows)
    low, high = _neighbours(knots, at[0])
    left = math.log(interpolate(rows[low], at[1:]))
    if low == high:
        return math.exp(left)
    slope = (math.log(interpolate(rows[high], at[1:])) - left) / (high - low)
    if not knots[0] <= at[0] <= knots[-1]:
        slope = min(max(slope, 0.0), 1.0)
        low, left = (high, math.log(interpolate(rows[high], at[1:]))) if at[0] > high else (low, left)
    return math.exp(left + slope * (at[0] - low))


def _neighbours(knots: list[float], x: float) -> tuple[float, float]:
    """The two knots around x, or the outermost two beyond the ends; the same one twice where it hits or is alone."""
    if x in knots:
        return x, x
    if len(knots) == 1:
        return knots[0], knots[0]
    upper = min(max(sum(1 for knot in knots if knot < x), 1), len(knots) - 1)
    return knots[upper - 1], knots[upper]


def predict_composite(times: OperatorTimes, cell: Cell, device_type: str) -> float:
    """Seconds of a decode iteration or speculative step from its operators; an eager step is bound by its host too."""
    dims, layers = model_dims(cell.text("model")), cell.number("layers")
    batch, k, context = (cell.number(name) for name in ("batch", "draft_length", "context"))
    total = _target_seconds(times, dims, layers, batch, k, context)
    if k:
        total += _draft_seconds(times, dims, batch, k, context)
    if cell.text("mode") == "graph":
        return total
    parts = {"layer": layers, "draft_pass": k, "tail": 1}
    host = {part: times.seconds("host_enqueue", model=cell.text("model"), layers=layers, part=part) for part in parts}
    if device_type == "cuda":
        return max(total, sum(count * host[part] for part, count in parts.items()))
    glue = _glue(times, dims, host)
    return total + sum(count * glue[part] for part, count in parts.items())


def _glue(times: OperatorTimes, dims: ModelDims, host: Mapping[str, float]) -> dict[str, float]:
    """Seconds that a part takes beyond its operators where host and device are the same: views, dispatch, cold code.

    From the parts measured whole at one shape (batch 1, ENQUEUE_CONTEXT); never negative.
    """
    draft = dims.draft_layer
    layer = _layer(times, dims, 1, 1, ENQUEUE_CONTEXT)
    tail = times.seconds("sampling_softmax", rows=2, vocabulary=dims.vocabulary)
    tail += _rejection(times, dims, 1, 1)
    operators = {"layer": layer, "draft_pass": _draft_pass(times, draft, 1, 1, ENQUEUE_CONTEXT), "tail": tail}
    return {part: max(0.0, host[part] - seconds) for part, seconds in operators.items()}


def _target_seconds(times: OperatorTimes, dims: ModelDims, layers: int, batch: int, k: int, context: int) -> float:
    rows = batch * (k + 1)
    small = times.seconds("launch_in_graph")
    layer = _layer(times, dims, batch, k + 1, context)
    ends = _on_rows(times, "residual_add", 2 * rows, dims.hidden) + _on_rows(times, "rms_norm", rows, dims.hidden)
    ends += _gemm(times, rows, dims.vocabulary, dims.hidden) + _plan(times, dims, batch, k + 1, context)
    ends += times.seconds("sampling_softmax", rows=rows, vocabulary=dims.vocabulary)
    ends += _rejection(times, dims, batch, k)
    return layers * layer + ends + (_STATE_KERNELS + _PASS_KERNELS) * small


def _layer(times: OperatorTimes, dims: ModelDims, batch: int, queries: int, context: int) -> float:
    rows = batch * queries
    total = _attention_block(times, dims, batch, queries, context, dims.hidden) + _mlp_block(times, dims, rows)
    return (
        total
        + 2 * _on_rows(times, "rms_norm", rows, dims.hidden)
        + 2 * _on_rows(times, "residual_add", rows, dims.hidden)
    )


def _rejection(times: OperatorTimes, dims: ModelDims, batch: int, k: int) -> float:
    drafts = dims.draft_layer.vocabulary
    return times.seconds("rejection", batch=batch, draft_length=k, vocabulary=dims.vocabulary, draft_vocabulary=drafts)


def _draft_seconds(times: OperatorTimes, target: ModelDims, batch: int, k: int, context: int) -> float:
    """Fusion of the target's states, one pass over k+1 rows, k-1 over one, and k times head, softmax and draw."""
    dims = target.draft_layer
    fuse = _gemm(times, batch * (k + 1), dims.hidden, 3 * dims.hidden)
    passes = _draft_pass(times, dims, batch, k + 1, context) + (k - 1) * _draft_pass(times, dims, batch, 1, context)
    head = _on_rows(times, "rms_norm", batch, dims.hidden) + _gemm(times, batch, dims.vocabulary, dims.hidden)
    head += times.seconds("sampling_softmax", rows=batch, vocabulary=dims.vocabulary)
    head += times.seconds("sampling_draw", rows=batch, vocabulary=dims.vocabulary)
    return fuse + passes + k * head


def _draft_pass(times: OperatorTimes, dims: ModelDims, batch: int, queries: int, context: int) -> float:
    rows = batch * queries
    total = _attention_block(times, dims, batch, queries, context, 2 * dims.hidden) + _mlp_block(times, dims, rows)
    total += 3 * _on_rows(times, "rms_norm", rows, dims.hidden) + 2 * _on_rows(times, "residual_add", rows, dims.hidden)
    total += _on_rows(times, "residual_add", 2 * rows, dims.hidden) + _plan(times, dims, batch, queries, context)
    return total + _PASS_KERNELS * times.seconds("launch_in_graph")


def _attention_block(
    times: OperatorTimes, dims: ModelDims, batch: int, queries: int, context: int, width: int
) -> float:
    """Projections, rotation, cache write and attention of one layer whose QKV input is ``width`` wide."""
    rows = batch * queries
    op = "decode_attention" if queries == 1 else "verify_attention"
    total = _gemm(times, rows, dims.qkv_width, width) + _gemm(times, rows, dims.hidden, dims.heads * dims.head_dim)
    total += times.seconds(op, batch=batch, queries=queries, context=context, **_heads(dims))
    total += times.seconds("rotary", rows=rows, qk_norm=dims.qk_norm, **_heads(dims))
    return total + times.seconds("cache_write", rows=rows, kv_heads=dims.kv_heads, head_dim=dims.head_dim)


def _mlp_block(times: OperatorTimes, dims: ModelDims, rows: int) -> float:
    if dims.experts:
        return times.seconds(
            "moe",
            tokens=rows,
            hidden=dims.hidden,
            width=dims.width,
            experts=dims.experts,
            top_k=dims.top_k,
            distribution="balanced",
        )
    products = _gemm(times, rows, 2 * dims.width, dims.hidden) + _gemm(times, rows, dims.hidden, dims.width)
    return products + _on_rows(times, "activation", rows, dims.width)


def _plan(times: OperatorTimes, dims: ModelDims, batch: int, queries: int, context: int) -> float:
    return times.seconds("attention_plan", batch=batch, queries=queries, context=context, **_heads(dims))


def _gemm(times: OperatorTimes, m: int, n: int, k: int) -> float:
    return times.seconds("gemm", m=m, n=n, k=k, dtype="bf16")


def _on_rows(times: OperatorTimes, op: str, rows: int, width: int) -> float:
    return times.seconds(op, rows=rows, width=width)


def _heads(dims: ModelDims) -> dict[str, int]:
    return {"heads": dims.heads, "kv_heads": dims.kv_heads, "head_dim": dims.head_dim}
