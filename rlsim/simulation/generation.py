"""Generation side of an asynchronous loop: prompt groups that start, run, get their rewards and are taken.

A group may start when the rules of :mod:`rlsim.simulation.intake` allow it and fewer than their limit are in flight,
and is done when its last sample has its reward. With groups bound to their steps (NeMo-RL v0.7:
``async_utils/trajectory_collector.py``, ``replay_buffer.py``) the trainer of step v takes exactly the groups started
for it, so one straggling group stalls its step; else it takes what is done first. Where the loop's unit is a batch, the
groups of a step start together, once so many fewer than the limit are in flight.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from heapq import heappush
from typing import Any

import numpy as np
import simpy

from rlsim.costs.interface import Prices
from rlsim.schema.scenario import Scenario
from rlsim.simulation.intake import Intake
from rlsim.simulation.kernel.engines import engines_of
from rlsim.simulation.requests import SampleTokens
from rlsim.simulation.trace import Process, Trace
from rlsim.units import FloatArray, IntArray
from rlsim.workload.draw import DrawnWorkload

FIRST, USUAL, LAST = range(3)
"""Order of what happens at one time: rewards of groups, the trainer's acts, engines that go on."""


class Clock(simpy.Environment):
    """SimPy's environment with events at given times: a delay from now on would round them."""

    def at(self, time_s: float, priority: int = USUAL) -> simpy.Event:
        """An event at a time in seconds, not before now."""
        event = simpy.Event(self)
        event._ok, event._value = True, None
        entry: Any = (time_s, priority, next(self._eid), event)
        heappush(self._queue, entry)
        return event

    def advance(self, time_s: float) -> None:
        """Go on to a time in seconds not after the next event: most groups that are done concern nobody else."""
        self._now = time_s


class Generation:
    """The generation pool of an asynchronous loop, kept busy with the groups that may start."""

    def __init__(self, clock: Clock, scenario: Scenario, workload: DrawnWorkload, prices: Prices, trace: Trace) -> None:
        self.clock, self._trace = clock, trace
        self.intake = Intake(scenario, workload)
        self.engines = engines_of(scenario, workload, prices, self.intake.size, detailed=trace.detailed)
        self.in_flight = 0
        self._environment_s = scenario.workload.environment_s
        self._blocked = self._paused = False
        self._next_group = self._looked_at = self._taken = self._wanted = 0
        self._open = [self.intake.batch] * self.intake.steps
        self._started_s, self._ready_s = [math.inf] * self.intake.steps, [math.inf] * self.intake.steps
        self._rewards: deque[tuple[float, int]] = deque()
        self._done: list[int] = []
        self._awaited: tuple[Callable[[], bool], simpy.Event] | None = None
        self._running: dict[int, None] = {}
        self._busy_s = self._busy_since_s = 0.0
        self._changes: list[tuple[float, int, int]] = []
        self._cancelled: list[tuple[float, IntArray]] = []
        self._start_groups()

    def run(self) -> Process:
        """The process of the engines: they run ahead to the next moment at which anybody acts, in one call.

        Raises what :meth:`Intake.in_vain` says where a trainer waits for groups that nobody generates.
        """
        clock, rewards = self.clock, self._rewards
        until_s = clock.peek()
        while True:
            due_s = rewards[0][0] if rewards else math.inf
            self._run_engines(min(until_s, due_s))
            if rewards and rewards[0][0] <= until_s:
                due_s = rewards[0][0]
                clock.advance(due_s)
                while rewards and rewards[0][0] <= due_s:
                    self._complete(rewards.popleft()[1])
                if self._wake():
                    until_s = clock.peek()
            elif math.isinf(until_s):
                raise self.intake.in_vain(self._next_group == self.intake.started_version.size)
            else:
                yield clock.at(until_s, LAST)
                until_s = clock.peek()

    def _run_engines(self, until_s: float) -> None:
        """Run until a time or the first rewards; groups that have their last token wait for theirs."""
        for time_s, group in self.engines.run(until_s, self._environment_s):
            del self._running[group]
            if not self._running and not self._paused:
                self._busy_s += time_s - self._busy_since_s
            self._rewards.append((time_s + self._environment_s, group))

    def _complete(self, group: int) -> None:
        """A group is done and with it perhaps its batch; its place goes to the next group."""
        batch = group // self.intake.batch
        self.in_flight -= 1
        self._open[batch] -= 1
        self._done.append(group)
        if self.intake.rules.membership in ("oldest_done", "by_version"):
            self._order_done()
        if not self._open[batch]:
            self._ready_s[batch] = self.clock.now
        self._start_groups()

    def _until(self, reached: Callable[[], bool]) -> Process:
        """Wait until something holds, which only groups that are done can change."""
        if not reached():
            self._awaited = reached, self.clock.event()
            yield self._awaited[1]

    def _wake(self) -> bool:
        """Wake who waits for what holds by now; whether anybody did."""
        if self._awaited is None or not self._awaited[0]():
            return False
        self._awaited[1].succeed()
        self._awaited = None
        return True

    def batch(self, step: int) -> Process:
        """Wait until the batch of ``step`` is done: its groups, or those that are done first."""
        if self.intake.by_target:
            return self._until(lambda: not self._open[step])
        self._wanted = self.intake.usable
        return self._until(self._has_enough)

    def _first_in_flight(self) -> int:
        """The group in flight that started first; the next one to start where there is none."""
        running, rewarded = next(iter(self._running), self._next_group), (group for _, group in self._rewards)
        return min((running, *rewarded))

    def _order_done(self) -> None:
        """Put what is done and not looked at in the order of the weights it started with."""
        version = self.intake.started_version
        self._done[self._looked_at :] = sorted(self._done[self._looked_at :], key=lambda group: version[group])

    def _has_enough(self) -> bool:
        """Whether as many groups are done as a step takes; another may start in place of each that nobody wants."""
        intake, by_version = self.intake, self.intake.rules.membership == "by_version"
        oldest = intake.started_version[self._first_in_flight()] if by_version and self.in_flight else math.inf
        if intake.rules.stale == "wait" and self.in_flight and intake.is_awaited(self._first_in_flight()):
            return False
        while self._wanted and self._looked_at < len(self._done):
            if by_version and intake.started_version[self._done[self._looked_at]] > oldest:
                return False
            group = self._done[self._looked_at]
            self._looked_at += 1
            if self.intake.is_wanted(group):
                self._wanted -= 1
            else:
                self.intake.replace()
                self._start_groups()
        return not self._wanted

    def settle(self) -> None:
        """Let the engines begin what they begin at this moment, so that their counters know of it."""
        self._run_engines(self.clock.now)

    def take(self, step: int) -> IntArray:
        """Hand the batch of ``step`` over, once it is ready; its groups."""
        groups = self.intake.take(step, np.array(self._done[self.intake.position : self._looked_at], dtype=np.int64))
        if self.intake.by_target:
            self._show_batch(step)
        self._taken = step + 1
        if self.intake.rules.at_take:
            self._start_groups()
        return groups

    def drain(self) -> Process:
        """Start no more groups until weights are published, and wait until none is in flight."""
        self._blocked = True
        return self._until(lambda: not self.in_flight)

    @property
    def busy_s(self) -> float:
        """Seconds so far in which the pool had samples to generate and was not paused."""
        return self._busy_s + (self.clock.now - self._busy_since_s if self._running and not self._paused else 0.0)

    def pause(self, duration_s: float) -> None:
        """Stop the pool for ``duration_s`` (each replica after its iteration in progress); no more groups start."""
        self._busy_s = self.busy_s
        self._paused = self._blocked = True
        self.engines.pause(self.clock.now, duration_s)

    def resume(self) -> None:
        """Go on after a pause without new weights."""
        self._go_on()
        self._start_groups()

    def in_progress(self) -> SampleTokens:
        """Unfinished samples and the response tokens that each has so far."""
        cancelled = sum(groups.size for _, groups in self._cancelled)
        return self.engines.in_progress((self.in_flight + cancelled) * self.intake.size)

    def publish_weights(self) -> None:
        """Go on with the next version of the weights; running requests as the rules say."""
        self._go_on()
        rules = self.intake.rules
        self.intake.version += 1
        if rules.stale == "cancel":
            self._cancel_stale()
        self.intake.release()
        if rules.at_update in ("recompute", "restart"):
            self.engines.pause(self.clock.now, rules.resubmit_s, rules.at_update)
        self._start_groups()

    def _go_on(self) -> None:
        self._blocked = self._paused = False
        self._busy_since_s = self.clock.now

    def _cancel_stale(self) -> None:
        """Abort the groups in flight that are too old to be trained on."""
        oldest = self.intake.oldest_version
        stale = [group for group in self._running if self.intake.started_version[group] < oldest]
        if not stale:
            return
        self._changes += [(self.clock.now, 1, -left) for left in self.engines.cancel(self.clock.now, stale)]
        for group in stale:
            del self._running[group]
        self.in_flight -= len(stale)
        self._cancelled.append((self.clock.now, np.array(stale, dtype=np.int64)))
        self.intake.cancel(self._cancelled[-1][1])

    def _start_groups(self) -> None:
        """Start the groups that may, in order, as many as may be in flight."""
        intake, first = self.intake, self._next_group
        if first == intake.released or self.in_flight >= intake.max_in_flight or self._blocked:
            return  # what most groups that are done come to
        if intake.rules.waiting and len(self._done) - intake.position >= intake.pool:
            return
        now_s = self.clock.now
        places = intake.max_in_flight - self.in_flight
        count = min(intake.released - first, places)
        if intake.rules.unit == "batch":  # what is left of one that has begun, and others whole
            begun = -first % intake.batch
            count = min(count, begun + max(0, places - begun) // intake.batch * intake.batch)
        if not count:
            return
        self._next_group += count
        self.in_flight += count
        for batch in range(first // intake.batch, (first + count - 1) // intake.batch + 1):
            self._started_s[batch] = min(self._started_s[batch], now_s)
        if not self._running:
            self._busy_since_s = now_s
        intake.started_version[first : first + count] = intake.version
        for group in range(first, first + count):
            self._running[group] = None
        self._changes.append((now_s, 2, count * intake.size))
        self.engines.start(now_s, first, count)

    def show(self) -> None:
        """Record what the timeline shows of batches that nobody took, and the running sequences."""
        if not self._trace.detailed:
            return
        if self.intake.by_target:
            for step in range(self._taken, self.intake.steps):
                if not self._open[step]:
                    self._show_batch(step)
        changes = np.vstack([np.array(self._changes, dtype=np.float64).reshape(-1, 3), self._last_tokens()])
        changes = changes[np.lexsort((changes[:, 1], changes[:, 0]))]
        self._trace.curve("running sequences", changes[:, 0].tolist(), np.cumsum(changes[:, 2]).tolist())
        self.engines.show(self._trace)

    def _last_tokens(self) -> FloatArray:
        """When running sequences became one fewer; those of cancelled groups left with these. Shape (n, 3)."""
        at_s = self.engines.finish_s.copy()
        for cancelled_s, groups in self._cancelled:
            samples = self.intake.samples(groups)
            at_s[samples[at_s[samples] > cancelled_s]] = 0.0
        at_s = at_s[at_s > 0]
        return np.column_stack([at_s, np.zeros_like(at_s), -np.ones_like(at_s)])

    def _show_batch(self, step: int) -> None:
        """Draw the generation of the batch of ``step``."""
        span = self._started_s[step], self._ready_s[step]
        self._trace.span("generator", "generation_s", step, *span, f"batch for step {step}")
