"""Moves: what project tries first holds when it is applied, loop moves are planned, improve shows one number."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlsim import compare
from rlsim.loading.scenario import load_scenario, vary
from rlsim.planning.improve import techniques
from rlsim.planning.plan import default_limits, plan
from rlsim.projection.agent_moves import capped_turns
from rlsim.projection.moves import LISTS, SETTING, best_way, move_named, moves
from rlsim.projection.project import project
from rlsim.projection.summary import beside_first, phase_estimate, timed
from rlsim.projection.try_first import GAIN
from rlsim.projection.variant import replicated, simulate_variant
from rlsim.results.planning import Technique
from rlsim.workload.draw import draw

Run = Callable[..., tuple[int, str, str]]
FEW = ["workload.prompts_per_step=8", "workload.generations_per_prompt=8", "trainer.global_batch_samples=null"]
PARTS = {"techniques": "moves", "idle": "idle", "headroom": "headroom", "inputs": "inputs"}


@pytest.mark.parametrize("name", [
    "quickstart", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("qwen8b_rl_think", "qwen235b_512")),
    "qwen8b_async_lag1",
])  # fmt: skip
def test_what_project_tries_first_holds_when_it_is_applied(name: str) -> None:
    scenario = load_scenario(name)
    now = project(scenario)
    first = now.try_first
    assert first is not None
    after = project(vary(scenario, *first.changes)).candidate.step_s.mean
    assert first.step_s.low <= after <= first.step_s.high
    assert after == pytest.approx(first.step_s.mean, rel=0.03)
    assert after < now.candidate.step_s.mean
    # No move that asks for keys alone is more than 3 % better.
    alone = [move_named(one["move"]) for one in LISTS["first"]]
    found = [best for move in alone if not isinstance(best := best_way(scenario, move), str)]
    assert after <= 1.03 * min(one.step_s for one in found)


def test_what_one_phase_saves_does_not_hang_on_the_draw_of_another() -> None:
    # Few samples of scattered lengths: the generation of the first replication is far from the mean.
    lengths = {"kind": "lognormal", "mean_tokens": 1000, "log_sigma": 1.2}
    few = ["workload.prompts_per_step=2", "workload.generations_per_prompt=4", "trainer.global_batch_samples=null"]
    scenario = vary(
        load_scenario("quickstart", [*few, "simulation.replications=8"]), {"workload.response_tokens": lengths}
    )
    run = simulate_variant(scenario)
    pinned = vary(replicated(scenario, 1), "loop.offload_memory=pinned")
    steps, alone = phase_estimate(run, "step").mean, run.steps[0][0]
    assert abs(alone.phases["generation_s"] / phase_estimate(run, "generation_s").mean - 1.0) > 0.05
    other = timed(simulate_variant(pinned))
    saved_s = alone.phases["prepare_s"] - other.in_a_row["prepare_s"]
    assert saved_s > 0.1 * steps
    assert beside_first(run, other).mean == pytest.approx(steps - saved_s, rel=1e-6)


def test_nothing_is_advised_where_nothing_gains_or_nothing_was_tried() -> None:
    short = load_scenario("quickstart", [*FEW, "simulation.replications=1"])
    assert project(short).try_first is None
    first = project(load_scenario("quickstart")).try_first
    assert first is not None
    assert first.speedup > 1.0 / GAIN


def test_a_move_of_the_loop_has_the_layout_that_a_plan_finds() -> None:
    scenario = load_scenario("quickstart", [*FEW, "simulation.replications=2"])
    found = {one.name: one for one in techniques(scenario).techniques}
    rules = {"loop.style": "nemo_rl", "loop.in_flight_updates": True}
    base = vary(scenario, rules)
    best = plan(base, limits=default_limits(base), rest=False)
    if best.best.numbers is not None and "loop.policy_lag" in best.best.overrides:
        assert found["async_in_order"].step_s.mean <= best.best.numbers.step_s.mean * 1.02
    laid_out = vary(scenario, *found["async_in_order"].changes)
    assert laid_out.loop.lag == 1
    assert project(laid_out).candidate.step_s.mean == pytest.approx(found["async_in_order"].step_s.mean)


def test_capped_turns_leave_shorter_trajectories_as_they_are() -> None:
    """What is capped is the drawn number of turns, not its mean solved for anew."""
    turns = "{turns: {kind: lognormal, mean_turns: 8, log_sigma: 0.7}, max_turns: 60}"
    short = ("speculation.method=none", "workload.response_tokens={kind: constant, tokens: 9}")  # no context is full
    scenario = load_scenario("quickstart", [*short, f"workload.agent={turns}"])
    keys = capped_turns(scenario, 0.75)
    (before, after) = (
        np.diff(draw(one, 0).steps[0].rollouts[0].turns.first) for one in (scenario, vary(scenario, keys))
    )
    cap = keys["workload.agent.max_turns"]
    assert 0.7 < np.mean(before < cap) < 0.8
    assert np.mean(np.minimum(before, cap) == after) > 0.99


def test_every_move_says_what_it_asks_and_settings_keep_the_update() -> None:
    assert len({one.name for one in moves()}) == len(moves())
    assert all(one.asks and one.source and one.title for one in moves())
    assert all(one.exact for one in moves() if one.kind == SETTING)
    assert {one["move"] for one in LISTS["first"]} <= {one.name for one in moves() if one.exact}


def test_improve_shows_its_parts_together_and_alone(run: Run, tmp_path: Path) -> None:
    def printed(*more: str) -> dict[str, Any]:
        code, out, _ = run("improve", "quickstart", *FEW, "simulation.replications=1", "--json", *more)
        answer: dict[str, Any] = json.loads(out)
        assert code == 0
        return answer

    found = printed("--out", str(tmp_path / "out"))
    assert found == json.loads((tmp_path / "out" / "improvement.json").read_text())
    assert [found[part]["schema"] for part in PARTS.values()] == [
        "rlsim.techniques/1", "rlsim.blame/1", "rlsim.headroom/1", "rlsim.sensitivity/2"
    ]  # fmt: skip
    for name, part in PARTS.items():
        alone = printed("--only", name)
        assert alone == {**found, **dict.fromkeys(PARTS.values()), part: found[part]}
    # Every field of a ranked move is there for a reader of JSON.
    assert set(found["moves"]["techniques"][0]) == set(Technique.model_fields)
    wide = printed("--only", "inputs", "--uncertain", "workload.response_tokens.mean_tokens=300:3000")["inputs"]
    assert wide["step_with_inputs_s"]["high"] > found["inputs"]["step_with_inputs_s"]["high"]


@pytest.mark.parametrize("word", ["techniques", "blame", "headroom", "sensitivity"])
def test_a_former_command_names_the_part_that_gives_the_same(word: str, run: Run) -> None:
    code, _, err = run(word, "quickstart")
    (part,) = re.findall("improve --only ([a-z]+)", err)
    assert code == 2 and part in PARTS


def test_a_comparison_simulates_on_and_says_what_it_cannot_tell() -> None:
    few = ("workload.prompts_per_step=16", "trainer.global_batch_samples=null")
    scenario = load_scenario("verl_dapo_7b", ["simulation.replications=1", *few])
    # The trainer sets the pace: a slower host of the engines moves the noise alone.
    found = compare(scenario, vary(scenario, "engine.host_sequence_s=2e-5"))
    assert found.replications > 1
    assert found.speedup.low <= 1.0 <= found.speedup.high
    assert found.more_replications > 0
    assert "cannot be told apart" in found.text(full=True)
    same = compare(scenario, scenario)
    assert (same.b_faster, same.more_replications, same.replications) == (0.5, 0, 1)
    sure = compare(load_scenario("quickstart"), load_scenario("quickstart", ["trainer.precision=fp8"]))
    assert sure.b_faster > 0.95
    assert "B is the faster one with" in sure.text(full=True)


def test_moves_of_the_loop_are_left_out_where_no_plan_can_be_made() -> None:
    # Two kinds of GPUs cannot be divided by a plan: the reason stands where the number would.
    split = ("cluster.generation_gpus=4", "cluster.training_gpus=4", "loop.mode=async", "loop.policy_lag=1")
    two = load_scenario("quickstart", [*FEW, *split, "training_hardware=h200_sxm", "simulation.replications=1"])
    reasons = {one.name: one.reason for one in techniques(two).left_out}
    assert "GPUs of one kind" in reasons["async_first_done"]


def test_a_loop_that_a_framework_has_no_option_for_is_left_out_or_has_its_own_rules() -> None:
    few = [*FEW, "speculation.method=none", "simulation.replications=2", "trainer.pipeline_parallel=1"]
    slime = techniques(load_scenario("quickstart", [*few, "stack=slime", "engine.name=sglang"]))
    reasons = {one.name: one.reason for one in slime.left_out}
    assert "no option" in reasons["async_lag2"] and "no option" in reasons["async_first_done"]
    in_order = next(one for one in slime.techniques if one.name == "async_in_order")
    assert 'loop.style="slime"' in " ".join(in_order.changes)
