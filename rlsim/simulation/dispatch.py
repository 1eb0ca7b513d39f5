"""Which replica a sample goes to. The policies mean the same in synchronous and in asynchronous runs.

static: a submission in contiguous parts (``numpy.array_split``). round_robin: a counter over all samples ever
submitted. least_loaded: on submission to the replica with the fewest unfinished samples, the lowest number first.
shared_queue: samples wait in one queue, and whichever replica has room first takes the next.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Dispatch = Literal["static", "round_robin", "least_loaded", "shared_queue"]


def assigned_at_once(samples: int, num_replicas: int, dispatch: Dispatch) -> NDArray[np.int64]:
    """Replica of each of ``samples`` that are submitted together to idle replicas.

    All policies but ``static`` deal them in turn; a shared queue does so only while everything has room.
    """
    if dispatch != "static":
        return np.arange(samples) % num_replicas
    size, larger = divmod(samples, num_replicas)
    return np.repeat(np.arange(num_replicas), [size + (number < larger) for number in range(num_replicas)])


class Dispatcher:
    """Assigns samples to replicas on submission; one for each policy but ``shared_queue``."""

    def __init__(self, num_replicas: int, dispatch: Dispatch) -> None:
        self._replicas, self._dispatch = num_replicas, dispatch
        self._submitted = 0
        self._load = [0] * num_replicas
        # Entries whose load is no longer the replica's are stale and skipped: cheaper than finding them in the heap.
        self._heap: list[tuple[int, int]] = [(0, number) for number in range(num_replicas)]

    def assign(self, count: int) -> list[int]:
        """Replicas of the next ``count`` samples."""
        if self._dispatch == "static":
            return list(map(int, assigned_at_once(count, self._replicas, "static")))
        if self._dispatch == "round_robin":
            first = self._submitted
            self._submitted += count
            return [(first + i) % self._replicas for i in range(count)]
        return [self._least_loaded() for _ in range(count)]

    def completed(self, number: int, count: int) -> None:
        """Replica ``number`` finished ``count`` samples."""
        if self._dispatch == "least_loaded":
            self._change_load(number, -count)

    def returned(self, number: int) -> None:
        """A sample came back to replica ``number``, past the policy."""
        if self._dispatch == "least_loaded":
            self._change_load(number, 1)

    def _least_loaded(self) -> int:
        load, heap = self._load, self._heap
        while heap[0][0] != load[heap[0][1]]:
            heappop(heap)
        number = heappop(heap)[1]
        self._change_load(number, 1)
        return number

    def _change_load(self, number: int, change: int) -> None:
        self._load[number] += change
        heappush(self._heap, (self._load[number], number))
