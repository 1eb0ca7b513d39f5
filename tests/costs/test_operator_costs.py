"""Operator times: measured where measured, roofline limits beyond, and what a changed profile does to both."""

import builders
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsim.costs.operators import work
from rlsim.costs.operators.latent import LatentBlock
from rlsim.costs.operators.operators import Operators
from rlsim.costs.operators.time import OperatorTime, modelled, zero
from rlsim.costs.operators.work import Matrix, heads_of
from rlsim.loading.models import load_card
from rlsim.tables.operators import ExpertShape
from rlsim.tables.profile import load_profile, table_device
from rlsim.units import TERA

H100 = load_profile("h100_sxm")
QKV = Matrix("qkv", 6144, 4096)


def test_measured_products_stay_below_the_datasheet() -> None:
    """No product beats 989 TFLOP/s or 3.35 TB/s by more than the L2 cache can explain."""
    ops = builders.operators(H100)
    for rows in (1, 64, 1024, 16384):
        amount = work.gemm(rows, QKV.n, QKV.k, 2.0)
        bound = max(float(amount.flops) / H100.bf16_flops.value, float(amount.bytes) / (2 * 3.35 * TERA))
        assert float(ops.gemm(rows, QKV, "bf16").seconds) > bound


def test_large_measured_product_on_h100_matches_published_rates() -> None:
    """cuBLAS BF16 on H100 SXM: 600 to 800 TFLOP/s (PyTorch and CUTLASS reports); the tables agree."""
    rate = 2 * 8192.0**3 / float(builders.operators(H100).gemm(8192, Matrix("square", 8192, 8192), "bf16").seconds)
    assert 600 * TERA < rate < 800 * TERA


def test_h100_decode_attention_reads_the_cache_at_most_of_the_bandwidth() -> None:
    """FlashInfer and FlashAttention-3 decode at 70-95 % of HBM bandwidth on long caches."""
    card = load_card("llama-3.1-8b")
    timed = builders.operators(H100).decode_attention(heads_of(card, 1), 64, 8192)
    rate = 64 * 8192 * 2 * 8 * 128 * 2 / float(timed.seconds)
    assert 0.6 < rate / 3.35e12 < 1.0
    assert timed.bound == "memory"


def test_an_unmodified_profile_gives_the_table_exactly() -> None:
    ops, tables = builders.operators(H100), builders.tables_of(H100)
    look = tables.gemm_s("bf16", 64.0, QKV.n, QKV.k)
    timed = ops.gemm(64, QKV, "bf16")
    assert float(timed.seconds) == float(look.seconds)
    assert float(timed.measured) == float(look.measured) == 1.0


def test_half_the_bandwidth_doubles_what_the_roofline_explains_of_a_time_and_marks_it() -> None:
    slow = builders.operators(builders.scaled(H100, "memory_bandwidth_bytes_per_s", 0.5))
    fast, big = builders.operators(H100), Matrix("gate_up", 24_576, 4096)
    moved_s = 2 * (big.n * big.k + big.n + big.k) / H100.memory_bandwidth_bytes_per_s.value
    before_s = float(fast.gemm(1, big, "bf16").seconds)
    assert before_s > moved_s
    assert float(slow.gemm(1, big, "bf16").seconds) == pytest.approx(before_s + moved_s)
    assert float(slow.gemm(1, big, "bf16").measured) == 0
    compute_bound = slow.gemm(8192, big, "bf16")
    assert float(compute_bound.seconds) == float(fast.gemm(8192, big, "bf16").seconds)
    assert float(compute_bound.measured) == 1


def test_the_reference_of_a_profile_is_the_shipped_one_with_its_tables() -> None:
    mine = builders.scaled(H100, "bf16_flops", 0.5).model_copy(update={"name": "mine"})
    assert table_device(mine) == H100
    unknown = mine.model_copy(update={"operator_tables": "nobody_ships_this"})
    assert table_device(unknown) is unknown
    bare = builders.without_tables("h100_sxm")
    assert table_device(bare) is bare


@settings(max_examples=60)
@given(
    st.sampled_from(["memory_bandwidth_bytes_per_s", "bf16_flops", "fp8_flops"]),
    st.floats(0.1, 1.0),
    st.sampled_from(["bf16", "fp8"]),
    st.floats(1, 3e4),
    st.booleans(),
)
def test_less_of_any_rate_never_speeds_an_operator_up(
    key: str, factor: float, precision: str, tokens: float, measured: bool
) -> None:
    profile = H100 if measured else builders.without_tables("h100_sxm")
    before, after = builders.operators(profile), builders.operators(builders.scaled(profile, key, factor))
    card, rows, latent = load_card("qwen3-8b"), np.array([tokens]), load_card("deepseek-v3")

    def times(ops: Operators) -> list[OperatorTime]:
        return [
            ops.gemm(rows, QKV, precision),
            ops.decode_attention(heads_of(card, 1), rows, 2000.0),
            ops.prefill_attention(card, 1, 1.0, rows),
            ops.experts(rows, ExpertShape(precision, 2048, 768, 8, 128, 1, 8), 3, "balanced"),
            ops.experts(rows, ExpertShape(precision, 2048, 768, 8, 128, 2, 1), 3, "power_law_1.2"),
            LatentBlock(ops, latent, 8, precision, "bf16").projections(rows),
            LatentBlock(ops, latent, 8, precision, "bf16").attention(rows, np.array([3000.0])),
            ops.stream(rows * 1e6),
        ]

    for faster, slower in zip(times(before), times(after), strict=True):
        assert float(np.sum(slower.seconds)) >= float(np.sum(faster.seconds)) * (1 - 1e-12)


def test_latent_block_is_its_projections_plus_its_attention() -> None:
    """The measured MLA module at any context splits into both parts without remainder."""
    ops, tables, card = builders.operators(H100), builders.tables_of(H100), load_card("deepseek-v3")
    batch, context = np.array([64.0]), np.array([8192.0])
    whole = tables.mla_decode_s(16, "bf16", "bf16", batch, context)
    block = LatentBlock(ops, card, 8, "bf16", "bf16")
    parts, attention = block.projections(batch), block.attention(batch, context)
    assert float((parts.seconds + attention.seconds)[0]) == pytest.approx(float(whole.seconds[0]))
    assert parts.measured[0] == 1


def test_expert_layouts_that_no_table_has_borrow_the_nearest_efficiency() -> None:
    ops, shape = builders.operators(load_profile("gb200_nvl72")), ExpertShape("fp8", 4096, 1536, 8, 128, 1, 8)
    measured = ops.experts(np.array([512.0]), shape, 3, "power_law_1.2")
    assert measured.measured[0] == 1
    borrowed = ops.experts(np.array([512.0]), ExpertShape("bf16", 4096, 1536, 8, 128, 4, 4), 3, "balanced")
    assert borrowed.measured[0] == 0
    assert borrowed.seconds[0] > 0


def test_sum_of_times_keeps_the_share_that_was_measured() -> None:
    half = OperatorTime(np.array([1.0]), np.array([1.0]), "memory") + modelled([3.0], "compute")
    assert (half.seconds[0], half.measured[0], half.bound) == (4.0, 0.25, "compute")
    assert (zero([1.0, 2.0]) + half).seconds.tolist() == [4.0, 4.0]
