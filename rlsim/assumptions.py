"""What an answer rests on and what a reader must know about it, in sentences."""

from __future__ import annotations

from rlsim.hardware.fitted import parameters_of
from rlsim.schema.fitted import FittedParameters
from rlsim.schema.scenario import Scenario
from rlsim.simulated import SimulatedVariant

TOLD_EAGER_SHARE = 0.02
"""Share of eager iterations from which an answer warns of them."""


def assumptions_of(run: SimulatedVariant) -> tuple[str, ...]:
    """What the scenario's author assumed, then what the model assumes for it; each names the key that changes it."""
    scenario, found = run.scenario, run.prices.overheads
    parameters = parameters_of(scenario)
    own = [
        f"Host work per engine iteration: {found.host_iteration_s * 1e3:.3g} ms + {found.host_sequence_s * 1e6:.3g} us "
        f"per sequence (engine.host_iteration_s, engine.host_sequence_s; {_host_source(scenario, parameters)}).",
        f"Training kernels reach {found.dense_efficiency:.0%} (dense, {parameters.origin('dense_efficiency')}) and "
        f"{found.moe_efficiency:.0%} (MoE, {parameters.origin('moe_efficiency')}) of the operator tables' speed; a "
        f"weight tensor takes {found.refit_tensor_s * 1e3:.2g} ms of a refit ({_refit_origin(scenario, parameters)}).",
        f"Largest captured CUDA graph: {scenario.engine.largest_graph_tokens} tokens; larger iterations launch every "
        "kernel from the host (engine.max_captured_tokens).",
        f"Prompt groups share {scenario.workload.group_correlation:g} of the variance of log length "
        "(workload.group_correlation).",
    ]
    if scenario.trainer.critic:
        own.append("The value model has the policy's size and layout; no measured PPO step backs its times.")
    if scenario.workload.usable_group_share < 1:
        own.append(
            f"Dynamic sampling: {scenario.workload.usable_group_share:.0%} of the prompt groups are usable, whatever "
            "their lengths (workload.usable_group_share); the rollouts of a step follow each other."
        )
    if scenario.model.moe is not None:
        own.append(
            f"A MoE layer's forward pass in training takes at least {found.moe_host_layer_s * 1e3:.3g} ms of host time "
            f"({parameters.origin('moe_host_layer_s')}: {found.source})."
        )
    if scenario.speculation.active and not scenario.speculation.draft_graph:
        own.append("Draft passes run outside CUDA graphs: each is at least as long as its launches (draft_graph).")
    own.append(
        f"90 % intervals hold the spread of the workload and the model's error on models left out of its fit "
        f"({found.step_error:.0%} of a time, {found.speedup_error:.0%} of a speed-up, standard deviations)."
    )
    if found.tables_error > 0:
        own.append(f"{found.tables_error:.0%} of a time among these is the self-check error of the measured tables.")
    return (*(assumption.text for assumption in scenario.assumptions), *own)


def _host_source(scenario: Scenario, parameters: FittedParameters) -> str:
    """Where the host time comes from: the scenario, or the fitted release that stands for the engine's."""
    engine = scenario.engine
    if engine.host_iteration_s is not None:
        return "stated"
    found = parameters.release(engine.name, engine.version)
    if engine.version == found.version:
        return f"fitted: {parameters.name}"
    asked = "no engine.version is given" if engine.version is None else f"none is fitted for {engine.version}"
    return f"fitted: {parameters.name}, {found.engine} {found.version}, as {asked}"


def _refit_origin(scenario: Scenario, parameters: FittedParameters) -> str:
    if scenario.loop.refit_tensor_s is not None:
        return "stated: loop.refit_tensor_s"
    kind = "colocated" if scenario.cluster.colocated else "split"
    return f"{parameters.origin(f'{kind}_tensor_s')}: {parameters.name}"


def warnings_of(run: SimulatedVariant) -> tuple[str, ...]:
    """What a reader of the answer must know about this run."""
    scenario, out = run.scenario, []
    statistics_steps = sum(len(steps) for steps in run.steps)
    preemptions = run.counters.preemptions / statistics_steps
    if preemptions > 0:
        out.append(
            f"KV cache overflows: {preemptions:.0f} preemptions per step; evicted sequences are prefilled again."
        )
    if scenario.loop.mode == "async" and scenario.simulation.warmup_steps < scenario.loop.policy_lag + 1:
        out.append("simulation.warmup_steps is below policy_lag + 1: the first steps still hold the start-up.")
    eager = run.prices.engine.eager_share(run.counters.iterations_at)
    if scenario.engine.cuda_graphs and eager > TOLD_EAGER_SHARE:
        out.append(
            f"{eager:.0%} of the engine's iterations exceed the largest captured CUDA graph "
            f"({scenario.engine.largest_graph_tokens} tokens, engine.max_captured_tokens) and launch eagerly."
        )
    return tuple(out)
