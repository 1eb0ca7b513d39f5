"""Model card from a Hugging Face config.json; what the card cannot express is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlsim.datafiles import DOCUMENT_BYTES, read_text, shown_path
from rlsim.errors import InputError, shortened
from rlsim.schema.messages import as_input_error
from rlsim.schema.model import ModelCard

Config = Mapping[str, Any]

_NESTED = ("text_config", "llm_config", "language_config")
_NUM_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token")
_MTP = ("num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers")
_BIASED_OUTPUT = ("llama", "gpt_oss")
"""Families whose ``attention_bias`` covers the output projection as well (their modelling code in transformers)."""
_GATED_ACTIVATIONS = ("silu", "swish")

_FULL, _WINDOWED = "full_attention", "sliding_attention"
"""Kinds of layers in ``layer_types`` that a card describes."""

_UNSUPPORTED = {
    "linear_attn_config": "linear attention",
    "linear_num_key_heads": "linear attention",
    "full_attention_interval": "linear attention between full-attention layers",
    "hybrid_override_pattern": "a Mamba hybrid",
    "layers_block_type": "a Mamba hybrid",
    "ssm_state_size": "state-space layers",
    "state_size": "state-space layers",
    "mamba_d_state": "state-space layers",
    "hybrid_layer_pattern": "sliding-window layers between full-attention layers",
    "sliding_window_pattern": "sliding-window layers between full-attention layers",
    "attention_chunk_size": "chunked attention",
    "swa_num_attention_heads": "sliding-window layers of another shape",
    "index_topk": "sparse attention",
    "sparse_attention_config": "sparse attention",
    "compress_ratios": "compressed sparse attention",
    "block_configs": "layers of unequal shape",
    "num_attention_groups": "layers of unequal shape",
    "num_global_key_value_heads": "layers of unequal shape",
    "global_head_dim": "layers of unequal shape",
    "num_kv_shared_layers": "KV caches shared between layers",
    "attention_k_eq_v": "keys used as values",
    "hidden_size_per_layer_input": "per-layer embeddings",
    "hc_mult": "several residual streams",
    "moe_latent_size": "experts in a latent space",
    "routed_expert_hidden_size": "experts of another hidden size",
    "attn_output_gate": "gated attention output",
    "attention_output_gate": "gated attention output",
    "mla_use_output_gate": "gated attention output",
    "enable_moe_block": "experts beside a dense FFN",
    "is_encoder_decoder": "an encoder",
}
"""Keys that, where set, change FLOPs or bytes in ways that a ModelCard does not describe."""


def _first(config: Config, keys: Sequence[str]) -> Any:
    return next((config[key] for key in keys if config.get(key) is not None), None)


def _refuse(where: str, key: str, value: Any, what: str) -> InputError:
    return InputError(f"{where}: {key} = {shortened(json.dumps(value))}: {what} is not modelled")


def _reject_unsupported(config: Config, where: str) -> None:
    for key, what in _UNSUPPORTED.items():
        if config.get(key):
            raise _refuse(where, key, config[key], what)
    for key, known in (("layer_types", (_FULL, _WINDOWED)), ("attn_type_list", (1,))):
        kinds = config.get(key) or []
        other = next((kind for kind in kinds if kind not in known), None)
        if other is not None:
            raise _refuse(where, key, kinds, f"a layer of kind {other!r}")
    if int(config.get("interleave_moe_layer_step") or 1) != 1:
        raise _refuse(where, "interleave_moe_layer_step", config["interleave_moe_layer_step"], "alternating MoE layers")
    activation = _first(config, ("hidden_act", "mlp_hidden_act", "hidden_activation", "activation_function"))
    if activation not in _GATED_ACTIVATIONS:
        raise _refuse(where, "hidden_act", activation, "an FFN that is not gated by SiLU")


def _leading_dense(kinds: Sequence[Any], moe_kind: Any, where: str, key: str) -> int:
    """Number of dense layers before the first MoE layer; InputError where dense layers follow later."""
    dense = next((index for index, kind in enumerate(kinds) if kind == moe_kind), len(kinds))
    if any(kind != moe_kind for kind in kinds[dense:]):
        raise _refuse(where, key, list(kinds), "a dense layer after MoE layers")
    return dense


def _first_dense_layers(config: Config, where: str) -> int:
    if isinstance(config.get("moe_layer_freq"), list):
        return _leading_dense(config["moe_layer_freq"], 1, where, "moe_layer_freq")
    if config.get("mlp_layer_types"):
        return _leading_dense(config["mlp_layer_types"], "sparse", where, "mlp_layer_types")
    for key in ("moe_layer_freq", "decoder_sparse_step"):
        if config.get(key, 1) != 1:
            raise _refuse(where, key, config[key], "alternating dense and MoE layers")
    only_dense = config.get("mlp_only_layers") or []
    if sorted(only_dense) != list(range(len(only_dense))):
        raise _refuse(where, "mlp_only_layers", only_dense, "a dense layer after MoE layers")
    return config.get("first_k_dense_replace") or len(only_dense)


def _moe(config: Config, where: str) -> dict[str, Any] | None:
    experts = _first(config, _NUM_EXPERTS)
    if experts is None or experts in (0, 1):
        return None
    width = config.get("moe_intermediate_size") or config.get("intermediate_size")
    shared_width = _first(config, ("shared_expert_intermediate_size", "shared_intermediate_size"))
    shared = _first(config, ("n_shared_experts", "num_shared_experts"))
    if shared is None:
        shared = 1 if shared_width else 0
    return {
        "num_experts": experts,
        "top_k": _first(config, _TOP_K),
        "expert_intermediate_size": width,
        "num_shared_experts": shared,
        "shared_expert_intermediate_size": (shared_width or width) if shared else 0,
        "first_dense_layers": _first_dense_layers(config, where),
        "expert_bias": config.get("model_type") == "gpt_oss",
    }


def _window(config: Config, where: str) -> tuple[int | None, int]:
    """(Tokens of the sliding window, layers that have it); (None, 0) where every layer attends to everything.

    Without ``layer_types`` a window holds in every layer, or where ``use_sliding_window`` is given in those from
    ``max_window_layers`` on (Qwen2). One at least as long as ``max_position_embeddings`` is none.
    """
    layers, kinds = _required(config, "num_hidden_layers", where), config.get("layer_types")
    if kinds:
        if len(kinds) != layers:
            raise InputError(f"{where}: layer_types has {len(kinds)} entries, num_hidden_layers is {layers}")
        windowed = sum(kind == _WINDOWED for kind in kinds)
    elif not config.get("sliding_window") or not config.get("use_sliding_window", True):
        windowed = 0
    elif "use_sliding_window" in config:
        windowed = max(0, layers - int(config.get("max_window_layers") or 0))
    else:
        windowed = layers
    if not windowed or config.get("use_sliding_window") is False:
        return None, 0
    window = _required(config, "sliding_window", where)
    return (window, windowed) if window < config.get("max_position_embeddings", 0) else (None, 0)


def _mla(config: Config) -> dict[str, Any] | None:
    if not config.get("kv_lora_rank"):
        return None
    keys = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    return {key: config.get(key) for key in keys}


def _required(config: Config, key: str, where: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{where}: {key} must be a whole number of at least 1, got {shortened(repr(value))}")
    return value


def _head_dim(config: Config, heads: int, where: str) -> int:
    if config.get("head_dim"):
        return _required(config, "head_dim", where)
    hidden = _required(config, "hidden_size", where)
    if hidden % heads:
        raise InputError(f"{where}: head_dim is missing and num_attention_heads {heads} does not divide {hidden}")
    return hidden // heads


def _name(path: Path) -> str:
    stem = path.resolve().parent.name if path.stem == "config" else path.stem.removesuffix("_config")
    return stem.rpartition("--")[2]


def _card_values(config: Config, tied: bool, path: Path, where: str) -> dict[str, Any]:
    heads = _required(config, "num_attention_heads", where)
    mla = _mla(config)
    latent = (
        None
        if mla is None
        else _required(config, "qk_nope_head_dim", where) + _required(config, "qk_rope_head_dim", where)
    )
    family = str(config.get("model_type") or "")
    biased = bool(config.get("attention_bias", family.startswith("qwen2")))
    window, windowed = _window(config, where)
    return {
        "name": _name(path),
        "hidden_size": _required(config, "hidden_size", where),
        "num_layers": _required(config, "num_hidden_layers", where),
        "num_heads": heads,
        "num_kv_heads": heads if mla else config.get("num_key_value_heads") or heads,
        "head_dim": latent or _head_dim(config, heads, where),
        "intermediate_size": _required(config, "intermediate_size", where),
        "vocab_size": _required(config, "vocab_size", where),
        "tied_embeddings": tied,
        "qk_norm": bool(config.get("use_qk_norm", family.startswith("qwen3"))),
        "attention_bias": biased,
        "attention_output_bias": biased and family in _BIASED_OUTPUT,
        "attention_sinks": family == "gpt_oss",
        "sliding_window_tokens": window,
        "sliding_window_layers": windowed,
        "moe": _moe(config, where),
        "mla": mla,
        "mtp_layers": _first(config, _MTP) or 0,
        "max_position_embeddings": _required(config, "max_position_embeddings", where),
        "source": f"Hugging Face config.json of {_name(path)}",
    }


def card_from_huggingface(path: Path) -> ModelCard:
    """Model card from a Hugging Face ``config.json``, or from a folder that holds one.

    Reads dense (Llama, Mistral, Qwen2/2.5/3), MoE (Mixtral, Qwen-MoE, GLM-4.5, gpt-oss) and MLA models (DeepSeek-V2/V3,
    Kimi-K2), with sliding windows in some or all layers, also nested under ``text_config``. Raises InputError naming
    the key for whatever would make counts wrong: linear or sparse attention, state-space layers, layers of unequal
    shape, ungated FFNs.
    """
    if path.is_dir():
        path = path / "config.json"
    where = shown_path(path)
    try:
        whole = json.loads(read_text(path, DOCUMENT_BYTES))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: is not valid JSON ({error})") from error
    if not isinstance(whole, dict):
        raise InputError(f"{where}: expected a JSON object with the model's dimensions")
    config = next((whole[key] for key in _NESTED if isinstance(whole.get(key), dict)), whole)
    tied = bool(config.get("tie_word_embeddings", whole.get("tie_word_embeddings", False)))
    try:
        _reject_unsupported(config, where)
        return ModelCard.model_validate(_card_values(config, tied, path, where))
    except ValidationError as error:
        raise as_input_error(error, where, ModelCard) from error
    except (AttributeError, TypeError, ValueError) as error:  # a list where a number belongs, and the like
        raise InputError(f"{where}: is no model's config.json ({shortened(str(error))})") from error
