"""What frameworks leave to Megatron-Core."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from rlsim.readers.frameworks.rules import Assumption
from rlsim.readers.frameworks.targets import Trainer


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
    return c.tensor_model_parallel_size if gpus is None or _divides(c, gpus) else None


def whole_experts(c: Sizes, gpus: int) -> Iterator[Assumption]:
    """What is taken for granted where ``shared_experts`` finds none that divide the trainer's ``gpus``."""
    if c.expert_tensor_parallel_size is None and c.expert_model_parallel_size > 1 and not _divides(c, gpus):
        yield Assumption(
            f"No GPUs share an expert: expert_tensor_parallel_size is not stated, and with the "
            f"{c.tensor_model_parallel_size} that Megatron-Core would take the experts' sizes do not divide the "
            f"{gpus} GPUs of the trainer, where it stops; state the size that the run has.",
            [Trainer.expert_tensor_parallel],
        )


def _divides(c: Sizes, gpus: int) -> bool:
    """Whether experts shared by the GPUs of a layer divide so many GPUs."""
    return gpus % (c.tensor_model_parallel_size * c.expert_model_parallel_size * c.pipeline_model_parallel_size) == 0
