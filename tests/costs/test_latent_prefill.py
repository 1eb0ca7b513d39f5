"""Prefill of latent attention: the whole block as measured, in place of its parts."""

import numpy as np
import pytest

from rlsim.costs.operators import work
from rlsim.costs.operators.latent import LatentBlock
from rlsim.costs.operators.operators import Operators
from rlsim.loading.models import load_card
from rlsim.tables.operators import OperatorTables
from rlsim.tables.profile import load_profile

CARD = load_card("deepseek-v3")
PROFILE = load_profile("h200_sxm")
TABLES = OperatorTables.load("h200_sxm", "vllm")


def prefill(tokens: list[float], prompt: float) -> list[float]:
    found = LatentBlock(Operators(PROFILE, TABLES), CARD, 8, "bf16", "bf16").prefill(np.array(tokens), prompt)
    return list(found.seconds)


@pytest.mark.parametrize("prompts", [1, 4])
def test_whole_prompts_take_what_the_measured_block_took(prompts: int) -> None:
    measured = TABLES.mla_prefill_s(16, "bf16", "bf16", prompts, 2048)
    assert measured is not None and measured.measured
    assert prefill([prompts * 2048.0], 2048.0) == pytest.approx([float(measured.seconds)])


def test_parts_of_a_prompt_compute_their_attention_to_what_came_before() -> None:
    """A quarter at a time: the block on 2,048 tokens, and on average 3,072 earlier tokens for each of them."""
    alone, part = prefill([2048.0], 2048.0)[0], prefill([2048.0], 8192.0)[0]
    operators = Operators(PROFILE, TABLES)
    flops = 4 * 2048 * 3072 * 16 * (CARD.head_dim + 128) / 2
    assert part - alone == pytest.approx(float(operators.attention_compute_s(np.array(flops))))
    assert prefill([8192.0], 8192.0)[0] == pytest.approx(4 * part, rel=0.25)


def test_without_a_measured_block_its_parts_are_priced() -> None:
    assert LatentBlock(Operators(PROFILE, None), CARD, 8, "bf16", "bf16").prefill(np.array([64.0]), 64.0) is None


@pytest.mark.parametrize("name", ["moonlight-16b-a3b", "deepseek-v2"])
def test_a_block_of_other_projections_is_no_measured_module(name: str) -> None:
    """Modules were measured with DeepSeek-V3's projections; of the others the kernel alone stands for itself."""
    card = load_card(name)
    block = LatentBlock(Operators(PROFILE, TABLES), card, card.num_heads // 16, "bf16", "bf16")
    like_v3 = LatentBlock(Operators(PROFILE, TABLES), CARD, 8, "bf16", "bf16")
    assert block.heads == like_v3.heads == 16
    assert (TABLES, True) in like_v3.variants() and (TABLES, True) not in block.variants()
    assert block.prefill(np.array([2048.0]), 2048.0) is None
    tokens = np.array([64.0])
    products = block.operators.gemms(tokens, work.attention_matrices(card, card.num_heads // 16), "bf16")
    assert block.projections(tokens).seconds == pytest.approx(products.seconds)
