"""Deviations of groups: whose they are, and that they scale iterations, trainer passes and transfers, nothing else."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from rlsim.costs.engine.device_times import DeviceTimes, PrefillTimes, compute_bound
from rlsim.costs.engine.layers import total
from rlsim.costs.engine.prices import _engine, decode_points_of_hosts_s, engine_prices
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


def test_a_deviation_scales_iterations_but_none_that_compute_binds_takes_less_than_its_kernels() -> None:
    inputs = PriceInputs(scenario("workload.prompts_per_step=512")).engine
    plain, faster, slower = (
        engine_prices(replace(inputs, host=replace(inputs.host, factor=factor))).table for factor in (1.0, 0.8, 1.25)
    )
    drafting = _engine(inputs)
    bound, decoded = compute_bound(drafting, np.arange(len(plain.step_s), dtype=float)), slice(1, None)
    few, many = bound == 0, bound == 1
    assert few.sum() > 10
    assert many.sum() > 10
    kernels = DeviceTimes.of(drafting, len(plain.step_s) - 1, inputs.max_context_tokens, inputs.prompt_tokens)
    assert slower.step_s == pytest.approx(1.25 * plain.step_s)
    assert slower.prefill_s == pytest.approx(1.25 * plain.prefill_s)
    assert faster.step_s[few] == pytest.approx(0.8 * plain.step_s[few])
    assert np.all(faster.step_s[many] >= total(kernels.components)[many])
    assert np.all(np.diff(faster.step_s[decoded]) > -1e-3 * faster.step_s[1:-1])  # no cliff between both
    assert faster.attention_s == pytest.approx(0.8 * plain.attention_s)
    prompts = PrefillTimes.of(drafting, len(plain.step_s) - 1, inputs.prompt_tokens)
    whole = faster.step_s[faster.prefill_sequences.astype(int)][:, None] + faster.prefill_s
    least = prompts.linear + prompts.attention
    assert np.all((whole >= least * (1 - 1e-12))[prompts.compute_bound == 1])
    assert np.all(faster.prefill_context_s == plain.prefill_context_s)
    sequences, contexts = np.array([4.0, 240.0]), np.array([900.0, 900.0])
    hosts = [replace(inputs.host, factor=factor) for factor in (1.0, 0.8)]
    points = decode_points_of_hosts_s(inputs, hosts, sequences, contexts)
    assert points[1, 0] == pytest.approx(0.8 * points[0, 0])
    cached = np.interp(900.0, np.arange(64) * faster.context_step_tokens, faster.attention_s[240])
    assert points[1, 1] == pytest.approx(faster.step_s[240] + cached, rel=0.01)


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
