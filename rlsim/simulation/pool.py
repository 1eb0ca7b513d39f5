"""The generation pool of an asynchronous loop: replicas behind one dispatcher, driven event by event."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from rlsim.costs.interface import IterationTable
from rlsim.simulation.replica import Replica
from rlsim.simulation.rollout import Dispatch
from rlsim.simulation.samples import Sample
from rlsim.simulation.tally import Tally
from rlsim.simulation.timing import prepare


class GenerationPool:
    """Replicas of one iteration table. Times in seconds, never decreasing from call to call.

    dispatch: round_robin, a counter over all samples ever submitted; least_loaded, the replica with the fewest
    unfinished samples, the lowest number first; static, each submission in contiguous parts (``numpy.array_split``).
    """

    def __init__(
        self, table: IterationTable, num_replicas: int, dispatch: Dispatch, prefix_caching: bool = True
    ) -> None:
        self.tally = Tally(prepare(table).slots)
        self.replicas = [Replica(table, prefix_caching, self.tally) for _ in range(num_replicas)]
        self._dispatch = dispatch
        self._submitted = 0
        self._stale: dict[int, None] = {}
        self._due = [math.inf] * num_replicas
        self._events: list[tuple[float, int]] = []
        self._load = [0] * num_replicas
        self._loads: list[tuple[int, int]] = [(0, number) for number in range(num_replicas)]
        self._told: dict[str, float] = {}

    def submit(self, time_s: float, samples: Sequence[Sample]) -> None:
        """Dispatch samples at a time. Raises Infeasible where one exceeds a replica's KV cache."""
        parts: dict[int, list[Sample]] = {}
        for sample, number in zip(samples, self._choose(len(samples)), strict=True):
            parts.setdefault(number, []).append(sample)
        for number, part in parts.items():
            self.replicas[number].submit(time_s, part)
            self._stale[number] = None

    def next_event_time(self) -> float:
        """When the membership of a replica changes next; nothing completes earlier. Infinite when all are idle.

        Not every change is a completion, so :meth:`advance_to` this time may return nothing.
        """
        self._refresh()
        events, due = self._events, self._due
        while events and due[events[0][1]] != events[0][0]:
            heappop(events)
        return events[0][0] if events else math.inf

    def advance_to(self, time_s: float) -> list[tuple[float, int]]:
        """Run until a time; (finish time, sample id) of all samples that finish by then, in order of time.

        What starts at ``time_s`` itself is left for later, so that samples submitted then still take part in it.
        """
        done: list[tuple[float, int]] = []
        if self._stale:
            self._refresh()
        events, due = self._events, self._due
        while events and events[0][0] <= time_s:
            at, number = heappop(events)
            if due[number] != at:
                continue
            due[number] = math.inf
            completed = self.replicas[number].advance_to(at)
            if completed:
                done += completed
                if self._dispatch == "least_loaded":
                    self._change_load(number, -len(completed))
            self._stale[number] = None
            if at < time_s:
                self._refresh()
        return done

    def run(self, time_s: float, finished: Callable[[float, int], None]) -> None:
        """Run until a time and call ``finished(time, sample id)`` at every completion, in order of time.

        ``finished`` may submit samples at that time; the same as asking for the next event and advancing to it, faster.
        """
        events, due, stale = self._events, self._due, self._stale
        while True:
            if stale:
                self._refresh()
            if not events or events[0][0] > time_s:
                return
            at, number = heappop(events)
            if due[number] != at:
                continue
            due[number] = math.inf
            stale[number] = None
            completed = self.replicas[number].advance_to(at)
            if completed:
                if self._dispatch == "least_loaded":
                    self._change_load(number, -len(completed))
                for _, sample in completed:
                    finished(at, sample)

    def pause(self, time_s: float, duration_s: float) -> None:
        """Stop every replica for ``duration_s`` once its iteration in progress has ended (weights in flight)."""
        for number, replica in enumerate(self.replicas):
            replica.pause(time_s, duration_s)
            self._stale[number] = None

    def recompute_kv(self, time_s: float) -> None:
        """All resident sequences prefill their context again."""
        for number, replica in enumerate(self.replicas):
            replica.recompute_kv(time_s)
            self._stale[number] = None

    @property
    def outstanding(self) -> int:
        """Samples submitted and not finished."""
        return sum(replica.outstanding for replica in self.replicas)

    def facts(self, seconds: float) -> dict[str, float]:
        """What the engines did since the last call, over ``seconds`` of generation; keys as ``RolloutResult.facts``.

        Means are over iterations; peak_kv_tokens is the most since the start.
        """
        now = {
            "iterations": float(self.tally.iterations),
            "sequences": float(sum(n * count for n, count in enumerate(self.tally.iterations_at))),
            "contexts": sum(self.tally.context_at),
            "prefill_iterations": float(self.tally.prefill_iterations),
            "prefill_tokens": float(self.tally.prefill_tokens),
            "preemptions": float(self.tally.preemptions),
        }
        since = {name: value - self._told.get(name, 0.0) for name, value in now.items()}
        self._told = now
        iterations = max(since["iterations"], 1.0)
        return {
            "decode_iterations": since["iterations"],
            "mean_batch": since["sequences"] / iterations,
            "mean_context_tokens": since["contexts"] / iterations,
            "prefill_iterations": since["prefill_iterations"],
            "prefill_tokens": since["prefill_tokens"],
            "preemptions": since["preemptions"],
            "peak_kv_tokens": max(replica.peak_kv_tokens for replica in self.replicas),
            "iterations_per_s": since["iterations"] / seconds / len(self.replicas) if seconds > 0 else 0.0,
        }

    def _refresh(self) -> None:
        for number in self._stale:
            at = self.replicas[number].next_event_time()
            if at != self._due[number]:
                self._due[number] = at
                if at < math.inf:
                    heappush(self._events, (at, number))
        self._stale.clear()

    def _choose(self, count: int) -> list[int]:
        replicas = len(self.replicas)
        if self._dispatch == "static":
            size, larger = divmod(count, replicas)
            return [number for number in range(replicas) for _ in range(size + (number < larger))]
        if self._dispatch == "round_robin":
            first = self._submitted
            self._submitted += count
            return [(first + i) % replicas for i in range(count)]
        return [self._least_loaded() for _ in range(count)]

    def _least_loaded(self) -> int:
        loads, heap = self._load, self._loads
        while heap[0][0] != loads[heap[0][1]]:
            heappop(heap)
        number = heappop(heap)[1]
        self._change_load(number, 1)
        return number

    def _change_load(self, number: int, change: int) -> None:
        self._load[number] += change
        heappush(self._loads, (self._load[number], number))
