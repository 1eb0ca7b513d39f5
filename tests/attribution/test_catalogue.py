"""Faults of public threads: what names them, and where the catalogue must not speak."""

import re

import pytest

from rlsim.attribution.check import check
from rlsim.attribution.faults import Faulty
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.change import passes_with
from rlsim.projection.moves import ALREADY, Fault, faults, move_named
from rlsim.projection.variant import simulate_variant
from rlsim.schema.scenario import Scenario

SMALL = ("speculation.method=none", "simulation.replications=2")


def fault(name: str) -> Fault:
    return next(one for one in faults() if one.name == name)


@pytest.fixture(scope="module")
def quickstart() -> Faulty:
    return Faulty(load_scenario("quickstart", SMALL))


def test_seconds_that_stand_in_no_phase_are_logging_and_checkpoints(quickstart: Faulty) -> None:
    healthy, found = quickstart.healthy, quickstart.with_fault(fault("between_steps"), 60.0)
    assert found is not None and found.step_s == pytest.approx(healthy.step_s + 60.0)
    others = {name: value for name, value in found.phases.items() if name != "step"}
    assert others == pytest.approx({name: healthy.phases[name] for name in others}, abs=1e-9)
    named = check(quickstart.scenario, {**found.phases, "step": healthy.step_s + 45.0}, faulty=quickstart)
    assert named.groups[0].members[0].name == "between_steps" and named.groups[0].probability > 0.9
    # What no key states is told in words that hold the number.
    (words,) = named.groups[0].members[0].changes
    assert re.fullmatch(r"\d\d(\.\d)? s of logging, checkpoints and validation", words)


def test_one_slow_engine_holds_up_generation_alone_and_only_where_others_cannot_take_its_work(
    quickstart: Faulty,
) -> None:
    found = quickstart.with_fault(fault("slow_engine"), 2.0)
    assert found is not None
    ratios = {name: value / quickstart.healthy.phases[name] for name, value in found.phases.items()}
    assert ratios.pop("generation") == pytest.approx(2.0, rel=0.02) and ratios.pop("step") > 1.3
    assert ratios == pytest.approx(dict.fromkeys(ratios, 1.0))
    shared = load_scenario("quickstart", [*SMALL, "engine.dispatch=shared_queue"])
    assert fault("slow_engine").missing(shared) and not fault("slow_engine").missing(quickstart.scenario)


def test_a_rollout_for_each_accumulation_step_generates_the_same_tokens_in_rounds_that_each_wait() -> None:
    trainer = Faulty(load_scenario("quickstart", (*SMALL, "stack=servers")))
    known, healthy = fault("accumulation_rollouts"), trainer.healthy
    found = [trainer.with_fault(known, count) for count in known.severities]
    steps_s = [one.step_s for one in found if one is not None]
    assert len(steps_s) == 3 and sorted(steps_s) == steps_s and steps_s[0] > healthy.step_s
    for count, one in zip(known.severities, found, strict=True):
        assert one is not None and {step.rollouts for step in one.run.every_step} == {count}
        # The trainer's work and all tokens are the same.
        assert one.figures["generated_tokens"] == healthy.figures["generated_tokens"]
        assert [one.phases[name] for name in ("train", "logprob")] == [healthy.phases[n] for n in ("train", "logprob")]
        assert one.figures["running_sequences"] < healthy.figures["running_sequences"]
    grave = found[1]
    assert grave is not None
    named = check(trainer.scenario, grave.phases, faulty=trainer)  # phases alone do not tell it from small batches
    assert "accumulation_rollouts" in [one.name for group in named.groups for one in group.members]
    for other in (load_scenario("quickstart", SMALL), load_scenario("qwen8b_async_lag1", ("stack=servers",))):
        assert known.missing(other)  # a loop of its own that generates once, or never waits


@pytest.mark.parametrize("words", [(), ("trainer.reference_logprobs=true", "trainer.policy_logprobs=true")])
def test_a_reference_pass_that_a_kl_term_may_need_is_no_fault_of_the_configuration(words: tuple[str, ...]) -> None:
    asked: Scenario = load_scenario("quickstart", [*SMALL, *words])
    assert "further_logprobs" not in [one.name for one in check(asked, {"step": 100.0}).stated]


def test_groups_are_thrown_away_only_where_the_scenario_filters_them(quickstart: Faulty) -> None:
    filtering = load_scenario("quickstart", [*SMALL, "workload.usable_group_share=0.6"])
    assert fault("filtered_groups").missing(quickstart.scenario) and not fault("filtered_groups").missing(filtering)


def test_a_change_of_passes_keeps_the_pass_of_a_reference_pool() -> None:
    words = (*SMALL, "cluster.num_gpus=10", "cluster.reference_gpus=2", "trainer.reference_logprobs=true")
    scenario = load_scenario("quickstart", words)
    plain = simulate_variant(scenario)
    for priced in (plain.prices, passes_with(lambda phase, part: 1.0)(plain.prices)):
        assert priced.steps[0].reference_s == plain.prices.steps[0].reference_s > 0


@pytest.mark.parametrize("faster", [0.7, 0.85, 0.95])
def test_no_fault_that_lengthens_a_step_is_named_where_it_is_faster_than_expected(
    quickstart: Faulty, faster: float
) -> None:
    expected_s = check(quickstart.scenario, {"step": 1.0}, faulty=quickstart).step.expected_s.mean
    for measured in ({"step": faster * expected_s}, {"step": faster * expected_s, "data": 0.05}):
        found = check(quickstart.scenario, measured, faulty=quickstart)
        listed = [one for group in found.groups for one in group.members]
        assert all(one.phases_s["step"] < expected_s for one in listed), [one.name for one in listed]
    # One phase that is slow beside a fast step has causes all the same.
    healthy = quickstart.healthy.phases
    slow = {"step": 0.97 * healthy["step"], "train": 1.4 * healthy["train"]}
    assert check(quickstart.scenario, slow, faulty=quickstart).groups


def test_nobody_is_advised_to_set_what_the_framework_has_no_option_for() -> None:
    stacks = ("nemo_rl-0.7", "slime")
    nemo, slime = (
        load_scenario("quickstart", [f"stack={stack}", "engine.gpu_memory_utilization=0.5", *SMALL]) for stack in stacks
    )
    kept = move_named("no_offload")
    assert "NeMo-RL" in kept.missing(nemo) and not kept.missing(slime)
    advised = [{one.name for one in check(one, {"step": 80.0}).stated} for one in (nemo, slime)]
    assert "needless_offload" not in advised[0] and "needless_offload" in advised[1]
    assert not any("pageable_offload" in names for names in advised)
    assert kept.missing(vary(nemo, "trainer.offload=false")) == ALREADY
