"""What an answer assumes of a model's own layers, in sentences; each names the key that changes it."""

from __future__ import annotations

import numpy as np

from rlsim.costs.engine.iteration import PolicyChoice
from rlsim.costs.engine.prices import most_sequences
from rlsim.costs.overheads import TrainingOverheads, measured_framework
from rlsim.parameters.sets import own_sets
from rlsim.report.format import percent
from rlsim.schema.model import ModelCard
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import Sampling
from rlsim.schema.trainer import RankBalance, Stack
from rlsim.workload.acceptance_steps import acceptance_at, sampling_move


def model_assumptions(scenario: Scenario, running_sequences: int | None) -> list[str]:
    """Sentences on long windows, recurrent states and sparse attention; [] for a model that has none of them.

    running_sequences: that the engine's memory lets run at once; None where no layer keeps a state.
    """
    card = scenario.model
    own = _window(card, scenario.workload.max_sequence_tokens)
    if card.recurrent is not None:
        kind = (
            "the gated delta rule, as measured" if card.linear_attention is not None else "Mamba-2, which is modelled"
        )
        own.append(
            f"{card.num_recurrent_layers} of {card.layer_counts.mixers} mixers of {card.name} keep a state "
            f"({kind}); a rejected draft falls back to a state that the engine kept (model.layer_pattern)."
        )
    if running_sequences is not None and running_sequences < most_sequences(scenario):
        own.append(
            f"An engine runs {running_sequences} sequences at once, as many as have room for their recurrent state "
            "beside the cache (engine.max_running_sequences, engine.gpu_memory_utilization)."
        )
    if card.sparse_attention is not None:
        own.append(
            f"Queries of {card.name} attend to {card.sparse_attention.top_k_tokens:,} tokens that an indexer ranks "
            "highest, in training too (model.sparse_attention)."
        )
    return own


def _window(card: ModelCard, tokens: int) -> list[str]:
    """What sequences beyond the native window rely on."""
    native, longer = card.max_position_embeddings, card.extended_position_embeddings
    if tokens <= native:
        return []
    beyond = f"Sequences of {tokens:,} tokens exceed the native window of {native:,} of {card.name}"
    if longer is not None and tokens <= longer:
        return [f"{beyond}: they rely on {card.rotary_scaling}, with which its publisher states {longer:,}; scaling "
                "rotary positions takes no time (workload.max_sequence_tokens)."]  # fmt: skip
    reach = f"its publisher states {longer:,} at most" if longer is not None else "its publisher states no longer one"
    return [f"{beyond}, and {reach}: times are those of the longer sequences, quality is not told "
            "(workload.max_sequence_tokens)."]  # fmt: skip


SHOWN_STRETCHES = 6
"""Batches told of a policy; further ones are left out."""


def drafting_assumptions(scenario: Scenario, choice: PolicyChoice | None) -> list[str]:
    """Sentences on how acceptance varies and on what a policy drafts; [] where every draft is like the others."""
    speculation, own = scenario.speculation, []
    if speculation.variation is not None:
        given = speculation.variation
        own.append(
            f"Acceptance differs by {given.prompt_spread:g} between prompts, by {given.sample_spread:g} between their "
            f"samples and by {given.trend_per_1k_tokens:g} per 1,000 tokens (logit; stated), whatever the lengths; the "
            "stated acceptance is the mean over verifications (speculation.variation)."
        )
    if speculation.sampling is not None:
        own.append(_sampling(speculation.sampling))
    if speculation.drift is not None:
        steps = scenario.measured_steps
        ends = sorted({steps.start, steps.stop - 1})
        told = " and ".join(f"{acceptance_at(speculation, step).mean:.3g} in step {step:,}" for step in ends)
        own.append(
            f"Acceptance length drifts: {told} (stated course of a draft "
            f"{'trained online' if speculation.trained_online else 'that is frozen'}; speculation.drift)."
        )
    if choice is not None:
        own.append(
            f"Draft lengths follow the live batch, in the mean of its tokens: {_stretches(choice)} "
            "(speculation.policy); graphs are captured for every length, and a resting draft keeps its memory."
        )
    if scenario.trainer.sequence_packing and not scenario.sequence_packing:
        own.append("Training the draft online forbids packing: samples are padded (speculation.online_packing).")
    return own


def _sampling(sampling: Sampling) -> str:
    return (
        f"Acceptance was stated for {sampling.stated_draft} drafts at temperature {sampling.stated_temperature:g}; "
        f"{sampling.draft} ones at {sampling.temperature:g} move its logit by {sampling_move(sampling):+.2g} (fitted "
        "to four models, and a published range; speculation.sampling)."
    )


def _stretches(choice: PolicyChoice) -> str:
    """Drafted tokens by live sequences, such as ``5 up to 12 sequences, 3 up to 64, 0 above``."""
    drafted = np.round(choice.drafted[1:], 1)
    ends = np.append(np.flatnonzero(np.diff(drafted)), len(drafted) - 1)
    told = [f"{drafted[end]:g} up to {end + 1:,}" for end in ends[:SHOWN_STRETCHES].tolist()]
    rest = " and so on" if len(ends) > SHOWN_STRETCHES else ""
    return f"{', '.join(told)} sequences{rest}"


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
