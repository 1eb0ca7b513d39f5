"""Model card from a Hugging Face config.json; what the card cannot express is refused by name."""

import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlsim.errors import InputError, shortened
from rlsim.files.reading import DOCUMENT_BYTES, read_text, shown_path
from rlsim.files.yaml import lists_beside
from rlsim.schema.messages import as_input_error
from rlsim.schema.model import ModelCard

_FULL, _WINDOWED, _LINEAR = "full_attention", "sliding_attention", "linear_attention"
_SPARSE = "deepseek_sparse_attention"
"""Kinds of layers in ``layer_types`` that a card describes."""
_DEFAULT_INTERVAL = 4
"""Every how manieth layer of Qwen3-Next is full attention, where its config.json does not tell (transformers)."""
_NEAREST = "linear attention of {!r} (nearest family: qwen3_next)"


def card_from_huggingface(path: Path) -> ModelCard:
    """Model card from a Hugging Face ``config.json``, or from a folder that holds one.

    Reads dense (Llama, Mistral, Qwen2/2.5/3), MoE (Mixtral, Qwen-MoE, GLM-4.5, gpt-oss) and MLA models (DeepSeek-V2/V3,
    Kimi-K2), hybrids with linear attention (Qwen3-Next, Qwen3.5) or Mamba-2 (Nemotron-H and Nemotron 3), and sparse
    attention (DeepSeek-V3.2, GLM-5), with sliding windows in some or all layers, also nested under ``text_config``,
    with the vision towers of Qwen-VL. Raises InputError naming the key, and the nearest family, for whatever would make
    counts wrong: other recurrent layers, compressed attention, layers of unequal shape.
    """
    if path.is_dir():
        path = path / "config.json"
    where = shown_path(path)
    try:
        # RecursionError: nested brackets without end are no document, and no reason for a traceback.
        whole = json.loads(read_text(path, DOCUMENT_BYTES))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: is not valid JSON ({error})") from error
    if not isinstance(whole, dict):
        raise InputError(f"{where}: expected a JSON object with the model's dimensions")
    try:
        return ModelCard.model_validate(_Config(whole, where).card(_name(path)))
    except ValidationError as error:
        raise as_input_error(error, where, ModelCard) from error
    except (AttributeError, TypeError, ValueError) as error:  # a list where a number belongs, and the like
        raise InputError(f"{where}: is no model's config.json ({shortened(str(error))})") from error


def _name(path: Path) -> str:
    stem = path.resolve().parent.name if path.stem == "config" else path.stem.removesuffix("_config")
    return stem.rpartition("--")[2]


def _shortest_period(kinds: Sequence[str]) -> list[str]:
    """The shortest run of kinds of which ``kinds`` is a whole number of repetitions."""
    lengths = (length for length in range(1, len(kinds) + 1) if len(kinds) % length == 0)
    return next(list(kinds[:n]) for n in lengths if list(kinds[:n]) * (len(kinds) // n) == list(kinds))


class _Config:
    """A config.json and where it lies. Every method raises InputError for what a card does not describe."""

    def __init__(self, whole: Mapping[str, Any], where: str) -> None:
        self.names = lists_beside(__file__, "huggingface.yaml")
        self.where = where
        self.values = next((whole[key] for key in self.names["nested"] if isinstance(whole.get(key), dict)), whole)
        # Nested configs leave it in the outer document or in the inner one.
        self.tied = bool(self.values.get("tie_word_embeddings", whole.get("tie_word_embeddings", False)))
        self.family = str(self.values.get("model_type") or "")
        self.delta_rule = self.family in self.names["delta_rule"]
        sees = whole.get("vision_config")
        self.sees: Mapping[str, Any] = sees if isinstance(sees, dict) else {}

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    def first(self, name: str) -> Any:
        """Value under the first given key of those that may hold ``name``."""
        return next((self.values[key] for key in self.names[name] if self.get(key) is not None), None)

    def required(self, key: str) -> int:
        value = self.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{self.where}: {key} must be a whole number of at least 1, got {shortened(repr(value))}")
        return value

    def section(self, name: str) -> dict[str, int]:
        return {ours: self.required(theirs) for ours, theirs in self.names[name].items()}

    def refused(self, key: str, what: str, value: Any = None) -> InputError:
        shown = shortened(json.dumps(self.get(key) if value is None else value))
        return InputError(f"{self.where}: {key} = {shown}: {what} is not modelled")

    def refuse_others(self, key: str, known: Iterable[Any], what: str) -> None:
        """Refuse a list with an entry that is none of ``known``; what: an entry, with {} in its place."""
        kinds, known = self.get(key) or [], list(known)
        other = next((kind for kind in kinds if kind not in known), None)
        if other is not None:
            near = get_close_matches(str(other), map(str, known), n=1, cutoff=0.0)[0]
            raise self.refused(key, f"{what.format(repr(other))} (nearest: {near})", kinds)

    def refuse_unsupported(self) -> None:
        for key, what in self.names["unsupported"].items():
            if self.get(key):
                raise self.refused(key, what)
        layer_types = (_FULL, _WINDOWED, _LINEAR, *((_SPARSE,) if self.get("index_topk") else ()))
        for key, known in (("layer_types", layer_types), ("attn_type_list", (1,))):
            self.refuse_others(key, known, "a layer of kind {}")
        if not self.delta_rule:  # blocks of other families have other shapes than those that a card describes
            for key in ("linear_num_key_heads", "full_attention_interval"):
                if self.get(key):
                    raise self.refused(key, _NEAREST.format(self.family))
            if _LINEAR in (self.get("layer_types") or []):
                raise self.refused("layer_types", _NEAREST.format(self.family))
        if self.get("ssm_state_size") and self.blocks is None:
            what = f"state-space layers of {self.family!r} (nearest family: nemotron_h)"
            raise self.refused("ssm_state_size", what)
        if int(self.get("interleave_moe_layer_step") or 1) != 1:
            raise self.refused("interleave_moe_layer_step", "alternating MoE layers")
        activation = self.first("activation")
        if activation not in (*self.names["gated_activations"], *self.names["ungated_activations"]):
            raise self.refused("hidden_act", "an FFN that is neither gated by SiLU nor a squared ReLU", activation)

    @cached_property
    def blocks(self) -> list[str] | None:
        """Single blocks of a Nemotron-H model in their order; None for other families."""
        letters, named = self.get("hybrid_override_pattern"), self.names["hybrid_letters"]
        if letters:
            other = next((letter for letter in letters if letter not in named), None)
            if other is not None:
                known = ", ".join(f"{letter} ({name})" for letter, name in named.items())
                raise self.refused("hybrid_override_pattern", f"a block {other!r} (known: {known})")
            return [named[letter] for letter in letters]
        self.refuse_others("layers_block_type", named.values(), "a block of kind {}")
        return list(self.get("layers_block_type") or []) or None

    @property
    def num_layers(self) -> int:
        """Layers; of Nemotron-H its blocks, which some of its config.json do not count."""
        if self.blocks is None or self.get("num_hidden_layers"):
            return self.required("num_hidden_layers")
        return len(self.blocks)

    @property
    def pattern(self) -> list[str] | None:
        """Layer pattern of a hybrid model; None where every layer is attention."""
        if self.blocks is not None:
            return _shortest_period(self.blocks)
        kinds = self.get("layer_types") or []
        if self.delta_rule and not kinds:
            interval = self.get("full_attention_interval") or _DEFAULT_INTERVAL
            layers = range(1, 1 + self.required("num_hidden_layers"))
            kinds = [_LINEAR if layer % interval else _FULL for layer in layers]
        return _shortest_period(kinds) if _LINEAR in kinds else None

    @property
    def window(self) -> tuple[int | None, int]:
        """(Tokens of the sliding window, layers that have it); (None, 0) where every layer attends to everything.

        Without ``layer_types`` a window holds in every layer, or where ``use_sliding_window`` is given in those from
        ``max_window_layers`` on (Qwen2). One at least as long as ``max_position_embeddings`` is none.
        """
        layers, kinds = self.num_layers, self.get("layer_types")
        if kinds:
            if len(kinds) != layers:
                raise InputError(f"{self.where}: layer_types has {len(kinds)} entries, num_hidden_layers is {layers}")
            windowed = sum(kind == _WINDOWED for kind in kinds)
        elif not self.get("sliding_window") or not self.get("use_sliding_window", True):
            windowed = 0
        elif "use_sliding_window" in self.values:
            windowed = max(0, layers - int(self.get("max_window_layers") or 0))
        else:
            windowed = layers
        if not windowed or self.get("use_sliding_window") is False:
            return None, 0
        window = self.required("sliding_window")
        return (window, windowed) if window < self.get("max_position_embeddings", 0) else (None, 0)

    def leading_dense(self, key: str, moe_kind: Any) -> int:
        """Dense layers before the first MoE layer; none may follow later."""
        kinds = self.get(key)
        dense = next((index for index, kind in enumerate(kinds) if kind == moe_kind), len(kinds))
        if any(kind != moe_kind for kind in kinds[dense:]):
            raise self.refused(key, "a dense layer after MoE layers", list(kinds))
        return dense

    @property
    def first_dense_layers(self) -> int:
        if isinstance(self.get("moe_layer_freq"), list):
            return self.leading_dense("moe_layer_freq", 1)
        if self.get("mlp_layer_types"):
            return self.leading_dense("mlp_layer_types", "sparse")
        for key in ("moe_layer_freq", "decoder_sparse_step"):
            if self.get(key, 1) != 1:
                raise self.refused(key, "alternating dense and MoE layers")
        only_dense = self.get("mlp_only_layers") or []
        if sorted(only_dense) != list(range(len(only_dense))):
            raise self.refused("mlp_only_layers", "a dense layer after MoE layers")
        return self.get("first_k_dense_replace") or len(only_dense)

    @property
    def gated(self) -> bool:
        return self.first("activation") not in self.names["ungated_activations"]

    @property
    def moe(self) -> dict[str, Any] | None:
        experts = self.first("num_experts")
        # Dense models of a family of mixtures may state 0 or 1.
        if experts is None or experts in (0, 1):
            return None
        width = self.get("moe_intermediate_size") or self.get("intermediate_size")
        shared_width, shared = self.first("shared_width"), self.first("shared_experts")
        if shared is None:
            shared = 1 if shared_width else 0
        return {
            "num_experts": experts,
            "top_k": self.first("top_k"),
            "expert_intermediate_size": width,
            "num_shared_experts": shared,
            "shared_expert_intermediate_size": (shared_width or width) if shared else 0,
            "first_dense_layers": self.first_dense_layers,
            "expert_bias": self.family == "gpt_oss",
            "gated": self.gated,
            "latent_size": self.get("moe_latent_size"),
        }

    @property
    def sparse_attention(self) -> dict[str, Any] | None:
        if not self.get("index_topk"):
            return None
        kinds = self.get("indexer_types")
        return {
            "index_heads": self.required("index_n_heads"),
            "index_head_dim": self.required("index_head_dim"),
            "top_k_tokens": self.required("index_topk"),
            "index_layers": None if not kinds else sum(kind == "full" for kind in kinds),
        }

    @property
    def extension(self) -> dict[str, Any]:
        """Window that rotary scaling reaches beyond ``max_position_embeddings``, and its kind; {} where none does."""
        scaling = self.get("rope_scaling") or self.get("rope_parameters") or {}
        kind, factor = scaling.get("rope_type") or scaling.get("type"), scaling.get("factor")
        # Without the length that was trained on nobody can say what the factor multiplies.
        native = scaling.get("original_max_position_embeddings")
        # Other kinds (llama3, longrope) count their stretch into max_position_embeddings already.
        if kind not in ("yarn", "linear", "dynamic") or not factor or not native:
            return {}
        reached = round(factor * native)
        if reached <= self.get("max_position_embeddings", 0):
            return {}
        return {"extended_position_embeddings": reached, "rotary_scaling": kind}

    def head_dim(self, heads: int, latent: bool) -> int:
        if latent:
            return self.required("qk_nope_head_dim") + self.required("qk_rope_head_dim")
        if self.get("head_dim"):
            return self.required("head_dim")
        hidden = self.required("hidden_size")
        if hidden % heads:
            raise InputError(
                f"{self.where}: head_dim is missing and num_attention_heads {heads} does not divide {hidden}"
            )
        # What transformers does where head_dim is not given (Llama, Qwen2).
        return hidden // heads

    @property
    def vision(self) -> dict[str, Any] | None:
        """Values of the vision tower; None without one, and of towers whose configuration has other words."""
        keys, one = self.names["vision"], self.sees
        if any(not isinstance(one.get(theirs), int) for theirs in (*keys.values(), "spatial_merge_size")):
            return None
        # Qwen2.5-VL has windows and a gate; of Qwen2-VL hidden_size is that of the language model.
        windows = {
            "window_patches": (one["window_size"] // one["patch_size"]) ** 2,
            "full_layers": len(one.get("fullatt_block_indexes") or ()),
        } if one.get("window_size") else {}  # fmt: skip
        return {
            **{ours: one[theirs] for ours, theirs in keys.items()},
            "hidden_size": one.get("embed_dim") or one.get("hidden_size"),
            "gated_ffn": one.get("hidden_act") in self.names["gated_activations"],
            "merged_patches": one["spatial_merge_size"] ** 2,
            "mergers": 1 + len(one.get("deepstack_visual_indexes") or ()),
            **windows,
            "source": "vision_config of its config.json",
        }

    def card(self, name: str) -> dict[str, Any]:
        """Values of the model card."""
        self.refuse_unsupported()
        heads, latent = self.required("num_attention_heads"), bool(self.get("kv_lora_rank"))
        # Qwen2's code has biases on Q, K and V, and its config.json no key for them.
        biased = bool(self.get("attention_bias", self.family.startswith("qwen2")))
        pattern, (window, windowed) = self.pattern, self.window
        # A model whose FFNs are all experts may name no other width than theirs.
        only_experts = not self.get("intermediate_size") and bool(self.get("moe_intermediate_size"))
        return {
            "name": name,
            "hidden_size": self.required("hidden_size"),
            "num_layers": self.num_layers,
            "num_heads": heads,
            "num_kv_heads": heads if latent else self.get("num_key_value_heads") or heads,
            "head_dim": self.head_dim(heads, latent),
            "intermediate_size": self.required("moe_intermediate_size" if only_experts else "intermediate_size"),
            "vocab_size": self.required("vocab_size"),
            "tied_embeddings": self.tied,
            # Qwen3 normalises always, without a key.
            "qk_norm": bool(self.get("use_qk_norm", self.family.startswith("qwen3"))),
            "attention_bias": biased,
            "attention_output_bias": biased and self.family in self.names["biased_output"],
            "attention_sinks": self.family == "gpt_oss",
            "sliding_window_tokens": window,
            "sliding_window_layers": windowed,
            "moe": self.moe,
            "mla": {key: self.get(key) for key in self.names["mla"]} if latent else None,
            "mtp_layers": self.first("mtp_layers") or 0,
            "layer_pattern": pattern,
            "linear_attention": self.section("linear_attention") if _LINEAR in (pattern or ()) else None,
            "mamba": self.section("mamba") if "mamba" in (pattern or ()) else None,
            "sparse_attention": self.sparse_attention,
            # Qwen3-Next gates always, without a key.
            "attention_output_gate": bool(self.get("attn_output_gate", self.delta_rule)),
            "gated_ffn": self.gated,
            "vision": self.vision,
            "max_position_embeddings": self.required("max_position_embeddings"),
            **self.extension,
            "source": f"Hugging Face config.json of {name}",
        }
