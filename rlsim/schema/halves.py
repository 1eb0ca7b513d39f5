"""Loops that have one half of a step: what the other half alone could use is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlsim.schema.scenario import Scenario


def check_half(s: Scenario) -> None:
    """Raise ValueError for what a loop without a rollout, or one without training, cannot have."""
    if s.loop.supervised:
        _supervised(s)
    if s.loop.rollouts_alone:
        _rollouts_alone(s)


def _supervised(s: Scenario) -> None:
    w, validation = s.workload, None if s.run is None else s.run.validation
    for stated, key in (
        (s.speculation.active, "speculation.method"),
        (w.agent is not None, "workload.agent"),
        (w.racing, "workload.tail_batching"),
        (w.launched_prompts > w.prompts_per_step, "workload.generated_batch_factor"),
        (w.usable_group_share < 1, "workload.usable_group_share"),
        (w.environment_s + w.batch_reward_s > 0, "workload.environment_s and batch_reward_s"),
        (not s.cluster.colocated, "cluster.generation_gpus and training_gpus"),
        (bool(s.trainer.policy_logprobs), "trainer.policy_logprobs"),
        (s.trainer.critic, "trainer.critic"),
        (bool(s.pools), "pools"),
        (validation is not None and validation.samples is not None, "run.validation.samples"),
    ):
        if stated:
            raise ValueError(f"loop.supervised trains on a data set and generates nothing: give no {key}")
    if s.trainer.reference_logprobs and w.generations_per_prompt < 2:
        raise ValueError(
            "loop.supervised with trainer.reference_logprobs is DPO, of pairs: give workload.generations_per_prompt 2, "
            "or trainer.reference_logprobs false for supervised fine-tuning"
        )


def _rollouts_alone(s: Scenario) -> None:
    for stated, key in (
        (not s.cluster.colocated, "cluster.generation_gpus and training_gpus"),
        (s.cluster.reference_gpus > 0, "cluster.reference_gpus"),
        (bool(s.trainer.policy_logprobs), "trainer.policy_logprobs"),
        (s.trainer.critic, "trainer.critic"),
        (s.speculation.trained_online, "speculation of a draft that is trained online"),
        (any(pool.role == "teacher" or not pool.gpus for pool in s.pools), "pools of teachers or without gpus"),
    ):
        if stated:
            raise ValueError(f"loop.rollouts_alone generates and trains nothing: give no {key}")
