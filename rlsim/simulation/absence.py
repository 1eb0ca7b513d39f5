"""What a replica keeps of trajectories that are away with their environments."""

from __future__ import annotations

import math

from rlsim.simulation.requests import RunningRequest


class PrefixCache:
    """Contexts of samples that are away, in blocks that others may take, the oldest first and each from its end.

    After the free block queue of vLLM V1 (``vllm/v1/core/kv_cache_manager.py``): the blocks of a request that ends join
    the queue's tail, its last block first. The prompt is counted with each context, shared or not. tokens: all of them.
    reused: tokens found in them that would have been prefilled else.
    """

    def __init__(self) -> None:
        self.tokens = self.reused = 0
        self._kept: dict[int, int] = {}

    def keep(self, sample: int, tokens: int) -> None:
        """Put ``tokens`` of a context behind the others."""
        self._kept[sample] = tokens
        self.tokens += tokens

    def found(self, sequence: RunningRequest, prompt_resident: bool) -> int:
        """Tokens of its context that ``sequence`` finds, beyond its prompt where that is resident anyway."""
        kept = self._kept.get(sequence.id, 0)
        return max(0, kept - sequence.prompt) if prompt_resident else kept

    def take(self, sequence: RunningRequest, prompt_resident: bool) -> None:
        """``sequence`` runs again on what it found."""
        self.reused += self.found(sequence, prompt_resident)
        self.tokens -= self._kept.pop(sequence.id, 0)

    def reclaim(self, room: float) -> None:
        """Give up the oldest blocks until at most ``room`` tokens are left."""
        if self.tokens <= room:
            return
        excess = math.ceil(self.tokens - room)
        while excess > 0 and self._kept:
            sample, kept = next(iter(self._kept.items()))
            given = min(excess, kept)
            excess -= given
            self.tokens -= given
            if given == kept:
                del self._kept[sample]
            else:
                self._kept[sample] = kept - given

    def clear(self) -> None:
        """Forget all contexts."""
        self._kept.clear()
        self.tokens = 0


class Absence:
    """Seconds in which a replica had nothing to do while samples of it were away (idle_s)."""

    def __init__(self) -> None:
        self.idle_s = 0.0
        self._away = 0
        self._since_s = -1.0

    def leaves(self, time_s: float, idle: bool) -> None:
        """One more sample is away; idle: no other is on the replica."""
        self._away += 1
        if idle and self._since_s < 0:
            self._since_s = time_s

    def returns(self, time_s: float) -> None:
        """One sample is no longer away."""
        self._away -= 1
        if not self._away:
            self.ends(time_s)

    def ends(self, time_s: float) -> None:
        """The replica has something to do, or nobody to wait for."""
        if self._since_s >= 0:
            self.idle_s += time_s - self._since_s
            self._since_s = -1.0
