"""What the stack of a trainer makes of its kernels and of its host, by framework and backend."""

from typing import NamedTuple

from rlsim.parameters.sets import Fitted
from rlsim.schema.base import changed
from rlsim.schema.parameters import TrainingFramework, TrainingParameters
from rlsim.schema.scenario import Scenario
from rlsim.schema.trainer import FsdpTerms, StackFeatures, Trainer


class StackTerms(NamedTuple):
    """Speed of kernels, host time of an expert layer, factor on that of its experts, speed of updates over log-probs,
    and of expert products over others; what an FSDP trainer around a model of Hugging Face adds, and its host time of
    each expert of a layer."""

    speed: float
    moe_host_layer_s: float
    host_factor: float
    update_speed: float = 1.0
    grouped_speed: float = 1.0
    fsdp: FsdpTerms | None = None
    expert_host_s: float = 0.0


def stack_terms(scenario: Scenario, fitted: Fitted) -> StackTerms:
    """Terms of the trainer's stack: of a measured training framework, else those of RL trainers."""
    terms, steps = fitted.training, fitted.steps
    framework = measured_framework(scenario, terms)
    factor = terms.host_factor(scenario.training_device.host_cpu)
    if framework is None:
        if (fsdp := fsdp_terms(scenario)) is not None:
            looped, launch_s = scenario.trainer.expert_products == "loop", scenario.trainer.host_launch_s
            floor_s = launch_s * (fsdp.layer_launches if looped else fsdp.grouped_launches)
            expert_s = launch_s * fsdp.expert_launches if looped else 0.0
            # Over the tables' speed, which that of tuned pretraining is a share of.
            speed = fsdp.speed / terms.dense_efficiency
            return StackTerms(speed, factor * floor_s, factor, fsdp=fsdp, expert_host_s=factor * expert_s)
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


def host_s(terms: TrainingParameters, features: StackFeatures, precision: str) -> tuple[float, float]:
    """Share of a MoE layer's host time that the stack's features leave, and host seconds of each expert on a rank."""
    layer, expert_s = 1.0, terms.expert_host_s
    if features.cuda_graphs != "none":
        layer = terms.graph_host_share
    elif features.exchange_overlap:
        layer, expert_s = terms.overlap_host_factor, expert_s * terms.overlap_host_factor
    expert_s *= terms.bf16_expert_host_share if precision == "bf16" else 1.0
    return layer, expert_s * (terms.static_host_share if features.token_drop else 1.0)
