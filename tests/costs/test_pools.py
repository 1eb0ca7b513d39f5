"""Models beside the policy: their seconds by closed forms, and where in a step they stand."""

from typing import Any

import numpy as np
import pytest

import rlsim
from rlsim.costs.pools import pool_cost, with_pools
from rlsim.costs.prices import PriceInputs
from rlsim.costs.trainer.layout import TrainedBatch
from rlsim.costs.trainer.training import step_cost
from rlsim.errors import InputError
from rlsim.schema.model import parameter_counts
from rlsim.schema.scenario import Scenario

TEACHER = {"name": "teacher", "role": "teacher", "model": "qwen3-32b", "gpus": 4, "tensor_parallel": 2}
JUDGE = {**TEACHER, "name": "judge", "role": "judge", "generated_tokens": 200}
TOKENS = np.full(512, 3000.0)


def scenario(*pools: dict[str, Any], **changes: Any) -> Scenario:
    """A student of 1.7B on 8 GPUs with pools beside it."""
    gpus = sum(pool["gpus"] for pool in pools)
    base = {"extends": "quickstart", "model": "qwen3-1.7b", "speculation": {"method": "none", "draft_length": 0}}
    cluster = {"num_gpus": 8 + gpus, "pool_gpus": gpus, **changes.pop("cluster", {})}
    return rlsim.load_scenario({**base, "cluster": cluster, "pools": list(pools), **changes})


def busy_s(pool: dict[str, Any], tokens: Any = TOKENS) -> float:
    """Seconds of a pool with a batch."""
    (inputs,) = PriceInputs(scenario(pool)).pools
    return pool_cost(inputs, TrainedBatch.of(tokens, len(tokens))).seconds


@pytest.mark.parametrize("where", ["engine", "trainer"])
def test_a_teacher_takes_what_its_flops_demand(where: str) -> None:
    pool = {**TEACHER, "runs_on": where}
    given = scenario(pool)
    flops = 2.0 * parameter_counts(given.pools[0].model).active * TOKENS.sum()
    least_s = flops / (4 * given.hardware.bf16_flops.value)
    # Products of this size reach between two fifths and all of the device's peak.
    assert least_s < busy_s(pool) < 2.5 * least_s


def test_the_share_of_a_teacher_grows_with_its_size_and_shrinks_with_its_gpus() -> None:
    small = {**TEACHER, "model": "qwen3-8b"}
    assert busy_s(TEACHER) > 3 * busy_s(small)
    assert busy_s({**TEACHER, "gpus": 8}) == pytest.approx(busy_s(TEACHER) / 2)


def test_tokens_are_conserved_between_pools_that_divide_the_samples() -> None:
    halves = busy_s({**TEACHER, "share": 0.5}) + busy_s({**TEACHER, "share": 0.5})
    assert halves == pytest.approx(busy_s(TEACHER))
    assert busy_s(TEACHER, np.full(1024, 3000.0)) == pytest.approx(2 * busy_s(TEACHER))
    assert busy_s({**TEACHER, "read_tokens": 1000}, np.full(512, 2000.0)) == pytest.approx(busy_s(TEACHER))


def test_a_judge_that_is_too_small_makes_a_queue() -> None:
    reads_s = busy_s({**JUDGE, "role": "reward_model", "generated_tokens": 0})
    waves = [busy_s(JUDGE, np.full(count, 3000.0)) - reads_s * count / 512 for count in (4096, 8192)]
    # Past what its engines run at once every further wave takes as long as the one before.
    assert waves[1] == pytest.approx(2 * waves[0])


def test_without_pools_a_step_costs_what_it_did() -> None:
    inputs, batch = PriceInputs(scenario()), TrainedBatch.of(TOKENS, 512)
    cost = step_cost(inputs.trainer, batch)
    assert with_pools((), cost, batch) is cost
    assert inputs.step_cost(batch) == cost


def test_a_teacher_on_its_own_gpus_works_beside_the_log_probs_and_one_on_the_trainers_after_them() -> None:
    batch = TrainedBatch.of(TOKENS, 512)
    plain = PriceInputs(scenario()).step_cost(batch)
    apart = PriceInputs(scenario(TEACHER)).step_cost(batch)
    assert apart.logprob.seconds == pytest.approx(max(plain.logprob.seconds, busy_s(TEACHER)))
    shared = PriceInputs(scenario({**TEACHER, "gpus": 0}))
    added_s = shared.step_cost(batch).logprob.seconds - plain.logprob.seconds
    assert added_s == pytest.approx(pool_cost(shared.pools[0], batch).seconds + shared.pools[0].swap_s)
    judged = PriceInputs(scenario(JUDGE)).step_cost(batch)
    assert judged.data.seconds == pytest.approx(plain.data.seconds + busy_s(JUDGE))


def test_a_lagged_step_is_as_long_as_its_pool_at_the_least() -> None:
    split = {"generation_gpus": 4, "training_gpus": 4}
    given = scenario(TEACHER, cluster=split, loop={"mode": "async", "policy_lag": 1})
    batch = TrainedBatch.of(TOKENS, 512)
    cost = PriceInputs(given).step_cost(batch)
    whole_s = cost.data.seconds + cost.logprob.seconds + cost.train.seconds
    assert whole_s >= busy_s(TEACHER) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ({**TEACHER, "gpus": 3}, "must divide gpus"),
        ({**JUDGE, "generated_tokens": 0}, "give generated_tokens"),
        ({**TEACHER, "generated_tokens": 5}, "generated_tokens are of a judge"),
        ({**TEACHER, "model": "qwen3-33b"}, "qwen3-33b"),
    ],
)
def test_a_pool_that_makes_no_sense_is_refused(pool: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        scenario(pool)


def test_gpus_of_pools_are_of_the_cluster() -> None:
    with pytest.raises(InputError, match=r"must equal cluster\.pool_gpus"):
        scenario(TEACHER, cluster={"pool_gpus": 2, "num_gpus": 10})


@pytest.mark.parametrize(
    "agent", [{"max_trajectories": 64}, {"start_s": {"kind": "lognormal", "mean_s": 5.0, "log_sigma": 0.5}}]
)
def test_pools_stand_beside_agents_that_start_one_by_one(agent: dict[str, Any]) -> None:
    name = {"extends": "search_agent_16"}
    given = rlsim.load_scenario({**name, "workload": {"agent": agent}})
    plain = rlsim.load_scenario(name)
    batch = TrainedBatch.of(TOKENS, 512)
    # What agents wait for before their first turn is nothing that a judge reads.
    assert PriceInputs(given).step_cost(batch).data.seconds == PriceInputs(plain).step_cost(batch).data.seconds


def test_a_pools_layout_that_no_engine_has_is_refused_by_its_name() -> None:
    given = scenario({**TEACHER, "model": "qwen3-30b-a3b", "tensor_parallel": 4, "expert_parallel": 3})
    with pytest.raises(InputError, match=r"pools: teacher.*expert_parallel \(3\) must divide tensor_parallel \(4\)"):
        PriceInputs(given).step_cost(TrainedBatch.of(TOKENS, 512))
