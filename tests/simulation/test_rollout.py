"""Whole rollouts: the closed form against the event-driven path, dispatch, speculation, limits."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_rollout import iteration_seconds
from rollout_cases import cost_table, make_batch

from rlsim.costs.interface import EngineCounters, IterationTable
from rlsim.schema.workload import Workload
from rlsim.simulation.closed_form import closed_form
from rlsim.simulation.iteration_times import IterationTimes
from rlsim.simulation.pool import Dispatch, Fleet
from rlsim.simulation.replica import Replica
from rlsim.simulation.rollout import replica_batches, rollout, samples_of
from rlsim.workload.acceptance import Acceptance, two_parameter_rates
from rlsim.workload.batches import Batch, draw_batch, draw_iterations
from rlsim.workload.lengths import Place

NONE = Acceptance(np.zeros(0))
DRAFTED = Acceptance(two_parameter_rates(0.8, 0.97, 3))


def drawn(prompts: int = 24, mean: float = 300.0, seed: int = 0, size: int = 8) -> Batch:
    workload = Workload.model_validate(
        {
            "prompts_per_step": prompts,
            "generations_per_prompt": size,
            "max_sequence_tokens": 2048,
            "response_tokens": {"kind": "lognormal", "mean_tokens": mean, "log_sigma": 0.7},
        }
    )
    return draw_batch(workload, Place(seed, 0, 0))


def scalar(
    batch: Batch, iterations: np.ndarray, assigned: np.ndarray, table: IterationTable, sharing: bool
) -> tuple[np.ndarray, EngineCounters, list[float]]:
    counters, finish, peaks = EngineCounters(IterationTimes(table).max_sequences), np.zeros(batch.samples), []
    for number in range(int(assigned.max()) + 1):
        replica = Replica(table, sharing, counters)
        replica.submit(0.0, samples_of(batch, iterations, np.flatnonzero(assigned == number)))
        for time, sample in replica.advance_to(math.inf):
            finish[sample] = time
        peaks.append(replica.peak_kv_tokens)
    return finish, counters, peaks


@settings(max_examples=60)
@given(
    replicas=st.integers(1, 7),
    sharing=st.booleans(),
    drafted=st.booleans(),
    budget=st.sampled_from([256, 300, 8192]),
    capacity=st.sampled_from([1e9, 6000.0]),
    chunked=st.booleans(),
    dispatch=st.sampled_from(["static", "round_robin"]),
    seed=st.integers(0, 5),
)
def test_closed_form_agrees_with_the_event_driven_path(
    replicas: int,
    sharing: bool,
    drafted: bool,
    budget: int,
    capacity: float,
    chunked: bool,
    dispatch: Dispatch,
    seed: int,
) -> None:
    batch = drawn(seed=seed)
    table = cost_table(
        tokens_per_sequence=4 if drafted else 1,
        max_batched_tokens=budget,
        kv_capacity_tokens=capacity,
        chunked_prefill=chunked,
    )
    iterations = draw_iterations(batch, DRAFTED if drafted else NONE, Place(seed, 0, 0))
    result = rollout(batch, iterations, Fleet(replicas, dispatch, table, sharing))
    finish, counters, peaks = scalar(batch, iterations, result.replica, table, sharing)
    assert result.finish_s == pytest.approx(finish, rel=1e-9)
    assert result.peak_kv_tokens == pytest.approx(peaks)
    assert (
        result.counters.mean_batch,
        result.counters.mean_context_tokens,
        result.counters.prefill_s,
    ) == pytest.approx((counters.mean_batch, counters.mean_context_tokens, counters.prefill_s))
    assert result.counters.iterations_at == counters.iterations_at


def test_closed_form_is_used_where_everything_fits_and_only_there() -> None:
    batch = drawn()
    iterations = draw_iterations(batch, NONE, Place(0, 0, 0))
    batches = replica_batches(batch, iterations, np.arange(batch.samples) % 4, 4)
    assert closed_form(IterationTimes(cost_table()), batches, True, EngineCounters(64)).valid.all()
    assert not closed_form(
        IterationTimes(cost_table(max_running_sequences=40)), batches, True, EngineCounters(64)
    ).valid.any()
    assert not closed_form(
        IterationTimes(cost_table(kv_capacity_tokens=6000.0)), batches, True, EngineCounters(64)
    ).valid.any()


def test_dispatch_of_static_and_round_robin() -> None:
    batch = make_batch([10] * 7, [5] * 7)
    iterations = batch.response_tokens - 1
    static = rollout(batch, iterations, Fleet(3, "static", cost_table())).replica
    assert static.tolist() == [i for i, part in enumerate(np.array_split(np.arange(7), 3)) for _ in part]
    assert rollout(batch, iterations, Fleet(3, "round_robin", cost_table())).replica.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_more_replicas_than_samples() -> None:
    batch = make_batch([10] * 3, [5, 6, 7])
    result = rollout(batch, batch.response_tokens - 1, Fleet(8, "static", cost_table()))
    assert (result.replica_end_s > 0).sum() == 3
    assert result.seconds == result.finish_s[2]


def test_identical_sequences_by_hand() -> None:
    table = cost_table(prefill_context_s=np.zeros(2))
    batch = make_batch([100] * 12, [11] * 12)
    result = rollout(batch, batch.response_tokens - 1, Fleet(3, "static", table, False))
    expected = iteration_seconds(table, 0, 0, 400) + sum(iteration_seconds(table, 4, 100 + i, 0) for i in range(10))
    assert result.finish_s == pytest.approx(np.full(12, expected), rel=1e-12)
    assert result.imbalance == 1.0
    assert result.counters.mean_batch == 4.0


def test_no_drafting_is_the_baseline() -> None:
    batch = drawn()
    plain = rollout(batch, draw_iterations(batch, NONE, Place(0, 0, 0)), Fleet(4, "static", cost_table()))
    rejected = rollout(
        batch, draw_iterations(batch, Acceptance(np.zeros(3)), Place(0, 0, 0)), Fleet(4, "static", cost_table())
    )
    assert np.array_equal(plain.finish_s, rejected.finish_s)


def test_full_acceptance_divides_the_decode_iterations() -> None:
    batch = make_batch([50] * 8, [401] * 8)
    iterations = draw_iterations(batch, Acceptance(np.ones(3)), Place(0, 0, 0))
    free = {"attention_s": 0.0, "prefill_s": 0.0, "sequence_s": 0.0}
    plain = rollout(batch, batch.response_tokens - 1, Fleet(2, "static", cost_table(**free)))
    drafted = rollout(batch, iterations, Fleet(2, "static", cost_table(**free, tokens_per_sequence=4)))
    assert plain.seconds / drafted.seconds == pytest.approx(4.0)


def test_running_curve_starts_full_and_ends_empty() -> None:
    batch = drawn()
    times, running = rollout(
        batch, draw_iterations(batch, NONE, Place(0, 0, 0)), Fleet(4, "static", cost_table())
    ).running_curve()
    assert (running[0], running[-1]) == (batch.samples, 0)
    assert np.all(np.diff(running) <= 0) and np.all(np.diff(times) > 0)


# --- more replicas ----------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(
    responses=st.lists(st.integers(1, 300), min_size=1, max_size=40), fewer=st.integers(1, 6), times=st.integers(1, 4)
)
def test_multiples_of_replicas_never_slow_a_rollout(responses: list[int], fewer: int, times: int) -> None:
    """Least-loaded with room for all deals in turn, so each of m R replicas serves a subset of what one of R served."""
    batch = make_batch([20] * len(responses), responses)
    few, many = (
        rollout(batch, batch.response_tokens - 1, Fleet(r, "least_loaded", cost_table(), False)).seconds
        for r in (fewer, fewer * times)
    )
    assert many <= few * (1 + 1e-12)


@settings(max_examples=40)
@given(
    responses=st.lists(st.integers(1, 60), min_size=1, max_size=60),
    fewer=st.integers(1, 6),
    more=st.integers(1, 6),
    slots=st.integers(1, 4),
)
def test_one_queue_never_slows_with_more_replicas(responses: list[int], fewer: int, more: int, slots: int) -> None:
    """Where an iteration takes the same whatever it decodes, one queue is list scheduling: more slots never hurt."""
    table = cost_table(max_running_sequences=slots, attention_s=0.0, sequence_s=0.0, prefill_s=0.0)
    batch = make_batch([2] * len(responses), [r + 1 for r in responses])
    few, many = (
        rollout(batch, np.asarray(responses), Fleet(r, "shared_queue", table)).seconds for r in (fewer, fewer + more)
    )
    assert many <= few + 1e-9


def test_more_replicas_shorten_drawn_rollouts() -> None:
    """Over drawn lengths every further replica helps, queue or not. (Two long samples can meet on one replica by bad
    luck, so a single rollout may lose a little.)"""
    for slots in (8, 64):
        means = []
        for replicas in (2, 3, 4, 5, 6, 8, 12):
            table = cost_table(max_running_sequences=slots, kv_capacity_tokens=40_000.0, attention_s=1e-5)
            runs = []
            for seed in range(12):
                batch = drawn(seed=seed)
                iterations = draw_iterations(batch, NONE, Place(seed, 0, 0))
                runs.append(rollout(batch, iterations, Fleet(replicas, "shared_queue", table)).seconds)
            means.append(np.mean(runs))
        assert np.all(np.diff(means) < 0)


def test_one_queue_beats_a_static_split_when_samples_wait() -> None:
    batch = drawn(prompts=32)
    iterations = draw_iterations(batch, NONE, Place(0, 0, 0))
    table = cost_table(max_running_sequences=8)
    shared = rollout(batch, iterations, Fleet(4, "shared_queue", table))
    static = rollout(batch, iterations, Fleet(4, "static", table))
    assert shared.seconds < static.seconds
    assert shared.imbalance < static.imbalance
    assert np.bincount(shared.replica).sum() == batch.samples


# --- token by token ---------------------------------------------------------------------------------------------------


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
        [
            rollout(batch, draw_iterations(batch, DRAFTED, Place(1, 0, r)), Fleet(1, "static", table, False)).finish_s
            for r in range(count)
        ]
    )
    for measure in (truth.max(axis=1), fast.max(axis=1)), (truth.mean(axis=1), fast.mean(axis=1)):
        error = math.sqrt((measure[0].var() + measure[1].var()) / count)
        assert abs(measure[0].mean() - measure[1].mean()) <= 4 * error
        assert measure[1].std() == pytest.approx(measure[0].std(), rel=0.35)
