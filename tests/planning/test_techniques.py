"""rlsim techniques: published techniques on a user's own scenario."""

from __future__ import annotations

import json

import pytest

from rlsim.cli.main import main
from rlsim.loading.scenario import load_scenario, vary
from rlsim.planning.techniques import known_techniques, techniques
from rlsim.projection.project import project
from rlsim.results.planning import Techniques

SMALL = ["workload.prompts_per_step=8", "workload.generations_per_prompt=8", "trainer.global_batch_samples=null",
         "simulation.replications=1", "speculation={method: none}"]  # fmt: skip


@pytest.fixture(scope="module")
def answer() -> Techniques:
    return techniques(load_scenario("quickstart", SMALL))


def test_every_technique_is_tried_or_left_out_with_a_reason(answer: Techniques) -> None:
    names = [one.name for one in answer.techniques] + [one.name for one in answer.left_out]
    assert sorted(names) == sorted(one.name for one in known_techniques())
    assert all(one.reason for one in answer.left_out)
    assert all(one.source and one.asks and one.changes for one in answer.techniques)


def test_the_ranking_is_that_of_their_steps_and_the_steps_are_projects(answer: Techniques) -> None:
    steps = [one.step_s.mean for one in answer.techniques]
    assert steps == sorted(steps)
    for one in answer.techniques[:2]:
        alone = project(load_scenario("quickstart", [*SMALL, *one.changes]))
        assert alone.candidate.step_s.mean == pytest.approx(one.step_s.mean)
        assert one.speedup.mean == pytest.approx(answer.step_s.mean / one.step_s.mean, rel=0.02)


def test_what_a_scenario_has_or_cannot_have_is_left_out() -> None:
    drafting = techniques(vary(load_scenario("quickstart", SMALL[:-1]), {"loop.offload_memory": "pinned"}))
    reasons = {one.name: one.reason for one in drafting.left_out}
    assert reasons["eagle3"] == "the scenario drafts already"
    assert reasons["pinned_offload"] == "the scenario does so already"
    assert "needs a split cluster" in reasons["fast_refit"]


def test_the_command_prints_text_and_json(capsys: pytest.CaptureFixture[str], answer: Techniques) -> None:
    words = ["techniques", "quickstart", *(word for key in SMALL for word in ("--set", key))]
    with pytest.raises(SystemExit) as end:
        main([*words, "--json"])
    assert not end.value.code
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(answer.to_json())
    assert found["schema"] == "rlsim.techniques/1"
