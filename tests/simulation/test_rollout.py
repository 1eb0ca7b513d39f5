"""Whole rollouts: the kernel against replicas in Python, dispatch, speculation, limits."""

import math

import numpy as np
import pytest
from fixed_costs import FixedCosts
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from reference_rollout import iteration_seconds
from rollout_cases import cost_table, make_batch

from rlsim.costs.interface import IterationTable
from rlsim.schema.workload import Workload
from rlsim.simulation.closed_loop import closed_loop
from rlsim.simulation.pool import Fleet
from rlsim.simulation.requests import Request
from rlsim.simulation.rollout import rollout
from rlsim.workload.acceptance import Acceptance, two_parameter_rates
from rlsim.workload.batches import Batch, draw_batch, draw_iterations
from rlsim.workload.lengths import Place

NONE = Acceptance(np.zeros(0))
DRAFTED = Acceptance(two_parameter_rates(0.8, 0.97, 3))


def drawn(prompts: int = 24, mean: float = 300.0, seed: int = 0, size: int = 8) -> Batch:
    workload = Workload.model_validate(
        {"prompts_per_step": prompts, "generations_per_prompt": size, "max_sequence_tokens": 2048,
         "response_tokens": {"kind": "lognormal", "mean_tokens": mean, "log_sigma": 0.7}},
    )  # fmt: skip
    return draw_batch(workload, Place(seed, 0, 0))


def test_dispatch_and_identical_sequences_by_hand_and_a_running_curve() -> None:
    batch = make_batch([10] * 7, [5] * 7)
    iterations = batch.response_tokens - 1
    static = rollout(batch, iterations, Fleet(3, "static", cost_table())).replica
    assert static.tolist() == [i for i, part in enumerate(np.array_split(np.arange(7), 3)) for _ in part]
    assert rollout(batch, iterations, Fleet(3, "round_robin", cost_table())).replica.tolist() == [0, 1, 2, 0, 1, 2, 0]
    table = cost_table(prefill_context_s=np.zeros(2))
    batch = make_batch([100] * 12, [11] * 12)
    result = rollout(batch, batch.response_tokens - 1, Fleet(3, "static", table, False))
    expected = iteration_seconds(table, 0, 0, 400) + sum(iteration_seconds(table, 4, 100 + i, 0) for i in range(10))
    assert result.finish_s == pytest.approx(np.full(12, expected), rel=1e-12)
    assert result.imbalance == 1.0
    assert result.counters.mean_batch == 4.0
    batch = drawn()
    times, running = rollout(
        batch, draw_iterations(batch, NONE, Place(0, 0, 0)), Fleet(4, "static", cost_table())
    ).running_curve()
    assert (running[0], running[-1]) == (batch.samples, 0)
    assert np.all(np.diff(running) <= 0) and np.all(np.diff(times) > 0)


def accept_per_iteration(batch: Batch, table: IterationTable, rates: np.ndarray, seed: int) -> np.ndarray:
    """Finish times on one replica where every verification draws what it accepts and contexts grow by just that."""
    rng = np.random.default_rng(seed)
    prompts, left = batch.prompt_tokens.astype(float), batch.response_tokens - 1
    emitted, finish = np.zeros(batch.samples), np.zeros(batch.samples)
    now = iteration_seconds(table, 0, 0, int(prompts.sum()))
    alive = np.flatnonzero(left > 0)
    while alive.size:
        now += iteration_seconds(table, alive.size, float((prompts + emitted)[alive].mean()), 0)
        tokens = 1 + (rng.random((alive.size, 1)) < rates).sum(axis=1)
        emitted[alive] += np.minimum(tokens, left[alive])
        left[alive] -= tokens
        finish[alive[left[alive] <= 0]] = now
        alive = alive[left[alive] > 0]
    return finish


def test_drawing_iterations_up_front_is_the_same_process() -> None:
    """Mean and spread of the end and of all finish times, by interval over independent replications."""
    batch = drawn(prompts=3, mean=250.0)
    table = cost_table(tokens_per_sequence=4, attention_s=4e-6)
    count = 150
    truth = np.array([accept_per_iteration(batch, table, DRAFTED.position_rates, r) for r in range(count)])
    fast = np.array(
        [rollout(batch, draw_iterations(batch, DRAFTED, Place(1, 0, r)), Fleet(1, "static", table, False)).finish_s
         for r in range(count)],
    )  # fmt: skip
    for measure in (truth.max(axis=1), fast.max(axis=1)), (truth.mean(axis=1), fast.mean(axis=1)):
        error = math.sqrt((measure[0].var() + measure[1].var()) / count)
        assert abs(measure[0].mean() - measure[1].mean()) <= 4 * error
        assert measure[1].std() == pytest.approx(measure[0].std(), rel=0.35)


ITERATION_S = 0.25


def requests(count: int, prompt: int = 10, response: int = 33, spread: int = 0) -> list[Request]:
    """Requests of ``response`` tokens, the i-th longer by up to ``spread`` in turns."""
    lengths = [response + i * 7 % (spread + 1) for i in range(count)]
    return [Request(i, i, prompt, length, length - 1) for i, length in enumerate(lengths)]


@given(st.integers(1, 12), st.integers(2, 80), st.integers(0, 30))
def test_constant_iterations_give_their_time_per_token(concurrency: int, response: int, spread: int) -> None:
    served = closed_loop(FixedCosts(ITERATION_S).iteration, requests(60, 10, response, spread), concurrency, 40)
    assert [one.request.id for one in served] == list(range(40))
    assert {one.tpot_s for one in served} == {ITERATION_S}


def test_requests_wait_for_prefills_or_slots_and_share_nothing() -> None:
    table = FixedCosts(ITERATION_S).iteration
    assert {one.ttft_s for one in closed_loop(table, requests(8), 1, 8)} == {0.0}
    later = closed_loop(table, requests(40, spread=9), 4, 30)[4:]
    assert {one.ttft_s for one in later} == {ITERATION_S}
    table = FixedCosts(ITERATION_S, slots=2).iteration
    served = closed_loop(table, requests(40), 6, 30)[6:]
    assert {one.tpot_s for one in served} == {ITERATION_S}
    # Four wait for two slots: two generations of 32 iterations pass before a request is admitted.
    assert min(one.ttft_s for one in served) >= 2 * 32 * ITERATION_S
    drafted = [Request(i, i, 10, 41, 20) for i in range(30)]
    assert {one.tpot_s for one in closed_loop(FixedCosts(ITERATION_S).iteration, drafted, 3, 20)} == {ITERATION_S / 2}
    table = FixedCosts(ITERATION_S, prefill_token_s=0.01).iteration
    same = [Request(i, "prompt", 100, 33, 32) for i in range(20)]
    apart = [Request(i, i, 100, 33, 32) for i in range(20)]
    ends = [[one.end_s for one in closed_loop(table, loop, 4, 16)] for loop in (same, apart)]
    assert ends[0] == ends[1]
    assert len(ends[0]) == 16
    served = closed_loop(FixedCosts(ITERATION_S).iteration, [Request(0, 0, 10, 1, 0), Request(1, 1, 10, 3, 2)], 5, 2)
    assert [one.tpot_s for one in served] == [0.0, ITERATION_S]


def test_one_client_waits_for_the_sum_of_its_iterations_and_prefills_delay_others() -> None:
    free = FixedCosts(ITERATION_S).iteration
    paid = FixedCosts(ITERATION_S, prefill_token_s=0.01).iteration
    lengths = requests(120, prompt=100, response=101, spread=20)
    slow, fast = (closed_loop(table, lengths, 5, 100)[20:] for table in (paid, free))
    # Each of the other four prompts delays a request once in its life of some 109 iterations, by a second; only those
    # that start in one iteration with it do not.
    added_s = np.mean([one.tpot_s for one in slow]) - np.mean([one.tpot_s for one in fast])
    assert 0.85 * 4 / 109 < added_s < 1.01 * 4 / 109
    assert min(one.ttft_s for one in slow) >= 100 * 0.01
    # Iterations of 0.25 s and 1/1024 s for every token of context.
    plain = FixedCosts(ITERATION_S).iteration
    table = replace(plain, attention_s=np.tile([0.0, 1000 / 1024], (len(plain.step_s), 1)))
    served = closed_loop(table, requests(3, prompt=40, response=30), 1, 3)
    iterations = [ITERATION_S + (40 + i) / 1024 for i in range(29)]
    for one in served:
        assert one.end_s - one.first_token_s == pytest.approx(sum(iterations), rel=1e-12)
        assert one.tpot_s == pytest.approx(sum(iterations) / 29, rel=1e-12)


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
