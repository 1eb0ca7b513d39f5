"""cluster.reference_gpus: the reference policy on GPUs of its own."""

from typing import Any

import builders
import numpy as np
import pytest

from rlsim.costs.interface import Part, PhaseCost, StepCost
from rlsim.costs.memory import trainer_memory
from rlsim.errors import Infeasible
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.idle import idle_of
from rlsim.projection.project import project
from rlsim.projection.variant import simulate_variant
from rlsim.schema.trainer import Trainer
from rlsim.simulation.streaming import streamed

TOKENS = np.full(256, 1100.0)


def costs(reference: int, loop: dict[str, Any] | None = None, **trainer: Any) -> builders.Costs:
    cluster = {"num_gpus": 16 + reference, "generation_gpus": 8, "training_gpus": 8, "reference_gpus": reference}
    given = {"tensor_parallel": 2, "recompute": "full", "policy_logprobs": True, **trainer}
    return builders.Costs(builders.scenario(trainer=given, cluster=cluster, loop=loop or {}))


def logprob_s(reference: int, **trainer: Any) -> float:
    return costs(reference, **trainer).step(TOKENS).logprob.seconds


def test_the_longer_of_both_passes_counts() -> None:
    """A pool as large as the trainer takes as long as the policy's pass; a quarter of it four times as long."""
    policy_s = logprob_s(0, reference_logprobs=False)
    assert logprob_s(8) == pytest.approx(policy_s)
    assert logprob_s(16) == pytest.approx(policy_s)
    assert logprob_s(2) == pytest.approx(4 * policy_s, rel=0.05)
    assert logprob_s(8, policy_logprobs=False) == pytest.approx(policy_s)
    assert costs(8).step(TOKENS).train == costs(0).step(TOKENS).train


def test_a_streaming_pool_takes_samples_as_they_come() -> None:
    """Equal samples are done at 0, 1 and 10 s, take 2 s in the pool and 1 s behind it: ready at 2, 4 and 12 s."""
    none, work = PhaseCost(0.0), PhaseCost.of([Part("products", 3.0, "compute")])
    cost = StepCost(none, none, work, reference_s=6.0)
    found = streamed(np.array([10.0, 0.0, 1.0]), np.full(3, 50.0), cost, Trainer())
    assert found.exposed_s + 3.0 == pytest.approx(13.0)
    streaming = costs(2, {"streaming": True}).step(TOKENS)
    assert streaming.logprob.seconds == pytest.approx(logprob_s(8))
    assert streaming.reference_s == pytest.approx(logprob_s(2))


def test_its_gpus_hold_weights_and_a_pass() -> None:
    """What trains on 64 GPUs may not fit on one, where nobody shares its weights."""
    assert trainer_memory(costs(2).scenario) == trainer_memory(costs(0).scenario)
    large = builders.scenario(
        "qwen2.5-72b", cluster={"num_gpus": 73, "generation_gpus": 8, "training_gpus": 64, "reference_gpus": 1},
        trainer={"recompute": "full", "backend": "fsdp"}, engine={"tensor_parallel": 8},
    )  # fmt: skip
    with pytest.raises(Infeasible, match="the reference policy of Qwen2"):
        trainer_memory(large)


def test_none_is_the_plain_loop_and_some_are_paid_for() -> None:
    plain = load_scenario("quickstart", ["simulation.replications=1", "trainer.reference_logprobs=true"])
    pool, neutral = (vary(plain, {"cluster.reference_gpus": count}) for count in (2, 0))
    assert project(neutral).candidate == project(plain).candidate
    assert (pool.cluster.generation, pool.cluster.training) == (6, 6)
    split = vary(pool, {"generation_share": 0.5})
    assert split.cluster.generation + split.cluster.training == 6


def test_idle_time_of_all_pools_and_work_add_up() -> None:
    keys = {"trainer.reference_logprobs": True, "cluster.reference_gpus": 2, "simulation.replications": 1}
    run = simulate_variant(vary(load_scenario("quickstart"), keys))
    found = {one.pool: one for one in idle_of(run) if one.cause == "nothing to score"}["reference"]
    assert found.gpu_s == pytest.approx(2 * np.mean([one.seconds - one.cost.reference_s for one in run.every_step]))
    assert 0 < sum(one.share for one in idle_of(run)) < 1
    assert any(one.cause == "reference pool" for one in idle_of(run))
