"""Generation side of an asynchronous loop: prompt groups that start, run, get their rewards and are taken.

A group may start when the rules of :mod:`rlsim.simulation.intake` allow it and fewer than their limit are in flight,
and is done when its last sample has its reward. With groups bound to their steps (NeMo-RL v0.7:
``async_utils/trajectory_collector.py``, ``replay_buffer.py``) the trainer of step v takes exactly the groups started
for it, so one straggling group stalls its step; else it takes what is done first. Where the loop's unit is a batch, the
groups of a step start together, once so many fewer than the limit are in flight.
"""

import math
from collections.abc import Callable

import numpy as np
import simpy

from rlsim.costs.interface import Prices
from rlsim.schema.scenario import Scenario
from rlsim.simulation.clock import LAST, Clock
from rlsim.simulation.engines import NOBODY, Groups
from rlsim.simulation.intake import Intake
from rlsim.simulation.kernel.engines import engines_of
from rlsim.simulation.requests import SampleTokens
from rlsim.simulation.trace import Process, Trace
from rlsim.units import FloatArray, IntArray
from rlsim.workload.draw import DrawnWorkload


class Generation:
    """The generation pool of an asynchronous loop, kept busy with the groups that may start."""

    def __init__(self, clock: Clock, scenario: Scenario, workload: DrawnWorkload, prices: Prices, trace: Trace) -> None:
        self.clock, self._trace = clock, trace
        self.intake = intake = Intake(scenario, workload)
        together = intake.batch if intake.rules.unit == "batch" else 1
        groups = Groups(intake.size, 0, intake.max_in_flight, unit=together)
        groups.reward_s = scenario.workload.environment_s
        self.engines = engines_of(scenario, workload, prices, groups, trace.detailed)
        self._agents = scenario.workload.agent is not None
        """Trajectories that are too old end by themselves and are dropped then; what they still take is not saved."""
        self._blocked = False
        self._started = self._looked_at = self._taken = self._wanted = 0
        self._open = np.full(intake.steps, intake.batch)
        self._all_groups, self._done = range(intake.started_version.size), list[int]()
        self._awaited: tuple[Callable[[], int], simpy.Event] | None = None
        self._left = NOBODY
        self._cancelled: list[tuple[float, IntArray, list[int]]] = []
        self._start_groups()

    @property
    def in_flight(self) -> int:
        """Groups that have started and are not done."""
        return self.engines.groups.in_flight

    def run(self) -> Process:
        """The process of the engines: they run ahead to the next moment at which anybody acts, in one call.

        Raises what :meth:`Intake.in_vain` says where a trainer waits for groups that nobody generates.
        """
        clock, engines = self.clock, self.engines
        until_s = clock.peek()
        while True:
            done = engines.run(until_s, self._left)
            if done:
                clock.advance(engines.last_done_s)
                self._complete(done)
            elif math.isinf(until_s):
                raise self.intake.in_vain(engines.groups.started == self.intake.started_version.size)
            else:
                # Last at that time: what the trainer does then changes what engines begin.
                yield clock.at(until_s, LAST)
            until_s = clock.peek()

    def _complete(self, groups: list[int]) -> None:
        """Groups are done, and with them perhaps their batches or what somebody waits for."""
        self._note_started()
        self._done += groups
        if self.intake.by_target:
            # Not by plain indexing, which would count several groups of one batch once.
            np.subtract.at(self._open, np.array(groups) // self.intake.batch, 1)
        elif self.intake.rules.membership in ("oldest_done", "by_version"):  # by the weights that they started with
            self._done[self._looked_at :] = sorted(self._done[self._looked_at :], key=self.intake.started_version.item)
        if self._awaited is not None:
            missing, awakened = self._awaited
            self._left = (missing(), *self._left[1:])
            if not self._left[0]:
                awakened.succeed()
                self._awaited, self._left = None, NOBODY

    def _until(self, missing: Callable[[], int], groups: range) -> Process:
        """Wait until nothing is missing. missing: fewest of ``groups`` that must be done before; 0 where it holds."""
        left = missing()
        if left:
            self._awaited = missing, self.clock.event()
            self._left = left, groups.start, groups.stop
            yield self._awaited[1]

    def batch(self, step: int) -> Process:
        """Wait until the batch of ``step`` is done: its groups, or those that are done first."""
        batch = self.intake.batch
        if self.intake.by_target:
            return self._until(lambda: int(self._open[step]), range(step * batch, (step + 1) * batch))
        self._wanted = self.intake.usable
        return self._until(self._missing, self._all_groups)

    def _missing(self) -> int:
        """Fewest groups that must be done before a step has what it takes; another may start for each unwanted one.

        One at a time where it matters what each of them is.
        """
        intake, in_flight = self.intake, self.in_flight > 0
        by_version, first = intake.rules.membership == "by_version", self.engines.first_in_flight
        if in_flight and intake.is_awaited(first):
            return 1
        if intake.takes_all_from(min((*([first] if in_flight else []), *self._done[self._looked_at :]), default=None)):
            taken = min(self._wanted, len(self._done) - self._looked_at)
            self._looked_at += taken
            self._wanted -= taken
            return self._wanted
        oldest = intake.started_version[first] if by_version and in_flight else math.inf
        while self._wanted and self._looked_at < len(self._done):
            group = self._done[self._looked_at]
            if by_version and intake.started_version[group] > oldest:
                return 1
            self._looked_at += 1
            if intake.is_wanted(group):
                self._wanted -= 1
            else:
                intake.replace()
                self._start_groups()
        return min(self._wanted, 1)

    def settle(self) -> None:
        """Let the engines begin what they begin at this moment, so that their counters know of it."""
        self.engines.settle(self.clock.now)

    def take(self, step: int) -> IntArray:
        """Hand the batch of ``step`` over, once it is ready; its groups."""
        groups = self.intake.take(step, np.array(self._done[self.intake.position : self._looked_at], dtype=np.int64))
        if self.intake.by_target:
            self._show_batch(step)
        self._taken = step + 1
        self._allow()
        if self.intake.rules.at_take:
            self._start_groups()
        return groups

    def drain(self) -> Process:
        """Start no more groups until weights are published, and wait until none is in flight."""
        self._blocked = True
        self._allow()
        return self._until(lambda: self.in_flight, self._all_groups)

    @property
    def busy_s(self) -> float:
        """Seconds so far in which the pool had samples to generate and was not paused."""
        return self.engines.busy_s(self.clock.now)

    def pause(self, duration_s: float) -> None:
        """Stop the pool for ``duration_s`` (each replica after its iteration in progress); no more groups start."""
        self.engines.groups.busy_s = self.busy_s
        self.engines.groups.paused = self._blocked = True
        self._allow()
        self.engines.pause(self.clock.now, duration_s)

    def resume(self) -> None:
        """Go on after a pause without new weights."""
        self._go_on()
        self._start_groups()

    def in_progress(self) -> SampleTokens:
        """Unfinished samples and the response tokens that each has so far."""
        cancelled = sum(groups.size for _, groups, _ in self._cancelled)
        return self.engines.in_progress((self.in_flight + cancelled) * self.intake.size)

    def publish_weights(self) -> None:
        """Go on with the next version of the weights; running requests as the rules say."""
        self._go_on()
        rules = self.intake.rules
        self.intake.version += 1
        if rules.stale == "cancel" and not self._agents:
            self._cancel_stale()
        self.intake.release()
        if rules.at_update in ("recompute", "restart"):
            # A turn's request is aborted, not its trajectory: what it has generated is prefilled with the history.
            self.engines.pause(self.clock.now, rules.resubmit_s, "recompute" if self._agents else rules.at_update)
        self._start_groups()

    def _go_on(self) -> None:
        self._blocked = False
        self.engines.groups.paused, self.engines.groups.busy_since_s = False, self.clock.now

    def _cancel_stale(self) -> None:
        """Abort the groups in flight that are too old to be trained on."""
        running = self.engines.running
        stale = running[self.intake.started_version[running] < self.intake.oldest_version]
        if stale.size:
            left = self.engines.cancel(self.clock.now, stale.tolist())
            self._cancelled.append((self.clock.now, stale, left))
            self.intake.cancel(stale)

    def _allow(self) -> None:
        """Say which groups may start from now on, where one is done or at once."""
        intake, groups = self.intake, self.engines.groups
        groups.released = 0 if self._blocked else intake.released
        if intake.rules.waiting:
            groups.max_done = intake.position + intake.pool

    def _start_groups(self) -> None:
        """Start the groups that may."""
        self._allow()
        self.engines.start(self.clock.now)
        self._note_started()

    def _note_started(self) -> None:
        """Groups that have started did so with the weights of now."""
        first, self._started = self._started, self.engines.groups.started
        self.intake.started_version[first : self._started] = self.intake.version

    def show(self) -> None:
        """Record what the timeline shows of batches that nobody took, and the running sequences."""
        if not self._trace.detailed:
            return
        if self.intake.by_target:
            for step in range(self._taken, self.intake.steps):
                if not self._open[step]:
                    self._show_batch(step)
        changes = self._changes()
        # Ends before aborts before starts: the curve never shows more than ran at once.
        changes = changes[np.lexsort((changes[:, 1], changes[:, 0]))]
        self._trace.curve("running sequences", changes[:, 0].tolist(), np.cumsum(changes[:, 2]).tolist())
        self.engines.show(self._trace)

    def _changes(self) -> FloatArray:
        """When running sequences became more or fewer, the order at one time, and by how many. Shape (n, 3)."""
        groups, engines = self.engines.groups, self.engines
        first, end_s = engines.starts[: groups.num_starts], engines.finish_s.copy()
        started = np.diff(first, append=groups.started) * self.intake.size
        found = [np.column_stack([engines.starts_s[: first.size], np.full(first.size, 2.0), started])]
        for cancelled_s, aborted, left in self._cancelled:
            found.append(np.array([(cancelled_s, 1.0, -count) for count in left]))
            samples = self.intake.samples(aborted)
            end_s[samples[end_s[samples] > cancelled_s]] = 0.0  # it left with these
        end_s = end_s[end_s > 0]
        return np.vstack([*found, np.column_stack([end_s, np.zeros_like(end_s), -np.ones_like(end_s)])])

    def _show_batch(self, step: int) -> None:
        """Draw the generation of the batch of ``step``, all of which is done."""
        if not self._trace.detailed:
            return
        groups, engines = self.engines.groups, self.engines
        first = step * self.intake.batch
        start = int(np.searchsorted(engines.starts[: groups.num_starts], first, side="right")) - 1
        ended_s = engines.ended_s[: groups.num_done][engines.ended[: groups.num_done] // self.intake.batch == step]
        span = engines.starts_s.item(start), float(ended_s.max()) + groups.reward_s
        self._trace.span("generator", "generation_s", step, span, f"batch for step {step}")
