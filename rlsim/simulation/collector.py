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

from rlsim.simulation.pool import GenerationPool
from rlsim.simulation.rollout import samples_of
from rlsim.simulation.samples import Sample
from rlsim.simulation.trace import Trace
from rlsim.simulation.world import World


@dataclass
class _Target:
    """The batch of one training step.

    requests: its samples in the order of their groups. unfinished: groups without their rewards. versions: samples to
    be trained on by the version of the weights with which their group started.
    """

    requests: list[Sample]
    unfinished: int
    started_s: float = math.inf
    versions: Counter[int] = field(default_factory=Counter)


class Collector:
    """Keeps a :class:`GenerationPool` busy with the groups that may start. Times in seconds, never decreasing.

    steps: training steps simulated; targets beyond keep the pool as busy as it would be in a longer run.
    times_s, running_at: unfinished samples in the pool after every change, where the trace is detailed.
    """

    def __init__(self, world: World, trace: Trace, steps: int) -> None:
        scenario, workload = world.scenario, world.scenario.workload
        self.pool = GenerationPool(
            world.costs.iteration, world.replicas, scenario.engine.dispatch, scenario.engine.prefix_caching
        )
        self.in_flight = 0
        self.times_s: list[float] = []
        self.running_at: list[float] = []
        self._world, self._trace = world, trace
        self._lag, self._last_target = scenario.loop.policy_lag, steps - 1 + scenario.loop.policy_lag
        self._group_size, self._trained_groups = workload.generations_per_prompt, workload.prompts_per_step
        self._groups = math.ceil(workload.prompts_per_step * workload.generated_batch_factor - 1e-9)
        self._environment_s = workload.environment_s
        self._version = 0
        self._blocked = self._paused = False
        self._waiting: deque[tuple[int, int]] = deque()
        self._targets: dict[int, _Target] = {}
        self._unfinished: dict[int, int] = {}
        self._scoring: deque[tuple[float, int]] = deque()
        self._running = 0
        self._busy_s = self._busy_since_s = 0.0
        for target in range(self._lag + 1):
            self._permit(target)
        self._start_groups(0.0)

    def is_ready(self, target: int) -> bool:
        """Whether all groups of ``target`` are done."""
        return not self._targets[target].unfinished

    def take(self, target: int) -> dict[int, int]:
        """Hand the batch of ``target`` over: samples by age, the versions between their start and their training."""
        versions = self._targets.pop(target).versions
        return {target - version: samples for version, samples in versions.items()}

    def busy_s(self, now_s: float) -> float:
        """Seconds so far in which the pool had samples to generate and was not paused."""
        return self._busy_s + (now_s - self._busy_since_s if self._running and not self._paused else 0.0)

    def next_change_s(self) -> float:
        """No group is done and nothing changes in the pool earlier; past where a replica catches up on old pauses."""
        return min(self.pool.next_event_time(), self._scoring[0][0] if self._scoring else math.inf)

    def advance(self, until_s: float) -> None:
        """Run the pool up to ``until_s``, where no group is blocked or permitted before."""
        delay_s = self._environment_s
        while delay_s:
            first_s = self._scoring[0][0] if self._scoring else math.inf
            due_s = min(first_s, self.pool.next_event_time() + delay_s)
            if due_s > until_s:
                break
            self.pool.run(due_s, self._finish)
            while self._scoring and self._scoring[0][0] <= due_s:
                self._complete(*self._scoring.popleft())
        self.pool.run(until_s, self._finish)

    def block(self) -> None:
        """No more groups start."""
        self._blocked = True

    def pause(self, now_s: float, duration_s: float) -> None:
        """Stop the pool for ``duration_s`` (each replica after its iteration in progress); no more groups start."""
        self._busy_s, self._paused = self.busy_s(now_s), True
        self.block()
        self.pool.pause(now_s, duration_s)

    def resume(self, now_s: float) -> None:
        """Go on with the next version of the weights, for which one more target is permitted."""
        self._blocked = self._paused = False
        self._busy_since_s = now_s
        self._version += 1
        if self._world.scenario.loop.recompute_kv:
            self.pool.recompute_kv(now_s)
        self._permit(self._version + self._lag)
        self._start_groups(now_s)

    def _permit(self, target: int) -> None:
        """Allow the groups of ``target`` to start."""
        if target > self._last_target:
            return
        draws, acceptance = self._world.draws, self._world.acceptance
        batch, iterations = draws.batch(target), draws.iterations(target, acceptance)
        everyone = np.arange(batch.samples)
        requests = samples_of(batch, iterations, everyone, target * batch.samples, target * self._groups)
        self._targets[target] = _Target(requests, self._groups)
        self._waiting.extend((target, group) for group in range(self._groups))

    def _start_groups(self, now_s: float) -> None:
        """Start permitted groups in order, as many as may be in flight."""
        limit, size = self._groups * self._lag, self._group_size
        submitted: list[Sample] = []
        while self._waiting and self.in_flight < limit and not self._blocked:
            target, group = self._waiting.popleft()
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

    def _finish(self, when_s: float, sample: int) -> None:
        """A sample has its last token; with the last one of its group the group goes to its rewards."""
        self._change_running(when_s, -1)
        if not self._running and not self._paused:
            self._busy_s += when_s - self._busy_since_s
        group = sample // self._group_size
        left = self._unfinished[group] - 1
        self._unfinished[group] = left
        if left:
            return
        del self._unfinished[group]
        if self._environment_s:
            self._scoring.append((when_s + self._environment_s, group))
        else:
            self._complete(when_s, group)

    def _complete(self, when_s: float, group: int) -> None:
        """A group is done and with it perhaps the batch of its target; its place goes to the next group."""
        target = group // self._groups
        self.in_flight -= 1
        state = self._targets[target]
        state.unfinished -= 1
        if not state.unfinished:
            self._trace.span("generator", "generation_s", target, state.started_s, when_s, f"batch for step {target}")
        if self._waiting:
            self._start_groups(when_s)

    def _change_running(self, now_s: float, change: int) -> None:
        self._running += change
        if self._trace.detailed:
            self.times_s.append(now_s)
            self.running_at.append(float(self._running))
