"""One rollout phase of trajectories with several turns, from time 0 to the end of the last trajectory."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import numpy as np

from rlsim.costs.interface import EngineCounters, IterationTable
from rlsim.schema.agent import Agent
from rlsim.simulation.agent_records import AgentCounters, AgentTimeline
from rlsim.simulation.agents import AgentPool
from rlsim.simulation.dispatch import Dispatch
from rlsim.simulation.iteration_times import prepare
from rlsim.simulation.kernel.agents import KernelAgents, first_turns
from rlsim.simulation.kernel.library import library
from rlsim.simulation.kernel.pool import KernelPool
from rlsim.simulation.pool import GenerationPool
from rlsim.simulation.rollout import RolloutResult, rollout
from rlsim.simulation.trajectories import Trajectories
from rlsim.units import FloatArray, IntArray
from rlsim.workload.batches import Generated


@dataclass(frozen=True, eq=False)
class AgentRollout:
    """A rollout, what its trajectories did besides generating, and when."""

    result: RolloutResult
    counters: AgentCounters
    timeline: AgentTimeline


def agent_rollout(
    one: Generated,
    iterations: IntArray,
    num_replicas: int,
    dispatch: Dispatch,
    table: IterationTable,
    agent: Agent,
    prefix_caching: bool = True,
) -> AgentRollout:
    """Run the trajectories of ``one`` on ``num_replicas`` replicas, all submitted at time 0.

    iterations: decode iterations of each turn. A sample finishes with its last turn, or when it has been judged.
    Raises Infeasible where a turn exceeds a replica's KV cache.
    """
    if one.turns is None:
        raise ValueError("a rollout without turns is no rollout of agents")
    unlimited = agent.max_trajectories is None or agent.max_trajectories >= one.batch.samples
    if one.turns.single and agent.judge is None and unlimited:
        result = rollout(one.batch, iterations, num_replicas, dispatch, table, prefix_caching)
        return AgentRollout(result, AgentCounters(turns=float(one.turns.count)), AgentTimeline())
    trajectories = Trajectories.of([(one, iterations)], int(one.batch.group[-1]) + 1)
    trajectories.check_fit(prepare(table))
    kernel = library()
    if kernel is not None:
        return _in_kernel(kernel, trajectories, num_replicas, dispatch, table, agent, prefix_caching)
    pool = GenerationPool(table, num_replicas, dispatch, prefix_caching)
    agents = AgentPool(pool, agent, trajectories, prefix_caching)
    samples = one.batch.samples
    finish_s, replica = np.zeros(samples), np.zeros(samples, dtype=np.int64)

    def finished(time_s: float, sample: int, number: int) -> bool:
        finish_s[sample], replica[sample] = time_s, number
        return False

    agents.submit(0.0, [trajectories.first_request(number) for number in range(samples)])
    agents.run(math.inf, finished)
    peak = np.array([one.peak_kv_tokens for one in pool.replicas])
    result = _result(trajectories, finish_s, replica, peak, pool.counters, agents.agent_counters)
    return AgentRollout(result, agents.agent_counters, agents.timeline)


def _in_kernel(
    kernel: ctypes.CDLL,
    trajectories: Trajectories,
    num_replicas: int,
    dispatch: Dispatch,
    table: IterationTable,
    agent: Agent,
    prefix_caching: bool,
) -> AgentRollout:
    timing, turns = prepare(table), trajectories.response_tokens.size
    counters = EngineCounters(timing.max_sequences)
    with KernelPool(
        kernel,
        timing,
        first_turns(trajectories),
        num_replicas,
        dispatch,
        prefix_caching,
        counters,
        completions=turns,
    ) as pool:
        agents = KernelAgents(kernel, pool, agent, trajectories, prefix_caching, detailed=True)
        agents.run_all()
        told, timeline = agents.counters, agents.timeline
    result = _result(trajectories, pool.finish_s, pool.replica, pool.peak_kv_tokens, counters, told)
    return AgentRollout(result, told, timeline)


def _result(
    trajectories: Trajectories,
    finish_s: FloatArray,
    replica: IntArray,
    peak: FloatArray,
    counters: EngineCounters,
    agents: AgentCounters,
) -> RolloutResult:
    end_s = np.zeros(peak.size)
    np.maximum.at(end_s, replica, finish_s)
    generated = int(trajectories.response_tokens.sum()) - int(agents.skipped_tokens)
    return RolloutResult(finish_s, replica, end_s, peak, counters, generated)
