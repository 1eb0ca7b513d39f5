"""The inference engines of an asynchronous loop: prompt groups go in, and come out when they have their last tokens.

The kernel's :class:`~rlsim.simulation.kernel.engines.KernelEngines` is the same in C.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from rlsim.costs.interface import EngineCounters, Prices
from rlsim.schema.scenario import Scenario
from rlsim.simulation.agents import AgentPool
from rlsim.simulation.iteration_times import prepare
from rlsim.simulation.pool import GenerationPool, fleet_of
from rlsim.simulation.replica import Action
from rlsim.simulation.requests import EmittedTokens, Request, SampleTokens
from rlsim.simulation.rollout import samples_of
from rlsim.simulation.trace import Trace
from rlsim.simulation.trajectories import AgentCounters, Trajectories
from rlsim.units import FloatArray
from rlsim.workload.draw import DrawnWorkload

Ended = list[tuple[float, int]]
"""Groups with the time of their last token, in seconds, in that order."""


class Engines(Protocol):
    """Replicas that generate groups. Times in seconds, never decreasing from call to call.

    finish_s: when each sample had its last token; 0 before.
    """

    finish_s: FloatArray

    def start(self, time_s: float, first: int, count: int) -> None:
        """Submit the samples of the groups ``first`` to ``first`` + ``count``."""

    def run(self, until_s: float, delay_s: float) -> Ended:
        """Run until a time, or until ``delay_s`` after the first of the groups that end; these."""

    def pause(self, time_s: float, duration_s: float, action: Action = "keep") -> None:
        """Stop every replica after its iteration in progress for ``duration_s``, and do to its requests as said."""

    def cancel(self, time_s: float, groups: Sequence[int]) -> list[int]:
        """Abort groups; the samples that each had left."""

    @property
    def counters(self) -> EngineCounters:
        """What the engines did so far."""

    @property
    def agent_counters(self) -> AgentCounters | None:
        """What trajectories did so far besides generating, where there are any."""

    @property
    def peak_kv_tokens(self) -> float:
        """Most KV cache that any replica had in use, in tokens."""

    def emitted(self) -> EmittedTokens:
        """Response tokens that the engines emitted so far."""

    def in_progress(self, at_most: int) -> SampleTokens:
        """Unfinished samples and the response tokens that each has so far. at_most: how many can be."""

    def show(self, trace: Trace) -> None:
        """Record what only engines know of the timeline."""


def trajectories_of(scenario: Scenario, workload: DrawnWorkload, prompts: int) -> Trajectories | None:
    """The trajectories of all steps of ``prompts`` each, where there are agents."""
    if scenario.workload.agent is None:
        return None
    return Trajectories.of(((step.rollouts[0], step.iterations[0]) for step in workload.steps), prompts)


class PythonEngines:
    """The :class:`Engines` in Python: the oracle of the kernel's, and what runs where that is not there.

    size: samples of a group. prompts: of a step.
    """

    def __init__(self, scenario: Scenario, workload: DrawnWorkload, prices: Prices, size: int, prompts: int) -> None:
        engine, agent = scenario.engine, scenario.workload.agent
        self._engines = GenerationPool(fleet_of(scenario, prices))
        self._pool: GenerationPool | AgentPool = self._engines
        self._trajectories = trajectories_of(scenario, workload, prompts)
        if agent is not None and self._trajectories is not None:
            self._trajectories.check_fit(prepare(prices.iteration))
            self._pool = AgentPool(self._engines, agent, self._trajectories, engine.prefix_caching)
        self._workload, self._size, self._prompts = workload, size, prompts
        self._batch_samples = workload.steps[0].rollouts[0].batch.samples
        self.finish_s = np.zeros(len(workload.steps) * self._batch_samples)
        self._unfinished: dict[int, int] = {}
        self._ended: Ended = []
        self._requests: tuple[int, list[Request]] = (-1, [])

    def start(self, time_s: float, first: int, count: int) -> None:
        """Submit the samples of the groups ``first`` to ``first`` + ``count``."""
        self._unfinished |= dict.fromkeys(range(first, first + count), self._size)
        samples = range(first * self._size, (first + count) * self._size)
        self._pool.submit(time_s, [self._request(sample) for sample in samples])

    def run(self, until_s: float, delay_s: float) -> Ended:
        """Run until a time, or until ``delay_s`` after the first of the groups that end; these."""
        self._ended = []
        while self._pool.run(until_s, self._finish):
            until_s = min(until_s, self._ended[-1][0] + delay_s)
        return self._ended

    def pause(self, time_s: float, duration_s: float, action: Action = "keep") -> None:
        """Stop every replica after its iteration in progress for ``duration_s``, and do to its requests as said."""
        self._engines.pause(time_s, duration_s, action)

    def cancel(self, time_s: float, groups: Sequence[int]) -> list[int]:
        """Abort groups; the samples that each had left."""
        left = [self._unfinished.pop(group) for group in groups]
        self._engines.cancel(time_s, {group * self._size + n for group in groups for n in range(self._size)})
        return left

    @property
    def counters(self) -> EngineCounters:
        """What the engines did so far."""
        return self._engines.counters

    @property
    def agent_counters(self) -> AgentCounters | None:
        """What trajectories did so far besides generating, where there are any."""
        return self._pool.agent_counters if isinstance(self._pool, AgentPool) else None

    @property
    def peak_kv_tokens(self) -> float:
        """Most KV cache that any replica had in use, in tokens."""
        return self._engines.peak_kv_tokens

    def emitted(self) -> EmittedTokens:
        """Response tokens that the engines emitted so far."""
        return self._engines.emitted

    def in_progress(self, at_most: int) -> SampleTokens:
        """Unfinished samples and the response tokens that each has so far. at_most: how many can be."""
        found = list(self._engines.in_progress())
        samples, tokens = ([one[column] for one in found] for column in (0, 1))
        return np.array(samples, dtype=np.int64), np.array(tokens, dtype=np.float64)

    def show(self, trace: Trace) -> None:
        """Record what only engines know of the timeline."""
        if isinstance(self._pool, AgentPool):
            self._pool.timeline.show(trace)

    def _request(self, sample: int) -> Request:
        """A sample as a request; those of its batch are drawn up together and forgotten with the next batch."""
        batch, number = divmod(sample, self._batch_samples)
        if self._requests[0] != batch:
            drawn = self._workload.steps[batch]
            samples, iterations = drawn.rollouts[0].batch, drawn.iterations[0]
            first, numbers = batch * samples.samples, range(samples.samples)
            if self._trajectories is not None:
                found = [self._trajectories.first_request(first + number) for number in numbers]
            else:
                found = samples_of(samples, iterations, np.array(numbers), first, batch * self._prompts)
            self._requests = batch, found
        return self._requests[1][number]

    def _finish(self, when_s: float, sample: int, replica: int) -> bool:
        """A sample has its last token; whether its group ends with it."""
        group = sample // self._size
        self.finish_s[sample] = when_s
        left = self._unfinished.get(group, 0) - 1
        if left > 0:
            self._unfinished[group] = left
        if left:
            return False  # some are left, or it was cancelled while its last iteration was in progress
        del self._unfinished[group]
        self._ended.append((when_s, group))
        return True
