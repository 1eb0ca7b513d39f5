"""Model card: the architecture of a target model, and what follows from it by counting."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from rlsim.schema.architecture import (
    MLP_MATRICES,
    SINGLE_BLOCKS,
    SPARSE_FP8_LATENT_BYTES,
    SPARSE_FP8_RANKS,
    UNGATED_MATRICES,
    WHOLE_LAYER,
    LayerCounts,
    LayerKind,
    LayerShape,
    LinearAttentionCard,
    MambaCard,
    MLACard,
    MoECard,
    SparseAttentionCard,
    state_bytes,
)
from rlsim.schema.base import Name, NonNegativeInt, PositiveInt, Precision, Strict
from rlsim.schema.vision import VisionTower
from rlsim.units import BYTES_PER_ELEMENT


class ModelCard(Strict):
    """Architecture of a decoder-only language model: how its layers mix tokens, and their feed-forward blocks.

    Without layer_pattern every layer is attention (grouped-query or latent; full, windowed or sparse) and a
    feed-forward block.
    """

    name: Name
    """Name of the model."""
    hidden_size: PositiveInt
    """Width of the residual stream."""
    num_layers: PositiveInt
    """Decoder layers, without MTP layers."""
    num_heads: PositiveInt
    """Query heads."""
    num_kv_heads: PositiveInt
    """KV heads; equal to num_heads under MLA."""
    head_dim: PositiveInt
    """Width of a head; under MLA the non-rotary plus rotary part."""
    intermediate_size: PositiveInt
    """Inner width of a dense FFN; in a MoE model of its leading dense layers."""
    vocab_size: PositiveInt
    """Rows of the embedding and of the LM head."""
    tied_embeddings: bool = False
    """Whether the LM head reuses the embedding."""
    qk_norm: bool = False
    """Whether queries and keys are normalised per head."""
    qk_norm_over_heads: bool = False
    """Whether that norm runs over all heads of a layer together (MiniMax-M2)."""
    attention_bias: bool = False
    """Whether the Q, K and V projections carry a bias."""
    attention_output_bias: bool = False
    """Whether the output projection carries a bias."""
    attention_sinks: bool = False
    """Whether each head learns a logit that no token takes (gpt-oss)."""
    sliding_window_tokens: PositiveInt | None = None
    """Latest tokens that a windowed layer attends to; null without any."""
    sliding_window_layers: NonNegativeInt = 0
    """Layers with that window; the others attend to everything before."""
    moe: MoECard | None = None
    """Experts; null for a dense model."""
    mla: MLACard | None = None
    """Latent attention; null for grouped-query attention."""
    mtp_layers: NonNegativeInt = 0
    """Multi-token-prediction layers of the checkpoint."""
    layer_pattern: tuple[LayerKind, ...] | None = None
    """Kinds of layers in their order, repeated until num_layers; null: all attention."""
    linear_attention: LinearAttentionCard | None = None
    """Gated delta rule of the linear_attention layers."""
    mamba: MambaCard | None = None
    """Mamba-2 of the mamba layers."""
    sparse_attention: SparseAttentionCard | None = None
    """Indexer of latent attention to few tokens; null: to all."""
    residual_streams: PositiveInt = 1
    """Copies of the residual stream that every block mixes (hyper-connections of DeepSeek-V4: 4)."""
    attention_output_gate: bool = False
    """Whether a gate as wide as the queries multiplies the attention's output."""
    gated_ffn: bool = True
    """Whether dense FFNs have a gate projection."""
    vision: VisionTower | None = None
    """Tower of a model that sees; null: text alone."""
    max_position_embeddings: PositiveInt
    """Longest sequence in tokens."""
    extended_position_embeddings: PositiveInt | None = None
    """Longest sequence with rotary scaling, in tokens, as the publisher states; null: none."""
    rotary_scaling: Literal["yarn", "linear", "dynamic"] | None = None
    """Scaling that the longer sequences need."""
    source: Name
    """Where the values come from."""

    def _problems(self) -> Iterator[str]:
        yield from self._heads_and_layers_agree()
        yield from self._window_and_its_layers_agree()
        yield from self._pattern_and_its_parts_agree()
        yield from self._sparse_attention_is_latent()
        yield from self._extension_and_scaling_agree()

    def _heads_and_layers_agree(self) -> Iterator[str]:
        if self.num_heads % self.num_kv_heads:
            yield f"num_kv_heads {self.num_kv_heads} does not divide num_heads {self.num_heads}"
        if self.moe is not None and self.moe.first_dense_layers >= self.num_layers:
            yield (
                f"moe.first_dense_layers {self.moe.first_dense_layers} leaves no MoE layer among the "
                f"{self.num_layers} of num_layers"
            )
        if self.mla is None:
            return
        expected = self.mla.qk_nope_head_dim + self.mla.qk_rope_head_dim
        if self.head_dim != expected or self.num_kv_heads != self.num_heads:
            yield (
                f"under MLA head_dim must be qk_nope_head_dim + qk_rope_head_dim = {expected} and num_kv_heads "
                f"must equal num_heads {self.num_heads}, got {self.head_dim} and {self.num_kv_heads}"
            )

    def _window_and_its_layers_agree(self) -> Iterator[str]:
        if (self.sliding_window_tokens is not None) != (self.sliding_window_layers > 0):
            yield (
                "sliding_window_tokens and sliding_window_layers must be given together, got "
                f"{self.sliding_window_tokens} and {self.sliding_window_layers}"
            )
        if self.sliding_window_layers > self.num_layers:
            yield f"sliding_window_layers {self.sliding_window_layers} exceeds num_layers {self.num_layers}"
        if self.sliding_window_layers and self.mla is not None:
            yield "sliding_window_layers under mla: windows over latent attention are not modelled"

    def _pattern_and_its_parts_agree(self) -> Iterator[str]:
        pattern = self.layer_pattern or ()
        if self.layer_pattern is not None and (not pattern or self.num_layers % len(pattern)):
            yield f"the {len(pattern)} kinds of layer_pattern do not divide num_layers {self.num_layers}"
        for kind, part in (("linear_attention", self.linear_attention), ("mamba", self.mamba)):
            if (kind in pattern) != (part is not None):
                yield f"{kind} must be given if and only if layer_pattern has layers of that kind"
        windowed = pattern.count("sliding_attention") * (self.num_layers // max(1, len(pattern)))
        if pattern and windowed != self.sliding_window_layers:
            yield f"sliding_window_layers must be {windowed}, as many as layer_pattern has"
        if ("moe" in pattern) and self.moe is None:
            yield "layer_pattern has moe layers, but moe is not given"
        single = sum(kind in SINGLE_BLOCKS for kind in pattern)
        if single not in (0, len(pattern)):
            yield f"layer_pattern mixes single blocks ({', '.join(SINGLE_BLOCKS)}) with whole layers"
        if single and self.moe is not None and self.moe.first_dense_layers:
            yield "moe.first_dense_layers must be 0 where layer_pattern names mlp and moe layers"

    def _sparse_attention_is_latent(self) -> Iterator[str]:
        sparse = self.sparse_attention
        if sparse is None:
            return
        if self.mla is None or self.mla.q_lora_rank is None:
            yield "sparse_attention needs mla with q_lora_rank, of which its indexer makes its queries"
        if sparse.index_layers is not None and sparse.index_layers > self.num_layers:
            yield (f"sparse_attention.index_layers {sparse.index_layers} exceeds num_layers {self.num_layers}")

    def _extension_and_scaling_agree(self) -> Iterator[str]:
        longer = self.extended_position_embeddings
        if (longer is None) != (self.rotary_scaling is None):
            yield "extended_position_embeddings and rotary_scaling must be given together"
        if longer is not None and longer <= self.max_position_embeddings:
            yield f"extended_position_embeddings {longer} must exceed max_position_embeddings"

    @property
    def single_blocks(self) -> bool:
        """Whether a layer is a mixer or a feed-forward block, not both."""
        return self.layer_pattern is not None and self.layer_pattern[0] in SINGLE_BLOCKS

    @property
    def layer_counts(self) -> LayerCounts:
        """Blocks by kind."""
        if self.layer_pattern is None:
            return LayerCounts(self.num_layers, 0, 0, self.num_dense_layers, self.num_moe_layers)
        pattern, repeats = self.layer_pattern, self.num_layers // len(self.layer_pattern)
        linear, mamba = pattern.count("linear_attention") * repeats, pattern.count("mamba") * repeats
        dense, moe = self.num_dense_layers, self.num_moe_layers
        mixers = self.num_layers - dense - moe if self.single_blocks else self.num_layers
        return LayerCounts(mixers - linear - mamba, linear, mamba, dense, moe)

    @property
    def layer_shapes(self) -> tuple[tuple[bool, LayerShape, float], ...]:
        """Kinds of layers: (with experts, shape, layers). Dense layers mix tokens as the others do, in proportion."""
        counts = self.layer_counts
        recurrent, experts = counts.linear + counts.mamba, self.moe is not None
        if self.single_blocks:
            mixers = ((LayerShape("attention", False), counts.attention), (LayerShape("recurrent", False), recurrent))
            ffns = ((False, LayerShape("none", True), counts.dense), (True, LayerShape("none", True), counts.moe))
            found = [*((experts, *mixer) for mixer in mixers), *ffns]
            return tuple((moe, shape, float(count)) for moe, shape, count in found if count)
        shares = ((WHOLE_LAYER, counts.attention), (LayerShape("recurrent", True), recurrent))
        kinds = ((False, counts.dense), (True, counts.moe))
        return tuple((moe, shape, n * of / counts.mixers) for moe, n in kinds for shape, of in shares if n and of)

    @property
    def recurrent(self) -> LinearAttentionCard | MambaCard | None:
        """Mixer that keeps a state instead of a cache; None without such layers."""
        return self.linear_attention or self.mamba

    @property
    def num_attention_layers(self) -> int:
        """Layers with attention over a cache."""
        return self.num_layers if self.layer_pattern is None else self.layer_counts.attention

    @property
    def num_recurrent_layers(self) -> int:
        """Layers that keep a state."""
        return 0 if self.layer_pattern is None else self.layer_counts.linear + self.layer_counts.mamba

    @property
    def num_index_layers(self) -> int:
        """Layers that rank the tokens of their cache."""
        sparse = self.sparse_attention
        return 0 if sparse is None else sparse.index_layers or self.num_layers

    @property
    def expert_hidden_size(self) -> int:
        """Width in which routed experts work."""
        return self.hidden_size if self.moe is None else self.moe.latent_size or self.hidden_size

    @property
    def attention_kinds(self) -> tuple[tuple[int, int | None], ...]:
        """Layers by kind of attention: (layers, tokens of their window or None), kinds without layers left out."""
        kinds = ((self.num_attention_layers - self.sliding_window_layers, None),
                 (self.sliding_window_layers, self.sliding_window_tokens))  # fmt: skip
        return tuple(kind for kind in kinds if kind[0])

    @property
    def prompt_kinds(self) -> tuple[tuple[int, int | None], ...]:
        """Layers by kind over whole prompts, where sparse attention makes as many pairs as a window of top_k_tokens."""
        if self.sparse_attention is None:
            return self.attention_kinds
        sparse = self.sparse_attention
        return ((self.num_layers, sparse.top_k_tokens + sparse.window_tokens),)

    @property
    def num_dense_layers(self) -> int:
        """Layers with a dense FFN."""
        if self.single_blocks:
            return self._of_kind("mlp")
        return self.num_layers if self.moe is None else self.moe.first_dense_layers

    @property
    def num_moe_layers(self) -> int:
        """Layers with routed experts."""
        return self._of_kind("moe") if self.single_blocks else self.num_layers - self.num_dense_layers

    def _of_kind(self, kind: LayerKind) -> int:
        pattern = self.layer_pattern or ()
        return pattern.count(kind) * (self.num_layers // len(pattern)) if pattern else 0


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters by part of the model; ``total`` and ``active`` are without MTP layers, total
    with the vision tower.

    lm_head is 0 where tied. expert is one routed expert, shared_experts_per_layer all shared ones of a layer.
    active counts what one token passes, with the whole embedding and LM head as publishers of MoE models do.
    mtp counts the MTP layers of the checkpoint without the embedding and head they share with the model.
    mixers counts all blocks that mix tokens, whatever their kind.
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
    mixers: int
    total: int
    active: int


def _latent_attention_parameters(card: ModelCard, mla: MLACard) -> int:
    query_width = card.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    if mla.q_lora_rank is None:
        query = card.hidden_size * query_width
    else:
        query = mla.q_lora_rank * (card.hidden_size + 1 + query_width)  # 1: the norm between both
    key_value_down = card.hidden_size * (mla.kv_lora_rank + mla.qk_rope_head_dim) + mla.kv_lora_rank
    if mla.output_rank is not None:
        heads_down = mla.output_rank * card.num_heads * mla.v_head_dim
        return query + key_value_down + heads_down + mla.grouped_width * card.hidden_size
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
    norms = 2 * card.head_dim if card.qk_norm else 0  # one vector for all heads of a kind
    gate = query_width if card.attention_output_gate else 0
    return card.hidden_size * (qkv_width + gate + query_width) + bias + norms


def mixer_parameters(card: ModelCard) -> int:
    """Parameters of all blocks that mix tokens, indexers included."""
    counts = card.layer_counts
    total = counts.attention * attention_parameters(card)
    if card.sparse_attention is not None and card.mla is not None and card.mla.q_lora_rank is not None:
        indexer = card.sparse_attention.parameters(card.hidden_size, card.mla.q_lora_rank)
        total += card.num_index_layers * indexer
        for ranks, layers in ((True, card.num_index_layers), (False, card.num_layers - card.num_index_layers)):
            total += layers * card.hidden_size * card.sparse_attention.entry_columns(ranks, card.mla.cached_values)
    if card.recurrent is not None:
        total += card.num_recurrent_layers * card.recurrent.parameters(card.hidden_size)
    return total


@lru_cache(maxsize=64)  # asked for by memory, transfers and layouts of every candidate of a search
def parameter_counts(card: ModelCard) -> ParameterCounts:
    """Count the parameters of ``card`` from its matrix shapes; a router's balancing bias is left out (E values)."""
    hidden = card.hidden_size
    embedding = card.vocab_size * hidden
    lm_head = 0 if card.tied_embeddings else embedding
    attention = attention_parameters(card)
    blocks, streams = 1 if card.single_blocks else 2, card.residual_streams
    norms = blocks * hidden  # one before each block
    if streams > 1:
        # Each block makes its mixing of all streams from them: in, out and between each other (arXiv 2409.19606).
        norms += blocks * streams * (streams + 2) * streams * hidden
    dense_ffn = (MLP_MATRICES if card.gated_ffn else UNGATED_MATRICES) * hidden * card.intermediate_size
    router = expert = shared = latent = active_experts = all_experts = 0
    if card.moe is not None:
        moe = card.moe
        router = hidden * moe.num_experts
        expert = moe.matrices * card.expert_hidden_size * moe.expert_intermediate_size
        latent = 2 * hidden * moe.latent_size if moe.latent_size is not None else 0
        if moe.expert_bias:
            router += moe.num_experts
            expert += 2 * moe.expert_intermediate_size + hidden  # of gate, up and down
        shared = moe.matrices * hidden * moe.shared_expert_intermediate_size * moe.num_shared_experts
        active_experts = router + shared + latent + moe.top_k * expert
        all_experts = router + shared + latent + moe.num_experts * expert
    mixers = mixer_parameters(card)
    trunk = embedding + lm_head + hidden + mixers + card.num_layers * norms + card.num_dense_layers * dense_ffn
    tower = 0 if card.vision is None else card.vision.parameters(hidden)
    last_ffn = all_experts if card.moe is not None else dense_ffn
    # DeepSeek-V3 (arXiv 2412.19437 section 2.2): two norms, a 2H x H projection, one decoder layer, a final norm. The
    # layer is one of attention and experts in hybrid models as well (config.json of Qwen3.5 and Nemotron 3).
    mtp = card.mtp_layers * (2 * hidden * hidden + 3 * hidden + attention + 2 * hidden + last_ffn)
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
        mixers=mixers,
        total=trunk + tower + card.num_moe_layers * all_experts,
        active=trunk + card.num_moe_layers * active_experts,
    )


def kv_bytes_per_token(card: ModelCard, kv_precision: Precision, windowed_share: float = 1.0) -> float:
    """Bytes of KV cache that one token occupies in all layers of the model, before any sharding.

    MLA stores the compressed vector and the shared rotary key, [layers x (kv_lora_rank + rope)]; otherwise keys and
    values of every KV head, [layers x 2 x kv_heads x head_dim]. Layers without attention store nothing per token; an
    indexer stores its key. windowed_share: of the tokens of a sequence that windowed layers keep.
    """
    values = 2 * card.num_kv_heads * card.head_dim if card.mla is None else card.mla.cached_values
    layers: float = card.num_attention_layers
    if card.sparse_attention is not None and card.mla is not None:
        latent = values * BYTES_PER_ELEMENT[kv_precision]
        if kv_precision == "fp8" and (card.mla.kv_lora_rank, card.mla.qk_rope_head_dim) == SPARSE_FP8_RANKS:
            latent = SPARSE_FP8_LATENT_BYTES
        sparse, ranked = card.sparse_attention, card.num_index_layers
        entries = ranked / sparse.entry_tokens + (layers - ranked) / (sparse.entry_tokens_elsewhere or 1)
        return entries * latent + ranked / sparse.entry_tokens * sparse.key_bytes
    return (layers - card.sliding_window_layers * (1.0 - windowed_share)) * values * BYTES_PER_ELEMENT[kv_precision]


def state_bytes_per_sequence(card: ModelCard) -> float:
    """Bytes of recurrent state that one sequence occupies in all layers of the model, before any sharding."""
    return 0.0 if card.recurrent is None else card.num_recurrent_layers * state_bytes(card.recurrent)
