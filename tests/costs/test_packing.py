"""Bin packing and micro-batches: bounds, brute force, invariants."""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsim.costs.trainer.layout import (
    bins_by_step,
    dealt_bins,
    dealt_samples,
    gpu_shares,
    packed_bins,
    padded_samples,
)
from rlsim.files.kernel import VARIABLE, compiled

LENGTHS = st.lists(st.integers(1, 100), min_size=1, max_size=60)


@given(LENGTHS, st.integers(100, 300))
def test_bins_lie_between_volume_and_one_sample_each(lengths: list[int], capacity: int) -> None:
    bins = packed_bins(np.array(lengths, dtype=float), capacity)
    assert math.ceil(sum(lengths) / capacity) <= len(bins.tokens) <= len(lengths)
    assert max(bins.tokens) <= capacity and list(bins.tokens) == sorted(bins.tokens, reverse=True)
    assert (bins.tokens.sum(), bins.sum_squared.sum()) == (sum(lengths), sum(length**2 for length in lengths))


def _optimum(lengths: tuple[int, ...], capacity: int) -> int:

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
    assert optimum <= len(packed_bins(np.array(lengths, dtype=float), capacity).tokens) <= optimum + 1


@given(st.lists(st.integers(1, 900), min_size=1, max_size=200), st.integers(1, 1000))
def test_the_kernel_fills_the_bins_of_the_reference(lengths: list[int], capacity: int) -> None:
    if compiled() is None:
        pytest.skip("no kernel")  # an installation without a compiler has the reference alone
    with pytest.MonkeyPatch.context() as patch:
        found = []
        for wanted in ("auto", "python"):
            patch.setenv(VARIABLE, wanted)
            bins = packed_bins(np.array(lengths, dtype=float), capacity)
            found.append((bins.tokens.tolist(), bins.sum_squared.tolist()))
    assert found[0] == found[1]


def test_a_sample_above_the_capacity_takes_a_bin_of_its_own() -> None:
    assert packed_bins(np.array([150.0, 40.0, 60.0]), 100).tokens.tolist() == [150.0, 100.0]


@given(LENGTHS, st.integers(1, 4), st.sampled_from([1, 2, 8]))
def test_micro_batches_of_one_rank_keep_every_token(lengths: list[int], steps: int, multiple: int) -> None:
    values = np.array(lengths, dtype=float)
    exact = np.ceil(values / multiple) * multiple
    longest = np.full_like(values, values.max())
    even = steps * math.ceil(len(values) / steps) / len(values)
    ways = [
        (dealt_bins(bins_by_step(values, 128.0, steps, multiple), 1), exact, 1.0),
        (dealt_samples(exact, (1, 1), steps, 128.0, "tokens"), exact, 1.0),
        (dealt_samples(exact, (1, 1), steps, 128.0, "samples"), exact, 1.0),
        (padded_samples(values, 1, steps, 1), longest, even),
    ]
    for batch, expected, times in ways:
        slots = batch.count * batch.steps
        assert batch.tokens * slots == pytest.approx(times * expected.sum())
        assert batch.sum_squared * slots == pytest.approx(times * (expected**2).sum())
        assert batch.count >= 1
        assert batch.balance == pytest.approx(1 / times)


@given(LENGTHS, st.integers(1, 8), st.integers(1, 4))
def test_the_busiest_rank_has_between_the_mean_and_everything(lengths: list[int], ranks: int, steps: int) -> None:
    values = np.array(lengths, dtype=float)
    for batch in (
        dealt_bins(bins_by_step(values, 128.0, steps, 1), ranks),
        dealt_samples(values, (ranks, 1), steps, 128.0, "tokens"),
        dealt_samples(values, (ranks, 1), steps, 128.0, "samples"),
        dealt_samples(values, (ranks, 2), steps, 128.0, "gpu_tokens"),
    ):
        busiest = batch.tokens * batch.count * steps
        assert values.sum() / ranks <= busiest * (1 + 1e-12) and busiest <= values.sum() * (1 + 1e-12)
        assert batch.balance == pytest.approx(values.sum() / ranks / busiest)


def test_dealing_by_work_leaves_the_longest_sample_as_the_only_floor() -> None:
    """Eight ranks of equal work, one sample as long as all others of a rank; in their order two ranks share it all."""
    lengths = np.array([800.0] + [100.0] * 63)
    balanced = dealt_samples(lengths, (8, 1), 1, 4096.0, "tokens")
    assert balanced.tokens == 800.0 + 7 * 100.0
    assert balanced.tokens == dealt_samples(lengths, (8, 1), 1, 4096.0, "samples").tokens
    tail = np.array([400.0] * 8 + [100.0] * 56)
    assert dealt_samples(tail, (8, 1), 1, 4096.0, "tokens").tokens == 400.0 + 7 * 100.0
    assert dealt_samples(tail, (8, 1), 1, 4096.0, "samples").tokens == 8 * 400.0


def test_updates_cut_from_shares_of_gpus_are_not_even() -> None:
    """Two ranks of two GPUs: every GPU has as many tokens, but an update holds the long samples of one rank alone."""
    lengths = np.array([8.0, 8.0, 8.0, 8.0, 1.0, 1.0, 1.0, 1.0])
    shares = gpu_shares(lengths, 2, 2)
    assert sorted(np.concatenate(shares).tolist()) == sorted(lengths.tolist())
    assert [share.tolist() for share in shares] == [[8.0, 1.0, 8.0, 1.0]] * 2
    even = dealt_samples(lengths, (2, 2), 2, 64.0, "gpu_tokens")
    assert (even.tokens, even.balance) == (9.0, 1.0)
    # Four GPUs of one rank each hold a long and a short one in their order; an update of two samples is one GPU's.
    mixed = np.array([1.0, 8.0, 8.0, 1.0, 8.0, 1.0, 1.0, 8.0])
    uneven = dealt_samples(mixed, (4, 1), 2, 64.0, "gpu_tokens")
    assert uneven.tokens == 8.0 and uneven.balance == pytest.approx(4.5 / 8.0)
    assert dealt_samples(mixed, (4, 1), 2, 64.0, "tokens").balance == pytest.approx(36.0 / 64.0)


def test_the_rank_dealt_first_has_the_fullest_bin_of_each_round() -> None:
    batch = dealt_bins(bins_by_step(np.array([10.0, 9.0, 8.0, 7.0]), 10.0, 1, 1), 3)
    assert (batch.count, batch.tokens, batch.sum_squared) == (2.0, 17 / 2, 149 / 2)
    assert batch.balance == pytest.approx(34 / 3 / 17)


def test_packed_micro_batches_never_hold_more_than_their_capacity_on_average() -> None:
    """Optimizer steps differ in length: their mean micro-batch count, rounded down, would overfill each."""
    lengths = np.array([100.0] * 7 + [0.0] * 3)
    assert dealt_bins(bins_by_step(lengths, 100.0, 5, 1), 1).tokens <= 100.0
