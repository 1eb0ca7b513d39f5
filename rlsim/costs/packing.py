"""How samples become micro-batches."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

from rlsim.costs.work import FloatArray


@dataclass(frozen=True)
class MicroBatches:
    """Micro-batches of one data-parallel rank and one optimizer step, as averages.

    count: micro-batches per rank, a mean over steps; tokens: computed tokens of one (with padding); sum_squared: sum of
    squared lengths in one; real_tokens: without padding; steps: optimizer steps of the RL step.
    """

    count: float
    tokens: float
    sum_squared: float
    real_tokens: float
    steps: int


def bins_needed(lengths: FloatArray, capacity: float) -> int:
    """Bins of ``capacity`` tokens by best-fit decreasing; a sample longer than the capacity takes a bin of its own."""
    ordered = np.sort(lengths)[::-1].tolist()
    free: list[float] = []
    bins = 0
    for length in ordered:
        slot = bisect_left(free, length)
        if slot < len(free):
            rest = free.pop(slot) - length
        else:
            bins, rest = bins + 1, capacity - length
        if rest > 0:
            insort(free, rest)
    return bins


def micro_batches(
    lengths: FloatArray, data_parallel: int, capacity: float, steps: int, multiple: int, packed: bool, samples: int = 1
) -> MicroBatches:
    """Split a step's samples over ``steps`` optimizer steps and ``data_parallel`` ranks.

    packed: bins of ``capacity`` tokens, their number rounded up to a multiple of the ranks (all run equally many).
    Otherwise ``samples`` per micro-batch, each padded to the longest. multiple: sequences are padded to it (TP and CP).
    """
    padded = np.ceil(lengths / multiple) * multiple
    bins = 0
    if packed:
        for chunk in np.array_split(padded, steps):
            bins += -(-bins_needed(chunk, capacity) // data_parallel)
    else:
        bins = steps * -(-len(lengths) // (steps * data_parallel * samples))
        padded = np.full_like(padded, padded.max())
    count = max(1.0, bins / steps)
    ranks = count * steps * data_parallel
    return MicroBatches(
        count, float(padded.sum()) / ranks, float((padded**2).sum()) / ranks, float(lengths.sum()) / ranks, steps
    )
