"""One rollout phase: a batch over all replicas, from time 0 to the last token of the slowest replica."""

from __future__ import annotations

import ctypes
import math
from itertools import starmap

import numpy as np
from msgspec import Struct

from rlsim.costs.interface import EngineCounters
from rlsim.errors import Infeasible
from rlsim.schema.workload import Agent
from rlsim.simulation.agents import AgentPool
from rlsim.simulation.iteration_times import IterationTimes, prepare
from rlsim.simulation.kernel.agents import KernelAgents, first_turns
from rlsim.simulation.kernel.library import library
from rlsim.simulation.kernel.pool import KernelPool
from rlsim.simulation.pool import Fleet, GenerationPool
from rlsim.simulation.requests import Request
from rlsim.simulation.trajectories import AgentCounters, AgentTimeline, Trajectories
from rlsim.units import FloatArray, IntArray
from rlsim.workload.batches import Batch, Generated


class RolloutResult(Struct, frozen=True, eq=False):
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

    @classmethod
    def of(
        cls, finish_s: FloatArray, replica: IntArray, peak_kv_tokens: FloatArray, counters: EngineCounters,
        generated_tokens: float,
    ) -> RolloutResult:  # fmt: skip
        """The result of samples that finish at ``finish_s``."""
        end_s = np.zeros(peak_kv_tokens.size)
        # By at: a replica stands there once for each of its samples, of which an indexed assignment keeps one.
        np.maximum.at(end_s, replica, finish_s)
        return cls(finish_s, replica, end_s, peak_kv_tokens, counters, int(generated_tokens))

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


def rollout(batch: Batch, iterations: IntArray, fleet: Fleet) -> RolloutResult:
    """What happens when ``fleet`` generates ``batch``, whose samples are all submitted at time 0.

    iterations: decode iterations of each sample, as ``draw_iterations`` gives them. Raises Infeasible where a sample
    exceeds a replica's KV cache.
    """
    timing = prepare(fleet.table)
    _check_fit(batch, timing)
    kernel, moves = library(), fleet.migration != "none"
    generated_tokens = batch.response_tokens.sum()
    # The kernel moves no running requests between replicas.
    if kernel is not None and not moves:
        counters = EngineCounters(timing.max_sequences)
        with KernelPool(kernel, _columns(batch, iterations), fleet, counters) as run:
            run.run_all()
        return RolloutResult.of(run.finish_s, run.replica, run.peak_kv_tokens, counters, generated_tokens)
    pool = GenerationPool(fleet)
    finish_s, assigned = np.zeros(batch.samples), np.zeros(batch.samples, dtype=np.int64)

    def finished(time_s: float, sample: int, number: int) -> bool:
        finish_s[sample], assigned[sample] = time_s, number
        return not moves and not pool.waits_for_room

    pool.submit(0.0, samples_of(batch, iterations, np.arange(batch.samples)))
    if moves or pool.waits_for_room:
        pool.run(math.inf, finished)
    pool.drain(finished)  # nobody waits any more: every replica runs on by itself, without the common order of events
    return RolloutResult.of(finish_s, assigned, pool.peaks_kv_tokens, pool.counters, generated_tokens)


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


def _check_fit(batch: Batch, timing: IterationTimes) -> None:
    # A verification holds its drafted tokens in the cache before any of them is accepted.
    longest = float(batch.total_tokens.max(initial=0)) + timing.tokens_per_sequence - 1
    if longest > timing.kv_capacity_tokens:
        raise Infeasible(
            "the longest sequence exceeds the KV cache of a replica", longest, timing.kv_capacity_tokens, "tokens"
        )


class AgentRollout(Struct, frozen=True, eq=False):
    """A rollout, what its trajectories did besides generating, and when."""

    result: RolloutResult
    counters: AgentCounters
    timeline: AgentTimeline


def agent_rollout(one: Generated, iterations: IntArray, fleet: Fleet, agent: Agent) -> AgentRollout:
    """What happens when ``fleet`` generates the trajectories of ``one``, all submitted at time 0.

    iterations: decode iterations of each turn. A sample finishes with its last turn, or when it has been judged.
    Raises Infeasible where a turn exceeds a replica's KV cache.
    """
    if one.turns is None:
        raise ValueError("a rollout without turns is no rollout of agents")
    unlimited = agent.sandboxes is None or agent.sandboxes >= one.batch.samples
    # Nothing happens between or after such turns: they are plain samples, which take less to simulate.
    if one.turns.single and agent.judge is None and unlimited and one.turns.start_s is None:
        result = rollout(one.batch, iterations, fleet)
        return AgentRollout(result, AgentCounters(turns=float(one.turns.count)), AgentTimeline())
    trajectories = Trajectories.of([(one, iterations)], int(one.batch.group[-1]) + 1)
    trajectories.check_fit(prepare(fleet.table))
    kernel = library()
    if kernel is not None:
        return _in_kernel(kernel, trajectories, fleet, agent)
    pool = GenerationPool(fleet)
    agents = AgentPool(pool, agent, trajectories, fleet.prefix_caching)
    samples = one.batch.samples
    finish_s, replica = np.zeros(samples), np.zeros(samples, dtype=np.int64)

    def finished(time_s: float, sample: int, number: int) -> bool:
        finish_s[sample], replica[sample] = time_s, number
        return False

    agents.submit(0.0, [trajectories.first_request(number) for number in range(samples)])
    agents.run(math.inf, finished)
    counted = agents.agent_counters
    generated_tokens = trajectories.response_tokens.sum() - counted.skipped_tokens
    result = RolloutResult.of(finish_s, replica, pool.peaks_kv_tokens, pool.counters, generated_tokens)
    return AgentRollout(result, counted, agents.timeline)


def _in_kernel(kernel: ctypes.CDLL, trajectories: Trajectories, fleet: Fleet, agent: Agent) -> AgentRollout:
    responses, counters = trajectories.response_tokens, EngineCounters(prepare(fleet.table).max_sequences)
    with KernelPool(kernel, first_turns(trajectories), fleet, counters, completions=responses.size) as pool:
        agents = KernelAgents(kernel, pool, agent, trajectories, fleet.prefix_caching, detailed=True)
        agents.run_all()
        counted, timeline = agents.counters, agents.timeline
    generated_tokens = responses.sum() - counted.skipped_tokens
    result = RolloutResult.of(pool.finish_s, pool.replica, pool.peak_kv_tokens, counters, generated_tokens)
    return AgentRollout(result, counted, timeline)
