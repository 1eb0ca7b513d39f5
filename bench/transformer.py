"""Decoder layers on random weights with a slot-indexed KV cache, as plain functions over tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from bench.attention import AttentionPlan, cached_attention
from bench.cases import ModelDims
from bench.moe import ExpertWeights, moe_feed_forward, random_experts

_ROPE_BASE = 10000.0
_EPSILON = 1e-6
_SLOT_MULTIPLE = 64


@dataclass(frozen=True)
class LayerWeights:
    """Weights of one layer; ``experts`` replaces ``gate_up`` and ``down`` in a mixture-of-experts layer."""

    attention_norm: Tensor
    qkv: Tensor
    output: Tensor
    mlp_norm: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    gate_up: Tensor | None
    down: Tensor | None
    experts: ExpertWeights | None = None


@dataclass(frozen=True)
class LayerCache:
    """Keys and values [B, capacity, Hkv, D]; slots at and behind a sequence's length hold nothing of meaning."""

    keys: Tensor
    values: Tensor


def random_matrix(
    rows: int, columns: int, device: torch.device, dtype: torch.dtype, generator: torch.Generator | None = None
) -> Tensor:
    """Gaussian [rows, columns] with variance 1 / columns."""
    return torch.randn(rows, columns, device=device, dtype=dtype, generator=generator).mul_(columns**-0.5)


def random_layer(
    dims: ModelDims,
    device: torch.device,
    dtype: torch.dtype,
    generator: torch.Generator | None = None,
    input_width: int = 0,
) -> LayerWeights:
    """One layer of ``dims``; ``input_width`` overrides the width of the QKV input (2 x hidden in an EAGLE-3 head)."""

    def matrix(rows: int, columns: int) -> Tensor:
        return random_matrix(rows, columns, device, dtype, generator)

    def ones(size: int) -> Tensor:
        return torch.ones(size, device=device, dtype=dtype)

    experts = None
    if dims.experts:
        experts = random_experts(dims.hidden, dims.width, dims.experts, device, dtype, generator)
    return LayerWeights(
        attention_norm=ones(dims.hidden),
        qkv=matrix(dims.qkv_width, input_width or dims.hidden),
        output=matrix(dims.hidden, dims.heads * dims.head_dim),
        mlp_norm=ones(dims.hidden),
        query_norm=ones(dims.head_dim) if dims.qk_norm else None,
        key_norm=ones(dims.head_dim) if dims.qk_norm else None,
        gate_up=None if experts else matrix(2 * dims.width, dims.hidden),
        down=None if experts else matrix(dims.hidden, dims.width),
        experts=experts,
    )


def cache_capacity(tokens: int) -> int:
    """Slots per sequence for ``tokens`` tokens: rounded up, since masked kernels want aligned rows."""
    return -(-tokens // _SLOT_MULTIPLE) * _SLOT_MULTIPLE


def empty_cache(dims: ModelDims, batch: int, capacity: int, device: torch.device, dtype: torch.dtype) -> LayerCache:
    """Cache with random content, so that attention over any prefix is over finite, non-zero data."""
    shape = (batch, capacity, dims.kv_heads, dims.head_dim)
    return LayerCache(*(torch.randn(shape, device=device, dtype=dtype) for _ in range(2)))


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Root-mean-square norm over the last axis."""
    return F.rms_norm(x, (x.shape[-1],), weight, _EPSILON)


def rope_table(capacity: int, head_dim: int, device: torch.device) -> Tensor:
    """Cosines and sines [capacity, 2, D/2] in fp32 (Su et al. 2021, arXiv 2104.09864, Eq. 15)."""
    inverse = _ROPE_BASE ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angles = torch.arange(capacity, device=device, dtype=torch.float32)[:, None] * inverse
    return torch.stack([angles.cos(), angles.sin()], 1)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """x [..., heads, D] rotated by ``angles`` [..., 2, D/2] of its positions."""
    cos, sin = (angles[..., i, :].unsqueeze(-2).to(x.dtype) for i in (0, 1))
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def gated_activation(x: Tensor) -> Tensor:
    """silu(gate) x up of the fused projection [..., 2W]."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def project_qkv(x: Tensor, layer: LayerWeights, dims: ModelDims, angles: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries [B, Q, Hq, D], rotated keys and values [B, Q, Hkv, D] of the normed input."""
    split = F.linear(x, layer.qkv).unflatten(-1, (-1, dims.head_dim))
    return condition_qkv(split, layer, dims, angles)


def condition_qkv(split: Tensor, layer: LayerWeights, dims: ModelDims, angles: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per-head norm (where the model has one) and rotation of the projected heads [B, Q, Hq + 2 Hkv, D]."""
    query, key, value = split.split([dims.heads, dims.kv_heads, dims.kv_heads], dim=-2)
    if layer.query_norm is not None and layer.key_norm is not None:
        query, key = rms_norm(query, layer.query_norm), rms_norm(key, layer.key_norm)
    return rotate(query, angles), rotate(key, angles), value


def write_cache(cache: LayerCache, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """Store new keys and values [B, Q, Hkv, D] at ``slots`` [B, Q]."""
    rows = torch.arange(slots.shape[0], device=slots.device)[:, None]
    cache.keys[rows, slots] = key
    cache.values[rows, slots] = value


def feed_forward(x: Tensor, layer: LayerWeights, dims: ModelDims) -> Tensor:
    """Dense gated or routed feed-forward on x [B, Q, H]."""
    if layer.experts is not None:
        return moe_feed_forward(x.flatten(0, -2), layer.experts, dims.top_k).view(x.shape)
    return F.linear(gated_activation(F.linear(x, layer.gate_up)), layer.down)


def attend(
    normed: Tensor, layer: LayerWeights, cache: LayerCache, dims: ModelDims, plan: AttentionPlan, angles: Tensor
) -> Tensor:
    """Attention block [B, Q, H] on normed input, writing the new tokens into the cache."""
    query, key, value = project_qkv(normed, layer, dims, angles)
    write_cache(cache, plan.slots, key, value)
    out = cached_attention(plan, query, key, value, cache.keys, cache.values)
    return F.linear(out.flatten(-2), layer.output)


def decoder_layer(
    x: Tensor, layer: LayerWeights, cache: LayerCache, dims: ModelDims, plan: AttentionPlan, angles: Tensor
) -> Tensor:
    """One pre-norm layer with both residuals, x [B, Q, H] -> [B, Q, H]."""
    x = x + attend(rms_norm(x, layer.attention_norm), layer, cache, dims, plan, angles)
    return x + feed_forward(rms_norm(x, layer.mlp_norm), layer, dims)
