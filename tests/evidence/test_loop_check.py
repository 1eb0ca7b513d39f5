"""The real loop beside its predictions: journals replayed by the simulation, scores, files and the command."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.loop.measure import QUICK, measure_loop
from bench.loop.settings import LoopSettings
from rlsim.calibration.loop_stack import (
    LoopStacks,
    between,
    drawn_lengths,
    measure_stacks,
    scenario_of,
    settings_of,
    with_drawn_lengths,
)
from rlsim.errors import InputError
from rlsim.evidence.loop.check import (
    configurations,
    predict,
    read_journal,
    replay,
    run_predicted,
    settings_to_run,
    undisturbed,
)
from rlsim.files.reading import data_folder
from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.report.figures.validation import loop_check_figure
from rlsim.report.text.validation import loop_check_text
from rlsim.results.loop_check import LoopCheck, LoopRow, Pair, Speedup, scores_of
from rlsim.schema.parameters import MeasuredStack

HERE = Path(__file__).parent / "loop"
SMALL: dict[str, Any] = {"model": "loop-tiny", "prompts": 2, "samples": 2, "steps": 2, "running": 3, "prompt_tokens": 8,
                         "response_tokens": [4.0, 10.0, 16.0, 24.0]}  # fmt: skip


@pytest.fixture(scope="module")
def stacks() -> LoopStacks:
    """What a full measurement of the loop on two cores found."""
    return LoopStacks.of(json.loads((HERE / "loop_measurements.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", ["replayed_sync", "replayed_drafts"])
def test_a_synchronous_journal_replays_iteration_by_iteration(stacks: LoopStacks, name: str) -> None:
    found = replay(stacks, *read_journal(HERE / f"{name}.jsonl"))
    assert found.simulated_iterations == found.measured_iterations
    assert found.simulated_s == pytest.approx(found.measured_s, rel=0.02)


def test_a_lagged_journal_replays_within_two_percent_undisturbed_events_are_never_longer(stacks: LoopStacks) -> None:
    settings, events = read_journal(HERE / "replayed_lag_1.jsonl")
    found = replay(stacks, settings, events)
    assert abs(found.error) < 0.02
    iterations = [sum(counts.values()) for counts in (found.simulated_iterations, found.measured_iterations)]
    assert iterations[0] == pytest.approx(iterations[1], rel=0.02)
    for before, after in zip(events, undisturbed(events), strict=True):
        assert after["seconds"] <= before["seconds"]
        waits = before["event"] in ("idle", "step", "publish", "start") or before.get("phase") == "refit_s"
        assert not waits or after == before


def test_a_configuration_meets_the_same_lengths_and_a_slower_machine_takes_longer(stacks: LoopStacks) -> None:
    for settings, _ in configurations():
        scenario = scenario_of(stacks, settings)
        asked = with_drawn_lengths(stacks, scenario, settings)
        lengths = asked.response_lengths()
        assert lengths.shape == (settings.generated_steps, settings.batch)
        assert lengths.max() <= settings.response_tokens[-1]
        assert scenario.loop.lag == settings.lag
        assert scenario.simulation.measured_stack == stacks.stacks[stacks.setting(settings)]
    said = predict(stacks, configurations()[5][0])
    later = said.at(stacks, 1.25)
    assert later.side.step_s.mean == pytest.approx(1.25 * said.side.step_s.mean, rel=1e-4)
    assert later.settings == said.settings
    assert said.at(stacks, 1.0).side == said.side


def test_files_load_like_any_scenario_and_others_are_refused(stacks: LoopStacks, tmp_path: Path) -> None:
    for name, text in stacks.files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    scenario = load_scenario(tmp_path / "loop.yaml")
    assert scenario.engine.name == "torch_eager"
    words = ["hardware=cpu_loop.yaml", "simulation.measured_stack=stack_shared.yaml",
             "simulation.engine_parameters=torch_eager.yaml"]  # fmt: skip
    named = load_scenario(tmp_path / "loop.yaml", [word.replace("=", f"={tmp_path}/", 1) for word in words])
    assert (named.hardware, named.simulation) == (scenario.hardware, scenario.simulation)
    projected = project(scenario)
    assert projected.provenance.measured > 0.9
    assert projected.candidate.step_s.low < projected.candidate.step_s.mean < projected.candidate.step_s.high
    with pytest.raises(InputError, match="model and prompts differ"):
        scenario_of(stacks, LoopSettings(model="loop-tiny"))
    with pytest.raises(InputError, match="'nothing' is no setting"):
        settings_of({"nothing": 1})
    path = tmp_path / "x.jsonl"
    path.write_text('{"event": "iteration"}\n', encoding="utf-8")
    with pytest.raises(InputError, match="is no journal of the loop"):
        read_journal(path)


def test_measure_predict_run_and_compare(tmp_path: Path) -> None:
    measured = measure_loop(settings_of({**SMALL, "name": "base"}), QUICK, lambda line: None)
    own = LoopStacks.of(measured)
    lines: list[str] = []
    asked = [("plain", {}, ""), ("drafts", {"drafter": "model", "draft_length": 1}, "plain"),
             ("lagged", {"placement": "split", "lag": 1}, "")]  # fmt: skip
    said = [predict(own, settings_of({**SMALL, "name": name, **more}), over) for name, more, over in asked]
    found = run_predicted(own, said, tmp_path, lambda done, total, line: lines.append(line))
    assert [row.name for row in found.rows] == ["plain", "drafts", "lagged"]
    assert lines[-1] == "done"
    assert LoopCheck.model_validate_json(found.to_json()).to_json() == found.to_json()
    assert all(row.measured_s > 0 and row.predicted_s > 0 and row.undisturbed_s > 0 for row in found.rows)
    assert found.rows[1].speedup is not None
    written = {"plain.jsonl", "drafts.jsonl", "lagged.jsonl"}
    assert [{path.name for path in folder.iterdir()} for folder in sorted((tmp_path / "journals").iterdir())] == [
        written
    ] * 2
    assert all(len(row.steps_s) == 2 * row.settings["steps"] and row.pace > 0 for row in found.rows)
    # The machine's pace is not known of runs that were brought from elsewhere; everything else is the same.
    brought = run_predicted(own, said, tmp_path, lambda *told: None, ran=True)
    assert [row.measured_s for row in brought.rows] == [row.measured_s for row in found.rows]
    (tmp_path / "journals" / "round_1" / "drafts.jsonl").unlink()
    (tmp_path / "journals" / "round_2" / "drafts.jsonl").unlink()
    left = run_predicted(own, said, tmp_path, lambda *told: None, ran=True)
    assert [row.name for row in left.rows] == ["plain", "lagged"]
    with pytest.raises(InputError, match="holds no journal"):
        run_predicted(own, said, tmp_path / "nowhere", lambda *told: None, ran=True)
    text = loop_check_text(found)
    assert "plain" in text
    assert "median error" in text
    loop_check_figure(found).savefig(tmp_path / "check.png")
    folder = tmp_path / "again"
    folder.mkdir()
    (folder / "loop_measurements.json").write_text(json.dumps(measured), encoding="utf-8")
    assert measure_stacks(folder, lambda line: None, again=False).stacks == own.stacks


def test_lengths_are_drawn_without_any_measurement_and_are_those_of_the_prediction(stacks: LoopStacks) -> None:
    for settings, _ in configurations():
        asked = with_drawn_lengths(stacks, scenario_of(stacks, settings), settings)
        assert drawn_lengths(settings) == asked.lengths
    for one in json.loads(settings_to_run("cuda")):
        assert settings_of(one).device == "cuda"


def test_halves_that_share_a_device_are_between_alone_and_beside(stacks: LoopStacks) -> None:
    alone, beside = stacks.stacks["alone"], stacks.stacks["beside"]

    def seconds(stack: MeasuredStack) -> list[float]:
        return [point[-1] for point in stack.iterations]

    assert seconds(between(alone, beside, (1.0, 1.0))) == pytest.approx(seconds(beside))
    idle = between(alone, beside, (0.0, 0.0))
    assert seconds(idle) == pytest.approx(seconds(alone))
    assert idle.optimizer_s == pytest.approx(alone.optimizer_s)
    half = between(alone, beside, (0.5, 0.5))
    for own, other, mixed in zip(alone.update, beside.update, half.update, strict=True):
        assert min(own[-1], other[-1]) <= mixed[-1] <= max(own[-1], other[-1])


def row(name: str, measured: float, predicted: float, k: int = 0, speedup: Speedup | None = None) -> LoopRow:
    pair = Pair(measured_s=measured / 2, predicted_s=predicted / 2)
    return LoopRow(
        name=name, measured_s=measured, predicted_s=predicted, interval=(predicted * 0.9, predicted * 1.1),
        phases={"generation_s": pair, "exposed_generation_s": pair}, idle={}, speedup=speedup, steps_s=(measured,),
        tokens_per_verification=(1.0, 1.0), undisturbed_s=measured, others_cpu_s=0.0, steal_s=0.0,
        settings={"drafter": "model" if k else "none", "draft_length": k, "placement": "split" if not k else "shared"},
    )  # fmt: skip


def test_scores_count_errors_coverage_and_the_best_draft_length() -> None:
    rows = [row("a", 1.0, 1.05), row("b", 1.0, 1.3, 1, Speedup(measured=1.5, predicted=1.2, planned=1.2)),
            row("c", 2.0, 1.9, 3, Speedup(measured=1.4, predicted=1.4, planned=1.6))]  # fmt: skip
    scores = scores_of(rows)
    assert (scores.n, scores.coverage) == (3, pytest.approx(2 / 3))
    assert scores.median_abs_error == pytest.approx(0.05)
    assert scores.p90_abs_error == pytest.approx(0.3)
    assert scores.speedup_median_abs_error == pytest.approx(0.1)
    assert scores.exposed_median_abs_error == pytest.approx(0.05)
    assert scores.best == {"model": (1, 3, pytest.approx(1.5 / 1.4 - 1))}


def test_predictions_of_the_loop_on_a_real_gpu_are_those_on_record() -> None:
    folder = data_folder("calibration") / "own" / "h200_sxm" / "loop"
    ran = LoopCheck.model_validate_json((folder / "check.json").read_text(encoding="utf-8"))
    gpu = LoopStacks.of(json.loads((folder / "loop_measurements.json").read_text(encoding="utf-8")))
    asked = {settings.name: (settings, over) for settings, over in configurations("cuda")}
    assert [one.name for one in ran.rows] == list(asked)
    for one in ran.rows:
        found = predict(gpu, *asked[one.name]).side
        assert found.step_s.mean == pytest.approx(one.predicted_s, rel=1e-4)
        assert found.phases.generation_s.mean == pytest.approx(one.phases["generation_s"].predicted_s, rel=1e-4)
    # What the whole chain promises (docs/howto/whole_chain.md).
    assert ran.scores.median_abs_error < 0.12
    assert ran.scores.speedup_median_abs_error is not None
    assert ran.scores.speedup_median_abs_error < 0.12
    assert all(measured == planned for measured, planned, _ in ran.scores.best.values())
