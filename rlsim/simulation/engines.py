"""The inference engines of an asynchronous loop: prompt groups go in as far as they may, and are done some time after
their last tokens.

The kernel's :class:`~rlsim.simulation.kernel.engines.KernelEngines` is the same in C.
"""

import math
import sys
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

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
from rlsim.units import IntArray
from rlsim.workload.draw import DrawnWorkload

Awaited = tuple[int, int, int]
"""How many more groups somebody waits for, of those from the second number on, before the third."""
NOBODY: Awaited = (sys.maxsize, 0, 0)
"""No group is waited for."""


class Groups(Struct):
    """What groups may do, which whoever runs them changes, and what they have done. Times in seconds.

    group_size: samples of each. released: groups that may have started, as long as fewer than max_in_flight are started
    and not done, and fewer than max_done are done; ``unit`` of them start together, counted from 0. reward_s: from the
    last token of a group until it is done. paused: the engines do not count as busy. Numbers of groups: started,
    in_flight (started and not done), running (with tokens to generate), num_ended (with their last tokens), num_done;
    num_starts: how often some started. busy_s: while any ran, up to when none did; since busy_since_s some do.
    """

    group_size: int
    released: int
    max_in_flight: int
    max_done: int = sys.maxsize
    unit: int = 1
    paused: int = 0
    started: int = 0
    in_flight: int = 0
    running: int = 0
    num_ended: int = 0
    num_done: int = 0
    num_starts: int = 0
    reward_s: float = 0.0
    busy_s: float = 0.0
    busy_since_s: float = 0.0


class Engines:
    """Replicas that generate groups, which start in the order of their numbers; in the place of each that is done the
    next one does that may. Times in seconds, never decreasing from call to call.

    finish_s: when each sample had its last token; 0 before. unfinished: samples of each group that run. ended, ended_s:
    groups in the order of their last tokens, and when these were. starts, starts_s: first of the groups that started
    together, and when.
    """

    def __init__(self, groups: Groups, samples: int) -> None:
        every = samples // groups.group_size
        self.groups, self.finish_s = groups, np.zeros(samples)
        self.unfinished, self.ended, self.starts = (np.zeros(every, dtype=np.int64) for _ in range(3))
        self.ended_s, self.starts_s = np.zeros(every), np.zeros(every)
        self._oldest = 0

    @property
    def last_done_s(self) -> float:
        """When the last one of the groups that are done was."""
        return self.ended_s.item(self.groups.num_done - 1) + self.groups.reward_s

    @property
    def running(self) -> IntArray:
        """Groups with tokens to generate."""
        return np.flatnonzero(self.unfinished)

    @property
    def first_in_flight(self) -> int:
        """The group in flight that started first; the next one to start where there is none."""
        groups, unfinished = self.groups, self.unfinished
        while self._oldest < groups.started and not unfinished.item(self._oldest):  # they end for good
            self._oldest += 1
        rewarded: list[int] = self.ended[groups.num_done : groups.num_ended].tolist()
        return min((self._oldest, *rewarded))

    def _done_since(self, before: int) -> list[int]:
        """The groups that are done beyond the first ``before`` of them."""
        found: list[int] = self.ended[before : self.groups.num_done].tolist()
        return found

    def busy_s(self, now_s: float) -> float:
        """Seconds so far in which there were samples to generate and no pause."""
        groups = self.groups
        return groups.busy_s + (now_s - groups.busy_since_s if groups.running and not groups.paused else 0.0)


def trajectories_of(scenario: Scenario, workload: DrawnWorkload, prompts: int) -> Trajectories | None:
    """The trajectories of all steps of ``prompts`` each, where there are agents."""
    if scenario.workload.agent is None:
        return None
    return Trajectories.of(((step.rollouts[0], step.iterations[0]) for step in workload.steps), prompts)


class PythonEngines(Engines):
    """The :class:`Engines` in Python: the oracle of the kernel's, and what runs where that is not there.

    prompts: of a step.
    """

    def __init__(
        self, scenario: Scenario, workload: DrawnWorkload, prices: Prices, groups: Groups, prompts: int
    ) -> None:
        engine, agent = scenario.engine, scenario.workload.agent
        self._engines = GenerationPool(fleet_of(scenario, prices))
        self._pool: GenerationPool | AgentPool = self._engines
        self._trajectories = trajectories_of(scenario, workload, prompts)
        if agent is not None and self._trajectories is not None:
            self._trajectories.check_fit(prepare(prices.iteration))
            self._pool = AgentPool(self._engines, agent, self._trajectories, engine.prefix_caching)
        self._workload, self._size, self._prompts = workload, groups.group_size, prompts
        self._batch_samples = workload.steps[0].rollouts[0].batch.samples
        super().__init__(groups, len(workload.steps) * self._batch_samples)
        self._requests: tuple[int, list[Request]] = (-1, [])

    def start(self, time_s: float) -> None:
        """Start the groups that may."""
        groups, unit = self.groups, self.groups.unit
        first, places = groups.started, groups.max_in_flight - groups.in_flight
        if first >= groups.released or places <= 0 or groups.num_done >= groups.max_done:
            return  # what most groups that are done come to
        begun = -first % unit  # what is left of a unit, and others whole
        count = min(groups.released - first, places, begun + max(0, places - begun) // unit * unit)
        if not count:
            return
        if not groups.running:
            groups.busy_since_s = time_s
        self.starts[groups.num_starts], self.starts_s[groups.num_starts] = first, time_s
        groups.num_starts += 1
        groups.started += count
        groups.in_flight += count
        groups.running += count
        self.unfinished[first : first + count] = self._size
        samples = range(first * self._size, (first + count) * self._size)
        self._pool.submit(time_s, [self._request(sample) for sample in samples])

    def run(self, until_s: float, awaited: Awaited = NOBODY) -> list[int]:
        """Run until a time, or until those are done that somebody waits for; the groups that are done with it."""
        groups, before, (count, first, last) = self.groups, self.groups.num_done, awaited
        while count > 0:
            stop_s = min(until_s, self._due_s())
            while self._pool.run(stop_s, self._finish):
                # The engines may not run past when this group is done, since others start in its place then.
                stop_s = min(stop_s, self.ended_s.item(groups.num_ended - 1) + groups.reward_s)
            now_s = self._due_s()
            if math.isinf(now_s) or now_s > until_s:
                break
            while self._due_s() <= now_s:
                count -= first <= self.ended[groups.num_done] < last
                groups.num_done += 1
                groups.in_flight -= 1
                self.start(now_s)
        return self._done_since(before)

    def settle(self, time_s: float) -> None:
        """Let the engines begin what they begin at a time; nothing is done by it."""
        while self._pool.run(time_s, self._finish):
            pass

    def _due_s(self) -> float:
        """When the next of the groups that have their last tokens is done."""
        groups = self.groups
        return self.ended_s.item(groups.num_done) + groups.reward_s if groups.num_done < groups.num_ended else math.inf

    def pause(self, time_s: float, duration_s: float, action: Action = "keep") -> None:
        """Stop every replica after its iteration in progress for ``duration_s``, and do to its requests as said."""
        self._engines.pause(time_s, duration_s, action)

    def cancel(self, time_s: float, groups: Sequence[int]) -> list[int]:
        """Abort running groups; the samples that each had left."""
        left: list[int] = self.unfinished[groups].tolist()
        self.unfinished[groups] = 0
        self.groups.running -= len(groups)
        self.groups.in_flight -= len(groups)
        self._engines.cancel(time_s, {group * self._size + n for group in groups for n in range(self._size)})
        return left

    @property
    def counters(self) -> EngineCounters:
        """Counters of the engines so far."""
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
            trace.agents_shown(self._pool.timeline)

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
        groups, group = self.groups, sample // self._size
        self.finish_s[sample] = when_s
        left = self.unfinished.item(group) - 1
        if left < 0:
            return False  # it was cancelled while its last iteration was in progress
        self.unfinished[group] = left
        if left:
            return False
        self.ended[groups.num_ended], self.ended_s[groups.num_ended] = group, when_s
        groups.num_ended += 1
        groups.running -= 1
        if not groups.running and not groups.paused:
            groups.busy_s += when_s - groups.busy_since_s
        return True
