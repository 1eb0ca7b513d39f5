"""One layer of the trainer in raw seconds: what tables and links say, before what a framework makes of it.

Everything here depends on model, layout, device and micro-batch alone, so that it is found once and priced under many
fitted values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from msgspec import Struct

from rlsim.costs.operators import work
from rlsim.costs.operators.device import Device
from rlsim.costs.operators.latent import prompt_scores
from rlsim.costs.operators.model_work import packed_flops
from rlsim.costs.operators.recurrent import RecurrentBlock, gate_bytes, indexer_matrices, recurrent_matrices
from rlsim.costs.operators.time import OperatorTime, zero
from rlsim.costs.operators.work import Matrix
from rlsim.costs.trainer.layout import MicroBatches
from rlsim.schema.architecture import LayerShape, MoECard
from rlsim.schema.model import ModelCard
from rlsim.schema.trainer import Dispatcher, StackFeatures, Trainer
from rlsim.units import BYTES_PER_ELEMENT

BIASED_WIDTHS, BIASED_ROWS = 12, 2
"""What experts with biases move more than a fused gated activation, in inner widths and rows of hidden size: both
biases, the clamps and the shifted, scaled gate of gpt-oss are kernels of their own (counted in Megatron-Core's bias and
activation path: read and write of each)."""
ADAPTER_OUTPUTS = 4
"""Passes of an adapter over the output of its matrix, beside one over the input: written, then added to that of the
frozen product (two reads, a write)."""
ATTENTION_BACKWARD = 2.5
"""FLOP of the attention backward pass over the forward (FlashAttention-2, arXiv 2307.08691 section 4: 2.5)."""
RECURRENT_BACKWARD = 3.0
"""Time of the recurrence backward over forward: states of chunks once more, then two products for each one (backward
kernels of mamba_ssm and flash-linear-attention recompute what they do not keep). Assumption."""
Side = Literal["forward", "inputs", "weights"]
"""Products of a matrix: with its inputs, and those of both gradients."""
LAYERS_KEPT = 16_384
"""Layers cached per process: a search prices thousands of layouts on one batch."""


class Pass(Struct, dict=True, eq=False):
    """Products of a pass forward, and of its backward pass: gradients of the inputs and of the weights. Each is found
    when it is asked for: half of all passes are of log-probs, which have no gradients."""

    find: Callable[[Side], OperatorTime]

    @cached_property
    def forward(self) -> OperatorTime:
        """The products themselves."""
        return self.find("forward")

    @cached_property
    def inputs(self) -> OperatorTime:
        """Gradients of their inputs."""
        return self.find("inputs")

    @cached_property
    def weights(self) -> OperatorTime:
        """Gradients of their weights."""
        return self.find("weights")

    def side(self, name: Side) -> OperatorTime:
        """One of the three by its name."""
        found: OperatorTime = getattr(self, name)
        return found

    def __add__(self, other: Pass) -> Pass:
        return Pass(lambda name: self.side(name) + other.side(name))

    def timed(self, backward: bool, frozen: bool) -> OperatorTime:
        """Products of one of both passes; frozen weights need the gradients of their inputs alone."""
        if not backward:
            return self.forward
        return self.inputs if frozen else self.inputs + self.weights

    def repeated(self, times: float) -> Pass:
        """As if it ran so often."""
        return Pass(lambda name: self.side(name).repeated(times))


class LayerWork(Struct, frozen=True):
    """One layer on one rank for one micro-batch. Seconds of operators and links; elements and bytes of what is moved.

    products: dense ones; experts: of every expert on the rank, one after the other; wide, wide_experts: those of both
    that stay in BF16 beside products of four bits; router_s: in BF16, forward.
    quantised: input and output elements of products in low precision, as (forward, backward). elementwise_bytes: of
    perfectly fused norms, residuals and activations; expert_bytes: of the activation functions of routed experts.
    routed_bytes: one pass over the activations that go to experts.
    attention, attention_backward: attention or recurrence forward, and how much longer backward takes; attention_flops:
    of attention.
    adapter_bytes, biased_bytes: what adapters (LoRA) and biases of experts move besides, unless a fused kernel holds
    them.
    gather_s, scatter_s: of the activations over the tensor-parallel group, gathered in the precision of their product
    (TransformerEngine quantises before it gathers), scattered in BF16; tensor_pairs: how many of both.
    exchange_s: dispatch and combine. ring_s: keys and values of the context-parallel group. local_experts: on the rank.
    """

    products: Pass
    experts: Pass
    wide: Pass
    wide_experts: Pass
    router_s: float
    attention: OperatorTime
    attention_flops: float
    attention_backward: float
    quantised: tuple[float, float]
    elementwise_bytes: float
    expert_bytes: float
    routed_bytes: float
    adapter_bytes: float
    biased_bytes: float
    gather_s: float
    scatter_s: float
    tensor_pairs: float
    exchange_s: float
    ring_s: float
    local_experts: float


class LayerSplit(Struct, frozen=True):
    """What of a trainer one of its layers depends on; trainers that differ in stages and GPUs alone have equal ones."""

    tensor_parallel: int
    context_parallel: int
    expert_parallel: int
    expert_tensor_parallel: int
    precision: str
    lora_rank: int | None
    dispatcher: Dispatcher
    expert_imbalance: float
    neighbouring_experts: bool
    bf16_layer_share: float
    bf16_projections: bool

    @classmethod
    def of(cls, trainer: Trainer, features: StackFeatures) -> LayerSplit:
        """That of ``trainer``, whose stack has ``features``; the layer is that of the rank with most routed tokens."""
        sizes = trainer.tensor_parallel, trainer.context_parallel, trainer.expert_parallel
        sharing = trainer.expert_tensor_parallel
        even = trainer.expert_parallel == 1 or features.token_drop
        imbalance = 1.0 if even else features.expert_imbalance
        routing = features.moe_dispatcher, imbalance, features.neighbouring_experts
        in_bf16 = features.bf16_layer_share, features.bf16_projections
        return cls(*sizes, sharing, trainer.precision, trainer.lora_rank, *routing, *in_bf16)


@lru_cache(maxsize=LAYERS_KEPT)
def layer_work(layer: TrainedLayer) -> LayerWork:
    """One layer of a model under a trainer's layout; the last ones are cached."""
    return layer.count()


class TrainedLayer(Struct, frozen=True):
    """One layer of ``card`` on one rank; shape: its mixer, and whether a feed-forward block follows, which is one of
    experts where ``moe_layer``. Few cards and devices meet in a process, whose hashes take longer than a look-up."""

    card: ModelCard
    split: LayerSplit
    device: Device
    batch: MicroBatches
    shape: LayerShape
    moe_layer: bool

    @property
    def tokens(self) -> float:
        """Tokens of one tensor-parallel group: its context-parallel share of the micro-batch."""
        return self.batch.tokens / self.split.context_parallel

    def count(self) -> LayerWork:
        """What the layer takes."""
        card, tp, tokens = self.card, self.split.tensor_parallel, self.tokens
        moe = card.moe if self.moe_layer else None
        always_bf16, matrices = self._dense_matrices()
        inputs, outputs = (tokens * sum(getattr(one, side) for one in always_bf16 + matrices) for side in ("k", "n"))
        read, written = tokens * sum(one.k for one in always_bf16), tokens * sum(one.n for one in always_bf16)
        routed, inner, activated = 0.0, card.expert_hidden_size, 0.0
        if moe is not None:
            # GPUs that share an expert gather their tokens, each for its part of the expert's width.
            routed = tokens / tp * moe.top_k * self.split.expert_imbalance * self.split.expert_tensor_parallel
            width = self._expert_width(moe)
            inputs = inputs + routed * (inner + width)
            outputs = outputs + routed * ((moe.matrices - 1) * width + inner)
            activated = routed * moe.matrices * width * BYTES_PER_ELEMENT["bf16"]
        adapted = (inputs + ADAPTER_OUTPUTS * outputs) * BYTES_PER_ELEMENT["bf16"]
        biased = BIASED_WIDTHS * moe.expert_intermediate_size + BIASED_ROWS * card.hidden_size if moe else 0
        low = 1.0 - self._bf16_share if self.split.precision != "bf16" else 0.0
        gather_s, scatter_s = self._tensor_exchange_s(low)
        products, wide = self._products(always_bf16, matrices, moe)
        router_s = 0.0
        if moe is not None:
            router = Matrix("router", moe.num_experts, card.hidden_size)
            router_s = float(self.device.operators.gemm(np.array([tokens / tp]), router, "bf16").seconds[0])
        experts, wide_experts = self._experts(moe) if moe is not None else (_no_pass(), _no_pass())
        return LayerWork(
            products=products,
            experts=experts,
            wide=wide,
            wide_experts=wide_experts,
            router_s=router_s,
            attention=self._mixing(),
            attention_flops=self._attention_flops(),
            attention_backward=RECURRENT_BACKWARD if self.shape.mixer == "recurrent" else ATTENTION_BACKWARD,
            quantised=(low * (inputs - read), low * (outputs - written)),
            elementwise_bytes=self._elementwise_bytes(moe),
            expert_bytes=activated,
            # Half of the passes order a GPU's own tokens, the others what GPUs that share its experts have gathered.
            routed_bytes=routed * (1 + 1 / self.split.expert_tensor_parallel) / 2 * inner * BYTES_PER_ELEMENT["bf16"],
            adapter_bytes=adapted if self.split.lora_rank is not None else 0.0,
            biased_bytes=routed * biased * BYTES_PER_ELEMENT["bf16"] if moe is not None and moe.expert_bias else 0.0,
            gather_s=gather_s,
            scatter_s=scatter_s,
            tensor_pairs=float(
                (self.shape.mixer != "none") + (self.shape.ffn and (moe is None or moe.num_shared_experts > 0))
            ),
            exchange_s=self._exchange_s(moe) if moe is not None else 0.0,
            ring_s=self._ring_s() if self.shape.mixer != "none" else 0.0,
            local_experts=moe.num_experts / self.split.expert_parallel if moe is not None else 0.0,
        )

    def _tensor_exchange_s(self, low: float) -> tuple[float, float]:
        """Seconds of one gather of activations, of which the share ``low`` is in the trainer's precision, and of one
        scatter of sums."""
        wire = low * BYTES_PER_ELEMENT[self.split.precision] + (1.0 - low) * BYTES_PER_ELEMENT["bf16"]
        fabric, tp, elements = self.device.fabric, self.split.tensor_parallel, self.tokens * self.card.hidden_size
        gather = fabric.collective("all_gather", tp, elements * wire)
        scatter = fabric.collective("reduce_scatter", tp, elements * BYTES_PER_ELEMENT["bf16"])
        return float(gather.seconds), float(scatter.seconds)

    def _products(self, always_bf16: list[Matrix], matrices: list[Matrix], moe: MoECard | None) -> tuple[Pass, Pass]:
        """Dense products of the mean layer in the trainer's precision, and those in BF16, with ``always_bf16``."""
        share = self._bf16_share
        products, wide = self._passes(matrices, self.tokens), passes(self.device, always_bf16, self.tokens, "bf16")
        if moe is not None and moe.latent_size is not None:
            # Sequence parallelism divides the tokens here, not the matrices, which every rank holds whole.
            latent, own = work.latent_expert_matrices(self.card), self.tokens / self.split.tensor_parallel
            if self.split.bf16_projections:
                wide = wide + passes(self.device, latent, own, "bf16")
            else:
                products = products + self._passes(latent, own)
        if share:
            wide = wide + passes(self.device, matrices, self.tokens, "bf16").repeated(share)
            products = products.repeated(1 - share)
        return products, wide

    def _dense_matrices(self) -> tuple[list[Matrix], list[Matrix]]:
        """Those that stay in BF16 whatever the precision, and all others but routed experts."""
        card, tp = self.card, self.split.tensor_parallel
        matrices = recurrent_matrices(card, tp) if self.shape.mixer == "recurrent" else []
        if self.shape.mixer == "attention":
            matrices = work.attention_matrices(card, tp) + indexer_matrices(card)
        ffn: list[Matrix] = []
        if self.moe_layer and card.moe is not None:
            ffn = work.shared_expert_matrices(card, tp)
        elif self.shape.ffn:
            ffn = work.ffn_matrices(card.hidden_size, card.intermediate_size, tp, card.gated_ffn)
        if self.split.bf16_projections and self.shape.mixer == "attention":
            return matrices, ffn
        return [], matrices + ffn

    def _elementwise_bytes(self, moe: MoECard | None) -> float:
        """Norms, residuals, activation, the gate of a recurrent mixer; a single block has half of a layer's norms."""
        card, tp = self.card, self.split.tensor_parallel
        width = card.intermediate_size if self.shape.ffn and moe is None else 0.0
        whole = self.shape.ffn and self.shape.mixer != "none"
        moved = float(
            work.elementwise_bytes(
                self.tokens / tp, card.hidden_size if whole else card.hidden_size / 2, width, card.residual_streams
            )
        )
        if self.shape.mixer == "recurrent" and card.recurrent is not None:
            moved += float(gate_bytes(self.tokens, card.recurrent, tp))
        return moved

    @property
    def _bf16_share(self) -> float:
        return self.split.bf16_layer_share if self.split.precision != "bf16" else 0.0

    def _passes(self, matrices: list[Matrix], tokens: float) -> Pass:
        return passes(self.device, matrices, tokens, self.split.precision)

    def _experts(self, moe: MoECard) -> tuple[Pass, Pass]:
        """Every expert of the rank on its even share of the tokens that reach the rank: in the trainer's precision, and
        in the layers that stay in BF16."""
        split, hidden, width = self.split, self.card.expert_hidden_size, self._expert_width(moe)
        local = moe.num_experts / split.expert_parallel
        share = self.tokens / split.tensor_parallel * moe.top_k / local * split.expert_imbalance
        share *= split.expert_tensor_parallel
        matrices = [Matrix("gate and up", (moe.matrices - 1) * width, hidden), Matrix("down", hidden, width)]
        own, kept = self._passes(matrices, max(1.0, share)).repeated(local), self._bf16_share
        if not kept:
            return own, _no_pass()
        wide = passes(self.device, matrices, max(1.0, share), "bf16").repeated(local * kept)
        return own.repeated(1 - kept), wide

    def _expert_width(self, moe: MoECard) -> int:
        """Columns of an expert on one of the GPUs that share it."""
        return -(-moe.expert_intermediate_size // self.split.expert_tensor_parallel)

    def _mixing(self) -> OperatorTime:
        """Attention or recurrence of packed sequences, forward: as equal prompts of the same mean squared length."""
        split, batch, card = self.split, self.batch, self.card
        length = batch.sum_squared / batch.tokens
        prompts = np.array([batch.tokens / length]), np.array([length])
        if self.shape.mixer == "none":
            return zero(prompts[0])
        if self.shape.mixer == "recurrent" and card.recurrent is not None:
            once = RecurrentBlock(self.device.operators, card.recurrent, split.tensor_parallel).prefill(
                *prompts, training=True
            )
        else:
            once = self.device.operators.prefill_attention(card, split.tensor_parallel, *prompts)
        if card.sparse_attention is not None:
            once = once + prompt_scores(self.device.operators, card, *prompts)
        return once.repeated(1.0 / split.context_parallel)

    def _attention_flops(self) -> float:
        """Attention of packed sequences, forward: of the mean layer with attention."""
        batch, card, tp = self.batch, self.card, self.split.tensor_parallel
        if self.shape.mixer != "attention":
            return 0.0
        whole = packed_flops(card, batch.tokens, batch.sum_squared, tp)
        return whole / sum(layers for layers, _ in card.prompt_kinds) / self.split.context_parallel

    def _exchange_s(self, moe: MoECard) -> float:
        """Dispatch and combine; deepep and hybridep send one copy of a token to each GPU (and domain) that wants it.

        GPUs that share an expert gather what the all-to-all brings and scatter the sums of what they make of it; the
        others send a copy to each of them (Megatron-Core: transformer/moe/token_dispatcher.py).
        """
        split, fabric = self.split, self.device.fabric
        ep, sharing = split.expert_parallel, split.expert_tensor_parallel
        own = self.tokens / split.tensor_parallel * split.expert_imbalance
        row_bytes = self.card.expert_hidden_size * BYTES_PER_ELEMENT["bf16"]
        if split.dispatcher == "alltoall":
            sent = own * moe.top_k * row_bytes
            exchange_s = 2.0 * float(fabric.collective("alltoall", ep, sent, stride=sharing).seconds)
            around = (fabric.collective(op, sharing, sent * sharing) for op in ("all_gather", "reduce_scatter"))
            return exchange_s + sum(float(one.seconds) for one in around)
        following = moe.num_experts / ep / sharing if split.neighbouring_experts else None
        exchange = fabric.token_exchange(ep * sharing, own * row_bytes, moe.top_k * sharing, following)
        return 2.0 * float(exchange.seconds)

    def _ring_s(self) -> float:
        """Keys and values of the other context-parallel ranks; a recurrent mixer trades tokens for heads and back."""
        tp, cp, card = self.split.tensor_parallel, self.split.context_parallel, self.card
        if self.shape.mixer == "recurrent":
            inputs, output = recurrent_matrices(card, tp)[0].n, recurrent_matrices(card, tp)[-1].k
            moved = self.tokens * (inputs + output) * BYTES_PER_ELEMENT["bf16"]
            return float(self.device.fabric.collective("alltoall", cp, moved, stride=tp).seconds)
        kv_row = 2.0 * card.num_kv_heads / min(tp, card.num_kv_heads) * card.head_dim * BYTES_PER_ELEMENT["bf16"]
        return float(self.device.fabric.collective("all_gather", cp, self.tokens * cp * kv_row, stride=tp).seconds)


def passes(device: Device, matrices: list[Matrix], tokens: float, precision: str) -> Pass:
    """Products with ``matrices`` on ``tokens`` rows: y = x W, then dx = dy W^T and dW = dy^T x."""

    def found(name: Side) -> OperatorTime:
        gemm, rows, total = device.operators.gemm, np.array([tokens]), zero(np.zeros(1))
        for matrix in matrices:
            n, k = matrix.n, matrix.k
            if name == "weights":
                own = Matrix("dW", k, int(max(1.0, round(tokens))))
                total = total + gemm(np.array([float(n)]), own, precision)
            else:
                total = total + gemm(rows, matrix if name == "forward" else Matrix("dx", k, n), precision)
        return total

    return Pass(found)


def _no_pass() -> Pass:
    return Pass(lambda _: zero(np.zeros(1)))
