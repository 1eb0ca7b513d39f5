"""Generation side of an asynchronous loop: which prompt groups may start, which are in flight, which are done.

Semantics of NeMo-RL v0.7 (``async_utils/trajectory_collector.py``, ``replay_buffer.py``): a group belongs to one target
step for good; with weights of version v groups for targets v + 1 .. v + lag may start (0 .. lag on the first weights),
with at most prompts_per_step x lag in flight; a group is done when its last sample has its reward; the trainer of step
v takes exactly the groups with target v, so one straggling group stalls its step. With ``start_unit`` batch the groups
of a target start together, once so many fewer than the limit are in flight.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from rlsim.costs.interface import EngineCounters, Prices
from rlsim.schema.scenario import Scenario
from rlsim.simulation.agent_counters import AgentCounters
from rlsim.simulation.agent_timeline import show_agents
from rlsim.simulation.agents import AgentPool
from rlsim.simulation.iteration_times import prepare
from rlsim.simulation.pool import GenerationPool
from rlsim.simulation.requests import Request
from rlsim.simulation.rollout import samples_of
from rlsim.simulation.trace import Trace
from rlsim.simulation.trajectories import Trajectories
from rlsim.workload.draw import DrawnWorkload


class Generator(Protocol):
    """The generation pool of an asynchronous loop, kept busy with the groups that may start. Times in seconds.

    Time passes only in its calls, which come in order of their ``now_s``. times_s, running_at: unfinished samples in
    the pool after every change, where the trace is detailed. counters: what the engines did so far.
    """

    @property
    def counters(self) -> EngineCounters:
        """What the engines did so far."""

    @property
    def agent_counters(self) -> AgentCounters | None:
        """What trajectories did so far besides generating, where there are any."""

    @property
    def peak_kv_tokens(self) -> float:
        """Most KV cache that any replica had in use, in tokens."""

    @property
    def in_flight(self) -> int:
        """Groups that have started and are not done."""

    def advance_to(self, now_s: float) -> None:
        """Book everything up to now."""

    def batch_ready(self, target: int, now_s: float) -> float:
        """When all groups of ``target`` are done, not before ``now_s``. Raises RuntimeError where nobody makes them."""

    def take(self, target: int) -> dict[int, int]:
        """Hand the batch of ``target`` over: samples by age, the versions between their start and their training."""

    def busy_s(self, now_s: float) -> float:
        """Seconds so far in which the pool had samples to generate and was not paused."""

    def drain(self, now_s: float) -> float:
        """Start no more groups until weights are published; when none is in flight."""

    def pause(self, now_s: float, duration_s: float) -> None:
        """Stop the pool for ``duration_s`` (each replica after its iteration in progress); no more groups start."""

    def publish_weights(self, now_s: float) -> None:
        """Go on with the next version of the weights, for which one more target is released."""

    def close(self) -> None:
        """Record what the timeline shows of batches that nobody took, and the running sequences."""


NOBODY_GENERATES = "the trainer waits for prompt groups that nobody generates"


def trajectories_of(scenario: Scenario, workload: DrawnWorkload) -> Trajectories | None:
    """The trajectories of all steps, where there are agents."""
    if scenario.workload.agent is None:
        return None
    drawn = ((step.rollouts[0], step.iterations[0]) for step in workload.steps)
    return Trajectories.of(drawn, groups_per_step(scenario))


def groups_per_step(scenario: Scenario) -> int:
    """Prompt groups generated for a step, those dropped before training included."""
    section = scenario.workload
    return math.ceil(section.prompts_per_step * section.generated_batch_factor - 1e-9)


def show_batch(trace: Trace, target: int, started_s: float, ready_s: float) -> None:
    """Draw the generation of the batch of ``target``."""
    trace.span("generator", "generation_s", target, started_s, ready_s, f"batch for step {target}")


@dataclass
class _Target:
    """The batch of one training step.

    requests: its samples in the order of their groups. unfinished: groups without their rewards. versions: samples to
    be trained on by the version of the weights with which their group started. ready_s: when the last group was done.
    """

    requests: list[Request]
    unfinished: int
    started_s: float = math.inf
    ready_s: float = math.inf
    versions: Counter[int] = field(default_factory=Counter)


class PythonGenerator:
    """The :class:`Generator` in Python, the reference of the kernel's.

    Whoever acts on it at a moment first lets it book what has finished by then (:meth:`advance_to`).
    """

    def __init__(self, scenario: Scenario, workload: DrawnWorkload, prices: Prices, trace: Trace) -> None:
        engine, section = scenario.engine, scenario.workload
        pool = GenerationPool(prices.iteration, prices.replicas, engine.dispatch, engine.prefix_caching)
        self._trajectories = trajectories_of(scenario, workload)
        self.pool: GenerationPool | AgentPool = pool
        if self._trajectories is not None and section.agent is not None:
            self._trajectories.check_fit(prepare(prices.iteration))
            self.pool = AgentPool(pool, section.agent, self._trajectories, engine.prefix_caching)
        self.in_flight = 0
        self.times_s: list[float] = []
        self.running_at: list[float] = []
        self._workload, self._trace = workload, trace
        self._lag, self._recompute_kv = scenario.loop.policy_lag, scenario.loop.recompute_kv
        self._group_size, self._trained_groups = section.generations_per_prompt, section.prompts_per_step
        self._groups = groups_per_step(scenario)
        self._whole_batches = scenario.loop.start_unit == "batch"
        self._environment_s = section.environment_s
        self._version = 0
        self._blocked = self._paused = False
        self._released: deque[tuple[int, int]] = deque()
        self._targets: dict[int, _Target] = {}
        self._unfinished: dict[int, int] = {}
        self._scoring: deque[tuple[float, int]] = deque()
        self._last_done_s = 0.0
        self._running = 0
        self._busy_s = self._busy_since_s = 0.0
        for target in range(self._lag + 1):
            self._release_target(target)
        self._start_groups(0.0)

    @property
    def counters(self) -> EngineCounters:
        """What the engines did so far."""
        return self.pool.counters

    @property
    def agent_counters(self) -> AgentCounters | None:
        """What trajectories did so far besides generating, where there are any."""
        return self.pool.agent_counters if isinstance(self.pool, AgentPool) else None

    @property
    def peak_kv_tokens(self) -> float:
        """Most KV cache that any replica had in use, in tokens."""
        return self.pool.peak_kv_tokens

    def advance_to(self, now_s: float) -> None:
        """Book everything up to now."""
        while True:
            when_s = self._run_to(now_s)
            if not self._scoring or self._scoring[0][0] > now_s:
                return
            while self._scoring and self._scoring[0][0] <= when_s:
                self._complete(*self._scoring.popleft())

    def batch_ready(self, target: int, now_s: float) -> float:
        """When all groups of ``target`` are done, not before ``now_s``. Raises RuntimeError where nobody makes them."""
        state = self._targets[target]
        while state.unfinished:
            self._advance_to_reward()
        return max(now_s, state.ready_s)

    def take(self, target: int) -> dict[int, int]:
        """Hand the batch of ``target`` over: samples by age, the versions between their start and their training."""
        state = self._targets.pop(target)
        show_batch(self._trace, target, state.started_s, state.ready_s)
        return {target - version: samples for version, samples in state.versions.items()}

    def busy_s(self, now_s: float) -> float:
        """Seconds so far in which the pool had samples to generate and was not paused."""
        self.advance_to(now_s)
        return self._busy_s + (now_s - self._busy_since_s if self._running and not self._paused else 0.0)

    def drain(self, now_s: float) -> float:
        """Start no more groups until weights are published; when none is in flight."""
        self.advance_to(now_s)
        self._blocked = True
        if not self.in_flight:
            return now_s
        while self.in_flight:
            self._advance_to_reward()
        return self._last_done_s

    def pause(self, now_s: float, duration_s: float) -> None:
        """Stop the pool for ``duration_s`` (each replica after its iteration in progress); no more groups start."""
        self._busy_s = self.busy_s(now_s)
        self._paused = self._blocked = True
        self.pool.pause(now_s, duration_s)

    def publish_weights(self, now_s: float) -> None:
        """Go on with the next version of the weights, for which one more target is released."""
        self.advance_to(now_s)
        self._blocked = self._paused = False
        self._busy_since_s = now_s
        self._version += 1
        if self._recompute_kv:
            self.pool.recompute_kv(now_s)
        self._release_target(self._version + self._lag)
        self._start_groups(now_s)

    def close(self) -> None:
        """Record what the timeline shows of batches that nobody took, and the running sequences."""
        for target, state in self._targets.items():
            if not state.unfinished:
                show_batch(self._trace, target, state.started_s, state.ready_s)
        self._trace.curve("running sequences", self.times_s, self.running_at)
        if isinstance(self.pool, AgentPool):
            show_agents(self._trace, self.pool.timeline)

    def _advance_to_reward(self) -> None:
        """Run on to the next groups that are done."""
        when_s = self._run_to(math.inf)
        if math.isinf(when_s):
            raise RuntimeError(NOBODY_GENERATES)
        self.advance_to(when_s)

    def _run_to(self, limit_s: float) -> float:
        """Run the pool until a group has its rewards; that time, or ``limit_s`` where none has before."""
        while True:
            until_s = min(limit_s, self._scoring[0][0] if self._scoring else math.inf)
            if not self.pool.run(until_s, self._finish):
                return until_s

    def _release_target(self, target: int) -> None:
        """Allow the groups of ``target`` to start."""
        if target >= len(self._workload.steps):
            return
        drawn = self._workload.steps[target]
        batch, iterations = drawn.rollouts[0].batch, drawn.iterations[0]
        first = target * batch.samples
        if self._trajectories is not None:
            requests = [self._trajectories.first_request(first + number) for number in range(batch.samples)]
        else:
            requests = samples_of(batch, iterations, np.arange(batch.samples), first, target * self._groups)
        self._targets[target] = _Target(requests, self._groups)
        self._released.extend((target, group) for group in range(self._groups))

    def _start_groups(self, now_s: float) -> None:
        """Start released groups in order, as many as may be in flight."""
        limit, size = self._groups * self._lag, self._group_size
        submitted: list[Request] = []
        while self._released and self.in_flight < limit and not self._blocked:
            target, group = self._released[0]
            if self._whole_batches and not group and self.in_flight + self._groups > limit:
                break
            self._released.popleft()
            state = self._targets[target]
            submitted += state.requests[group * size : (group + 1) * size]
            state.started_s = min(state.started_s, now_s)
            if group < self._trained_groups:
                state.versions[self._version] += size
            self._unfinished[target * self._groups + group] = size
            self.in_flight += 1
        if submitted:
            if not self._running:
                self._busy_since_s = now_s
            self._change_running(now_s, len(submitted))
            self.pool.submit(now_s, submitted)

    def _finish(self, when_s: float, sample: int, replica: int) -> bool:
        """A sample has its last token; with the last one of its group the group goes to its rewards."""
        self._change_running(when_s, -1)
        if not self._running and not self._paused:
            self._busy_s += when_s - self._busy_since_s
        group = sample // self._group_size
        left = self._unfinished[group] - 1
        self._unfinished[group] = left
        if left:
            return False
        del self._unfinished[group]
        self._scoring.append((when_s + self._environment_s, group))
        return True

    def _complete(self, when_s: float, group: int) -> None:
        """A group is done and with it perhaps the batch of its target; its place goes to the next group."""
        target = group // self._groups
        self.in_flight -= 1
        state = self._targets[target]
        state.unfinished -= 1
        self._last_done_s = when_s
        if not state.unfinished:
            state.ready_s = when_s
        if self._released:
            self._start_groups(when_s)

    def _change_running(self, now_s: float, change: int) -> None:
        self._running += change
        if self._trace.detailed:
            self.times_s.append(now_s)
            self.running_at.append(float(self._running))
