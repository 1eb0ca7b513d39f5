"""Sliding windows: closed forms, the mean of two kinds of layers, and windows that hold everything."""

from typing import Any

import builders
import numpy as np
import pytest

from rlsim.costs.memory import engine_memory, kv_bytes_per_gpu_token
from rlsim.costs.operators import work
from rlsim.costs.operators.device import device_of
from rlsim.costs.operators.latent import LatentBlock
from rlsim.costs.operators.operators import Operators
from rlsim.costs.operators.time import OperatorTime, mean_layer, modelled
from rlsim.costs.trainer.layer import TrainingLayers
from rlsim.costs.trainer.layout import MicroBatches
from rlsim.loading.models import load_card
from rlsim.schema.model import ModelCard
from rlsim.schema.scenario import Scenario
from rlsim.tables.operators import OperatorTables
from rlsim.tables.profile import load_profile

GPT = load_card("gpt-oss-20b")


def _card(window: int | None, layers: int = 12, base: ModelCard = GPT) -> ModelCard:
    values = {"sliding_window_tokens": window, "sliding_window_layers": layers if window else 0}
    return ModelCard.model_validate({**base.model_dump(), **values})


def _scenario(card: ModelCard, hardware: str = "h100_sxm", **sections: Any) -> Scenario:
    return builders.scenario(hardware=hardware, **sections).model_copy(update={"model": card})


def _exactly(one: OperatorTime, other: OperatorTime) -> bool:
    same = np.array_equal(one.seconds, other.seconds) and np.array_equal(one.measured, other.measured)
    return same and one.bound == other.bound


@pytest.mark.parametrize(("prompt", "window"), [(300, 128), (4096, 128), (130, 128), (9000, 8192)])
def test_flop_of_a_windowed_prompt_are_those_of_its_pairs(prompt: int, window: int) -> None:
    """Token i sees min(i, W) tokens; half of the one on the diagonal counts, as in p^2 / 2 for whole prompts."""
    pairs = np.minimum(np.arange(1, prompt + 1), window).sum() - window / 2
    count, length = work.windowed_prompts(np.ones(1), np.array([float(prompt)]), window)
    flops = work.causal_attention_flops(count * length**2, heads=16, head_dim=64)
    assert flops == pytest.approx(4 * 16 * 64 * pairs, rel=2 / window)
    assert flops == pytest.approx(4 * 16 * 64 * (prompt * window - window**2 / 2))
    assert count * length == pytest.approx(prompt)


def test_windowed_layers_count_by_kind_in_prefill_training_decode_and_cache() -> None:
    """Compute-bound prompts: half of the layers W p - W^2 / 2 pairs, the other half p^2 / 2."""
    operators = builders.operators(builders.without_tables("h100_sxm"))
    p, w = 65_536.0, 16_384
    found = operators.prefill_attention(_card(w), 1, np.array([1.0]), np.array([p]))
    pairs = 0.5 * (p * w - w**2 / 2) + 0.5 * p**2 / 2
    expected = operators.attention_compute_s(np.array([4 * 64 * 64 * pairs]))
    assert found.seconds == pytest.approx(expected)
    # The trainer's layer is the mean of both kinds; the backward pass follows it.
    batch = MicroBatches(count=8, tokens=8192.0, sum_squared=8192.0**2, steps=1)
    seconds = {}
    for window, count in ((None, 0), (128, 12), (128, 24)):
        given = _scenario(_card(window, count))
        layers = TrainingLayers(given.model, given.trainer, device_of(given.hardware, "vllm"), builders.PLAIN_TRAINING)
        device = layers.layer(batch, moe_layer=True).device
        seconds[count] = next(part.seconds for part in device if part.name == "attention")
    assert seconds[12] == pytest.approx((seconds[0] + seconds[24]) / 2)
    assert seconds[24] < 0.3 * seconds[0]
    layers = builders.layers(_scenario(GPT))
    plain = builders.layers(_scenario(_card(None)))
    n, context = np.array([8.0, 64.0]), np.array([4000.0, 4000.0])
    windowed = layers.cached_attention(n, context, 1).seconds
    long, short = (plain.cached_attention(n, c, 1).seconds for c in (context, np.full(2, 128.0)))
    assert windowed == pytest.approx((long + short) / 2)
    assert np.all(short < long)
    # 24 layers x 2 x 8 KV heads x 64 x 2 bytes; of a sequence of half of 4,096 tokens 12 of them keep 128.
    per_layer = 2 * 8 * 64 * 2
    plain, windowed = (_scenario(card, engine={"kv_precision": "bf16"}) for card in (_card(None), GPT))
    assert kv_bytes_per_gpu_token(plain) == 24 * per_layer
    assert kv_bytes_per_gpu_token(windowed) == pytest.approx((12 + 12 * 128 / 2048) * per_layer)
    others = (_scenario(GPT, engine={"kv_precision": "bf16", "name": name}) for name in ("sglang", "trtllm"))
    assert [kv_bytes_per_gpu_token(one) / per_layer for one in others] == pytest.approx([12 + 12 * 0.8, 24])
    room = engine_memory(plain).kv_capacity_tokens * 24
    assert engine_memory(windowed).kv_capacity_tokens == pytest.approx(room / 12.75)


@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize("hardware", ["h100_sxm", "gb200_nvl72"])
def test_a_window_as_long_as_the_context_changes_nothing(hardware: str, queries: int) -> None:
    """To the last bit, in every part of an engine's iteration and in the trainer's attention."""
    n, context = np.arange(1.0, 200.0, 7.0)[:, None], np.array([1.0, 77.0, 1000.0, 4096.0])[None, :]
    plain, windowed = _card(None), _card(4096)
    one, other = (builders.layers(_scenario(card, hardware)) for card in (plain, windowed))
    assert _exactly(one.cached_attention(n, context, queries), other.cached_attention(n, context, queries))
    operators = one.operators
    batch, prompts = np.array([0.3, 1.0, 7.7]), np.array([33.0, 1024.0, 4096.0])
    times = [operators.prefill_attention(card, 1, batch, prompts) for card in (plain, windowed)]
    assert _exactly(*times)


def test_windowed_prompts_stay_close_to_a_measured_shape_and_were_not_measured() -> None:
    operators = builders.operators(_scenario(GPT).hardware)
    long = np.array([8192.0])
    alone, all_windowed = (operators.prefill_attention(card, 1, np.ones(1), long)
                           for card in (_card(None), _card(128, 24)))  # fmt: skip
    assert alone.measured > 0
    assert all_windowed.measured == 0
    half = operators.prefill_attention(GPT, 1, np.ones(1), long)
    share = alone.seconds / (alone.seconds + all_windowed.seconds)
    assert half.measured == pytest.approx(alone.measured * share)
    fast, slow = modelled(np.array([1.0, 3.0]), "memory"), modelled(np.array([5.0, 3.0]), "compute")
    mean = mean_layer([(3, fast), (1, slow)])
    assert mean.seconds.tolist() == [2.0, 3.0]
    assert mean.bound == "memory"
    assert mean_layer([(1, fast), (3, slow)]).bound == "compute"
    # vLLM 0.24 on a GB200, 64 heads, 8 KV heads of 64, window 128 at 4,096 tokens (aiconfigurator-core 0.12).
    layers = builders.layers(_scenario(_card(128, 24), "gb200_nvl72", engine={"kv_precision": "bf16"}))
    found = layers.cached_attention(np.array([1.0, 16.0, 64.0]), np.array([4096.0]), 1).seconds / 24
    assert found == pytest.approx([9.1e-6, 11.0e-6, 13.2e-6], rel=0.1)
    # The same shape, one prompt of 2,048, 4,096 and 8,192 tokens: 41.8, 69.6 and 139.6 us.
    operators = builders.operators(_scenario(GPT, "gb200_nvl72").hardware)
    prompts = np.array([2048.0, 4096.0, 8192.0])
    found = operators.prefill_attention(_card(128, 24), 1, np.ones(3), prompts).seconds
    assert found == pytest.approx([41.8e-6, 69.6e-6, 139.6e-6], rel=0.27)
    whole = operators.prefill_attention(_card(None), 1, np.ones(3), prompts).seconds
    assert np.all(found < 0.75 * whole)


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


def test_parts_of_a_prompt_compute_their_attention_to_what_came_before_where_a_block_was_measured() -> None:
    """A quarter at a time: the block on 2,048 tokens, and on average 3,072 earlier tokens for each of them."""
    alone, part = prefill([2048.0], 2048.0)[0], prefill([2048.0], 8192.0)[0]
    operators = Operators(PROFILE, TABLES)
    flops = 4 * 2048 * 3072 * 16 * (CARD.head_dim + 128) / 2
    assert part - alone == pytest.approx(float(operators.attention_compute_s(np.array(flops))))
    assert prefill([8192.0], 8192.0)[0] == pytest.approx(4 * part, rel=0.25)
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
