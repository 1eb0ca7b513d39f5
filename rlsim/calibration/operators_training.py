"""Forward and backward of a layer, and the optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from rlsim.calibration.cell import Cell
from rlsim.calibration.dims import ModelDims, model_dims
from rlsim.calibration.transformer import LayerWeights, feed_forward, project_qkv, random_layer, rms_norm, rope_table
from rlsim.calibration.workbench import Prepared, UnsupportedError, Workbench

_LEARNING_RATE = 1e-4


def training_layer(x: Tensor, layer: LayerWeights, dims: ModelDims, angles: Tensor) -> Tensor:
    """One pre-norm layer on whole sequences x [B, T, H] with causal attention and no cache."""
    projected = project_qkv(rms_norm(x, layer.attention_norm), layer, dims, angles)
    query, key, value = (tensor.transpose(1, 2) for tensor in projected)
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    x = x + F.linear(out.transpose(1, 2).flatten(-2), layer.output)
    return x + feed_forward(rms_norm(x, layer.mlp_norm), layer, dims)


def _layer(cell: Cell, bench: Workbench, backward: bool) -> Prepared:
    name, tokens = cell.text("model"), cell.number("tokens")
    dims = model_dims(name)
    if dims.experts and bench.device.type == "cuda" and not hasattr(torch, "_grouped_mm"):
        raise UnsupportedError("this torch has no grouped matrix product")
    layer = random_layer(dims, bench.device, bench.dtype)
    angles = rope_table(tokens, dims.head_dim, bench.device)
    x = bench.random(1, tokens, dims.hidden)
    if not backward:
        return Prepared([lambda: training_layer(x, layer, dims, angles)], mode="eager")
    parameters = [tensor.requires_grad_() for tensor in _tensors(layer)]
    x.requires_grad_()
    upstream = bench.random(1, tokens, dims.hidden)

    def call() -> None:
        out = training_layer(x, layer, dims, angles)
        torch.autograd.grad(out, [x, *parameters], upstream)

    return Prepared([call], mode="eager")


def _tensors(layer: LayerWeights) -> list[Tensor]:
    parts = [getattr(layer, field.name) for field in fields(layer) if field.name != "experts"]
    if layer.experts is not None:
        parts += [layer.experts.router, layer.experts.gate_up, layer.experts.down]
    return [part for part in parts if part is not None]


def _optimizer_step(cell: Cell, bench: Workbench) -> Prepared:
    parameter = torch.randn(cell.number("parameters"), device=bench.device, requires_grad=True)
    parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW([parameter], lr=_LEARNING_RATE, fused=True)
    return Prepared([optimizer.step], mode="eager")


TRAINING_OPERATORS: dict[str, Callable[[Cell, Workbench], Prepared]] = {
    "layer_forward": lambda cell, bench: _layer(cell, bench, backward=False),
    "layer_forward_backward": lambda cell, bench: _layer(cell, bench, backward=True),
    "optimizer_step": _optimizer_step,
}
NEEDS_GRADIENTS = frozenset({"layer_forward_backward", "optimizer_step"})
