"""The generator of an asynchronous loop in the kernel."""

from __future__ import annotations

import ctypes
import math

import numpy as np

from rlsim.costs.interface import EngineCounters, Prices
from rlsim.schema.scenario import Scenario
from rlsim.simulation.agent_counters import AgentCounters
from rlsim.simulation.agent_timeline import show_agents
from rlsim.simulation.generator import show_batch, trajectories_of
from rlsim.simulation.intake import BoolArray, Intake, groups_per_step
from rlsim.simulation.iteration_times import prepare
from rlsim.simulation.kernel.agents import KernelAgents, first_turns
from rlsim.simulation.kernel.library import LoopStruct, address
from rlsim.simulation.kernel.pool import IntArray, KernelPool
from rlsim.simulation.running_batch import EmittedTokens
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
        self.intake = Intake(scenario, workload)
        every = self.intake.started_version.size
        changes = columns[0].size + 2 * every if trace.detailed else 0
        self._kernel, self._trace, self._taken = kernel, trace, 0
        self._pauses_left = self._publications_left = steps
        self._counters = EngineCounters(prepare(prices.iteration).max_sequences)
        self._started_s, self._ready_s = np.zeros(steps), np.zeros(steps)
        self._done_groups, self._cancelled_groups = np.zeros(every, dtype=np.int64), np.zeros(every, dtype=np.int64)
        self._cancelled = 0
        self._times_s, self._running_at = np.zeros(changes), np.zeros(changes)
        self._pool, self._agents = self._engines(scenario, prices, columns, steps, trajectories)
        agents = None if self._agents is None else self._agents.handle
        self._handle: int | None = kernel.generator_new(self._pool.handle, agents, self._loop(scenario, steps))
        if self._handle is None:
            raise MemoryError("no memory for the prompt groups of a run")
        self._start_groups(0.0)

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
            max_pauses=3 * steps,
            completions=None if trajectories is None else trajectories.response_tokens.size,
        )
        if trajectories is None or agent is None:
            return pool, None
        trajectories.check_fit(timing)
        detailed = self._trace.detailed
        return pool, KernelAgents(self._kernel, pool, agent, trajectories, engine.prefix_caching, detailed)

    def _loop(self, scenario: Scenario, steps: int) -> LoopStruct:
        intake = self.intake
        arrays = (self._started_s, self._ready_s, intake.started_version, self._done_groups, self._cancelled_groups)
        return LoopStruct(
            steps,
            intake.batch,
            intake.usable,
            intake.size,
            intake.max_in_flight,
            intake.rules.unit == "batch",
            scenario.workload.environment_s,
            *map(address, arrays),
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

    @property
    def emitted(self) -> EmittedTokens:
        """Response tokens that the engines emitted so far."""
        return self._pool.emitted()[0]

    @property
    def in_progress_tokens(self) -> float:
        """Response tokens that unfinished samples have so far."""
        return self._pool.emitted()[1]

    @property
    def finished(self) -> BoolArray:
        """Whether each sample has its last token."""
        return self._pool.finish_s > 0.0

    def batch_ready(self, step: int, now_s: float) -> float:
        """When the batch of ``step`` is done, not before ``now_s``. Raises RuntimeError where nobody makes it."""
        if self.intake.by_target:
            return self._reached(self._kernel.generator_batch_ready(self._handle, now_s, step))
        ready_s = self._kernel.generator_first_done(self._handle, now_s, self.intake.oldest_version)
        self.intake.released = self._kernel.generator_released(self._handle)
        return self._reached(ready_s)

    def take(self, step: int, now_s: float) -> IntArray:
        """Hand the batch of ``step`` over, once it is ready; its groups."""
        self.advance_to(now_s)
        looked_at = self._kernel.generator_looked_at(self._handle)
        groups = self.intake.take(step, self._done_groups[self.intake.position : looked_at].copy())
        self._taken = step + 1
        if self.intake.by_target:
            show_batch(self._trace, step, float(self._started_s[step]), float(self._ready_s[step]))
        if self.intake.rules.at_take:
            self._start_groups(now_s)
        return groups

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

    def resume(self, now_s: float) -> None:
        """Go on after a pause without new weights."""
        self._kernel.generator_resume(self._handle, now_s, 0)
        self._start_groups(now_s)

    def publish_weights(self, now_s: float) -> None:
        """Go on with the next version of the weights; running requests as the rules say."""
        if not self._publications_left:
            raise ValueError("more publications of weights than steps")
        self._publications_left -= 1
        intake, rules = self.intake, self.intake.rules
        self._kernel.generator_resume(self._handle, now_s, 1)
        intake.version += 1
        if rules.stale == "cancel":
            before = self._cancelled
            self._cancelled = self._kernel.generator_cancel(self._handle, now_s, intake.oldest_version)
            intake.cancel(self._cancelled_groups[before : self._cancelled].copy())
        intake.release()
        if rules.at_update in ("recompute", "restart"):
            self._kernel.generator_interrupt(self._handle, now_s, rules.resubmit_s, rules.at_update == "restart")
        self._start_groups(now_s)

    def _start_groups(self, now_s: float) -> None:
        """Start the groups that may."""
        self._kernel.generator_release(self._handle, now_s, self.intake.released)
        self._pool.check()

    def close(self) -> None:
        """Record what the timeline shows of batches that nobody took, and the running sequences."""
        untaken = range(self._taken, self._ready_s.size) if self.intake.by_target else ()
        for step in untaken:
            if self._ready_s[step] < math.inf:
                show_batch(self._trace, step, float(self._started_s[step]), float(self._ready_s[step]))
        changes = self._kernel.generator_changes(self._handle)
        self._trace.curve("running sequences", self._times_s[:changes].tolist(), self._running_at[:changes].tolist())
        if self._agents is not None:
            show_agents(self._trace, self._agents.timeline)

    def _reached(self, time_s: float) -> float:
        """A time that the generator ran to. Raises Infeasible or RuntimeError where it never comes."""
        self._pool.check()
        if math.isinf(time_s):
            raise self.intake.in_vain(bool(self._kernel.generator_is_exhausted(self._handle)))
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
