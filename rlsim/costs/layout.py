"""How a model is spread over the training GPUs: parameters per rank, data-parallel sizes."""

from __future__ import annotations

from dataclasses import dataclass

from rlsim.schema.model import ModelCard, parameter_counts
from rlsim.schema.trainer import Trainer

TENSORS_PER_ATTENTION, TENSORS_PER_FFN, TENSORS_PER_EXPERT = 8, 3, 3
"""Weight tensors of one attention block (projections and norms), one FFN and one expert in a published checkpoint."""


@dataclass(frozen=True)
class TrainLayout:
    """Parallel sizes and parameters of one rank (elements).

    data_parallel: replicas that see different micro-batches; dense_shards, expert_shards: ranks over which optimizer
    state of the dense and of the expert parameters is spread.
    """

    data_parallel: int
    dense_shards: int
    expert_shards: int
    dense_parameters: float
    expert_parameters: float

    @property
    def parameters(self) -> float:
        """Parameters that one rank holds in full."""
        return self.dense_parameters + self.expert_parameters

    @property
    def optimizer_parameters(self) -> float:
        """Parameters whose optimizer state one rank holds."""
        return self.dense_parameters / self.dense_shards + self.expert_parameters / self.expert_shards


def train_layout(trainer: Trainer, card: ModelCard, gpus: int) -> TrainLayout:
    """Megatron-Core: data parallelism takes what TP x CP x PP leaves. FSDP: everything is sharded over all GPUs."""
    counts = parameter_counts(card)
    tp, pp, cp, ep = (
        trainer.tensor_parallel,
        trainer.pipeline_parallel,
        trainer.context_parallel,
        trainer.expert_parallel,
    )
    experts = card.num_moe_layers * counts.expert * (card.moe.num_experts if card.moe else 0)
    dense = counts.total - experts
    data_parallel = gpus // (tp * pp * cp)
    if trainer.backend == "fsdp":
        return TrainLayout(data_parallel, gpus, gpus, dense / tp, experts / tp)
    return TrainLayout(
        data_parallel=data_parallel,
        dense_shards=data_parallel * cp,
        expert_shards=max(1, gpus // (pp * ep)),
        dense_parameters=dense / (tp * pp),
        expert_parameters=experts / (ep * pp),
    )


def weight_tensors(card: ModelCard) -> int:
    """Named weight tensors of the checkpoint; refit handles them one by one."""
    per_dense = TENSORS_PER_ATTENTION + TENSORS_PER_FFN
    total = card.num_dense_layers * per_dense + 3
    if card.moe is not None:
        experts = TENSORS_PER_EXPERT * (card.moe.num_experts + card.moe.num_shared_experts)
        total += card.num_moe_layers * (TENSORS_PER_ATTENTION + 1 + experts)
    return total
