"""What an answer assumes of a model's own layers, in sentences; each names the key that changes it."""

from __future__ import annotations

from rlsim.costs.engine.prices import most_sequences
from rlsim.schema.model import ModelCard
from rlsim.schema.scenario import Scenario


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
