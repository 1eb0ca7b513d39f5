"""Closed loops: what clients see of an engine whose iterations can be reckoned by hand."""

from dataclasses import replace

import numpy as np
import pytest
from fixed_costs import FixedCosts
from hypothesis import given
from hypothesis import strategies as st

from rlsim.costs.interface import IterationTable
from rlsim.errors import Infeasible
from rlsim.simulation.closed_loop import closed_loop
from rlsim.simulation.requests import Request

ITERATION_S = 0.25


def requests(count: int, prompt: int = 10, response: int = 33, spread: int = 0) -> list[Request]:
    """Requests of ``response`` tokens, the i-th longer by up to ``spread`` in turns."""
    lengths = [response + i * 7 % (spread + 1) for i in range(count)]
    return [Request(i, i, prompt, length, length - 1) for i, length in enumerate(lengths)]


def growing(slots: int = 64, per_token_s: float = 0.0) -> IterationTable:
    """Iterations of 0.5 s, 0.25 s for every sequence and ``per_token_s`` times their mean context; prefill is free."""
    n = np.arange(slots + 1, dtype=np.float64)
    step = np.where(n > 0, 0.5 + 0.25 * n, 0.0)
    attention = per_token_s * 1000.0 * np.tile([0.0, 1.0], (slots + 1, 1))
    return replace(FixedCosts(slots=slots).iteration, step_s=step, attention_s=attention)


@given(st.integers(1, 12), st.integers(2, 80), st.integers(0, 30))
def test_constant_iterations_give_their_time_per_token(concurrency: int, response: int, spread: int) -> None:
    served = closed_loop(FixedCosts(ITERATION_S).iteration, requests(60, 10, response, spread), concurrency, 40)
    assert [one.request.id for one in served] == list(range(40))
    assert {one.tpot_s for one in served} == {ITERATION_S}


def test_a_request_alone_starts_at_once_and_beside_others_after_the_iteration_that_prefills_it() -> None:
    table = FixedCosts(ITERATION_S).iteration
    assert {one.ttft_s for one in closed_loop(table, requests(8), 1, 8)} == {0.0}
    later = closed_loop(table, requests(40, spread=9), 4, 30)[4:]
    assert {one.ttft_s for one in later} == {ITERATION_S}


def test_prefill_of_one_request_delays_the_others() -> None:
    free = FixedCosts(ITERATION_S).iteration
    paid = FixedCosts(ITERATION_S, prefill_token_s=0.01).iteration
    lengths = requests(120, prompt=100, response=101, spread=20)
    slow, fast = (closed_loop(table, lengths, 5, 100)[20:] for table in (paid, free))
    # Each of the other four prompts delays a request once in its life of some 109 iterations, by a second; only those
    # that start in one iteration with it do not.
    added_s = np.mean([one.tpot_s for one in slow]) - np.mean([one.tpot_s for one in fast])
    assert 0.85 * 4 / 109 < added_s < 1.01 * 4 / 109
    assert min(one.ttft_s for one in slow) >= 100 * 0.01


def test_one_client_waits_for_the_sum_of_its_iterations() -> None:
    table = growing(per_token_s=1 / 1024)
    served = closed_loop(table, requests(3, prompt=40, response=30), 1, 3)
    iterations = [0.5 + 0.25 + (40 + i) / 1024 for i in range(29)]
    for one in served:
        assert one.end_s - one.first_token_s == pytest.approx(sum(iterations), rel=1e-12)
        assert one.tpot_s == pytest.approx(sum(iterations) / 29, rel=1e-12)


def test_little_s_law() -> None:
    concurrency = 9
    served = closed_loop(growing(), requests(1500, spread=40), concurrency, 1400)[200:1300]
    rate = (len(served) - 1) / (max(one.end_s for one in served) - min(one.end_s for one in served))
    held = np.mean([one.end_s - one.arrival_s for one in served])
    assert rate * held == pytest.approx(concurrency, rel=0.02)


def test_more_clients_slow_each_other_down() -> None:
    def tpot_s(concurrency: int) -> float:
        served = closed_loop(growing(), requests(200, spread=20), concurrency, 150)[50:]
        return float(np.mean([one.tpot_s for one in served]))

    assert tpot_s(1) == pytest.approx(0.75)
    assert tpot_s(8) == pytest.approx(0.5 + 8 * 0.25, rel=0.06)


def test_accepted_tokens_divide_the_time_per_token() -> None:
    drafted = [Request(i, i, 10, 41, 20) for i in range(30)]
    assert {one.tpot_s for one in closed_loop(FixedCosts(ITERATION_S).iteration, drafted, 3, 20)} == {ITERATION_S / 2}


def test_who_finds_no_slot_waits_before_the_first_token() -> None:
    table = FixedCosts(ITERATION_S, slots=2).iteration
    served = closed_loop(table, requests(40), 6, 30)[6:]
    assert {one.tpot_s for one in served} == {ITERATION_S}
    # Four wait for two slots: two generations of 32 iterations pass before a request is admitted.
    assert min(one.ttft_s for one in served) >= 2 * 32 * ITERATION_S


def test_nothing_is_shared_between_requests_of_one_prompt() -> None:
    table = FixedCosts(ITERATION_S, prefill_token_s=0.01).iteration
    same = [Request(i, "prompt", 100, 33, 32) for i in range(20)]
    apart = [Request(i, i, 100, 33, 32) for i in range(20)]
    ends = [[one.end_s for one in closed_loop(table, loop, 4, 16)] for loop in (same, apart)]
    assert ends[0] == ends[1]
    assert len(ends[0]) == 16


def test_fewer_requests_than_clients_and_one_token_responses() -> None:
    served = closed_loop(FixedCosts(ITERATION_S).iteration, [Request(0, 0, 10, 1, 0), Request(1, 1, 10, 3, 2)], 5, 2)
    assert [one.tpot_s for one in served] == [0.0, ITERATION_S]


def test_a_request_that_cannot_fit_is_infeasible() -> None:
    table = replace(FixedCosts().iteration, kv_capacity_tokens=30.0)
    with pytest.raises(Infeasible, match="KV cache"):
        closed_loop(table, requests(2), 1, 1)


def test_an_engine_that_looks_rarely_takes_what_has_come_together() -> None:
    table = replace(FixedCosts(ITERATION_S, prefill_token_s=0.01).iteration, chunked_prefill=False)
    lengths = requests(160, prompt=100, response=101, spread=20)
    often, rarely = (closed_loop(table, lengths, 5, 140, interval)[20:] for interval in (1, 1000))
    # It looks when all five are answered, whose prompts it then prefills at once.
    assert min(one.ttft_s for one in rarely) == pytest.approx(5 * 100 * 0.01)
    assert {one.tpot_s for one in rarely} == {ITERATION_S}
    assert all(one.tpot_s > ITERATION_S for one in often)


@pytest.mark.parametrize("interval", [2, 3, 7, 30])
def test_requests_are_seen_within_the_interval_and_none_is_lost(interval: int) -> None:
    table = replace(FixedCosts(ITERATION_S).iteration, chunked_prefill=False)
    served = closed_loop(table, requests(90, spread=20), 4, 80, interval)
    assert [one.request.id for one in served] == list(range(80))
    waits = [one.ttft_s / ITERATION_S for one in served[4:]]
    assert min(waits) >= 0 and interval / 4 < max(waits) <= interval
