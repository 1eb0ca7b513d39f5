"""Model card from a Hugging Face config.json; what the card cannot express is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlsim.errors import InputError, shortened
from rlsim.files.reading import DOCUMENT_BYTES, read_text, shown_path
from rlsim.schema.messages import as_input_error
from rlsim.schema.model import ModelCard

Config = Mapping[str, Any]

_NESTED = ("text_config", "llm_config", "language_config")
_NUM_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token")
_MTP = ("num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers")
_SHARED_WIDTH = (
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "moe_shared_expert_intermediate_size",
)
_BIASED_OUTPUT = ("llama", "gpt_oss")
"""Families whose ``attention_bias`` covers the output projection as well (their modelling code in transformers)."""
_ACTIVATIONS = ("hidden_act", "mlp_hidden_act", "hidden_activation", "activation_function")
_GATED_ACTIVATIONS = ("silu", "swish")

_FULL, _WINDOWED, _LINEAR = "full_attention", "sliding_attention", "linear_attention"
_SPARSE = "deepseek_sparse_attention"
"""Kinds of layers in ``layer_types`` that a card describes."""
_UNGATED_ACTIVATIONS = ("relu2",)
_DELTA_RULE = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
"""Families whose linear attention is the gated delta rule, with gated full attention between."""
_HYBRID_LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
"""Blocks of Nemotron-H by their letters in ``hybrid_override_pattern``."""
_DEFAULT_INTERVAL = 4
"""Every how manieth layer of Qwen3-Next is full attention, where its config.json does not tell (transformers)."""

_UNSUPPORTED = {
    "linear_attn_config": "linear attention that is not the gated delta rule of qwen3_next, the nearest family,",
    "state_size": "a Mamba of another family than nemotron_h, the nearest,",
    "mamba_d_state": "a Mamba of another family than nemotron_h, the nearest,",
    "hybrid_layer_pattern": "sliding-window layers between full-attention layers",
    "sliding_window_pattern": "sliding-window layers between full-attention layers",
    "attention_chunk_size": "chunked attention",
    "swa_num_attention_heads": "sliding-window layers of another shape",
    "sparse_attention_config": "sparse attention",
    "compress_ratios": "compressed sparse attention, of which deepseek_v32 is the nearest family,",
    "block_configs": "layers of unequal shape",
    "num_attention_groups": "layers of unequal shape",
    "num_global_key_value_heads": "layers of unequal shape",
    "global_head_dim": "layers of unequal shape",
    "num_kv_shared_layers": "KV caches shared between layers",
    "attention_k_eq_v": "keys used as values",
    "hidden_size_per_layer_input": "per-layer embeddings",
    "hc_mult": "several residual streams",
    "routed_expert_hidden_size": "experts of another hidden size",
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
    layer_types = (_FULL, _WINDOWED, _LINEAR, *((_SPARSE,) if config.get("index_topk") else ()))
    for key, known in (("layer_types", layer_types), ("attn_type_list", (1,))):
        kinds = config.get(key) or []
        other = next((kind for kind in kinds if kind not in known), None)
        if other is not None:
            near = get_close_matches(str(other), map(str, known), n=1, cutoff=0.0)[0]
            raise _refuse(where, key, kinds, f"a layer of kind {other!r} (nearest: {near})")
    _reject_foreign_recurrence(config, where)
    if int(config.get("interleave_moe_layer_step") or 1) != 1:
        raise _refuse(where, "interleave_moe_layer_step", config["interleave_moe_layer_step"], "alternating MoE layers")
    activation = _first(config, _ACTIVATIONS)
    if activation not in (*_GATED_ACTIVATIONS, *_UNGATED_ACTIVATIONS):
        raise _refuse(where, "hidden_act", activation, "an FFN that is neither gated by SiLU nor a squared ReLU")


def _reject_foreign_recurrence(config: Config, where: str) -> None:
    """Refuse recurrent layers of families whose blocks have other shapes than those that a card describes."""
    family = str(config.get("model_type") or "")
    if family not in _DELTA_RULE:
        for key in ("linear_num_key_heads", "full_attention_interval"):
            if config.get(key):
                raise _refuse(where, key, config[key], f"linear attention of {family!r} (nearest family: qwen3_next)")
        if _LINEAR in (config.get("layer_types") or []):
            kinds = config["layer_types"]
            raise _refuse(where, "layer_types", kinds, f"linear attention of {family!r} (nearest family: qwen3_next)")
    if config.get("ssm_state_size") and _blocks(config, where) is None:
        what = f"state-space layers of {family!r} (nearest family: nemotron_h)"
        raise _refuse(where, "ssm_state_size", config["ssm_state_size"], what)


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
    shared_width = _first(config, _SHARED_WIDTH)
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
        "gated": _gated(config),
        "latent_size": config.get("moe_latent_size"),
    }


def _gated(config: Config) -> bool:
    return _first(config, _ACTIVATIONS) not in _UNGATED_ACTIVATIONS


def _blocks(config: Config, where: str) -> list[str] | None:
    """Single blocks of a Nemotron-H model in their order; None for other families."""
    letters, names = config.get("hybrid_override_pattern"), config.get("layers_block_type")
    if letters:
        other = next((letter for letter in letters if letter not in _HYBRID_LETTERS), None)
        if other is not None:
            known = ", ".join(f"{letter} ({name})" for letter, name in _HYBRID_LETTERS.items())
            raise _refuse(where, "hybrid_override_pattern", letters, f"a block {other!r} (known: {known})")
        return [_HYBRID_LETTERS[letter] for letter in letters]
    if not names:
        return None
    other = next((name for name in names if name not in _HYBRID_LETTERS.values()), None)
    if other is not None:
        near = get_close_matches(str(other), _HYBRID_LETTERS.values(), n=1, cutoff=0.0)[0]
        raise _refuse(where, "layers_block_type", names, f"a block of kind {other!r} (nearest: {near})")
    return list(names)


def _shortest_period(kinds: Sequence[str]) -> list[str]:
    """The shortest run of kinds of which ``kinds`` is a whole number of repetitions."""
    lengths = (length for length in range(1, len(kinds) + 1) if len(kinds) % length == 0)
    return next(list(kinds[:n]) for n in lengths if list(kinds[:n]) * (len(kinds) // n) == list(kinds))


def _pattern(config: Config, where: str) -> list[str] | None:
    """Layer pattern of a hybrid model; None where every layer is attention."""
    blocks = _blocks(config, where)
    if blocks is not None:
        return _shortest_period(blocks)
    family = str(config.get("model_type") or "")
    kinds = config.get("layer_types") or []
    if family in _DELTA_RULE and not kinds:
        interval = config.get("full_attention_interval") or _DEFAULT_INTERVAL
        layers = _required(config, "num_hidden_layers", where)
        kinds = [_FULL if (index + 1) % interval == 0 else _LINEAR for index in range(layers)]
    return _shortest_period(kinds) if _LINEAR in kinds else None


def _linear_attention(config: Config, where: str) -> dict[str, Any]:
    names = {
        "num_key_heads": "linear_num_key_heads",
        "num_value_heads": "linear_num_value_heads",
        "key_head_dim": "linear_key_head_dim",
        "value_head_dim": "linear_value_head_dim",
        "conv_kernel": "linear_conv_kernel_dim",
    }
    return {ours: _required(config, theirs, where) for ours, theirs in names.items()}


def _mamba(config: Config, where: str) -> dict[str, Any]:
    names = {
        "num_heads": "mamba_num_heads",
        "head_dim": "mamba_head_dim",
        "state_size": "ssm_state_size",
        "num_groups": "n_groups",
        "conv_kernel": "conv_kernel",
        "chunk_tokens": "chunk_size",
    }
    return {ours: _required(config, theirs, where) for ours, theirs in names.items()}


def _sparse_attention(config: Config, where: str) -> dict[str, Any] | None:
    if not config.get("index_topk"):
        return None
    kinds = config.get("indexer_types")
    return {
        "index_heads": _required(config, "index_n_heads", where),
        "index_head_dim": _required(config, "index_head_dim", where),
        "top_k_tokens": _required(config, "index_topk", where),
        "index_layers": None if not kinds else sum(kind == "full" for kind in kinds),
    }


def _extension(config: Config) -> dict[str, Any]:
    """Window that rotary scaling reaches beyond ``max_position_embeddings``, and its kind; {} where none does."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind, factor = scaling.get("rope_type") or scaling.get("type"), scaling.get("factor")
    native = scaling.get("original_max_position_embeddings")
    if kind not in ("yarn", "linear", "dynamic") or not factor or not native:
        return {}
    reached = round(factor * native)
    if reached <= config.get("max_position_embeddings", 0):
        return {}
    return {"extended_position_embeddings": reached, "rotary_scaling": kind}


def _window(config: Config, where: str) -> tuple[int | None, int]:
    """(Tokens of the sliding window, layers that have it); (None, 0) where every layer attends to everything.

    Without ``layer_types`` a window holds in every layer, or where ``use_sliding_window`` is given in those from
    ``max_window_layers`` on (Qwen2). One at least as long as ``max_position_embeddings`` is none.
    """
    layers, kinds = _num_layers(config, where), config.get("layer_types")
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


def _num_layers(config: Config, where: str) -> int:
    """Number of layers; of Nemotron-H its blocks, which some of its config.json do not count."""
    blocks = _blocks(config, where)
    if blocks is None or config.get("num_hidden_layers"):
        return _required(config, "num_hidden_layers", where)
    return len(blocks)


def _dense_width(config: Config, where: str) -> int:
    """Width of the dense FFN; of a model whose FFNs are all experts, and names none, that of an expert."""
    if config.get("intermediate_size") or not config.get("moe_intermediate_size"):
        return _required(config, "intermediate_size", where)
    return _required(config, "moe_intermediate_size", where)


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
    pattern = _pattern(config, where)
    kinds = pattern or ()
    return {
        "name": _name(path),
        "hidden_size": _required(config, "hidden_size", where),
        "num_layers": _num_layers(config, where),
        "num_heads": heads,
        "num_kv_heads": heads if mla else config.get("num_key_value_heads") or heads,
        "head_dim": latent or _head_dim(config, heads, where),
        "intermediate_size": _dense_width(config, where),
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
        "layer_pattern": pattern,
        "linear_attention": _linear_attention(config, where) if _LINEAR in kinds else None,
        "mamba": _mamba(config, where) if "mamba" in kinds else None,
        "sparse_attention": _sparse_attention(config, where),
        "attention_output_gate": bool(config.get("attn_output_gate", family in _DELTA_RULE)),
        "gated_ffn": _gated(config),
        "max_position_embeddings": _required(config, "max_position_embeddings", where),
        **_extension(config),
        "source": f"Hugging Face config.json of {_name(path)}",
    }


def card_from_huggingface(path: Path) -> ModelCard:
    """Model card from a Hugging Face ``config.json``, or from a folder that holds one.

    Reads dense (Llama, Mistral, Qwen2/2.5/3), MoE (Mixtral, Qwen-MoE, GLM-4.5, gpt-oss) and MLA models (DeepSeek-V2/V3,
    Kimi-K2), hybrids with linear attention (Qwen3-Next, Qwen3.5) or Mamba-2 (Nemotron-H and Nemotron 3), and sparse
    attention (DeepSeek-V3.2, GLM-5), with sliding windows in some or all layers, also nested under ``text_config``,
    whose vision tower is left out. Raises InputError naming the key, and the nearest family, for whatever would make
    counts wrong: other recurrent layers, compressed attention, layers of unequal shape.
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
