"""The reference speculative-decode step: EAGLE-3-style draft, one target forward, exact rejection sampling, KV
rollback.

Random weights at a model's true layer dimensions. Nothing synchronises with the host, so that the whole step can be
one CUDA graph. Rolling back rejected tokens costs nothing: a sequence's length advances by what was accepted, and
slots past it are overwritten (verification sees slots 0..length+j only).

The draft head follows EAGLE-3 (Li et al. 2025, arXiv 2503.01840): three hidden states of the target are fused by one
matrix; one decoder layer whose QKV input is the token embedding beside that feature; its output is the next pass's
feature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from bench.attention import plan_attention
from bench.cases import ModelDims
from bench.rejection import Draft, draw, sampling_probabilities, verify
from bench.transformer import (
    LayerCache,
    LayerWeights,
    attend,
    decoder_layer,
    empty_cache,
    feed_forward,
    random_layer,
    random_matrix,
    rms_norm,
    rope_table,
)

FUSED_STATES = 3


@dataclass(frozen=True)
class Target:
    """Target model: embedding and head [V, H], layers, final norm."""

    dims: ModelDims
    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor


@dataclass(frozen=True)
class DraftHead:
    """EAGLE-3 head: fuse [H, 3H], one layer with QKV input 2H, norms, head [Vd, H], draft id -> target id [Vd]."""

    dims: ModelDims
    fuse: Tensor
    layer: LayerWeights
    norm: Tensor
    head: Tensor
    to_target: Tensor


@dataclass(frozen=True)
class Sampling:
    """How both distributions are formed. ``greedy_draft`` drafts the argmax and verifies it as one-hot."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    greedy_draft: bool = False


@dataclass(frozen=True)
class State:
    """Everything a step reads and writes in place; shapes are fixed, so a captured graph can be replayed.

    lengths [B]: tokens in the target's cache, which is also the slot of the next token. tokens [B, K+1] and features
    [B, K+1, 3H]: output of the last step and the target states they were predicted from, of which the first count [B]
    are valid.
    """

    lengths: Tensor
    tokens: Tensor
    count: Tensor
    features: Tensor
    target_cache: tuple[LayerCache, ...]
    draft_cache: LayerCache
    angles: Tensor


def random_target(
    dims: ModelDims, device: torch.device, dtype: torch.dtype, generator: torch.Generator | None = None
) -> Target:
    """Target with ``dims.layers`` layers of random weights."""
    layers = tuple(random_layer(dims, device, dtype, generator) for _ in range(dims.layers))
    embedding = random_matrix(dims.vocabulary, dims.hidden, device, dtype, generator)
    head = random_matrix(dims.vocabulary, dims.hidden, device, dtype, generator)
    return Target(dims, embedding, layers, torch.ones(dims.hidden, device=device, dtype=dtype), head)


def random_draft_head(
    target: ModelDims, device: torch.device, dtype: torch.dtype, generator: torch.Generator | None = None
) -> DraftHead:
    """Random EAGLE-3 head for ``target``; its vocabulary is the first ``draft_vocabulary`` ids of a random
    permutation.
    """
    dims = target.draft_layer
    return DraftHead(
        dims=dims,
        fuse=random_matrix(dims.hidden, FUSED_STATES * dims.hidden, device, dtype, generator),
        layer=random_layer(dims, device, dtype, generator, input_width=2 * dims.hidden),
        norm=torch.ones(dims.hidden, device=device, dtype=dtype),
        head=random_matrix(dims.vocabulary, dims.hidden, device, dtype, generator),
        to_target=torch.randperm(target.vocabulary, device=device, generator=generator)[: dims.vocabulary],
    )


def random_state(target: Target, batch: int, context: int, max_draft: int, capacity: int) -> State:
    """State in the middle of a generation: ``context`` tokens of random content cached in each of ``batch``
    sequences.
    """
    dims, device, dtype = target.dims, target.head.device, target.head.dtype
    rows = max_draft + 1
    return State(
        lengths=torch.full((batch,), context, device=device),
        tokens=torch.randint(dims.vocabulary, (batch, rows), device=device),
        count=torch.full((batch,), min(rows, context), device=device),
        features=torch.randn(batch, rows, FUSED_STATES * dims.hidden, device=device, dtype=dtype),
        target_cache=tuple(empty_cache(dims, batch, capacity, device, dtype) for _ in target.layers),
        draft_cache=empty_cache(dims.draft_layer, batch, capacity, device, dtype),
        angles=rope_table(capacity, dims.head_dim, device),
    )


def target_forward(target: Target, state: State, tokens: Tensor, lengths: Tensor, kernel: str) -> tuple[Tensor, Tensor]:
    """Logits [B, Q, V] at ``tokens`` [B, Q] appended behind ``lengths``, and the fused features [B, Q, 3H]."""
    dims = target.dims
    capacity = state.target_cache[0].keys.shape[1]
    plan = plan_attention(kernel, lengths, tokens.shape[1], capacity, dims.group)
    angles = state.angles[plan.slots]
    hidden = F.embedding(tokens, target.embedding)
    states = [hidden]
    for layer, cache in zip(target.layers, state.target_cache, strict=True):
        hidden = decoder_layer(hidden, layer, cache, dims, plan, angles)
        states.append(hidden)
    features = torch.cat([states[i] for i in _fused_layers(len(target.layers))], -1)
    return F.linear(rms_norm(hidden, target.norm), target.head), features


def _fused_layers(layers: int) -> tuple[int, int, int]:
    """Low, middle and high hidden state handed to the draft head."""
    return min(1, layers), layers // 2, layers


def draft_pass(
    head: DraftHead, target: Target, state: State, tokens: Tensor, feature: Tensor, lengths: Tensor, kernel: str
) -> Tensor:
    """One pass of the draft layer over ``tokens`` [B, Q] with features [B, Q, H] at slots ``lengths``... -> [B, Q,
    H].
    """
    dims, layer = head.dims, head.layer
    plan = plan_attention(kernel, lengths, tokens.shape[1], state.draft_cache.keys.shape[1], dims.group)
    embedded = rms_norm(F.embedding(tokens, target.embedding), layer.attention_norm)
    both = torch.cat([embedded, rms_norm(feature, head.norm)], -1)
    hidden = feature + attend(both, layer, state.draft_cache, dims, plan, state.angles[plan.slots])
    return hidden + feed_forward(rms_norm(hidden, layer.mlp_norm), layer, dims)


def propose(
    head: DraftHead,
    target: Target,
    state: State,
    k: int,
    sampling: Sampling,
    kernels: tuple[str, str],
    generator: torch.Generator | None = None,
) -> Draft:
    """k tokens by k passes: the first over what the last step emitted, the others over one token each."""
    hidden = first_draft_pass(head, target, state, kernels[1])
    indices: list[Tensor] = []
    tokens: list[Tensor] = []
    probabilities: list[Tensor] = []
    for step in range(k):
        if step:
            hidden = draft_pass(head, target, state, tokens[-1][:, None], hidden, state.lengths + step - 1, kernels[0])
        index, probability = draft_token(head, hidden, sampling, generator)
        indices.append(index)
        tokens.append(head.to_target[index])
        probabilities.append(probability)
    stacked = torch.stack(tokens, 1)
    if sampling.greedy_draft:
        return Draft(stacked)
    return Draft(stacked, torch.stack(probabilities, 1), torch.stack(indices, 1), head.to_target)


def first_draft_pass(head: DraftHead, target: Target, state: State, kernel: str) -> Tensor:
    """Hidden state [B, 1, H] behind the last valid token of each sequence, after the pass over what the last step
    emitted.
    """
    batch = torch.arange(state.lengths.shape[0], device=state.lengths.device)
    fused = F.linear(state.features, head.fuse)
    hidden = draft_pass(head, target, state, state.tokens, fused, state.lengths - state.count, kernel)
    return hidden[batch, state.count - 1][:, None]


def draft_token(
    head: DraftHead, hidden: Tensor, sampling: Sampling, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Drafted token [B] behind hidden states [B, 1, H] in the draft's vocabulary, and its distribution [B, Vd] (the
    logits of a greedy draft).
    """
    logits = F.linear(rms_norm(hidden[:, 0], head.norm), head.head)
    if sampling.greedy_draft:
        return logits.argmax(-1), logits
    probability = sampling_probabilities(logits, sampling.temperature, sampling.top_k, sampling.top_p)
    return draw(probability, generator), probability


def speculative_step(
    target: Target,
    head: DraftHead,
    state: State,
    k: int,
    sampling: Sampling,
    kernels: tuple[str, str],
    generator: torch.Generator | None = None,
    forward: Callable[[Target, State, Tensor, Tensor, str], tuple[Tensor, Tensor]] = target_forward,
) -> tuple[Tensor, Tensor]:
    """One step of every sequence: tokens [B, k+1] and count [B] of valid ones; ``state`` advances in place.

    k = 0 is plain decoding. ``kernels``: attention kernel for one query and for several. The state must have been
    made for at least k drafted tokens, and its caches must hold lengths + k + 1 slots. ``forward``: of the target,
    as it stands or compiled.
    """
    batch = torch.arange(state.lengths.shape[0], device=state.lengths.device)
    last = state.tokens[batch, state.count - 1][:, None]
    draft = propose(head, target, state, k, sampling, kernels, generator) if k else Draft(last[:, :0])
    fed = torch.cat([last, draft.tokens], 1)
    logits, features = forward(target, state, fed, state.lengths, kernels[1 if k else 0])
    probabilities = sampling_probabilities(logits, sampling.temperature, sampling.top_k, sampling.top_p)
    tokens, count = verify(probabilities, draft, generator)
    state.tokens[:, : k + 1] = tokens
    state.features[:, : k + 1] = features
    state.count.copy_(count)
    state.lengths.add_(count)
    return tokens, count


def prefill(
    target: Target,
    head: DraftHead,
    state: State,
    prompt: Tensor,
    sampling: Sampling,
    kernel: str,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Start generation from ``prompt`` [B, P]: fill both caches, draw the first token [B] and leave it in ``state``."""
    length = prompt.shape[1]
    zero = torch.zeros_like(state.lengths)
    logits, features = target_forward(target, state, prompt, zero, kernel)
    probabilities = sampling_probabilities(logits[:, -1], sampling.temperature, sampling.top_k, sampling.top_p)
    first = draw(probabilities, generator)
    if length > 1:
        fused = F.linear(features[:, :-1], head.fuse)
        draft_pass(head, target, state, prompt[:, 1:], fused, zero, kernel)
    state.tokens[:, 0] = first
    state.features[:, 0] = features[:, -1]
    state.count.fill_(1)
    state.lengths.fill_(length)
    return first
