"""engine.migration: requests that move to replicas that ran dry, by closed form and by conservation."""

import math

import numpy as np
import pytest
from fixed_costs import PROMPT, FixedCosts
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_cases import cost_table, make_batch, told

from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.schema.engine import Migration
from rlsim.simulation.pool import Fleet, GenerationPool
from rlsim.simulation.rollout import RolloutResult, rollout, samples_of

TOKEN_S = 2.0**-10


def ran(costs: FixedCosts, responses: list[int], migration: Migration, kv_token_s: float = 0.0) -> RolloutResult:
    """Two replicas, to each of which half of the samples is dealt."""
    batch = make_batch([PROMPT] * len(responses), responses)
    fleet = Fleet(2, "static", costs.iteration, migration=migration, kv_token_s=kv_token_s)
    return rollout(batch, batch.response_tokens - 1, fleet)


def test_half_of_those_that_wait_move_for_nothing() -> None:
    """One slot a replica: 100 iterations each, four on one replica, none on the other after its prefills."""
    responses = [101] * 4 + [1] * 4
    assert ran(FixedCosts(slots=1), responses, "none").seconds == 4 * 100 * 0.25
    assert ran(FixedCosts(slots=1), responses, "cheaper").seconds == 2 * 100 * 0.25
    assert told(ran(FixedCosts(), [101] * 8, "cheaper")) == told(ran(FixedCosts(), [101] * 8, "none"))


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


def test_the_cheaper_way_is_taken() -> None:
    costs = FixedCosts(prefill_token_s=TOKEN_S)
    for kv_token_s, way in ((TOKEN_S / 8, "transfer"), (8 * TOKEN_S, "recompute")):
        found = ran(costs, [401, 401, 101, 101], "cheaper", kv_token_s)
        assert told(found) == told(ran(costs, [401, 401, 101, 101], way, kv_token_s))


@settings(max_examples=60, deadline=None)
@given(
    responses=st.lists(st.integers(1, 400), min_size=4, max_size=60),
    migration=st.sampled_from(["recompute", "transfer", "cheaper"]),
    dispatch=st.sampled_from(["static", "least_loaded", "shared_queue"]),
    slots=st.integers(1, 16),
    room=st.sampled_from([1e9, 1100.0]),
)
def test_every_token_is_generated_once(responses, migration, dispatch, slots, room):
    batch = make_batch([PROMPT] * len(responses), responses)
    table = cost_table(max_running_sequences=slots, kv_capacity_tokens=room)
    pool, done = GenerationPool(Fleet(3, dispatch, table, True, migration, 1e-6)), []
    pool.submit(0.0, samples_of(batch, batch.response_tokens - 1, np.arange(len(responses))))
    pool.run(math.inf, lambda time_s, sample, replica: bool(done.append(sample)))
    assert sorted(done) == list(range(len(responses)))
    assert pool.emitted.generated_tokens == pytest.approx(sum(responses), rel=1e-9)
    assert (pool.outstanding, pool.emitted.regenerated_tokens, pool.emitted.discarded_tokens) == (0, 0.0, 0.0)


def test_none_is_the_plain_loop_bit_for_bit() -> None:
    plain = load_scenario("quickstart", ["simulation.replications=2"])
    neutral = load_scenario("quickstart", ["simulation.replications=2", "engine.migration=none"])
    assert project(plain).candidate == project(neutral).candidate
    moving = load_scenario("quickstart", ["simulation.replications=2", "engine.migration=cheaper"])
    assert project(moving).candidate.step_s.mean <= project(plain).candidate.step_s.mean
