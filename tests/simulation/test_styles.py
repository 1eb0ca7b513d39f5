"""What frameworks do differently between generation and training: closed forms, conservation, and what moves what."""

from dataclasses import astuple

import pytest
from fixed_costs import PROMPT, Driven, FixedCosts, World, rules, run, steps, world_of
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rollout_cases import cost_table

from rlsim.errors import Infeasible
from rlsim.results import TokenLedger
from rlsim.schema.asynchrony import STYLES
from rlsim.simulation.asynchronous import TokenAccount

LOGNORMAL = "workload.response_tokens={kind: lognormal, mean_tokens: 200, log_sigma: 0.8}"
ALONE = {"prompts": 4, "size": 2, "replicas": 1, "tokens": 401}
GENERATION_S = 100.0
"""400 iterations of 0.25 s, whatever the batch."""
NO_OVERLAP = "loop.overlap=false"
FRACTION = ("loop.policy_lag=0", "loop.staleness_fraction=0.5")


def balanced(ledger: TokenLedger) -> None:
    """generated = consumed + stale + discarded + regenerated + in flight."""
    generated, *rest = astuple(ledger)
    assert generated == pytest.approx(sum(rest), rel=1e-9, abs=1e-3)
    assert min(rest[:-1]) >= -1e-6


@pytest.mark.parametrize("style", sorted(STYLES))
def test_without_overlap_a_step_is_generation_training_and_refit(style):
    """Constant lengths, one replica, nothing ahead: every mode is the synchronous split, whatever updates do."""
    costs = FixedCosts()
    for step in steps(costs, NO_OVERLAP, "loop.mode=async", f"loop.style={style}", "loop.policy_lag=0", **ALONE)[1:]:
        # A framework without a limit has a batch ready whenever its trainer asks for one, if several are in flight.
        more = STYLES[style].unlimited and STYLES[style].in_flight != (1, "batches")
        if more and step.step > (STYLES[style].max_age or step.step):
            break  # all started at once and are too old by now
        waits_s = 0.0 if more else GENERATION_S
        assert step.phases["exposed_generation_s"] == pytest.approx(waits_s)
        assert step.seconds == pytest.approx(waits_s + costs.trainer_s + costs.refit_s)


LAG_1 = {style: rules for style, rules in STYLES.items() if not rules.unlimited}


@pytest.mark.parametrize("style", sorted(LAG_1))
@pytest.mark.parametrize("train_s", [4.0, 300.0])
def test_one_batch_ahead_a_step_is_the_longer_of_both_and_the_refit(style, train_s):
    """Where requests go on; those that start again or are dropped lose what they had."""
    costs = FixedCosts(train_s=train_s)
    found = steps(costs, f"loop.style={style}", "loop.restart_requests=false", lag=1, **ALONE)[3:-1]
    resubmitted_s = LAG_1[style].resubmit_s if train_s < GENERATION_S else 0.0
    mean_s = sum(step.seconds for step in found) / len(found)
    if LAG_1[style].membership != "target" or LAG_1[style].at_take:
        # Both batches may be generated at once: an engine that takes any batch makes two in the time of one.
        assert costs.trainer_s + costs.refit_s <= mean_s
        assert mean_s <= max(GENERATION_S, costs.trainer_s) + costs.refit_s + resubmitted_s + 1e-9
        return
    assert mean_s == pytest.approx(max(GENERATION_S, costs.trainer_s) + costs.refit_s + resubmitted_s)


@given(
    prompts=st.integers(1, 6), size=st.integers(1, 4), replicas=st.integers(1, 4), seed=st.integers(0, 10_000),
    unit=st.sampled_from(["group", "sample", "batch"]), membership=st.sampled_from(["target", "first_done"]),
    train_s=st.sampled_from([0.0, 4.0, 300.0]),
)  # fmt: skip
def test_lag_0_is_the_synchronous_split(prompts, size, replicas, seed, unit, membership, train_s):
    costs = FixedCosts(train_s=train_s, prepare_s=0.5, refit_s=0.5, slots=8)
    shape = {"prompts": prompts, "size": size, "replicas": replicas}
    keys = (LOGNORMAL, "simulation.steps=5", f"simulation.seed={seed}", "engine.dispatch=round_robin")
    lagged = (*keys, "loop.mode=async", f"loop.start_unit={unit}", f"loop.membership={membership}")
    together, apart = steps(costs, *keys, **shape), steps(costs, *lagged, **shape)
    for one, other in zip(together, apart, strict=True):
        assert other.seconds == pytest.approx(one.seconds, rel=1e-9)
        assert other.phases["exposed_generation_s"] == pytest.approx(one.phases["generation_s"], rel=1e-9)
        assert (other.samples, other.total_tokens, other.staleness) == (one.samples, one.total_tokens, one.staleness)


@given(one=rules(), lag=st.integers(1, 3), prompts=st.integers(1, 5), size=st.integers(1, 3))
def test_infinitely_fast_generation_leaves_the_trainers_time(one, lag, prompts, size):
    costs = FixedCosts(iteration_s=0.0)
    found = steps(costs, LOGNORMAL, "simulation.steps=6", *one, lag=lag, prompts=prompts, size=size)
    every = int(next((key.partition("=")[2] for key in one if key.startswith("loop.update_every")), "1"))
    resubmit_s = 0.25 if "loop.style=areal" in one else 0.0
    for step in found:
        refit_s = costs.refit_s if (step.step + 1) % every == 0 else 0.0
        own_s = costs.trainer_s + refit_s
        assert own_s - 1e-9 <= step.seconds <= own_s + resubmit_s + 1e-9


def world_with(one: tuple[str, ...], lag: int, seed: int, factor: float, slots: int, train_s: float) -> World:
    """A lagged loop on an engine with few slots and little cache."""
    world = world_of(
        FixedCosts(train_s=train_s), LOGNORMAL, "workload.max_sequence_tokens=700", "simulation.steps=5",
        "simulation.warmup_steps=1", f"simulation.seed={seed}", f"workload.generated_batch_factor={factor}", *one,
        lag=lag, prompts=4, size=3, replicas=3,
    )  # fmt: skip
    table = cost_table(max_running_sequences=slots, max_batched_tokens=60, kv_capacity_tokens=760.371717)
    return replace(world, prices=replace(world.prices, iteration=table))


@given(
    one=rules(), lag=st.integers(1, 3), seed=st.integers(0, 10_000), factor=st.sampled_from([1, 1.4]),
    slots=st.integers(1, 8), train_s=st.sampled_from([0.0, 2.0, 60.0]),
)  # fmt: skip
def test_every_token_is_somewhere(one, lag, seed, factor, slots, train_s):
    world = world_with(one, lag, seed, factor, slots, train_s)
    try:
        first, second = run(world), run(world)
    except Infeasible:
        stale = [f"loop.style={style}" for style, rules in STYLES.items() if rules.stale != "train"]
        assert any("stale" in key or key in stale for key in one)
        return
    balanced(first.ledger)
    assert {step.samples for step in first.steps} == {12}
    assert (first.steps, first.ledger, first.spans) == (second.steps, second.ledger, second.spans)


@given(
    one=rules(), seed=st.integers(0, 10_000), slots=st.integers(1, 8),
    times_s=st.lists(st.floats(0.01, 8.0), min_size=1, max_size=6),
)  # fmt: skip
def test_every_token_is_somewhere_at_any_time(one, seed, slots, times_s):
    world = world_with(one, 2, seed, 1.0, slots, 1.0)
    driven = Driven(world)
    account, now_s = TokenAccount(world.workload, driven.generation), 0.0
    for number, later_s in enumerate(times_s):
        now_s += later_s
        generation = driven.at(now_s)
        balanced(account.balance())
        if number % 2:
            generation.pause(0.1)
            now_s += 0.1
            driven.at(now_s).publish_weights()
            balanced(account.balance())


def test_what_is_lost_is_named():
    """Restarts generate again, a limit on age drops, dynamic sampling discards; a kept cache loses nothing."""

    def ledger(*one: str, factor: float = 1.0) -> TokenLedger:
        keys = (LOGNORMAL, f"workload.generated_batch_factor={factor}", *FRACTION, "loop.membership=first_done", *one)
        found = run(world_of(FixedCosts(slots=4), *keys, lag=1, prompts=8)).ledger
        return found

    kept = ledger()
    assert (kept.stale, kept.discarded, kept.regenerated) == (0.0, 0.0, 0.0)
    assert ledger("loop.restart_requests=true").regenerated > 0
    assert ledger("loop.recompute_kv=true").regenerated == 0
    assert ledger(factor=1.5).discarded > 0
    for stale in ("drop", "cancel"):
        assert ledger(f"loop.stale={stale}", "loop.max_age=0").stale > 0


LONGER = {"lengths": {1: [401, 1601, 401, 401]}, "prompts": 4, "size": 1, "replicas": 1}
"""A sample of the second batch takes 400 s where the others take 100 s."""


def keys(style: str) -> tuple[str, ...]:
    return ("simulation.steps=6", "loop.in_flight_updates=null", f"loop.style={style}")


def tokens_of(step):
    return sum(step.token_ages.values())


@pytest.mark.parametrize("style", STYLES)
def test_every_token_has_an_age_and_none_is_older_than_its_sample(style):
    for step in steps(FixedCosts(), *keys(style), lag=1, **LONGER):
        assert tokens_of(step) == pytest.approx(step.total_tokens - 4 * PROMPT)
        assert max(step.token_ages) <= max(step.staleness)


def test_requests_that_are_awaited_have_tokens_of_one_age_and_those_that_go_on_of_several():
    """nemo_rl drains: what a step trains on was begun and ended with the same weights."""
    for step in steps(FixedCosts(), *keys("nemo_rl"), lag=1, **LONGER):
        assert set(step.token_ages) == set(step.staleness)
    # The long sample starts before the first update and gets 4 tokens a second from then on, each with the weights of
    # its time; the step that trains on it tells all of them.
    found = steps(FixedCosts(), *keys("skyrl"), lag=1, **LONGER)
    assert max(len(step.token_ages) for step in found) >= 3
