"""Grouped-expert feed-forward in torch: routing, permutation, grouped products, combination."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor


@dataclass(frozen=True)
class ExpertWeights:
    """router: [E, H]; gate_up: [E, H, 2W]; down: [E, W, H]."""

    router: Tensor
    gate_up: Tensor
    down: Tensor


def random_experts(
    hidden: int,
    width: int,
    experts: int,
    device: torch.device,
    dtype: torch.dtype,
    generator: torch.Generator | None = None,
) -> ExpertWeights:
    """Gaussian weights scaled so that activations keep unit variance."""

    def normal(*shape: int, fan_in: int) -> Tensor:
        return (torch.randn(shape, device=device, dtype=dtype, generator=generator)).mul_(fan_in**-0.5)

    return ExpertWeights(
        normal(experts, hidden, fan_in=hidden),
        normal(experts, hidden, 2 * width, fan_in=hidden),
        normal(experts, width, hidden, fan_in=width),
    )


def route(x: Tensor, router: Tensor, top_k: int, skew: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weights and experts [T, top_k] of each token; ``skew`` [E] is added to the logits to make routing uneven."""
    logits = F.linear(x, router).float()
    if skew is not None:
        logits = logits + skew
    weights, chosen = logits.softmax(-1).topk(top_k, dim=-1)
    return weights / weights.sum(-1, keepdim=True), chosen


def routing_load(chosen: Tensor, experts: int) -> tuple[int, float]:
    """Number of distinct experts chosen, and load of the busiest over the mean load (1 is balanced). Synchronises."""
    counts = torch.bincount(chosen.flatten(), minlength=experts).float()
    return int((counts > 0).sum()), float(counts.max() / counts.mean())


def moe_feed_forward(x: Tensor, weights: ExpertWeights, top_k: int, skew: Tensor | None = None) -> Tensor:
    """Output [T, H] of the routed experts for tokens x [T, H]."""
    scale, chosen = route(x, weights.router, top_k, skew)
    flat = chosen.flatten()
    order = flat.argsort()
    tokens = order // top_k
    counts = torch.zeros(weights.router.shape[0], device=x.device, dtype=torch.int32)
    counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
    ends = counts.cumsum(0, dtype=torch.int32)
    gate, up = grouped_product(x[tokens], weights.gate_up, ends).chunk(2, dim=-1)
    out = grouped_product(F.silu(gate) * up, weights.down, ends)
    out = out * scale.flatten()[order, None].to(out.dtype)
    return torch.zeros_like(x).index_add_(0, tokens, out)


def grouped_product(x: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Rows of x [T, K], sorted by expert, times their expert's matrix [E, K, N]; expert e owns rows
    ends[e-1]..ends[e].
    """
    if x.is_cuda and x.dtype == torch.bfloat16 and hasattr(torch, "_grouped_mm"):
        return torch._grouped_mm(x, matrices, offs=ends)
    bounds = [0, *ends.tolist()]
    spans = enumerate(pairwise(bounds))
    return torch.cat([x[start:end] @ matrices[e] for e, (start, end) in spans if end > start])
