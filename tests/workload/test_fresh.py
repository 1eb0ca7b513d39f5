"""An edited length file changes digest and answer together, in one process."""

from pathlib import Path

import pytest

from rlsim.loading.scenario import load_scenario, scenario_digest
from rlsim.projection.project import project
from rlsim.workload.batches import expected_prompt_tokens, expected_response_tokens

SMALL = ["workload.prompts_per_step=4", "workload.generations_per_prompt=8", "trainer.global_batch_samples=32"]


def written(folder: Path, tokens: int) -> Path:
    path = folder / "lengths.csv"
    path.write_text("output_tokens\n" + f"{tokens}\n" * 50)
    return path


@pytest.mark.parametrize("key", ["workload.response_tokens", "workload.prompt_tokens"])
def test_an_edited_length_file_is_read_again(key: str, tmp_path: Path) -> None:
    path = written(tmp_path, 100)
    scenario = load_scenario("quickstart", [*SMALL, f"{key}={{kind: trace, path: {path}}}"])
    before, digest = project(scenario).candidate.step_s.mean, scenario_digest(scenario)
    written(tmp_path, 900)
    again = project(scenario)
    assert again.digest == scenario_digest(scenario) != digest
    expected = expected_response_tokens if key.endswith("response_tokens") else expected_prompt_tokens
    assert expected(scenario.workload) == 900
    assert abs(again.candidate.step_s.mean / before - 1) > 0.02
    written(tmp_path, 100)
    assert project(scenario).candidate.step_s.mean == before


def test_an_edited_file_of_environment_times_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("seconds\n" + "0.1\n" * 20)
    agent = f"workload.agent={{turns: {{kind: constant, turns: 3}}, environment_s: {{kind: trace, path: {path}}}}}"
    scenario = load_scenario("quickstart", [*SMALL, agent, "simulation.replications=1"])
    before = project(scenario).candidate.step_s.mean
    path.write_text("seconds\n" + "10.0\n" * 20)
    assert project(scenario).candidate.step_s.mean > before + 15
