"""The policy and its draft model: weights, forward passes on a cache, and over whole sequences for the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from bench.attention import plan_attention, usable_kernels
from bench.cases import ModelDims
from bench.loop.settings import DRAFT_LAYERS
from bench.speculation import Target, random_target
from bench.training import training_layer
from bench.transformer import LayerCache, decoder_layer, rms_norm, rope_table

BRANCH, SHARPNESS, KINDS = 0.32, 6.0, 12
"""Factors on what all layers together add to an embedding and on the logits, and kinds of tokens with embeddings alike.
Random layers of full size would leave a draft of fewer layers nothing to agree with, flat logits nothing to agree on,
and 512 kinds of tokens no place that a look-up could find again; with these drafts are accepted about as often as
trained ones are. A choice, not a measurement: the acceptance itself is measured."""
GENERATION_TYPE = {"cpu": torch.float32, "cuda": torch.bfloat16}
"""Type of the engine's weights by device."""


def random_policy(dims: ModelDims, seed: int, device: str = "cpu") -> Target:
    """The policy of a seed, in the type of the engine on ``device``."""
    generator = torch.Generator(device).manual_seed(seed)
    made = random_target(dims, torch.device(device), GENERATION_TYPE[device], generator)
    # An embedding has elements of 1/sqrt(hidden); what layers add sums like a random walk.
    branch = BRANCH * (dims.layers * dims.hidden) ** -0.5
    for layer in made.layers:
        layer.output.mul_(branch)
        if layer.down is not None:
            layer.down.mul_(branch)
    made.head.mul_(SHARPNESS)
    made.embedding.copy_(made.embedding[torch.arange(dims.vocabulary, device=device) % KINDS])
    return made


def draft_model(policy: Target) -> Target:
    """The first layers of ``policy`` as a model of its own, with the same weights."""
    return replace(policy, dims=policy.dims.with_layers(DRAFT_LAYERS), layers=policy.layers[:DRAFT_LAYERS])


def tensors_of(policy: Target) -> list[Tensor]:
    """All weight tensors, in the same order for policies of equal dimensions."""
    found = [policy.embedding, policy.norm, policy.head]
    for layer in policy.layers:
        found += [one for item in fields(layer) if isinstance(one := getattr(layer, item.name), Tensor)]
    return found


def copied(policy: Target) -> Target:
    """A policy with the same weights in FP32, in memory of its own: what a trainer holds."""

    def own(tensor: Tensor) -> Tensor:
        return tensor.to(torch.float32, copy=True)

    layers = tuple(
        replace(layer, **{f.name: own(one) for f in fields(layer) if isinstance(one := getattr(layer, f.name), Tensor)})
        for layer in policy.layers
    )
    heads = {name: own(getattr(policy, name)) for name in ("embedding", "norm", "head")}
    return replace(policy, layers=layers, **heads)


def hand_over(source: Sequence[Tensor], target: Sequence[Tensor]) -> None:
    """Copy weights, tensor by tensor, into the type of the target."""
    with torch.no_grad():
        torch._foreach_copy_(list(target), list(source))


class CachedModel:
    """A model with a KV cache of so many rows and slots each; rows in use are the first ones."""

    def __init__(self, model: Target, rows: int, capacity: int) -> None:
        self.model, dims = model, model.dims
        device, dtype = model.head.device, model.head.dtype
        self.fixed = device.type == "cuda"
        # One tensor for all layers: a sequence that moves is one copy, not two for each layer.
        shape = (dims.layers, 2, rows, capacity, dims.kv_heads, dims.head_dim)
        self.cache = torch.zeros(shape, device=device, dtype=dtype)
        self.angles = rope_table(capacity, dims.head_dim, device)
        self.kernel = "sdpa_masked"
        if self.fixed:
            self.kernel = usable_kernels(device, dtype, dims.heads, dims.kv_heads, dims.head_dim)[0]

    def forward(self, tokens: Tensor, lengths: Tensor, rows: slice, seen: int) -> Tensor:
        """Normed hidden states [n, Q, H] at ``tokens`` [n, Q] behind ``lengths`` [n] of the sequences in ``rows``.

        seen: slots that the longest of them has with the new tokens; on a GPU, where a captured graph serves all
        lengths, kernels find the used slots by themselves.
        """
        dims, slots = self.model.dims, self.cache.shape[3] if self.fixed else seen
        plan = plan_attention(self.kernel, lengths, tokens.shape[1], slots, dims.group)
        angles, hidden = self.angles[plan.slots], F.embedding(tokens, self.model.embedding)
        for layer, (keys, values) in zip(self.model.layers, self.cache, strict=True):
            held = LayerCache(keys[rows, :slots], values[rows, :slots])
            hidden = decoder_layer(hidden, layer, held, dims, plan, angles)
        return rms_norm(hidden, self.model.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of normed hidden states."""
        return F.linear(hidden, self.model.head)

    def move(self, source: int, target: int, slots: int) -> None:
        """The sequence of one row to another one."""
        self.cache[:, :, target, :slots] = self.cache[:, :, source, :slots]


def sequence_logprobs(policy: Target, tokens: Tensor, angles: Tensor, temperature: float) -> Tensor:
    """Log-probabilities [m, T - 1] of tokens 1.. of whole sequences [m, T], each given those before it."""
    hidden = F.embedding(tokens[:, :-1], policy.embedding)
    for layer in policy.layers:
        hidden = training_layer(hidden, layer, policy.dims, angles[: hidden.shape[1]])
    logits = F.linear(rms_norm(hidden, policy.norm), policy.head) / temperature
    return torch.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None])[..., 0]
