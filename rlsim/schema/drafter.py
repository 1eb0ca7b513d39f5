"""Drafter card: the small network that proposes tokens, and what follows from it by counting."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from rlsim.errors import InputError
from rlsim.schema.architecture import MLP_MATRICES
from rlsim.schema.base import Name, NonNegativeInt, PositiveInt, Precision, Strict, changed
from rlsim.schema.model import ModelCard, parameter_counts
from rlsim.units import BYTES_PER_ELEMENT

EAGLE3_DRAFT_VOCABULARY = 32_000
"""Draft vocabulary of the published EAGLE-3 heads (SpecForge configs/*-eagle3.json)."""
EAGLE3_FUSED_STATES = 3
"""Hidden states of the target that EAGLE-3 fuses (arXiv 2503.01840 section 3.1)."""
MOE_DRAFT_WIDTH_RATIO = 6
"""Width / hidden size of the published heads of MoE targets (Qwen3-30B-A3B and 235B-A22B: 6)."""
BLOCK_LAYERS, BLOCK_FUSED_STATES = 5, 5
"""Layers and fused states of the published DFlash heads (SpecForge configs/qwen3-8b-dflash.json and most others)."""
TARGET_BLOCK_LAYERS, TARGET_BLOCK_FUSED_STATES, MARKOV_RANK = 3, 3, 256
"""DSpark of DeepSeek-V4: layers of the target's own kind, the target's states that they read and the rank of the bias
by the token before (vllm/models/deepseek_v4/nvidia/dspark.py; config.json of DeepSeek-V4-Flash-DSpark)."""
LATENT_DRAFT_HEAD_DIM = 128
LATENT_DRAFT_KV_HEADS = 8
"""Head layout assumed for a head whose target uses MLA: the one of the published dense 8B heads."""


class DraftCard(Strict):
    """Architecture of a drafter: an EAGLE-3 head, a small draft model, layers of the target's kind, or a block head."""

    kind: Literal["eagle3", "draft_model", "mtp", "dflash"]
    """Kind of drafter. mtp: layers of the target's own kind; dflash: dense layers that attend to keys and values made
    of the target's states."""
    hidden_size: PositiveInt
    """Width of the residual stream."""
    num_layers: PositiveInt = 1
    """Layers run for one drafted token."""
    num_heads: PositiveInt
    """Query heads."""
    num_kv_heads: PositiveInt
    """KV heads."""
    head_dim: PositiveInt
    """Width of a head."""
    intermediate_size: PositiveInt
    """Inner FFN width; of an MoE MTP layer the width that one token activates."""
    vocab_size: PositiveInt = EAGLE3_DRAFT_VOCABULARY
    """Rows of the drafter's LM head."""
    fused_hidden_states: NonNegativeInt = EAGLE3_FUSED_STATES
    """Hidden states of the target fused into the input; 0 for a draft model."""
    markov_rank: NonNegativeInt = 0
    """dspark: rank of the bias that a drafted token puts on the next one's logits; 0 without."""
    tied_embeddings: bool = False
    """Whether a draft model's LM head reuses its embedding."""
    source: Name
    """Where the values come from."""

    def _problems(self) -> Iterator[str]:
        if self.num_heads % self.num_kv_heads:
            yield f"num_kv_heads {self.num_kv_heads} does not divide num_heads {self.num_heads}"


_SHAPE = ("hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size", "vocab_size")
"""Keys that cards of drafters and of models share."""
_PUBLISHED_EAGLE3: Mapping[str, tuple[int, ...]] = {
    "qwen3-8b": (4096, 32, 8, 128, 12_288),
    "qwen3-30b-a3b": (2048, 32, 4, 128, 12_288),
    "qwen3-235b-a22b": (4096, 64, 4, 128, 24_576),
    "llama-3.1-8b": (4096, 32, 8, 128, 14_336),
}
"""Shapes of published heads, in the order of _SHAPE without the vocabulary."""


def _derived_shape(card: ModelCard) -> tuple[int, ...]:
    width = card.intermediate_size if card.moe is None else MOE_DRAFT_WIDTH_RATIO * card.hidden_size
    if card.mla is None:
        return card.hidden_size, card.num_heads, card.num_kv_heads, card.head_dim, width
    kv_heads = LATENT_DRAFT_KV_HEADS
    # A multiple of the KV heads that fills the hidden size as far as it goes.
    heads = max(kv_heads, card.hidden_size // LATENT_DRAFT_HEAD_DIM // kv_heads * kv_heads)
    return card.hidden_size, heads, kv_heads, LATENT_DRAFT_HEAD_DIM, width


def _draft(kind: str, card: ModelCard, **values: Any) -> DraftCard:
    """A drafter of the target's shape, but for ``values``."""
    return DraftCard.model_validate({"kind": kind, **{key: getattr(card, key) for key in _SHAPE}, **values})


def default_eagle3_draft(card: ModelCard) -> DraftCard:
    """EAGLE-3 head for ``card``: the published one where there is one, else derived from the target.

    A derived head takes the target's attention shape and, as FFN width, the target's dense width; for an MoE target
    6 x hidden_size, the ratio of the published MoE heads. ``source`` says which of the two it is.
    """
    shape = _PUBLISHED_EAGLE3.get(card.name.lower())
    source = "SpecForge configs/*-eagle3.json (sgl-project)"
    if shape is None:
        shape = _derived_shape(card)
        source = f"assumed from the shape of {card.name} as the published EAGLE-3 heads suggest"
    vocabulary = min(EAGLE3_DRAFT_VOCABULARY, card.vocab_size)  # small models have fewer tokens than a head drafts from
    return _draft("eagle3", card, source=source, **dict(zip(_SHAPE, (*shape, vocabulary), strict=True)))


def mtp_draft(card: ModelCard) -> DraftCard:
    """The native MTP layer of ``card`` as a drafter. InputError where the model has none."""
    if card.mtp_layers == 0:
        raise InputError(f"model '{card.name}' has no MTP layer (mtp_layers is 0); choose another drafter")
    width = card.intermediate_size
    if card.moe is not None:
        moe = card.moe
        # The experts that a token goes to, as one dense FFN of their width.
        width = moe.top_k * moe.expert_intermediate_size
        width += moe.num_shared_experts * moe.shared_expert_intermediate_size
    source = f"MTP layer of {card.name}: {card.source}"
    return _draft("mtp", card, intermediate_size=width, fused_hidden_states=1, source=source)


def block_draft(card: ModelCard, markov: bool) -> DraftCard:
    """Drafter of a block for ``card``: DFlash's, or with ``markov`` DSpark's.

    DSpark ships with models that have MTP layers as three layers of their own kind; other drafters are dense layers of
    the target's attention shape, as the published ones of dense models.
    """
    rank = MARKOV_RANK if markov else 0
    if markov and card.mtp_layers:
        own = {"num_layers": TARGET_BLOCK_LAYERS, "fused_hidden_states": TARGET_BLOCK_FUSED_STATES}
        source = f"layers of {card.name}, as many as DeepSeek-V4's DSpark has"
        return changed(mtp_draft(card), **own, markov_rank=rank, source=source)
    shape = dict(zip(_SHAPE, (*_derived_shape(card), card.vocab_size), strict=True))
    source = f"assumed from the shape of {card.name} as the published DFlash heads suggest"
    more = {"num_layers": BLOCK_LAYERS, "fused_hidden_states": BLOCK_FUSED_STATES, "markov_rank": rank}
    return _draft("dflash", card, source=source, **shape, **more)


def draft_model_from_card(card: ModelCard) -> DraftCard:
    """A small dense model as an external drafter. InputError for a MoE or MLA model."""
    if card.moe is not None or card.mla is not None:
        raise InputError(f"model '{card.name}' cannot be a draft model: only dense models with grouped-query attention")
    same = {key: getattr(card, key) for key in ("num_layers", "tied_embeddings", "source")}
    return _draft("draft_model", card, fused_hidden_states=0, **same)


def _layer_parameters(card: DraftCard, attention_input: int) -> int:
    query_width = card.num_heads * card.head_dim
    attention = attention_input * (query_width + 2 * card.num_kv_heads * card.head_dim) + query_width * card.hidden_size
    return attention + MLP_MATRICES * card.hidden_size * card.intermediate_size + 2 * card.hidden_size


def draft_parameters(card: DraftCard, target: ModelCard) -> float:
    """Parameters that the drafter adds beside ``target``.

    eagle3: fusion matrix (fused x target hidden -> hidden, only above one state), layers whose Q, K and V read
    [embedding, hidden] (2 x hidden), and an LM head over the draft vocabulary; the embedding is the target's.
    mtp: MTP layers; embedding and head are the target's. dflash: fusion and layers; embedding and head are the
    target's. draft_model: everything, embedding included. A Markov bias has two matrices, vocabulary x rank.
    """
    hidden = card.hidden_size
    markov = 2.0 * card.vocab_size * card.markov_rank
    if card.kind == "mtp":
        if target.mtp_layers == 0:
            raise InputError(f"model '{target.name}' has no MTP layer (mtp_layers is 0); choose another drafter")
        return card.num_layers * parameter_counts(target).mtp / target.mtp_layers + markov
    if card.kind == "dflash":
        fusion = card.fused_hidden_states * target.hidden_size * hidden
        return float(fusion + card.num_layers * _layer_parameters(card, hidden) + hidden + markov)
    if card.kind == "eagle3":
        # One state goes in as it is: there is nothing to fuse.
        fusion = card.fused_hidden_states * target.hidden_size * hidden if card.fused_hidden_states > 1 else 0
        # Embedding and state are normalised apart before they are joined: one norm more than in other layers.
        first = _layer_parameters(card, 2 * hidden) + hidden
        rest = (card.num_layers - 1) * _layer_parameters(card, hidden)
        return float(fusion + first + rest + hidden + hidden * card.vocab_size)
    tables = 1 if card.tied_embeddings else 2
    return float(card.num_layers * _layer_parameters(card, hidden) + hidden + tables * hidden * card.vocab_size)


def met_draft_parameters(card: DraftCard, target: ModelCard) -> float:
    """Parameters of the drafter that a token meets in its training: of an MTP layer's experts those that it goes to,
    and the target's LM head beside, which block drafters share too."""
    whole = draft_parameters(card, target)
    if card.kind not in ("mtp", "dflash"):
        return whole
    if card.kind == "dflash":
        return whole + target.vocab_size * target.hidden_size
    counts, moe = parameter_counts(target), target.moe
    # Training works on the experts that a token goes to, whatever the layer holds.
    idle = 0.0 if moe is None else (moe.num_experts - moe.top_k) * counts.expert
    return whole + card.num_layers * (target.vocab_size * target.hidden_size - idle)


def draft_kv_bytes_per_token(card: DraftCard, target: ModelCard, kv_precision: Precision) -> float:
    """Bytes of the drafter's own KV cache per token; an MTP layer of an MLA model caches the compressed vector."""
    latent = target.mla if card.kind == "mtp" else None
    values = 2 * card.num_kv_heads * card.head_dim if latent is None else latent.cached_values
    return card.num_layers * values * BYTES_PER_ELEMENT[kv_precision]
