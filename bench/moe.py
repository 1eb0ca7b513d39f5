"""Grouped-expert feed-forward in torch: routing, permutation, grouped products, combination."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from numpy.typing import NDArray
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


def route(x: Tensor, router: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Weights and experts [T, top_k] of each token x [T, H]."""
    weights, chosen = F.linear(x, router).float().softmax(-1).topk(top_k, dim=-1)
    return weights / weights.sum(-1, keepdim=True), chosen


def deal(distribution: str, tokens: int, experts: int, top_k: int) -> NDArray[np.int64]:
    """Experts [T, top_k] of each token, dealt out so that the experts' loads follow ``distribution``.

    ``balanced``: as equal as whole tokens allow. ``power_law_A``: loads at evenly spaced quantiles of a density
    proportional to load^-A, from 1 to 0.8 tokens (from 0.01 to 2 where there are fewer assignments than experts), as
    in the imported tables of that name.
    """
    assigned = tokens * top_k
    loads = np.ones(experts)
    if distribution != "balanced":
        power = 1.0 - float(distribution.removeprefix("power_law_"))
        low, high = (1.0, max(0.8 * tokens, 2.0)) if assigned > experts else (0.01, 2.0)
        quantile = (np.arange(experts) + 0.5) / experts
        loads = ((high**power - low**power) * quantile + low**power) ** (1.0 / power)
    counts = _whole_loads(loads, assigned, tokens)
    # Sorted by expert and read in strides of T, no token meets an expert twice, since none has more than T entries.
    return np.stack(np.split(np.repeat(np.arange(experts), counts), top_k), axis=1)


def _whole_loads(loads: NDArray[np.float64], assigned: int, most: int) -> NDArray[np.int64]:
    """Whole numbers [E] in proportion to ``loads`` as far as none exceeds ``most``; they sum to ``assigned``."""
    reached = np.rint(np.cumsum(loads) / loads.sum() * assigned).astype(np.int64)
    counts: NDArray[np.int64] = np.minimum(np.diff(reached, prepend=0), most)
    while (left := assigned - int(counts.sum())) > 0:
        room = np.argsort(counts, kind="stable")[:left]
        counts[room] += counts[room] < most
    return counts


def routing_load(chosen: NDArray[np.int64], experts: int) -> tuple[int, float]:
    """Number of distinct experts chosen, and load of the busiest over the mean load (1 is balanced)."""
    counts = np.bincount(chosen.ravel(), minlength=experts)
    return int((counts > 0).sum()), float(counts.max() / counts.mean())


def moe_feed_forward(x: Tensor, weights: ExpertWeights, top_k: int) -> Tensor:
    """Output [T, H] of router and routed experts for tokens x [T, H]."""
    return expert_feed_forward(x, weights, *route(x, weights.router, top_k))


def expert_feed_forward(x: Tensor, weights: ExpertWeights, scale: Tensor, chosen: Tensor) -> Tensor:
    """Output [T, H] of the experts ``chosen`` [T, top_k], weighted by ``scale``, for tokens x [T, H]."""
    flat = chosen.flatten()
    order = flat.argsort()
    tokens = order // chosen.shape[1]
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
