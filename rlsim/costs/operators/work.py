"""How much there is to do: FLOPs and bytes, hardware-free.

Conventions: a matrix product of m x k by k x n costs 2 m n k FLOP and moves each operand and the result once.
Sizes are per GPU unless a docstring says otherwise; token counts may be arrays.
"""

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from rlsim.schema.model import ModelCard
from rlsim.tables.operators import ExpertShape, Heads
from rlsim.units import BYTES_PER_ELEMENT, FloatArray

Number = float | FloatArray


class Work(Struct, frozen=True):
    """FLOP and bytes of one operation; arrays of equal shape."""

    flops: FloatArray
    bytes: FloatArray


class Matrix(Struct, frozen=True):
    """One weight matrix as a GPU holds it: k inputs by n outputs."""

    name: str
    n: int
    k: int

    @property
    def elements(self) -> int:
        """Weights in the matrix."""
        return self.n * self.k


def gemm(tokens: ArrayLike, n: Number, k: Number, weight_bytes: Number, activation_bytes: float = 2.0) -> Work:
    """tokens x k by k x n.

    >>> amount = gemm(tokens=10, n=100, k=100, weight_bytes=2)
    >>> float(amount.flops), float(amount.bytes)
    (200000.0, 24000.0)
    """
    m = np.asarray(tokens, dtype=np.float64)
    return Work(2.0 * m * n * k, n * k * weight_bytes + m * (n + k) * activation_bytes)


def heads_of(card: ModelCard, tensor_parallel: int, kv_precision: str = "bf16") -> Heads:
    """Attention heads of one of ``tensor_parallel`` GPUs."""
    kv_heads = max(1, card.num_kv_heads // tensor_parallel)
    return Heads(card.num_heads // tensor_parallel, kv_heads, card.head_dim, kv_precision)


def decode_attention(
    cached_tokens: ArrayLike, heads: Number, kv_heads: Number, head_dim: Number, kv_bytes: Number
) -> Work:
    """One query per sequence over the cached keys and values of all sequences.

    >>> amount = decode_attention(cached_tokens=1000, heads=10, kv_heads=1, head_dim=100, kv_bytes=2)
    >>> float(amount.flops), float(amount.bytes)
    (4000000.0, 400000.0)
    """
    cached = np.asarray(cached_tokens, dtype=np.float64)
    return Work(4.0 * cached * heads * head_dim, 2.0 * cached * kv_heads * head_dim * kv_bytes)


def rows_of_fp32(rows: FloatArray, vocabulary: int) -> Work:
    """One pass over rows of the vocabulary: what carries a sampling time to another device."""
    return Work(np.zeros_like(rows), rows * vocabulary * BYTES_PER_ELEMENT["fp32"])


def over_cache(heads: Heads, batch: ArrayLike, context: ArrayLike) -> Work:
    """One query of each of ``batch`` sequences over its cache."""
    cached = np.asarray(batch, dtype=np.float64) * np.asarray(context, dtype=np.float64)
    return decode_attention(cached, *heads[:3], BYTES_PER_ELEMENT[heads.kv_precision])


def latent_attention(
    batch: ArrayLike, context_tokens: ArrayLike, card: ModelCard, tensor_parallel: int, kv_bytes: float
) -> Work:
    """Absorbed MLA decode: every head reads each token's latent vector as key (rank + rope) and as value (rank).

    >>> from rlsim.loading.models import load_card
    >>> amount = latent_attention(1, 1000, load_card("deepseek-v3"), tensor_parallel=128, kv_bytes=1)
    >>> float(amount.flops), float(amount.bytes)  # one head of 2 x 512 + 64 on each GPU
    (2176000.0, 576000.0)
    """
    if card.mla is None:
        raise ValueError(f"{card.name} has no latent attention")
    cached = np.asarray(batch, dtype=np.float64) * np.asarray(context_tokens, dtype=np.float64)
    rank, rope = card.mla.kv_lora_rank, card.mla.qk_rope_head_dim
    return Work(
        2.0 * cached * (card.num_heads // tensor_parallel) * (2 * rank + rope), cached * (rank + rope) * kv_bytes
    )


def causal_attention_flops(sum_squared_tokens: ArrayLike, heads: Number, head_dim: Number) -> FloatArray:
    """Forward FLOP of causal attention over packed sequences: 4 h d sum(L^2) / 2.

    >>> float(causal_attention_flops(sum_squared_tokens=1000**2, heads=10, head_dim=100))
    2000000000.0
    """
    return np.asarray(2.0 * np.asarray(sum_squared_tokens, dtype=np.float64) * heads * head_dim, dtype=np.float64)


def prefill_attention(batch: FloatArray, prompt_tokens: FloatArray, card: ModelCard, tensor_parallel: int) -> Work:
    """Causal attention of one layer over ``batch`` whole prompts, forward, without projections and without a window.

    >>> from rlsim.loading.models import load_card
    >>> amount = prefill_attention(np.ones(1), np.array([1000.0]), load_card("qwen3-8b"), tensor_parallel=8)
    >>> amount.flops.tolist(), amount.bytes.tolist()  # 4 heads and 1 KV head of 128
    ([1024000000.0], [2560000.0])
    """
    heads, kv_heads, head_dim, _ = heads_of(card, tensor_parallel)
    # Scores have the keys' width, sums over values the values': the mean of both gives the FLOP of a pair.
    head_dim = head_dim if card.mla is None else (head_dim + card.mla.v_head_dim) // 2
    flops = causal_attention_flops(batch * prompt_tokens * prompt_tokens, heads, head_dim)
    moved = batch * prompt_tokens * (2 * heads + 2 * kv_heads) * head_dim * BYTES_PER_ELEMENT["bf16"]
    return Work(flops, moved)


def windowed_prompts(
    batch: FloatArray, prompt_tokens: FloatArray, window_tokens: int | None
) -> tuple[FloatArray, FloatArray]:
    """(Number, length in tokens) of prompts without a window that have the tokens and the pairs of windowed ones.

    Under a window W the p tokens of a prompt make W p - W^2/2 pairs of query and key; as many tokens in prompts of
    W (2 - W / p) make as many. Prompts that fit into the window stay as they are. Windowed kernels are about as
    efficient as on prompts so short: measured windows of 128 and 8192 on H100, GB200 and GB300 (aiconfigurator-core
    0.12) take 1.0 to 1.4 times what they say, but 4 to 10 times the long prompt's time by the ratio of pairs.

    >>> count, length = windowed_prompts(np.ones(4), np.array([50.0, 100.0, 200.0, 10_000.0]), window_tokens=100)
    >>> length.tolist(), (count * length).tolist()
    ([50.0, 100.0, 150.0, 199.0], [50.0, 100.0, 200.0, 10000.0])
    """
    if window_tokens is None:
        return batch, prompt_tokens
    fits = prompt_tokens <= window_tokens
    longer = np.maximum(prompt_tokens, window_tokens)
    length = np.where(fits, prompt_tokens, window_tokens * (2.0 - window_tokens / longer))
    return np.where(fits, batch, batch * prompt_tokens / length), length


def experts_touched(tokens: ArrayLike, experts: int, top_k: int) -> FloatArray:
    """Expected distinct experts activated by ``tokens`` tokens under even routing: E (1 - (1 - k/E)^T).

    >>> experts_touched([0, 1, 2, 1000], experts=10, top_k=5).round(6).tolist()
    [0.0, 5.0, 7.5, 10.0]
    """
    t = np.asarray(tokens, dtype=np.float64)
    # With few tokens and hundreds of experts 1 - (1 - p)^t loses its digits; 1e-12 keeps off log(0) where a token goes
    # to all.
    return np.asarray(experts * -np.expm1(t * np.log1p(-min(top_k / experts, 1 - 1e-12))), dtype=np.float64)


def grouped_experts(tokens: ArrayLike, shape: ExpertShape, matrices: int = 3) -> Work:
    """Routed experts of one layer on one GPU; ``tokens`` enter the layer over the whole expert-parallel group.

    matrices: of an expert, 3 where it is gated.

    >>> shape = ExpertShape("fp8", 100, 100, top_k=5, experts=10, tensor_parallel=1, expert_parallel=5)
    >>> amount = grouped_experts(1, shape)
    >>> float(amount.flops), round(float(amount.bytes))  # one expert of three 100 x 100 matrices
    (60000.0, 31000)
    """
    t = np.asarray(tokens, dtype=np.float64)
    width = shape.width / shape.tensor_parallel
    assigned = t * shape.top_k / shape.expert_parallel
    touched = experts_touched(t, shape.experts, shape.top_k) / shape.expert_parallel
    elements = matrices * shape.hidden * width
    activations = assigned * (2 * shape.hidden + matrices * width) * 2.0
    return Work(2.0 * assigned * elements, touched * elements * BYTES_PER_ELEMENT[shape.precision] + activations)


def attention_matrices(card: ModelCard, tensor_parallel: int) -> list[Matrix]:
    """Projections of one attention block as one of ``tensor_parallel`` GPUs holds them.

    >>> from rlsim.loading.models import load_card
    >>> [(one.name, one.n, one.k) for one in attention_matrices(load_card("qwen3-8b"), tensor_parallel=8)]
    [('qkv', 768, 4096), ('output', 4096, 512)]
    """
    t, h = tensor_parallel, card.hidden_size
    if card.mla is not None:
        mla = card.mla
        heads = card.num_heads // t
        query_rank = mla.q_lora_rank or 0
        down = Matrix("qkv_down", query_rank + mla.kv_lora_rank + mla.qk_rope_head_dim, h)
        query = Matrix("query_up", heads * card.head_dim, query_rank or h)
        if mla.output_groups is not None:
            own = mla.grouped_width // t
            grouped = Matrix("output_down", own, card.num_heads * mla.v_head_dim // mla.output_groups)
            return [down, query, grouped, Matrix("output", h, own)]
        latent = Matrix("kv_up", heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank)
        return [down, query, latent, Matrix("output", h, heads * mla.v_head_dim)]
    kv_heads = max(1, card.num_kv_heads // t)
    heads = card.num_heads // t
    queries = 2 * heads if card.attention_output_gate else heads  # the gate is as wide as the queries
    return [Matrix("qkv", (queries + 2 * kv_heads) * card.head_dim, h), Matrix("output", h, heads * card.head_dim)]


def ffn_matrices(hidden: int, width: int, tensor_parallel: int, gated: bool = True) -> list[Matrix]:
    """Gate-up (without a gate: up) and down projection of a feed-forward block.

    >>> [(one.name, one.n, one.k) for one in ffn_matrices(hidden=100, width=400, tensor_parallel=2)]
    [('gate_up', 400, 100), ('down', 100, 200)]
    """
    inner = max(1, width // tensor_parallel)
    first = Matrix("gate_up", 2 * inner, hidden) if gated else Matrix("up", inner, hidden)
    return [first, Matrix("down", hidden, inner)]


def shared_expert_matrices(card: ModelCard, tensor_parallel: int) -> list[Matrix]:
    """Shared experts of one MoE layer, fused into one feed-forward block; empty without.

    >>> from rlsim.loading.models import load_card
    >>> [(one.name, one.n, one.k) for one in shared_expert_matrices(load_card("deepseek-v3"), tensor_parallel=8)]
    [('gate_up', 512, 7168), ('down', 7168, 256)]
    """
    if card.moe is None or not card.moe.num_shared_experts:
        return []
    width = card.moe.num_shared_experts * card.moe.shared_expert_intermediate_size
    return ffn_matrices(card.hidden_size, width, tensor_parallel, card.moe.gated)


def latent_expert_matrices(card: ModelCard) -> list[Matrix]:
    """Projections into and out of the space in which the routed experts of one MoE layer work; empty without one."""
    if card.moe is None or card.moe.latent_size is None:
        return []
    return [Matrix("to_latent", card.moe.latent_size, card.hidden_size),
            Matrix("from_latent", card.hidden_size, card.moe.latent_size)]  # fmt: skip


def elementwise_bytes(tokens: ArrayLike, hidden: float, width: float, streams: int = 1) -> FloatArray:
    """Bytes of norms, rotary embedding, activation and residuals of one layer in BF16.

    Two fused add-norms (read two, write two rows of ``hidden``) and the gated activation (read 2, write 1 of width).
    Of several residual ``streams`` each of two blocks mixes all into its input, and itself and them into all: 3 rows of
    each and two more (mhc_pre and mhc_post, vllm/model_executor/layers/mhc.py).

    >>> float(elementwise_bytes(tokens=1, hidden=100, width=400))  # (800 + 1200) x 2 bytes
    4000.0
    """
    t = np.asarray(tokens, dtype=np.float64)
    mixed = 2.0 * (3 * streams + 2) * hidden if streams > 1 else 0.0
    return np.asarray(t * (8.0 * hidden + 3.0 * width + mixed) * BYTES_PER_ELEMENT["bf16"], dtype=np.float64)


UNPACKED = ExpertShape("int4", 7168, 2048, 8, 384, tensor_parallel=1, expert_parallel=1)
"""Gated experts of Kimi-K2 (config.json), whose INT4 products aiconfigurator-core 0.12 measured: above some hundred
tokens unpacking bounds them, at a fifth of the peak of BF16."""


def nearest_layouts(shape: ExpertShape) -> list[ExpertShape]:
    """Experts to borrow an efficiency from, by precision and parallel sizes, nearest first.

    Those of the same precision come before all others, of INT4 those of Kimi-K2, which alone were measured.
    """
    tp, ep = shape.tensor_parallel, shape.expert_parallel
    ladder = [(t, e) for t in _halvings(tp) for e in _halvings(ep) if e <= shape.experts]
    ladder.sort(key=lambda te: abs(np.log2(te[0] / tp)) + abs(np.log2(te[1] / ep)))
    precisions = dict.fromkeys((shape.precision, "fp8", "fp8_block", "bf16", "nvfp4"))
    kinds = [shape._replace(precision=one) for one in precisions]
    if shape.precision == UNPACKED.precision:
        kinds.insert(0, UNPACKED)
    return [kind._replace(tensor_parallel=t, expert_parallel=e) for kind in kinds for t, e in ladder]


def _halvings(value: int) -> list[int]:
    """The value, then the power of two from there and those below it: tables hold powers of two."""
    above = 1 << max(0, value - 1).bit_length()
    return list(dict.fromkeys([value, *(above >> step for step in range(above.bit_length()))]))


NEWTON_SCHULZ_STEPS = 5
"""Orthogonalisation steps of Muon (published default)."""


def newton_schulz_flops(matrix: Matrix) -> float:
    """FLOP of orthogonalising one m x n matrix, m <= n: X X^T (2 m m n), its square (2 m m m), B X (2 m m n) per step.

    >>> newton_schulz_flops(Matrix("square", 10, 10))
    30000.0
    """
    small, large = sorted((matrix.n, matrix.k))
    return NEWTON_SCHULZ_STEPS * (4.0 * small * small * large + 2.0 * small**3)
