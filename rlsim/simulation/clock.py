"""The clock of an asynchronous loop: SimPy's environment, with events at given times."""

from heapq import heappop, heappush
from itertools import count
from typing import Any

import simpy
from simpy.core import EmptySchedule
from simpy.events import NORMAL

USUAL, LAST = NORMAL, NORMAL + 1
"""Order of what happens at one time: the trainer's acts, as SimPy has it, and engines that go on."""


class Clock(simpy.Environment):
    """SimPy's environment whose events may have a given time in seconds.

    SimPy adds a delay to the time of now, and the sum is rounded: events that belong to one time would come apart by
    the last bit, and their order with them. So the queue lies here, behind the public methods of the environment.
    """

    def __init__(self) -> None:
        super().__init__()
        self._time_s = 0.0
        self._entries: list[tuple[float, int, int, simpy.Event]] = []
        self._numbers = count()  # events of one time and priority happen in the order in which they were scheduled
        self._given: tuple[float, int] | None = None

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self._time_s

    def at(self, time_s: float, priority: int = USUAL) -> simpy.Event:
        """An event at a time in seconds, not before now."""
        self._given = time_s, priority
        return self.event().succeed()

    def advance(self, time_s: float) -> None:
        """Go on to a time in seconds not after the next event: most groups that are done concern nobody else."""
        self._time_s = time_s

    def schedule(self, event: simpy.Event, priority: int = NORMAL, delay: float = 0.0) -> None:
        """Put an event into the queue: at its given time, or after a delay in seconds."""
        time_s, given_priority = self._given or (self._time_s + delay, priority)
        self._given = None
        heappush(self._entries, (time_s, given_priority, next(self._numbers), event))

    def peek(self) -> float:
        """Seconds at which the next event happens; infinity without one."""
        return self._entries[0][0] if self._entries else float("inf")

    def step(self) -> None:
        """Let the next event happen. Raises SimPy's EmptySchedule without one, and what an event failed with."""
        if not self._entries:
            raise EmptySchedule
        self._time_s, _, _, event = heappop(self._entries)
        # SimPy's sign of an event that has happened; its annotation does not know of it.
        callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
        for callback in callbacks:
            callback(event)
        if not (event.ok or event.defused):
            failure: Any = event.value
            raise failure
