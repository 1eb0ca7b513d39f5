"""What the stack of a trainer makes of its kernels and of its host, by framework and backend."""

from __future__ import annotations

from typing import NamedTuple

from rlsim.parameters.sets import Fitted
from rlsim.schema.base import changed
from rlsim.schema.parameters import TrainingFramework, TrainingParameters
from rlsim.schema.scenario import Scenario
from rlsim.schema.trainer import FsdpTerms, Trainer


class StackTerms(NamedTuple):
    """Speed of kernels, host time of an expert layer, factor on that of its experts, speed of updates over log-probs,
    and of expert products over others; what an FSDP trainer around a model of Hugging Face adds."""

    speed: float
    moe_host_layer_s: float
    host_factor: float
    update_speed: float = 1.0
    grouped_speed: float = 1.0
    fsdp: FsdpTerms | None = None


def stack_terms(scenario: Scenario, fitted: Fitted) -> StackTerms:
    """Terms of the trainer's stack: of a measured training framework, else those of RL trainers."""
    terms, steps = fitted.training, fitted.steps
    framework = measured_framework(scenario, terms)
    factor = terms.host_factor(scenario.training_device.host_cpu)
    if framework is None:
        if (fsdp := fsdp_terms(scenario)) is not None:
            looped = scenario.trainer.expert_products == "loop"
            floor_s = fsdp.looped_layer_s if looped else fsdp.grouped_layer_s
            return StackTerms(steps.dense_efficiency * fsdp.speed, floor_s, factor, fsdp=fsdp)
        # FSDP in NeMo-RL: log-probs take 6 % longer than with Megatron-Core, updates 36 % (NeMo-RL issue 959).
        dtensor = scenario.trainer.backend == "fsdp" and scenario.trainer.device_efficiency is None
        update_speed = steps.fsdp_efficiency if dtensor else 1.0
        return StackTerms(steps.dense_efficiency, steps.moe_host_layer_s, factor, update_speed)
    factor *= framework.host_factor
    speed, grouped = framework.speed, 1.0
    if blackwell(scenario):
        speed, grouped = speed * framework.blackwell_speed, framework.blackwell_grouped_speed
    return StackTerms(speed, terms.moe_host_layer_s * factor, factor, grouped_speed=grouped)


def fsdp_terms(scenario: Scenario) -> FsdpTerms | None:
    """Terms of an FSDP trainer whose stack states them; None with another backend and of other stacks."""
    stack = scenario.training_stack
    return stack.fsdp if stack is not None and scenario.trainer.backend == "fsdp" else None


def with_logprob_batches(scenario: Scenario, trainer: Trainer) -> Trainer:
    """``trainer`` with the log-prob micro-batches of its stack where none are stated."""
    fsdp = fsdp_terms(scenario)
    keys = ("micro_batch_tokens", "logprob_micro_batch_tokens")
    if not trainer.sequence_packing:
        keys = ("micro_batch_samples", "logprob_micro_batch_samples")
    own, forward = (getattr(trainer, key) for key in keys)
    if fsdp is None or forward is not None or own is None:
        return trainer
    return changed(trainer, **{keys[1]: round(own * fsdp.logprob_batches)})


def measured_framework(scenario: Scenario, terms: TrainingParameters) -> TrainingFramework | None:
    """What the trainer's framework differs by, where its training steps were measured alone."""
    stack = scenario.training_stack
    return None if stack is None else terms.framework(stack.framework)


def blackwell(scenario: Scenario) -> bool:
    """Whether the training GPUs have the tensor cores of Blackwell: MXFP8 and NVFP4."""
    return scenario.training_device.nvfp4_flops is not None
