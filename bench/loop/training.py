"""The trainer: rewards, log-probs of the policy, and a GRPO update with AdamW in micro-batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.loop.policy import sequence_logprobs, tensors_of
from bench.loop.settings import LoopSettings, Samples
from bench.speculation import Target
from bench.transformer import rope_table

CLIP = 0.2
"""Clipping of the probability ratio (PPO, arXiv:1707.06347)."""


def rewards_of(tokens: NDArray[np.int64], prompt_tokens: int, responses: NDArray[np.int64]) -> NDArray[np.float64]:
    """Share of a response's tokens with an even number: a rule that any policy can learn and any drafter must keep."""
    place = np.arange(tokens.shape[1])[None, :]
    inside = (place >= prompt_tokens) & (place < prompt_tokens + responses[:, None])
    return np.asarray((inside & (tokens % 2 == 0)).sum(1) / responses, dtype=np.float64)


def advantages_of(rewards: NDArray[np.float64], group: int) -> NDArray[np.float64]:
    """Rewards less the mean of their group, over its standard deviation (GRPO, arXiv:2402.03300)."""
    by_group = rewards.reshape(-1, group)
    centred = by_group - by_group.mean(1, keepdims=True)
    return np.asarray(centred / (by_group.std(1, keepdims=True) + 1e-6)).ravel()


class Trainer:
    """The policy that learns: weights and AdamW's moments in FP32, on a GPU with products in BF16 (autocast).

    Samples are padded to the longest of their step, so many to a micro-batch.
    """

    def __init__(self, policy: Target, settings: LoopSettings, capacity: int) -> None:
        self.policy, self.settings, self.device = policy, settings, policy.head.device
        self.weights = [tensor.requires_grad_() for tensor in tensors_of(policy)]
        self.optimizer = torch.optim.AdamW(self.weights, lr=settings.learning_rate, fused=True)
        self.angles = rope_table(capacity, policy.dims.head_dim, self.device)

    def logprobs(self, samples: Samples) -> list[Tensor]:
        """Log-probs of the policy as it is, by micro-batch."""
        with torch.no_grad():
            return [self.logprobs_of(tokens) for tokens, _ in self._micro_batches(samples)]

    def logprobs_of(self, tokens: Tensor) -> Tensor:
        """Those of one micro-batch [m, T - 1]."""
        with torch.autocast("cuda", torch.bfloat16, enabled=self.device.type == "cuda"):
            return sequence_logprobs(self.policy, tokens, self.angles, self.settings.temperature)

    def update(self, samples: Samples, before: list[Tensor]) -> float:
        """One optimizer step over all micro-batches; the loss. before: log-probs that ratios are taken to."""
        advantages = torch.from_numpy(advantages_of(samples.rewards, self.settings.samples)).float()
        advantages = advantages.to(self.device)
        total, loss = float(samples.responses.sum()), 0.0
        for number, (tokens, rows) in enumerate(self._micro_batches(samples)):
            old = before[number] if before else None
            loss += self.backward(tokens, old, advantages[rows], self._mask(samples, rows)) / total
        self.step(total)
        return loss

    def backward(self, tokens: Tensor, before: Tensor | None, advantages: Tensor, mask: Tensor) -> float:
        """Gradients of one micro-batch, added to those before; its loss, summed over tokens."""
        found = self.logprobs_of(tokens)
        ratio = torch.exp(found - (found.detach() if before is None else before))
        gain = advantages[:, None]
        loss = -(torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain) * mask).sum()
        loss.backward()
        return float(loss.detach())

    def step(self, tokens: float) -> None:
        """AdamW on the gradients of ``tokens`` response tokens."""
        torch._foreach_mul_([weight.grad for weight in self.weights], 1.0 / tokens)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _micro_batches(self, samples: Samples) -> Iterator[tuple[Tensor, slice]]:
        size = self.settings.micro_batch
        for first in range(0, len(samples.tokens), size):
            rows = slice(first, min(first + size, len(samples.tokens)))
            yield torch.from_numpy(samples.tokens[rows]).to(self.device), rows

    def _mask(self, samples: Samples, rows: slice) -> Tensor:
        """Which of the tokens 1.. of a micro-batch belong to a response."""
        place = torch.arange(1, samples.tokens.shape[1])[None, :]
        end = samples.prompt_tokens + torch.from_numpy(samples.responses[rows])[:, None]
        return ((place >= samples.prompt_tokens) & (place < end)).float().to(self.device)
