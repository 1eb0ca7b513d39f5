"""Model cards: counts against published ones, and what a card refuses."""

from typing import Any

import pytest
from pydantic import ValidationError

from rlsim.errors import InputError
from rlsim.loading.models import card_by_shape, list_cards, load_card
from rlsim.loading.scenario import load_scenario
from rlsim.projection.model_assumptions import model_assumptions
from rlsim.schema.drafter import (
    default_eagle3_draft,
    draft_kv_bytes_per_token,
    draft_model_from_card,
    draft_parameters,
    mtp_draft,
)
from rlsim.schema.model import ModelCard, kv_bytes_per_token, parameter_counts

# Totals and active parameters in 1e9 as the model cards on Hugging Face state them; DeepSeek-V3 from
# arXiv 2412.19437 section 4.2, gpt-oss from arXiv 2508.10925 table 1, Moonlight from arXiv 2502.16982.
# Llama-3.1: safetensors totals of the repositories.
PUBLISHED = {
    "deepseek-llm-7b": (6.91, 6.91), "deepseek-r1-distill-qwen-1.5b": (1.78, 1.78), "ernie-4.5-21b-a3b": (21.0, 3.0),
    "gemma-3-12b": (11.8, 11.8), "gemma-3-1b": (1.0, 1.0), "gemma-3-27b": (27.0, 27.0), "gemma-3-4b": (3.88, 3.88),
    "glm-4-9b": (9.4, 9.4), "glm-4.5": (355.0, 32.0), "glm-4.7-flash": (30.0, 3.6), "llama-3.2-1b": (1.24, 1.24),
    "llama-3.2-3b": (3.21, 3.21), "llama-4-maverick": (400.0, 17.0), "llama-4-scout": (109.0, 17.0),
    "mimo-7b": (7.61, 7.61), "ministral-8b": (8.02, 8.02), "mistral-7b": (7.25, 7.25), "mistral-nemo-12b": (12.2, 12.2),
    "mistral-small-24b": (23.6, 23.6), "nemotron-4-340b": (340.0, 340.0), "nemotron-h-8b": (8.1, 8.1),
    "nemotron-mini-4b": (4.19, 4.19), "nemotron-nano-12b-v2": (12.31, 12.31), "phi-4": (14.7, 14.7),
    "qwen1.5-moe-a2.7b": (14.3, 2.7), "qwen2.5-0.5b": (0.49, 0.49), "qwen3-coder-480b-a35b": (480.0, 35.0),
    "qwen3.5-0.8b": (0.8, 0.8), "qwen3.5-2b": (2.0, 2.0), "qwen3.5-4b": (4.0, 4.0), "seed-oss-36b": (36.0, 36.0),
    "smollm2-1.7b": (1.71, 1.71), "smollm3-3b": (3.08, 3.08), "deepseek-v2": (236.0, 21.0),
    "deepseek-v3": (671.0, 37.0), "deepseek-v3.2": (671.0, 37.0), "glm-4.5-air": (106.0, 12.0), "glm-5": (744.0, 40.0),
    "glm-5.2": (743.4, 41.25), "gpt-3-175b": (175.0, 175.0), "grok-1": (314.0, 78.5), "nemotron-4-15b": (15.6, 15.6),
    "gpt-oss-120b": (116.83, 5.13), "gpt-oss-20b": (20.91, 3.61), "kimi-k2": (1000.0, 32.0),
    "kimi-k2.5": (1000.0, 32.0), "llama-3.1-405b": (405.85, 405.85), "llama-3.1-70b": (70.6, 70.6),
    "llama-3.1-8b": (8.03, 8.03), "minimax-m2": (230.0, 10.0), "minimax-m2.5": (230.0, 10.0),
    "moonlight-16b-a3b": (15.29, 2.24), "nemotron-3-nano-30b-a3b": (31.6, 3.6),
    "nemotron-3-super-120b-a12b": (120.6, 12.7), "nemotron-3-ultra-550b-a55b": (550.0, 55.0),
    "qwen2.5-1.5b": (1.54, 1.54), "qwen2.5-14b": (14.7, 14.7), "qwen2.5-3b": (3.09, 3.09), "qwen2.5-32b": (32.5, 32.5),
    "qwen2.5-72b": (72.7, 72.7), "qwen2.5-7b": (7.6, 7.6), "qwen3-0.6b": (0.6, 0.6), "qwen3-1.7b": (1.7, 1.7),
    "qwen3-14b": (14.8, 14.8), "qwen3-235b-a22b": (235.0, 22.0), "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-32b": (32.8, 32.8), "qwen3-4b": (4.0, 4.0), "qwen3-8b": (8.2, 8.2), "qwen3-next-80b-a3b": (80.0, 3.9),
    "qwen3.5-122b-a10b": (122.0, 10.0), "qwen3.5-27b": (27.0, 27.0), "qwen3.5-35b-a3b": (35.0, 3.45),
    "qwen3.5-397b-a17b": (397.0, 17.0), "qwen3.5-9b": (9.0, 9.0),
    "deepseek-v4-flash": (284.44, 13.9),
    "gemma-2-27b": (27.2, 27.2), "gemma-2-2b": (2.61, 2.61), "gemma-2-9b": (9.24, 9.24), "ling-1t": (1000.0, 50.0),
    "ling-flash-2.0": (100.0, 6.1), "ling-mini-2.0": (16.26, 1.43), "llama-2-13b": (13.0, 13.0),
    "llama-2-70b": (69.0, 69.0), "llama-2-7b": (6.74, 6.74), "mixtral-8x22b": (141.0, 39.0),
    "mixtral-8x7b": (46.7, 12.9), "nemotron-h-56b": (56.0, 56.0), "nemotron-nano-9b-v2": (8.89, 8.89),
    "olmo-2-13b": (13.7, 13.7), "olmo-2-7b": (7.3, 7.3), "olmo-3-32b": (32.2, 32.2), "olmo-3-7b": (7.3, 7.3),
    "deepseek-coder-1.3b": (1.35, 1.35), "deepseek-coder-6.7b": (6.74, 6.74), "deepseek-v2-lite": (15.7, 2.4),
    "deepseek-v4-pro": (1600.0, 49.0), "gemma-2b": (2.51, 2.51), "gemma-3-270m": (0.27, 0.27), "gemma-7b": (8.54, 8.54),
    "internlm2.5-1.8b": (1.89, 1.89), "internlm2.5-20b": (19.9, 19.9), "internlm2.5-7b": (7.74, 7.74),
    "mistral-large-2407": (123.0, 123.0), "olmo-7b": (6.89, 6.89), "olmoe-1b-7b": (6.92, 1.3), "opt-1.3b": (1.3, 1.3),
    "opt-125m": (0.125, 0.125), "phi-2": (2.78, 2.78), "phi-3-mini": (3.82, 3.82), "pythia-14m": (0.0141, 0.0141),
    "pythia-160m": (0.162, 0.162), "pythia-1b": (1.01, 1.01), "pythia-410m": (0.405, 0.405),
    "qwen2-57b-a14b": (57.4, 14.2), "smollm2-135m": (0.135, 0.135), "smollm2-360m": (0.362, 0.362),
    "phi-3.5-mini": (3.82, 3.82), "phi-4-mini": (3.84, 3.84), "tinyllama-1.1b": (1.1, 1.1),
}  # fmt: skip
TABLES_LEFT_OUT = {"deepseek-v2-lite": (0, 1), "deepseek-v3.2": (0, 1), "glm-4.5-air": (0, 2), "glm-5": (0, 2),
                   "gpt-oss-120b": (0, 1), "gpt-oss-20b": (0, 1), "moonlight-16b-a3b": (2, 2)}  # fmt: skip
"""How many of embedding and LM head a publisher leaves out of (total, active)."""
NAMED_BY_SIZE = 0.025
"""Of hybrids, active parameters are stated in the model's name alone, to whole billions (A17B: 16.5B to 17.5B)."""
ROUNDED = {
    "ernie-4.5-21b-a3b": (0.05, 0.13),
    "glm-4.5": (0.02, 0.06),
    "glm-4.7-flash": (0.02, 0.1),
    "grok-1": (0.01, 0.07),
    "llama-4-maverick": (0.01, 0.03),
    "llama-4-scout": (0.02, 0.03),
    "qwen3.5-0.8b": (0.08, 0.08),
    "qwen3.5-2b": (0.08, 0.08),
    "qwen3.5-4b": (0.06, 0.06),
    "qwen2.5-0.5b": (0.02, 0.03),
    "ling-1t": (0.04, 0.03), "ling-flash-2.0": (0.03, 0.03),
    "kimi-k2": (0.03, 0.03), "kimi-k2.5": (0.03, 0.03), "minimax-m2": (0.01, 0.11), "minimax-m2.5": (0.01, 0.11),
    "deepseek-v4-pro": (0.02, 0.03), "opt-125m": (0.015, 0.015),
    "qwen3-1.7b": (0.02, 0.02), "qwen3.5-397b-a17b": (0.01, NAMED_BY_SIZE),
}  # fmt: skip
"""Shares within which a card that states one or two digits can be met: 10B is 9.5B to 10.5B without the embedding."""
EXACT = {"llama-3.1-8b": 8_030_261_248, "llama-3.1-405b": 405_853_388_800, "gpt-oss-120b": 116_829_156_672,
         "gpt-oss-20b": 20_914_757_184, "qwen2.5-32b": 32_763_876_352, "qwen2.5-72b": 72_706_203_648,
         "qwen3-4b": 4_022_468_096, "deepseek-v2": 235_741_434_880}  # fmt: skip
"""Values in the safetensors files of the repositories, in BF16 (gpt-oss: before its experts were quantised)."""


def _values(**changes: Any) -> dict[str, Any]:
    return {**load_card("qwen3-30b-a3b").model_dump(), **changes}


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_match_the_published_ones(name: str) -> None:
    total, active = PUBLISHED[name]
    of_total, of_active = ROUNDED.get(name, (0.01, 0.03))
    counts = parameter_counts(load_card(name))
    out_of_total, out_of_active = TABLES_LEFT_OUT.get(name, (0, 0))
    assert counts.total - out_of_total * counts.embedding == pytest.approx(total * 1e9, rel=of_total)
    assert counts.active - out_of_active * counts.embedding == pytest.approx(active * 1e9, rel=of_active)


@pytest.mark.parametrize("name", EXACT)
def test_counts_are_those_of_the_files(name: str) -> None:
    assert parameter_counts(load_card(name)).total == EXACT[name]


def test_parts_and_cache_bytes_add_up() -> None:
    card = load_card("deepseek-v3")
    counts = parameter_counts(card)
    assert set(list_cards()) == set(PUBLISHED)
    moe_layer = counts.router_per_layer + counts.shared_experts_per_layer + card.moe.num_experts * counts.expert
    parts = counts.embedding + counts.lm_head + counts.final_norm
    parts += card.num_layers * (counts.attention_per_layer + counts.norms_per_layer)
    parts += card.num_dense_layers * counts.dense_ffn_per_layer + card.num_moe_layers * moe_layer
    assert counts.total == parts
    idle = card.num_moe_layers * (card.moe.num_experts - card.moe.top_k) * counts.expert
    assert counts.total - counts.active == idle
    # 14B of the checkpoint are MTP weights, embedding and head included (README_WEIGHTS.md of the repository).
    shared = counts.embedding + counts.lm_head
    assert counts.mtp + shared == pytest.approx(14e9, rel=0.05)
    without = ModelCard.model_validate({**card.model_dump(), "mtp_layers": 0})
    assert parameter_counts(without).total == counts.total
    assert kv_bytes_per_token(load_card("qwen3-8b"), "bf16") == 36 * 2 * 8 * 128 * 2
    assert kv_bytes_per_token(load_card("qwen3-8b"), "fp8") == 36 * 2 * 8 * 128
    # 70 KB per token: DeepSeek-V3 in arXiv 2505.09343 table 1 (70.272 KB in BF16).
    assert kv_bytes_per_token(load_card("deepseek-v3"), "bf16") == 70_272
    # Half of the 36 layers of gpt-oss-120b keep 128 tokens; two KV rows of 8 heads of 64 in BF16.
    card, row = load_card("gpt-oss-120b"), 2 * 8 * 64 * 2
    assert kv_bytes_per_token(card, "bf16") == 36 * row
    assert kv_bytes_per_token(card, "bf16", windowed_share=1 / 8) == (18 + 18 / 8) * row
    assert kv_bytes_per_token(load_card("qwen3-8b"), "bf16", 0.1) == kv_bytes_per_token(load_card("qwen3-8b"), "bf16")
    assert load_card("gpt-oss-120b").attention_kinds == ((18, None), (18, 128))
    assert load_card("qwen3-8b").attention_kinds == ((36, None),)
    every = ModelCard.model_validate(_values(sliding_window_tokens=512, sliding_window_layers=48))
    assert every.attention_kinds == ((48, 512),)


@pytest.mark.parametrize(("name", "changes", "message"), [
    ("qwen3-30b-a3b", {"sliding_window_tokens": 128}, "given together, got 128 and 0"),
    ("qwen3-30b-a3b", {"sliding_window_layers": 3}, "given together, got None and 3"),
    ("qwen3-30b-a3b", {"sliding_window_tokens": 128, "sliding_window_layers": 49}, "49 exceeds num_layers 48"),
    ("qwen3-30b-a3b", {"sliding_window_tokens": 0, "sliding_window_layers": 1}, "greater than 0"),
    ("qwen3-30b-a3b", {"num_kv_heads": 5}, "does not divide num_heads"),
    ("qwen3-30b-a3b", {"num_layers": 0}, "greater than 0"),
    ("qwen3-30b-a3b", {"intermediate_size": 10**300}, "less than or equal to 1099511627776"),
    ("qwen3-30b-a3b", {"hidden_size": "2048"}, "valid integer"),
    ("qwen3-30b-a3b", {"hidden_size": True}, "valid integer"),
    ("qwen3-30b-a3b", {"tied_embeddings": 1}, "valid boolean"),
    ("qwen3-30b-a3b", {"layers": 3}, "Extra inputs"),
    ("qwen3-30b-a3b", {"moe": {"top_k": 129}}, "top_k 129 exceeds num_experts 128"),
    ("qwen3-30b-a3b", {"moe": {"first_dense_layers": 48}}, "leaves no MoE layer"),
    ("qwen3-30b-a3b", {"moe": {"num_shared_experts": 1}}, "both zero or both positive"),
    ("deepseek-v3", {"sliding_window_tokens": 128, "sliding_window_layers": 5}, "windows over latent attention"),
    ("deepseek-v3", {"head_dim": 128}, "qk_nope_head_dim"),
])  # fmt: skip
def test_a_card_refuses(name: str, changes: dict[str, Any], message: str) -> None:
    values = load_card(name).model_dump()
    for key, value in changes.items():
        values[key] = {**values[key], **value} if isinstance(value, dict) else value
    with pytest.raises(ValidationError, match=message):
        ModelCard.model_validate(values)


@pytest.mark.parametrize("name", ["QWEN3-8B", "Qwen/Qwen3-8B", "qwen3_8b"])
def test_card_is_found_whatever_the_case(name: str) -> None:
    assert load_card(name).name == "Qwen3-8B"


def test_heads_of_eagle3_by_hand_or_assumed_mtp_layers_and_draft_models() -> None:
    """One layer with a 2 x hidden input, a 3 x hidden fusion and a 32,000-row head; the published one has 0.4B."""
    card = load_card("qwen3-8b")
    draft = default_eagle3_draft(card)
    attention = 2 * 4096 * (32 + 2 * 8) * 128 + 32 * 128 * 4096
    expected = 3 * 4096 * 4096 + attention + 3 * 4096 * 12_288 + 4 * 4096 + 32_000 * 4096
    assert draft_parameters(draft, card) == expected
    assert draft_parameters(draft, card) == pytest.approx(0.4e9, rel=0.05)
    assert draft_kv_bytes_per_token(draft, card, "bf16") == 2 * 8 * 128 * 2
    card = load_card("deepseek-v3")
    draft = mtp_draft(card)
    assert draft_parameters(draft, card) == parameter_counts(card).mtp
    assert draft.vocab_size == card.vocab_size
    assert draft_kv_bytes_per_token(draft, card, "bf16") == pytest.approx(kv_bytes_per_token(card, "bf16") / 61)
    with pytest.raises(InputError, match="no MTP layer"):
        mtp_draft(load_card("qwen3-8b"))
    with pytest.raises(InputError, match="no MTP layer"):
        draft_parameters(draft, load_card("qwen3-8b"))
    small = load_card("llama-3.1-8b")
    draft = draft_model_from_card(small)
    assert draft_parameters(draft, load_card("llama-3.1-70b")) == parameter_counts(small).total
    with pytest.raises(InputError, match="only dense models"):
        draft_model_from_card(load_card("qwen3-30b-a3b"))


def test_eagle3_heads_are_published_as_derived_or_say_that_they_are_assumed() -> None:
    for name in list_cards():
        card = load_card(name)
        draft = default_eagle3_draft(card)
        known = name in {"qwen3-8b", "qwen3-30b-a3b", "qwen3-235b-a22b", "llama-3.1-8b"}
        assert ("assumed" in draft.source) is not known
        assert draft.hidden_size == card.hidden_size
        assert draft.num_heads % draft.num_kv_heads == 0
        # One layer and a vocabulary are a small part of many layers alone.
        share, total = draft_parameters(draft, card), parameter_counts(card).total
        assert 0 < share < (0.12 if total > 2e9 else 0.5) * total
    # A model that differs from Qwen3-235B-A22B only by name gets the head that was published for it.
    card = load_card("qwen3-235b-a22b")
    renamed = ModelCard.model_validate({**card.model_dump(), "name": "other"})
    derived, published = (default_eagle3_draft(one).model_dump(exclude={"source"}) for one in (renamed, card))
    assert derived == published


HYBRID = ("model=qwen3.5-9b", "engine.tensor_parallel=2", "trainer.tensor_parallel=2")


def told(*changes: str, running: int | None = None) -> str:
    return " ".join(model_assumptions(load_scenario("quickstart", changes), running))


def test_long_sequences_and_states_that_limit_an_engine_are_told_and_nothing_of_plain_models() -> None:
    assert told() == ""
    assert "yarn" not in told(*HYBRID)
    assert "rely on yarn, with which its publisher states 1,010,000" in told(
        *HYBRID, "workload.max_sequence_tokens=500000"
    )
    beyond = told(*HYBRID, "workload.max_sequence_tokens=1048576")
    assert "exceed the native window of 262,144" in beyond and "1,010,000 at most" in beyond
    assert "24 of 32 mixers" in told(*HYBRID)
    assert "runs 7 sequences at once" in told(*HYBRID, running=7)
    assert "at once" not in told(*HYBRID, running=10**6)


@pytest.mark.parametrize("name", ["moonshotai/Kimi-K2.5-2layer", "x/GLM-5_20layer", "Qwen3-30B-A3B-4layers"])
def test_a_model_of_which_layers_are_left_has_no_card_of_the_whole(name: str) -> None:
    assert card_by_shape(name) is None
