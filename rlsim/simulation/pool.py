"""Replicas behind one dispatcher, driven event by event."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple
from numpy.typing import NDArray

from rlsim.costs.interface import EngineCounters, IterationTable, KvTier, PrefillService, Prices
from rlsim.schema.engine import Migration, Routing
from rlsim.schema.scenario import Scenario
from rlsim.simulation.iteration_times import prepare
from rlsim.simulation.prefills import Prefills
from rlsim.simulation.prefixes import Contexts
from rlsim.simulation.replica import Action, Replica
from rlsim.simulation.requests import EmittedTokens, Request
from rlsim.units import FloatArray

Dispatch = Literal["static", "round_robin", "least_loaded", "shared_queue"]
IMBALANCE, IMBALANCE_FACTOR = 64, 1.5
"""cache_aware leaves a prefix where the most loaded replica has more than so many samples above the least loaded one,
and more than so many times its samples: defaults of SGLang's router (balance_*_threshold, router_args.py, 05e589ad)."""


def assigned_at_once(samples: int, num_replicas: int, dispatch: Dispatch) -> NDArray[np.int64]:
    """Replica of each of ``samples`` that are submitted together to idle replicas.

    All policies but ``static`` deal them in turn; a shared queue does so only while everything has room.
    """
    if dispatch != "static":
        return np.arange(samples) % num_replicas
    # Blocks of neighbours, as frameworks split a batch over their workers: groups mostly stay together.
    size, larger = divmod(samples, num_replicas)
    return np.repeat(np.arange(num_replicas), [size + (number < larger) for number in range(num_replicas)])


class Dispatcher:
    """Assigns samples to replicas on submission; one for each policy but ``shared_queue``.

    Where less than a batch is submitted, ``static`` goes on with the replica after the last one.
    """

    def __init__(self, num_replicas: int, dispatch: Dispatch, routing: Routing = "sticky") -> None:
        self._replicas, self._dispatch, self._routing = num_replicas, dispatch, routing
        self._counts = dispatch == "least_loaded" or routing != "sticky"
        self._submitted = 0
        self._load = [0] * num_replicas
        # Entries whose load is no longer the replica's are stale and skipped: cheaper than finding them in the heap.
        self._heap: list[tuple[int, int]] = [(0, number) for number in range(num_replicas)]

    def assign(self, count: int) -> list[int]:
        """Replicas of the next ``count`` samples."""
        if self._dispatch == "least_loaded":
            return [self._least_loaded() for _ in range(count)]
        first = self._submitted
        self._submitted += count
        own = assigned_at_once(count, self._replicas, self._dispatch)
        numbers = [(number + first) % self._replicas for number in own.tolist()]
        for number in numbers if self._counts else ():
            self._change_load(number, 1)
        return numbers

    def completed(self, number: int, count: int) -> None:
        """Replica ``number`` finished ``count`` samples."""
        if self._counts:
            self._change_load(number, -count)

    def taken(self, number: int) -> None:
        """Replica ``number`` took a sample from a shared queue."""
        if self._counts:
            self._change_load(number, 1)

    def returned(self, number: int) -> int:
        """The replica of a sample that comes back from one of replica ``number``."""
        load = self._load
        if self._routing == "least_loaded" or (
            self._routing == "cache_aware"
            and max(load) - min(load) > IMBALANCE
            and max(load) > IMBALANCE_FACTOR * min(load)
        ):
            return self._least_loaded()
        if self._counts:
            self._change_load(number, 1)
        return number

    def _least_loaded(self) -> int:
        load, heap = self._load, self._heap
        # Ties go to the replica with the lower number, as in C.
        while heap[0][0] != load[heap[0][1]]:
            heappop(heap)
        number = heappop(heap)[1]
        self._change_load(number, 1)
        return number

    def _change_load(self, number: int, change: int) -> None:
        self._load[number] += change
        heappush(self._heap, (self._load[number], number))


Finished = Callable[[float, int, int], bool]
"""(finish time, sample, replica) of a sample with its last token; whether the run stops there."""


class Fleet(Struct, frozen=True):
    """``count`` replicas of one iteration table behind a dispatcher.

    kv_token_s: seconds of a token of KV cache from one replica to another. routing: of samples that come back. tier: KV
    cache below the replicas' own. prefill: engines that prefill in their place.
    """

    count: int
    dispatch: Dispatch
    table: IterationTable
    prefix_caching: bool = True
    migration: Migration = "none"
    kv_token_s: float = 0.0
    routing: Routing = "sticky"
    tier: KvTier | None = None
    prefill: PrefillService | None = None


def fleet_of(scenario: Scenario, prices: Prices) -> Fleet:
    """The replicas of a scenario."""
    engine = scenario.engine
    return Fleet(
        prices.replicas, engine.dispatch, prices.iteration, engine.prefix_caching, engine.migration, prices.kv_token_s,
        engine.session_routing, prices.tier, prices.prefill,
    )  # fmt: skip


class GenerationPool:
    """Replicas of one iteration table. Times in seconds, never decreasing from call to call.

    counters: what the engines did so far, all replicas together.
    """

    def __init__(self, fleet: Fleet) -> None:
        num_replicas, dispatch, table = fleet.count, fleet.dispatch, fleet.table
        self.counters = EngineCounters(prepare(table).max_sequences)
        self.replicas = [Replica(table, fleet.prefix_caching, self.counters) for _ in range(num_replicas)]
        self._dispatcher = Dispatcher(num_replicas, dispatch, fleet.routing)
        self._turn = 0
        self._cancelled: set[int] = set()
        for number, replica in enumerate(self.replicas):
            replica.cancelled, replica.on_cancelled = self._cancelled, partial(self._dispatcher.completed, number, 1)
            replica.on_give = partial(self._give, number)
        self._fleet = fleet
        self._place_tiers()
        self._prefills = None if fleet.prefill is None else Prefills(fleet.prefill, fleet.prefix_caching, self.counters)
        self._arriving: list[tuple[float, int, int, Request]] = []
        for replica in self.replicas:
            replica.decodes_alone = self._prefills is not None
        self._takers: list[deque[int]] = [deque() for _ in self.replicas]
        self._shared: deque[Request] | None = deque() if dispatch == "shared_queue" else None
        self._stale: dict[int, None] = {}
        self._due = [math.inf] * num_replicas
        self._events: list[tuple[float, int]] = []

    def _place_tiers(self) -> None:
        if (tier := self._fleet.tier) is None:
            return
        every, away_s = Contexts(tier.capacity_tokens * len(self.replicas)), dict[int, float]()
        for replica in self.replicas:
            replica.cache.tier, replica.cache.away_s = tier, away_s
            replica.cache.below = every if tier.shared else Contexts(tier.capacity_tokens)

    def submit(self, time_s: float, samples: Sequence[Request]) -> None:
        """Dispatch samples at a time. Raises Infeasible where one exceeds a replica's KV cache."""
        if self._shared is not None:
            self._shared.extend(samples)
            self._share(time_s)
            return
        parts: dict[int, list[Request]] = {}
        for sample, number in zip(samples, self._dispatcher.assign(len(samples)), strict=True):
            if not self._prefill(time_s, number, sample):
                parts.setdefault(number, []).append(sample)
        for number, part in parts.items():
            self.replicas[number].submit(time_s, part)
            self._stale[number] = None

    def _share(self, time_s: float) -> None:
        """Let every replica take one in turn, round after round, while any has room.

        The turn goes on where it ended, or else the first replicas would take all that come in few at a time.
        """
        count, first = len(self.replicas), self._turn
        taken = True
        while taken and self._shared:
            taken = False
            for number in (*range(first, count), *range(first)):
                if self._offer(number, time_s):
                    taken, self._turn = True, (number + 1) % count

    def leave(self, time_s: float, number: int, sample: int, tokens: int) -> None:
        """A sample that has just finished on replica ``number`` will come back; ``tokens`` stay in its prefix cache."""
        self.replicas[number].leave(time_s, sample, tokens)

    def submit_to(self, time_s: float, number: int, sample: Request) -> None:
        """A sample comes back that left replica ``number``."""
        left = self.replicas[number]
        left.absence.environment(time_s, -1)
        left.cache.comes_back(time_s, sample.id)
        target = self._dispatcher.returned(number)
        if target != number:
            left.cache.leave(sample.id)
        if not self._prefill(time_s, target, sample):
            self.replicas[target].submit(time_s, (sample,))
            self._stale[target] = None

    def _prefill(self, time_s: float, number: int, sample: Request) -> bool:
        """Whether another engine prefills a sample that replica ``number`` decodes."""
        if self._prefills is None:
            return False
        heappush(self._arriving, (self._prefills.arrives_s(time_s, sample), sample.id, number, sample))
        return True

    def _arrive(self, time_s: float) -> bool:
        """Whether any who are prefilled, by a time and before what happens next, join the replicas that decode them, as
        they do unless they were cancelled meanwhile."""
        now_s = self._arriving[0][0]
        if now_s > time_s or (self._events and now_s > self._events[0][0]):
            return False
        # All of one time together: a replica begins an iteration with whoever is there.
        while self._arriving and self._arriving[0][0] == now_s:
            _, _, number, sample = heappop(self._arriving)
            if sample.id in self._cancelled:
                self._cancelled.remove(sample.id)
                self._dispatcher.completed(number, 1)
                continue
            self.replicas[number].submit(now_s, (sample,))
            self._stale[number] = None
        return True

    def _offer(self, number: int, time_s: float) -> bool:
        """Hand the head of the shared queue to a replica that has room, or is idle and must take or refuse it."""
        replica, queue = self.replicas[number], self._shared
        if not queue or not (replica.has_room(queue[0]) or not replica.outstanding):
            return False
        self._dispatcher.taken(number)
        replica.submit(time_s, (queue.popleft(),))
        self._stale[number] = None
        return True

    def next_event_time(self) -> float:
        """When the membership of a replica changes next; nothing completes earlier. Infinite when all are idle."""
        self._refresh()
        events, due = self._events, self._due
        while events and due[events[0][1]] != events[0][0]:
            heappop(events)
        return events[0][0] if events else math.inf

    def run(self, time_s: float, finished: Finished) -> bool:
        """Run until a time and call ``finished`` at every completion, in order of time; whether one stopped the run.

        What starts at ``time_s`` itself is left for later, so that samples submitted then still take part in it.
        """
        events, due, stale, queue, arriving = self._events, self._due, self._stale, self._shared, self._arriving
        migrates = self._fleet.migration != "none"
        while True:
            if stale:
                self._refresh()
            if arriving and self._arrive(time_s):
                continue
            if not events or events[0][0] > time_s:
                return False
            at, number = heappop(events)
            if due[number] != at:
                continue
            due[number] = math.inf
            replica = self.replicas[number]
            completed = replica.advance_to(at)
            stop = False
            if completed:
                self._dispatcher.completed(number, len(completed))
                for _, sample in completed:
                    stop |= finished(at, sample, number)
            while queue and self._offer(number, at):
                pass
            if migrates and not replica.outstanding:
                self._ran_dry(number, at)
            if stop:
                stale[number] = None  # the caller may submit at this very time, before the next segment starts
                return True
            # Hot path: this replica's next event goes back at once, without the detour over the stale ones.
            upcoming = due[number] = replica.next_event_time()
            if upcoming < math.inf:
                heappush(events, (upcoming, number))

    def _ran_dry(self, number: int, time_s: float) -> None:
        """A replica has nothing left: it asks another one, and so do those who had asked it."""
        asking, self._takers[number] = (number, *self._takers[number]), deque()
        for taker in asking:
            self._ask(taker, time_s)

    def _ask(self, taker: int, time_s: float) -> None:
        """A replica that ran dry asks the fullest one for half of its requests, where any has more than one."""
        loads = [replica.outstanding for replica in self.replicas]
        giver = loads.index(max(loads))
        if loads[giver] > 1:
            self._takers[giver].append(taker)
            self.replicas[giver].pause(time_s, 0.0, "give")
            self._stale[giver] = None

    def _give(self, giver: int, time_s: float) -> None:
        """An iteration of the giver has ended: who asked it takes its half, or asks on where too little is left."""
        if not self._takers[giver]:
            return  # it ran dry in between
        taker, given = self._takers[giver].popleft(), self.replicas[giver].give_half()
        self.replicas[taker].take(time_s, given, self._fleet.migration, self._fleet.kv_token_s)
        self._stale[taker] = None
        if not given:
            self._ask(taker, time_s)

    def drain(self, finished: Finished) -> None:
        """Run every replica by itself to its last token, while nothing waits in a shared queue or is submitted."""
        while self._prefills is not None and self.run(math.inf, finished):
            pass  # who is in prefill is still to be submitted
        for number, replica in enumerate(self.replicas):
            for at, sample in replica.advance_to(math.inf):
                finished(at, sample, number)

    def pause(self, time_s: float, duration_s: float, action: Action = "keep") -> None:
        """Stop every replica for ``duration_s`` once its iteration in progress has ended (weights in flight)."""
        if self._prefills is not None and action in ("recompute", "restart"):
            self._prefills.forget()
        for number, replica in enumerate(self.replicas):
            replica.pause(time_s, duration_s, action)
            self._stale[number] = None

    def recompute_kv(self, time_s: float, delay_s: float = 0.0) -> None:
        """All resident sequences prefill their context again, ``delay_s`` after the first iteration boundary."""
        self.pause(time_s, delay_s, "recompute")

    def restart(self, time_s: float, delay_s: float = 0.0) -> None:
        """All samples that have begun start again from their prompts, ``delay_s`` after the first iteration boundary.

        They keep their places on their replicas.
        """
        self.pause(time_s, delay_s, "restart")

    def cancel(self, time_s: float, samples: set[int]) -> None:
        """Abort samples: those of a shared queue at once, others at the first iteration boundary of their replica."""
        if self._shared:
            waiting = [one for one in self._shared if one.id not in samples]
            samples = samples - {one.id for one in self._shared}
            self._shared.clear()
            self._shared.extend(waiting)
        self._cancelled |= samples
        self.pause(time_s, 0.0, "cancel")

    @property
    def emitted(self) -> EmittedTokens:
        """Response tokens that the replicas emitted so far."""
        return EmittedTokens(
            *(sum(column) for column in zip(*(astuple(r.emitted) for r in self.replicas), strict=True))
        )

    def in_progress(self) -> Iterator[tuple[int, float]]:
        """Unfinished samples and the response tokens that each has so far: at replicas, then of those in prefill."""
        yield from (one for replica in self.replicas for one in replica.in_progress())
        yield from ((sample, 0.0) for sample in sorted(sample for _, sample, *_ in self._arriving))

    @property
    def outstanding(self) -> int:
        """Samples submitted and not finished."""
        waiting = len(self._shared or ()) + len(self._arriving)
        return sum(replica.outstanding for replica in self.replicas) + waiting

    @property
    def waits_for_room(self) -> bool:
        """Whether a shared queue holds samples."""
        return bool(self._shared)

    @property
    def peak_kv_tokens(self) -> float:
        """Most KV cache that any replica had in use, in tokens."""
        return max(replica.peak_kv_tokens for replica in self.replicas)

    @property
    def peaks_kv_tokens(self) -> FloatArray:
        """Most KV cache that each replica had in use, in tokens."""
        return np.array([replica.peak_kv_tokens for replica in self.replicas])

    def _refresh(self) -> None:
        while self._stale:  # a request that moves adds to them
            number = next(iter(self._stale))
            del self._stale[number]
            at = self.replicas[number].next_event_time()
            if at != self._due[number]:
                self._due[number] = at
                if at < math.inf:
                    heappush(self._events, (at, number))
