"""One layer of the trainer, forward and backward, part by part.

Forward = max(computation + exposed communication, host floor). Backward: twice the products (input and weight gradient)
and the elementwise traffic, 2.5 times the attention, the communication mirrored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rlsim.costs import work
from rlsim.costs.collectives import Collectives
from rlsim.costs.interface import Part
from rlsim.costs.layers import ELEMENTWISE_KERNELS, UNCOMPILED_LAUNCHES
from rlsim.costs.operators import Operators, OperatorTime
from rlsim.costs.overheads import TrainingOverheads
from rlsim.costs.packing import MicroBatches
from rlsim.costs.work import Matrix
from rlsim.schema.model import ModelCard, MoECard
from rlsim.schema.trainer import Trainer
from rlsim.units import BYTES_PER_ELEMENT

ATTENTION_BACKWARD = 2.5
"""FLOP of the attention backward pass over the forward (FlashAttention-2, arXiv 2307.08691 section 4: 2.5)."""
PRODUCT_BACKWARD = 2.0
"""Two products (input and weight gradient) for each forward one; elementwise kernels move twice the bytes as well."""
RING_BACKWARD = 2.0
"""Context-parallel traffic backward over forward: keys and values, and their gradients, go round."""
PERMUTE_PASSES = 6.0
"""Reads and writes of the routed BF16 activations when tokens are permuted to experts and back."""
FITTED_LOCAL_EXPERTS = 16
"""Most experts on a rank in the runs that the MoE host floor was fitted to (8 to 16). Beyond it grows in proportion, an
assumption."""
LAUNCHES_PER_LAYER_FACTOR = 1.2
"""Kernels that a training framework launches per layer over an eager engine's. Assumption."""


@dataclass(frozen=True)
class LayerTime:
    """Forward times of one layer on one rank for one micro-batch; communication is what computation does not hide.

    floor_s: least host time of the forward pass; the backward pass launches twice as much.
    """

    products: Part
    attention: Part
    elementwise: Part
    communication_s: float
    communication_backward_s: float
    floor_s: float

    def forward(self) -> tuple[Part, ...]:
        """Parts of the forward pass; ``host floor`` is what the device waits for its host."""
        return self._with_floor(1.0, 1.0, self.communication_s)

    def backward(self) -> tuple[Part, ...]:
        """Parts of the backward pass without recomputation: no table measured its products, so nothing is measured."""
        parts = self._with_floor(PRODUCT_BACKWARD, ATTENTION_BACKWARD, self.communication_backward_s)
        return tuple(replace(part, measured=0.0) for part in parts)

    def recomputed(self, recompute: str) -> tuple[Part, ...]:
        """What the backward pass computes again: nothing, the attention (selective), or the layer (full)."""
        return {"none": (), "selective": (self.attention,), "full": self.forward()}[recompute]

    def _with_floor(self, products: float, attention: float, communication_s: float) -> tuple[Part, ...]:
        device = (
            replace(self.products, seconds=products * self.products.seconds),
            replace(self.attention, seconds=attention * self.attention.seconds),
            replace(self.elementwise, seconds=products * self.elementwise.seconds),
            Part("communication", communication_s, "network"),
        )
        waiting_s = products * self.floor_s - sum(part.seconds for part in device)
        return (*device, Part("host floor", max(0.0, waiting_s), "host"))


@dataclass(frozen=True)
class TrainingLayers:
    """Layers of the trained model under one parallel layout."""

    card: ModelCard
    trainer: Trainer
    operators: Operators
    fabric: Collectives
    overheads: TrainingOverheads

    def layer(self, batch: MicroBatches, moe_layer: bool) -> LayerTime:
        """One layer's forward pass over one micro-batch."""
        trainer, card = self.trainer, self.card
        tp, cp = trainer.tensor_parallel, trainer.context_parallel
        tokens = np.array([batch.tokens / cp])
        products = self.operators.gemms(tokens, work.attention_matrices(card, tp), trainer.precision)
        if moe_layer and card.moe is not None:
            products = products + self._experts(tokens, card.moe)
        else:
            products = products + self.operators.gemms(
                tokens, work.ffn_matrices(card.hidden_size, card.intermediate_size, tp), trainer.precision
            )
        moved = work.elementwise_bytes(tokens / tp, card.hidden_size, 0.0 if moe_layer else card.intermediate_size)
        if moe_layer and card.moe is not None:
            moved = moved + PERMUTE_PASSES * tokens / tp * card.moe.top_k * card.hidden_size * BYTES_PER_ELEMENT["bf16"]
        efficiency = self.overheads.moe_efficiency if moe_layer else self.overheads.dense_efficiency
        attention = self._attention(batch, efficiency)
        ring_s, exchange_s = self._ring_s(float(tokens[0])), self._communication_s(float(tokens[0]), moe_layer)
        hidden_s = ATTENTION_BACKWARD * attention.seconds
        return LayerTime(
            products=_at_efficiency("products", products, efficiency),
            attention=attention,
            elementwise=_at_efficiency("elementwise", self.operators.stream(moved, ELEMENTWISE_KERNELS), efficiency),
            communication_s=exchange_s + max(0.0, ring_s - attention.seconds),
            communication_backward_s=exchange_s + max(0.0, RING_BACKWARD * ring_s - hidden_s),
            floor_s=self._floor_s(moe_layer),
        )

    def _floor_s(self, moe_layer: bool) -> float:
        """Least host time of a layer; a MoE layer launches the kernels of every expert on its rank."""
        if moe_layer and self.card.moe is not None:
            local = self.card.moe.num_experts / self.trainer.expert_parallel
            return self.overheads.moe_host_layer_s * max(1.0, local / FITTED_LOCAL_EXPERTS)
        return UNCOMPILED_LAUNCHES * LAUNCHES_PER_LAYER_FACTOR * self.trainer.host_launch_s

    def _experts(self, tokens: work.FloatArray, moe: MoECard) -> OperatorTime:
        """Router, routed and shared experts; ``tokens`` of one TP group, of which each rank routes its TP share."""
        card, trainer = self.card, self.trainer
        ep, tp = trainer.expert_parallel, trainer.tensor_parallel
        group = tokens * ep / tp
        router = self.operators.gemm(tokens / tp, Matrix("router", moe.num_experts, card.hidden_size), "bf16")
        routed = self.operators.experts(group, card.hidden_size, moe, trainer.precision, (1, ep), "balanced")
        shared = self.operators.gemms(tokens, work.shared_expert_matrices(card, tp), trainer.precision)
        return router + routed + shared

    def _attention(self, batch: MicroBatches, efficiency: float) -> Part:
        """Forward attention of packed sequences: the efficiency of equal prompts of the same mean squared length."""
        trainer = self.trainer
        length = batch.sum_squared / batch.tokens
        count = batch.tokens / length
        once = self.operators.prefill_attention(
            self.card, trainer.tensor_parallel, np.array([count]), np.array([length])
        )
        return _at_efficiency("attention", once.repeated(1.0 / trainer.context_parallel), efficiency)

    def _communication_s(self, tokens: float, moe_layer: bool) -> float:
        """Exposed TP gathers and scatters and EP exchange of one layer's pass; the backward pass mirrors them."""
        trainer, card = self.trainer, self.card
        tp, ep = trainer.tensor_parallel, trainer.expert_parallel
        row = card.hidden_size * BYTES_PER_ELEMENT["bf16"]
        seconds = 0.0
        if tp > 1:
            pairs = 1.0 if moe_layer else 2.0
            gather = self.fabric.collective("all_gather", tp, tokens * row).seconds
            seconds += pairs * float(gather + self.fabric.collective("reduce_scatter", tp, tokens * row).seconds)
        if moe_layer and ep > 1 and card.moe is not None:
            sent = tokens / tp * card.moe.top_k * row
            seconds += 2.0 * float(self.fabric.collective("alltoall", ep, sent).seconds)
        return seconds * (1.0 - trainer.communication_overlap)

    def _ring_s(self, tokens: float) -> float:
        """Keys and values of the other context-parallel ranks, which attention can hide."""
        tp, cp, card = self.trainer.tensor_parallel, self.trainer.context_parallel, self.card
        kv_row = 2.0 * card.num_kv_heads / min(tp, card.num_kv_heads) * card.head_dim * BYTES_PER_ELEMENT["bf16"]
        return float(self.fabric.collective("all_gather", cp, tokens * cp * kv_row, stride=tp).seconds)


def _at_efficiency(name: str, timed: OperatorTime, efficiency: float) -> Part:
    """A table's time stretched by the efficiency that training reaches: what is added is modelled, not measured."""
    measured = float(timed.measured[0]) * min(1.0, efficiency)
    return Part(name, float(timed.seconds[0]) / efficiency, timed.bound, "modelled", measured)
