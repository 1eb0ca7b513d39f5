"""Whether a scenario fits: engine, trainer, and both together on a GPU."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

from rlsim.costs.engine.capture import memory_share as memory_share
from rlsim.costs.engine_memory import SPREAD as SPREAD
from rlsim.costs.engine_memory import TRAINER_SPREADS, engine_parts, room_bytes, surely_words
from rlsim.costs.engine_memory import EngineMemory as EngineMemory
from rlsim.costs.engine_memory import engine_memory as engine_memory
from rlsim.costs.engine_memory import engine_spread as engine_spread
from rlsim.costs.engine_memory import exchanges_tokens as exchanges_tokens
from rlsim.costs.engine_memory import kv_bytes_per_gpu_token as kv_bytes_per_gpu_token
from rlsim.costs.engine_memory import sequences_with_state as sequences_with_state
from rlsim.costs.engine_memory import state_bytes_per_gpu_sequence as state_bytes_per_gpu_sequence
from rlsim.costs.engine_memory import weight_bytes as weight_bytes
from rlsim.costs.engine_memory import windowed_share as windowed_share
from rlsim.costs.trainer.layout import micro_batch_of, train_layout
from rlsim.costs.trainer_memory import TERMS, logits_bytes, rank_tokens
from rlsim.costs.trainer_memory import activation_bytes_per_token as activation_bytes_per_token
from rlsim.costs.trainer_memory import critic_swapped as critic_swapped
from rlsim.costs.trainer_memory import trainer_parts as trainer_parts
from rlsim.errors import Infeasible
from rlsim.results import MemoryParts
from rlsim.schema.base import replaced
from rlsim.schema.scenario import Scenario
from rlsim.schema.stated import PROMPT, RESPONSE
from rlsim.schema.workload import stated_mean
from rlsim.units import BYTES_PER_ELEMENT

_NORMAL = NormalDist()
SURE, TRIED = 0.95, 0.05
"""Probabilities of fitting where nobody states one: with which a layout is offered, and below which a trainer that is
asked about as it is is refused. Whoever runs what may not fit wants its time, with a word about that. Conventions."""
_gpu = trainer_parts  # the name of 0.2, which scripts of users know

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
    if scenario.loop.rollouts_alone:
        return MemoryParts(weights=0.0, runtime=0.0, activations=0.0)
    if scenario.cluster.reference_gpus:
        _check_fits(
            scenario, trainer_parts(scenario, scenario.cluster.reference_gpus, update=False), "the reference policy of"
        )
    parts = update_parts(scenario)
    _check_fits(scenario, parts, "training")
    return parts


def update_parts(scenario: Scenario) -> MemoryParts:
    """Bytes of one training GPU in the backward pass, with what an engine leaves there that sleeps meanwhile."""
    parts = trainer_parts(scenario, scenario.cluster.training, update=True)
    return replace(parts, engine=leftover_bytes(scenario)) if scenario.shares_gpus else parts


def room_of(scenario: Scenario, memory: EngineMemory) -> float:
    """Bytes of a GPU that the engine's share leaves to its cache beside what is in ``memory``."""
    return room_bytes(scenario, memory.parts)


def engine_fits(scenario: Scenario) -> float:
    """Probability that an engine GPU has room for one longest sequence."""
    parts, _ = engine_parts(scenario)
    room = room_bytes(scenario, parts) - scenario.workload.max_sequence_tokens * kv_bytes_per_gpu_token(scenario)
    return _NORMAL.cdf(room / engine_spread(scenario))


def trainer_spread(scenario: Scenario, parts: MemoryParts) -> float:
    """Standard deviation of the logarithm of the bytes of a training GPU: what no mechanism explains, of its framework
    where that is known, and the loss where neither scenario nor stack says what it holds of a logit."""
    trainer, stack = scenario.trainer, scenario.training_stack
    spread = TRAINER_SPREADS.get("" if stack is None else stack.framework, SPREAD["trainer"])
    features = scenario.training_features
    if stack is not None or features.logits_bytes is not None or not parts.logits:
        return spread
    low, high = TERMS["logits_range"][trainer.backend]
    loss = parts.logits * (high - low) / math.sqrt(12) / logits_bytes(scenario, features)
    return math.hypot(spread, loss / parts.total)


def _least_needed(scenario: Scenario, parts: MemoryParts) -> tuple[float, float]:
    """Bytes that a training GPU must have to hold ``parts``, and the standard deviation of their logarithm.

    Where memory is short PyTorch's allocator gives back what it holds wholly free (CUDACachingAllocator:
    release_cached_blocks before it tries again), between none and all of its slack, which nobody measured: half of it,
    evenly spread. What a micro-batch of samples holds goes with their length, as unsure as that is.
    """
    slack = parts.slack or 0.0
    needed = parts.total - slack / 2
    tokens = _guessed_share(scenario) * (parts.activations + (parts.logits or 0.0))
    own = slack / math.sqrt(12), tokens * (1 + slack / max(parts.total - slack, 1.0))
    return needed, math.hypot(trainer_spread(scenario, parts), *(each / needed for each in own))


def _guessed_share(scenario: Scenario) -> float:
    """Standard deviation of the logarithm of a micro-batch's tokens, of samples whose length is guessed: of so many
    samples, which whoever turned their number into tokens said (an assumption of trainer.micro_batch_tokens), the
    guess's; of fewer than a budget of tokens holds, at most so that one in twenty reaches it; of a budget 0."""
    workload, trainer = scenario.workload, scenario.trainer
    spreads = {one.keys[0]: one.log_spread for one in scenario.assumptions if one.log_spread is not None}
    if not spreads:
        return 0.0
    lengths = {PROMPT: workload.prompt_tokens, RESPONSE: workload.response_tokens}
    means = {key: stated_mean(length) for key, length in lengths.items()}
    # Quantiles and traces may state no mean: nothing is known of the guess's share then.
    guess = math.hypot(*(mean * (spreads.get(key) or 0.0) for key, mean in means.items())) / (
        sum(means.values()) or 1.0
    )
    if any("trainer.micro_batch_tokens" in one.keys for one in scenario.assumptions):
        return guess
    if not scenario.sequence_packing:
        return 0.0
    budget = micro_batch_of(trainer, workload.max_sequence_tokens, True, True)
    held = rank_tokens(scenario, train_layout(trainer, scenario.model, scenario.cluster.training), True)
    return min(guess, math.log(budget / held) / _NORMAL.inv_cdf(SURE)) if held < budget else 0.0


def trainer_fits(scenario: Scenario, parts: MemoryParts) -> float:
    """Probability that a training GPU holds ``parts``, whose total is lognormal."""
    if scenario.loop.rollouts_alone:
        return 1.0
    available, (needed, spread) = scenario.training_device.memory_bytes.value, _least_needed(scenario, parts)
    return _NORMAL.cdf(math.log(available / needed) / spread)


def safe_bytes(scenario: Scenario, parts: MemoryParts, probability: float = 0.95) -> float:
    """Bytes that a training GPU must have to hold ``parts`` with ``probability``."""
    needed, spread = _least_needed(scenario, parts)
    return needed * math.exp(spread * _NORMAL.inv_cdf(probability))


def surely(scenario: Scenario) -> Scenario:
    """``scenario`` that must fit as layouts must that are offered: as it states, else with SURE."""
    simulation = scenario.simulation
    if simulation.fit_probability is not None:
        return scenario
    return replaced(scenario, {"simulation": replaced(simulation, {"fit_probability": SURE})})


def evenly(scenario: Scenario) -> Scenario:
    """``scenario`` that must fit as what is changed must: as it states, else with an even chance."""
    simulation = scenario.simulation
    return replaced(scenario, {"simulation": replaced(simulation, {"fit_probability": simulation.least_fit})})


def check_no_worse(before: Scenario, after: Scenario) -> None:
    """Raise Infeasible where ``after`` fits less surely than ``before``, and not as surely as what is changed must."""
    fits = part_fits(after, engine=False)
    if fits >= after.simulation.least_fit:
        return  # whether or not the scenario as it is can run at all
    if fits < part_fits(before, engine=False):
        check_fits(evenly(after), engine=False)


def sure_factor(scenario: Scenario) -> float:
    """Times a trainer's bytes that must be there for it to fit as probably as ``scenario`` must."""
    return math.exp(SPREAD["trainer"] * _NORMAL.inv_cdf(scenario.simulation.least_fit))


def part_fits(scenario: Scenario, engine: bool) -> float:
    """Probability that a GPU of the engine, or else of the trainer with what both leave there and its host, has enough
    memory."""
    if engine:
        return engine_fits(scenario)
    return min(beside_fits(scenario), trainer_fits(scenario, update_parts(scenario)), host_fits(scenario))


def fit_probability(scenario: Scenario) -> float:
    """Probability that each GPU of ``scenario`` has enough memory: that of the part that fits least."""
    loop = scenario.loop
    parts = (False,) if loop.supervised else (True,) if loop.rollouts_alone else (True, False)
    return min(part_fits(scenario, engine) for engine in parts)


def check_fits(scenario: Scenario, engine: bool = True, trainer: bool = True) -> None:
    """Raise Infeasible where GPUs or hosts lack memory with less than ``simulation.fit_probability``; the one place of
    all commands. engine, trainer: what is looked at."""
    if engine:
        engine_memory(scenario)
    if trainer:
        trainer_memory(scenario)
        check_beside(scenario)
        check_host(scenario)


def beside_fits(scenario: Scenario) -> float:
    """Probability that what a trainer leaves on its GPUs fits beside the share of an engine; 1 where it leaves none."""
    resident, share = resident_bytes(scenario), memory_share(scenario)
    room = scenario.hardware.memory_bytes.value * (1 - share)
    if not resident:
        return 1.0
    return _NORMAL.cdf(math.log(room / resident) / SPREAD["trainer"]) if room > 0 else 0.0


def leftover_bytes(scenario: Scenario) -> float:
    """What a sleeping engine leaves on its GPU: context, buffers of its communicators, captured graphs."""
    parts, _ = engine_parts(scenario)
    return (parts.context or 0.0) + parts.runtime + (parts.graphs or 0.0)


def host_bytes(scenario: Scenario) -> float:
    """Host memory of a training node: offloaded states and weights, an optimizer that steps there with its pinned
    buffers, and the weights of a vLLM that sleeps on shared GPUs (level 1)."""
    if scenario.loop.rollouts_alone:
        return 0.0
    trainer, cluster = scenario.trainer, scenario.cluster
    layout = train_layout(trainer, scenario.model, cluster.training)
    each = 0.0
    if trainer.optimizer_on_host:
        # Measured with Adam's 12 bytes, and of Megatron with a precision-aware optimizer, whose states on the host are
        # FP32 as well: only another optimizer of FSDP has fewer.
        fewer = 12.0 - trainer.optimizer_bytes_per_parameter if trainer.backend == "fsdp" else 0.0
        each += layout.optimizer_parameters * (TERMS["host_optimizer_bytes"] - fewer)
    elif scenario.shares_gpus and trainer.offload:
        held = layout.sharded_parameters if trainer.backend == "fsdp" else layout.parameters
        each += layout.optimizer_parameters * trainer.optimizer_bytes_per_parameter + held * BYTES_PER_ELEMENT["bf16"]
    if scenario.shares_gpus and scenario.engine.name == "vllm":
        each += engine_parts(scenario)[0].weights
    node = scenario.training_device.gpus_per_node.value
    return each * min(cluster.training, int(node))


def host_fits(scenario: Scenario) -> float:
    """Probability that a training node holds what is kept on its host; 1 where nothing is."""
    needed, available = host_bytes(scenario), scenario.training_device.host_memory_bytes.value
    return _NORMAL.cdf(math.log(available / needed) / SPREAD["host"]) if needed else 1.0


def check_host(scenario: Scenario) -> None:
    """Raise Infeasible where a node has less memory than what is kept on its host, as surely as for a trainer."""
    stated, available = scenario.simulation.fit_probability, scenario.training_device.host_memory_bytes.value
    sure = math.exp(SPREAD["host"] * _NORMAL.inv_cdf(TRIED if stated is None else stated))
    needed = host_bytes(scenario) * sure
    if needed > available:
        raise Infeasible(
            f"states on the host do not fit a node of {scenario.training_device.name} (host_memory_bytes of its "
            "profile); take more nodes, or leave them on the GPUs (trainer.optimizer_on_host, trainer.offload)",
            needed, available, "bytes",
        )  # fmt: skip


def resident_bytes(scenario: Scenario) -> float:
    """What a colocated trainer leaves on each GPU for the rollout: nothing where it offloads, else weights, optimizer
    and Megatron's buffers of gradients, of a value model too; FSDP's gradients go with the step (PyTorch: zero_grad
    sets them to none)."""
    trainer = scenario.trainer
    if not scenario.shares_gpus or trainer.offload:
        return 0.0
    layout = train_layout(trainer, scenario.model, scenario.cluster.training)
    optimizer = (
        0.0 if trainer.optimizer_on_host else layout.optimizer_parameters * trainer.optimizer_bytes_per_parameter
    )
    gradient = BYTES_PER_ELEMENT[scenario.training_features.gradient_precision]
    held, each = layout.parameters, BYTES_PER_ELEMENT["bf16"] + layout.trained_share * gradient
    if trainer.backend == "fsdp":  # trained parameters are the optimizer's FP32 ones
        held, each = layout.sharded_parameters, (1 - layout.trained_share) * BYTES_PER_ELEMENT["bf16"]
    return (held * each + optimizer) * (2 if trainer.critic else 1)


def check_beside(scenario: Scenario) -> None:
    """Raise Infeasible where an engine's share of a GPU and what a trainer leaves there are more than it has."""
    available, share = scenario.hardware.memory_bytes.value, memory_share(scenario)
    resident = resident_bytes(scenario) * sure_factor(scenario)
    if resident and share * available + resident > available:
        raise Infeasible(
            f"engine.gpu_memory_utilization={share:g} of a {scenario.hardware.name} GPU does not fit beside a trainer "
            f"that stays there (trainer.offload false); lower it, or let the trainer offload",
            share * available + resident, available, "bytes",
        )  # fmt: skip


def _check_fits(scenario: Scenario, parts: MemoryParts, what: str) -> None:
    """Raise Infeasible where the parts exceed a training GPU."""
    trainer, card, available = scenario.trainer, scenario.model, scenario.training_device.memory_bytes.value
    stated = scenario.simulation.fit_probability
    needed = safe_bytes(scenario, parts, TRIED if stated is None else stated)
    if needed > available:
        worst, _ = max(parts.items(), key=lambda part: part[1])
        sure = "" if stated is None else surely_words(scenario)
        raise Infeasible(
            f"{what} {card.name} with trainer.tensor_parallel={trainer.tensor_parallel}, pipeline_parallel="
            f"{trainer.pipeline_parallel}, expert_parallel={trainer.expert_parallel} does not fit a "
            f"{scenario.training_device.name} GPU{sure} ({parts.listed}); most of it is {worst}: "
            f"{_REMEDIES.get(worst, _SPREAD)}",
            needed, available, "bytes",
        )  # fmt: skip
