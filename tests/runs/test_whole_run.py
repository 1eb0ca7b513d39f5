"""Whole runs: closed forms, seams, interruptions, and the same bytes from wherever they are asked for."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import CONSTANT, SPLIT, small

import rlsim
from rlsim.errors import Infeasible, InputError
from rlsim.files.journal import journal_name
from rlsim.loading.scenario import dump_scenario, scenario_digest
from rlsim.projection.variant import simulate_variant
from rlsim.report.style import DEFAULT_STYLE
from rlsim.report.text.run import render
from rlsim.results import PHASES
from rlsim.results.run import CAUSES, COLUMNS
from rlsim.workload.draw import Stretch, draw

Cli = Callable[..., tuple[int, str, str]]
JOURNAL = journal_name("run")
FAULTY = {
    "run.checkpoint": {"every_steps": 4, "seconds": 3.0, "blocking_share": 0.5},
    "run.faults": {"gpu_hours_between": 2.0, "restart_s": 20.0, "replica_restart_s": 10.0},
    "run.stalls": {"probability": 0.2, "seconds": 5.0},
    "run.slow_nodes": {"share": 0.2, "factor": 1.3},
    "run.validation": {"every_steps": 5, "samples": 16},
    "run.response_growth": ((0, 0.5), (30, 2.0)),
}


@settings(max_examples=12)
@given(
    steps=st.integers(1, 300),
    validation=st.tuples(st.integers(1, 40), st.floats(0, 1000)),
    checkpoint=st.tuples(st.integers(1, 40), st.floats(0, 1000)),
)
def test_equal_steps_add_up(steps: int, validation: tuple[int, float], checkpoint: tuple[int, float]) -> None:
    scenario = small(
        CONSTANT,
        {
            "run.validation": {"every_steps": validation[0], "seconds": validation[1]},
            "run.checkpoint": {"every_steps": checkpoint[0], "seconds": checkpoint[1]},
        },
    )
    step_s = rlsim.project(scenario).candidate.step_s.mean
    stated = steps // validation[0] * validation[1] + steps // checkpoint[0] * checkpoint[1]
    answer = rlsim.run(scenario, steps)
    assert answer.candidate.seconds.mean == pytest.approx(steps * step_s + stated, rel=1e-9)
    assert answer.candidate.samples == steps * 32
    assert answer.baseline is None and answer.speedup is None


@settings(max_examples=6)
@given(steps=st.integers(1, 40), lag=st.integers(1, 3))
def test_an_asynchronous_run_begins_with_an_empty_pool(steps: int, lag: int) -> None:
    scenario = small(SPLIT, CONSTANT, {"loop.policy_lag": lag, "loop.poll_s": 0})
    amounts = {"replications": 1, "steps": steps, "warmup_steps": 0}
    alone = scenario.model_copy(update={"simulation": scenario.simulation.model_copy(update=amounts)})
    (trace,) = simulate_variant(alone).traces
    assert rlsim.run(scenario, steps).candidate.seconds.mean == pytest.approx(trace.steps[steps - 1].end_s, rel=1e-9)


@pytest.mark.parametrize("mode", [{}, SPLIT])
def test_every_second_has_a_cause(mode: dict[str, object]) -> None:
    answer = rlsim.run(small(mode, FAULTY), 30, replications=2)
    for side in answer.sides.values():
        assert side.ledger.keys() <= set(CAUSES)
        assert sum(loss.seconds.mean for loss in side.ledger.values()) == pytest.approx(side.seconds.mean, rel=1e-12)
        assert side.steps["end_s"][-1] == pytest.approx(side.seconds.mean, rel=1e-9)
        of_causes = np.sum([side.steps[f"{cause}_s"] for cause in CAUSES], axis=0)
        assert np.allclose(of_causes, side.steps["step_s"], rtol=1e-12)
        assert side.seconds.low < side.seconds.mean < side.seconds.high
        assert side.sampling.run_error_s is not None and side.sampling.run_error_s > 0


def test_synchronous_chapters_leave_no_seam() -> None:
    whole, parted = (rlsim.run(small(FAULTY), 21, chapter_steps=size).candidate for size in (21, 4))
    for name in ("steps_s", "validation_s", "checkpoints_s", "stalls_s", *PHASES, "response_tokens", "trained_tokens"):
        assert np.allclose(whole.steps[name], parted.steps[name], rtol=1e-12), name


@pytest.mark.parametrize("generation_bound", [True, False])
def test_asynchronous_seams_are_worth_less_than_half_a_percent(generation_bound: bool) -> None:
    cluster = {"generation_gpus": 2, "training_gpus": 6} if generation_bound else {}
    scenario = small(SPLIT, {f"cluster.{key}": value for key, value in cluster.items()})
    whole, parted = (rlsim.run(scenario, 512, chapter_steps=size, baseline=False) for size in (512, 128))
    exposed = [sum(answer.candidate.steps["exposed_generation_s"]) / 512 for answer in (whole, parted)]
    assert parted.candidate.seconds.mean == pytest.approx(whole.candidate.seconds.mean, rel=0.005)
    assert exposed[0] > 0


def test_a_stretch_meets_the_work_of_the_whole_run() -> None:
    scenario = small({"simulation.steps": 6})
    growth = ((0, 0.5), (10, 1.5))
    whole, late = draw(scenario, 0, stretch=Stretch(0, growth)), draw(scenario, 0, stretch=Stretch(3, growth))
    for one, other in zip(whole.steps[3:], late.steps, strict=False):
        assert np.array_equal(one.trained_tokens, other.trained_tokens)
        assert all(np.array_equal(a, b) for a, b in zip(one.iterations, other.iterations, strict=True))


@given(factor=st.floats(0.01, 20))
@settings(max_examples=20)
def test_growth_scales_responses_before_the_cap(factor: float) -> None:
    scenario = small({"simulation.steps": 1})
    plain = draw(scenario, 0).steps[0].rollouts[0].batch
    grown = draw(scenario, 0, stretch=Stretch(0, ((0, factor),))).steps[0].rollouts[0].batch
    assert np.array_equal(plain.prompt_tokens, grown.prompt_tokens)
    room = 1024 - plain.prompt_tokens
    uncut = plain.response_tokens < room
    wanted = np.clip(factor * plain.response_tokens[uncut], 1, room[uncut])
    assert np.abs(grown.response_tokens[uncut] - wanted).max() <= 0.5 * factor + 0.5
    assert factor < 1 or np.all(grown.response_tokens[~uncut] == room[~uncut])


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_interrupted_run_ends_with_the_bytes_of_an_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = small(SPLIT, FAULTY)

    def stop(done: int, total: int) -> None:
        if done >= 0.6 * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rlsim.run(scenario, 40, out=tmp_path / "torn", chapter_steps=10, progress=stop)
    assert set(files(tmp_path / "torn")) == {JOURNAL}
    with (tmp_path / "torn" / JOURNAL).open("ab") as journal:
        journal.write(b'{"cell": 7, "row": {"torn')
    module = sys.modules["rlsim.runs.run"]
    simulated: list[object] = []
    original = module.simulate_chapter
    monkeypatch.setattr(module, "simulate_chapter", lambda *of: simulated.append(of) or original(*of))  # type: ignore[func-returns-value]
    torn = rlsim.run(scenario, 40, out=tmp_path / "torn", chapter_steps=10)
    assert len(simulated) == 3
    whole = rlsim.run(scenario, 40, out=tmp_path / "whole", chapter_steps=10)
    assert torn == whole
    assert files(tmp_path / "torn") == files(tmp_path / "whole")
    assert set(files(tmp_path / "whole")) == {"run.json", "steps.csv", "run.png", "scenario.yaml"}
    assert len(files(tmp_path / "whole")["steps.csv"].splitlines()) == 2 * 40 + 1


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text('{"run":"another"}\n')
    with pytest.raises(InputError, match="belongs to another, interrupted run"):
        rlsim.run(small(), 3, out=tmp_path)


def test_command_and_library_say_the_same(run: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(DEFAULT_STYLE.width))
    scenario = small(SPLIT, FAULTY)
    path = tmp_path / "scenario.yaml"
    path.write_text(dump_scenario(scenario))
    answer = rlsim.run(scenario, samples=12 * 32 - 5, out=tmp_path / "library")
    command = ("run", path, "--samples", 12 * 32 - 5, "--out", tmp_path / "command")
    assert run(*command, "--json") == (0, answer.to_json(), "")
    assert files(tmp_path / "command") == files(tmp_path / "library")
    assert run(*command)[1] == render(answer)
    found = json.loads(answer.to_json())
    assert found["schema"] == "rlsim.run/1" and found["steps"] == 12
    assert set(found["candidate"]["steps"]) == set(COLUMNS)
    assert found["speedup"]["mean"] == pytest.approx(
        found["baseline"]["seconds"]["mean"] / found["candidate"]["seconds"]["mean"]
    )
    frame = answer.to_frame()
    assert frame["candidate"]["step_s"].sum() == pytest.approx(answer.candidate.seconds.mean)
    alone = run("run", path, "--steps", 12, "--no-baseline", "--json")
    assert json.loads(alone[1])["baseline"] is None
    assert json.loads(alone[1])["candidate"] == found["candidate"]


def test_cost_and_energy_follow_the_time() -> None:
    scenario = small({"hardware.price_per_gpu_hour_usd.value": 3.6})
    side = rlsim.run(scenario, 5).candidate
    assert side.cost_usd.mean == pytest.approx(8 * 0.001 * side.seconds.mean)
    assert side.energy_at_most_j.high == pytest.approx(8 * scenario.hardware.power_w.value * side.seconds.high)
    assert 0 < side.busy_share <= 1


def test_the_section_changes_no_projection() -> None:
    plain, given_run = small(), small(FAULTY)
    assert scenario_digest(plain) != scenario_digest(given_run)
    assert rlsim.project(plain).candidate == rlsim.project(given_run).candidate


def test_replications_are_independent_runs() -> None:
    one, three = (rlsim.run(small(), 6, replications=count, baseline=False).candidate for count in (1, 3))
    assert one.sampling.run_error_s is None
    assert three.sampling.run_error_s is not None and 0 < three.sampling.run_error_s < three.seconds.mean / 10
    assert three.samples == one.samples


def test_a_validation_may_have_fewer_samples_than_an_update_of_the_trainer() -> None:
    generated = {"run.validation": {"every_steps": 2, "samples": 8}, "trainer.global_batch_samples": 32}
    assert rlsim.run(small(generated), 4, baseline=False).candidate.ledger["validation"].events == 2


def test_trajectories_need_a_stated_validation() -> None:
    with pytest.raises(InputError, match=r"give seconds instead"):
        rlsim.vary(rlsim.load_scenario("mlperf_grpo"), {"run.validation": {"every_steps": 1, "samples": 3}})


def test_failures_that_undo_everything_are_infeasible() -> None:
    faults = {
        "run.checkpoint": {"every_steps": 50, "seconds": 1.0},
        "run.faults": {"gpu_hours_between": 0.1, "restart_s": 600.0},
    }
    with pytest.raises(Infeasible, match=r"run\.checkpoint\.every_steps"):
        rlsim.run(small(faults), 3)


@pytest.mark.parametrize("mode", [{}, SPLIT])
def test_the_text_says_what_counts(mode: dict[str, object]) -> None:
    text = render(rlsim.run(small(mode, FAULTY), 12))
    for words in ("12 steps take", "Whole run", "How the steps evolve", "Where the time goes", "steps done again"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 120
    plain = render(rlsim.run(small(mode), 12))
    assert "Where the time goes" not in plain
    assert "Not in this run: growth of the responses, validation, checkpoints, failures" in plain
