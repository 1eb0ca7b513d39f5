"""Contexts of trajectories that are away: in the cache of their engine, and in a slower tier below it."""

from __future__ import annotations

import math

from rlsim.costs.interface import KvTier


class Contexts:
    """Tokens of contexts by sample, the oldest first. tokens: of all of them."""

    def __init__(self, capacity_tokens: int = 0) -> None:
        self.capacity_tokens, self.tokens = capacity_tokens, 0
        self._of: dict[int, int] = {}

    def of(self, sample: int) -> int:
        """Tokens of a sample."""
        return self._of.get(sample, 0)

    def put(self, sample: int, tokens: int) -> None:
        """``tokens`` are those of a sample, behind all others."""
        self.drop(sample)
        self._of[sample] = tokens
        self.tokens += tokens

    def drop(self, sample: int) -> None:
        """Nothing of a sample is left."""
        self.tokens -= self._of.pop(sample, 0)

    def reclaim(self, room: float) -> list[tuple[int, int]]:
        """Give up the oldest, each from its end, until at most ``room`` tokens are left; samples and tokens given."""
        given: list[tuple[int, int]] = []
        if self.tokens <= room:
            return given
        # Whole tokens, so that the sum of what is left stays a whole number in C and Python.
        excess = math.ceil(self.tokens - room)
        while excess > 0 and self._of:
            sample, tokens = next(iter(self._of.items()))
            given.append((sample, min(excess, tokens)))
            excess -= given[-1][1]
            self.tokens -= given[-1][1]
            if given[-1][1] == tokens:
                del self._of[sample]
            else:
                self._of[sample] = tokens - given[-1][1]
        return given

    def clear(self) -> None:
        """Forget all contexts."""
        self._of.clear()
        self.tokens = 0


class PrefixCache:
    """Contexts of samples that are away, in blocks of an engine that others may take.

    After the free block queue of vLLM V1 (``vllm/v1/core/kv_cache_manager.py``): the blocks of a request that ends join
    the queue's tail, its last block first. The prompt is counted with each context, shared or not. reused, loaded:
    tokens found here and loaded from ``below`` that would have been prefilled else. tier: what ``below`` is.
    """

    def __init__(self) -> None:
        self.reused = self.loaded = 0
        self.contexts, self.below = Contexts(), Contexts()
        self.tier: KvTier | None = None

    @property
    def tokens(self) -> int:
        """Tokens of the contexts here."""
        return self.contexts.tokens

    def keep(self, sample: int, tokens: int) -> None:
        """``tokens`` of a context, the newest; 0 where it is of no use any more."""
        if not tokens:
            self.below.drop(sample)
            return
        self.contexts.put(sample, tokens)
        if self.tier is not None and self.tier.through:
            self._store(sample, tokens)

    def found(self, sample: int, resident: int) -> int:
        """Tokens of its context that a sample finds here, beyond the ``resident`` first ones."""
        return max(0, self.contexts.of(sample) - resident)

    def found_below(self, sample: int, resident: int) -> int:
        """Tokens of its context that only the tier below has, beyond the ``resident`` first ones."""
        if self.tier is None:
            return 0
        cached, stored = self.contexts.of(sample), self.below.of(sample)
        end = stored if self.tier.through else cached + stored
        return max(0, end - max(cached, resident))

    def load_s(self, tokens: int) -> float:
        """Seconds in which the tier brings so many tokens of one context."""
        return 0.0 if self.tier is None else self.tier.latency_s + tokens * self.tier.token_s

    def take(self, sample: int, resident: int, loaded: int) -> None:
        """A sample runs again on what it found and loads."""
        self.reused += self.found(sample, resident)
        self.loaded += loaded
        self.contexts.drop(sample)
        if self.tier is not None and not self.tier.through:
            self.below.drop(sample)

    def reclaim(self, room: float) -> None:
        """Give up the oldest blocks until at most ``room`` tokens are left."""
        if self.contexts.tokens <= room:
            return
        for sample, given in self.contexts.reclaim(room):
            if self.tier is not None and not self.tier.through:
                self._store(sample, self.below.of(sample) + given)

    def leave(self, sample: int) -> None:
        """A sample goes on elsewhere: only a whole copy in a store that all share is of use there."""
        self.contexts.drop(sample)
        if self.tier is not None and not (self.tier.through and self.tier.shared):
            self.below.drop(sample)

    def clear(self) -> None:
        """Forget all contexts."""
        self.contexts.clear()
        self.below.clear()

    def _store(self, sample: int, tokens: int) -> None:
        self.below.put(sample, tokens)
        self.below.reclaim(self.below.capacity_tokens)
