"""Recurrent layers and sparse attention, by arithmetic written out."""

import builders
import numpy as np
import pytest
from builders import BANDWIDTH, BARE, exactly

from rlsim.costs.engine.layers import EngineLayers
from rlsim.costs.memory import activation_bytes_per_token, engine_memory, state_bytes_per_gpu_sequence
from rlsim.costs.operators import recurrent, work
from rlsim.costs.operators.collectives import Collectives
from rlsim.costs.operators.device import device_of
from rlsim.costs.operators.latent import SparseBlock
from rlsim.costs.operators.operators import Operators
from rlsim.costs.operators.recurrent import RecurrentBlock
from rlsim.costs.operators.time import OperatorTime, modelled
from rlsim.costs.trainer.layout import weight_tensors
from rlsim.loading.models import load_card
from rlsim.schema.architecture import LayerCounts, LinearAttentionCard, MambaCard
from rlsim.schema.model import kv_bytes_per_token, parameter_counts, state_bytes_per_sequence
from rlsim.tables.operators import ExpertShape
from rlsim.tables.profile import load_profile


def layers(model: str, hardware: str | None = None, **engine: object) -> EngineLayers:
    profile = BARE if hardware is None else load_profile(hardware)
    trainer = {"expert_parallel": 8} if load_card(model).moe is not None else {}
    given = builders.scenario(model, profile, cluster={"num_gpus": 64}, trainer=trainer, engine=engine)
    operators = Operators(profile, None) if hardware is None else device_of(profile, given.engine.name).operators
    return EngineLayers(given.model, given.engine, operators, Collectives(profile, None))


@pytest.mark.parametrize(("model", "counts"), [
    ("qwen3-8b", LayerCounts(36, 0, 0, 36, 0)),
    ("deepseek-v3", LayerCounts(61, 0, 0, 3, 58)),
    ("qwen3.5-397b-a17b", LayerCounts(15, 45, 0, 0, 60)),
    ("qwen3.5-27b", LayerCounts(16, 48, 0, 64, 0)),
    ("nemotron-3-nano-30b-a3b", LayerCounts(6, 0, 23, 0, 23)),
    ("nemotron-3-super-120b-a12b", LayerCounts(8, 0, 40, 0, 40)),
    ("glm-5", LayerCounts(78, 0, 0, 3, 75)),
])  # fmt: skip
def test_blocks_are_counted_by_kind(model: str, counts: LayerCounts) -> None:
    card = load_card(model)
    assert card.layer_counts == counts
    whole = sum(count for _, shape, count in card.layer_shapes if shape.ffn)
    mixers = sum(count for _, shape, count in card.layer_shapes if shape.mixer != "none")
    assert (mixers, whole) == (counts.mixers, counts.ffns)


def test_parameters_and_activations_of_a_hybrid_add_up() -> None:
    """Nemotron 3 Super: 40 Mamba blocks, 8 of attention, 40 of 512 experts of two matrices in a space of 1,024."""
    mamba = 4096 * (8192 + 8192 + 2 * 8 * 128 + 128) + 10_240 * 5 + 3 * 128 + 8192 + 8192 * 4096
    attention = 4096 * (32 + 2 * 2) * 128 + 32 * 128 * 4096
    experts = 512 * 2 * 1024 * 2688 + 2 * 4096 * 5376 + 4096 * 512 + 2 * 4096 * 1024
    whole = 2 * 131_072 * 4096 + 40 * mamba + 8 * attention + 40 * experts + 89 * 4096
    assert parameter_counts(load_card("nemotron-3-super-120b-a12b")).total == whole
    # Nemotron 3 Nano: mixers keep twice 2,688 and 6,144 and thrice 4,096; experts have no gate.
    mixer = (2 * 2688 + 2 * 6144 + 3 * 4096) * 2
    attention = (2 * 2688 + (32 + 2 * 2) * 128 + 32 * 128) * 2
    experts = (2 * 2688 + 6 * (2688 + 2 * 1856) + 2 * 3712) * 2
    found = activation_bytes_per_token(load_card("nemotron-3-nano-30b-a3b"))
    assert found == exactly((6 * attention + 23 * experts + 23 * mixer) / 52)


def test_cache_state_and_tensors_of_hybrids_and_of_sparse_attention() -> None:
    """Qwen3.5-397B: 15 layers cache 2 x 2 x 256 values, 45 keep 64 x 128 x 128 in FP32 and 3 x 12,288 in BF16."""
    card = load_card("qwen3.5-397b-a17b")
    assert kv_bytes_per_token(card, "bf16") == 15 * 2 * 2 * 256 * 2
    assert kv_bytes_per_token(card, "nvfp4") == 15 * 2 * 2 * 256 * 0.5625
    assert state_bytes_per_sequence(card) == 45 * (64 * 128 * 128 * 4 + 12_288 * 3 * 2)
    assert state_bytes_per_sequence(load_card("qwen3-8b")) == 0.0
    # FP8: 512 values, four scales, 64 rotary ones in BF16; 128 values with a scale. GLM-5.2 ranks in 21 layers.
    assert kv_bytes_per_token(load_card("glm-5"), "fp8") == 78 * (512 + 16 + 128) + 78 * (128 + 4)
    assert kv_bytes_per_token(load_card("glm-5.2"), "bf16") == 78 * 576 * 2 + 21 * 132
    # Nemotron 3 Nano: 29 mixers of 8, 23 routers and (128 + 1) experts of two matrices, embedding, norm and head.
    assert weight_tensors(load_card("nemotron-3-nano-30b-a3b")) == 29 * 8 + 23 * (1 + 2 * 129) + 3


def test_work_of_states_prompts_ungated_experts_and_gates() -> None:
    card = load_card("nemotron-3-nano-30b-a3b").mamba
    state = 10 * 64 * 64 * 128 * 4 / 2  # ten sequences, half of the heads
    once, four = (recurrent.recurrent_step(10, card, 2, queries) for queries in (1, 4))
    assert (float(once.bytes), float(four.bytes)) == (2 * state, 5 * state)
    assert float(four.flops) == 4 * float(once.flops)
    for card in (
        LinearAttentionCard(num_key_heads=2, num_value_heads=4, key_head_dim=16, value_head_dim=16),
        MambaCard(num_heads=4, head_dim=16, state_size=16, num_groups=2),
    ):
        one, ten = (recurrent.recurrent_prompt(tokens, card, 1) for tokens in (1000.0, 10_000.0))
        assert float(ten.flops) == exactly(10 * float(one.flops))
        assert float(ten.bytes) == exactly(10 * float(one.bytes))
    # Per token and head of 10 x 10: three products with the state (600), and 64 tokens x (6 x 10 + 4 x 10).
    card = LinearAttentionCard(num_key_heads=1, num_value_heads=1, key_head_dim=10, value_head_dim=10)
    assert float(recurrent.recurrent_prompt(1, card, 1).flops) == 600 + 64 * 100
    moe = load_card("nemotron-3-nano-30b-a3b").moe
    assert moe is not None
    shape = ExpertShape("bf16", 2688, moe.expert_intermediate_size, moe.top_k, moe.num_experts, 1, 1)
    amount = work.grouped_experts(1, shape, moe.matrices)
    assert float(amount.flops) == 2 * 6 * 2 * 2688 * 1856
    assert sum(one.elements for one in work.ffn_matrices(100, 400, 1, gated=False)) == 2 * 100 * 400
    # Qwen3.5-397B over 2 GPUs: 16 heads twice and one KV head twice, of 256.
    qkv = work.attention_matrices(load_card("qwen3.5-397b-a17b"), 2)[0]
    assert (qkv.n, qkv.k) == ((2 * 16 + 2) * 256, 4096)


def test_a_step_without_tables_moves_its_states_and_sglang_copies_the_accepted_one_back() -> None:
    card = load_card("qwen3.5-9b").linear_attention
    timed = RecurrentBlock(Operators(BARE, None), card, 1).decode(np.array([1000.0]), 1)
    state = 2 * 1000 * 32 * 128 * 128 * 4
    tail = 2 * 1000 * 8192 * 4 * 2
    assert timed.seconds[0] == exactly((state + tail) / BANDWIDTH)
    assert timed.measured[0] == 0.0
    block = RecurrentBlock(Operators(BARE, None), card, 1)
    kept, copied = (float(block.decode(np.array([1000.0]), 4, copied).seconds[0]) for copied in (False, True))
    assert copied - kept == exactly(2 * 1000 * 32 * 128 * 128 * 4 / BANDWIDTH)


def test_measured_steps_and_modules_are_the_shipped_rows_also_for_mamba_and_training() -> None:
    """B200, SGLang 0.5.14: 89.47 us for 64 sequences of 64 heads, and 6.2 us for their convolution."""
    card = load_card("qwen3.5-397b-a17b").linear_attention
    timed = RecurrentBlock(device_of(load_profile("b200_sxm"), "sglang").operators, card, 1).decode(np.array([64.0]), 1)
    assert timed.seconds[0] == pytest.approx(89.47e-6 + 6.2e-6, rel=0.01)
    assert timed.measured[0] == 1.0
    # H200, vLLM 0.24.0, 8 heads, FP8 projections and cache: 269.1 us for 64 sequences of 32,768 tokens.
    block = SparseBlock(
        device_of(load_profile("h200_sxm"), "vllm").operators, load_card("glm-5"), 8, "fp8_block", "fp8"
    )
    own = block.operators.tables
    batch, context = np.array([64.0]), np.array([32_768.0])
    whole = block._projections((own, True), batch).seconds + block._attention((own, True), batch, context).seconds
    assert whole[0] == pytest.approx(269.1e-6, rel=0.02)
    # Nemotron 3 Super has as many state elements as Qwen3.5-397B: 128 x 64 x 128 = 64 x 128 x 128.
    operators = device_of(load_profile("b200_sxm"), "sglang").operators
    mamba, linear = load_card("nemotron-3-super-120b-a12b").mamba, load_card("qwen3.5-397b-a17b").linear_attention
    many = np.array([512.0])
    ours, theirs = (RecurrentBlock(operators, card, 1).decode(many, 1) for card in (mamba, linear))
    assert ours.seconds[0] == pytest.approx(theirs.seconds[0], rel=0.05)
    assert ours.measured[0] < 0.1 < theirs.measured[0]
    block = RecurrentBlock(device_of(load_profile("b200_sxm"), "vllm").operators, card, 1)
    serving, training = (float(block.prefill(np.ones(1), np.array([8192.0]), of).seconds[0]) for of in (False, True))
    assert 2 < training / serving < 4


def test_a_recurrent_iteration_does_not_grow_with_its_context_and_a_sparse_one_by_index_keys_alone() -> None:
    given = layers("nemotron-3-nano-30b-a3b")
    each = RecurrentBlock(given.operators, given.card.recurrent, 1).decode(np.array([64.0]), 1, False)
    state = given.state_components(np.array([64.0]), 1)["recurrent state"]
    assert state.seconds[0] == pytest.approx(23 * each.seconds[0])
    assert layers("qwen3-8b").state_components(np.array([64.0]), 1) == {}
    short, long = (given.cached_attention(np.array([64.0]), np.array([c]), 1).seconds[0] for c in (1e5, 1e6))
    assert long == pytest.approx(10 * short, rel=0.01)  # six layers of attention do
    # Beyond 2,048 tokens every further one costs 132 bytes of index key, or 32 heads of 128 in arithmetic.
    card = load_card("glm-5")
    block = SparseBlock(Operators(BARE, None), card, 8, "bf16", "bf16")
    near, far = (block.attention(np.array([256.0]), np.array([c])).seconds[0] for c in (200_000.0, 1_000_000.0))
    computed = 2 * 256 * 800_000 * 32 * 128 / (1979e12 * 0.7)
    assert far - near == exactly(max(256 * 800_000 * 132 / BANDWIDTH, computed))


def test_a_speculating_engine_keeps_a_state_for_every_verified_position_within_its_share_of_the_room() -> None:
    card = load_card("qwen3.5-9b")
    plain = builders.scenario("qwen3.5-9b", engine={"tensor_parallel": 2})
    drafting = builders.scenario(
        "qwen3.5-9b", engine={"tensor_parallel": 2},
        speculation={"method": "mtp", "draft_length": 3, "acceptance_length": 2.0},
    )  # fmt: skip
    assert state_bytes_per_gpu_sequence(plain) == state_bytes_per_sequence(card) / 2
    assert state_bytes_per_gpu_sequence(drafting) == 4 * state_bytes_per_sequence(card) / 2
    few = engine_memory(builders.scenario("qwen3.5-9b", engine={"max_running_sequences": 8}))
    many = engine_memory(builders.scenario("qwen3.5-9b", engine={"max_running_sequences": 4096}))
    assert few.running_sequences == 8
    assert few.parts.state == 8 * state_bytes_per_sequence(load_card("qwen3.5-9b"))
    assert many.running_sequences is not None and many.running_sequences < 4096
    assert many.parts.state is not None and many.parts.state < 0.9 / 1.9 * 80 * 2**30
    assert engine_memory(builders.scenario("qwen3-8b")).parts.state is None


@pytest.mark.parametrize(("size", "heads"), [(1, 16 + 2 * 2), (2, 8 + 2 * 1), (8, 2 + 2 * 1)])
def test_rotary_bytes_are_those_of_the_heads_of_a_rank(size: int, heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen3-Next: 16 heads and 2 KV heads of 256, of which every rank has one at least; read and written in BF16."""
    given = builders.layers(builders.scenario("qwen3-next-80b-a3b", engine={"tensor_parallel": size}))
    moved: list[float] = []

    def stream(self: Operators, bytes_moved: np.ndarray, kernels: float = 1.0) -> OperatorTime:
        moved.append(float(bytes_moved[0]))
        return modelled(bytes_moved * 0.0, "memory")

    monkeypatch.setattr(Operators, "stream", stream)
    given.components(np.array([100.0]))
    assert 2 * 100 * heads * 256 * 2 in moved
