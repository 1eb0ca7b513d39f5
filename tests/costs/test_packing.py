"""Bin packing and micro-batches: bounds, brute force, invariants."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsim.costs.packing import bins_by_step, bins_needed, micro_batches

LENGTHS = st.lists(st.integers(1, 100), min_size=1, max_size=60)


@given(LENGTHS, st.integers(100, 300))
def test_bins_lie_between_volume_and_one_sample_each(lengths: list[int], capacity: int) -> None:
    bins = bins_needed(np.array(lengths, dtype=float), capacity)
    assert math.ceil(sum(lengths) / capacity) <= bins <= len(lengths)


def _optimum(lengths: tuple[int, ...], capacity: int) -> int:
    """Fewest bins by dynamic programming over subsets: (bins, load of the last)."""

    @cache
    def best(left: int) -> tuple[int, int]:
        if left == 0:
            return 1, 0
        found = (len(lengths) + 1, 0)
        for i, length in enumerate(lengths):
            if left >> i & 1:
                bins, load = best(left & ~(1 << i))
                fits = load + length <= capacity
                found = min(found, (bins, load + length) if fits else (bins + 1, length))
        return found

    return best((1 << len(lengths)) - 1)[0]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(20, 40))
def test_bins_are_at_most_one_above_the_optimum_of_small_cases(lengths: list[int], capacity: int) -> None:
    """Best-fit decreasing needs at most 11/9 OPT + 6/9 bins (Johnson 1974); up to four bins that is OPT + 1."""
    optimum = _optimum(tuple(lengths), capacity)
    assert optimum <= bins_needed(np.array(lengths, dtype=float), capacity) <= optimum + 1


def test_a_sample_above_the_capacity_takes_a_bin_of_its_own() -> None:
    assert bins_needed(np.array([150.0, 40.0, 60.0]), 100) == 2


@given(LENGTHS, st.integers(1, 8), st.integers(1, 4), st.sampled_from([1, 2, 8]), st.booleans())
def test_micro_batches_keep_every_token(
    lengths: list[int], ranks: int, steps: int, multiple: int, packed: bool
) -> None:
    values = np.array(lengths, dtype=float)
    bins = bins_by_step(values, 128.0, steps, multiple) if packed else None
    batch = micro_batches(values, ranks, steps, multiple, bins)
    slots = batch.count * batch.steps * ranks
    padded = np.ceil(values / multiple) * multiple
    expected = padded if packed else np.full_like(padded, padded.max())
    assert batch.tokens * slots == pytest.approx(expected.sum())
    assert batch.sum_squared * slots == pytest.approx((expected**2).sum())
    assert batch.real_tokens <= batch.tokens * (1 + 1e-12)
    assert batch.count >= 1


def test_packed_micro_batches_never_hold_more_than_their_capacity_on_average() -> None:
    """Optimizer steps differ in length: their mean micro-batch count, rounded down, would overfill each."""
    lengths = np.array([100.0] * 7 + [0.0] * 3)
    batch = micro_batches(lengths, 1, 5, 1, bins_by_step(lengths, 100.0, 5, 1))
    assert batch.tokens <= 100.0


def test_without_packing_each_sample_is_padded_to_the_longest() -> None:
    batch = micro_batches(np.array([10.0, 20.0, 30.0, 40.0]), 2, 1, 1, None)
    assert (batch.count, batch.tokens, batch.sum_squared) == (2, 40.0, 1600.0)
    assert batch.real_tokens == 25.0
