"""The generation pool: dispatch over time, event order, agreement with the rollout and the reference."""

import math

import numpy as np
import pytest
from fixed_costs import PROMPT, FixedCosts
from hypothesis import given
from hypothesis import strategies as st
from reference_rollout import ReferenceReplica
from rollout_cases import cost_table, make_batch, sample_lists, tables, told

from rlsim.schema.engine import Migration
from rlsim.simulation.pool import Fleet, GenerationPool
from rlsim.simulation.requests import Request
from rlsim.simulation.rollout import RolloutResult, rollout, samples_of


def advance(pool: GenerationPool, time_s: float) -> list[tuple[float, int]]:
    """Run until a time; what finished by then."""
    done: list[tuple[float, int]] = []

    def finished(at: float, sample: int, replica: int) -> bool:
        done.append((at, sample))
        return False

    assert not pool.run(time_s, finished)
    return done


def drive(pool: GenerationPool) -> list[tuple[float, int]]:
    """Event by event until idle."""
    done: list[tuple[float, int]] = []
    while (at := pool.next_event_time()) < math.inf:
        completed = advance(pool, at)
        assert all(time == at for time, _ in completed)
        done += completed
    return done


@given(data=st.data())
def test_agrees_with_the_reference_over_time(data: st.DataObject) -> None:
    """Submissions and pauses at any time; sample i of a round-robin pool runs on replica i mod R."""
    table = data.draw(tables())
    samples = data.draw(sample_lists(table.tokens_per_sequence, most=30))
    gaps = st.sampled_from([0.0, 0.0, 0.02, 0.2])
    arrivals = np.cumsum(data.draw(st.lists(gaps, min_size=len(samples), max_size=len(samples)))).tolist()
    pause = (data.draw(st.floats(0.001, 0.7)), data.draw(st.floats(0, 0.1)))
    pool = GenerationPool(Fleet(3, "round_robin", table))
    references = [ReferenceReplica(table) for _ in range(3)]
    done: list[tuple[float, int]] = []
    for time in sorted({*arrivals, pause[0]}):
        while pool.next_event_time() < time:
            done += advance(pool, pool.next_event_time())
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


def test_static_and_least_loaded_dispatch() -> None:
    pool = GenerationPool(Fleet(3, "least_loaded", cost_table()))
    lengths = [500, 5, 500, 500, 5, 500]
    pool.submit(0.0, [Request(i, i, 10, n, n - 1) for i, n in enumerate(lengths)])
    assert [replica.outstanding for replica in pool.replicas] == [2, 2, 2]
    while pool.outstanding == 6:
        advance(pool, pool.next_event_time())
    while pool.outstanding > 4:
        advance(pool, pool.next_event_time())
    assert [replica.outstanding for replica in pool.replicas] == [2, 0, 2]
    pool.submit(pool.next_event_time(), [Request(10 + i, i, 10, 50, 49) for i in range(2)])
    assert [replica.outstanding for replica in pool.replicas] == [2, 2, 2]
    pool = GenerationPool(Fleet(3, "static", cost_table()))
    pool.submit(0.0, [Request(i, i, 10, 20, 19) for i in range(8)])
    assert [replica.outstanding for replica in pool.replicas] == [3, 3, 2]
    # Groups of 3 that start one after the other would all go to the first 3 of 4 replicas.
    pool = GenerationPool(Fleet(4, "static", cost_table()))
    for group in range(4):
        pool.submit(0.0, [Request(3 * group + i, group, 10, 20, 19) for i in range(3)])
    assert [replica.outstanding for replica in pool.replicas] == [3, 3, 3, 3]


@pytest.mark.parametrize("later", [0, 12])
def test_a_shared_queue_hands_the_next_sample_to_whoever_has_room(later: int) -> None:
    """Two slots on each of two replicas; the long sample keeps one slot while the other three serve the rest."""
    table = cost_table(max_running_sequences=2, attention_s=0.0, sequence_s=0.0, prefill_s=0.0)
    samples = [Request(i, i, 2, 1001 if i == 0 else 11, 1000 if i == 0 else 10) for i in range(24)]
    pool = GenerationPool(Fleet(2, "shared_queue", table))
    pool.submit(0.0, samples[: 24 - later])
    assert pool.waits_for_room
    assert [replica.outstanding for replica in pool.replicas] == [2, 2]
    if later:
        advance(pool, 0.0)
        pool.submit(0.0, samples[24 - later :])
    assert pool.outstanding == 24
    done = drive(pool)
    assert sorted(number for _, number in done) == list(range(24))
    assert done[-1][1] == 0
    assert done[-2][0] < 0.5 * done[-1][0]


TOKEN_S = 2.0**-10


def ran(costs: FixedCosts, responses: list[int], migration: Migration, kv_token_s: float = 0.0) -> RolloutResult:
    """Two replicas, to each of which half of the samples is dealt."""
    batch = make_batch([PROMPT] * len(responses), responses)
    fleet = Fleet(2, "static", costs.iteration, migration=migration, kv_token_s=kv_token_s)
    return rollout(batch, batch.response_tokens - 1, fleet)


def test_half_of_those_that_wait_move_for_nothing_and_others_the_cheaper_way() -> None:
    """One slot a replica: 100 iterations each, four on one replica, none on the other after its prefills."""
    responses = [101] * 4 + [1] * 4
    assert ran(FixedCosts(slots=1), responses, "none").seconds == 4 * 100 * 0.25
    assert ran(FixedCosts(slots=1), responses, "cheaper").seconds == 2 * 100 * 0.25
    assert told(ran(FixedCosts(), [101] * 8, "cheaper")) == told(ran(FixedCosts(), [101] * 8, "none"))
    costs = FixedCosts(prefill_token_s=TOKEN_S)
    for kv_token_s, way in ((TOKEN_S / 8, "transfer"), (8 * TOKEN_S, "recompute")):
        found = ran(costs, [401, 401, 101, 101], "cheaper", kv_token_s)
        assert told(found) == told(ran(costs, [401, 401, 101, 101], way, kv_token_s))


@pytest.mark.parametrize(("migration", "kv_token_s"), [("recompute", 0.0), ("transfer", TOKEN_S), ("cheaper", TOKEN_S)])
def test_a_running_request_pays_for_its_context(migration: Migration, kv_token_s: float) -> None:
    """The newer of two moves after 100 of 400 iterations, with 10 + 101 tokens, the last of which is in no cache."""
    costs = FixedCosts(prefill_token_s=TOKEN_S)
    found = ran(costs, [401, 401, 101, 101], migration, kv_token_s)
    start_s, before = 2 * PROMPT * TOKEN_S, PROMPT + 101
    dry_s = start_s + 100 * 0.25
    # Prefilled again it emits the next token; over the link all but one token are there, and that one is prefilled.
    move_s = (before - 1) * kv_token_s + TOKEN_S if migration == "transfer" else before * TOKEN_S
    assert found.finish_s[0] == start_s + 400 * 0.25
    assert found.finish_s[1] == pytest.approx(dry_s + move_s + 299 * 0.25, abs=0.25 + 2 * TOKEN_S)
    assert found.finish_s[1] - dry_s - 299 * 0.25 >= move_s - 1e-9
    assert found.replica.tolist() == [0, 1, 1, 1]


@given(responses=st.lists(st.integers(1, 400), min_size=4, max_size=60),
       migration=st.sampled_from(["recompute", "transfer", "cheaper"]),
       dispatch=st.sampled_from(["static", "least_loaded", "shared_queue"]), slots=st.integers(1, 16),
       room=st.sampled_from([1e9, 1100.0]))  # fmt: skip
def test_every_token_is_generated_once(responses, migration, dispatch, slots, room):
    batch = make_batch([PROMPT] * len(responses), responses)
    table = cost_table(max_running_sequences=slots, kv_capacity_tokens=room)
    pool, done = GenerationPool(Fleet(3, dispatch, table, True, migration, 1e-6)), []
    pool.submit(0.0, samples_of(batch, batch.response_tokens - 1, np.arange(len(responses))))
    pool.run(math.inf, lambda time_s, sample, replica: bool(done.append(sample)))
    assert sorted(done) == list(range(len(responses)))
    assert pool.emitted.generated_tokens == pytest.approx(sum(responses), rel=1e-9)
    assert (pool.outstanding, pool.emitted.regenerated_tokens, pool.emitted.discarded_tokens) == (0, 0.0, 0.0)
