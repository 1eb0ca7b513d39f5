"""Contexts of trajectories that are away: in the cache of their engine, and in a slower tier below it."""

import math

from rlsim.costs.interface import KvTier


class Contexts:
    """Tokens of contexts by sample, the oldest first. tokens: of all of them. free_s: when all loads are sent."""

    def __init__(self, capacity_tokens: int = 0) -> None:
        self.capacity_tokens, self.tokens, self.free_s = capacity_tokens, 0, 0.0
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
    link_free_s: when all loads are here. away_s: where contexts are prefetched, since when samples are with their
    environments and, once they are back, for how long they were; one for all caches of a pool.
    """

    def __init__(self) -> None:
        self.reused = self.loaded = 0
        self.contexts, self.below = Contexts(), Contexts()
        self.tier: KvTier | None = None
        self.link_free_s = 0.0
        self.away_s: dict[int, float] = {}

    @property
    def tokens(self) -> int:
        """Tokens of the contexts here."""
        return self.contexts.tokens

    @property
    def prefetches(self) -> bool:
        """Whether contexts are fetched while environments work."""
        return self.tier is not None and self.tier.prefetch

    def goes_away(self, time_s: float, sample: int) -> None:
        """The environment of a sample begins, or is waited for."""
        if self.prefetches:
            self.away_s[sample] = time_s

    def comes_back(self, time_s: float, sample: int) -> None:
        """It has answered."""
        if self.prefetches:
            self.away_s[sample] = time_s - self.away_s[sample]

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

    def loaded_s(self, sample: int, now_s: float, tokens: int) -> float:
        """When so many tokens of a sample that is admitted now are here, behind the loads before.

        Who is prefetched asked for them as long ago as its environment took: the store and the link serve loads in the
        order of admission, each as if it had known that order.
        """
        if self.tier is None:
            return now_s
        asked_s = now_s - self.away_s.get(sample, 0.0)
        ready_s = max(self.link_free_s, asked_s) + (self.tier.latency_s + tokens * self.tier.token_s)
        if not self.tier.store_token_s:
            return ready_s
        return max(ready_s, self._sent_s(asked_s, tokens) + self.tier.latency_s)

    def _sent_s(self, asked_s: float, tokens: int) -> float:
        """When the store has sent so many tokens that were asked for at a time."""
        return 0.0 if self.tier is None else max(self.below.free_s, asked_s) + tokens * self.tier.store_token_s

    def take(self, sample: int, now_s: float, resident: int, loaded: int) -> None:
        """A sample runs again on what it found and loads from now on."""
        self.reused += self.found(sample, resident)
        if loaded:
            self.loaded += loaded
            self.link_free_s = self.loaded_s(sample, now_s, loaded)
            if self.tier is not None and self.tier.store_token_s:
                self.below.free_s = self._sent_s(now_s - self.away_s.get(sample, 0.0), loaded)
        self.away_s.pop(sample, None)  # what is evicted and admitted again was with no environment
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
