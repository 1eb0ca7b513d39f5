"""One rollout phase: a batch over all replicas, from time 0 to the last token of the slowest replica."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlsim.costs.interface import IterationTable
from rlsim.errors import Infeasible
from rlsim.simulation.drain import Shards, drain
from rlsim.simulation.replica import Replica
from rlsim.simulation.samples import Sample
from rlsim.simulation.tally import Tally
from rlsim.simulation.timing import Timing, prepare
from rlsim.workload.batches import Batch

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Dispatch = Literal["static", "round_robin", "least_loaded"]


@dataclass(frozen=True, eq=False)
class RolloutResult:
    """What happened, by sample and by replica; times in seconds from the start of the phase.

    finish_s, replica: per sample. replica_end_s, peak_kv_tokens: per replica (0 where it had no sample).
    tally: iterations by batch size, prefill and preemptions over all replicas. generated_tokens: all response tokens.
    """

    finish_s: FloatArray
    replica: IntArray
    replica_end_s: FloatArray
    peak_kv_tokens: FloatArray
    tally: Tally
    generated_tokens: int

    @property
    def seconds(self) -> float:
        """Duration of the phase: the slowest replica's."""
        return float(self.replica_end_s.max(initial=0.0))

    def running_curve(self, points: int = 200) -> tuple[list[float], list[float]]:
        """Unfinished samples over time: (times, counts) at ``points`` times from 0 to the end."""
        times = np.linspace(0.0, self.seconds, points)
        finished = np.searchsorted(np.sort(self.finish_s), times, side="right")
        return times.tolist(), (self.finish_s.size - finished).astype(np.float64).tolist()

    @property
    def imbalance(self) -> float:
        """The slowest replica's time over the mean."""
        busy = self.replica_end_s[self.replica_end_s > 0]
        return float(busy.max() / busy.mean()) if busy.size else 1.0


def rollout_facts(results: Sequence[RolloutResult]) -> dict[str, float]:
    """What a report shows of the rollouts of one step beside their iterations."""
    seconds = sum(result.seconds for result in results)
    return {
        "peak_kv_tokens": max(float(result.peak_kv_tokens.max(initial=0.0)) for result in results),
        "replica_imbalance": sum(result.imbalance for result in results) / len(results),
        "tokens_per_s": sum(result.generated_tokens for result in results) / seconds if seconds else 0.0,
    }


def rollout(
    batch: Batch,
    iterations: IntArray,
    num_replicas: int,
    dispatch: Dispatch,
    table: IterationTable,
    prefix_caching: bool = True,
) -> RolloutResult:
    """Generate ``batch`` on ``num_replicas`` replicas.

    iterations: decode iterations of each sample, as ``draw_iterations`` gives them. dispatch: static, a contiguous
    split (``numpy.array_split``); round_robin, sample i to replica i mod num_replicas; least_loaded, dealt in turn as
    long as slots and KV cache are free, and the rest released from one queue to the replica that has room first.
    Raises Infeasible where a sample exceeds a replica's KV cache.
    """
    timing = prepare(table)
    _check_fit(batch, timing)
    assigned = _assign(batch.samples, num_replicas, dispatch)
    shards = make_shards(batch, iterations, assigned, num_replicas)
    tally = Tally(timing.slots)
    drained = drain(timing, shards, prefix_caching, tally)
    occupied = shards.real[:, 0]
    finish_s = np.zeros(batch.samples)
    peak = drained.peak_kv_tokens.copy()
    if dispatch == "least_loaded" and not np.all(drained.valid | ~occupied):
        return _share_queue(batch, iterations, num_replicas, table, prefix_caching)
    done = shards.real & drained.valid[:, None]
    finish_s[shards.index[done]] = drained.finish_s[done]
    for number in np.flatnonzero(occupied & ~drained.valid).tolist():
        replica = Replica(table, prefix_caching, tally)
        mine = shards.index[number]
        replica.submit(0.0, samples_of(batch, iterations, mine[mine >= 0]))
        for time_s, sample in replica.advance_to(math.inf):
            finish_s[sample] = time_s
        peak[number] = replica.peak_kv_tokens
    return _result(batch, finish_s, assigned, peak, tally)


def samples_of(
    batch: Batch, iterations: IntArray, index: IntArray, first_id: int = 0, first_group: int = 0
) -> list[Sample]:
    """Requests for the samples of ``batch`` numbered ``index``.

    id: the number of the sample, counted from ``first_id``; group: that of the prompt, counted from ``first_group``.
    """
    columns = (
        index + first_id,
        batch.group[index] + first_group,
        batch.prompt_tokens[index],
        batch.response_tokens[index],
        iterations[index],
    )
    return list(map(Sample._make, zip(*(column.tolist() for column in columns), strict=True)))


def make_shards(batch: Batch, iterations: IntArray, assigned: IntArray, num_replicas: int) -> Shards:
    """Lay the samples out by replica, in the order of submission."""
    counts = np.bincount(assigned, minlength=num_replicas)
    order = np.argsort(assigned, kind="stable")
    rows = assigned[order]
    columns = np.arange(order.size) - np.repeat(np.cumsum(counts) - counts, counts)
    index = np.full((num_replicas, int(counts.max(initial=0))), -1)
    index[rows, columns] = order
    real = index >= 0

    def laid_out(values: NDArray[np.int64]) -> IntArray:
        return np.where(real, values[index], 0)

    steps = laid_out(iterations)
    growth = np.where(steps > 0, (laid_out(batch.response_tokens) - 1) / np.maximum(steps, 1), 0.0)
    group = np.where(real, batch.group[index], int(batch.group.max()) + 1)
    return Shards(index, laid_out(batch.prompt_tokens).astype(np.float64), growth, steps, group)


def _check_fit(batch: Batch, timing: Timing) -> None:
    longest = float(batch.total_tokens.max(initial=0)) + timing.tokens_per_sequence - 1
    if longest > timing.kv_capacity_tokens:
        raise Infeasible(
            "the longest sequence exceeds the KV cache of a replica", longest, timing.kv_capacity_tokens, "tokens"
        )


def _assign(samples: int, num_replicas: int, dispatch: Dispatch) -> IntArray:
    if dispatch != "static":
        return np.arange(samples) % num_replicas
    size, larger = divmod(samples, num_replicas)
    return np.repeat(np.arange(num_replicas), [size + (r < larger) for r in range(num_replicas)])


def _share_queue(
    batch: Batch, iterations: IntArray, num_replicas: int, table: IterationTable, prefix_caching: bool
) -> RolloutResult:
    """Least-loaded dispatch with more samples than fit: whoever has room next takes the next sample."""
    tally = Tally(prepare(table).slots)
    replicas = [Replica(table, prefix_caching, tally) for _ in range(num_replicas)]
    queue = deque(samples_of(batch, iterations, np.arange(batch.samples)))
    finish_s, assigned = np.zeros(batch.samples), np.zeros(batch.samples, dtype=np.int64)

    def offer(number: int, time_s: float) -> bool:
        if not queue or not replicas[number].has_room(queue[0]):
            return False
        assigned[queue[0].id] = number
        replicas[number].submit(time_s, (queue.popleft(),))
        return True

    while sum(offer(number, 0.0) for number in range(num_replicas)):
        pass
    events = [(replica.next_event_time(), number) for number, replica in enumerate(replicas)]
    heapify(events)
    while events:
        time_s, number = heappop(events)
        for done_s, sample in replicas[number].advance_to(time_s if queue else math.inf):
            finish_s[sample] = done_s
        while offer(number, time_s):
            pass
        upcoming = replicas[number].next_event_time()
        if upcoming < math.inf:
            heappush(events, (upcoming, number))
    peak = np.array([replica.peak_kv_tokens for replica in replicas])
    return _result(batch, finish_s, assigned, peak, tally)


def _result(batch: Batch, finish_s: FloatArray, assigned: IntArray, peak: FloatArray, tally: Tally) -> RolloutResult:
    end_s = np.zeros(peak.size)
    np.maximum.at(end_s, assigned, finish_s)
    return RolloutResult(finish_s, assigned, end_s, peak, tally, int(batch.response_tokens.sum()))
