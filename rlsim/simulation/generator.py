"""Generation side of an asynchronous loop: which prompt groups may start, which are in flight, which are done.

Semantics of NeMo-RL v0.7 (``async_utils/trajectory_collector.py``, ``replay_buffer.py``): a group belongs to one target
step for good; with weights of version v groups for targets v + 1 .. v + lag may start (0 .. lag on the first weights),
with at most prompts_per_step x lag in flight; a group is done when its last sample has its reward; the trainer of step
v takes exactly the groups with target v, so one straggling group stalls its step.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np
import simpy

from rlsim.costs.interface import Prices
from rlsim.schema.scenario import Scenario
from rlsim.simulation.pool import GenerationPool
from rlsim.simulation.requests import Request
from rlsim.simulation.rollout import samples_of
from rlsim.simulation.trace import Process, Trace
from rlsim.workload.draw import DrawnWorkload


@dataclass
class _Target:
    """The batch of one training step.

    requests: its samples in the order of their groups. unfinished: groups without their rewards. versions: samples to
    be trained on by the version of the weights with which their group started. ready: triggered with the last group.
    """

    requests: list[Request]
    unfinished: int
    ready: simpy.Event
    started_s: float = math.inf
    versions: Counter[int] = field(default_factory=Counter)


class Generator:
    """The generation pool as a SimPy process, kept busy with the groups that may start. Times in seconds.

    times_s, running_at: unfinished samples in the pool after every change, where the trace is detailed. Whoever acts on
    the generator at a moment first lets it book what has finished by then (:meth:`_settle`).
    """

    def __init__(
        self, env: simpy.Environment, scenario: Scenario, workload: DrawnWorkload, prices: Prices, trace: Trace
    ) -> None:
        engine, section = scenario.engine, scenario.workload
        self.pool = GenerationPool(prices.iteration, prices.replicas, engine.dispatch, engine.prefix_caching)
        self.in_flight = 0
        self.times_s: list[float] = []
        self.running_at: list[float] = []
        self._env, self._workload, self._trace = env, workload, trace
        self._lag, self._recompute_kv = scenario.loop.policy_lag, scenario.loop.recompute_kv
        self._group_size, self._trained_groups = section.generations_per_prompt, section.prompts_per_step
        self._groups = math.ceil(section.prompts_per_step * section.generated_batch_factor - 1e-9)
        self._environment_s = section.environment_s
        self._version = 0
        self._blocked = self._paused = False
        self._released: deque[tuple[int, int]] = deque()
        self._targets: dict[int, _Target] = {}
        self._unfinished: dict[int, int] = {}
        self._scoring: deque[tuple[float, int]] = deque()
        self._drained: simpy.Event | None = None
        self._running = 0
        self._busy_s = self._busy_since_s = 0.0
        for target in range(self._lag + 1):
            self._release_target(target)
        self._start_groups(0.0)

    def generate(self) -> Process:
        """The process: sleeps from one completed group to the next, at most until somebody else acts."""
        while True:
            # Nobody acts before the next event in SimPy's queue, so the pool may run that far in one go.
            when_s = self._run_to(self._env.peek())
            if math.isinf(when_s):
                raise RuntimeError("the trainer waits for prompt groups that nobody generates")
            yield self._env.timeout(max(0.0, when_s - self._env.now))
            self._settle()

    def batch_ready(self, target: int) -> simpy.Event:
        """Triggered when all groups of ``target`` are done."""
        return self._targets[target].ready

    def take(self, target: int) -> dict[int, int]:
        """Hand the batch of ``target`` over: samples by age, the versions between their start and their training."""
        versions = self._targets.pop(target).versions
        return {target - version: samples for version, samples in versions.items()}

    def busy_s(self) -> float:
        """Seconds so far in which the pool had samples to generate and was not paused."""
        self._settle()
        return self._busy_s + (self._env.now - self._busy_since_s if self._running and not self._paused else 0.0)

    def block(self) -> simpy.Event:
        """No more groups start; triggered when none is in flight."""
        self._settle()
        self._blocked = True
        self._drained = self._env.event()
        if not self.in_flight:
            self._drained.succeed()
        return self._drained

    def pause(self, duration_s: float) -> None:
        """Stop the pool for ``duration_s`` (each replica after its iteration in progress); no more groups start."""
        self._busy_s, self._paused = self.busy_s(), True
        self._blocked = True
        self.pool.pause(self._env.now, duration_s)

    def publish_weights(self) -> None:
        """Go on with the next version of the weights, for which one more target is released."""
        self._settle()
        self._blocked = self._paused = False
        self._drained = None
        self._busy_since_s = self._env.now
        self._version += 1
        if self._recompute_kv:
            self.pool.recompute_kv(self._env.now)
        self._release_target(self._version + self._lag)
        self._start_groups(self._env.now)

    def _run_to(self, limit_s: float) -> float:
        """Run the pool until a group has its rewards; that time, or ``limit_s`` where none has before."""
        while True:
            until_s = min(limit_s, self._scoring[0][0] if self._scoring else math.inf)
            if not self.pool.run(until_s, self._finish):
                return until_s

    def _settle(self) -> None:
        """Book everything up to now."""
        now_s = float(self._env.now)
        while True:
            when_s = self._run_to(now_s)
            if not self._scoring or self._scoring[0][0] > now_s:
                return
            while self._scoring and self._scoring[0][0] <= when_s:
                self._complete(*self._scoring.popleft())

    def _release_target(self, target: int) -> None:
        """Allow the groups of ``target`` to start."""
        if target >= len(self._workload.steps):
            return
        drawn = self._workload.steps[target]
        batch, iterations = drawn.rollouts[0].batch, drawn.iterations[0]
        everyone = np.arange(batch.samples)
        requests = samples_of(batch, iterations, everyone, target * batch.samples, target * self._groups)
        self._targets[target] = _Target(requests, self._groups, self._env.event())
        self._released.extend((target, group) for group in range(self._groups))

    def _start_groups(self, now_s: float) -> None:
        """Start released groups in order, as many as may be in flight."""
        limit, size = self._groups * self._lag, self._group_size
        submitted: list[Request] = []
        while self._released and self.in_flight < limit and not self._blocked:
            target, group = self._released.popleft()
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
        if not state.unfinished:
            self._trace.span("generator", "generation_s", target, state.started_s, when_s, f"batch for step {target}")
            state.ready.succeed()
        if self._drained is not None and not self.in_flight:
            self._drained.succeed()
        if self._released:
            self._start_groups(when_s)

    def _change_running(self, now_s: float, change: int) -> None:
        self._running += change
        if self._trace.detailed:
            self.times_s.append(now_s)
            self.running_at.append(float(self._running))
