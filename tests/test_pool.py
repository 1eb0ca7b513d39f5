"""The generation pool: dispatch over time, event order, agreement with the rollout and the reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_rollout import ReferenceReplica
from rollout_cases import cost_table, make_batch, sample_lists, tables

from rlsim.simulation.pool import GenerationPool
from rlsim.simulation.rollout import rollout, samples_of
from rlsim.simulation.samples import Sample


def drive(pool: GenerationPool) -> list[tuple[float, int]]:
    """Event by event until idle."""
    done: list[tuple[float, int]] = []
    while (at := pool.next_event_time()) < math.inf:
        completed = pool.advance_to(at)
        assert all(time == at for time, _ in completed)
        done += completed
    return done


def test_everything_at_once_is_the_rollout() -> None:
    responses = (np.arange(60) * 37 % 200 + 1).tolist()
    batch = make_batch([30 + i for i in range(60)], responses, group_size=4)
    iterations = batch.response_tokens - 1
    table = cost_table(max_running_sequences=6, kv_capacity_tokens=900.0)
    expected = rollout(batch, iterations, 5, "round_robin", table)
    pool = GenerationPool(table, 5, "round_robin")
    pool.submit(0.0, samples_of(batch, iterations, np.arange(60)))
    done = drive(pool)
    assert {number: time for time, number in done} == pytest.approx(dict(enumerate(expected.finish_s)), rel=1e-12)
    assert [time for time, _ in done] == sorted(time for time, _ in done)
    assert pool.outstanding == 0
    assert pool.tally.iterations_at == expected.tally.iterations_at


@settings(max_examples=60)
@given(data=st.data())
def test_agrees_with_the_reference_over_time(data: st.DataObject) -> None:
    """Submissions and pauses at any time; sample i of a round-robin pool runs on replica i mod R."""
    table = data.draw(tables())
    samples = data.draw(sample_lists(table.tokens_per_sequence, most=30))
    gaps = st.sampled_from([0.0, 0.0, 0.02, 0.2])
    arrivals = np.cumsum(data.draw(st.lists(gaps, min_size=len(samples), max_size=len(samples)))).tolist()
    pause = (data.draw(st.floats(0.001, 0.7)), data.draw(st.floats(0, 0.1)))
    pool = GenerationPool(table, 3, "round_robin")
    references = [ReferenceReplica(table) for _ in range(3)]
    done: list[tuple[float, int]] = []
    for time in sorted({*arrivals, pause[0]}):
        while pool.next_event_time() < time:
            done += pool.advance_to(pool.next_event_time())
        arriving = [i for i, at in enumerate(arrivals) if at == time]
        pool.submit(time, [samples[i] for i in arriving])
        for i in arriving:
            references[i % 3].submit(time, [samples[i]])
        if time == pause[0]:
            pool.pause(*pause)
    done += drive(pool)
    finish: dict[int, float] = {}
    for reference in references:
        reference.interrupts = [(*pause, False)] if reference.waiting else []
        finish |= reference.run()
    assert {number: time for time, number in done} == pytest.approx(finish, rel=1e-5)


def test_least_loaded_takes_the_replica_with_the_fewest_unfinished() -> None:
    pool = GenerationPool(cost_table(), 3, "least_loaded")
    lengths = [500, 5, 500, 500, 5, 500]
    pool.submit(0.0, [Sample(i, i, 10, n, n - 1) for i, n in enumerate(lengths)])
    assert [replica.outstanding for replica in pool.replicas] == [2, 2, 2]
    while pool.outstanding == 6:
        pool.advance_to(pool.next_event_time())
    while pool.outstanding > 4:
        pool.advance_to(pool.next_event_time())
    assert [replica.outstanding for replica in pool.replicas] == [2, 0, 2]
    pool.submit(pool.next_event_time(), [Sample(10 + i, i, 10, 50, 49) for i in range(2)])
    assert [replica.outstanding for replica in pool.replicas] == [2, 2, 2]


def test_static_splits_each_submission_contiguously() -> None:
    pool = GenerationPool(cost_table(), 3, "static")
    pool.submit(0.0, [Sample(i, i, 10, 20, 19) for i in range(8)])
    assert [replica.outstanding for replica in pool.replicas] == [3, 3, 2]


def test_idle_pool_has_no_event_and_a_pause_delays_all() -> None:
    pool, paused = (GenerationPool(cost_table(), 2, "round_robin") for _ in range(2))
    assert pool.next_event_time() == math.inf
    assert pool.advance_to(100.0) == []
    samples = [Sample(i, i, 10, 300, 299) for i in range(4)]
    for each in (pool, paused):
        each.submit(0.0, samples)
    paused.pause(0.3, 2.0)
    plain, delayed = drive(pool), drive(paused)
    assert [time + 2.0 for time, _ in plain] == pytest.approx([time for time, _ in delayed], rel=1e-12)


def test_run_with_a_callback_is_the_same_event_by_event() -> None:
    table = cost_table(max_running_sequences=5)
    samples = [Sample(i, i // 4, 10, 20 + 31 * i % 57, 19 + 31 * i % 57) for i in range(60)]
    outcomes = []
    for callback in (False, True):
        pool, waiting, done = GenerationPool(table, 3, "round_robin"), samples[20:], []

        def finished(
            time: float,
            number: int,
            pool: GenerationPool = pool,
            waiting: list[Sample] = waiting,
            done: list[tuple[float, int]] = done,
        ) -> None:
            done.append((time, number))
            if waiting:
                pool.submit(time, [waiting.pop(0)])

        pool.submit(0.0, samples[:20])
        if callback:
            pool.run(math.inf, finished)
        while (at := pool.next_event_time()) < math.inf:
            for time, number in pool.advance_to(at):
                finished(time, number)
        outcomes.append(done)
    assert len(outcomes[0]) == 60
    assert outcomes[0] == outcomes[1]


def test_facts_count_since_the_last_call() -> None:
    pool = GenerationPool(cost_table(), 2, "round_robin")
    pool.submit(0.0, [Sample(i, i, 10, 101, 100) for i in range(4)])
    drive(pool)
    first = pool.facts(1.0)
    assert (first["decode_iterations"], first["mean_batch"], first["prefill_tokens"]) == (200.0, 2.0, 40.0)
    assert pool.facts(1.0)["decode_iterations"] == 0.0


def test_equal_submissions_give_equal_bits() -> None:
    runs = []
    for _ in range(2):
        pool = GenerationPool(cost_table(max_running_sequences=4), 3, "least_loaded")
        pool.submit(0.0, [Sample(i, i // 4, 10, 20 + 31 * i % 57, 19 + 31 * i % 57) for i in range(40)])
        pool.recompute_kv(0.11)
        runs.append(drive(pool))
    assert runs[0] == runs[1]
