"""How a model is spread over the training GPUs: parameters per rank, data-parallel sizes."""

from __future__ import annotations

from dataclasses import dataclass

from rlsim.costs.operators import work
from rlsim.costs.operators.recurrent_work import recurrent_matrices
from rlsim.costs.operators.work import Matrix
from rlsim.schema.model import ModelCard, parameter_counts
from rlsim.schema.trainer import Trainer

TENSORS_PER_ATTENTION, TENSORS_PER_FFN, TENSORS_PER_EXPERT = 8, 3, 3
"""Weight tensors of one mixer (projections and norms), one FFN and one gated expert in a published checkpoint."""


@dataclass(frozen=True)
class TrainLayout:
    """Parallel sizes and parameters of one rank (elements).

    data_parallel: replicas that see different micro-batches; dense_shards, expert_shards: ranks over which optimizer
    state of the dense and of the expert parameters is spread. trained_share: trained parameters over all (LoRA: less).
    """

    data_parallel: int
    dense_shards: int
    expert_shards: int
    dense_parameters: float
    expert_parameters: float
    trained_share: float = 1.0

    @property
    def parameters(self) -> float:
        """Parameters that one rank holds in full."""
        return self.dense_parameters + self.expert_parameters

    @property
    def sharded_parameters(self) -> float:
        """Parameters over the ranks that share them: what an FSDP rank holds."""
        return self.dense_parameters / self.dense_shards + self.expert_parameters / self.expert_shards

    @property
    def optimizer_parameters(self) -> float:
        """Parameters whose optimizer state one rank holds."""
        return self.trained_share * self.sharded_parameters

    def groups(self, trainer: Trainer) -> tuple[tuple[float, float, int, int], ...]:
        """Dense and expert parameters of a rank: all, trained, ranks that share them, and how far apart these are."""
        return tuple(
            (elements, self.trained_share * elements, shards, stride)
            for elements, shards, stride in (
                (self.dense_parameters, self.dense_shards, trainer.tensor_parallel),
                (self.expert_parameters, self.expert_shards, trainer.expert_parallel),
            )
        )


def train_layout(trainer: Trainer, card: ModelCard, gpus: int) -> TrainLayout:
    """Data parallelism takes what TP x CP x PP leaves; experts are spread over EP first, then over what is left.

    FSDP shards the weights of a rank as well, Megatron-Core their optimizer state alone.
    """
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
    return TrainLayout(
        data_parallel=data_parallel,
        dense_shards=data_parallel * cp,
        expert_shards=max(1, gpus // (pp * ep)),
        dense_parameters=dense / (tp * pp),
        expert_parameters=experts / (ep * pp),
        trained_share=_trained_share(card, trainer.lora_rank, counts.total),
    )


def _trained_share(card: ModelCard, lora_rank: int | None, parameters: int) -> float:
    """Share of the parameters that is trained: all, or two thin matrices beside each one of a layer (LoRA)."""
    if lora_rank is None:
        return 1.0
    counts = card.layer_counts
    widths = counts.attention * _widths(work.attention_matrices(card, 1))
    widths += (counts.linear + counts.mamba) * _widths(recurrent_matrices(card, 1))
    widths += counts.dense * _widths(work.ffn_matrices(card.hidden_size, card.intermediate_size, 1, card.gated_ffn))
    if card.moe is not None:
        moe = card.moe
        expert = work.ffn_matrices(card.expert_hidden_size, moe.expert_intermediate_size, 1, moe.gated)
        around = work.shared_expert_matrices(card, 1) + work.latent_expert_matrices(card)
        widths += counts.moe * (moe.num_experts * _widths(expert) + _widths(around))
    return min(1.0, lora_rank * widths / parameters)


def _widths(matrices: list[Matrix]) -> int:
    """Rows and columns of all matrices: what adapters of rank 1 hold."""
    return sum(one.n + one.k for one in matrices)


def weight_tensors(card: ModelCard) -> int:
    """Named weight tensors of the checkpoint; refit handles them one by one."""
    counts = card.layer_counts
    total = counts.mixers * TENSORS_PER_ATTENTION + counts.dense * TENSORS_PER_FFN + 3
    if card.moe is not None:
        experts = card.moe.matrices * (card.moe.num_experts + card.moe.num_shared_experts)
        total += counts.moe * (1 + experts + len(work.latent_expert_matrices(card)))
    return total
