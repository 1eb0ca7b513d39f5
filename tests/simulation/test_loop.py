"""The synchronous loop and what a trace keeps."""

import numpy as np
import pytest
from fixed_costs import PROMPT, FixedCosts, run, steps, world_of

from rlsim.costs.interface import EngineCounters
from rlsim.simulation.trace import CURVE_POINTS, Trace
from rlsim.workload.draw import steps_per_lag_cycle

SERIAL = ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s")
LOGNORMAL = "workload.response_tokens={kind: lognormal, mean_tokens: 300, log_sigma: 0.8}"


def test_a_step_is_the_sum_of_its_phases():
    costs = FixedCosts()
    for step in steps(costs, tokens=401):
        assert step.phases["generation_s"] == 400 * costs.iteration_s
        assert step.seconds == sum(step.phases[name] for name in SERIAL) == 100 + 2 + costs.trainer_s
        assert step.phases["refit_s"] == costs.refit_s
        assert step.phases["exposed_generation_s"] == step.phases["generation_s"]
        assert step.staleness == {0: 8}


def test_the_longest_sample_ends_generation():
    step = steps(FixedCosts(), "simulation.steps=1", lengths={0: [11, 21, 401, 31, 41, 51, 61, 71]})[0]
    assert step.phases["generation_s"] == 100.0
    assert (step.samples, step.generated_tokens) == (8, 401 + 11 + 21 + 31 + 41 + 51 + 61 + 71)
    assert step.total_tokens == step.generated_tokens + 8 * PROMPT


def test_steps_follow_each_other_without_gaps_on_different_work():
    found = steps(FixedCosts(), LOGNORMAL)
    assert [step.step for step in found] == list(range(12))
    assert [step.start_s for step in found] == [0.0, *(step.end_s for step in found[:-1])]
    assert len({step.generated_tokens for step in found}) == 12


def test_spans_cover_the_step_one_after_the_other():
    trace = run(world_of(FixedCosts(), LOGNORMAL))
    for step in trace.steps:
        own = [s for s in trace.spans if s.step == step.step and not s.actor.startswith("replica")]
        assert [s.phase for s in own] == ["prepare_s", "generation_s", "data_s", "logprob_s", "train_s"]
        assert [s.start_s for s in own] == [step.start_s, *(s.end_s for s in own[:-1])]
        assert own[-1].end_s == step.end_s
    generation = next(s for s in trace.spans if s.phase == "generation_s")
    replicas = [s for s in trace.spans if s.actor.startswith("replica")]
    assert {s.start_s for s in replicas} == {generation.start_s}
    assert max(s.end_s for s in replicas) == generation.end_s


def test_split_pools_run_the_same_phases_in_turn():
    split = world_of(FixedCosts(), LOGNORMAL)
    together = world_of(FixedCosts(), LOGNORMAL, "cluster={num_gpus: 64}")
    assert (split.scenario.cluster.colocated, together.scenario.cluster.colocated) == (False, True)
    assert run(split).steps == run(together).steps


def test_dynamic_sampling_generates_more_than_it_trains_on():
    costs = FixedCosts()
    step = steps(costs, "workload.generated_batch_factor=1.5", "simulation.steps=1", prompts=4, size=2)[0]
    assert step.generated_tokens == 12 * 401
    assert step.samples == 8
    assert step.total_tokens == 8 * (401 + PROMPT)
    assert step.staleness == {0: 8}


def test_rewards_come_after_the_last_token():
    plain, delayed = (steps(FixedCosts(), f"workload.environment_s={s}", "simulation.steps=1")[0] for s in (0, 7))
    assert delayed.phases["generation_s"] == plain.phases["generation_s"] + 7
    assert delayed.seconds == plain.seconds + 7


def test_only_the_first_replication_keeps_spans_and_curves():
    world = world_of(FixedCosts())
    assert run(world).curves
    trace = run(world, detailed=False)
    assert (trace.spans, trace.curves) == ([], [])
    assert len(trace.steps) == 12


@pytest.mark.parametrize(("lag", "asked", "measured"), [(0, 5, 5), (1, 5, 5), (2, 3, 4), (2, 4, 4), (3, 1, 3)])
def test_asynchronous_steps_are_measured_in_whole_cycles(lag, asked, measured):
    scenario = world_of(FixedCosts(), f"simulation.steps={asked}", lag=lag).scenario
    assert len(scenario.measured_steps) == measured
    assert measured % steps_per_lag_cycle(scenario) == 0


def test_warm_up_steps_do_not_count_in_the_tally():
    lengths = {step: [4 * step + 5] * 8 for step in range(5)}
    trace = run(world_of(FixedCosts(), "simulation.steps=3", "simulation.warmup_steps=2", lengths=lengths))
    assert len(trace.steps) == 5
    assert sum(trace.counters.iterations_at) == 2 * sum(4 * step + 4 for step in (2, 3, 4))


def test_a_long_curve_is_thinned_to_its_shape():
    trace = Trace(detailed=True)
    times = np.arange(10_001.0)
    trace.curve("counter", times.tolist(), (2 * times).tolist())
    curve = trace.curves[0]
    assert len(curve.times_s) == len(curve.values) == CURVE_POINTS
    assert (curve.times_s[0], curve.times_s[-1]) == (0.0, 10_000.0)
    assert np.array_equal(curve.values, 2 * np.asarray(curve.times_s))
    assert np.diff(curve.times_s).min() > 0
    assert np.diff(curve.times_s).max() <= 6
    trace.curve("short", [0.0, 1.0, 5.0], [3.0, 2.0, 0.0])
    assert trace.curves[1].times_s == (0.0, 1.0, 5.0)


def test_counters_can_be_taken_away():
    before, after = EngineCounters(4), EngineCounters(4)
    before.count(2, 10, 100.0)
    after.count(2, 10, 100.0)
    after.count(2, 5, 40.0)
    after.count(3, 1, 7.0)
    after.prefill(64, 0.5)
    after.add(before, -1)
    assert after.iterations_at == [0, 0, 5, 1, 0]
    assert after.context_at == [0.0, 0.0, 200.0, 7.0, 0.0]
    assert (after.prefill_iterations, after.prefill_tokens, after.prefill_s) == (1, 64, 0.5)
    assert after.mean_batch == pytest.approx(13 / 6)
    assert after.mean_context_tokens == pytest.approx(207 / 6)
