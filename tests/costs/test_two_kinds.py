"""Generation and training on two kinds of GPU (training_hardware)."""

from __future__ import annotations

import json

import pytest

import rlsim
from rlsim.errors import InputError
from rlsim.loading.scenario import dump_scenario, load_scenario, scenario_digest, vary
from rlsim.projection.summary import cost_usd, energy_j

SMALL = {"simulation": {"replications": 1}, "trainer": {"recompute": "full"}}


@pytest.fixture(scope="module")
def split():
    scenario = load_scenario("quickstart")
    loop = {"cluster": {"generation_gpus": 4, "training_gpus": 4}, "loop": {"mode": "async", "policy_lag": 1}}
    return vary(scenario, SMALL, loop, {"simulation": {"steps": 4, "warmup_steps": 2}})


def step(scenario):
    return rlsim.project(scenario).candidate


def test_the_same_kind_twice_is_one_kind(split):
    twice = vary(split, {"training_hardware": "h100_sxm"})
    one, two = (json.loads(rlsim.project(scenario).to_json()) for scenario in (split, twice))
    about = ("digest", "hardware", "resolved_scenario")
    assert {key: value for key, value in one.items() if key not in about} == {
        key: value for key, value in two.items() if key not in about
    }
    assert scenario_digest(split) != scenario_digest(twice)


def test_training_gpus_of_less_power_lengthen_training_alone(split):
    slower = vary(split, {"training_hardware": "h20_sxm"})
    one, two = step(split), step(slower)
    assert two.phases.train_s.mean > 3 * one.phases.train_s.mean
    assert two.phases.logprob_s.mean > 3 * one.phases.logprob_s.mean
    assert two.memory["training"].available_bytes == 96 * 2**30
    assert two.memory["generation"] == one.memory["generation"]


def test_generation_runs_on_its_own_kind(split):
    one, two = (
        step(vary(split, {"hardware": kind, "training_hardware": "h100_sxm"})) for kind in ("h20_sxm", "b200_sxm")
    )
    assert one.phases.train_s.mean == pytest.approx(two.phases.train_s.mean, rel=0.02)
    assert one.phases.generation_s.mean > 1.3 * two.phases.generation_s.mean


def test_money_and_energy_by_pool(split):
    changed = {"training_hardware": "h20_sxm", "hardware.price_per_gpu_hour_usd.value": 4.0}
    two = vary(split, changed, {"training_hardware.price_per_gpu_hour_usd.value": 1.0, "cluster.num_gpus": 8})
    assert cost_usd(two, 3600.0) == pytest.approx(4 * 4.0 + 4 * 1.0)
    watts = 4 * two.hardware.power_w.value + 4 * two.training_hardware.power_w.value
    assert energy_j(two, 10.0) == pytest.approx(10 * watts)


def test_what_is_written_out_loads_again(split, tmp_path):
    two = vary(split, {"training_hardware": "h20_sxm"})
    path = tmp_path / "two.yaml"
    path.write_text(dump_scenario(two), encoding="utf-8")
    assert scenario_digest(load_scenario(path)) == scenario_digest(two)


def test_shared_gpus_and_plans_have_one_kind(split):
    with pytest.raises(InputError, match="training_hardware needs GPUs that train alone"):
        vary(load_scenario("quickstart"), {"training_hardware": "h20_sxm"})
    with pytest.raises(InputError, match="leave training_hardware out"):
        rlsim.plan(vary(split, {"training_hardware": "h20_sxm"}))
