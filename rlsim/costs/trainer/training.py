"""Train step and log-prob passes: layers through the pipeline, LM head, gradients and optimizer.

1F1B pipeline: (m + PP - 1) x slowest stage with the LM head on the last (Narayanan et al., arXiv 2104.04473, 2.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rlsim.costs.interface import Part, PhaseCost
from rlsim.costs.operators.device import Device
from rlsim.costs.operators.work import Matrix
from rlsim.costs.overheads import TrainingOverheads
from rlsim.costs.trainer.layer import TrainingLayers, TrainingUpdate
from rlsim.costs.trainer.layout import MicroBatches, TrainLayout, train_layout
from rlsim.schema.model import ModelCard
from rlsim.schema.trainer import Trainer
from rlsim.units import BYTES_PER_ELEMENT

HEAD_BACKWARD = 2.0
"""Two products (input and weight gradient) for the forward one; passes over the logits move twice the bytes as well."""
MTP_LAYERS = "MTP layers"
MTP_INPUTS = 2
"""Hidden state and embedding, which an MTP layer joins."""
IMBALANCE = "rank imbalance"
LM_HEAD, LOSS = "LM head", "loss"
"""Names of the parts that a value model lacks."""


@dataclass(frozen=True)
class TrainingCosts:
    """The trainer's compute on its GPUs."""

    card: ModelCard
    trainer: Trainer
    device: Device
    overheads: TrainingOverheads
    gpus: int

    @cached_property
    def layout(self) -> TrainLayout:
        """Parallel layout and parameters per rank."""
        return train_layout(self.trainer, self.card, self.gpus)

    @cached_property
    def layers(self) -> TrainingLayers:
        """Times of single layers in log-prob passes."""
        return TrainingLayers(self.card, self.trainer, self.device, self.overheads)

    @cached_property
    def update(self) -> TrainingUpdate:
        """Gradients and optimizer."""
        return TrainingUpdate(self.card, self.trainer, self.layout, self.device, self.overheads)

    def head(self, batch: MicroBatches) -> tuple[Part, Part]:
        """(LM head, loss or log-probs) of one micro-batch, forward."""
        operators = self.device.operators
        tokens = np.array([batch.tokens / self.trainer.context_parallel])
        shard = -(-self.card.vocab_size // self.trainer.tensor_parallel)
        product = operators.gemm(tokens, Matrix("lm_head", shard, self.card.hidden_size), "bf16")
        loss = operators.stream(tokens * shard * BYTES_PER_ELEMENT["fp32"] * self.overheads.logits_passes)
        return (
            Part(LM_HEAD, float(product.seconds[0]), product.bound, "modelled", float(product.measured[0])),
            Part(LOSS, float(loss.seconds[0]), loss.bound),
        )

    def _stage(self, batch: MicroBatches, backward: bool) -> PhaseCost:
        """The layers of one pipeline stage on one micro-batch; log-probs, update and exchange ask for the same one."""
        if (batch, backward) in self._stages:
            return self._stages[batch, backward]
        parts: list[Part] = []
        layers = replace(self.layers, overheads=self.overheads.of_update) if backward else self.layers
        for moe_layer, shape, count in self.card.layer_shapes:
            layer = layers.layer(batch, moe_layer, shape)
            once = layer.forward()
            if backward:
                once += layer.backward() + layer.recomputed(self.trainer.recompute)
            parts += _times(count / self.trainer.pipeline_parallel, once)
        found = self._stages[batch, backward] = PhaseCost.of(parts)
        return found

    @cached_property
    def _stages(self) -> dict[tuple[MicroBatches, bool], PhaseCost]:
        return {}

    def _mtp(self, batch: MicroBatches) -> tuple[Part, ...]:
        """Depths of multi-token prediction on one micro-batch, forward and backward, on the last stage.

        A depth is a projection of [hidden state, embedding], one layer of attention and experts (or an FFN), and the LM
        head with its loss once more (DeepSeek-V3, arXiv 2412.19437 section 2.2).
        """
        card, trainer, depths = self.card, self.trainer, self.trainer.mtp_layers
        if not depths:
            return ()
        layers = replace(self.layers, overheads=self.overheads.of_update)
        layer = layers.layer(batch, card.moe is not None)
        tokens = np.array([batch.tokens / trainer.context_parallel])
        fusion = Matrix("fusion", card.hidden_size // trainer.tensor_parallel, MTP_INPUTS * card.hidden_size)
        product = self.device.operators.gemm(tokens, fusion, trainer.precision)
        joined = Part("products", (1 + HEAD_BACKWARD) * float(product.seconds[0]), product.bound)
        own = (*layer.forward(), *layer.backward(), *layer.recomputed(trainer.recompute), joined)
        head = tuple(replace(part, seconds=(1 + HEAD_BACKWARD) * part.seconds) for part in self.head(batch))
        seconds = depths * sum(part.seconds for part in (*own, *head))
        return (Part(MTP_LAYERS, seconds, max(own, key=lambda part: part.seconds).bound),)

    def forward(self, batch: MicroBatches) -> PhaseCost:
        """One log-prob pass over the whole step's samples."""
        return self._passes(batch, backward=False)

    def _passes(self, batch: MicroBatches, backward: bool) -> PhaseCost:
        """All micro-batches through the pipeline; its bubble is PP - 1 stages long, once per optimizer step.

        With V virtual stages a GPU holds V pieces of the model and the bubble shrinks to 1 / V (2.3 of the paper).
        """
        stage, head = self._stage(batch, backward), self.head(batch)
        trainer, micro_batches = self.trainer, batch.steps * batch.count
        mtp = self._mtp(batch) if backward else ()
        # Times that follow from measured ones by a factor of the model.
        again = _times(micro_batches * HEAD_BACKWARD, [replace(part, measured=0.0) for part in head])
        own = (
            *_times(micro_batches, (*stage.parts, *head)),
            *(again if backward else ()),
            *_times(micro_batches, mtp),
        )
        bubble_s = batch.steps * (trainer.pipeline_parallel - 1) / trainer.virtual_stages * stage.seconds
        gathered_s = micro_batches * self.update.gathering_s(stage.seconds, backward)
        parts = (
            *_of_mean_rank(own, batch.balance),
            Part("pipeline bubble", bubble_s, "schedule"),
            Part("parameter gathering", gathered_s, "network"),
        )
        return PhaseCost.of(parts)

    def step(self, batch: MicroBatches) -> PhaseCost:
        """Forward, backward, gradient synchronisation and optimizer over all optimizer steps."""
        passes = self._passes(batch, backward=True)
        forward_s = self._stage(batch, backward=False).seconds / self.overheads.update_speed
        backward_s = self._stage(batch, backward=True).seconds - forward_s
        parts = (
            *passes.parts,
            Part("gradient exchange", batch.steps * self.update.exchange_s(forward_s, backward_s), "network"),
            Part("optimizer", batch.steps * self.update.optimizer_s(), "memory"),
            Part("step synchronisation", batch.steps * self.overheads.step_fixed_s, "host"),
        )
        return PhaseCost.of(parts)


def _of_mean_rank(parts: Iterable[Part], balance: float) -> Iterator[Part]:
    """Parts of the busiest rank as those of the mean one, and what the others wait for it.

    Host work is the same on all ranks: they run equally many micro-batches.
    """
    idle_s = 0.0
    for part in parts:
        own_s = part.seconds if part.bound == "host" else part.seconds * balance
        idle_s += part.seconds - own_s
        yield part.lasting(own_s, part.measured)
    yield Part(IMBALANCE, idle_s, "schedule")


def _times(factor: float, parts: Iterable[Part]) -> tuple[Part, ...]:
    return tuple(part.lasting(factor * part.seconds, part.measured) for part in parts)
