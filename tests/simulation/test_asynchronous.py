"""The asynchronous loop: the generator (NeMo-RL's collector), the trainer's waiting, refits, staleness."""

import gc
import weakref
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from fixed_costs import Driven, FixedCosts, run, steps, world_of
from hypothesis import given
from hypothesis import strategies as st

from rlsim.simulation.asynchronous import TokenVersions
from rlsim.simulation.generation import Generation
from rlsim.simulation.trace import StepRecord

TRAINER = ("data_s", "logprob_s", "train_s")
SLOW = FixedCosts(train_s=196.0)
"""200 s of training beside 100 s of generation."""
LOGNORMAL = "workload.response_tokens={kind: lognormal, mean_tokens: 300, log_sigma: 0.8}"


def total_s(found: list[StepRecord]) -> float:
    return found[-1].end_s


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_trainer_bound_steps_are_training_and_refit_on_weights_up_to_the_lag(lag):
    found = steps(SLOW, lag=lag, tokens=401)
    for step in found[1:]:
        assert step.phases["exposed_generation_s"] == 0.0
        assert step.seconds == SLOW.trainer_s + SLOW.refit_s
    if lag == 1:
        assert {step.phases["generation_s"] for step in found[2:]} == {100.0}, "idle during the refit, busy for a batch"
    ages = [step.staleness for step in found]
    assert ages == [{min(step, lag): 8} for step in range(12)]
    trace = run(world_of(FixedCosts(), LOGNORMAL, lag=lag, prompts=16))
    starts = {span.step: span.start_s for span in trace.spans if span.actor == "generator"}
    assert set(range(12)) <= set(starts)
    for target, start_s in starts.items():
        if target > lag:
            assert start_s >= trace.steps[target - lag - 1].end_s


def test_generation_bound_steps_are_generation_and_refit_which_pauses_it():
    costs = FixedCosts()
    first, *others = steps(costs, lag=1, tokens=401)
    assert (first.phases["exposed_generation_s"], first.staleness) == (100.0, {0: 8})
    for step in others:
        assert step.seconds == 100.0 + costs.refit_s
        assert step.phases["generation_s"] == 100.0
        assert step.phases["exposed_generation_s"] == 100.0 - costs.trainer_s
    # Generation-bound, each batch is interrupted by one refit.
    short, long = (steps(FixedCosts(refit_s=s), lag=1, tokens=401)[3] for s in (0.5, 8.0))
    assert long.seconds - short.seconds == 7.5
    assert long.phases["generation_s"] == short.phases["generation_s"] == 100.0
    assert (short.phases["refit_s"], long.phases["refit_s"]) == (0.5, 8.0)


@pytest.mark.parametrize("poll_s", [0.5, 7.0])
def test_the_trainer_looks_at_intervals(poll_s):
    exact, polled = (steps(FixedCosts(), f"loop.poll_s={p}", lag=1, tokens=402) for p in (0.0, poll_s))
    assert exact[0].phases["exposed_generation_s"] == 100.25
    assert polled[0].phases["exposed_generation_s"] == np.ceil(100.25 / poll_s) * poll_s
    assert all(step.phases["exposed_generation_s"] % poll_s == 0 for step in polled)
    assert 0 <= total_s(polled) - total_s(exact) < poll_s


@pytest.mark.parametrize("lag", [1, 2])
def test_at_most_lag_batches_of_groups_are_in_flight(lag):
    trace = run(world_of(FixedCosts(), LOGNORMAL, lag=lag, prompts=16, size=4))
    (curve,) = trace.curves
    assert max(curve.values) == 16 * 4 * lag
    assert Driven(world_of(FixedCosts(), lag=lag, prompts=16, size=4)).generation.in_flight == 16 * lag


def test_a_straggling_group_stalls_its_own_step_only():
    """Target 1 holds one sample of 1,000 s; the batch of target 2 is ready long before it."""
    lengths = {1: [401] * 7 + [4001]}
    trace = run(world_of(FixedCosts(), lag=2, tokens=401, lengths=lengths))
    ends = {span.step: span.end_s for span in trace.spans if span.actor == "generator"}
    assert ends[2] < ends[1]
    straggled, after = trace.steps[1], trace.steps[2]
    assert straggled.start_s + straggled.phases["exposed_generation_s"] == ends[1] >= 1000.0
    assert after.phases["exposed_generation_s"] == 0.0


def test_a_blocked_generator_starts_nothing_and_a_pause_is_neither_busy_nor_time_to_generate():
    """Four groups may be in flight; one of target 0 is done first and leaves its place to target 1."""
    lengths = {0: [5, 5, 401, 401, 401, 401, 401, 401]}
    world = world_of(FixedCosts(), lag=1, lengths=lengths)
    free, driven = Driven(world).at(50.0), Driven(world)
    driven.at(0.0).pause(0.0)
    blocked = driven.at(50.0)
    assert (free.in_flight, blocked.in_flight) == (4, 3)
    blocked.publish_weights()
    assert blocked.in_flight == 4
    driven = Driven(world_of(FixedCosts(), lag=1, tokens=401))
    generation = driven.at(10.0)
    assert generation.busy_s == 10.0
    generation.pause(30.0)
    assert driven.at(40.0).busy_s == 10.0
    generation.publish_weights()
    assert driven.waited(generation.batch(0)) == 130.0
    assert generation.busy_s == 100.0


def test_rewards_keep_a_group_in_flight_and_dropped_groups_are_generated_but_not_trained_on():
    costs = FixedCosts()
    found = steps(costs, "workload.environment_s=5", lag=1, tokens=401)
    assert found[0].phases["exposed_generation_s"] == 105.0
    for step in found[1:]:
        assert step.seconds == pytest.approx(105.0 + costs.refit_s)
        assert step.phases["generation_s"] == pytest.approx(100.0)
    found = steps(costs, "workload.generated_batch_factor=1.5", lag=1, prompts=4, size=2)
    assert all(sum(step.staleness.values()) == step.samples == 8 for step in found)
    assert {step.generated_tokens for step in found} == {12 * 401}


def test_a_drained_pool_is_empty_at_the_refit_and_counters_leave_the_warm_up_out():
    trace = run(world_of(FixedCosts(), LOGNORMAL, "loop.in_flight_updates=false", lag=2, prompts=16))
    (curve,) = trace.curves
    for span in trace.spans:
        if span.phase == "refit_s":
            before = np.searchsorted(curve.times_s, span.start_s, side="right") - 1
            assert curve.values[before] == 0.0
    drained = [span for span in trace.spans if span.detail == "drain"]
    assert drained
    for step in trace.steps:
        waited = [s for s in trace.spans if s.phase == "exposed_generation_s" and s.step == step.step]
        assert step.phases["exposed_generation_s"] == pytest.approx(sum(s.end_s - s.start_s for s in waited))
    whole = run(world_of(FixedCosts(), lag=1, tokens=401))
    warm = run(world_of(FixedCosts(), "simulation.steps=8", "simulation.warmup_steps=4", lag=1, tokens=401))
    assert len(warm.steps) == len(whole.steps) == 12
    assert 3 * warm.counters.iterations == pytest.approx(2 * whole.counters.iterations, rel=0.1)


CASES: dict[str, Any] = {
    "lag": st.integers(1, 4), "prompts": st.integers(1, 6), "size": st.integers(1, 4), "replicas": st.integers(1, 5),
    "slots": st.integers(1, 8), "train_s": st.sampled_from([0.0, 1.0, 30.0, 300.0]),
    "refit_s": st.sampled_from([0.0, 0.7, 11.0]), "loop__poll_s": st.sampled_from([0, 0.5, 3]),
    "workload__environment_s": st.sampled_from([0, 0, 2.5]),
    "workload__generated_batch_factor": st.sampled_from([1, 1, 1.4]), "loop__in_flight_updates": st.booleans(),
    "loop__recompute_kv": st.booleans(), "simulation__seed": st.integers(0, 10_000),
    "engine__dispatch": st.sampled_from(["round_robin", "static", "least_loaded", "shared_queue"]),
}  # fmt: skip


@given(**CASES)
def test_what_holds_of_every_run(lag, prompts, size, replicas, slots, train_s, refit_s, **keys):
    costs = FixedCosts(train_s=train_s, refit_s=refit_s, slots=slots, prefill_token_s=1e-4)
    overrides = [f"{name.replace('__', '.')}={str(value).lower()}" for name, value in keys.items()]
    shape = {"lag": lag, "prompts": prompts, "size": size, "replicas": replicas}
    world = world_of(costs, LOGNORMAL, "simulation.steps=6", *overrides, **shape)
    trace = run(world)
    for step in trace.steps:
        phases = step.phases
        assert phases["exposed_generation_s"] >= 0.0
        assert -1e-9 <= phases["generation_s"] <= step.seconds - refit_s + 1e-9
        serial = phases["exposed_generation_s"] + phases["refit_s"] + sum(phases[name] for name in TRAINER)
        assert step.seconds == pytest.approx(serial)
        assert sum(step.staleness.values()) == step.samples == prompts * size
        assert min(step.staleness) >= min(step.step, 1)
        assert max(step.staleness) <= min(step.step, lag)
    assert [s.start_s for s in trace.steps] == [0.0, *(s.end_s for s in trace.steps[:-1])]
    spans = [s for s in trace.spans if s.actor == "generator"]
    assert len({s.step for s in spans}) == len(spans)
    ends = {s.step: s.end_s for s in spans}
    for step in trace.steps:
        assert ends[step.step] <= step.start_s + step.phases["exposed_generation_s"] + 1e-9
    assert run(world).steps == trace.steps


def test_a_run_leaves_nothing_behind():
    """Nothing of it waits for the garbage collector, which the command line hardly ever runs."""
    gc.collect()
    gc.disable()
    try:
        found = weakref.WeakSet[Generation]()
        world = world_of(FixedCosts(), lag=1)
        begin = Generation.__init__

        def noted(self, *given, **keys):
            begin(self, *given, **keys)
            found.add(self)

        with mock.patch.object(Generation, "__init__", noted):
            run(world)
        assert not found
    finally:
        gc.enable()


@pytest.mark.parametrize("publications", [1, 2, 3])
def test_tokens_are_as_old_as_weights_were_published_since(publications: int) -> None:
    """One sample gets 10 tokens before each publication and the rest of 100 after the last."""
    in_progress = mock.Mock(side_effect=[(np.array([0]), np.array([10.0 * (n + 1)])) for n in range(publications)])
    intake = SimpleNamespace(rules=SimpleNamespace(at_update="keep"), samples=lambda groups: np.array([0]))
    engines = SimpleNamespace(finish_s=np.array([99.0]))
    generation: Any = SimpleNamespace(intake=intake, engines=engines, in_progress=in_progress, clock=SimpleNamespace())
    versions = TokenVersions(SimpleNamespace(response_tokens=np.array([100])), generation)  # type: ignore[arg-type]
    for number in range(publications):
        generation.clock.now = 10.0 * (number + 1)
        versions.publish()
    expected = {0: 100.0 - 10.0 * publications} | {age + 1: 10.0 for age in range(publications)}
    assert versions.ages(np.array([0])) == expected
