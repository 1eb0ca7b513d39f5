"""Attention of a few new queries on a cached prefix (decode: one query, verification: k+1), bottom-right causal.

Several kernels compute the same thing; which of them exist and are right depends on device and torch version, so they
are checked on the device against an explicit reference before use (:func:`usable_kernels`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

KERNELS = ("flash_varlen", "flash_prefix", "flash_prefix_swapped", "sdpa_masked")
"""flash_varlen: FlashAttention with used lengths. flash_prefix: all (k+1) x group query rows as one split-KV decode
over the prefix, merged with the new block by log-sum-exp; swapped: for versions that return it as [Hkv, B, rows] in
memory. sdpa_masked: scaled_dot_product_attention with a boolean mask.
"""

_TOLERANCE = 2e-2
_CHECKED_CAPACITIES = (320, 4096)
"""Cache sizes of the check: below and above what a kernel splits along the keys."""


@dataclass(frozen=True)
class AttentionPlan:
    """What all layers of one forward share: kernel, slots [B, Q] of the new tokens, and the kernel's index tensors."""

    kernel: str
    slots: Tensor
    prefix: Tensor
    used: Tensor
    query_offsets: Tensor
    key_offsets: Tensor
    mask: Tensor | None


def plan_attention(kernel: str, lengths: Tensor, queries: int, capacity: int, group: int) -> AttentionPlan:
    """Plan for ``queries`` new tokens per sequence behind ``lengths`` [B] cached ones, in a cache of ``capacity``
    slots.
    """
    batch, device = lengths.shape[0], lengths.device
    steps = torch.arange(queries, device=device)
    slots = lengths[:, None] + steps
    mask = None
    if kernel == "sdpa_masked":
        keys = torch.arange(capacity, device=device)
        mask = (keys <= slots[..., None]).repeat_interleave(group, dim=1)[:, None]
    rows = 1 if kernel.startswith("flash_prefix") else queries
    offsets = torch.arange(batch + 1, device=device, dtype=torch.int32)
    return AttentionPlan(
        kernel, slots, lengths.int(), (lengths + queries).int(), offsets * rows, offsets * capacity, mask
    )


def cached_attention(
    plan: AttentionPlan, query: Tensor, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor
) -> Tensor:
    """Output [B, Q, Hq, D]. query: [B, Q, Hq, D]; key, value: the new tokens' [B, Q, Hkv, D], already written to
    their slots of the caches [B, capacity, Hkv, D]. Token j of sequence b sees the slots 0..lengths[b]+j.
    """
    if plan.kernel == "flash_varlen":
        return _flash_varlen(plan, query, key_cache, value_cache)
    if plan.kernel.startswith("flash_prefix"):
        return _flash_prefix(plan, query, key, value, key_cache, value_cache)
    return _sdpa_masked(plan, query, key_cache, value_cache)


def reference_attention(query: Tensor, key_cache: Tensor, value_cache: Tensor, lengths: Tensor) -> Tensor:
    """The same by definition, in fp32 with every product spelled out; slow."""
    heads, head_dim = query.shape[2:]
    queries = query.shape[1]
    group = heads // key_cache.shape[2]
    keys, values = (cache.float().repeat_interleave(group, dim=2) for cache in (key_cache, value_cache))
    scores = torch.einsum("bqhd,bshd->bhqs", query.float(), keys) / head_dim**0.5
    last = lengths[:, None] + torch.arange(queries, device=query.device)
    hidden = torch.arange(keys.shape[1], device=query.device) > last[..., None]
    weights = scores.masked_fill(hidden[:, None], float("-inf")).softmax(-1)
    return torch.einsum("bhqs,bshd->bqhd", weights, values).to(query.dtype)


def usable_kernels(device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int) -> list[str]:
    """Kernels that run on ``device`` and agree with the reference there, for one and for four queries."""
    heads_of = (heads, kv_heads, head_dim)
    shapes = [(queries, capacity) for queries in (1, 4) for capacity in _CHECKED_CAPACITIES]
    return [k for k in KERNELS if all(_agrees(k, device, dtype, heads_of, shape) for shape in shapes)]


def _agrees(
    kernel: str, device: torch.device, dtype: torch.dtype, heads_of: tuple[int, int, int], shape: tuple[int, int]
) -> bool:
    heads, kv_heads, head_dim = heads_of
    queries, capacity = shape
    generator = torch.Generator(device=device).manual_seed(0)
    lengths = torch.tensor([capacity - 20, capacity // 4], device=device)

    def random(*size: int) -> Tensor:
        return torch.randn(size, device=device, generator=generator).to(dtype)

    query = random(2, queries, heads, head_dim)
    key_cache, value_cache = (random(2, capacity, kv_heads, head_dim) for _ in "kv")
    plan = plan_attention(kernel, lengths, queries, capacity, heads // kv_heads)
    rows = torch.arange(2, device=device)[:, None]
    key, value = key_cache[rows, plan.slots], value_cache[rows, plan.slots]
    try:
        out = cached_attention(plan, query, key, value, key_cache, value_cache).float()
    except (RuntimeError, TypeError, AttributeError):  # how torch says that it has no such kernel for a device or type
        return False
    expected = reference_attention(query, key_cache, value_cache, lengths).float()
    return bool(((out - expected).norm() / expected.norm()).item() < _TOLERANCE)


def _flash(
    query: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, max_query: int, used: Tensor, causal: bool
) -> tuple[Tensor, Tensor]:
    """FlashAttention over packed sequences with a used length per sequence -> output [T, Hq, D] and log-sum-exp."""
    capacity = keys.shape[1]
    result = torch.ops.aten._flash_attention_forward(
        query,
        keys.flatten(0, 1),
        values.flatten(0, 1),
        plan.query_offsets,
        plan.key_offsets,
        max_query,
        capacity,
        0.0,
        causal,
        False,
        seqused_k=used,
    )
    return result[0], result[1]


def _flash_varlen(plan: AttentionPlan, query: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
    queries = query.shape[1]
    out, _ = _flash(query.flatten(0, 1), key_cache, value_cache, plan, queries, plan.used, queries > 1)
    return out.view(query.shape)


def _flash_prefix(
    plan: AttentionPlan, query: Tensor, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor
) -> Tensor:
    """No query of the block is masked on the prefix, so there all rows of a KV head form one group of (k+1) x group
    heads.
    """
    batch, queries, _, head_dim = query.shape
    kv_heads = key.shape[2]
    rows = query.view(batch, queries, kv_heads, -1, head_dim).transpose(1, 2)
    packed = rows.reshape(batch, -1, head_dim)
    prefix, lse = _flash(packed, key_cache, value_cache, plan, 1, plan.prefix, False)
    prefix = prefix.view(rows.shape).float()
    swapped = plan.kernel == "flash_prefix_swapped"
    lse = (lse.reshape(kv_heads, batch, -1) if swapped else lse).transpose(0, 1).reshape(*rows.shape[:-1], 1).float()
    scores = torch.einsum("bhqgd,bkhd->bhqgk", rows.float(), key.float()) / head_dim**0.5
    later = torch.ones(queries, queries, dtype=torch.bool, device=query.device).triu_(1)
    scores = scores.masked_fill(later[:, None], float("-inf"))
    lse = lse.masked_fill(plan.prefix.view(-1, 1, 1, 1, 1) == 0, float("-inf"))
    weights = torch.cat([lse, scores], -1).softmax(-1)
    block = torch.einsum("bhqgk,bkhd->bhqgd", weights[..., 1:], value.float())
    merged = prefix.nan_to_num() * weights[..., :1] + block
    return merged.to(query.dtype).transpose(1, 2).reshape(query.shape)


def _sdpa_masked(plan: AttentionPlan, query: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
    """Query heads of a group ride as rows of their KV head, which spares expanding the cache."""
    batch, queries, _, head_dim = query.shape
    kv_heads = key_cache.shape[2]
    rows = query.view(batch, queries, kv_heads, -1, head_dim).transpose(1, 2).reshape(batch, kv_heads, -1, head_dim)
    out = F.scaled_dot_product_attention(
        rows, key_cache.transpose(1, 2), value_cache.transpose(1, 2), attn_mask=plan.mask
    )
    return out.view(batch, kv_heads, queries, -1, head_dim).transpose(1, 2).reshape(query.shape)
