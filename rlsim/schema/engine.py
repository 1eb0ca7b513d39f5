"""The rollout engine: its parallel layout, precisions, batching and the host beside it."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from rlsim.errors import shortened
from rlsim.schema.base import Strict
from rlsim.schema.model import ModelCard

RELEASE = re.compile(r"v?\d+(\.\d+){0,3}([-.+]?[a-z0-9]+)*", re.ASCII | re.IGNORECASE)
"""A release as packages number them: 0.17.1, v0.11.0rc2, 0.20.0.post1, 0.18.1+cu128."""

Precision = Literal["bf16", "fp8", "fp8_block", "nvfp4"]


class Engine(Strict):
    """One data-parallel replica occupies tensor_parallel x pipeline_parallel GPUs."""

    name: Literal["vllm", "sglang", "trtllm"] = Field(
        default="vllm", description="Engine whose operator tables are used."
    )
    version: str | None = Field(
        default=None,
        max_length=40,
        description="Release, which selects the fitted host overhead and what is captured; default: the engine's "
        "host overhead over all releases, captured as the newest.",
    )

    @field_validator("version")
    @classmethod
    def _is_release(cls, version: str | None) -> str | None:
        if version is not None and not RELEASE.fullmatch(version):
            raise ValueError(f"must be a release such as 0.17.1, got {shortened(repr(version))}")
        return version

    tensor_parallel: int = Field(default=1, ge=1, le=1024, description="GPUs that share every layer.")
    pipeline_parallel: int = Field(default=1, ge=1, le=128, description="Consecutive stages of layers.")
    expert_parallel: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="GPUs over which whole experts are spread; 1 shards each expert by TP instead.",
    )
    attention_data_parallel: int = Field(
        default=1, ge=1, le=1024, description="Attention copies within one replica (MoE with data-parallel attention)."
    )
    weight_precision: Precision = Field(
        default="bf16",
        description="Precision of weights and matrix products. "
        "fp8: one scale per tensor, known beforehand; fp8_block: a scale for each 128 x 128 block, as DeepSeek and "
        "Qwen publish their FP8 checkpoints.",
    )
    kv_precision: Literal["bf16", "fp8", "nvfp4"] = Field(default="bf16", description="Precision of the KV cache.")
    max_running_sequences: int = Field(
        default=1024, ge=1, le=65536, description="Sequences decoded at once per replica."
    )
    max_batched_tokens: int = Field(default=16384, ge=1, le=1_048_576, description="Token budget of one iteration.")
    gpu_memory_utilization: float = Field(
        default=0.9, gt=0, le=1, description="Share of usable device memory that the engine may take."
    )
    cuda_graphs: bool = Field(
        default=True, description="Replay captured graphs where the batch fits; false runs eagerly."
    )
    max_captured_tokens: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Largest captured batch in tokens; larger iterations launch every kernel from the host. "
        "Default: as the engine's release captures, see docs/model.md.",
    )
    prefix_caching: bool = Field(default=True, description="Samples of one prompt on one replica share its prefill.")
    chunked_prefill: bool | None = Field(
        default=None,
        description="Prefill rides along with decoding within the token budget; false stops decoding for it. Default "
        "as engines do: SGLang stops, vLLM and TensorRT-LLM mix.",
    )
    dispatch: Literal["static", "round_robin", "least_loaded", "shared_queue"] = Field(
        default="static",
        description="static: contiguous split (synchronous vLLM in NeMo-RL); round_robin: per sample (its async one); "
        "least_loaded: to the fewest unfinished samples on submission; shared_queue: to whoever has room first.",
    )
    expert_balance: Literal["balanced", "power_law_1.01", "power_law_1.2"] = Field(
        default="power_law_1.2", description="Routing skew of the measured MoE tables."
    )
    host_iteration_s: float | None = Field(
        default=None,
        ge=0,
        le=10,
        description="Host work per iteration that the device waits for (scheduler, input preparation, output); "
        "default: fitted, by release and host processor.",
    )
    host_sequence_s: float | None = Field(
        default=None, ge=0, le=1, description="Host work per running sequence and iteration; default: fitted."
    )
    in_process: bool | None = Field(
        default=None,
        description="The engine shares the caller's process, so handling outputs delays it (offline generation); "
        "default: with static dispatch.",
    )
    async_scheduling: bool = Field(
        default=False, description="Overlap host work with the device: the iteration takes the longer of the two."
    )

    @property
    def mixes_prefill(self) -> bool:
        """Whether prefill and decoding share iterations."""
        return self.name != "sglang" if self.chunked_prefill is None else self.chunked_prefill

    def attention_precision(self, card: ModelCard) -> str:
        """Precision of the attention projections of ``card``.

        NVFP4 checkpoints of models with latent attention keep theirs in BF16 (nvidia/DeepSeek-R1-0528-NVFP4 and
        Kimi-K2.5-NVFP4, hf_quant_config.json: self_attn is excluded), and so do those with linear attention
        (nvidia/Qwen3.5-397B-A17B-NVFP4: linear_attn and self_attn are).
        """
        kept = card.mla is not None or card.linear_attention is not None
        return "bf16" if self.weight_precision == "nvfp4" and kept else self.weight_precision

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one data-parallel replica."""
        return self.tensor_parallel * self.pipeline_parallel

    @model_validator(mode="after")
    def _layout(self) -> Engine:
        if self.expert_parallel > 1 and self.tensor_parallel % self.expert_parallel:
            raise ValueError(
                f"expert_parallel ({self.expert_parallel}) must divide tensor_parallel ({self.tensor_parallel}); "
                "a replica spreads its experts over its own GPUs"
            )
        if self.tensor_parallel % self.attention_data_parallel:
            raise ValueError(
                f"attention_data_parallel ({self.attention_data_parallel}) must divide "
                f"tensor_parallel ({self.tensor_parallel})"
            )
        return self
