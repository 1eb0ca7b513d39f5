"""Generation side of an asynchronous loop: which prompt groups may start, which are in flight, which are done.

A group may start when the rules of :mod:`rlsim.simulation.intake` allow it and fewer than their limit are in flight,
and is done when its last sample has its reward. With groups bound to their steps (NeMo-RL v0.7:
``async_utils/trajectory_collector.py``, ``replay_buffer.py``) the trainer of step v takes exactly the groups started
for it, so one straggling group stalls its step; else it takes what is done first. Where the loop's unit is a batch, the
groups of a step start together, once so many fewer than the limit are in flight.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rlsim.costs.interface import EngineCounters, Prices
from rlsim.schema.scenario import Scenario
from rlsim.simulation.agent_counters import AgentCounters
from rlsim.simulation.agent_timeline import show_agents
from rlsim.simulation.agents import AgentPool
from rlsim.simulation.intake import BoolArray, Intake, IntArray, groups_per_step
from rlsim.simulation.iteration_times import prepare
from rlsim.simulation.pool import GenerationPool
from rlsim.simulation.requests import Request
from rlsim.simulation.rollout import samples_of
from rlsim.simulation.running_batch import EmittedTokens
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

    def batch_ready(self, step: int, now_s: float) -> float:
        """When the batch of ``step`` is done, not before ``now_s``. Raises RuntimeError where nobody makes it."""

    def take(self, step: int, now_s: float) -> IntArray:
        """Hand the batch of ``step`` over, once it is ready; its groups."""

    @property
    def intake(self) -> Intake:
        """Which groups were taken and may start."""

    @property
    def in_progress_tokens(self) -> float:
        """Response tokens that unfinished samples have so far."""

    @property
    def emitted(self) -> EmittedTokens:
        """Response tokens that the engines emitted so far."""

    @property
    def finished(self) -> BoolArray:
        """Whether each sample has its last token."""

    def busy_s(self, now_s: float) -> float:
        """Seconds so far in which the pool had samples to generate and was not paused."""

    def drain(self, now_s: float) -> float:
        """Start no more groups until weights are published; when none is in flight."""

    def pause(self, now_s: float, duration_s: float) -> None:
        """Stop the pool for ``duration_s`` (each replica after its iteration in progress); no more groups start."""

    def resume(self, now_s: float) -> None:
        """Go on after a pause without new weights."""

    def publish_weights(self, now_s: float) -> None:
        """Go on with the next version of the weights; running requests as the rules say."""

    def close(self) -> None:
        """Record what the timeline shows of batches that nobody took, and the running sequences."""


def trajectories_of(scenario: Scenario, workload: DrawnWorkload) -> Trajectories | None:
    """The trajectories of all steps, where there are agents."""
    if scenario.workload.agent is None:
        return None
    drawn = ((step.rollouts[0], step.iterations[0]) for step in workload.steps)
    return Trajectories.of(drawn, groups_per_step(scenario))


def show_batch(trace: Trace, step: int, started_s: float, ready_s: float) -> None:
    """Draw the generation of the batch of ``step``."""
    trace.span("generator", "generation_s", step, started_s, ready_s, f"batch for step {step}")


@dataclass
class _Batch:
    """The groups generated for one step: how many are not done, and when the first started and the last was done."""

    unfinished: int
    started_s: float = math.inf
    ready_s: float = math.inf


class PythonGenerator:
    """The :class:`Generator` in Python, the reference of the kernel's.

    Whoever acts on it at a moment first lets it book what has finished by then (:meth:`advance_to`).
    """

    def __init__(self, scenario: Scenario, workload: DrawnWorkload, prices: Prices, trace: Trace) -> None:
        engine, section = scenario.engine, scenario.workload
        pool = GenerationPool(prices.iteration, prices.replicas, engine.dispatch, engine.prefix_caching)
        self._engines = pool
        self.pool: GenerationPool | AgentPool = pool
        self._trajectories = trajectories_of(scenario, workload)
        if section.agent is not None and self._trajectories is not None:
            self._trajectories.check_fit(prepare(prices.iteration))
            self.pool = AgentPool(pool, section.agent, self._trajectories, engine.prefix_caching)
        self.in_flight = 0
        self.times_s: list[float] = []
        self.running_at: list[float] = []
        self.intake = Intake(scenario, workload)
        self._workload, self._trace = workload, trace
        self._prompt_groups = groups_per_step(scenario)
        self._environment_s = section.environment_s
        self._blocked = self._paused = False
        self._next_group = self._taken = 0
        self._batches = [_Batch(self.intake.batch) for _ in workload.steps]
        self._requests: dict[int, list[Request]] = {}
        self._unfinished: dict[int, int] = {}
        self._scoring: deque[tuple[float, int]] = deque()
        self._done: list[int] = []
        self._finished = np.zeros(self.intake.started_version.size * self.intake.size, dtype=np.bool_)
        self._last_done_s = 0.0
        self._looked_at = 0
        self._running = 0
        self._busy_s = self._busy_since_s = 0.0
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

    @property
    def in_progress_tokens(self) -> float:
        """Response tokens that unfinished samples have so far."""
        return self._engines.in_progress_tokens

    @property
    def emitted(self) -> EmittedTokens:
        """Response tokens that the engines emitted so far."""
        return self._engines.emitted

    @property
    def finished(self) -> BoolArray:
        """Whether each sample has its last token."""
        return self._finished

    def advance_to(self, now_s: float) -> None:
        """Book everything up to now."""
        while True:
            when_s = self._run_to(now_s)
            if not self._scoring or self._scoring[0][0] > now_s:
                return
            while self._scoring and self._scoring[0][0] <= when_s:
                self._complete(*self._scoring.popleft())

    def batch_ready(self, step: int, now_s: float) -> float:
        """When the batch of ``step`` is done, not before ``now_s``. Raises RuntimeError where nobody makes it."""
        self.advance_to(now_s)
        if self.intake.by_target:
            while self._batches[step].unfinished:
                self._advance_to_reward()
            return max(now_s, self._batches[step].ready_s)
        wanted = self.intake.usable
        while wanted:
            if self._looked_at == len(self._done):
                self._advance_to_reward()
                now_s = max(now_s, self._last_done_s)
                continue
            group = self._done[self._looked_at]
            self._looked_at += 1
            if self.intake.is_wanted(group):
                wanted -= 1
            else:
                self.intake.replace()
                self._start_groups(now_s)
        return now_s

    def take(self, step: int, now_s: float) -> IntArray:
        """Hand the batch of ``step`` over, once it is ready; its groups."""
        self.advance_to(now_s)
        done = np.array(self._done[self.intake.position : self._looked_at], dtype=np.int64)
        groups = self.intake.take(step, done)
        if self.intake.by_target:
            show_batch(self._trace, step, self._batches[step].started_s, self._batches[step].ready_s)
        self._taken = step + 1
        if self.intake.rules.at_take:
            self._start_groups(now_s)
        return groups

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

    def resume(self, now_s: float) -> None:
        """Go on after a pause without new weights."""
        self.advance_to(now_s)
        self._blocked = self._paused = False
        self._busy_since_s = now_s
        self._start_groups(now_s)

    def publish_weights(self, now_s: float) -> None:
        """Go on with the next version of the weights; running requests as the rules say."""
        self.advance_to(now_s)
        self._blocked = self._paused = False
        self._busy_since_s = now_s
        rules = self.intake.rules
        self.intake.version += 1
        if rules.stale == "cancel":
            self._cancel_stale(now_s)
        self.intake.release()
        if rules.at_update == "recompute":
            self.pool.recompute_kv(now_s, rules.resubmit_s)
        elif rules.at_update == "restart":
            self._engines.restart(now_s, rules.resubmit_s)
        self._start_groups(now_s)

    def close(self) -> None:
        """Record what the timeline shows of batches that nobody took, and the running sequences."""
        if self.intake.by_target:
            for step in range(self._taken, len(self._batches)):
                if not self._batches[step].unfinished:
                    show_batch(self._trace, step, self._batches[step].started_s, self._batches[step].ready_s)
        self._trace.curve("running sequences", self.times_s, self.running_at)
        if isinstance(self.pool, AgentPool):
            show_agents(self._trace, self.pool.timeline)

    def _advance_to_reward(self) -> None:
        """Run on to the next groups that are done."""
        when_s = self._run_to(math.inf)
        if math.isinf(when_s):
            raise self.intake.in_vain(self._next_group == self.intake.started_version.size)
        self.advance_to(when_s)

    def _run_to(self, limit_s: float) -> float:
        """Run the pool until a group has its rewards; that time, or ``limit_s`` where none has before."""
        while True:
            until_s = min(limit_s, self._scoring[0][0] if self._scoring else math.inf)
            if not self.pool.run(until_s, self._finish):
                return until_s

    def _requests_of(self, batch: int) -> list[Request]:
        """The samples of a batch, drawn up when its first group starts and forgotten with the next batch."""
        if batch not in self._requests:
            self._requests.clear()
            drawn = self._workload.steps[batch]
            samples, iterations = drawn.rollouts[0].batch, drawn.iterations[0]
            first = batch * samples.samples
            if self._trajectories is not None:
                found = [self._trajectories.first_request(first + number) for number in range(samples.samples)]
            else:
                numbers = np.arange(samples.samples)
                found = samples_of(samples, iterations, numbers, first, batch * self._prompt_groups)
            self._requests[batch] = found
        return self._requests[batch]

    def _start_groups(self, now_s: float) -> None:
        """Start the groups that may, in order, as many as may be in flight."""
        intake = self.intake
        size, limit = intake.size, intake.max_in_flight
        submitted: list[Request] = []
        while self._next_group < intake.released and self.in_flight < limit and not self._blocked:
            batch, number = divmod(self._next_group, intake.batch)
            if intake.rules.unit == "batch" and not number and self.in_flight + intake.batch > limit:
                break
            submitted += self._requests_of(batch)[number * size : (number + 1) * size]
            self._batches[batch].started_s = min(self._batches[batch].started_s, now_s)
            intake.started_version[self._next_group] = intake.version
            self._unfinished[self._next_group] = size
            self._next_group += 1
            self.in_flight += 1
        if submitted:
            if not self._running:
                self._busy_since_s = now_s
            self._change_running(now_s, len(submitted))
            self.pool.submit(now_s, submitted)

    def _cancel_stale(self, now_s: float) -> None:
        """Abort the groups in flight that are too old to be trained on."""
        oldest, size = self.intake.oldest_version, self.intake.size
        stale = [group for group in self._unfinished if self.intake.started_version[group] < oldest]
        for group in stale:
            self._change_running(now_s, -self._unfinished.pop(group))
        if stale:
            self.in_flight -= len(stale)
            self.intake.cancel(np.array(stale, dtype=np.int64))
            self._engines.cancel(now_s, {group * size + number for group in stale for number in range(size)})

    def _finish(self, when_s: float, sample: int, replica: int) -> bool:
        """A sample has its last token; with the last one of its group the group goes to its rewards."""
        group = sample // self.intake.size
        self._finished[sample] = True
        if group not in self._unfinished:
            return False  # cancelled while its last iteration was in progress
        self._change_running(when_s, -1)
        if not self._running and not self._paused:
            self._busy_s += when_s - self._busy_since_s
        left = self._unfinished[group] - 1
        self._unfinished[group] = left
        if left:
            return False
        del self._unfinished[group]
        self._scoring.append((when_s + self._environment_s, group))
        return True

    def _complete(self, when_s: float, group: int) -> None:
        """A group is done and with it perhaps its batch; its place goes to the next group."""
        self.in_flight -= 1
        batch = self._batches[group // self.intake.batch]
        batch.unfinished -= 1
        self._last_done_s = when_s
        self._done.append(group)
        if not batch.unfinished:
            batch.ready_s = when_s
        self._start_groups(when_s)

    def _change_running(self, now_s: float, change: int) -> None:
        self._running += change
        if self._trace.detailed:
            self.times_s.append(now_s)
            self.running_at.append(float(self._running))
