"""Gradients, parameters and optimizer of a training step."""

from __future__ import annotations

from dataclasses import dataclass

from rlsim.costs.operators import work
from rlsim.costs.operators.device import Device
from rlsim.costs.operators.recurrent_work import recurrent_matrices
from rlsim.costs.operators.work import Matrix
from rlsim.costs.overheads import TrainingOverheads
from rlsim.costs.trainer.layout import TrainLayout
from rlsim.schema.model import ModelCard
from rlsim.schema.trainer import Trainer
from rlsim.units import BYTES_PER_ELEMENT

NEWTON_SCHULZ_STEPS = 5
"""Orthogonalisation steps of Muon (published default)."""


@dataclass(frozen=True)
class TrainingUpdate:
    """What follows the backward pass, and what FSDP gathers before each pass."""

    card: ModelCard
    trainer: Trainer
    layout: TrainLayout
    device: Device
    overheads: TrainingOverheads

    def gathering_s(self, stage_s: float, backward: bool) -> float:
        """FSDP gathers every layer's weights for each pass and scatters its gradients beside a stage's computation."""
        if self.trainer.backend != "fsdp":
            return 0.0
        layout, fabric = self.layout, self.device.fabric
        weight, total = BYTES_PER_ELEMENT["bf16"], 0.0
        for elements, trained, shards, stride in layout.groups(self.trainer):
            gather = float(fabric.collective("all_gather", shards, elements * weight, stride).seconds)
            scatter = float(fabric.collective("reduce_scatter", shards, trained * weight, stride).seconds)
            total += 2 * gather + scatter if backward else gather
        return self.overheads.exposed_s(total, stage_s, True)

    def exchange_s(self, forward_s: float, backward_s: float) -> float:
        """FP32 gradients scattered beside the last backward pass, weights gathered beside the next forward pass."""
        if self.trainer.backend == "fsdp":
            return 0.0
        fabric, overlapped = self.device.fabric, self.overheads.features.gradient_overlap
        scatter = gather = 0.0
        for _, trained, shards, stride in self.layout.groups(self.trainer):
            gradients, weights = trained * BYTES_PER_ELEMENT["fp32"], trained * BYTES_PER_ELEMENT["bf16"]
            scatter += float(fabric.collective("reduce_scatter", shards, gradients, stride).seconds)
            gather += float(fabric.collective("all_gather", shards, weights, stride).seconds)
        exposed = self.overheads.exposed_s
        return exposed(scatter, backward_s, overlapped) + exposed(gather, forward_s, overlapped)

    def optimizer_s(self) -> float:
        """One optimizer step on one rank's shard: state read and written once, gradients read, weights written."""
        moved = self.layout.optimizer_parameters * (
            2 * self.trainer.optimizer_bytes_per_parameter + BYTES_PER_ELEMENT["fp32"] + BYTES_PER_ELEMENT["bf16"]
        )
        seconds = float(self.device.operators.stream(moved).seconds)
        return seconds + self.orthogonalisation_s() if self.trainer.optimizer == "muon" else seconds

    def orthogonalisation_s(self) -> float:
        """Muon: Newton-Schulz on whole matrices, spread over the data-parallel ranks matrix by matrix.

        A matrix that tensor parallelism divides is gathered in BF16 by every rank of the group, and each of them
        orthogonalises it whole (the duplicated mode of Megatron-Core); an expert lies whole on its rank. Embedding and
        LM head stay with Adam.
        """
        operators, tp = self.device.operators, self.trainer.tensor_parallel
        compute, _ = operators.efficiency("bf16")
        flops = gathered = 0.0
        for matrices, count, shards, divided in self._matrices():
            flops += count / shards * sum(newton_schulz_flops(one) for one in matrices)
            gathered += divided * count / shards * sum(one.elements for one in matrices) * BYTES_PER_ELEMENT["bf16"]
        wire_s = float(self.device.fabric.collective("all_gather", tp, gathered).seconds)
        return flops / (operators.profile.flops("bf16") * compute) + wire_s

    def _matrices(self) -> list[tuple[list[Matrix], float, int, bool]]:
        """Whole matrices of one pipeline stage: those of a layer, layers, ranks that share them, divided by TP."""
        card, layout, stages = self.card, self.layout, self.trainer.pipeline_parallel
        attention, divided = work.attention_matrices(card, 1), self.trainer.tensor_parallel > 1
        dense = work.ffn_matrices(card.hidden_size, card.intermediate_size, 1, card.gated_ffn)
        shared = work.shared_expert_matrices(card, 1) + work.latent_expert_matrices(card)
        out = [
            (attention, card.num_attention_layers / stages, layout.dense_shards, divided),
            (recurrent_matrices(card, 1), card.num_recurrent_layers / stages, layout.dense_shards, divided),
            (dense, card.num_dense_layers / stages, layout.dense_shards, divided),
            (shared, card.num_moe_layers / stages, layout.dense_shards, divided),
        ]
        if card.moe is not None:
            width = card.moe.expert_intermediate_size
            expert = work.ffn_matrices(card.expert_hidden_size, width, 1, card.moe.gated)
            held = card.num_moe_layers / stages * card.moe.num_experts / self.trainer.expert_parallel
            out.append((expert, held, layout.expert_shards, False))
        return out


def newton_schulz_flops(matrix: Matrix) -> float:
    """FLOP of orthogonalising one m x n matrix, m <= n: X X^T (2 m m n), its square (2 m m m), B X (2 m m n) per step.

    >>> newton_schulz_flops(Matrix("square", 10, 10))
    30000.0
    """
    small, large = sorted((matrix.n, matrix.k))
    return NEWTON_SCHULZ_STEPS * (4.0 * small * small * large + 2.0 * small**3)
