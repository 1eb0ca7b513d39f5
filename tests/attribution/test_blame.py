"""Idle time that adds up, removals that gain what they must, and the ladder up to the roofline."""

import itertools
import re

import numpy as np
import pytest

import rlsim
from rlsim.costs.efficiency import peak_flops, update_flops
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.change import equal_trajectories
from rlsim.projection.headroom import blame, causes_of, headroom
from rlsim.projection.moves import best_way, move_named
from rlsim.projection.project import project
from rlsim.projection.variant import compared, simulate_variant
from rlsim.report.style import Style
from rlsim.report.text.attribution import render_blame
from rlsim.results.planning import Blame
from rlsim.runs.run import run
from rlsim.workload.draw import DrawnWorkload, draw

FEW = ["simulation.replications=1", "simulation.steps=4", "workload.prompts_per_step=16"]
SPLIT = ["cluster={num_gpus: 8, generation_gpus: 4, training_gpus: 4}", "trainer.tensor_parallel=1"]


def blamed(*overrides: str, name: str = "quickstart") -> Blame:
    return blame(rlsim.load_scenario(name, [*FEW, "trainer.global_batch_samples=null", *overrides]))


@pytest.fixture(scope="module")
def lagged() -> Blame:
    return blamed(name="qwen8b_async_lag1")


def test_removals_add_up_to_all_that_is_not_work(lagged: Blame) -> None:
    for found in (blamed(), lagged):
        assert sum(one.chain_s for one in found.removals) == pytest.approx(found.step_s - found.left_s)
        for one in found.removals:
            assert one.saved_s == pytest.approx(found.step_s - one.step_s)
        assert 0.0 < found.work_share < 1.0
        assert sum(one.share for one in found.idle) + found.work_share == pytest.approx(1.0)
        assert min(one.gpu_s for one in found.idle) > 0.0


def test_a_refit_rewards_lengths_and_pools_are_causes_of_their_seconds() -> None:
    scenario = rlsim.load_scenario("quickstart", [*FEW, "trainer.global_batch_samples=null"])
    found, answer = blame(scenario), rlsim.project(scenario)
    refit = next(one for one in found.removals if one.cause == "refit")
    assert refit.saved_s == pytest.approx(answer.candidate.phases.prepare_s.mean)
    idle = next(one for one in found.idle if one.cause == "refit")
    assert idle.gpu_s == pytest.approx(refit.saved_s * found.num_gpus)
    assert {one.pool for one in found.idle} == {"all"}
    given = load_scenario("quickstart", ["simulation.replications=2", "workload.prompts_per_step=16"])
    answer = run(given, 2, replications=2)
    assert answer.candidate.busy_share == pytest.approx(blame(given).work_share, abs=0.03)
    assert answer.candidate.busy_share < 0.95
    found = blamed("workload.environment_s=25")
    environment = next(one for one in found.removals if one.cause == "environment")
    assert environment.saved_s == pytest.approx(25.0)
    assert next(one for one in found.idle if one.cause == "environment").gpu_s == pytest.approx(25.0 * 8)
    found = blamed("workload.response_tokens={kind: constant, tokens: 500}", "speculation={method: none}")
    tail = next(one for one in found.removals if one.cause == "straggler tail")
    assert tail.saved_s == pytest.approx(0.0, abs=1e-9)
    causes = {(one.pool, one.cause) for one in blamed(*SPLIT).idle}
    assert ("training", "generation meanwhile") in causes
    assert ("generation", "training meanwhile") in causes


def test_what_loops_wait_for_is_a_cause_clocks_limits_environments_and_policies(lagged: Blame) -> None:
    assert {"staleness limit", "polling"} <= {one.cause for one in lagged.removals}
    slow = blamed("loop.poll_s=50", "simulation.steps=12", name="qwen8b_async_lag1")
    polling = next(one for one in slow.removals if one.cause == "polling")
    assert polling.saved_s > 0.5
    found = blamed("loop.max_in_flight_groups=4", name="qwen8b_async_lag1")
    assert next(one for one in found.removals if one.cause == "queue cap").saved_s > 0.0
    few = ("workload.prompts_per_step=4", "workload.generations_per_prompt=4", "simulation.warmup_steps=2")
    found = blamed(*few, "simulation.steps=2", name="mlperf_grpo")
    environment = next(one for one in found.removals if one.cause == "environment")
    assert environment.saved_s > 0.5 * found.step_s
    assert not {"partial_rollouts", "tail_batching"} & {one.name for one in found.what_ifs}
    keys = ("trainer.global_batch_samples=64", "engine.dispatch=shared_queue")
    found = blamed(*keys)
    assert [one.name for one in found.what_ifs] == ["least_loaded", "partial_rollouts", "tail_batching"]
    # One move, one number: whatever command shows it.
    for one in found.what_ifs:
        asked = rlsim.load_scenario("quickstart", [*FEW, "trainer.global_batch_samples=null", *keys])
        tried = best_way(asked, move_named(one.name))
        assert not isinstance(tried, str)
        assert one.step_s == pytest.approx(tried.step_s)


AGENT = (
    "speculation.method=none", "trainer.global_batch_samples=null", "workload.response_tokens.mean_tokens=200",
    "workload.agent={turns: {kind: lognormal, mean_turns: 6, log_sigma: 0.8}, max_turns: 40, call_failure_share: 0.1, "
    "observation_tokens: {kind: lognormal, mean_tokens: 50}, environment_s: {kind: lognormal, mean_s: 2}}",
)  # fmt: skip


def test_the_straggler_trajectory_is_one_cause_for_idle_time_headroom_and_moves() -> None:
    scenario = load_scenario("quickstart", [*FEW, *AGENT])
    drawn = draw(scenario, 0).steps[0]
    (dealt,) = (step.steps[0] for step in [equal_trajectories(DrawnWorkload((drawn,), 1))])
    (old,), (new,) = ([one.turns for one in step.rollouts] for step in (drawn, dealt))
    assert np.ptp(np.diff(new.first)) <= 1 < np.ptp(np.diff(old.first))
    for name in ("response_tokens", "environment_s"):
        assert getattr(new, name).sum() == pytest.approx(getattr(old, name).sum())
    assert (new.calls * new.environment_s).sum() == pytest.approx((old.calls * old.environment_s).sum())
    assert dealt.iterations[0].sum() == drawn.iterations[0].sum()
    assert (np.diff(new.history_tokens) > new.response_tokens[:-1])[np.diff(new.history_tokens) > 0].all()
    idle, ladder = blame(scenario), headroom(scenario)
    assert {"environment", "straggler trajectory"} <= {one.cause for one in idle.idle}
    cause = next(one for one in idle.removals if one.cause == "straggler trajectory")
    (change,) = (one for one in causes_of(scenario) if one.name == cause.cause)
    with_it = simulate_variant(compared(scenario), changes=(change,))
    ratio = float(np.mean([step.seconds for step in with_it.every_step])) / cause.step_s
    assert ratio == pytest.approx(1.0)  # of stated replications, which nothing is carried over from
    # The same change is the rung, and what shortens the tail gains no more than its having none.
    assert next(one for one in ladder.rungs if one.name == "no straggler tail").saved_s > 0 < cause.saved_s
    found = {one.name: one.step_s for one in idle.what_ifs}
    for name in ("slowest_calls", "cap_turns"):
        tried = best_way(compared(scenario), move_named(name))
        assert not isinstance(tried, str)
        assert idle.step_s > found[name] == pytest.approx(tried.step_s)


CLIFF = (
    "simulation.replications=1", "simulation.steps=4", "engine.max_captured_tokens=256", "workload.prompts_per_step=32",
)  # fmt: skip
"""Requests of equal lengths stay beyond what is captured to the end."""


@pytest.mark.parametrize("loop", [(), ("lag=1",), ("lag=1", "loop.style=verl")])
def test_a_removal_that_costs_time_says_why_and_all_gain_at_least_what_one_does(loop: tuple[str, ...]) -> None:
    found = blame(load_scenario("quickstart", [*CLIFF, *loop]))
    slower = [one for one in found.removals if one.saved_s < 0]
    told = " ".join(render_blame(found, Style(width=200)).split())
    assert all(one.why and one.why in told and one.chain_s >= 0 for one in slower)
    assert all(one.chain_s >= 0 for one in found.removals)
    assert found.left_s <= min(one.step_s for one in found.removals) + 1e-6
    assert found.left_s == pytest.approx(found.step_s - sum(one.chain_s for one in found.removals))


@pytest.mark.nightly
def test_the_line_of_a_removal_that_costs_time_holds_the_reason() -> None:
    few = ("engine.tensor_parallel=8", "engine.expert_parallel=8", "generation_share=0.3125")
    found = blame(load_scenario("qwen235b_2048", ["simulation.replications=1", "simulation.steps=4", *few]))
    tail = next(one for one in found.removals if one.cause == "straggler tail")
    assert tail.saved_s < 0
    told = " ".join(render_blame(found, Style(width=200)).split())
    assert re.search("alone (and in turn )?it costs time, as equal lengths keep the batch at its largest", told)


NAMES = ["as it is", "no host time", "best kernels", "perfect overlap", "no straggler tail", "roofline"]


@pytest.mark.parametrize("name", [
    "quickstart", "qwen235b_512", "qwen8b_async_lag1", pytest.param("verl_dapo_7b", marks=pytest.mark.nightly),
])  # fmt: skip
def test_the_ladder_only_goes_down(name: str) -> None:
    found = headroom(load_scenario(name))
    assert [one.name for one in found.rungs] == NAMES
    steps = [one.step_s for one in found.rungs]
    assert all(after <= before * (1 + 1e-6) for before, after in itertools.pairwise(steps))
    assert steps[0] - sum(one.saved_s for one in found.rungs) == pytest.approx(steps[-1])
    assert steps[-1] < 0.6 * steps[0]


def test_the_first_rung_is_what_project_answers_and_no_host_leaves_what_a_host_does_not_do() -> None:
    scenario = load_scenario("quickstart")
    assert headroom(scenario).step_s == pytest.approx(project(scenario).candidate.step_s.mean)
    equal = load_scenario("quickstart", ["simulation.replications=8"])  # as many of each, which pair
    busy, plain = headroom(vary(equal, {"engine.host_iteration_s": 0.05})), headroom(equal)
    assert busy.rungs[1].saved_s > plain.rungs[1].saved_s + 20
    assert busy.rungs[1].step_s == pytest.approx(plain.rungs[1].step_s, rel=0.01)


def test_the_roofline_is_work_over_peak() -> None:
    """With one length and no drafts the last rung's passes take their FLOP at the datasheet's rate."""
    scenario = load_scenario(
        "quickstart", ["k=0", "workload.response_tokens={kind: constant, tokens: 800}", "simulation.replications=1"]
    )
    last = headroom(scenario).rungs[-1]
    samples = scenario.workload.samples_per_step
    work = update_flops(scenario, np.full(samples, 907.0)).model * (1 + 2 / 3)  # two passes of log-probs
    passes_s = work / scenario.cluster.num_gpus / peak_flops(scenario, training=True)
    assert last.step_s - last.generation_s == pytest.approx(passes_s, rel=0.02)


def test_where_a_published_projection_stands() -> None:
    """arXiv 2604.26779 projects 2.72x for the rollout and 1.70x for the step: docs/howto/slow.md."""
    plain, drafted = (headroom(load_scenario("qwen235b_512", words)) for words in (["k=0"], []))
    rollout = [before.generation_s / after.generation_s
               for before, after in zip(plain.rungs, drafted.rungs, strict=True)]  # fmt: skip
    step = [before.step_s / after.step_s for before, after in zip(plain.rungs, drafted.rungs, strict=True)]
    assert step[0] == pytest.approx(1.70, rel=0.03)
    assert rollout[0] < 2.72 < rollout[-1]


def test_a_step_of_a_training_gpu_is_what_it_waits_for_and_the_passes_of_its_trainer() -> None:
    scenario = rlsim.load_scenario("quickstart", [*FEW, "trainer.global_batch_samples=null", *SPLIT])
    found, answer = blame(scenario), rlsim.project(scenario).candidate
    waits_s = {one.cause: one.gpu_s / 4 for one in found.idle if one.pool == "training"}
    passes = ("data_s", "logprob_s", "train_s")
    passes_s = sum(getattr(answer.phases, name).mean for name in passes)
    assert waits_s["generation meanwhile"] + waits_s["refit"] + passes_s == pytest.approx(answer.step_s.mean)
