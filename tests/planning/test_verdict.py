"""What verdicts say of devices that nobody measured, and of orders that one fitted term decides."""

import math

import pytest

from rlsim.costs.operators.device import GENERATION_BIAS, TRAINING_BIAS
from rlsim.costs.prices import PriceInputs
from rlsim.loading.scenario import load_scenario
from rlsim.planning.compare import compare
from rlsim.planning.new import plain_limits
from rlsim.planning.plan import plan
from rlsim.planning.sweep import sweep
from rlsim.projection.project import project
from rlsim.projection.verdict import backing, host_decides
from rlsim.report.text.plan import render_plan
from rlsim.report.text.planning import render_comparison, render_sweep
from rlsim.schema.scenario import Scenario
from rlsim.tables.profile import load_profile


def on(device: str, *more: str) -> Scenario:
    return load_scenario("quickstart", [f"hardware={device}", "simulation.replications=1", "k=0", *more])


def test_the_measured_bias_of_datasheets_is_in_the_mean() -> None:
    bare, known = (PriceInputs(on(name)).overheads for name in ("mi300x", "h100_sxm"))
    groups = PriceInputs(on("mi300x")).fitted
    assert math.log(bare.training.factor) == pytest.approx(TRAINING_BIAS + math.log(groups.factor(()))), groups
    assert math.log(bare.engine.factor) != 0 and known.training.factor != bare.training.factor
    assert pytest.approx(math.log(1.04), abs=0.002) == GENERATION_BIAS
    assert pytest.approx(math.log(1.13), abs=0.003) == TRAINING_BIAS
    # A plan looks at layouts of the trainer without pricing the engine anew: the bias stays.
    inputs = PriceInputs(on("mi300x"))
    other = inputs.of_trainer(inputs.scenario.trainer.model_copy(update={"pipeline_parallel": 1}))
    assert other.overheads.training.factor == pytest.approx(bare.training.factor)


@pytest.mark.parametrize("more", ["k=0", "k=3"])
@pytest.mark.parametrize(("slower", "faster"), [("a100_pcie", "a100_sxm"), ("h100_pcie", "h100_sxm")])
def test_a_board_of_a_chip_is_not_faster_than_its_better_one(slower: str, faster: str, more: str) -> None:
    arms = [project(on(name, more)).candidate for name in (slower, faster)]
    assert arms[0].step_s.mean > arms[1].step_s.mean
    assert arms[0].phases["generation_s"].mean > arms[1].phases["generation_s"].mean


def test_an_unmeasured_winner_is_named_with_the_best_measured_one() -> None:
    compared = compare(on("h100_sxm"), on("mi300x"))
    (remark,) = compared.verdict
    assert "No operator was measured on mi300x" in remark and "2.50 USD an hour (a round default)" in remark
    assert "Best on a measured device: A, " in remark and "on h100_sxm" in remark
    assert "No operator was measured" in render_comparison(compared)
    assert compare(on("mi300x"), on("b300_sxm")).verdict == ()
    swept = sweep(on("h100_sxm"), {"hardware": ["h100_sxm", "mi300x"]})
    assert "Best on a measured device: hardware=h100_sxm" in swept.verdict[0]
    assert swept.verdict[0].partition(":")[0] in " ".join(render_sweep(swept).split())
    assert sweep(on("h100_sxm"), {"cluster.num_gpus": [8, 16]}).verdict == ()
    planned = plan(on("mi300x"), limits=plain_limits(8), rest=False)
    assert planned.verdict and "No operator was measured on mi300x" in render_plan(planned)
    assert "h100_sxm" in backing(load_profile("h20_sxm")) and not backing(load_profile("h100_sxm"))


def test_an_order_that_the_host_of_one_device_decides_is_said() -> None:
    devices = load_profile("h100_sxm"), load_profile("gb200_nvl72")
    (remark,) = host_decides(devices, (937.0, 953.0), ("A", "B"), lambda place: 600.0 if place == 1 else None)
    assert "one fitted term" in remark and "B takes 600 s" in remark
    assert host_decides(devices, (937.0, 853.0), ("A", "B"), lambda place: 600.0) == ()
    assert host_decides((devices[0], devices[0]), (937.0, 953.0), ("A", "B"), lambda place: 600.0) == ()
    assert host_decides(devices, (937.0, 953.0), ("A", "B"), lambda place: None) == ()
