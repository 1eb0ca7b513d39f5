"""Pools of their own: training on another kind of GPU, the reference policy apart."""

import json
from typing import Any

import builders
import numpy as np
import pytest

import rlsim
from rlsim.costs.interface import Part, PhaseCost, StepCost
from rlsim.costs.memory import trainer_memory
from rlsim.costs.prices import PriceInputs
from rlsim.costs.transfer.job import job_of
from rlsim.errors import Infeasible, InputError
from rlsim.loading.scenario import dump_scenario, load_scenario, scenario_digest, vary
from rlsim.projection.idle import idle_of
from rlsim.projection.project import project
from rlsim.projection.summary import cost_usd, energy_j
from rlsim.projection.variant import simulate_variant
from rlsim.schema.trainer import Trainer
from rlsim.simulation.streaming import streamed

SMALL = {"simulation": {"replications": 1}, "trainer": {"recompute": "full"}}


@pytest.fixture(scope="module")
def split():
    scenario = load_scenario("quickstart")
    loop = {"cluster": {"generation_gpus": 4, "training_gpus": 4}, "loop": {"mode": "async", "policy_lag": 1}}
    return vary(scenario, SMALL, loop, {"simulation": {"steps": 4, "warmup_steps": 2}})


def step(scenario):
    return rlsim.project(scenario).candidate


def test_the_same_kind_twice_is_one_kind_and_shared_gpus_and_plans_have_one(split):
    twice = vary(split, {"training_hardware": "h100_sxm"})
    one, two = (json.loads(rlsim.project(scenario).to_json()) for scenario in (split, twice))
    about = ("digest", "hardware", "resolved_scenario")
    assert {key: value for key, value in one.items() if key not in about} == {
        key: value for key, value in two.items() if key not in about
    }
    assert scenario_digest(split) != scenario_digest(twice)
    with pytest.raises(InputError, match="training_hardware needs GPUs that train alone"):
        vary(load_scenario("quickstart"), {"training_hardware": "h20_sxm"})
    with pytest.raises(InputError, match="leave training_hardware out"):
        rlsim.plan(vary(split, {"training_hardware": "h20_sxm"}))


def test_training_gpus_of_less_power_lengthen_training_alone_and_generation_runs_on_its_own(split):
    slower = vary(split, {"training_hardware": "h20_sxm"})
    one, two = step(split), step(slower)
    assert two.phases.train_s.mean > 3 * one.phases.train_s.mean
    assert two.phases.logprob_s.mean > 3 * one.phases.logprob_s.mean
    assert two.memory["training"].available_bytes == pytest.approx(95.1 * 2**30)
    assert two.memory["generation"] == one.memory["generation"]
    one, two = (step(vary(split, {"hardware": kind, "training_hardware": "h100_sxm"}))
                for kind in ("h20_sxm", "b200_sxm"))  # fmt: skip
    assert one.phases.train_s.mean == pytest.approx(two.phases.train_s.mean, rel=0.02)
    assert one.phases.generation_s.mean > 1.3 * two.phases.generation_s.mean


def test_money_and_energy_by_pool_and_what_is_written_out_loads_again(split, tmp_path):
    changed = {"training_hardware": "h20_sxm", "hardware.price_per_gpu_hour_usd.value": 4.0}
    two = vary(split, changed, {"training_hardware.price_per_gpu_hour_usd.value": 1.0, "cluster.num_gpus": 8})
    assert cost_usd(two, 3600.0) == pytest.approx(4 * 4.0 + 4 * 1.0)
    watts = 4 * two.hardware.power_w.value + 4 * two.training_hardware.power_w.value
    assert energy_j(two, 10.0) == pytest.approx(10 * watts)
    two = vary(split, {"training_hardware": "h20_sxm"})
    path = tmp_path / "two.yaml"
    path.write_text(dump_scenario(two), encoding="utf-8")
    assert scenario_digest(load_scenario(path)) == scenario_digest(two)


TOKENS = np.full(256, 1100.0)


def costs(reference: int, loop: dict[str, Any] | None = None, **trainer: Any) -> builders.Costs:
    cluster = {"num_gpus": 16 + reference, "generation_gpus": 8, "training_gpus": 8, "reference_gpus": reference}
    given = {"tensor_parallel": 2, "recompute": "full", "policy_logprobs": True, **trainer}
    return builders.Costs(builders.scenario(trainer=given, cluster=cluster, loop=loop or {}))


def logprob_s(reference: int, **trainer: Any) -> float:
    return costs(reference, **trainer).step(TOKENS).logprob.seconds


def test_the_longer_of_both_passes_counts_and_streams() -> None:
    """A pool as large as the trainer takes as long as the policy's pass; a quarter of it four times as long."""
    policy_s = logprob_s(0, reference_logprobs=False)
    assert logprob_s(8) == pytest.approx(policy_s)
    assert logprob_s(16) == pytest.approx(policy_s)
    assert logprob_s(2) == pytest.approx(4 * policy_s, rel=0.05)
    assert logprob_s(8, policy_logprobs=False) == pytest.approx(policy_s)
    assert costs(8).step(TOKENS).train == costs(0).step(TOKENS).train
    # Equal samples are done at 0, 1 and 10 s, take 2 s in the pool and 1 s behind it: ready at 2, 4 and 12 s.
    none, work = PhaseCost(0.0), PhaseCost.of([Part("products", 3.0, "compute")])
    cost = StepCost(none, none, work, reference_s=6.0)
    found = streamed(np.array([10.0, 0.0, 1.0]), np.full(3, 50.0), cost, Trainer())
    assert found.exposed_s + 3.0 == pytest.approx(13.0)
    streaming = costs(2, {"streaming": True}).step(TOKENS)
    assert streaming.logprob.seconds == pytest.approx(logprob_s(8))
    assert streaming.reference_s == pytest.approx(logprob_s(2))


def test_no_reference_pool_is_the_plain_loop_and_idle_time_adds_up() -> None:
    plain = load_scenario("quickstart", ["simulation.replications=1", "trainer.reference_logprobs=true"])
    pool, neutral = (vary(plain, {"cluster.reference_gpus": count}) for count in (2, 0))
    assert project(neutral).candidate == project(plain).candidate
    assert (pool.cluster.generation, pool.cluster.training) == (6, 6)
    split = vary(pool, {"generation_share": 0.5})
    assert split.cluster.generation + split.cluster.training == 6
    # What trains on 64 GPUs may not fit on one, where nobody shares its weights.
    assert trainer_memory(costs(2).scenario) == trainer_memory(costs(0).scenario)
    large = builders.scenario(
        "qwen2.5-72b", cluster={"num_gpus": 73, "generation_gpus": 8, "training_gpus": 64, "reference_gpus": 1},
        trainer={"recompute": "full", "backend": "fsdp"}, engine={"tensor_parallel": 8},
    )  # fmt: skip
    with pytest.raises(Infeasible, match="the reference policy of Qwen2"):
        trainer_memory(large)
    keys = {"trainer.reference_logprobs": True, "cluster.reference_gpus": 2, "simulation.replications": 1}
    run = simulate_variant(vary(load_scenario("quickstart"), keys))
    found = {one.pool: one for one in idle_of(run) if one.cause == "nothing to score"}["reference"]
    assert found.gpu_s == pytest.approx(2 * np.mean([one.seconds - one.cost.reference_s for one in run.every_step]))
    assert 0 < sum(one.share for one in idle_of(run)) < 1
    assert any(one.cause == "reference pool" for one in idle_of(run))


def test_a_reference_pool_is_paid_for_as_what_trains_is() -> None:
    cluster = {"num_gpus": 72, "generation_gpus": 48, "training_gpus": 16, "reference_gpus": 8}
    one = vary(load_scenario("qwen8b_async_lag1"), {"cluster": cluster, "trainer.reference_logprobs": True})
    twice = vary(one, {"training_hardware": one.hardware.name})
    assert cost_usd(twice, 3600.0) == pytest.approx(cost_usd(one, 3600.0)) == pytest.approx(72 * 7.0)
    assert energy_j(twice, 1.0) == pytest.approx(energy_j(one, 1.0))


@pytest.mark.parametrize("method", ["nccl_broadcast", "nccl_reshard", "rdma"])
def test_two_kinds_are_in_no_domain_together(method: str) -> None:
    def transfer(*keys: str) -> tuple[bool, float]:
        scenario = load_scenario(
            "qwen8b_async_lag1", ["engine.tensor_parallel=1", f"loop.refit_method={method}", *keys]
        )
        scenario = vary(scenario, {"cluster": {"num_gpus": 8, "generation_gpus": 4, "training_gpus": 4}})
        return job_of(scenario).in_one_domain, PriceInputs(scenario).transfers.transfer().seconds

    together, one_s = transfer("hardware=h100_sxm")
    assert (together, one_s) == transfer("hardware=h100_sxm", "training_hardware=h100_sxm")
    apart, other_s = transfer("hardware=h20_sxm", "training_hardware=h100_sxm")
    assert together and not apart and other_s > one_s
