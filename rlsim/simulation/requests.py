"""A request, outside the engine and in it."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import NamedTuple

TOO_LONG = "one sequence exceeds the KV cache of a replica"


class Request(NamedTuple):
    """One request: ``iterations`` decode iterations for all response tokens but the first, which the prefill emits.

    group: key of the prompt; samples of equal group share it. prompt_tokens and response_tokens are at least 1.
    history_tokens: context between the prompt and this response, of the request's own (earlier turns of an agent).
    """

    id: int
    group: Hashable
    prompt_tokens: int
    response_tokens: int
    iterations: int
    history_tokens: int = 0


class RunningRequest:
    """A request in the engine, with what its replica keeps about it.

    done of its total decode iterations; prefill_left: tokens left to prefill, prefill_end: its context after them;
    resumed: has emitted its first token.
    While it decodes, heap_key is its key in the heap (else -1), context_at_zero its context extrapolated to decode
    iteration 0 of the replica, and last_iteration the decode iteration of the replica with which it completes.
    """

    __slots__ = (
        "arrival_s",
        "context_at_zero",
        "done",
        "group",
        "heap_key",
        "history",
        "id",
        "last_iteration",
        "prefill_end",
        "prefill_left",
        "prompt",
        "resumed",
        "tokens_per_iteration",
        "total",
    )

    def __init__(self, sample: Request, arrival_s: float) -> None:
        self.id, self.group, self.prompt, response, self.total, self.history = sample
        self.tokens_per_iteration = (response - 1) / self.total if self.total else 0.0
        self.arrival_s = arrival_s
        self.context_at_zero = 0.0
        self.done = self.last_iteration = self.prefill_left = self.prefill_end = 0
        self.resumed = False
        self.heap_key = -1

    def own_tokens(self) -> float:
        """Tokens beyond its prompt that it holds while it is not decoding."""
        return self.history + (self.done + self.resumed) * self.tokens_per_iteration

    def emitted_tokens(self, further: int = 0) -> float:
        """Response tokens so far, ``further`` decode iterations beyond those in ``done``."""
        return (self.done + further) * self.tokens_per_iteration + self.resumed

    def generated(self) -> int:
        """Tokens to prefill beyond the prompt: all emitted ones, the last of which was never in the KV cache."""
        return math.ceil(self.done * self.tokens_per_iteration) + 1 if self.resumed else 0
