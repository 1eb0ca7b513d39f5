"""Train step and log-prob passes, operator by operator.

Per layer forward = max(computation + exposed communication, host floor); backward twice the products and 2.5 times the
attention; 1F1B pipeline (m + PP - 1) x slowest stage with the LM head on the last (physics notes, section 3, training).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlsim.costs import work
from rlsim.costs.fabric import Fabric
from rlsim.costs.layers import ATTENTION_LAUNCHES, DENSE_LAUNCHES, ELEMENTWISE_KERNELS
from rlsim.costs.operators import Operators, Timed
from rlsim.costs.overheads import Overheads
from rlsim.costs.packing import MicroBatches
from rlsim.costs.parallel import TrainLayout, train_layout
from rlsim.costs.interface import Part, PhaseCost
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
LOSS_PASSES = 6.0
"""Passes over the FP32 logits of loss or log-probs: cast, max, exp-sum, gather, and their distributed reductions."""
PERMUTE_PASSES = 6.0
"""Reads and writes of the routed BF16 activations when tokens are permuted to experts and back."""
NEWTON_SCHULZ_STEPS = 5
"""Orthogonalisation steps of Muon (published default)."""
FITTED_LOCAL_EXPERTS = 16
"""Most experts on a rank in the runs that the MoE host floor was fitted to (8 to 16). Beyond it grows in proportion, an
assumption."""
HEAD = "LM head and loss"
"""Name of the part that a value model lacks."""
LAUNCHES_PER_LAYER_FACTOR = 1.2
"""Kernels that a training framework launches per layer over an eager engine's. Assumption."""


@dataclass(frozen=True)
class LayerTime:
    """Seconds of one layer's forward pass on one rank for one micro-batch."""

    products_s: float
    attention_s: float
    elementwise_s: float
    communication_s: float
    communication_backward_s: float
    floor_s: float
    measured: float

    def forward_s(self) -> float:
        """max(device and exposed communication, host floor)."""
        return max(self.products_s + self.attention_s + self.elementwise_s + self.communication_s, self.floor_s)

    def backward_s(self) -> float:
        """The backward pass without recomputation."""
        device = PRODUCT_BACKWARD * self.products_s + ATTENTION_BACKWARD * self.attention_s
        device += PRODUCT_BACKWARD * self.elementwise_s + self.communication_backward_s
        return max(device, PRODUCT_BACKWARD * self.floor_s)


@dataclass(frozen=True)
class TrainingCosts:
    """The trainer's compute on its GPUs."""

    card: ModelCard
    trainer: Trainer
    operators: Operators
    fabric: Fabric
    overheads: Overheads
    gpus: int

    @property
    def layout(self) -> TrainLayout:
        """Parallel layout and parameters per rank."""
        return train_layout(self.trainer, self.card, self.gpus)

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
        reached = self.overheads.moe_efficiency if moe_layer else self.overheads.dense_efficiency
        attention, ring = self._attention(batch) / reached, self._ring(float(tokens[0]))
        return LayerTime(
            products_s=float(products.seconds[0]) / reached,
            attention_s=attention,
            elementwise_s=float(self.operators.stream(moved, ELEMENTWISE_KERNELS).seconds[0]) / reached,
            communication_s=self._communication(float(tokens[0]), moe_layer) + max(0.0, ring - attention),
            communication_backward_s=self._communication(float(tokens[0]), moe_layer)
            + max(0.0, RING_BACKWARD * ring - ATTENTION_BACKWARD * attention),
            floor_s=self._floor(moe_layer),
            measured=float(products.measured[0]),
        )

    def _floor(self, moe_layer: bool) -> float:
        """Least host time of a layer; a MoE layer launches the kernels of every expert on its rank."""
        if moe_layer and self.card.moe is not None:
            local = self.card.moe.num_experts / self.trainer.expert_parallel
            return self.overheads.moe_host_layer_s * max(1.0, local / FITTED_LOCAL_EXPERTS)
        return (ATTENTION_LAUNCHES + DENSE_LAUNCHES) * LAUNCHES_PER_LAYER_FACTOR * self.trainer.host_launch_s

    def _experts(self, tokens: work.FloatArray, moe: MoECard) -> Timed:
        """Router, routed and shared experts; ``tokens`` of one TP group, of which each rank routes its TP share."""
        card, trainer = self.card, self.trainer
        ep, tp = trainer.expert_parallel, trainer.tensor_parallel
        group = tokens * ep / tp
        router = self.operators.gemm(tokens / tp, Matrix("router", moe.num_experts, card.hidden_size), "bf16")
        routed = self.operators.experts(group, card.hidden_size, moe, trainer.precision, (1, ep), "balanced")
        shared = self.operators.gemms(tokens, work.shared_expert_matrices(card, tp), trainer.precision)
        return router + routed + shared

    def _attention(self, batch: MicroBatches) -> float:
        """Forward attention of packed sequences: the efficiency of equal prompts of the same mean squared length."""
        trainer = self.trainer
        length = batch.sum_squared / batch.tokens
        count = batch.tokens / length
        once = self.operators.prefill_attention(
            self.card, trainer.tensor_parallel, np.array([count]), np.array([length])
        )
        return float(once.seconds[0]) / trainer.context_parallel

    def _communication(self, tokens: float, moe_layer: bool) -> float:
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

    def _ring(self, tokens: float) -> float:
        """Keys and values of the other context-parallel ranks, which attention can hide."""
        tp, cp, card = self.trainer.tensor_parallel, self.trainer.context_parallel, self.card
        kv_row = 2.0 * card.num_kv_heads / min(tp, card.num_kv_heads) * card.head_dim * BYTES_PER_ELEMENT["bf16"]
        return float(self.fabric.collective("all_gather", cp, tokens * cp * kv_row, stride=tp).seconds)

    def head_s(self, batch: MicroBatches) -> float:
        """LM head and loss (or log-probs) of one micro-batch, forward."""
        tokens = np.array([batch.tokens / self.trainer.context_parallel])
        shard = -(-self.card.vocab_size // self.trainer.tensor_parallel)
        product = self.operators.gemm(tokens, Matrix("lm_head", shard, self.card.hidden_size), "bf16")
        loss = self.operators.stream(tokens * shard * BYTES_PER_ELEMENT["fp32"] * LOSS_PASSES)
        return float(product.seconds[0] + loss.seconds[0])

    def _stage(self, batch: MicroBatches, backward: bool) -> tuple[float, float, LayerTime]:
        """(seconds of the layers of one stage, LM head seconds, the dominating layer kind)."""
        card, pp, recompute = self.card, self.trainer.pipeline_parallel, self.trainer.recompute
        seconds, shown = 0.0, self.layer(batch, card.num_moe_layers > 0)
        for moe_layer, count in ((False, card.num_dense_layers), (True, card.num_moe_layers)):
            if not count:
                continue
            layer = self.layer(batch, moe_layer)
            once = layer.forward_s()
            if backward:
                again = {"none": 0.0, "selective": layer.attention_s, "full": layer.forward_s()}[recompute]
                once += layer.backward_s() + again
            seconds += count / pp * once
        head = self.head_s(batch) * ((1.0 + PRODUCT_BACKWARD) if backward else 1.0)
        return seconds, head, shown

    def forward(self, batch: MicroBatches) -> PhaseCost:
        """One log-prob pass over the whole step's samples."""
        return self._passes(batch, backward=False)

    def _passes(self, batch: MicroBatches, backward: bool) -> PhaseCost:
        stage, head, layer = self._stage(batch, backward)
        pp = self.trainer.pipeline_parallel
        gathered = self._fsdp_exposed(stage, backward)
        busy = batch.steps * batch.count * stage
        parts = [
            Part("layers", busy, self._bound(layer), "measured" if layer.measured >= 0.5 else "modelled"),
            Part(HEAD, batch.steps * batch.count * head, "compute", "measured"),
            Part("pipeline bubble", batch.steps * (pp - 1) * stage, "schedule", "modelled"),
            Part("parameter gathering", batch.steps * batch.count * gathered, "network", "modelled"),
        ]
        return PhaseCost.of(parts)

    def _fsdp_exposed(self, stage: float, backward: bool) -> float:
        """FSDP gathers every layer's weights for each pass; what computation does not hide is exposed."""
        if self.trainer.backend != "fsdp":
            return 0.0
        size = self.layout.parameters * BYTES_PER_ELEMENT["bf16"]
        gather = float(self.fabric.collective("all_gather", self.layout.data_parallel, size).seconds)
        scatter = float(self.fabric.collective("reduce_scatter", self.layout.data_parallel, 2 * size).seconds)
        return max(0.0, (2 * gather + scatter if backward else gather) - stage)

    def _bound(self, layer: LayerTime) -> str:
        device = layer.products_s + layer.attention_s + layer.elementwise_s + layer.communication_s
        if layer.floor_s > device:
            return "host"
        return "network" if layer.communication_s > device / 2 else "compute"

    def step(self, batch: MicroBatches) -> PhaseCost:
        """Forward, backward, gradient synchronisation and optimizer over all optimizer steps."""
        passes = self._passes(batch, backward=True)
        stage, _, _ = self._stage(batch, backward=False)
        sync = batch.steps * self._gradient_exposed_s(stage)
        update = batch.steps * self.optimizer_s()
        parts = (
            *passes.parts,
            Part("gradient exchange", sync, "network", "modelled"),
            Part("optimizer", update, "memory", "modelled"),
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
            flops = NEWTON_SCHULZ_STEPS * 6.0 * self.card.hidden_size * elements
            seconds += flops / (self.operators.profile.flops("bf16") * compute)
        return seconds
