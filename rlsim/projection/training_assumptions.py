"""What a projection assumes of the trainer: its stack, and the terms that no operator table holds."""

from __future__ import annotations

from rlsim.costs.overheads import TrainingOverheads, measured_framework
from rlsim.parameters.sets import own_sets
from rlsim.report.format import percent
from rlsim.schema.scenario import Scenario
from rlsim.schema.stack import RankBalance, Stack


def training_assumptions(scenario: Scenario, found: TrainingOverheads) -> tuple[str, ...]:
    """The stack, then speed and host time of training under it; each names the keys that change it."""
    told = [] if scenario.stack is None else [_stack_told(scenario, scenario.stack)]
    trainer, moe = scenario.trainer, scenario.model.moe is not None
    dense, experts = found.dense_speed * found.dense_efficiency, found.moe_speed * found.dense_efficiency
    floor = (
        f"; a MoE layer's forward pass takes at least {found.moe_host_layer_s * 1e3:.3g} ms of the host "
        f"({_origin(scenario, 'moe_host_layer_s', trainer.moe_host_layer_s)}; trainer.moe_host_layer_s)"
    )
    told.append(
        f"Training products reach {percent(dense)} of the operator tables' speed"
        + (f", those of MoE layers {percent(experts)}" if moe else "")
        + f" ({_origin(scenario, 'dense_efficiency', trainer.device_efficiency)}; trainer.device_efficiency)"
        + (floor if moe else "")
        + f". Its other terms: {_terms(scenario)}."
    )
    return (*told, *_uneven_ranks(scenario))


def _uneven_ranks(scenario: Scenario) -> list[str]:
    """What is said where the samples of an update do not divide over the ranks; the stacks of these trainers refuse."""
    trainer = scenario.trainer
    shard = trainer.tensor_parallel * trainer.pipeline_parallel * trainer.context_parallel
    samples = trainer.global_batch_samples or scenario.workload.samples_per_step
    ranks = scenario.cluster.training // shard
    if samples % ranks == 0:
        return []
    uneven = f"The {samples:,} samples of an update do not divide over {ranks:,} data-parallel ranks"
    return [f"{uneven}: the fullest decide; Megatron-Core and NeMo-RL refuse it (trainer.global_batch_samples)."]


DEALT: dict[RankBalance, str] = {
    "bins": "",
    "tokens": "; every update's samples dealt to data-parallel ranks by work (trainer.rank_balance)",
    "samples": "; samples dealt to data-parallel ranks in their order (trainer.rank_balance)",
}
"""What an answer says of how ranks are balanced; nothing where they are as in the measured steps."""


def _stack_told(scenario: Scenario, stack: Stack) -> str:
    trainer = scenario.training_stack or stack
    features = scenario.training_features
    beside = "" if trainer == stack else f", trainer {trainer.name}"
    engine = f"{scenario.engine.name} {scenario.engine_version or 'newest measured release'}"
    graphs = "with" if features.cuda_graphs else "without"
    placement = "aligned with" if scenario.rack_aligned else "scattered over"
    return (
        f"Software: {stack.name}{beside} (stack), {engine}; training {graphs} CUDA graphs"
        + (f", {features.moe_dispatcher} dispatch" if scenario.model.moe is not None else "")
        + DEALT[features.rank_balance]
        + (f"; groups of GPUs {placement} NVLink domains (cluster.placement)." if scenario.rack else ".")
    )


def _terms(scenario: Scenario) -> str:
    terms = own_sets(scenario).training
    return f"fitted to {terms.fit.rows} training steps: {terms.name}" if terms.fit.rows else f"assumed: {terms.name}"


def _origin(scenario: Scenario, name: str, stated: float | None) -> str:
    """Where a value comes from: stated, fitted to training steps of the framework, or to RL steps."""
    if stated is not None:
        return "stated"
    if measured_framework(scenario, own_sets(scenario).training) is not None:
        return _terms(scenario)
    return f"{own_sets(scenario).steps.origin(name)}: {own_sets(scenario).steps.name}"
