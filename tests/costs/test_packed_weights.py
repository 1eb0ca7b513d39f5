"""Weights in INT4: what is stored and read, and where unpacking them saves nothing."""

import numpy as np
import pytest
from costs.builders import operators

from rlsim.costs.engine_memory import weight_bytes
from rlsim.costs.operators.operators import Operators
from rlsim.costs.operators.work import Matrix
from rlsim.loading.models import load_card
from rlsim.schema.engine import Engine
from rlsim.schema.model import parameter_counts
from rlsim.tables.operators import ExpertShape
from rlsim.tables.profile import load_profile
from rlsim.units import BYTES_PER_ELEMENT


@pytest.fixture(scope="module")
def h100() -> Operators:
    return operators(load_profile("h100_sxm"))


def test_experts_alone_are_packed() -> None:
    card = load_card("qwen3-30b-a3b")
    assert card.moe is not None
    routed = card.num_moe_layers * card.moe.num_experts * parameter_counts(card).expert
    saved = routed * (BYTES_PER_ELEMENT["bf16"] - BYTES_PER_ELEMENT["int4"])
    assert weight_bytes(card, "int4") == pytest.approx(weight_bytes(card, "bf16") - saved)
    assert Engine(weight_precision="int4").dense_precision(card) == "bf16"
    assert Engine(weight_precision="int4").dense_precision(load_card("qwen3-8b")) == "int4"


def test_dense_products_gain_while_weights_bound_them_and_never_lose(h100: Operators) -> None:
    matrix, tokens = Matrix("up", 24576, 4096), np.array([1.0, 16.0, 64.0, 8192.0])
    packed, wide = h100.gemm(tokens, matrix, "int4").seconds, h100.gemm(tokens, matrix, "bf16").seconds
    least_s = matrix.elements * BYTES_PER_ELEMENT["int4"] / h100.profile.memory_bandwidth_bytes_per_s.value
    assert (packed <= wide).all() and (packed > least_s).all()
    assert packed[0] < 0.6 * wide[0]
    assert packed[-1] > 0.95 * wide[-1]


def test_measured_experts_lose_to_fp8_once_many_tokens_share_them(h100: Operators) -> None:
    tokens = np.array([8.0, 16384.0])
    packed, eight = (
        h100.experts(tokens, ExpertShape(precision, 7168, 2048, 8, 384, 1, 8), 3, "balanced", own=True)
        for precision in ("int4", "fp8_block")
    )
    assert packed.seconds[0] < eight.seconds[0]
    assert packed.seconds[1] > eight.seconds[1]
    assert packed.measured.all()


def test_other_experts_borrow_from_the_measured_ones_at_equal_load(h100: Operators) -> None:
    """Half the experts with half the tokens read half the weights at the same efficiency."""
    many = ExpertShape("int4", 7168, 2048, 8, 384, 1, 1)
    few = many._replace(experts=192)
    tokens = np.array([1024.0])
    own = h100.experts(tokens, many, 3, "balanced")
    borrowed = h100.experts(tokens / 2, few, 3, "balanced")
    assert borrowed.seconds[0] == pytest.approx(own.seconds[0] / 2, rel=0.1)
    assert not borrowed.measured.any()
