"""Floating-point work and memory traffic that a model itself asks for: what MFU, HFU and bandwidth use are shares of.

What a forward pass of the model asks for is counted in :mod:`rlsim.costs.operators.model_work`. A training pass takes
three times that; with frozen weights (LoRA) two times, since only gradients of activations are needed.
"""

import numpy as np
from msgspec import Struct

from rlsim.costs.interface import EngineCounters
from rlsim.costs.memory import kv_bytes_per_gpu_token, weight_bytes
from rlsim.costs.operators.model_work import head_flops, packed_flops, pair_flops, prompts_flops, token_flops
from rlsim.results import MemoryParts
from rlsim.schema.model import ModelCard, parameter_counts
from rlsim.schema.scenario import Scenario
from rlsim.units import BYTES_PER_ELEMENT, FloatArray

RATES = {"fp8_block": "fp8"}
"""Precisions whose peak rate has another name."""


def peak_flops(scenario: Scenario, training: bool) -> float:
    """Peak dense FLOP/s of a GPU of the trainer, or of the engine, in the precision of its products."""
    if training:
        return scenario.training_device.flops(scenario.trainer.precision)
    precision = scenario.engine.weight_precision
    return scenario.hardware.flops(RATES.get(precision, precision))


def attention_flops(card: ModelCard, tokens: FloatArray) -> float:
    """Forward FLOP of attention over whole sequences of ``tokens`` each, all layers."""
    return prompts_flops(card, np.ones_like(tokens), tokens)


def forward_flops(card: ModelCard, tokens: FloatArray) -> float:
    """Model FLOP of a forward pass over sequences of ``tokens`` each.

    >>> from rlsim.loading.models import load_card
    >>> tokens = np.array([1000.0])
    >>> card = load_card("llama-3.1-8b")
    >>> forward_flops(card, tokens) == 1000 * token_flops(card) + 32 * 2 * 1000**2 * 32 * 128
    True
    """
    return token_flops(card) * float(tokens.sum()) + attention_flops(card, tokens)


class PassFlops(Struct, frozen=True):
    """FLOP over all GPUs: model for MFU, hardware for HFU, which counts recomputation and padding too."""

    model: float
    hardware: float


def update_flops(scenario: Scenario, tokens: FloatArray) -> PassFlops:
    """FLOP of the updates of a step on samples of ``tokens`` each."""
    card, trainer = scenario.model, scenario.trainer
    # Backward takes two products for each of the forward pass: by inputs, and by weights where these are trained.
    passes, models = 3.0 if trainer.lora_rank is None else 2.0, 2 if trainer.critic else 1
    executed = _executed(scenario, tokens)
    again = {"none": 0.0, "selective": attention_flops(card, executed), "full": forward_flops(card, executed)}
    model, hardware = (
        passes * (forward_flops(card, one) + _beside(scenario, one, update=True)) for one in (tokens, executed)
    )
    return PassFlops(model * trainer.epochs, (hardware + models * again[trainer.recompute]) * trainer.epochs)


def logprob_flops(scenario: Scenario, tokens: FloatArray) -> PassFlops:
    """FLOP of the log-prob passes of a step on the trainer's own GPUs, and of a value model's."""
    own = scenario.trainer.reference_logprobs and not scenario.cluster.reference_gpus
    passes, card = int(scenario.policy_logprobs) + int(own), scenario.model
    model, hardware = (
        passes * forward_flops(card, one) + _beside(scenario, one, update=False)
        for one in (tokens, _executed(scenario, tokens))
    )
    return PassFlops(model, hardware)


def _beside(scenario: Scenario, tokens: FloatArray, update: bool) -> float:
    """FLOP of a forward pass of what is trained beside the policy: a value model without LM head, and MTP layers."""
    card, trainer = scenario.model, scenario.trainer
    head, out = head_flops(card) * float(tokens.sum()), 0.0
    if trainer.critic:
        out += forward_flops(card, tokens) - head
    if update and trainer.mtp_layers:
        layers = max(1, card.num_layers)
        out += trainer.mtp_layers * (head + (forward_flops(card, tokens) - head) / layers)
    return out


def _executed(scenario: Scenario, tokens: FloatArray) -> FloatArray:
    """Tokens that are computed for each sample: with padding those of the longest."""
    return tokens if scenario.sequence_packing else np.full_like(tokens, tokens.max())


def generation_flops(
    scenario: Scenario, counters: EngineCounters, decoded_tokens: float, drafted: FloatArray
) -> PassFlops:
    """FLOP of engine iterations: model FLOP of the ``decoded_tokens`` and prompts, and of all positions verified.

    decoded_tokens: without the first of each response, which its prefill emits. drafted: tokens that a sequence drafts,
    by batch size.
    """
    card = scenario.model
    sizes = np.arange(len(counters.iterations_at), dtype=np.float64)
    at_size = sizes * np.array(counters.iterations_at)
    sequences, context = float(at_size.sum()), float((sizes * np.array(counters.context_at)).sum())
    weights = token_flops(card)
    pairs = sum(layers * _reach(context, sequences, window) for layers, window in card.prompt_kinds)
    each = weights + pair_flops(card, pairs / max(1.0, sequences))
    # Of parts of prompts the tokens alone say nothing: a token late in its prompt meets all that came before it.
    attended = packed_flops(card, counters.prefill_tokens, counters.prefill_squares)
    prefill, verified = (
        weights * counters.prefill_tokens + attended,
        float((at_size * queries_of(scenario, drafted)).sum()),
    )
    return PassFlops(each * decoded_tokens + prefill, each * verified + prefill)


def queries_of(scenario: Scenario, drafted: FloatArray) -> FloatArray:
    """Positions of a sequence in an iteration that drafts so many tokens; a tree has more than its depth."""
    speculation = scenario.speculation
    return np.where(drafted > 0, drafted + speculation.queries - speculation.draft_length, 1.0)


def _reach(context_tokens: float, sequences: float, window: int | None) -> float:
    """Cached tokens that all sequence-iterations attend to; a window holds the mean context at most."""
    if window is None or not sequences:
        return context_tokens
    # A bound: sequences shorter than the window beside longer ones attend to less.
    return min(context_tokens, window * sequences)


def iteration_bytes(
    scenario: Scenario,
    memory: MemoryParts,
    sequences: FloatArray,
    context: FloatArray,
    drafted: FloatArray | None = None,
) -> FloatArray:
    """Bytes that one GPU reads from its memory in an iteration of ``sequences`` at a mean ``context`` (of a replica).

    Weights once (experts: those that some token chose, by even routing), the cache of every sequence, and the drafter's
    weights once for each drafted token. drafted: by entry; default what the scenario states.
    """
    card, engine, speculation = scenario.model, scenario.engine, scenario.speculation
    if drafted is None:
        drafted = np.full_like(sequences, speculation.draft_length if speculation.active else 0)
    chosen = _chosen(card, sequences, queries_of(scenario, drafted))
    touched = 1.0 - _expert_share(card, engine.weight_precision) * (1.0 - chosen)
    # A chain drafts one token after the other: the drafter's weights are read for each.
    drafts = (memory.draft or 0.0) * drafted
    cache = sequences * context * kv_bytes_per_gpu_token(scenario) / engine.attention_data_parallel
    return np.asarray(memory.weights * touched + drafts + cache)


def _expert_share(card: ModelCard, precision: str) -> float:
    """Share of routed experts of all weights' bytes."""
    if card.moe is None:
        return 0.0
    experts = card.num_moe_layers * card.moe.num_experts * parameter_counts(card).expert
    return experts * BYTES_PER_ELEMENT[precision] / weight_bytes(card, precision)


def _chosen(card: ModelCard, sequences: FloatArray, queries: FloatArray) -> FloatArray:
    """Share of experts that at least one of ``sequences`` x ``queries`` tokens chose."""
    if card.moe is None:
        return np.ones_like(sequences)
    return np.asarray(1.0 - (1.0 - card.moe.top_k / card.moe.num_experts) ** (sequences * queries))
