"""Dynamic sampling (DAPO): rollouts repeat within a step until enough prompt groups are usable."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fixed_costs import PROMPT, FixedCosts, world_of
from fixed_costs import run as traced

from rlsim.errors import Infeasible, InputError
from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.schema.workload import Workload
from rlsim.workload.batches import draw_batch, draw_rollouts
from rlsim.workload.lengths import Place

SHARE = "workload.usable_group_share=0.4"
LOGNORMAL = "workload.response_tokens={kind: lognormal, mean_tokens: 300, log_sigma: 0.8}"


def workload(**keys: object) -> Workload:
    given = {
        "prompts_per_step": 64,
        "generations_per_prompt": 4,
        "response_tokens": {"kind": "lognormal", "mean_tokens": 300, "log_sigma": 0.8},
        "max_sequence_tokens": 4096,
    }
    return Workload.model_validate({**given, **keys})


def test_without_unusable_groups_there_is_one_rollout_as_ever() -> None:
    given, place = workload(generated_batch_factor=1.5), Place(0, 3, 1)
    (only,) = draw_rollouts(given, place)
    assert np.array_equal(only.batch.response_tokens, draw_batch(given, place).response_tokens)
    assert np.array_equal(only.trained, only.batch.group < 64)


def test_rollouts_repeat_until_just_enough_whole_groups_are_usable() -> None:
    counts = []
    for step in range(200):
        found = draw_rollouts(workload(usable_group_share=0.4), Place(0, step, 0))
        counts.append(len(found))
        trained = [one.trained for one in found]
        assert sum(int(mask.sum()) for mask in trained) == 64 * 4
        assert sum(int(mask.sum()) for mask in trained[:-1]) < 64 * 4
        assert all(
            len(np.unique(mask[one.batch.group == g])) == 1
            for one, mask in zip(found, trained, strict=True)
            for g in (0, 63)
        )
        first, second = found[0].batch, found[1].batch
        assert not np.array_equal(first.response_tokens, second.response_tokens)
    assert np.mean(counts) == pytest.approx(expected_rollouts(0.4, 64), rel=0.05)


def expected_rollouts(share: float, prompts: int) -> float:
    """Mean of the least n with Binomial(n x prompts, share) >= prompts, by brute force."""
    rng = np.random.default_rng(1)
    usable = rng.binomial(prompts, share, size=(20_000, 20)).cumsum(1)
    return float((1 + (usable < prompts).sum(1)).mean())


def test_a_step_pays_for_every_rollout_and_trains_on_one_batch() -> None:
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


def test_the_timeline_shows_every_rollout() -> None:
    trace = traced(world_of(FixedCosts(), SHARE, LOGNORMAL, prompts=8, size=2))
    first = trace.steps[0]
    lane = [span for span in trace.spans if span.actor == "replica 0" and span.step == 0]
    assert len(lane) == first.rollouts > 1
    generation = next(span for span in trace.spans if span.phase == "generation_s" and span.step == 0)
    assert max(s.end_s for s in trace.spans if s.actor.startswith("replica")) <= generation.end_s + 1e-9


def test_too_few_usable_groups_end_as_infeasible() -> None:
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


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("workload.usable_group_share=0.05", "must be at least 1"),
        ("workload.usable_group_share=0", "must be above 0.0"),
    ],
)
def test_shares_that_cannot_fill_a_batch_are_refused(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_scenario("qwen8b_rl_zero", [override])


def test_an_asynchronous_loop_refuses_repeated_rollouts() -> None:
    with pytest.raises(InputError, match="generated_batch_factor"):
        load_scenario("qwen8b_async_lag1", [SHARE])


def test_both_arms_of_a_projection_repeat_the_same_rollouts() -> None:
    settings = ["simulation.replications=2", "workload.prompts_per_step=8", "trainer.global_batch_samples=null"]
    plain, repeated = (project(load_scenario("qwen8b_rl_zero", [*settings, *more])) for more in ([], [SHARE]))
    rollouts = repeated.baseline.statistics.rollouts
    assert rollouts == repeated.candidate.statistics.rollouts > 1
    assert plain.baseline.statistics.rollouts is None
    grown = repeated.baseline.phases["generation_s"].mean / plain.baseline.phases["generation_s"].mean
    assert grown == pytest.approx(rollouts, rel=0.15)
    assert repeated.baseline.phases["prepare_s"].mean > plain.baseline.phases["prepare_s"].mean
    parts = [
        {part.name: part.seconds for part in answer.candidate.parts if part.phase == "prepare_s"}
        for answer in (plain, repeated)
    ]
    slept = parts[1].pop("engine sleep between rollouts")
    assert slept == pytest.approx((rollouts - 1) * (parts[0]["engine sleep"] + parts[0]["engine wake"]))
    assert parts[1] == pytest.approx(parts[0])
    assert any("Dynamic sampling" in line for line in repeated.assumptions)
