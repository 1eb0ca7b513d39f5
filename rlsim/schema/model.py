"""Model card: the architecture of a target model, and what follows from it by counting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field, model_validator

from rlsim.schema.base import Name, NonNegativeInt, PositiveInt, Precision, Strict
from rlsim.units import BYTES_PER_ELEMENT

MLP_MATRICES = 3
"""Gate, up and down projection of a gated (SwiGLU) feed-forward block."""


class MoECard(Strict):
    """Mixture-of-experts part of a model: every layer after the first dense ones routes each token to top_k experts."""

    num_experts: Annotated[PositiveInt, Field(description="Routed experts per layer.")]
    top_k: Annotated[PositiveInt, Field(description="Routed experts that one token activates.")]
    expert_intermediate_size: Annotated[PositiveInt, Field(description="Inner width of one routed expert.")]
    num_shared_experts: Annotated[NonNegativeInt, Field(description="Experts that every token passes.")] = 0
    shared_expert_intermediate_size: Annotated[
        NonNegativeInt, Field(description="Inner width of one shared expert; 0 without shared experts.")
    ] = 0
    first_dense_layers: Annotated[NonNegativeInt, Field(description="Leading layers with a dense FFN.")] = 0
    expert_bias: Annotated[bool, Field(description="Whether router and routed experts carry biases (gpt-oss).")] = False

    @model_validator(mode="after")
    def _top_k_within_experts(self) -> Self:
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k {self.top_k} exceeds num_experts {self.num_experts}")
        return self

    @model_validator(mode="after")
    def _shared_experts_have_a_width(self) -> Self:
        if (self.num_shared_experts > 0) != (self.shared_expert_intermediate_size > 0):
            raise ValueError(
                "num_shared_experts and shared_expert_intermediate_size must be both zero or both positive, got "
                f"{self.num_shared_experts} and {self.shared_expert_intermediate_size}"
            )
        return self


class MLACard(Strict):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 section 2.1): one compressed KV vector per token."""

    q_lora_rank: Annotated[PositiveInt | None, Field(description="Rank of the query compression; null without.")]
    kv_lora_rank: Annotated[PositiveInt, Field(description="Width of the compressed KV vector.")]
    qk_rope_head_dim: Annotated[PositiveInt, Field(description="Rotary part of a head, shared by all heads in K.")]
    qk_nope_head_dim: Annotated[PositiveInt, Field(description="Part of a query or key head without position.")]
    v_head_dim: Annotated[PositiveInt, Field(description="Width of a value head.")]


class ModelCard(Strict):
    """Architecture of a decoder-only transformer, dense or MoE, GQA or MLA, full attention or some layers windowed."""

    name: Annotated[Name, Field(description="Name of the model.")]
    hidden_size: Annotated[PositiveInt, Field(description="Width of the residual stream.")]
    num_layers: Annotated[PositiveInt, Field(description="Decoder layers, without MTP layers.")]
    num_heads: Annotated[PositiveInt, Field(description="Query heads.")]
    num_kv_heads: Annotated[PositiveInt, Field(description="KV heads; equal to num_heads under MLA.")]
    head_dim: Annotated[PositiveInt, Field(description="Width of a head; under MLA the non-rotary plus rotary part.")]
    intermediate_size: Annotated[
        PositiveInt, Field(description="Inner width of a dense FFN; in a MoE model of its leading dense layers.")
    ]
    vocab_size: Annotated[PositiveInt, Field(description="Rows of the embedding and of the LM head.")]
    tied_embeddings: Annotated[bool, Field(description="Whether the LM head reuses the embedding.")] = False
    qk_norm: Annotated[bool, Field(description="Whether queries and keys are normalised per head.")] = False
    qk_norm_over_heads: Annotated[
        bool, Field(description="Whether that norm runs over all heads of a layer together (MiniMax-M2).")
    ] = False
    attention_bias: Annotated[bool, Field(description="Whether the Q, K and V projections carry a bias.")] = False
    attention_output_bias: Annotated[bool, Field(description="Whether the output projection carries a bias.")] = False
    attention_sinks: Annotated[
        bool, Field(description="Whether each head learns a logit that no token takes (gpt-oss).")
    ] = False
    sliding_window_tokens: Annotated[
        PositiveInt | None, Field(description="Latest tokens that a windowed layer attends to; null without any.")
    ] = None
    sliding_window_layers: Annotated[
        NonNegativeInt, Field(description="Layers with that window; the others attend to everything before.")
    ] = 0
    moe: Annotated[MoECard | None, Field(description="Experts; null for a dense model.")] = None
    mla: Annotated[MLACard | None, Field(description="Latent attention; null for grouped-query attention.")] = None
    mtp_layers: Annotated[NonNegativeInt, Field(description="Multi-token-prediction layers of the checkpoint.")] = 0
    max_position_embeddings: Annotated[PositiveInt, Field(description="Longest sequence in tokens.")]
    source: Annotated[Name, Field(description="Where the values come from.")]

    @model_validator(mode="after")
    def _kv_heads_divide_heads(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads {self.num_kv_heads} does not divide num_heads {self.num_heads}")
        return self

    @model_validator(mode="after")
    def _dense_layers_within_model(self) -> Self:
        if self.moe is not None and self.moe.first_dense_layers >= self.num_layers:
            raise ValueError(
                f"moe.first_dense_layers {self.moe.first_dense_layers} leaves no MoE layer among the "
                f"{self.num_layers} of num_layers"
            )
        return self

    @model_validator(mode="after")
    def _latent_head_dim_is_the_sum(self) -> Self:
        if self.mla is None:
            return self
        expected = self.mla.qk_nope_head_dim + self.mla.qk_rope_head_dim
        if self.head_dim != expected or self.num_kv_heads != self.num_heads:
            raise ValueError(
                f"under MLA head_dim must be qk_nope_head_dim + qk_rope_head_dim = {expected} and num_kv_heads "
                f"must equal num_heads {self.num_heads}, got {self.head_dim} and {self.num_kv_heads}"
            )
        return self

    @model_validator(mode="after")
    def _window_and_its_layers_agree(self) -> Self:
        if (self.sliding_window_tokens is not None) != (self.sliding_window_layers > 0):
            raise ValueError(
                "sliding_window_tokens and sliding_window_layers must be given together, got "
                f"{self.sliding_window_tokens} and {self.sliding_window_layers}"
            )
        if self.sliding_window_layers > self.num_layers:
            raise ValueError(f"sliding_window_layers {self.sliding_window_layers} exceeds num_layers {self.num_layers}")
        if self.sliding_window_layers and self.mla is not None:
            raise ValueError("sliding_window_layers under mla: windows over latent attention are not modelled")
        return self

    @property
    def attention_kinds(self) -> tuple[tuple[int, int | None], ...]:
        """Layers by kind of attention: (layers, tokens of their window or None), kinds without layers left out."""
        kinds = ((self.num_layers - self.sliding_window_layers, None),
                 (self.sliding_window_layers, self.sliding_window_tokens))  # fmt: skip
        return tuple(kind for kind in kinds if kind[0])

    @property
    def num_dense_layers(self) -> int:
        """Layers with a dense FFN."""
        return self.num_layers if self.moe is None else self.moe.first_dense_layers

    @property
    def num_moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.num_layers - self.num_dense_layers


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters by part of the model; ``total`` and ``active`` are without MTP layers.

    lm_head is 0 where tied. expert is one routed expert, shared_experts_per_layer all shared ones of a layer.
    active counts what one token passes, with the whole embedding and LM head as publishers of MoE models do.
    mtp counts the MTP layers of the checkpoint without the embedding and head they share with the model.
    """

    embedding: int
    lm_head: int
    attention_per_layer: int
    dense_ffn_per_layer: int
    router_per_layer: int
    expert: int
    shared_experts_per_layer: int
    norms_per_layer: int
    final_norm: int
    mtp: int
    total: int
    active: int


def _latent_attention_parameters(card: ModelCard, mla: MLACard) -> int:
    query_width = card.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    if mla.q_lora_rank is None:
        query = card.hidden_size * query_width
    else:
        query = mla.q_lora_rank * (card.hidden_size + 1 + query_width)
    key_value_down = card.hidden_size * (mla.kv_lora_rank + mla.qk_rope_head_dim) + mla.kv_lora_rank
    key_value_up = mla.kv_lora_rank * card.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    return query + key_value_down + key_value_up + card.num_heads * mla.v_head_dim * card.hidden_size


def attention_parameters(card: ModelCard) -> int:
    """Parameters of one attention block: projections, their biases, sinks, and the norms inside the block."""
    if card.mla is not None:
        return _latent_attention_parameters(card, card.mla)
    query_width = card.num_heads * card.head_dim
    qkv_width = query_width + 2 * card.num_kv_heads * card.head_dim
    bias = qkv_width if card.attention_bias else 0
    bias += card.hidden_size if card.attention_output_bias else 0
    bias += card.num_heads if card.attention_sinks else 0
    norms = 2 * card.head_dim if card.qk_norm else 0
    return card.hidden_size * (qkv_width + query_width) + bias + norms


def parameter_counts(card: ModelCard) -> ParameterCounts:
    """Count the parameters of ``card`` from its matrix shapes; a router's balancing bias is left out (E values)."""
    hidden = card.hidden_size
    embedding = card.vocab_size * hidden
    lm_head = 0 if card.tied_embeddings else embedding
    attention = attention_parameters(card)
    norms = 2 * hidden
    dense_ffn = MLP_MATRICES * hidden * card.intermediate_size
    router = expert = shared = active_experts = all_experts = 0
    if card.moe is not None:
        moe = card.moe
        router = hidden * moe.num_experts
        expert = MLP_MATRICES * hidden * moe.expert_intermediate_size
        if moe.expert_bias:
            router += moe.num_experts
            expert += 2 * moe.expert_intermediate_size + hidden
        shared = MLP_MATRICES * hidden * moe.shared_expert_intermediate_size * moe.num_shared_experts
        active_experts = router + shared + moe.top_k * expert
        all_experts = router + shared + moe.num_experts * expert
    trunk = embedding + lm_head + hidden + card.num_layers * (attention + norms) + card.num_dense_layers * dense_ffn
    last_ffn = all_experts if card.moe is not None else dense_ffn
    # DeepSeek-V3 (arXiv 2412.19437 section 2.2): two norms, a 2H x H projection, one decoder layer, a final norm.
    mtp = card.mtp_layers * (2 * hidden * hidden + 3 * hidden + attention + norms + last_ffn)
    return ParameterCounts(
        embedding=embedding,
        lm_head=lm_head,
        attention_per_layer=attention,
        dense_ffn_per_layer=dense_ffn if card.num_dense_layers else 0,
        router_per_layer=router,
        expert=expert,
        shared_experts_per_layer=shared,
        norms_per_layer=norms,
        final_norm=hidden,
        mtp=mtp,
        total=trunk + card.num_moe_layers * all_experts,
        active=trunk + card.num_moe_layers * active_experts,
    )


def kv_bytes_per_token(card: ModelCard, kv_precision: Precision, context_tokens: float | None = None) -> float:
    """Bytes of KV cache that one token occupies in all layers of the model, before any sharding.

    MLA stores the compressed vector and the shared rotary key, [layers x (kv_lora_rank + rope)]; otherwise keys and
    values of every KV head, [layers x 2 x kv_heads x head_dim]. context_tokens: mean over a sequence of so many, of
    which windowed layers keep the last window alone; None: of a token that lies within every window.
    """
    if card.mla is not None:
        values = card.mla.kv_lora_rank + card.mla.qk_rope_head_dim
    else:
        values = 2 * card.num_kv_heads * card.head_dim
    layers: float = card.num_layers
    if card.sliding_window_tokens is not None and context_tokens is not None:
        kept = min(1.0, card.sliding_window_tokens / context_tokens)
        layers = card.num_layers - card.sliding_window_layers * (1.0 - kept)
    return layers * values * BYTES_PER_ELEMENT[kv_precision]
