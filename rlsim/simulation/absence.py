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
    """Seconds in which a replica had nothing to do while samples of it were with their environments (environment_s) or
    with the judge alone (judge_s). idle: it has nothing to do now.
    """

    def __init__(self) -> None:
        self.environment_s = self.judge_s = 0.0
        self._away = self._judged = 0
        self.idle = False
        self._since_s = 0.0

    def turn_ended(self, time_s: float, idle: bool) -> None:
        """A sample has its last token; idle: no other is on the replica."""
        if idle and not self.idle:
            self.idle, self._since_s = True, time_s

    def environment(self, time_s: float, change: int) -> None:
        """So many samples more are with their environments."""
        self._book(time_s)
        self._away += change

    def judge(self, time_s: float, change: int) -> None:
        """So many samples more are with the judge."""
        self._book(time_s)
        self._judged += change

    def ends(self, time_s: float) -> None:
        """The replica has something to do."""
        self._book(time_s)
        self.idle = False

    def _book(self, time_s: float) -> None:
        if not self.idle:
            return
        if self._away:
            self.environment_s += time_s - self._since_s
        elif self._judged:
            self.judge_s += time_s - self._since_s
        self._since_s = time_s
