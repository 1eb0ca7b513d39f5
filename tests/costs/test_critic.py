"""PPO: a value model beside the policy, and several passes over a step's batch."""

from typing import Any

import builders
import numpy as np
import pytest

from rlsim.costs.interface import PhaseCost
from rlsim.costs.memory import trainer_memory
from rlsim.costs.operators.collectives import LINK_EFFICIENCY
from rlsim.costs.trainer.layout import TrainedBatch, train_layout
from rlsim.costs.trainer.training import LM_HEAD, LOSS, batches_of
from rlsim.errors import Infeasible
from rlsim.results import MemoryParts

TOKENS = np.full(256, 1100.0)
SPLIT = {"num_gpus": 16, "generation_gpus": 8, "training_gpus": 8}


def costs(cluster: dict[str, Any] | None = None, **trainer: Any) -> builders.Costs:
    given = {"tensor_parallel": 2, "recompute": "full", **trainer}
    return builders.Costs(builders.scenario(trainer=given, cluster=cluster or {"num_gpus": 8}))


def seconds(cost: PhaseCost) -> dict[str, float]:
    return {part.name: part.seconds for part in cost.parts}


@pytest.mark.parametrize("cluster", [None, SPLIT])
def test_the_value_model_passes_and_learns_like_the_policy_without_its_head(cluster: dict[str, Any] | None) -> None:
    plain, ppo = costs(cluster), costs(cluster, critic=True)
    for phase, name in (("logprob", "value pass"), ("train", "value update")):
        before, after = (getattr(c.step(TOKENS), phase) for c in (plain, ppo))
        own, added = seconds(before), seconds(after)
        swap = added.pop("value model swap", 0.0)
        passes = 2 if phase == "logprob" else 1
        bare = sum(own.values()) - own[LM_HEAD] - own[LOSS] - own.get("reference swap", 0.0)
        waited = own["rank imbalance"] / passes  # some of it for the head
        assert bare / passes - waited < (value := added.pop(name)) <= bare / passes * (1 + 1e-9)
        assert added == pytest.approx(own)
        assert (swap > 0) == (cluster is None)
        assert after.seconds == pytest.approx(sum(own.values()) + value + swap)


@pytest.mark.parametrize(("model", "mtp_layers"), [("llama-3.2-3b", 0), ("gemma-3-1b", 0), ("mimo-7b", 1)])
def test_a_value_model_is_as_slow_as_its_slowest_stage(model: str, mtp_layers: int) -> None:
    """Its last stage has few layers where the policy's has a large head; it has no MTP layers."""
    given = {"pipeline_parallel": 4, "recompute": "full", "critic": True, "mtp_layers": mtp_layers}
    costs = builders.Costs(builders.scenario(model, trainer=given, cluster={"num_gpus": 16}))
    policy, value = costs.inputs.trainer.costs, costs.inputs.trainer.value_costs
    batch = batches_of(costs.inputs.trainer, TrainedBatch.of(TOKENS, TOKENS.size), False)
    slots = batch.steps * (batch.count + policy._bubble_stages(batch))
    middle_s = policy._stage(batch, False).seconds
    assert value.forward(batch).seconds >= slots * middle_s * batch.balance
    assert value.forward(batch).seconds <= policy.forward(batch).seconds
    assert not seconds(value.step(batch)).keys() & {LM_HEAD, LOSS, "MTP layers"}
    assert value.step(batch).seconds < policy.step(batch).seconds


def test_the_value_pass_remains_without_log_probs_and_a_resident_model_takes_memory() -> None:
    quiet = {"policy_logprobs": False, "reference_logprobs": False}
    assert costs(**quiet).step(TOKENS).logprob.seconds == 0
    assert (
        0 < costs(critic=True, **quiet).step(TOKENS).logprob.seconds < costs(critic=True).step(TOKENS).logprob.seconds
    )

    def parts(cluster: dict[str, Any], **trainer: Any) -> MemoryParts:
        given = {"tensor_parallel": 2, "recompute": "full", **trainer}
        return trainer_memory(builders.scenario(trainer=given, cluster=cluster))

    plain = parts(SPLIT)
    assert parts(SPLIT, critic=True).critic == plain.weights + plain.gradients + plain.optimizer
    assert parts({"num_gpus": 8}, critic=True).critic is None
    with pytest.raises(Infeasible, match="does not fit"):
        parts({"num_gpus": 4, "generation_gpus": 2, "training_gpus": 2}, critic=True)


def test_swaps_move_weights_for_a_pass_and_the_optimizer_too_for_an_update_that_epochs_repeat() -> None:
    ppo = costs(critic=True)
    scenario = ppo.scenario
    layout = train_layout(scenario.trainer, scenario.model, 8)
    rate = scenario.hardware.host_link_bandwidth_bytes_per_s.value * LINK_EFFICIENCY
    weights, optimizer = 2 * layout.parameters, layout.optimizer_parameters * 12.0
    assert ppo.transfers.critic_swap_s(update=False) == pytest.approx(2 * weights / rate)
    assert ppo.transfers.critic_swap_s(update=True) == pytest.approx(2 * (weights + optimizer) / rate)
    assert costs(critic=True, offload=False).transfers.critic_swap_s(update=True) == 0
    once, thrice = costs(critic=True), costs(critic=True, epochs=3)
    swap = once.transfers.critic_swap_s(update=True)
    assert thrice.step(TOKENS).train.seconds - swap == pytest.approx(3 * (once.step(TOKENS).train.seconds - swap))
    assert thrice.step(TOKENS).logprob.seconds == once.step(TOKENS).logprob.seconds
