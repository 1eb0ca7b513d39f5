"""Whether a scenario fits: engine, trainer, and both together on a GPU."""

from __future__ import annotations

from rlsim.costs.engine_memory import EngineMemory as EngineMemory
from rlsim.costs.engine_memory import engine_memory as engine_memory
from rlsim.costs.engine_memory import kv_bytes_per_gpu_token as kv_bytes_per_gpu_token
from rlsim.costs.engine_memory import room_of as room_of
from rlsim.costs.engine_memory import sequences_with_state as sequences_with_state
from rlsim.costs.engine_memory import state_bytes_per_gpu_sequence as state_bytes_per_gpu_sequence
from rlsim.costs.engine_memory import weight_bytes as weight_bytes
from rlsim.costs.engine_memory import windowed_share as windowed_share
from rlsim.costs.trainer.layout import train_layout
from rlsim.costs.trainer_memory import activation_bytes_per_token as activation_bytes_per_token
from rlsim.costs.trainer_memory import critic_swapped as critic_swapped
from rlsim.costs.trainer_memory import trainer_parts as _gpu
from rlsim.errors import Infeasible
from rlsim.results import MemoryParts
from rlsim.schema.scenario import Scenario
from rlsim.units import BYTES_PER_ELEMENT

_SPREAD = "raise one of these"
_REMEDIES = {
    "optimizer": f"{_SPREAD} or cluster.num_gpus, or lower trainer.optimizer_bytes_per_parameter",
    "activations": "set trainer.recompute=full or lower trainer.micro_batch_tokens",
    "logits": "raise trainer.tensor_parallel or lower trainer.micro_batch_tokens",
}
"""What to change where a part of a trainer's memory is too large."""


def trainer_memory(scenario: Scenario) -> MemoryParts:
    """Bytes of one training GPU in the backward pass. Raises Infeasible where they, or those of a reference pool, are
    more than the device has, or where ranks would have no sample.

    Of a pipeline the fuller stage counts: the first holds activations of PP micro-batches (1F1B), the last of one and
    the logits.
    """
    if scenario.cluster.reference_gpus:
        _check_fits(scenario, _gpu(scenario, scenario.cluster.reference_gpus, update=False), "the reference policy of")
    parts = _gpu(scenario, scenario.cluster.training, update=True)
    _check_fits(scenario, parts, "training")
    return parts


def resident_bytes(scenario: Scenario) -> float:
    """What a colocated trainer leaves on each GPU for the rollout: nothing where it offloads, else weights, optimizer
    and Megatron's buffers of gradients, of a value model too; FSDP's gradients go with the step (PyTorch: zero_grad
    sets them to none)."""
    trainer = scenario.trainer
    if not scenario.cluster.colocated or trainer.offload:
        return 0.0
    layout = train_layout(trainer, scenario.model, scenario.cluster.training)
    optimizer = (
        0.0 if trainer.optimizer_on_host else layout.optimizer_parameters * trainer.optimizer_bytes_per_parameter
    )
    held, each = layout.parameters, BYTES_PER_ELEMENT["bf16"] + layout.trained_share * BYTES_PER_ELEMENT["fp32"]
    if trainer.backend == "fsdp":  # trained parameters are the optimizer's FP32 ones
        held, each = layout.sharded_parameters, (1 - layout.trained_share) * BYTES_PER_ELEMENT["bf16"]
    return (held * each + optimizer) * (2 if trainer.critic else 1)


def check_beside(scenario: Scenario) -> None:
    """Raise Infeasible where an engine's share of a GPU and what a trainer leaves there are more than it has."""
    available, share = scenario.hardware.memory_bytes.value, scenario.engine.gpu_memory_utilization
    resident = resident_bytes(scenario)
    if resident and share * available + resident > available:
        raise Infeasible(
            f"engine.gpu_memory_utilization={share:g} of a {scenario.hardware.name} GPU does not fit beside a trainer "
            f"that stays there (trainer.offload false); lower it, or let the trainer offload",
            share * available + resident, available, "bytes",
        )  # fmt: skip


def _check_fits(scenario: Scenario, parts: MemoryParts, what: str) -> None:
    """Raise Infeasible where the parts exceed a training GPU."""
    trainer, card, available = scenario.trainer, scenario.model, scenario.training_device.memory_bytes.value
    if parts.total > available:
        worst, _ = max(parts.items(), key=lambda part: part[1])
        raise Infeasible(
            f"{what} {card.name} with trainer.tensor_parallel={trainer.tensor_parallel}, pipeline_parallel="
            f"{trainer.pipeline_parallel}, expert_parallel={trainer.expert_parallel} does not fit a "
            f"{scenario.training_device.name} GPU; most of it is {worst}: {_REMEDIES.get(worst, _SPREAD)}",
            parts.total, available, "bytes",
        )  # fmt: skip
