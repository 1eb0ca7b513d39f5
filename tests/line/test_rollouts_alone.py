"""A loop without training is priced as the generation of a loop whose trainer has GPUs of its own."""

from collections.abc import Callable

import pytest

from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario, vary
from rlsim.planning.plan import plan
from rlsim.planning.size import Wanted, size
from rlsim.planning.sweep import sweep
from rlsim.projection.project import project
from rlsim.projection.variant import simulate_variant
from rlsim.readers.frameworks.exporting import export_scenario
from rlsim.report.text.projection import render
from rlsim.schema.scenario import Scenario

SPLIT = ("cluster.generation_gpus=4", "cluster.training_gpus=4")
ALONE = ("loop.rollouts_alone=true", "cluster.num_gpus=4")
JUDGE = ("cluster.pool_gpus=2",
         "pools=[{name: judge, role: judge, model: llama-3.1-8b, gpus: 2, generated_tokens: 64}]")  # fmt: skip


@pytest.fixture(scope="module")
def plain() -> Scenario:
    return load_scenario(
        "quickstart", ["simulation.replications=1", "speculation.method=none", "speculation.draft_length=0"]
    )


def test_a_step_is_the_generation_beside_a_trainer_on_other_gpus(plain: Scenario) -> None:
    given = ("workload.environment_s=3", "workload.batch_reward_s=2", *JUDGE)
    whole = simulate_variant(vary(plain, *SPLIT, *given, "cluster.num_gpus=10")).every_step[0]
    alone = simulate_variant(vary(plain, *ALONE, *given, "cluster.num_gpus=6")).every_step[0]
    assert alone.phases.generation_s == whole.phases.generation_s
    assert alone.seconds == pytest.approx(alone.phases.generation_s + alone.phases.data_s, rel=1e-12)
    pools = [[part for part in one.cost.data.parts if part.name in ("judge", "reward")] for one in (whole, alone)]
    assert pools[0] == pools[1] and len(pools[1]) == 2
    assert alone.phases.data_s == pytest.approx(sum(part.seconds for part in pools[1]), rel=1e-12)


def test_no_trainer_takes_memory_and_none_must_fit(plain: Scenario) -> None:
    # 140 GB of weights and their optimizer fit no two GPUs; the engine alone does.
    large = vary(plain, "model=llama-3.1-70b", "engine.tensor_parallel=4", *ALONE, "workload.prompts_per_step=8")
    answer = project(large)
    assert list(answer.candidate.memory) == ["generation"]
    text = render(answer)
    assert ", rollouts alone" in text and not any(word in text for word in ("refit", "train MFU", "optimizer"))


def test_no_layout_of_a_trainer_need_fit_the_gpus(plain: Scenario) -> None:
    one = project(vary(plain, "loop.rollouts_alone=true", "cluster.num_gpus=1"))  # the trainer has two stages
    same = project(vary(plain, "loop.rollouts_alone=true", "cluster.num_gpus=1", "trainer.pipeline_parallel=1"))
    assert one.candidate.step_s == same.candidate.step_s and one.candidate.step_s.low > 0


@pytest.mark.parametrize("given", [
    "cluster.generation_gpus=2 cluster.training_gpus=2",
    "trainer.policy_logprobs=true",
    "trainer.critic=true",
    "cluster.num_gpus=6 cluster.pool_gpus=2 pools=[{name:t,role:teacher,model:llama-3.1-8b,gpus:2}]",
])  # fmt: skip
def test_what_needs_a_trainer_is_refused_by_name(plain: Scenario, given: str) -> None:
    with pytest.raises(InputError, match=r"trains nothing: give no"):
        vary(plain, *ALONE, *given.replace(":", ": ").split(" ", given.count("=") - 1))


def test_a_lag_needs_training_and_a_step_needs_a_half(plain: Scenario) -> None:
    with pytest.raises(InputError, match="rollouts_alone has no training"):
        vary(plain, *ALONE, "loop.mode=async")
    with pytest.raises(InputError, match="one of supervised and rollouts_alone"):
        vary(plain, *ALONE, "loop.supervised=true")


@pytest.mark.parametrize("ask", [
    plan, lambda scenario: size(Wanted(base=scenario)), lambda scenario: export_scenario(scenario, "verl"),
])  # fmt: skip
def test_commands_of_trainers_say_that_there_is_none(plain: Scenario, ask: Callable[[Scenario], object]) -> None:
    with pytest.raises(InputError, match=r"loop\.rollouts_alone trains nothing, and .* needs a trainer"):
        ask(vary(plain, *ALONE))


def test_a_sweep_has_memory_of_engines_alone(plain: Scenario) -> None:
    (row,) = sweep(vary(plain, *ALONE), ["engine.tensor_parallel=2"]).rows
    assert row["status"] == "ok" and row["generation_memory_bytes"] and not row["training_memory_bytes"]
