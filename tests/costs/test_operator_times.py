"""Operators and links: closed forms and limits of their work, measured where measured, rooflines beyond."""

import builders
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsim.costs.operators import work
from rlsim.costs.operators.collectives import LINK_EFFICIENCY
from rlsim.costs.operators.latent import LatentBlock
from rlsim.costs.operators.time import OperatorTime, modelled, zero
from rlsim.costs.operators.work import Matrix
from rlsim.loading.models import load_card
from rlsim.schema.model import parameter_counts
from rlsim.tables.operators import ExpertShape
from rlsim.tables.profile import load_profile, table_device

CARDS = ("qwen3-8b", "qwen3-30b-a3b", "qwen3-235b-a22b", "llama-3.1-70b", "deepseek-v3")


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


def test_latent_attention_of_deepseek_v3_reads_576_values_per_token() -> None:
    """DeepSeek-V2 (arXiv 2405.04434): the cache holds a 512-wide latent and a 64-wide rotary key."""
    card = load_card("deepseek-v3")
    amount = work.latent_attention(1, 1, card, 1, 2.0)
    assert amount.bytes == 576 * 2
    assert amount.flops == 2 * 128 * (576 + 512)
    with pytest.raises(ValueError, match="latent"):
        work.latent_attention(1, 1, load_card("qwen3-8b"), 1, 2.0)


# --- operator times ---------------------------------------------------------------------------------------------------


H100 = load_profile("h100_sxm")
QKV = Matrix("qkv", 6144, 4096)


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


# --- collectives ------------------------------------------------------------------------------------------------------


GB200 = load_profile("gb200_nvl72")
OPS = ("all_gather", "reduce_scatter", "alltoall")
GIANT = 2.0**34


def test_nothing_to_send_and_nobody_to_send_to_take_no_time() -> None:
    fabric = builders.fabric(H100)
    for op in OPS:
        assert float(fabric.collective(op, 8, 0.0).seconds) == 0
        assert float(fabric.collective(op, 64, 0.0).seconds) == 0
        assert float(fabric.collective(op, 1, 1e9).seconds) == 0
    assert fabric.all_reduce(16, np.array([0.0, 1e6])).seconds.tolist()[0] == 0


def test_measured_small_all_reduce_on_h100_takes_microseconds() -> None:
    """vLLM's custom all-reduce in a graph: 4 to 12 us for messages up to 64 KiB on eight H100."""
    seconds = builders.fabric(H100).all_reduce(8, np.array([8192.0, 65536.0])).seconds
    assert ((seconds > 3e-6) & (seconds < 15e-6)).all()


def test_a_group_spread_over_nodes_leaves_nvlink() -> None:
    """Eight data-parallel ranks eight GPUs apart sit on eight nodes: all traffic crosses the network."""
    fabric = builders.fabric(H100)
    assert float(fabric.collective("reduce_scatter", 8, GIANT, stride=8).seconds) == pytest.approx(
        7 / 8 * GIANT / (50e9 * LINK_EFFICIENCY), rel=1e-3
    )
    near = builders.fabric(GB200).collective("reduce_scatter", 8, GIANT, stride=8)
    assert float(near.seconds) < 7 / 8 * GIANT / 50e9


def test_eager_all_reduce_is_device_time_without_the_launch() -> None:
    """The tables' eager rows hold 39 us of host time on GB200; the iteration counts launches itself."""
    fabric, sizes = builders.fabric(GB200), np.array([1e4, 1e6, 1e8])
    graph, eager = fabric.all_reduce(4, sizes), fabric.all_reduce(4, sizes, graph=False)
    assert (eager.seconds >= graph.seconds).all()
    assert eager.seconds[0] < graph.seconds[0] + 5e-6


@settings(max_examples=60)
@given(
    st.sampled_from(["nvlink_bandwidth_bytes_per_s", "network_bandwidth_bytes_per_s"]),
    st.floats(0.1, 1.0),
    st.sampled_from([2, 3, 4, 8, 16, 72, 128]),
    st.sampled_from([1, 2, 8]),
    st.floats(0, 1e10),
    st.sampled_from(["h100_sxm", "gb200_nvl72", "a100_sxm"]),
)
def test_a_slower_link_never_speeds_a_collective_up(
    key: str, factor: float, gpus: int, stride: int, size: float, name: str
) -> None:
    profile = load_profile(name)
    fast, slow = builders.fabric(profile), builders.fabric(builders.scaled(profile, key, factor))
    for op in OPS:
        before, after = (f.collective(op, gpus, size, stride).seconds for f in (fast, slow))
        assert float(after) >= float(before) * (1 - 1e-12)
    for graph in (True, False):
        before, after = (f.all_reduce(gpus, size, graph).seconds for f in (fast, slow))
        assert float(after) >= float(before) * (1 - 1e-12)
