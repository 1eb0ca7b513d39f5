"""Causes taken away: none of them costs time without saying why, and all of them gain at least what one does."""

from __future__ import annotations

import re

import pytest

from rlsim.attribution.headroom import blame
from rlsim.loading.scenario import load_scenario
from rlsim.report.style import Style
from rlsim.report.text.attribution import render_blame
from rlsim.runs.run import run

CLIFF = (
    "simulation.replications=1", "simulation.steps=4", "engine.max_captured_tokens=256", "workload.prompts_per_step=32",
)  # fmt: skip
"""Requests of equal lengths stay beyond what is captured to the end."""


@pytest.mark.parametrize("loop", [(), ("lag=1",), ("lag=1", "loop.style=verl")])
def test_a_removal_that_costs_time_says_why_and_all_gain_at_least_what_one_does(loop: tuple[str, ...]) -> None:
    found = blame(load_scenario("quickstart", [*CLIFF, *loop]))
    slower = [one for one in found.removals if one.saved_s < 0]
    assert all(one.why and one.chain_s >= 0 for one in slower)
    assert all(one.chain_s >= 0 for one in found.removals)
    assert found.left_s <= min(one.step_s for one in found.removals) + 1e-6
    assert found.left_s == pytest.approx(found.step_s - sum(one.chain_s for one in found.removals))


def test_the_line_of_a_removal_that_costs_time_holds_the_reason() -> None:
    few = ("engine.tensor_parallel=8", "engine.expert_parallel=8", "generation_share=0.3125")
    found = blame(load_scenario("qwen235b_2048", ["simulation.replications=1", "simulation.steps=4", *few]))
    tail = next(one for one in found.removals if one.cause == "straggler tail")
    assert tail.saved_s < 0
    told = " ".join(render_blame(found, Style(width=200)).split())
    assert re.search("alone (and in turn )?it costs time, as equal lengths keep the batch at its largest", told)


def test_a_run_and_a_blame_state_the_same_idle_share() -> None:
    given = load_scenario("quickstart", ["simulation.replications=2", "workload.prompts_per_step=16"])
    answer = run(given, 2, replications=2)
    assert answer.candidate.busy_share == pytest.approx(blame(given).work_share, abs=0.03)
    assert answer.candidate.busy_share < 0.95
