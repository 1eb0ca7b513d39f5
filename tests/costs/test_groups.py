"""Deviations of groups: whose they are, and that they scale iterations, trainer passes and transfers, nothing else."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlsim.costs.engine.prices import decode_points_s
from rlsim.costs.operators.groups import family_of, phase_groups, refit_groups, refit_method, series, trainer_groups
from rlsim.costs.prices import PriceInputs, ScenarioPrices, price
from rlsim.loading.scenario import load_scenario
from rlsim.parameters.posterior import DEFAULT, load_posterior
from rlsim.schema.scenario import Scenario
from rlsim.workload.draw import draw

DEVIATION = 0.3
SMALL = ("workload.prompts_per_step=8", "workload.generations_per_prompt=4", "trainer.global_batch_samples=32")


def scenario(*overrides: str) -> Scenario:
    return load_scenario("quickstart", [*SMALL, *overrides])


def priced(one: Scenario) -> ScenarioPrices:
    return price(one, draw(one, 0))


def with_deviation(one: Scenario, group: str, folder: Path) -> Scenario:
    joint = load_posterior(DEFAULT)
    size = len(joint.columns) + 1
    factor = np.zeros((size, size))
    factor[:-1, :-1], factor[-1, -1] = joint.factor, 0.1
    own = replace(joint, columns=(*joint.columns, group), mean=np.append(joint.mean, DEVIATION), factor=factor)
    (folder / "own.npz").write_bytes(own.to_bytes())
    simulation = one.simulation.model_copy(update={"posterior": str(folder / "own.npz")})
    return one.model_copy(update={"simulation": simulation})


def host_s(prices: ScenarioPrices) -> float:
    """Seconds of a transfer on hosts; what is on links may be at their rates."""
    return sum(part.seconds for part in prices.refit.parts if part.bound == "host")


@pytest.mark.parametrize("phase", ["generation", "train", "transfer"])
def test_a_group_scales_its_phase_and_no_other(phase: str, tmp_path: Path) -> None:
    one = scenario()
    group = phase_groups(one)[phase][-1]
    other = with_deviation(one, group, tmp_path)
    before, after = priced(one), priced(other)
    ratio = np.exp(DEVIATION)
    ratios = {"generation": after.iteration.step_s[1:] / before.iteration.step_s[1:],
              "train": after.steps[0].train.seconds / before.steps[0].train.seconds,
              "transfer": host_s(after) / host_s(before)}  # fmt: skip
    for name, found in ratios.items():
        assert found == pytest.approx(ratio if name == phase else 1.0, rel=1e-6), name
    assert after.steps[0].logprob.seconds / before.steps[0].logprob.seconds == pytest.approx(
        ratio if phase == "train" else 1.0
    )
    assert after.steps[0].data == before.steps[0].data


def test_all_of_an_iteration_is_scaled(tmp_path: Path) -> None:
    one = scenario()
    other = with_deviation(one, phase_groups(one)["generation"][-1], tmp_path)
    tables = [priced(each).iteration for each in (one, other)]
    ratio = np.exp(DEVIATION)
    assert tables[1].attention_s[1:, 1:] == pytest.approx(tables[0].attention_s[1:, 1:] * ratio)
    assert tables[1].prefill_s == pytest.approx(tables[0].prefill_s * ratio)
    points = [decode_points_s(PriceInputs(each).engine, np.array([4.0]), np.array([900.0])) for each in (one, other)]
    assert points[1] == pytest.approx(points[0] * ratio)


def test_runs_share_what_they_have_in_common_releases_and_hand_overs_among_it() -> None:
    one, wider, drafted = (
        scenario(f"speculation.draft_length={k}", *more) for k, more in ((3, ()), (3, WIDE), (5, ()))
    )
    groups = [phase_groups(each) for each in (one, wider, drafted)]
    # Another layout leaves the software's groups and changes the run's; another draft length only its own.
    apart = set(groups[0]["generation"]) ^ set(groups[1]["generation"])
    assert {family_of(group) for group in apart} == {"rollout of run", "speculation", "draft length"}
    lengths = set(groups[0]["generation"]) ^ set(groups[2]["generation"])
    assert {family_of(group) for group in lengths} == {"draft length"}
    assert groups[0]["train"] == groups[0]["logprob"] == groups[2]["train"]
    assert groups[0]["generation"][:3] == groups[1]["generation"][:3]
    assert all(group.endswith(": a run") for group in phase_groups(one, "a run")["train"][-1:])
    assert series("0.5.10.post1") == series("0.5.10") == "0.5.10" != series("0.5.9")
    one = scenario()
    assert trainer_groups(one) == (f"trainer on device: {one.hardware.name}",)
    assert refit_method(one) == "cuda_ipc"
    release = "transfer release: nemo_rl 0.6"
    shared = scenario("stack=nemo_rl-0.6")
    assert release in refit_groups(shared)
    assert refit_groups(scenario("stack=verl"))[-1].startswith("transfer of model")
    split = ("cluster.num_gpus=8", "cluster.generation_gpus=4", "cluster.training_gpus=4")
    apart = scenario("stack=nemo_rl-0.6", *split)
    assert not any(group.startswith("transfer release") for group in refit_groups(apart))


WIDE = ("engine.tensor_parallel=2",)
