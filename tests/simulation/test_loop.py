"""The synchronous loop and what a trace keeps."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fixed_costs import PROMPT, FixedCosts, run, steps, world_of
from fixed_costs import run as traced

from rlsim.costs.interface import EngineCounters
from rlsim.errors import Infeasible
from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.schema.workload import Workload
from rlsim.simulation.trace import CURVE_POINTS, Trace
from rlsim.workload.batches import draw_rollouts
from rlsim.workload.draw import steps_per_lag_cycle
from rlsim.workload.lengths import Place

SERIAL = ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s")
LOGNORMAL = "workload.response_tokens={kind: lognormal, mean_tokens: 300, log_sigma: 0.8}"


def test_a_step_is_the_sum_of_its_phases_and_rewards():
    costs = FixedCosts()
    for step in steps(costs, tokens=401):
        assert step.phases["generation_s"] == 400 * costs.iteration_s
        assert step.seconds == sum(step.phases[name] for name in SERIAL) == 100 + 2 + costs.trainer_s
        assert step.phases["refit_s"] == costs.refit_s
        assert step.phases["exposed_generation_s"] == step.phases["generation_s"]
        assert step.staleness == {0: 8}
    step = steps(FixedCosts(), "simulation.steps=1", lengths={0: [11, 21, 401, 31, 41, 51, 61, 71]})[0]
    assert step.phases["generation_s"] == 100.0
    assert (step.samples, step.generated_tokens) == (8, 401 + 11 + 21 + 31 + 41 + 51 + 61 + 71)
    assert step.total_tokens == step.generated_tokens + 8 * PROMPT
    step = steps(costs, "workload.generated_batch_factor=1.5", "simulation.steps=1", prompts=4, size=2)[0]
    assert step.generated_tokens == 12 * 401
    assert step.samples == 8
    assert step.total_tokens == 8 * (401 + PROMPT)
    assert step.staleness == {0: 8}
    plain, delayed = (steps(FixedCosts(), f"workload.environment_s={s}", "simulation.steps=1")[0] for s in (0, 7))
    assert delayed.phases["generation_s"] == plain.phases["generation_s"] + 7
    assert delayed.seconds == plain.seconds + 7


def test_spans_follow_each_other_and_show_every_rollout():
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
    found = trace.steps
    assert [step.step for step in found] == list(range(12))
    assert [step.start_s for step in found] == [0.0, *(step.end_s for step in found[:-1])]
    assert len({step.generated_tokens for step in found}) == 12
    costs = FixedCosts()
    trace = traced(world_of(costs, SHARE, "workload.environment_s=7", prompts=8, size=2))
    found = trace.steps
    assert trace.counters.iterations == sum(step.rollouts for step in found) * 2 * 400
    assert max(step.rollouts for step in found) > 2
    for step in found:
        rollouts = step.rollouts
        assert step.phases["generation_s"] == rollouts * (100 + 7)
        assert step.phases["prepare_s"] == costs.prepare_s + (rollouts - 1) * costs.wake_s
        assert step.generated_tokens == rollouts * 16 * 401
        assert (step.samples, step.total_tokens) == (16, 16 * (401 + PROMPT))
    trace = traced(world_of(FixedCosts(), SHARE, LOGNORMAL, prompts=8, size=2))
    first = trace.steps[0]
    lane = [span for span in trace.spans if span.actor == "replica 0" and span.step == 0]
    assert len(lane) == first.rollouts > 1
    generation = next(span for span in trace.spans if span.phase == "generation_s" and span.step == 0)
    assert max(s.end_s for s in trace.spans if s.actor.startswith("replica")) <= generation.end_s + 1e-9


def test_only_the_first_replication_keeps_spans_and_curves_long_ones_thinned_to_their_shape():
    world = world_of(FixedCosts())
    assert run(world).curves
    trace = run(world, detailed=False)
    assert (trace.spans, trace.curves) == ([], [])
    assert len(trace.steps) == 12
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


@pytest.mark.parametrize(("lag", "asked", "measured"), [(0, 5, 5), (1, 5, 5), (2, 3, 4), (2, 4, 4), (3, 1, 3)])
def test_asynchronous_steps_are_measured_in_whole_cycles(lag, asked, measured):
    scenario = world_of(FixedCosts(), f"simulation.steps={asked}", lag=lag).scenario
    assert len(scenario.measured_steps) == measured
    assert measured % steps_per_lag_cycle(scenario) == 0


def test_counters_can_be_taken_away_and_warm_up_steps_do_not_count():
    lengths = {step: [4 * step + 5] * 8 for step in range(5)}
    trace = run(world_of(FixedCosts(), "simulation.steps=3", "simulation.warmup_steps=2", lengths=lengths))
    assert len(trace.steps) == 5
    assert sum(trace.counters.iterations_at) == 2 * sum(4 * step + 4 for step in (2, 3, 4))
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


SHARE = "workload.usable_group_share=0.4"


def workload(**keys: object) -> Workload:
    given = {
        "prompts_per_step": 64, "generations_per_prompt": 4,
        "response_tokens": {"kind": "lognormal", "mean_tokens": 300, "log_sigma": 0.8}, "max_sequence_tokens": 4096,
    }  # fmt: skip
    return Workload.model_validate({**given, **keys})


def test_rollouts_repeat_until_just_enough_groups_are_usable_or_end_as_infeasible() -> None:
    counts = []
    for step in range(200):
        found = draw_rollouts(workload(usable_group_share=0.4), Place(0, step, 0))
        counts.append(len(found))
        trained = [one.trained for one in found]
        assert sum(int(mask.sum()) for mask in trained) == 64 * 4
        assert sum(int(mask.sum()) for mask in trained[:-1]) < 64 * 4
        assert all(len(np.unique(mask[one.batch.group == g])) == 1 for one, mask in zip(found, trained, strict=True)
                   for g in (0, 63))  # fmt: skip
        first, second = found[0].batch, found[1].batch
        assert not np.array_equal(first.response_tokens, second.response_tokens)
    assert np.mean(counts) == pytest.approx(expected_rollouts(0.4, 64), rel=0.05)
    unlucky = workload(prompts_per_step=2, usable_group_share=0.5, max_rollouts_per_step=2)
    outcomes = []
    for step in range(60):
        try:
            outcomes.append(len(draw_rollouts(unlucky, Place(0, step, 0))))
        except Infeasible as error:
            assert "too few usable prompt groups in 2 rollouts" in str(error)
            assert str(pickle.loads(pickle.dumps(error))) == str(error)
            outcomes.append(0)
    assert {0, 1, 2} == set(outcomes)


def expected_rollouts(share: float, prompts: int) -> float:
    """Mean of the least n with Binomial(n x prompts, share) >= prompts, by brute force."""
    rng = np.random.default_rng(1)
    usable = rng.binomial(prompts, share, size=(20_000, 20)).cumsum(1)
    return float((1 + (usable < prompts).sum(1)).mean())


Command = Callable[..., tuple[int, str, str]]
TOO_FEW = ("--set", "workload.usable_group_share=0.5", "--set", "workload.max_rollouts_per_step=2")


@pytest.mark.parametrize("command", [("project", "quickstart"), ("plan", "quickstart")])
def test_commands_tell_it_in_one_message(command: tuple[str, ...], run: Command) -> None:
    code, out, told = run(*command, *TOO_FEW)
    assert (code, out) == (2, "")
    assert "too few usable prompt groups in 2 rollouts" in told
    assert "Traceback" not in told


def test_a_plan_looks_at_lag_0_and_refuses_to_look_further(run: Command) -> None:
    code, _, told = run("plan", "quickstart", "--max-staleness", "1", "--set", SHARE)
    assert code == 2
    assert "--max-staleness 0" in told


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_sweep_goes_on_behind_an_unlucky_cell(jobs: str, run: Command, tmp_path: Path) -> None:
    varied = ["--vary", "workload.max_rollouts_per_step=2,9", "--set", "workload.usable_group_share=0.5"]
    assert run("sweep", "quickstart", *varied, "--jobs", jobs, "--out", tmp_path / "out")[0] == 0
    lines = (tmp_path / "out" / "results.csv").read_text().splitlines()
    assert [("too few usable" in line, ",ok," in line) for line in lines[1:]] == [(True, False), (False, True)]


def test_both_arms_of_a_projection_repeat_the_same_rollouts() -> None:
    settings = ["simulation.replications=2", "workload.prompts_per_step=8", "trainer.global_batch_samples=null"]
    plain, repeated = (project(load_scenario("qwen8b_rl_zero", [*settings, *more])) for more in ([], [SHARE]))
    rollouts = repeated.baseline.statistics.rollouts
    assert rollouts == repeated.candidate.statistics.rollouts > 1
    assert plain.baseline.statistics.rollouts is None
    grown = repeated.baseline.phases["generation_s"].mean / plain.baseline.phases["generation_s"].mean
    assert grown == pytest.approx(rollouts, rel=0.15)
    assert repeated.baseline.phases["prepare_s"].mean > plain.baseline.phases["prepare_s"].mean
    parts = [{part.name: part.seconds for part in answer.candidate.parts if part.phase == "prepare_s"}
             for answer in (plain, repeated)]  # fmt: skip
    slept = parts[1].pop("engine sleep between rollouts")
    assert slept == pytest.approx((rollouts - 1) * (parts[0]["engine sleep"] + parts[0]["engine wake"]))
    assert parts[1] == pytest.approx(parts[0])
    assert any("Dynamic sampling" in line for line in repeated.assumptions)
