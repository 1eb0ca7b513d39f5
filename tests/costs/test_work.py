"""FLOP and bytes: closed forms and limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsim.costs.operators import work
from rlsim.loading.models import load_card
from rlsim.schema.model import parameter_counts
from rlsim.tables.operators import ExpertShape

CARDS = ("qwen3-8b", "qwen3-30b-a3b", "qwen3-235b-a22b", "llama-3.1-70b", "deepseek-v3")


def test_gemm_counts_two_flop_per_multiply_and_moves_each_operand_once() -> None:
    amount = work.gemm(3, 5, 7, weight_bytes=1.0)
    assert amount.flops == 2 * 3 * 5 * 7
    assert amount.bytes == 5 * 7 * 1 + 3 * (5 + 7) * 2


@pytest.mark.parametrize("experts, top_k", [(128, 8), (256, 8), (8, 2), (4, 4)])
def test_one_token_touches_top_k_experts_and_many_tokens_touch_all(experts: int, top_k: int) -> None:
    assert work.experts_touched(0, experts, top_k) == 0
    assert work.experts_touched(1, experts, top_k) == pytest.approx(top_k)
    assert work.experts_touched(1e6, experts, top_k) == pytest.approx(experts)


@given(st.integers(1, 4096), st.integers(2, 512), st.integers(1, 16))
def test_experts_touched_never_exceed_experts_or_draws(tokens: int, experts: int, top_k: int) -> None:
    top_k = min(top_k, experts)
    touched = float(work.experts_touched(tokens, experts, top_k))
    assert top_k * (1 - 1e-9) <= touched <= min(experts, tokens * top_k) * (1 + 1e-9)
    assert touched <= float(work.experts_touched(tokens + 1, experts, top_k)) * (1 + 1e-12)


def test_experts_touched_agrees_with_a_random_routing() -> None:
    """Mean over 2,000 draws of 16 tokens to 8 of 128 experts, inside five standard errors."""
    draws = np.random.default_rng(0).random((2000, 16, 128)).argpartition(8, axis=-1)[..., :8].reshape(2000, -1)
    counts = np.array([len(np.unique(row)) for row in draws])
    error = counts.std() / np.sqrt(len(counts))
    assert abs(counts.mean() - float(work.experts_touched(16, 128, 8))) < 5 * error


def test_grouped_experts_share_weights_and_tokens_over_both_kinds_of_parallelism() -> None:
    shape = ExpertShape("bf16", 4096, 1536, 8, 128, 1, 1)
    whole = work.grouped_experts(4096, shape)
    for tp, ep in ((8, 1), (1, 8), (2, 4)):
        part = work.grouped_experts(4096, shape._replace(tensor_parallel=tp, expert_parallel=ep))
        assert part.flops == pytest.approx(whole.flops / 8)
        assert part.bytes >= whole.bytes / 8 * (1 - 1e-12)


@pytest.mark.parametrize("name", CARDS)
def test_matrices_of_one_layer_hold_its_parameters(name: str) -> None:
    """Sharded over TP GPUs each matrix holds its share; only MLA's small down-projection stays whole."""
    card = load_card(name)
    counts = parameter_counts(card)
    attention = sum(matrix.elements for matrix in work.attention_matrices(card, 1))
    assert attention == pytest.approx(counts.attention_per_layer, rel=1e-3)
    shared = sum(matrix.elements for matrix in work.shared_expert_matrices(card, 1))
    assert shared == counts.shared_experts_per_layer
    if card.mla is None:
        assert sum(matrix.elements for matrix in work.attention_matrices(card, 4)) * 4 == attention
    ffn = work.ffn_matrices(card.hidden_size, card.intermediate_size, 1)
    assert sum(matrix.elements for matrix in ffn) == 3 * card.hidden_size * card.intermediate_size


def test_decode_attention_reads_the_cache_once() -> None:
    amount = work.decode_attention(4 * 1000, heads=32, kv_heads=8, head_dim=128, kv_bytes=2.0)
    assert amount.bytes == 4 * 1000 * 2 * 8 * 128 * 2
    assert amount.flops == 4 * 4 * 1000 * 32 * 128


def test_latent_attention_of_deepseek_v3_reads_576_values_per_token() -> None:
    """DeepSeek-V2 (arXiv 2405.04434): the cache holds a 512-wide latent and a 64-wide rotary key."""
    card = load_card("deepseek-v3")
    amount = work.latent_attention(1, 1, card, 1, 2.0)
    assert amount.bytes == 576 * 2
    assert amount.flops == 2 * 128 * (576 + 512)
    with pytest.raises(ValueError, match="latent"):
        work.latent_attention(1, 1, load_card("qwen3-8b"), 1, 2.0)


def test_causal_attention_is_half_of_the_square() -> None:
    assert work.causal_attention_flops(1000.0**2, 32, 128) == pytest.approx(4 * 1000**2 * 32 * 128 / 2)
