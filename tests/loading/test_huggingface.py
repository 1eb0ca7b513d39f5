"""Hugging Face configs: what is read, and what is refused by the name of its key."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlsim.errors import InputError
from rlsim.loading.huggingface import card_from_huggingface
from rlsim.loading.models import load_card
from rlsim.schema.model import parameter_counts

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "tie_word_embeddings": False, "vocab_size": 128256,
}  # fmt: skip
QWEN25_7B = LLAMA | {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064, "sliding_window": 131072,
    "use_sliding_window": False,
}  # fmt: skip
MIXTRAL_8X7B = LLAMA | {
    "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
    "sliding_window": None,
}  # fmt: skip
DEEPSEEK_V2_LITE = LLAMA | {
    "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "num_hidden_layers": 27,
    "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "first_k_dense_replace": 1,
    "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_routed_experts": 64, "n_shared_experts": 2,
    "num_experts_per_tok": 6, "vocab_size": 102400,
}  # fmt: skip
KIMI_K2 = DEEPSEEK_V2_LITE | {
    "model_type": "kimi_k2", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
    "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1536, "moe_intermediate_size": 2048,
    "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 8, "vocab_size": 163840,
}  # fmt: skip
GLM_45_AIR = LLAMA | {
    "model_type": "glm4_moe", "attention_bias": True, "head_dim": 128, "intermediate_size": 10944,
    "num_attention_heads": 96, "num_hidden_layers": 46, "first_k_dense_replace": 1, "moe_intermediate_size": 1408,
    "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8, "num_nextn_predict_layers": 1,
    "use_qk_norm": False, "vocab_size": 151552,
}  # fmt: skip
GPT_OSS_20B = LLAMA | {
    "model_type": "gpt_oss", "attention_bias": True, "head_dim": 64, "hidden_size": 2880, "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "num_attention_heads": 64, "num_hidden_layers": 24,
    "num_local_experts": 32, "num_experts_per_tok": 4, "quantization_config": {"quant_method": "mxfp4"},
    "sliding_window": 128, "vocab_size": 201088,
}  # fmt: skip
QWEN35_9B = {
    "model_type": "qwen3_5_text", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 12288, "vocab_size": 248320, "hidden_act": "silu",
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8, "attn_output_gate": True,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mtp_num_hidden_layers": 1,
    "max_position_embeddings": 262144, "tie_word_embeddings": False,
}  # fmt: skip
NEMOTRON_3_NANO = {
    "model_type": "nemotron_h", "hidden_size": 2688, "num_hidden_layers": 52, "num_attention_heads": 32,
    "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 1856, "vocab_size": 131072,
    "mlp_hidden_act": "relu2", "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4,
    "chunk_size": 128, "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856,
    "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 3712, "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
}  # fmt: skip
GLM_5 = {
    "model_type": "glm_moe_dsa", "hidden_size": 6144, "num_hidden_layers": 78, "num_attention_heads": 64,
    "num_key_value_heads": 64, "intermediate_size": 12288, "vocab_size": 154880, "hidden_act": "silu",
    "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1,
    "first_k_dense_replace": 3, "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048,
    "num_nextn_predict_layers": 1, "max_position_embeddings": 202752, "tie_word_embeddings": False,
}  # fmt: skip


def _write(folder: Path, config: Any, name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(("config", "total", "active", "tables_left_out"), [
    (LLAMA, 8.03e9, 8.03e9, 0),
    (MIXTRAL_8X7B, 46.7e9, 12.9e9, 0),  # mistral.ai/news/mixtral-of-experts: 46.7B, 12.9B per token
    (DEEPSEEK_V2_LITE, 15.7e9, 2.4e9, 1),  # model card: 15.7B, 2.4B active (meets ours without the embedding)
])  # fmt: skip
def test_family_counts(
    tmp_path: Path, config: dict[str, Any], total: float, active: float, tables_left_out: int
) -> None:
    counts = parameter_counts(card_from_huggingface(_write(tmp_path, config)))
    assert counts.total == pytest.approx(total, rel=0.015)
    assert counts.active - tables_left_out * counts.embedding == pytest.approx(active, rel=0.03)


def test_text_configs_norms_blocks_yarn_and_biases_are_read_by_family(tmp_path: Path) -> None:
    text = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    path = _write(tmp_path, {"text_config": text, "vision_config": {"hidden_size": 7}, "tie_word_embeddings": True})
    card = card_from_huggingface(path)
    assert (card.hidden_size, card.tied_embeddings) == (4096, True)
    assert card_from_huggingface(_write(tmp_path, LLAMA | {"model_type": "qwen3"})).qk_norm
    assert not card_from_huggingface(_write(tmp_path, LLAMA)).qk_norm
    names = {"M": "mamba", "E": "moe", "*": "attention"}
    letters = str(NEMOTRON_3_NANO["hybrid_override_pattern"])
    config = {key: value for key, value in NEMOTRON_3_NANO.items() if "override" not in key and "layers" not in key}
    config["layers_block_type"] = [names[letter] for letter in letters]
    assert (
        card_from_huggingface(_write(tmp_path, config)).layer_counts
        == load_card("nemotron-3-nano-30b-a3b").layer_counts
    )
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = LLAMA | {"max_position_embeddings": 32768, "rope_scaling": scaling}
    card = card_from_huggingface(_write(tmp_path, config))
    assert (card.extended_position_embeddings, card.rotary_scaling) == (131072, "yarn")
    covered = card_from_huggingface(
        _write(tmp_path, LLAMA | {"max_position_embeddings": 131072, "rope_scaling": scaling})
    )
    assert covered.extended_position_embeddings is None
    with pytest.raises(InputError, match="no such file"):
        card_from_huggingface(tmp_path / "none")
    # One value for each of 4096 outputs of 32 layers in Llama; GLM-4.5 and Qwen2 have none there.
    without, biased = (parameter_counts(card_from_huggingface(_write(tmp_path, LLAMA | {"attention_bias": bias}))).total
                       for bias in (False, True))  # fmt: skip
    assert biased - without == 32 * ((32 + 2 * 8) * 128 + 4096)
    for config in (GLM_45_AIR, QWEN25_7B):
        card = card_from_huggingface(_write(tmp_path, config))
        assert card.attention_bias and not card.attention_output_bias


@pytest.mark.parametrize(
    ("base", "changes", "kinds"),
    [
        (LLAMA, {"model_type": "mistral", "sliding_window": 4096}, ((32, 4096),)),  # Mistral-7B-v0.1: every layer
        (LLAMA, {"sliding_window": 131072}, ((32, None),)),
        (LLAMA, {"sliding_window": None, "layer_types": ["full_attention"] * 32}, ((32, None),)),
        (QWEN25_7B, {}, ((28, None),)),
        (QWEN25_7B, {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 21}, ((28, None),)),
        (
            QWEN25_7B,
            {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 21},
            ((21, None), (7, 4096)),
        ),
        (QWEN25_7B, {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 28}, ((28, None),)),
        (LLAMA, {"layer_types": ["full_attention", *["sliding_attention"] * 31], "sliding_window": 1024},
         ((1, None), (31, 1024))),
    ],
)  # fmt: skip
def test_sliding_windows_are_read(
    tmp_path: Path, base: dict[str, Any], changes: dict[str, Any], kinds: tuple[tuple[int, int | None], ...]
) -> None:
    assert card_from_huggingface(_write(tmp_path, base | changes)).attention_kinds == kinds


@pytest.mark.parametrize(("base", "changes", "key"), [
    (LLAMA, {"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
    (LLAMA, {"layer_types": ["full_attention", "full_attention"]}, "layer_types"),
    (LLAMA, {"layer_types": ["sliding_attention"] * 32}, "sliding_window"),
    (LLAMA, {"sliding_window": "4096"}, "sliding_window"),
    (GPT_OSS_20B, {"sliding_window": 0}, "sliding_window"),
    (GPT_OSS_20B, {"layer_types": ["chunked_attention"] * 24}, "chunked_attention"),
    (KIMI_K2, {"sliding_window": 4096}, "sliding_window_layers"),
    (LLAMA, {"hybrid_override_pattern": "M*X-"}, "hybrid_override_pattern"),
    (LLAMA, {"layers_block_type": ["mamba", "attn"]}, "layers_block_type"),
    (LLAMA, {"hybrid_override_pattern": "M*M-" * 8}, "mamba_num_heads"),
    (LLAMA, {"ssm_state_size": 128}, "ssm_state_size"),
    (LLAMA, {"linear_num_key_heads": 16}, "linear_num_key_heads"),
    (LLAMA, {"hidden_act": "gelu_new"}, "hidden_act"),
    (LLAMA, {"num_attention_heads": 31}, "head_dim"),
    (LLAMA, {"num_hidden_layers": None}, "num_hidden_layers"),
    (LLAMA, {"vocab_size": "128256"}, "vocab_size"),
    (LLAMA, {"num_key_value_heads": 5}, "num_kv_heads"),
    (KIMI_K2, {"index_topk": 2048}, "index_n_heads"),
    (LLAMA, {"index_topk": 2048, "index_n_heads": 8, "index_head_dim": 128}, "sparse_attention"),
    (LLAMA, {"compress_ratios": [4, 128]}, "deepseek_v32"),
    (LLAMA, {"linear_attn_config": {"num_heads": 8}}, "qwen3_next"),
    (LLAMA, {"ssm_state_size": 64}, "nemotron_h"),
    (KIMI_K2, {"qk_rope_head_dim": None}, "qk_rope_head_dim"),
    (KIMI_K2, {"num_experts_per_tok": 500}, "top_k"),
    (MIXTRAL_8X7B, {"decoder_sparse_step": 2}, "decoder_sparse_step"),
    (MIXTRAL_8X7B, {"mlp_only_layers": [3]}, "mlp_only_layers"),
    (MIXTRAL_8X7B, {"moe_layer_freq": [0, 1, 0, 1]}, "moe_layer_freq"),
    (MIXTRAL_8X7B, {"num_experts_per_tok": None}, "moe.top_k"),
])  # fmt: skip
def test_refused_by_key(tmp_path: Path, base: dict[str, Any], changes: dict[str, Any], key: str) -> None:
    path = _write(tmp_path, base | changes)
    with pytest.raises(InputError, match=rf"config\.json: .*\b{key}\b") as raised:
        card_from_huggingface(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000])
def test_not_a_config(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        card_from_huggingface(path)


@pytest.mark.parametrize(("config", "card"), [
    (LLAMA, "llama-3.1-8b"), (GPT_OSS_20B, "gpt-oss-20b"), (QWEN35_9B, "qwen3.5-9b"),
    (NEMOTRON_3_NANO, "nemotron-3-nano-30b-a3b"), (GLM_5, "glm-5"), (QWEN25_7B, "qwen2.5-7b"), (KIMI_K2, "kimi-k2"),
    (GLM_45_AIR, "glm-4.5-air"),
])  # fmt: skip
def test_configs_are_the_shipped_cards(tmp_path: Path, config: dict[str, Any], card: str) -> None:
    """Found by the name of their folder; windows beyond the native one are told by the publisher alone."""
    told = {"source", "extended_position_embeddings", "rotary_scaling"}
    folder = tmp_path / load_card(card).name
    folder.mkdir()
    _write(folder, config)
    assert load_card(str(folder)).model_dump(exclude=told) == load_card(card).model_dump(exclude=told)
