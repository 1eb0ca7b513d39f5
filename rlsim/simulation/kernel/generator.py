"""The generator of an asynchronous loop in the kernel."""

from __future__ import annotations

import ctypes
import math

import numpy as np

from rlsim.costs.interface import EngineCounters, Prices
from rlsim.schema.scenario import Scenario
from rlsim.simulation.agent_counters import AgentCounters
from rlsim.simulation.agent_timeline import show_agents
from rlsim.simulation.generator import NOBODY_GENERATES, groups_per_step, show_batch, trajectories_of
from rlsim.simulation.iteration_times import prepare
from rlsim.simulation.kernel.agents import KernelAgents, first_turns
from rlsim.simulation.kernel.library import LoopStruct, address
from rlsim.simulation.kernel.pool import IntArray, KernelPool
from rlsim.simulation.trace import Trace
from rlsim.simulation.trajectories import Trajectories
from rlsim.workload.draw import DrawnWorkload


class KernelGenerator:
    """A :class:`~rlsim.simulation.generator.Generator` whose events all pass in the kernel."""

    def __init__(
        self, kernel: ctypes.CDLL, scenario: Scenario, workload: DrawnWorkload, prices: Prices, trace: Trace
    ) -> None:
        steps, groups = len(workload.steps), groups_per_step(scenario)
        trajectories = trajectories_of(scenario, workload)
        columns = _columns(workload, groups) if trajectories is None else first_turns(trajectories)
        changes = columns[0].size + steps * groups if trace.detailed else 0
        self._kernel, self._trace, self._taken = kernel, trace, 0
        self._pauses_left = self._publications_left = steps
        self._counters = EngineCounters(prepare(prices.iteration).max_sequences)
        self._started_s, self._ready_s = np.zeros(steps), np.zeros(steps)
        self._samples_by_age = np.zeros((steps, scenario.loop.policy_lag + 1), dtype=np.int64)
        self._times_s, self._running_at = np.zeros(changes), np.zeros(changes)
        self._pool, self._agents = self._engines(scenario, prices, columns, steps, trajectories)
        agents = None if self._agents is None else self._agents.handle
        self._handle: int | None = kernel.generator_new(self._pool.handle, agents, self._loop(scenario, steps, groups))
        if self._handle is None:
            raise MemoryError("no memory for the prompt groups of a run")
        self._pool.check()

    def _engines(
        self,
        scenario: Scenario,
        prices: Prices,
        columns: tuple[IntArray, IntArray, IntArray, IntArray],
        steps: int,
        trajectories: Trajectories | None,
    ) -> tuple[KernelPool, KernelAgents | None]:
        """Idle replicas, and the trajectories on them where there are agents."""
        engine, agent, timing = scenario.engine, scenario.workload.agent, prepare(prices.iteration)
        pool = KernelPool(
            self._kernel,
            timing,
            columns,
            prices.replicas,
            engine.dispatch,
            engine.prefix_caching,
            self._counters,
            max_pauses=2 * steps,
            completions=None if trajectories is None else trajectories.response_tokens.size,
        )
        if trajectories is None or agent is None:
            return pool, None
        trajectories.check_fit(timing)
        detailed = self._trace.detailed
        return pool, KernelAgents(self._kernel, pool, agent, trajectories, engine.prefix_caching, detailed)

    def _loop(self, scenario: Scenario, steps: int, groups: int) -> LoopStruct:
        section, loop = scenario.workload, scenario.loop
        return LoopStruct(
            steps,
            groups,
            section.prompts_per_step,
            section.generations_per_prompt,
            loop.policy_lag,
            loop.recompute_kv,
            loop.start_unit == "batch",
            section.environment_s,
            *map(address, (self._started_s, self._ready_s, self._samples_by_age)),
            *(map(address, (self._times_s, self._running_at)) if self._trace.detailed else (None, None)),
        )

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle is not None:
            self._kernel.generator_free(handle)

    @property
    def counters(self) -> EngineCounters:
        """What the engines did so far."""
        self._pool.book()
        return self._counters

    @property
    def agent_counters(self) -> AgentCounters | None:
        """What trajectories did so far besides generating, where there are any."""
        return None if self._agents is None else self._agents.counters

    @property
    def peak_kv_tokens(self) -> float:
        """Most KV cache that any replica had in use, in tokens."""
        self._pool.book()
        return float(self._pool.peak_kv_tokens.max())

    @property
    def in_flight(self) -> int:
        """Groups that have started and are not done."""
        return int(self._kernel.generator_in_flight(self._handle))

    def advance_to(self, now_s: float) -> None:
        """Book everything up to now."""
        self._kernel.generator_advance(self._handle, now_s)
        self._pool.check()

    def batch_ready(self, target: int, now_s: float) -> float:
        """When all groups of ``target`` are done, not before ``now_s``. Raises RuntimeError where nobody makes them."""
        return max(now_s, self._reached(self._kernel.generator_batch_ready(self._handle, target)))

    def take(self, target: int) -> dict[int, int]:
        """Hand the batch of ``target`` over: samples by age, the versions between their start and their training."""
        self._taken = target + 1
        show_batch(self._trace, target, float(self._started_s[target]), float(self._ready_s[target]))
        by_age = self._samples_by_age[target].tolist()
        return {age: by_age[age] for age in reversed(range(len(by_age))) if by_age[age]}

    def busy_s(self, now_s: float) -> float:
        """Seconds so far in which the pool had samples to generate and was not paused."""
        busy_s = float(self._kernel.generator_busy_s(self._handle, now_s))
        self._pool.check()
        return busy_s

    def drain(self, now_s: float) -> float:
        """Start no more groups until weights are published; when none is in flight."""
        return self._reached(self._kernel.generator_drain(self._handle, now_s))

    def pause(self, now_s: float, duration_s: float) -> None:
        """Stop the pool for ``duration_s`` (each replica after its iteration in progress); no more groups start."""
        if not self._pauses_left:
            raise ValueError("more pauses than steps")
        self._pauses_left -= 1
        self._kernel.generator_pause(self._handle, now_s, duration_s)
        self._pool.check()

    def publish_weights(self, now_s: float) -> None:
        """Go on with the next version of the weights, for which one more target is released."""
        if not self._publications_left:
            raise ValueError("more publications of weights than steps")
        self._publications_left -= 1
        self._kernel.generator_publish_weights(self._handle, now_s)
        self._pool.check()

    def close(self) -> None:
        """Record what the timeline shows of batches that nobody took, and the running sequences."""
        for target in range(self._taken, self._ready_s.size):
            if self._ready_s[target] < math.inf:
                show_batch(self._trace, target, float(self._started_s[target]), float(self._ready_s[target]))
        changes = self._kernel.generator_changes(self._handle)
        self._trace.curve("running sequences", self._times_s[:changes].tolist(), self._running_at[:changes].tolist())
        if self._agents is not None:
            show_agents(self._trace, self._agents.timeline)

    def _reached(self, time_s: float) -> float:
        """A time that the generator ran to. Raises Infeasible or RuntimeError where it never comes."""
        self._pool.check()
        if math.isinf(time_s):
            raise RuntimeError(NOBODY_GENERATES)
        return time_s


def _columns(workload: DrawnWorkload, groups: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """The samples of all steps one after the other, their groups numbered through."""
    batches = [step.rollouts[0].batch for step in workload.steps]
    return (
        np.concatenate([batch.prompt_tokens for batch in batches]),
        np.concatenate([batch.response_tokens for batch in batches]),
        np.concatenate([step.iterations[0] for step in workload.steps]),
        np.concatenate([batch.group + target * groups for target, batch in enumerate(batches)]),
    )
