"""What frameworks leave to Megatron-Core."""

from __future__ import annotations

from typing import Protocol


class Sizes(Protocol):
    """Parallel sizes as Megatron-Core calls them."""

    @property
    def tensor_model_parallel_size(self) -> int:
        """GPUs that share every layer."""

    @property
    def pipeline_model_parallel_size(self) -> int:
        """Stages of layers."""

    @property
    def expert_model_parallel_size(self) -> int:
        """GPUs over which experts are spread."""

    @property
    def expert_tensor_parallel_size(self) -> int | None:
        """GPUs that share an expert, where that is stated."""


def shared_experts(c: Sizes, gpus: int | None = None) -> int | None:
    """GPUs that share an expert: as stated, else where experts are spread those of a layer (Megatron-Core,
    model_parallel_config.py:506; SkyRL says so of its own default, skyrl/train/config/config.py:459).

    gpus: of the trainer, where they are known: Megatron-Core stops where the experts' sizes do not divide them
    (parallel_state.py: initialize_model_parallel), so that whoever runs it states another.
    """
    if c.expert_tensor_parallel_size or c.expert_model_parallel_size <= 1:
        return c.expert_tensor_parallel_size
    sizes = c.tensor_model_parallel_size * c.expert_model_parallel_size * c.pipeline_model_parallel_size
    return c.tensor_model_parallel_size if gpus is None or gpus % sizes == 0 else None
