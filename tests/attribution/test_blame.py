"""Blame: idle time that adds up, removals that gain what they must, and how it is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rlsim
from rlsim.cli.main import main
from rlsim.report.figures.bars import waterfall_figure
from rlsim.report.figures.style import save_picture
from rlsim.report.text.attribution import render_blame
from rlsim.results.planning import Blame

FEW = ["simulation.replications=1", "simulation.steps=4", "workload.prompts_per_step=16"]
SPLIT = ["cluster={num_gpus: 8, generation_gpus: 4, training_gpus: 4}", "trainer.tensor_parallel=1"]


def blamed(*overrides: str, name: str = "quickstart") -> Blame:
    return rlsim.blame(rlsim.load_scenario(name, [*FEW, "trainer.global_batch_samples=null", *overrides]))


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


def test_a_synchronous_step_without_its_refit_is_shorter_by_it() -> None:
    scenario = rlsim.load_scenario("quickstart", [*FEW, "trainer.global_batch_samples=null"])
    found, answer = rlsim.blame(scenario), rlsim.project(scenario)
    refit = next(one for one in found.removals if one.cause == "refit")
    assert refit.saved_s == pytest.approx(answer.candidate.phases.prepare_s.mean)
    idle = next(one for one in found.idle if one.cause == "refit")
    assert idle.gpu_s == pytest.approx(refit.saved_s * found.num_gpus)
    assert {one.pool for one in found.idle} == {"all"}


def test_rewards_that_are_waited_for_are_the_environments() -> None:
    found = blamed("workload.environment_s=25")
    environment = next(one for one in found.removals if one.cause == "environment")
    assert environment.saved_s == pytest.approx(25.0)
    assert next(one for one in found.idle if one.cause == "environment").gpu_s == pytest.approx(25.0 * 8)


def test_equal_lengths_have_no_tail() -> None:
    found = blamed("workload.response_tokens={kind: constant, tokens: 500}", "speculation={method: none}")
    tail = next(one for one in found.removals if one.cause == "straggler tail")
    assert tail.saved_s == pytest.approx(0.0, abs=1e-9)


def test_pools_that_take_turns_wait_for_each_other() -> None:
    causes = {(one.pool, one.cause) for one in blamed(*SPLIT).idle}
    assert ("training", "generation meanwhile") in causes
    assert ("generation", "training meanwhile") in causes


def test_a_trainer_that_polls_waits_for_its_clock(lagged: Blame) -> None:
    assert {"staleness limit", "polling"} <= {one.cause for one in lagged.removals}
    slow = blamed("loop.poll_s=50", "simulation.steps=32", name="qwen8b_async_lag1")
    polling = next(one for one in slow.removals if one.cause == "polling")
    assert polling.saved_s > 0.5


def test_the_limit_on_groups_in_flight_is_a_cause_where_it_is_stated() -> None:
    found = blamed("loop.max_in_flight_groups=4", name="qwen8b_async_lag1")
    assert next(one for one in found.removals if one.cause == "queue cap").saved_s > 0.0


def test_agents_are_blamed_on_their_environments() -> None:
    found = rlsim.blame(rlsim.load_scenario("mlperf_grpo", ["simulation.replications=1", "simulation.steps=4"]))
    environment = next(one for one in found.removals if one.cause == "environment")
    assert environment.saved_s > 0.5 * found.step_s
    assert not found.what_ifs


def test_a_policy_that_cannot_run_says_why() -> None:
    found = blamed("trainer.global_batch_samples=64", "engine.dispatch=shared_queue")
    assert [one.name for one in found.what_ifs] == ["partial rollouts", "tail batching"]
    assert all(one.step_s is not None for one in found.what_ifs)


def test_text_files_and_picture(lagged: Blame, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = render_blame(lagged)
    assert "what is left is work" in told
    assert max(map(len, told.splitlines())) <= 100
    assert save_picture(waterfall_figure(lagged), tmp_path / "a.png").read_bytes() == (
        save_picture(waterfall_figure(lagged), tmp_path / "b.png").read_bytes()
    )
    overrides = [word for one in FEW for word in ("--set", one)]
    with pytest.raises(SystemExit) as end:
        main(["blame", "quickstart", *overrides, "--json", "--out", str(tmp_path / "out")])
    assert not end.value.code
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out" / "blame.json").read_text(encoding="utf-8"))
    assert printed["schema"] == "rlsim.blame/1"
