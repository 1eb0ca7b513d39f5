"""How samples become micro-batches, and how many of them the busiest data-parallel rank gets.

All ranks meet when gradients are exchanged, and in every layer where parameters or experts are spread over them. So an
update lasts as long as the rank with most to do, which a mean over ranks does not show.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlsim.units import FloatArray

EVEN_LENGTH_TOKENS = 24576.0
"""Length at which a sample's attention counts as much as the rest of its work where ranks are balanced: verl's weight
for a 7B model (``utils/seqlen_balancing.py``), from memory. Assumption; it decides who gets what and no time by itself.
"""


@dataclass(frozen=True)
class MicroBatches:
    """Micro-batches of the busiest data-parallel rank and one optimizer step, as averages.

    count: micro-batches per rank, a mean over steps; tokens: computed tokens of one (with padding); sum_squared: sum of
    squared lengths in one; steps: optimizer steps of the RL step. balance: tokens of the mean rank over this one's.
    """

    count: float
    tokens: float
    sum_squared: float
    steps: int
    balance: float = 1.0


@dataclass(frozen=True, eq=False)
class Bins:
    """Packed samples, fullest bin first. tokens, sum_squared: [bins]."""

    tokens: FloatArray
    sum_squared: FloatArray


def packed_bins(lengths: FloatArray, capacity: float) -> Bins:
    """Samples in bins of ``capacity`` tokens by best-fit decreasing; one longer than that has a bin of its own."""
    free: list[tuple[float, int]] = []
    tokens: list[float] = []
    squared: list[float] = []
    for length in np.sort(lengths)[::-1].tolist():
        slot = bisect_left(free, (length, -1))
        if slot < len(free):
            rest, number = free.pop(slot)
            rest -= length
            tokens[number] += length
            squared[number] += length * length
        else:
            number, rest = len(tokens), capacity - length
            tokens.append(length)
            squared.append(length * length)
        if rest > 0:
            insort(free, (rest, number))
    order = np.argsort(-np.array(tokens), kind="stable")
    return Bins(np.array(tokens)[order], np.array(squared)[order])


def bins_by_step(lengths: FloatArray, capacity: float, steps: int, multiple: int) -> tuple[Bins, ...]:
    """Bins of ``capacity`` tokens of each of ``steps`` optimizer steps; samples are padded to ``multiple``."""
    return tuple(packed_bins(chunk, capacity) for chunk in np.array_split(padded(lengths, multiple), steps))


def dealt_bins(bins: Sequence[Bins], data_parallel: int) -> MicroBatches:
    """Bins of each step dealt to the ranks in turn, the fullest first, so that all ranks run equally many.

    NeMo-RL (``sequence_packing``) rounds the number of bins up to a multiple of the ranks; here the last ones are
    empty.
    """
    # The rank that is dealt first has the fullest bin of every round.
    tokens = sum(float(one.tokens[::data_parallel].sum()) for one in bins)
    squared = sum(float(one.sum_squared[::data_parallel].sum()) for one in bins)
    count = sum(-(-len(one.tokens) // data_parallel) for one in bins)
    total = sum(float(one.tokens.sum()) for one in bins)
    return _averages(count, tokens, squared, len(bins), total / data_parallel)


def balanced_ranks(lengths: FloatArray, data_parallel: int) -> list[FloatArray]:
    """Lengths of each rank's samples: equally many, and equal work as far as lengths allow.

    Longest first to the rank with least work (verl's ``balance_batch`` partitions by differencing, to much the same
    end).
    """
    cost = lengths * (1.0 + lengths / EVEN_LENGTH_TOKENS)
    room = -(-len(lengths) // data_parallel)
    ranks: list[list[int]] = [[] for _ in range(data_parallel)]
    least = [(0.0, rank) for rank in range(data_parallel)]
    for sample in np.argsort(-cost, kind="stable").tolist():
        load, rank = heapq.heappop(least)
        ranks[rank].append(sample)
        if len(ranks[rank]) < room:
            heapq.heappush(least, (load + float(cost[sample]), rank))
    return [lengths[own] for own in ranks]


def dealt_samples(lengths: FloatArray, data_parallel: int, steps: int, capacity: float, balanced: bool) -> MicroBatches:
    """Samples dealt to the ranks, each of which packs its own; all run as many micro-batches as the fullest needs.

    balanced: by work (:func:`balanced_ranks`), so that only a sample longer than the mean rank's share sets the pace.
    Otherwise in their order, whatever their lengths.
    """
    count, tokens, squared = 0, 0.0, 0.0
    for part in np.array_split(lengths, steps):
        own = balanced_ranks(part, data_parallel) if balanced else np.array_split(part, data_parallel)
        busiest = max(own, key=np.sum)
        count += max(1, -(-int(busiest.sum()) // int(capacity)))
        tokens += float(busiest.sum())
        squared += float((busiest**2).sum())
    return _averages(count, tokens, squared, steps, float(lengths.sum()) / data_parallel)


def padded_samples(lengths: FloatArray, data_parallel: int, steps: int, samples: int) -> MicroBatches:
    """``samples`` to a micro-batch without packing, each padded to the longest of the batch."""
    longest = float(lengths.max())
    per_rank = -(-len(lengths) // (steps * data_parallel))
    tokens = steps * per_rank * longest
    count = steps * -(-per_rank // samples)
    return _averages(count, tokens, tokens * longest, steps, len(lengths) * longest / data_parallel)


def _averages(count: int, tokens: float, squared: float, steps: int, mean_tokens: float) -> MicroBatches:
    """Totals of the busiest rank over all steps as averages over its micro-batches."""
    filled = max(count, steps)
    return MicroBatches(filled / steps, tokens / filled, squared / filled, steps, mean_tokens / tokens)


def padded(lengths: FloatArray, multiple: int) -> FloatArray:
    """Lengths as they are computed: multiples of ``multiple`` (tensor and context parallelism)."""
    return np.asarray(np.ceil(lengths / multiple) * multiple, dtype=np.float64)
