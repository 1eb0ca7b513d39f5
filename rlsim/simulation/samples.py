"""A request, outside the engine and in it."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import NamedTuple


class Sample(NamedTuple):
    """One request: ``iterations`` decode iterations for all response tokens but the first, which the prefill emits.

    group: key of the prompt; samples of equal group share it. prompt_tokens and response_tokens are at least 1.
    """

    id: int
    group: Hashable
    prompt_tokens: int
    response_tokens: int
    iterations: int


class Sequence:
    """A sample in the engine, with what its replica keeps about it.

    done of its total decode iterations; need: tokens left to prefill; resumed: has emitted its first token.
    While it decodes, ticket is its key in the heap (else -1), base its context extrapolated to decode iteration 0 of
    the replica, and last the decode iteration of the replica with which it completes.
    """

    __slots__ = (
        "arrival_s",
        "base",
        "done",
        "group",
        "growth",
        "id",
        "last",
        "need",
        "prompt",
        "resumed",
        "ticket",
        "total",
    )

    def __init__(self, sample: Sample, arrival_s: float) -> None:
        self.id, self.group, self.prompt, response, self.total = sample
        self.growth = (response - 1) / self.total if self.total else 0.0
        self.arrival_s = arrival_s
        self.base = 0.0
        self.done = self.last = self.need = 0
        self.resumed = False
        self.ticket = -1

    def generated(self) -> int:
        """Tokens to prefill beyond the prompt: all emitted ones, the last of which was never in the KV cache."""
        return math.ceil(self.done * self.growth) + 1 if self.resumed else 0
