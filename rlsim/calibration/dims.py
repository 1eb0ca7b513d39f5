"""Dimensions of the models whose operators are measured, as plain data (standard library only)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlsim.errors import InputError

Dims = Mapping[str, int]

MODELS: dict[str, dict[str, int]] = {
    "qwen3-8b": {
        "layers": 36,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "width": 12288,
        "vocabulary": 151936,
        "qk_norm": 1,
        "draft_width": 12288,
        "draft_vocabulary": 32000,
    },
    "qwen3-32b": {
        "layers": 64,
        "hidden": 5120,
        "heads": 64,
        "kv_heads": 8,
        "head_dim": 128,
        "width": 25600,
        "vocabulary": 151936,
        "qk_norm": 1,
    },
    "qwen3-30b-a3b": {
        "layers": 48,
        "hidden": 2048,
        "heads": 32,
        "kv_heads": 4,
        "head_dim": 128,
        "width": 768,
        "vocabulary": 151936,
        "qk_norm": 1,
        "experts": 128,
        "top_k": 8,
        "draft_width": 12288,
        "draft_vocabulary": 32000,
    },
    "qwen3-235b-a22b": {
        "layers": 94,
        "hidden": 4096,
        "heads": 64,
        "kv_heads": 4,
        "head_dim": 128,
        "width": 1536,
        "vocabulary": 151936,
        "qk_norm": 1,
        "experts": 128,
        "top_k": 8,
        "draft_width": 24576,
        "draft_vocabulary": 32000,
    },
    "llama-3.1-8b": {
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "width": 14336,
        "vocabulary": 128256,
        "qk_norm": 0,
        "draft_width": 14336,
        "draft_vocabulary": 32000,
    },
    "llama-3.1-70b": {
        "layers": 80,
        "hidden": 8192,
        "heads": 64,
        "kv_heads": 8,
        "head_dim": 128,
        "width": 28672,
        "vocabulary": 128256,
        "qk_norm": 0,
    },
    "tiny": {
        "layers": 4,
        "hidden": 256,
        "heads": 8,
        "kv_heads": 2,
        "head_dim": 32,
        "width": 768,
        "vocabulary": 2048,
        "qk_norm": 1,
        "draft_width": 768,
        "draft_vocabulary": 512,
    },
}
"""Target dimensions from each model card's config.json; draft heads from sgl-project/SpecForge
``configs/*-eagle3.json``.

``width`` is the intermediate size of the dense feed-forward, or of one expert where ``experts`` > 0. ``tiny`` is no
published model: it is what a CPU can measure in seconds.
"""


@dataclass(frozen=True)
class ModelDims:
    """One decoder's dimensions; ``experts`` = 0 means a dense feed-forward, ``qk_norm`` a norm on queries and keys."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocabulary: int
    layers: int = 1
    qk_norm: int = 0
    experts: int = 0
    top_k: int = 0
    draft_width: int = 0
    draft_vocabulary: int = 0

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.kv_heads

    @property
    def qkv_width(self) -> int:
        """Output columns of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def draft_layer(self) -> ModelDims:
        """The EAGLE-3 draft layer of this target: dense, of the draft's width, without a norm on queries and keys."""
        width, vocabulary = self.draft_width or self.width, self.draft_vocabulary or self.vocabulary
        return ModelDims(self.hidden, self.heads, self.kv_heads, self.head_dim, width, vocabulary)


def model_dims(model: str | Dims) -> ModelDims:
    """Dimensions of a shipped model by name, or of a plain mapping with :class:`ModelDims`' fields.

    Raises InputError for an unknown name, an unknown or missing key, or KV heads that do not divide the heads.
    """
    if isinstance(model, str) and model not in MODELS:
        raise InputError(f"no dimensions for model '{model}'; known: {', '.join(sorted(MODELS))}")
    values = MODELS[model] if isinstance(model, str) else dict(model)
    try:
        dims = ModelDims(**values)
    except TypeError as error:
        raise InputError(f"model dimensions: {error}") from error
    if dims.heads % dims.kv_heads:
        raise InputError(f"model dimensions: kv_heads={dims.kv_heads} does not divide heads={dims.heads}")
    return dims
