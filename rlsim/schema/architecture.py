"""Parts of a model card: experts, latent and sparse attention, recurrent mixers, kinds of layers."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from rlsim.schema.base import NonNegativeInt, PositiveInt, Strict
from rlsim.units import BYTES_PER_ELEMENT, FloatArray

LayerKind = Literal["full_attention", "sliding_attention", "linear_attention", "mamba", "attention", "moe", "mlp"]
"""Kinds of layers by the names of config.json. full_attention, sliding_attention and linear_attention are a mixer and a
feed-forward block together; mamba, attention, moe and mlp are single blocks (Nemotron-H)."""
SINGLE_BLOCKS = ("mamba", "attention", "moe", "mlp")
INDEX_KEY_BYTES = 4.0
"""Scale that an indexer's FP8 key carries (FP32, one a token: DeepSeek-V3.2's reference code)."""
SPARSE_FP8_LATENT_BYTES = 656.0
"""One token of latent cache in FP8 under sparse attention, rank 512 and rope 64: 512 values of FP8, four FP32 scales,
the rotary part in BF16 (vLLM's fp8_ds_mla layout, which SGLang shares)."""
SPARSE_FP8_RANKS = (512, 64)


class LayerCounts(NamedTuple):
    """Blocks of a model by kind. attention: full, windowed, latent or sparse; linear, mamba: recurrent mixers."""

    attention: int
    linear: int
    mamba: int
    dense: int
    moe: int

    @property
    def mixers(self) -> int:
        """Blocks that mix tokens."""
        return self.attention + self.linear + self.mamba

    @property
    def ffns(self) -> int:
        """Feed-forward blocks, dense or of experts."""
        return self.dense + self.moe


MLP_MATRICES = 3
"""Gate, up and down projection of a gated (SwiGLU) feed-forward block."""
UNGATED_MATRICES = 2
"""Up and down projection of one without a gate (squared ReLU)."""


class MoECard(Strict):
    """Mixture-of-experts part of a model: every layer after the first dense ones routes each token to top_k experts."""

    num_experts: PositiveInt
    """Routed experts per layer."""
    top_k: PositiveInt
    """Routed experts that one token activates."""
    expert_intermediate_size: PositiveInt
    """Inner width of one routed expert."""
    num_shared_experts: NonNegativeInt = 0
    """Experts that every token passes."""
    shared_expert_intermediate_size: NonNegativeInt = 0
    """Inner width of one shared expert; 0 without shared experts."""
    first_dense_layers: NonNegativeInt = 0
    """Leading layers with a dense FFN."""
    expert_bias: bool = False
    """Whether router and routed experts carry biases (gpt-oss)."""
    gated: bool = True
    """Whether experts have a gate projection; false: up and down alone."""
    latent_size: PositiveInt | None = None
    """Width in which routed experts work, between a projection down and one up; null: hidden_size."""

    def _problems(self) -> Iterator[str]:
        if self.top_k > self.num_experts:
            yield f"top_k {self.top_k} exceeds num_experts {self.num_experts}"
        if (self.num_shared_experts > 0) != (self.shared_expert_intermediate_size > 0):
            yield (
                "num_shared_experts and shared_expert_intermediate_size must be both zero or both positive, got "
                f"{self.num_shared_experts} and {self.shared_expert_intermediate_size}"
            )

    @property
    def matrices(self) -> int:
        """Weight matrices of one expert."""
        return MLP_MATRICES if self.gated else UNGATED_MATRICES


class MLACard(Strict):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 section 2.1): one compressed KV vector per token."""

    q_lora_rank: PositiveInt | None
    """Rank of the query compression; null without."""
    kv_lora_rank: PositiveInt
    """Width of the compressed KV vector."""
    qk_rope_head_dim: PositiveInt
    """Rotary part of a head, shared by all heads in K."""
    qk_nope_head_dim: PositiveInt
    """Part of a query or key head without position."""
    v_head_dim: PositiveInt
    """Width of a value head."""
    output_groups: PositiveInt | None = None
    """Groups of heads that an output projection of low rank takes each for itself (DeepSeek-V4), whose heads attend to
    the cached vector itself; null: one projection of all, and keys and values made of the vector."""
    output_rank: PositiveInt | None = None
    """Rank of each group's projection."""

    def _problems(self) -> Iterator[str]:
        if (self.output_groups is None) != (self.output_rank is None):
            yield "output_groups and output_rank must be given together"

    @property
    def grouped_width(self) -> int:
        """Values between the two output projections; 0 with one."""
        return (self.output_groups or 0) * (self.output_rank or 0)

    @property
    def cached_values(self) -> int:
        """Values that a token caches in one layer: the compressed vector and the shared rotary key."""
        return self.kv_lora_rank + self.qk_rope_head_dim


class LayerShape(NamedTuple):
    """What a layer consists of: how it mixes tokens, and whether a feed-forward block follows."""

    mixer: Literal["attention", "recurrent", "none"]
    ffn: bool


WHOLE_LAYER = LayerShape("attention", True)
"""Attention and a feed-forward block."""


class LinearAttentionCard(Strict):
    """Gated delta rule (Yang et al., arXiv 2412.06464; Qwen3-Next, Qwen3.5): a key x value matrix of state per head."""

    num_key_heads: PositiveInt
    """Query and key heads."""
    num_value_heads: PositiveInt
    """Value heads; each has a state of its own."""
    key_head_dim: PositiveInt
    """Width of a query or key head."""
    value_head_dim: PositiveInt
    """Width of a value head."""
    conv_kernel: PositiveInt = 4
    """Tokens that the short convolution before it sees."""

    def _problems(self) -> Iterator[str]:
        if self.num_value_heads % self.num_key_heads:
            yield (f"num_key_heads {self.num_key_heads} does not divide num_value_heads {self.num_value_heads}")

    @property
    def key_width(self) -> int:
        """Width of all keys."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """Width of all values, and of the gate on them."""
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the short convolution: queries, keys and values."""
        return 2 * self.key_width + self.value_width

    @property
    def state_elements(self) -> int:
        """Elements of the recurrent state of one layer and sequence."""
        return self.num_value_heads * self.key_head_dim * self.value_head_dim

    def parameters(self, hidden: int) -> int:
        """Projections (queries, keys, values, gate; decay and rate per head), convolution, decays, norm, output."""
        inputs = hidden * (2 * self.key_width + 2 * self.value_width + 2 * self.num_value_heads)
        small = self.conv_channels * self.conv_kernel + 2 * self.num_value_heads + self.value_head_dim
        return inputs + small + self.value_width * hidden


class MambaCard(Strict):
    """Mamba-2 (Dao and Gu, arXiv 2405.21060; Nemotron-H): a head x state matrix of state per head."""

    num_heads: PositiveInt
    """Heads; each has a state of its own."""
    head_dim: PositiveInt
    """Width of a head."""
    state_size: PositiveInt
    """State values per channel of a head."""
    num_groups: PositiveInt
    """Groups of heads that share their B and C."""
    conv_kernel: PositiveInt = 4
    """Tokens that the short convolution before it sees."""
    chunk_tokens: PositiveInt = 128
    """Tokens of a chunk in prefill and training."""

    @property
    def inner_width(self) -> int:
        """Width of all heads."""
        return self.num_heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the short convolution: inputs, B and C."""
        return self.inner_width + 2 * self.num_groups * self.state_size

    @property
    def state_elements(self) -> int:
        """Elements of the recurrent state of one layer and sequence."""
        return self.inner_width * self.state_size

    def parameters(self, hidden: int) -> int:
        """Input projection (gate, inputs, B, C, steps), convolution with bias, A, D and step bias, norm, output."""
        inputs = hidden * (self.inner_width + self.conv_channels + self.num_heads)
        small = self.conv_channels * (self.conv_kernel + 1) + 3 * self.num_heads + self.inner_width
        return inputs + small + self.inner_width * hidden


class SparseAttentionCard(Strict):
    """Attention to the tokens that a light indexer ranks highest (DeepSeek-V3.2, arXiv 2512.02556 section 2.1)."""

    index_heads: PositiveInt
    """Heads of the indexer; every GPU holds all of them."""
    index_head_dim: PositiveInt
    """Width of an index head, and of a token's index key."""
    top_k_tokens: PositiveInt
    """Tokens that a query attends to."""
    index_layers: PositiveInt | None = None
    """Layers that rank tokens; the others reuse a ranking, or see all entries of entry_tokens_elsewhere. Null: all."""
    entry_tokens: PositiveInt = 1
    """Tokens that share an entry of the cache, which is what is ranked (DeepSeek-V4: 4)."""
    entry_tokens_elsewhere: PositiveInt | None = None
    """The same in layers that do not rank (DeepSeek-V4: 128); null where they reuse a ranking."""
    window_tokens: NonNegativeInt = 0
    """Latest tokens that every layer attends to besides."""

    def attended(self, ranks: bool, context: FloatArray) -> FloatArray:
        """Entries and tokens that a query behind ``context`` tokens attends to in a layer that ``ranks`` or not."""
        if not ranks and self.entry_tokens_elsewhere is not None:
            return context / self.entry_tokens_elsewhere + np.minimum(context, float(self.window_tokens))
        return np.minimum(context / self.entry_tokens, float(self.top_k_tokens)) + np.minimum(
            context, float(self.window_tokens)
        )

    def entry_columns(self, ranks: bool, values: int) -> int:
        """Columns of the projection that entries of ``values`` are pooled from: values and weights, twice where groups
        overlap, which those that are ranked do, and so for their keys; 0 where every token is an entry.

        Counted in DeepseekCompressor (vllm/models/deepseek_v4/compressor.py).
        """
        if self.entry_tokens_elsewhere is None:
            return 0
        return 4 * (values + self.index_head_dim) if ranks else 2 * values

    @property
    def key_bytes(self) -> float:
        """Bytes of a token's index key in one layer: FP8 with its scale."""
        return self.index_head_dim * BYTES_PER_ELEMENT["fp8"] + INDEX_KEY_BYTES

    def parameters(self, hidden: int, query_rank: int) -> int:
        """One indexer: queries from the query latent, a key and weights per head from the residual, the key's norm."""
        queries = query_rank * self.index_heads * self.index_head_dim
        return queries + hidden * (self.index_head_dim + self.index_heads) + 2 * self.index_head_dim


def state_bytes(recurrent: LinearAttentionCard | MambaCard) -> float:
    """Bytes of one layer's state of one sequence: FP32, as the config.json ask, and the convolution's tail in BF16.

    >>> card = LinearAttentionCard(num_key_heads=1, num_value_heads=2, key_head_dim=8, value_head_dim=8)
    >>> state_bytes(card)  # 2 x 8 x 8 x 4 and 32 channels x 3 tokens x 2
    704.0
    """
    tail = recurrent.conv_channels * (recurrent.conv_kernel - 1) * BYTES_PER_ELEMENT["bf16"]
    return recurrent.state_elements * BYTES_PER_ELEMENT["fp32"] + tail
