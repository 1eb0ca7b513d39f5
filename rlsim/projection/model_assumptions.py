"""What an answer assumes of a model's own layers, in sentences; each names the key that changes it."""

import numpy as np

from rlsim.costs.engine.iteration import PolicyChoice
from rlsim.costs.engine.prices import most_sequences
from rlsim.costs.engine.releases import unhidden_s
from rlsim.costs.memory import windowed_share
from rlsim.costs.overheads import TrainingOverheads
from rlsim.costs.stack_terms import fsdp_terms, measured_framework
from rlsim.costs.trainer.layer import host_step_bytes_per_s
from rlsim.costs.trainer.work import LayerSplit
from rlsim.costs.users import user_host
from rlsim.files.yaml import lists_beside
from rlsim.parameters.sets import own_sets
from rlsim.report.format import percent
from rlsim.schema.model import ModelCard
from rlsim.schema.scenario import Scenario
from rlsim.schema.trainer import Stack
from rlsim.units import GIGA
from rlsim.workload.acceptance_steps import acceptance_at, sampling_move

SHOWN_STRETCHES = 6
"""Batches of a policy that are printed; further ones are left out."""


def said(sentence: str, **values: object) -> str:
    """A sentence of names.yaml with its values."""
    return str(lists_beside(__file__)[sentence]).format(**values)


def model_assumptions(scenario: Scenario, running_sequences: int | None) -> list[str]:
    """Sentences on windows, recurrent states and sparse attention; [] for a model that has none of them.

    running_sequences: that the engine's memory lets run at once; None where no layer keeps a state.
    """
    card = scenario.model
    own = _window(card, scenario.workload.max_sequence_tokens)
    if card.recurrent is not None:
        gated = card.linear_attention is not None
        kind = "the gated delta rule, as measured" if gated else "Mamba-2, which is modelled"
        layers, mixers = card.num_recurrent_layers, card.layer_counts.mixers
        own.append(said("recurrent", layers=layers, mixers=mixers, model=card.name, kind=kind))
    if running_sequences is not None and running_sequences < most_sequences(scenario):
        own.append(said("running", sequences=running_sequences))
    engine = scenario.engine.name
    rule = lists_beside(__file__)["windowed cache"].get(engine)
    if card.sliding_window_layers and rule is not None:
        layers, share = card.sliding_window_layers, percent(windowed_share(scenario))
        own.append(said("windowed", layers=layers, model=card.name, share=share, engine=engine, rule=rule))
    if card.sparse_attention is not None:
        own.append(said("sparse", model=card.name, tokens=card.sparse_attention.top_k_tokens))
    return own


def _window(card: ModelCard, tokens: int) -> list[str]:
    """A sentence where sequences exceed the native window."""
    native, longer = card.max_position_embeddings, card.extended_position_embeddings
    if tokens <= native:
        return []
    beyond = f"Sequences of {tokens:,} tokens exceed the native window of {native:,} of {card.name}"
    if longer is not None and tokens <= longer:
        return [said("window stated", beyond=beyond, scaling=card.rotary_scaling, longer=longer)]
    reach = f"its publisher states {longer:,} at most" if longer is not None else "its publisher states no longer one"
    return [said("window beyond", beyond=beyond, reach=reach)]


def drafting_assumptions(scenario: Scenario, choice: PolicyChoice | None) -> list[str]:
    """Sentences on how acceptance varies and on what a policy drafts; [] where every draft is like the others."""
    speculation, own = scenario.speculation, []
    if speculation.variation is not None:
        own.append(said("variation", **dict(speculation.variation)))
        if speculation.variation.group_gain:
            own.append(said("group", **dict(speculation.variation)))
    if speculation.sampling is not None:
        own.append(said("sampling", **dict(speculation.sampling), move=sampling_move(speculation.sampling)))
    if speculation.drift is not None:
        steps = scenario.measured_steps
        ends = sorted({steps.start, steps.stop - 1})
        acceptance = " and ".join(f"{acceptance_at(speculation, step).mean:.3g} in step {step:,}" for step in ends)
        own.append(
            said("drift", told=acceptance, kind="trained online" if speculation.trained_online else "that is frozen")
        )
    if choice is not None:
        own.append(said("policy", stretches=_stretches(choice)))
    if scenario.trainer.sequence_packing and not scenario.sequence_packing:
        own.append(said("packing"))
    return own


def _stretches(choice: PolicyChoice) -> str:
    """Drafted tokens by live sequences, such as ``5 up to 12 sequences, 3 up to 64, 0 above``."""
    drafted = np.round(choice.drafted[1:], 1)
    ends = np.append(np.flatnonzero(np.diff(drafted)), len(drafted) - 1)
    stretches = [f"{drafted[end]:g} up to {end + 1:,}" for end in ends[:SHOWN_STRETCHES].tolist()]
    rest = " and so on" if len(ends) > SHOWN_STRETCHES else ""
    return f"{', '.join(stretches)} sequences{rest}"


def training_assumptions(scenario: Scenario, found: TrainingOverheads) -> tuple[str, ...]:
    """The stack, then speed and host time of training under it; each names the keys that change it."""
    trainer, card = scenario.trainer, scenario.model.moe
    local = 0.0 if card is None else card.num_experts / trainer.expert_parallel
    layer_ms = 1e3 * found.moe_floor_s(local, 0 if card is None else card.matrices)
    origin = _origin(scenario, "moe_host_layer_s", trainer.moe_host_layer_s)
    busiest = LayerSplit.of(trainer, found.features).expert_imbalance
    own = card is not None and found.moe_speed != found.dense_speed
    speed = said(
        "speed",
        dense=percent(found.dense_speed * found.dense_efficiency),
        experts=f", those of MoE layers {percent(found.moe_speed * found.dense_efficiency)}" if own else "",
        origin=_origin(scenario, "dense_efficiency", trainer.device_efficiency),
        floor=said("speed floor", layer_ms=layer_ms, origin=origin, busiest=busiest) if card else "",
        terms=_terms(scenario),
    )
    stack = [] if scenario.stack is None else [_stack_sentence(scenario, scenario.stack)]
    sharing = trainer.expert_tensor_parallel
    shared = [said("shared experts", sharing=sharing)] if sharing > 1 and card is not None else []
    trained = [] if scenario.loop.rollouts_alone else [*_host_optimizer(scenario), *_uneven_ranks(scenario)]
    return (*stack, speed, *shared, *trained)


def _host_optimizer(scenario: Scenario) -> list[str]:
    """A sentence on where the time of an optimizer comes from whose state lies in host memory."""
    trainer, device = scenario.trainer, scenario.training_device
    if not trainer.optimizer_on_host:
        return []
    if trainer.optimizer_step == "device":
        return [said("host state", rate=device.host_link_bandwidth_bytes_per_s.value / GIGA)]
    origin = "assumed: half of its memory's peak" if trainer.host_memory_bytes_per_s is None else "stated"
    return [said("host optimizer", rate=host_step_bytes_per_s(trainer, device) / GIGA, origin=origin)]


def _uneven_ranks(scenario: Scenario) -> list[str]:
    """A sentence where the samples of an update do not divide over the ranks; the stacks of these trainers refuse."""
    trainer = scenario.trainer
    shard = trainer.tensor_parallel * trainer.pipeline_parallel * trainer.context_parallel
    samples = trainer.global_batch_samples or scenario.workload.samples_per_step
    ranks = scenario.cluster.training // shard
    return [] if samples % ranks == 0 else [said("uneven", samples=samples, ranks=ranks)]


def _stack_sentence(scenario: Scenario, stack: Stack) -> str:
    trainer, features = scenario.training_stack or stack, scenario.training_features
    where = "aligned with" if scenario.rack_aligned else "scattered over"
    engine = f"{scenario.engine.name} {scenario.engine_version or 'newest measured release'}"
    return said(
        "stack",
        stack=stack.name,
        beside="" if trainer == stack else f", trainer {trainer.name}",
        engine="no engine" if scenario.loop.supervised else engine,
        graphs="without" if features.cuda_graphs == "none" else "with",
        dispatch=f", {features.moe_dispatcher} dispatch" if scenario.model.moe is not None else "",
        dealt=lists_beside(__file__)["dealt"][features.rank_balance],
        placement=said("placement", where=where) if scenario.hardware.rack else "",
    )


def _terms(scenario: Scenario) -> str:
    terms = own_sets(scenario).training
    return f"fitted to {terms.fit.rows} training steps: {terms.name}" if terms.fit.rows else f"assumed: {terms.name}"


def _origin(scenario: Scenario, name: str, stated: float | None) -> str:
    """Where a value comes from: stated, fitted to passes, to training steps of the framework, or to RL steps."""
    if stated is not None:
        return "stated"
    if fsdp_terms(scenario) is not None:
        return said("passes")
    if measured_framework(scenario, own_sets(scenario).training) is not None:
        return _terms(scenario)
    return f"{own_sets(scenario).steps.origin(name)}: {own_sets(scenario).steps.name}"


def host_source(scenario: Scenario) -> str:
    """Where the host time comes from: the scenario, or the fits of the engine and of what an RL framework adds."""
    engine, engines, steps = scenario.released_engine, own_sets(scenario).engines, own_sets(scenario).steps
    if engine.host_iteration_s is not None:
        return "stated"
    added = steps.release(engine.name, engine.version)
    adding = f"{steps.name}'s of {added.engine}"
    text = said(
        "host fitted",
        engines=engines.name,
        which=f"{engine.name} over its releases",
        added=adding,
        version=added.version,
    )
    recurrent_s = engines.family(engine.name).unhidden_s
    if waited_s := unhidden_s(engine, scenario.model, scenario.speculation, recurrent_s):
        text += said("unhidden", unhidden_ms=waited_s * 1e3)
    if engine.host_slowdown is not None:
        text += said("host speed", slowdown=engine.host_slowdown)
    elif (user := user_host(scenario)) is not None:
        which = "users' hosts where none is stated" if engine.host is None else f"a host of class {engine.host}"
        text += said("user host", added_ms=user.iteration_s * 1e3, which=which)
    return text
