"""How samples become micro-batches."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
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


def bins_by_step(lengths: FloatArray, capacity: float, steps: int, multiple: int) -> tuple[int, ...]:
    """Bins of ``capacity`` tokens that each of ``steps`` optimizer steps needs; ``multiple`` as below."""
    return tuple(bins_needed(chunk, capacity) for chunk in np.array_split(_padded(lengths, multiple), steps))


def micro_batches(
    lengths: FloatArray, data_parallel: int, steps: int, multiple: int, bins: Sequence[int] | None, samples: int = 1
) -> MicroBatches:
    """Split a step's samples over ``steps`` optimizer steps and ``data_parallel`` ranks.

    bins: as from :func:`bins_by_step`, each rounded up to a multiple of the ranks (all run equally many). None:
    ``samples`` per micro-batch, each padded to the longest. multiple: sequences are padded to it (TP and CP).
    """
    padded = _padded(lengths, multiple)
    if bins is not None:
        filled = sum(-(-count // data_parallel) for count in bins)
    else:
        filled = steps * -(-len(lengths) // (steps * data_parallel * samples))
        padded = np.full_like(padded, padded.max())
    count = max(1.0, filled / steps)
    ranks = count * steps * data_parallel
    return MicroBatches(
        count, float(padded.sum()) / ranks, float((padded**2).sum()) / ranks, float(lengths.sum()) / ranks, steps
    )


def _padded(lengths: FloatArray, multiple: int) -> FloatArray:
    return np.asarray(np.ceil(lengths / multiple) * multiple, dtype=np.float64)
