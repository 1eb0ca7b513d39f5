"""Exact lossless rejection sampling of drafted tokens, batched and without a host synchronisation.

Leviathan et al. 2023 (arXiv 2211.17192, Algorithm 1) and Chen et al. 2023 (arXiv 2302.01318, Algorithm 2). Every
function works under CUDA-graph capture.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_SMALLEST_DRAW = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Draft:
    """k drafted tokens per sequence and the distributions they were drawn from.

    tokens: [B, k] ids in the target's vocabulary. ``probabilities``: [B, k, Vq] over the draft's vocabulary, or None
    where the draft is deterministic (n-gram, greedy head), that is one-hot at its token. ``indices``: [B, k] the
    tokens' ids in the draft's vocabulary. ``to_target``: [Vq] draft id -> target id, None where the vocabularies are
    the same.
    """

    tokens: Tensor
    probabilities: Tensor | None = None
    indices: Tensor | None = None
    to_target: Tensor | None = None


def sampling_probabilities(logits: Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Distribution [..., V] in fp32 that the sampler draws from: temperature, then top-k, then top-p (0 and 1 switch
    them off).

    Temperature 0 is greedy: one-hot at the first maximum. Target and draft must go through the same call for
    losslessness.
    """
    logits = logits.float()
    if temperature == 0.0:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    logits = logits / temperature
    if 0 < top_k < logits.shape[-1]:
        floor = logits.topk(top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < floor, float("-inf"))
    probabilities = logits.softmax(-1)
    if top_p >= 1.0:
        return probabilities
    ordered, order = probabilities.sort(dim=-1, descending=True)
    outside = ordered.cumsum(-1) - ordered >= top_p
    kept = torch.zeros_like(probabilities).scatter_(-1, order, ordered.masked_fill(outside, 0.0))
    return kept / kept.sum(-1, keepdim=True)


def draw(weights: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One index [...] per row of non-negative, not necessarily normalised ``weights`` [..., V], by an exponential
    race.
    """
    race = torch.empty_like(weights).exponential_(generator=generator).clamp_min_(_SMALLEST_DRAW)
    return (weights / race).argmax(-1)


def verify(target: Tensor, draft: Draft, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Accept a prefix of the draft and draw one more token, so that the output follows ``target`` exactly.

    target: [B, k+1, V] fp32 distributions at the k drafted positions and the one after. Returns tokens [B, k+1], of
    which the first count[b] are the output of sequence b, and count [B] in 1..k+1. Position i is accepted with
    probability min(1, p_i(d)/q_i(d)); the first rejected one is redrawn from max(p_i - q_i, 0) normalised; after k
    acceptances the bonus token is drawn from p_{k+1}.
    """
    batch, k = draft.tokens.shape
    rows = torch.arange(batch, device=target.device)
    target_at = target[:, :k].gather(-1, draft.tokens[..., None])[..., 0]
    draft_at = _draft_probability(draft)
    uniform = torch.rand(target_at.shape, device=target.device, dtype=target.dtype, generator=generator)
    accepted = (uniform * draft_at < target_at).long().cumprod(1).sum(1)
    base = target[rows, accepted]
    residual = _subtract_draft(base, draft, rows, accepted).clamp_min_(0.0)
    exhausted = residual.sum(-1, keepdim=True) <= 0.0
    last = draw(torch.where(exhausted, base, residual), generator)
    tokens = torch.cat([draft.tokens, draft.tokens.new_zeros(batch, 1)], 1)
    return tokens.scatter(1, accepted[:, None], last[:, None]), accepted + 1


def _draft_probability(draft: Draft) -> Tensor:
    """q_i(d_i) [B, k]; 1 for a deterministic draft."""
    if draft.probabilities is None:
        return torch.ones((), device=draft.tokens.device)
    indices = draft.tokens if draft.indices is None else draft.indices
    return draft.probabilities.gather(-1, indices[..., None])[..., 0]


def _subtract_draft(base: Tensor, draft: Draft, rows: Tensor, accepted: Tensor) -> Tensor:
    """``base`` [B, V] less the draft's distribution at the first rejected position; unchanged where all k were
    accepted.
    """
    k = draft.tokens.shape[1]
    if k == 0:
        return base.clone()
    position = accepted.clamp_max(k - 1)
    rejected = (accepted < k).to(base.dtype)[:, None]
    if draft.probabilities is None:
        return base.scatter_add(1, draft.tokens[rows, position][:, None], -rejected)
    drafted = draft.probabilities[rows, position] * rejected
    if draft.to_target is None:
        return base - drafted
    return base.index_add(1, draft.to_target, drafted, alpha=-1)
