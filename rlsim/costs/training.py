"""Train step and log-prob passes: layers through the pipeline, LM head, gradients and optimizer.

1F1B pipeline: (m + PP - 1) x slowest stage with the LM head on the last (Narayanan et al., arXiv 2104.04473, 2.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from rlsim.costs.collectives import Collectives
from rlsim.costs.interface import Part, PhaseCost
from rlsim.costs.layout import TrainLayout, train_layout
from rlsim.costs.operators import Operators
from rlsim.costs.overheads import TrainingOverheads
from rlsim.costs.packing import MicroBatches
from rlsim.costs.training_layer import PRODUCT_BACKWARD, TrainingLayers
from rlsim.costs.work import Matrix
from rlsim.schema.model import ModelCard
from rlsim.schema.trainer import Trainer
from rlsim.units import BYTES_PER_ELEMENT

LOSS_PASSES = 6.0
"""Passes over the FP32 logits of loss or log-probs: cast, max, exp-sum, gather, and their distributed reductions."""
NEWTON_SCHULZ_STEPS = 5
"""Orthogonalisation steps of Muon (published default)."""
NEWTON_SCHULZ_PRODUCTS = 6.0
"""FLOP of one orthogonalisation step per element and unit of the smaller matrix side: three products of two FLOP."""
LM_HEAD, LOSS = "LM head", "loss"
"""Names of the parts that a value model lacks."""


@dataclass(frozen=True)
class TrainingCosts:
    """The trainer's compute on its GPUs."""

    card: ModelCard
    trainer: Trainer
    operators: Operators
    fabric: Collectives
    overheads: TrainingOverheads
    gpus: int

    @property
    def layout(self) -> TrainLayout:
        """Parallel layout and parameters per rank."""
        return train_layout(self.trainer, self.card, self.gpus)

    @property
    def layers(self) -> TrainingLayers:
        """Times of single layers."""
        return TrainingLayers(self.card, self.trainer, self.operators, self.fabric, self.overheads)

    def head(self, batch: MicroBatches) -> tuple[Part, Part]:
        """(LM head, loss or log-probs) of one micro-batch, forward."""
        tokens = np.array([batch.tokens / self.trainer.context_parallel])
        shard = -(-self.card.vocab_size // self.trainer.tensor_parallel)
        product = self.operators.gemm(tokens, Matrix("lm_head", shard, self.card.hidden_size), "bf16")
        loss = self.operators.stream(tokens * shard * BYTES_PER_ELEMENT["fp32"] * LOSS_PASSES)
        return (
            Part(LM_HEAD, float(product.seconds[0]), product.bound, "modelled", float(product.measured[0])),
            Part(LOSS, float(loss.seconds[0]), loss.bound),
        )

    def _stage(self, batch: MicroBatches, backward: bool) -> PhaseCost:
        """The layers of one pipeline stage on one micro-batch."""
        card, recompute = self.card, self.trainer.recompute
        parts: list[Part] = []
        for moe_layer, count in ((False, card.num_dense_layers), (True, card.num_moe_layers)):
            if not count:
                continue
            layer = self.layers.layer(batch, moe_layer)
            once = layer.forward()
            if backward:
                once += layer.backward() + layer.recomputed(recompute)
            parts += _times(count / self.trainer.pipeline_parallel, once)
        return PhaseCost.of(parts)

    def forward(self, batch: MicroBatches) -> PhaseCost:
        """One log-prob pass over the whole step's samples."""
        return self._passes(batch, backward=False)

    def _passes(self, batch: MicroBatches, backward: bool) -> PhaseCost:
        """All micro-batches through the pipeline; its bubble is PP - 1 stages long, once per optimizer step."""
        stage, head = self._stage(batch, backward), self.head(batch)
        micro_batches = batch.steps * batch.count
        bubble_s = batch.steps * (self.trainer.pipeline_parallel - 1) * stage.seconds
        gathered_s = micro_batches * self._fsdp_exposed_s(stage.seconds, backward)
        parts = (
            *_times(micro_batches, stage.parts),
            *_times(micro_batches, head),
            *(_modelled(_times(micro_batches * PRODUCT_BACKWARD, head)) if backward else ()),
            Part("pipeline bubble", bubble_s, "schedule"),
            Part("parameter gathering", gathered_s, "network"),
        )
        return PhaseCost.of(parts)

    def _fsdp_exposed_s(self, stage_s: float, backward: bool) -> float:
        """FSDP gathers every layer's weights for each pass; what computation does not hide is exposed."""
        if self.trainer.backend != "fsdp":
            return 0.0
        size = self.layout.parameters * BYTES_PER_ELEMENT["bf16"]
        gather = float(self.fabric.collective("all_gather", self.layout.data_parallel, size).seconds)
        scatter = float(self.fabric.collective("reduce_scatter", self.layout.data_parallel, 2 * size).seconds)
        return max(0.0, (2 * gather + scatter if backward else gather) - stage_s)

    def step(self, batch: MicroBatches) -> PhaseCost:
        """Forward, backward, gradient synchronisation and optimizer over all optimizer steps."""
        passes = self._passes(batch, backward=True)
        forward_s = self._stage(batch, backward=False).seconds
        parts = (
            *passes.parts,
            Part("gradient exchange", batch.steps * self._gradient_exposed_s(forward_s), "network"),
            Part("optimizer", batch.steps * self.optimizer_s(), "memory"),
        )
        return PhaseCost.of(parts)

    def _gradient_exposed_s(self, forward_s: float) -> float:
        """FP32 gradients scattered beyond the last backward pass, weights gathered beyond the next forward pass."""
        if self.trainer.backend == "fsdp":
            return 0.0
        layout, trainer = self.layout, self.trainer
        dense = (layout.dense_parameters, layout.dense_shards, trainer.tensor_parallel)
        experts = (layout.expert_parameters, layout.expert_shards, trainer.expert_parallel)
        scatter = gather = 0.0
        for elements, shards, stride in (dense, experts):
            gradients, weights = elements * BYTES_PER_ELEMENT["fp32"], elements * BYTES_PER_ELEMENT["bf16"]
            scatter += float(self.fabric.collective("reduce_scatter", shards, gradients, stride).seconds)
            gather += float(self.fabric.collective("all_gather", shards, weights, stride).seconds)
        return max(0.0, scatter - PRODUCT_BACKWARD * forward_s) + max(0.0, gather - forward_s)

    def optimizer_s(self) -> float:
        """One optimizer step on one rank's shard: state read and written once, gradients read, weights written."""
        elements = self.layout.optimizer_parameters
        moved = elements * (
            2 * self.trainer.optimizer_bytes_per_parameter + BYTES_PER_ELEMENT["fp32"] + BYTES_PER_ELEMENT["bf16"]
        )
        seconds = float(self.operators.stream(moved).seconds)
        if self.trainer.optimizer == "muon":
            compute, _ = self.operators.efficiency("bf16")
            flops = NEWTON_SCHULZ_STEPS * NEWTON_SCHULZ_PRODUCTS * self.card.hidden_size * elements
            seconds += flops / (self.operators.profile.flops("bf16") * compute)
        return seconds


def _modelled(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Times that follow from measured ones by a factor of the model."""
    return tuple(replace(part, measured=0.0) for part in parts)


def _times(factor: float, parts: Iterable[Part]) -> tuple[Part, ...]:
    return tuple(replace(part, seconds=factor * part.seconds) for part in parts)
