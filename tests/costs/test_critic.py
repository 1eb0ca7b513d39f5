"""PPO: a value model beside the policy, and several passes over a step's batch."""

from typing import Any

import builders
import numpy as np
import pytest

from rlsim.costs.interface import PhaseCost
from rlsim.costs.memory import trainer_memory
from rlsim.costs.operators.collectives import LINK_EFFICIENCY
from rlsim.costs.trainer.layout import train_layout
from rlsim.costs.trainer.training import LM_HEAD, LOSS
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
        assert added.pop(name) == pytest.approx(bare / passes)
        assert added == pytest.approx(own)
        assert (swap > 0) == (cluster is None)
        assert after.seconds == pytest.approx(sum(own.values()) + bare / passes + swap)


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
