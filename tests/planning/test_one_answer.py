"""One question has one answer: whichever command is asked, however a loop is stated, in whatever order words stand."""

import itertools
import re

import pytest

from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario, vary
from rlsim.planning.compare import compare
from rlsim.planning.improve import techniques
from rlsim.planning.plan import plan
from rlsim.planning.sensitivity import sensitivity
from rlsim.planning.space import SearchLimits
from rlsim.planning.sweep import sweep
from rlsim.projection.headroom import blame, headroom
from rlsim.projection.moves import faults, moves
from rlsim.projection.precision import anchor
from rlsim.projection.project import project
from rlsim.projection.summary import mean_value
from rlsim.projection.variant import simulate_variant
from rlsim.report.format import percent
from rlsim.report.text.planning import render_comparison, render_sweep
from rlsim.results.planning import Techniques
from rlsim.schema.asynchrony import STYLES
from rlsim.schema.scenario import Scenario

LAGGED = (
    "cluster.generation_gpus=4", "cluster.training_gpus=4", "loop.mode=async", "loop.policy_lag=1",
    "workload.prompts_per_step=16", "workload.response_tokens={kind: lognormal, mean_tokens: 2500, log_sigma: 0.3}",
)  # fmt: skip


def step_s(scenario: Scenario) -> float:
    return mean_value(simulate_variant(scenario), lambda step: step.seconds)


SELDOM = ("loop.update_every=2",)
QUICK = ("nemo_rl", "skyrl", "areal", "slime_fully_async")
"""Styles that start in ways of their own; all others each night."""


@pytest.mark.parametrize(("style", "more"), [
    *(pytest.param(style, (), marks=() if style in QUICK else pytest.mark.nightly) for style in STYLES),
    ("verl", SELDOM), *(pytest.param(style, SELDOM, marks=pytest.mark.nightly) for style in STYLES),
])  # fmt: skip
def test_steps_that_nobody_asked_for_are_those_of_a_loop_under_way(style: str, more: tuple[str, ...]) -> None:
    given = load_scenario("quickstart", [*LAGGED, f"loop.style={style}", *more])
    long = step_s(vary(given, "simulation.warmup_steps=12", "simulation.steps=12"))
    assert step_s(given) == pytest.approx(long, rel=0.03)
    assert step_s(vary(given, "simulation.warmup_steps=0", "simulation.steps=1")) > 1.2 * long  # what a start costs


def test_what_is_stated_is_simulated_and_every_command_says_the_same(tiny: Scenario) -> None:
    given = load_scenario("quickstart", [*LAGGED, "simulation.replications=1"])
    assert (given.measured_steps, load_scenario("quickstart").measured_steps) == (range(4, 10), range(1))
    cold = vary(given, "simulation.warmup_steps=0", "simulation.steps=1")
    assert cold.measured_steps == range(1)
    assert any("start-up" in text for text in project(cold).warnings)
    assert not any("start-up" in text for text in project(given).warnings)
    keys = {"loop.mode": "async", "loop.policy_lag": 1, "cluster.generation_gpus": 4, "cluster.training_gpus": 4}
    given = vary(tiny, keys)
    answer = project(given)
    (row,) = sweep(tiny, ["lag=1", "generation_share=0.5"], replications=tiny.replications).rows
    (by_key,) = sweep(given, ["loop.policy_lag=1"], replications=tiny.replications).rows
    assert row["step_s"] == by_key["step_s"] == answer.candidate.step_s.mean
    assert row["end_to_end_speedup"] == by_key["end_to_end_speedup"] == answer.end_to_end_speedup.mean
    assert compare(tiny, vary(tiny, "lag=1")).step_s[1] == answer.candidate.step_s
    assert blame(given).step_s == pytest.approx(answer.candidate.step_s.mean, rel=1e-12)
    more = vary(tiny, "simulation.replications=5")
    assert "3 replications each (project takes 5: --replications 5 says the same)" in " ".join(
        render_sweep(sweep(more, ["k=2"])).split()
    )
    assert "project takes" not in render_sweep(sweep(more, ["k=2"], replications=5))
    assert ": 1 cell, 1 can run" in render_sweep(sweep(more, ["k=2"]))


WINS = (("k=2", "speculation.acceptance_length=1.5", {"speculation.acceptance_length": 1.5}),
        ("k=2", "speculation.position_acceptance=[0.7, 0.3]", {"speculation.position_acceptance": (0.7, 0.3)}),
        ("k=2", "speculation.acceptance_at_draft_length=2", {"speculation.acceptance_at_draft_length": 2}),
        ("k=2", "speculation.method=eagle3", {"speculation.draft_length": 2}),
        ("k=2", "speculation.draft_length=2", {"speculation.draft_length": 2}),
        ("k=0", "speculation.acceptance_length=2", {"speculation.method": "none"}),
        ("lag=1", "simulation.warmup_steps=7", {"simulation.warmup_steps": 7}),
        ("lag=1", "simulation.steps=2", {"simulation.steps": 2}), ("lag=1", "loop.mode=async", {"loop.policy_lag": 1}),
        ("lag=1", "cluster.generation_gpus=6", {"cluster.generation_gpus": 6, "cluster.training_gpus": None}),
        ("lag=1", "loop.refit_method=nccl_reshard", {"loop.refit_method": "nccl_reshard"}),
        ("lag=0", "cluster.generation_gpus=6", {"loop.mode": "sync", "cluster.generation_gpus": 6}),
        ("lag=1", "generation_share=0.25", {"cluster.generation_gpus": 2}),
        ("lag=1", "k=1", {"loop.policy_lag": 1, "speculation.draft_length": 1}),
        ("generation_share=0.75", "cluster.num_gpus=16", {"cluster.generation_gpus": 12}))  # fmt: skip
REFUSED = (
    ("k=2", "speculation.draft_length=4"),
    ("k=2", "speculation.method=none"),
    ("k=0", "speculation.method=eagle3"),
    ("k=2", "speculation.position_acceptance=[0.7]"),
    ("lag=1", "loop.mode=sync"),
    ("lag=0", "loop.mode=async"),
    ("lag=1", "loop.policy_lag=2"),
    ("lag=1", "loop.staleness_fraction=0.5"),
    ("lag=1", "loop.queue_batches=1"),
    ("generation_share=0.5", "cluster.generation_gpus=6"),
    ("generation_share=0.5", "cluster.training_gpus=6"),
)


@pytest.mark.parametrize(("word", "key", "kept"), WINS)
def test_what_is_stated_wins_over_derived_words(tiny: Scenario, word: str, key: str, kept: dict[str, object]) -> None:
    found = [vary(tiny, *order) for order in itertools.permutations((word, key))]
    found += [vary(tiny, {**dict([pair]), **dict([other])}) for pair, other in _mappings(tiny, word, key)]
    for one in found:
        for dotted, value in kept.items():
            section, name = dotted.split(".")
            assert getattr(getattr(one, section), name) == value, dotted
        assert one.model_copy(update={"question": ""}) == found[0].model_copy(update={"question": ""})


def _mappings(tiny: Scenario, word: str, key: str) -> list[tuple[tuple[str, object], tuple[str, object]]]:
    """The same as mappings, as a sweep hands them on, in both orders."""
    from rlsim.planning.grammar import grid, parse_axis

    (cell,) = grid([parse_axis(word), parse_axis(key)])
    first, second = cell.items()
    return [(first, second), (second, first)]


@pytest.mark.parametrize("pair", REFUSED)
def test_contradictions_are_refused_in_any_order(tiny: Scenario, pair: tuple[str, str]) -> None:
    for order in itertools.permutations(pair):
        with pytest.raises(InputError, match=r"contradict|give one of|position_acceptance needs"):
            vary(tiny, *order)
        with pytest.raises(InputError):
            load_scenario("quickstart", order)


def test_a_scenario_does_not_differ_from_itself_and_phases_add_up(tiny: Scenario, lagged: Scenario) -> None:
    comparison = compare(tiny, tiny)
    assert comparison.differences == {}
    assert (comparison.speedup.mean, comparison.speedup.low, comparison.speedup.high) == (1.0, 1.0, 1.0)
    assert comparison.explained_by is None
    assert "do not differ" in render_comparison(comparison)
    # Surely the slower environment, by less than anybody can measure.
    alike = render_comparison(compare(tiny, vary(tiny, "workload.environment_s=0.001")))
    assert "They take as long, within 1 %." in alike and "faster one" not in alike and "Most of" not in alike
    comparison = compare(tiny, vary(tiny, "simulation.seed=5"))
    assert not comparison.paired
    assert comparison.speedup.low < comparison.speedup.high
    assert "on different work" in render_comparison(comparison)
    comparison = compare(tiny, lagged)
    assert "generation (exposed where asynchronous)" in render_comparison(comparison)
    assert "  exposed generation" in render_comparison(compare(lagged, lagged))
    assert sum(change.before_s for change in comparison.phases) == pytest.approx(comparison.step_s[0].mean)
    assert sum(change.after_s for change in comparison.phases) == pytest.approx(comparison.step_s[1].mean, rel=0.01)
    # Another device was measured apart; the same one with another figure in its profile shares all its errors.
    other, changed = (compare(tiny, vary(tiny, f"hardware{how}")).speedup
                      for how in ("=h200_sxm", ".bf16_flops.value=1.2e15"))  # fmt: skip
    assert other.high / other.low > 1.2 > 1.05 > changed.high / changed.low


def test_the_phase_that_changed_explains_the_difference_and_the_baseline_gives_the_projection(tiny: Scenario) -> None:
    comparison = compare(tiny, vary(tiny, "speculation.method=none"))
    assert comparison.paired
    assert comparison.explained_by == "generation"
    (generation,) = [one for one in comparison.phases if one.phase == "generation"]
    assert generation.share == pytest.approx(1.0, abs=1e-6)
    assert comparison.speedup.mean < 1
    slower = compare(tiny, vary(tiny, "loop.refit_fixed_s=50"))
    assert slower.explained_by == "prepare"
    # The model's error on speed-ups is in both intervals, or the two would contradict each other.
    comparison = compare(vary(tiny, "speculation.method=none"), tiny)
    assert comparison.speedup == project(tiny).end_to_end_speedup
    assert comparison.price_per_gpu_hour_usd == (3.0, 3.0)
    assert "USD at 3.00 per GPU and hour" in render_comparison(comparison)
    assert (percent(-0.0), percent(-0.005), percent(-0.02)) == ("0 %", "0 %", "-2 %")
    assert comparison.step_s[1].mean < comparison.step_s[0].mean
    assert "-0 %" not in render_comparison(comparison)


SMALL = ["workload.prompts_per_step=8", "workload.generations_per_prompt=8", "trainer.global_batch_samples=null",
         "simulation.replications=1", "speculation={method: none}"]  # fmt: skip


@pytest.fixture(scope="module")
def answer() -> Techniques:
    return techniques(load_scenario("quickstart", SMALL))


def test_every_technique_is_left_out_with_a_reason_or_ranked_by_the_step_of_its_projection(answer: Techniques) -> None:
    names = [one.name for one in answer.techniques] + [one.name for one in answer.left_out]
    undone = {fault.undo for fault in faults()}
    assert {one.name for one in moves()} - set(names) <= undone
    assert len(names) == len(set(names))
    assert all(one.reason for one in answer.left_out)
    assert all(one.source and one.asks and one.changes for one in answer.techniques)
    steps = [one.step_s.mean for one in answer.techniques]
    assert steps == sorted(steps)
    for one in answer.techniques[:2]:
        alone = project(load_scenario("quickstart", [*SMALL, *one.changes]))
        assert alone.candidate.step_s.mean == pytest.approx(one.step_s.mean)
        assert one.speedup.mean == pytest.approx(answer.step_s.mean / one.step_s.mean, rel=0.02)


def test_what_cannot_be_is_left_out() -> None:
    drafting = techniques(vary(load_scenario("quickstart", SMALL[:-1]), {"loop.offload_memory": "pinned"}))
    reasons = {one.name: one.reason for one in drafting.left_out}
    assert reasons["eagle3"] == "the scenario drafts already"
    assert reasons["pinned_offload"] == "the scenario does so already"
    assert "needs a split cluster" in reasons["fast_refit"]


def test_alternatives_stand_beside_the_step_that_project_answers() -> None:
    scenario = load_scenario("quickstart", SMALL[:3])  # states no replications, which differ
    step_s = pytest.approx(project(scenario).candidate.step_s.mean)
    by = anchor(scenario)
    assert by is not None and by.scale != 1.0
    small = SearchLimits((8,), (0,))
    best = plan(scenario, limits=small, jobs=1)
    assert best.current is not None and best.current.step_s.mean == step_s
    stated = plan(vary(scenario, {"simulation.replications": scenario.replications}), limits=small, jobs=1).best.numbers
    # Each as far as it moves with the scenario: ratios are about those of the work that was compared.
    off = abs(by.scale - 1.0)
    for name in ("end_to_end_speedup", "rollout_speedup"):
        assert getattr(best.best.numbers, name).mean == pytest.approx(getattr(stated, name).mean, rel=off)
    assert stated.baseline_step_s is not None
    assert best.best.numbers.baseline_step_s == pytest.approx(by.scale * stated.baseline_step_s, rel=off)
    moves, idle = techniques(scenario), blame(scenario)
    assert (moves.step_s.mean, idle.step_s, headroom(scenario).rungs[0].step_s) == (step_s, step_s, step_s)
    assert sensitivity(scenario).step_s.mean == step_s
    gained = {one.name: one.step_s.mean for one in moves.techniques}
    both = [one for one in idle.what_ifs if one.name in gained]
    assert both and all(one.step_s == pytest.approx(gained[one.name]) for one in both)


def test_a_comparison_names_another_device_without_all_its_keys() -> None:
    found = compare("quickstart", vary(load_scenario("quickstart"), {"hardware": "h200_sxm", "k": 2}))
    text = render_comparison(found)
    assert text.startswith("Speedup ") and "speculation.draft_length" in text
    assert re.search(r"hardware\.name \(\+\d+ of its keys\) +h100_sxm +h200_sxm", text)
    assert "hardware.memory_bytes" not in text and "hardware.memory_bytes.value" in found.differences
