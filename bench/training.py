"""Forward and backward of a layer, and the optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from bench.cases import TRAINING_STEP, Case, ModelDims
from bench.launches import enqueue_seconds, kernel_count, require_graphs
from bench.measurements import Facts
from bench.timing import Call
from bench.transformer import LayerWeights, feed_forward, project_qkv, random_layer, rms_norm, rope_table
from bench.workbench import Prepared, UnsupportedError, Workbench

_LEARNING_RATE = 1e-4
LAUNCHED_TOKENS = 1024
"""Tokens up to which a layer may wait for its launches, and the host's part is measured."""


def training_layer(x: Tensor, layer: LayerWeights, dims: ModelDims, angles: Tensor) -> Tensor:
    """One pre-norm layer on whole sequences x [B, T, H] with causal attention and no cache."""
    projected = project_qkv(rms_norm(x, layer.attention_norm), layer, dims, angles)
    query, key, value = (tensor.transpose(1, 2) for tensor in projected)
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    x = x + F.linear(out.transpose(1, 2).flatten(-2), layer.output)
    return x + feed_forward(rms_norm(x, layer.mlp_norm), layer, dims)


def _layer(case: Case, on: Workbench, backward: bool) -> Prepared:
    """``graph`` as mode replays forward and backward with their inputs in place; eager is the default."""
    require_graphs(case.text("mode") or "eager", on.device)
    name, tokens = case.text("model"), case.number("tokens")
    dims = on.models[name]
    require_grouped_products(dims, on.device)
    layer = random_layer(dims, on.device, on.dtype)
    angles = rope_table(tokens, dims.head_dim, on.device)
    x = on.random(1, tokens, dims.hidden)
    if not backward:
        return _timed_layer(lambda: training_layer(x, layer, dims, angles), case, on)
    parameters = [tensor.requires_grad_() for tensor in layer_tensors(layer)]
    x.requires_grad_()
    upstream = on.random(1, tokens, dims.hidden)

    def call() -> None:
        out = training_layer(x, layer, dims, angles)
        torch.autograd.grad(out, [x, *parameters], upstream)

    return _timed_layer(call, case, on)


def require_grouped_products(dims: ModelDims, device: torch.device) -> None:
    """UnsupportedError where routed experts would need a product that this torch lacks on a GPU."""
    if dims.experts and device.type == "cuda" and not hasattr(torch, "_grouped_mm"):
        raise UnsupportedError("this torch has no grouped matrix product")


def _timed_layer(call: Call, case: Case, on: Workbench) -> Prepared:
    if case.text("mode") == "graph":
        return Prepared([call], facts=Facts(kernels=kernel_count(call, on.device)))
    short = case.number("tokens") <= LAUNCHED_TOKENS
    return Prepared([call], mode="eager", facts=Facts(host_s=enqueue_seconds(call, on.device) if short else None))


def layer_tensors(layer: LayerWeights) -> list[Tensor]:
    """All weights of a layer."""
    parts = [getattr(layer, field.name) for field in fields(layer) if field.name != "experts"]
    if layer.experts is not None:
        parts += [layer.experts.router, layer.experts.gate_up, layer.experts.down]
    return [part for part in parts if part is not None]


def _optimizer_step(case: Case, on: Workbench) -> Prepared:
    parameter = torch.randn(case.number("parameters"), device=on.device, requires_grad=True)
    parameter.grad = torch.randn_like(parameter)
    return Prepared([adam([parameter]).step], mode="eager")


def adam(parameters: list[Tensor]) -> torch.optim.AdamW:
    """The optimizer that is measured: AdamW as one fused kernel."""
    return torch.optim.AdamW(parameters, lr=_LEARNING_RATE, fused=True)


TRAINING_OPERATORS: dict[str, Callable[[Case, Workbench], Prepared]] = {
    "layer_forward": lambda case, on: _layer(case, on, backward=False),
    "layer_forward_backward": lambda case, on: _layer(case, on, backward=True),
    "optimizer_step": _optimizer_step,
}
NEEDS_GRADIENTS = frozenset({"layer_forward_backward", "optimizer_step", TRAINING_STEP})
TAKES_MEMORY = frozenset({*TRAINING_OPERATORS, TRAINING_STEP})
"""Operators whose peak of device memory is recorded."""
