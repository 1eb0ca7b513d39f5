"""One rollout phase: a batch over all replicas, from time 0 to the last token of the slowest replica."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import starmap

import numpy as np
from numpy.typing import NDArray

from rlsim.costs.interface import EngineCounters, IterationTable
from rlsim.errors import Infeasible
from rlsim.simulation.closed_form import ReplicaBatches, closed_form
from rlsim.simulation.dispatch import Dispatch, assigned_at_once
from rlsim.simulation.iteration_times import IterationTimes, prepare
from rlsim.simulation.kernel.library import library
from rlsim.simulation.kernel.pool import KernelPool
from rlsim.simulation.pool import GenerationPool
from rlsim.simulation.replica import Replica
from rlsim.simulation.requests import Request
from rlsim.units import FloatArray, IntArray
from rlsim.workload.batches import Batch


@dataclass(frozen=True, eq=False)
class RolloutResult:
    """What happened, by sample and by replica; times in seconds from the start of the phase.

    finish_s, replica: per sample. replica_end_s, peak_kv_tokens: per replica (0 where it had no sample).
    counters: over all replicas. generated_tokens: all response tokens.
    """

    finish_s: FloatArray
    replica: IntArray
    replica_end_s: FloatArray
    peak_kv_tokens: FloatArray
    counters: EngineCounters
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


def rollout(
    batch: Batch,
    iterations: IntArray,
    num_replicas: int,
    dispatch: Dispatch,
    table: IterationTable,
    prefix_caching: bool = True,
) -> RolloutResult:
    """Generate ``batch`` on ``num_replicas`` replicas.

    iterations: decode iterations of each sample, as ``draw_iterations`` gives them. dispatch: policy of
    :mod:`rlsim.simulation.dispatch`; all samples are submitted at time 0. Raises Infeasible where a sample exceeds a
    replica's KV cache.
    """
    timing = prepare(table)
    _check_fit(batch, timing)
    assigned = assigned_at_once(batch.samples, num_replicas, dispatch)
    batches = replica_batches(batch, iterations, assigned, num_replicas)
    counters = EngineCounters(timing.max_sequences)
    solved = closed_form(timing, batches, prefix_caching, counters)
    occupied = batches.real[:, 0]
    finish_s = np.zeros(batch.samples)
    peak = solved.peak_kv_tokens.copy()
    queueing = np.flatnonzero(occupied & ~solved.valid)
    if dispatch == "shared_queue" and queueing.size:
        return _share_queue(batch, iterations, num_replicas, table, prefix_caching)
    done = batches.real & solved.valid[:, None]
    finish_s[batches.index[done]] = solved.finish_s[done]
    kernel = library() if queueing.size else None
    if kernel is not None:
        with KernelPool(
            kernel, timing, _columns(batch, iterations), num_replicas, dispatch, prefix_caching, counters
        ) as pool:
            pool.run_rows(queueing, batches.index)
        finish_s += pool.finish_s
        peak += pool.peak_kv_tokens
        return _result(batch, finish_s, assigned, peak, counters)
    for number in queueing.tolist():
        replica = Replica(table, prefix_caching, counters)
        mine = batches.index[number]
        replica.submit(0.0, samples_of(batch, iterations, mine[mine >= 0]))
        for time_s, sample in replica.advance_to(math.inf):
            finish_s[sample] = time_s
        peak[number] = replica.peak_kv_tokens
    return _result(batch, finish_s, assigned, peak, counters)


def _columns(batch: Batch, iterations: IntArray) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Samples as the kernel takes them."""
    return batch.prompt_tokens, batch.response_tokens, iterations, batch.group


def samples_of(
    batch: Batch, iterations: IntArray, index: IntArray, first_id: int = 0, first_group: int = 0
) -> list[Request]:
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
    return list(starmap(Request, zip(*(column.tolist() for column in columns), strict=True)))


def replica_batches(batch: Batch, iterations: IntArray, assigned: IntArray, num_replicas: int) -> ReplicaBatches:
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
    return ReplicaBatches(index, laid_out(batch.prompt_tokens).astype(np.float64), growth, steps, group)


def _check_fit(batch: Batch, timing: IterationTimes) -> None:
    longest = float(batch.total_tokens.max(initial=0)) + timing.tokens_per_sequence - 1
    if longest > timing.kv_capacity_tokens:
        raise Infeasible(
            "the longest sequence exceeds the KV cache of a replica", longest, timing.kv_capacity_tokens, "tokens"
        )


def _share_queue(
    batch: Batch, iterations: IntArray, num_replicas: int, table: IterationTable, prefix_caching: bool
) -> RolloutResult:
    """One queue with more samples than fit: whoever has room next takes the next sample."""
    kernel = library()
    if kernel is not None:
        timing = prepare(table)
        counters = EngineCounters(timing.max_sequences)
        columns = _columns(batch, iterations)
        with KernelPool(kernel, timing, columns, num_replicas, "shared_queue", prefix_caching, counters) as run:
            run.run_queue()
        return _result(batch, run.finish_s, run.replica, run.peak_kv_tokens, counters)
    pool = GenerationPool(table, num_replicas, "shared_queue", prefix_caching)
    finish_s, assigned = np.zeros(batch.samples), np.zeros(batch.samples, dtype=np.int64)

    def finished(time_s: float, sample: int, number: int) -> bool:
        finish_s[sample], assigned[sample] = time_s, number
        return not pool.waits_for_room

    pool.submit(0.0, samples_of(batch, iterations, np.arange(batch.samples)))
    pool.run(math.inf, finished)
    pool.drain(finished)  # nobody waits any more: every replica runs on by itself, without the common order of events
    peak = np.array([replica.peak_kv_tokens for replica in pool.replicas])
    return _result(batch, finish_s, assigned, peak, pool.counters)


def _result(
    batch: Batch, finish_s: FloatArray, assigned: IntArray, peak: FloatArray, counters: EngineCounters
) -> RolloutResult:
    end_s = np.zeros(peak.size)
    np.maximum.at(end_s, assigned, finish_s)
    return RolloutResult(finish_s, assigned, end_s, peak, counters, int(batch.response_tokens.sum()))
