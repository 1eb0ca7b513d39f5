"""Engines that prefill alone and send what they computed to those that decode.

Requests are served in the order in which they come, each on the engine that is free first. An idle engine takes what
its table says for so many tokens; one with others before shares full iterations with them, and takes its part of these
by tokens. Prefix caches hold whatever was prefilled since the last weights that made them void: prompts for all of a
group, contexts of trajectories for their next turns, which have the response of the turn before to prefill besides, as
another engine generated it.
"""

from collections.abc import Hashable
from heapq import heapreplace

from rlsim.costs.interface import EngineCounters, PrefillService
from rlsim.simulation.iteration_times import prepare
from rlsim.simulation.requests import Request


class Prefills:
    """The engines of one service. caching: they have prefix caches. counters: of the pool, which count their tokens."""

    def __init__(self, service: PrefillService, caching: bool, counters: EngineCounters) -> None:
        self._service, self._caching, self._counters = service, caching, counters
        self._timing = prepare(service.table)
        self._free = [(0.0, number) for number in range(service.engines)]
        self._contexts: dict[int, int] = {}
        self._prompts: set[Hashable] = set()

    def arrives_s(self, time_s: float, sample: Request) -> float:
        """When a request that comes now is prefilled and its KV cache where it decodes."""
        timing, service = self._timing, self._service
        context = sample.prompt_tokens + sample.history_tokens
        found = self._contexts.get(sample.id, 0)
        if not found and sample.group in self._prompts:
            found = sample.prompt_tokens
        need = max(1, context - found)
        if self._caching:
            self._contexts[sample.id] = context
            self._prompts.add(sample.group)
        self._counters.prefill_tokens += need
        self._counters.prefill_squares += (2 * context - need) * need
        free_s, number = self._free[0]
        alone = free_s <= time_s and need < timing.max_batched_tokens
        seconds = timing.prefill(0, need) if alone else need * service.token_s
        seconds += timing.behind(context) - timing.behind(context - need)
        ready_s = max(free_s, time_s) + max(0.0, seconds)
        heapreplace(self._free, (ready_s, number))
        # What it decoded itself, and earlier turns, the other engine has.
        moved = need if sample.history_tokens else context
        return ready_s + (service.latency_s + moved * service.kv_token_s)

    def forget(self) -> None:
        """New weights: what is cached was computed with the old ones."""
        self._contexts.clear()
        self._prompts.clear()
