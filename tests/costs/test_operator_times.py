"""Operators and links: closed forms and limits of their work, measured where measured, rooflines beyond."""

import builders
import numpy as np
import pytest

from rlsim.costs.operators import work
from rlsim.costs.operators.collectives import LINK_EFFICIENCY
from rlsim.costs.operators.time import OperatorTime, modelled, zero
from rlsim.costs.operators.work import Matrix
from rlsim.loading.models import load_card
from rlsim.schema.model import parameter_counts
from rlsim.tables.operators import ExpertShape
from rlsim.tables.profile import load_profile, table_device

CARDS = ("qwen3-8b", "qwen3-30b-a3b", "qwen3-235b-a22b", "llama-3.1-70b", "deepseek-v3")


def test_experts_touched_agree_with_a_random_routing_and_share_over_both_kinds_of_parallelism() -> None:
    """Mean over 2,000 draws of 16 tokens to 8 of 128 experts, inside five standard errors."""
    draws = np.random.default_rng(0).random((2000, 16, 128)).argpartition(8, axis=-1)[..., :8].reshape(2000, -1)
    counts = np.array([len(np.unique(row)) for row in draws])
    error = counts.std() / np.sqrt(len(counts))
    assert abs(counts.mean() - float(work.experts_touched(16, 128, 8))) < 5 * error
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


H100 = load_profile("h100_sxm")


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


def test_sums_keep_the_measured_share_and_unknown_layouts_borrow_the_nearest_efficiency() -> None:
    half = OperatorTime(np.array([1.0]), np.array([1.0]), "memory") + modelled([3.0], "compute")
    assert (half.seconds[0], half.measured[0], half.bound) == (4.0, 0.25, "compute")
    assert (zero([1.0, 2.0]) + half).seconds.tolist() == [4.0, 4.0]
    ops, shape = builders.operators(load_profile("gb200_nvl72")), ExpertShape("fp8", 4096, 1536, 8, 128, 1, 8)
    measured = ops.experts(np.array([512.0]), shape, 3, "power_law_1.2")
    assert measured.measured[0] == 1
    borrowed = ops.experts(np.array([512.0]), ExpertShape("bf16", 4096, 1536, 8, 128, 4, 4), 3, "balanced")
    assert borrowed.measured[0] == 0
    assert borrowed.seconds[0] > 0


GB200 = load_profile("gb200_nvl72")
OPS = ("all_gather", "reduce_scatter", "alltoall")
GIANT = 2.0**34


def test_small_all_reduces_take_microseconds_eager_ones_without_the_launch_and_nothing_to_send_none() -> None:
    fabric = builders.fabric(H100)
    for op in OPS:
        assert float(fabric.collective(op, 8, 0.0).seconds) == 0
        assert float(fabric.collective(op, 64, 0.0).seconds) == 0
        assert float(fabric.collective(op, 1, 1e9).seconds) == 0
    assert fabric.all_reduce(16, np.array([0.0, 1e6])).seconds.tolist()[0] == 0
    # vLLM's custom all-reduce in a graph: 4 to 12 us for messages up to 64 KiB on eight H100.
    seconds = builders.fabric(H100).all_reduce(8, np.array([8192.0, 65536.0])).seconds
    assert ((seconds > 3e-6) & (seconds < 15e-6)).all()
    # The tables' eager rows hold 39 us of host time on GB200; the iteration counts launches itself.
    fabric, sizes = builders.fabric(GB200), np.array([1e4, 1e6, 1e8])
    graph, eager = fabric.all_reduce(4, sizes), fabric.all_reduce(4, sizes, graph=False)
    assert (eager.seconds >= graph.seconds).all()
    assert eager.seconds[0] < graph.seconds[0] + 5e-6


def test_a_group_over_nodes_leaves_nvlink_and_profiles_refer_to_the_shipped_one_with_their_tables() -> None:
    """Eight data-parallel ranks eight GPUs apart sit on eight nodes: all traffic crosses the network."""
    fabric = builders.fabric(H100)
    assert float(fabric.collective("reduce_scatter", 8, GIANT, stride=8).seconds) == pytest.approx(
        7 / 8 * GIANT / (50e9 * LINK_EFFICIENCY), rel=1e-3
    )
    near = builders.fabric(GB200).collective("reduce_scatter", 8, GIANT, stride=8)
    assert float(near.seconds) < 7 / 8 * GIANT / 50e9
    mine = builders.scaled(H100, "bf16_flops", 0.5).model_copy(update={"name": "mine"})
    assert table_device(mine) == H100
    unknown = mine.model_copy(update={"operator_tables": "nobody_ships_this"})
    assert table_device(unknown) is unknown
    bare = builders.without_tables("h100_sxm")
    assert table_device(bare) is bare
