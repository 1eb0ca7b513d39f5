"""Device time of the layers of a model in a rollout engine, without attention over cached context."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlsim.costs import work
from rlsim.costs.fabric import Fabric
from rlsim.costs.operators import Operators, Timed, modelled, zero
from rlsim.costs.work import FloatArray, Matrix
from rlsim.schema.engine import Engine
from rlsim.schema.model import ModelCard
from rlsim.units import BYTES_PER_ELEMENT

SAMPLER_PASSES = 4.0
"""Passes over FP32 logits when sampling: temperature, softmax (two), draw. Counted from the published samplers."""
ELEMENTWISE_KERNELS = 4.0
"""Elementwise kernels per layer: two fused add-norms, rotary embedding with KV write, gated activation."""
ATTENTION_LAUNCHES, DENSE_LAUNCHES, MOE_LAUNCHES = 11, 6, 15
"""Operators that an engine dispatches per attention block, dense FFN and MoE FFN of a layer. Counted in vLLM's Qwen3
layers: norm, QKV, splits and per-head norms, rotary embedding, cache write, attention, output (11); norm, gate-up,
activation with its buffer, down (6); norm, router, top-k, alignment, permutation, quantisation, two grouped products,
activation, sum (15)."""

Components = dict[str, Timed]
Head = tuple[int, int]
"""Vocabulary and hidden size of an LM head."""


@dataclass(frozen=True)
class EngineLayers:
    """The target model on one replica; token arrays are tokens of the whole replica in one iteration."""

    card: ModelCard
    engine: Engine
    operators: Operators
    fabric: Fabric

    @property
    def attention_tp(self) -> int:
        """GPUs that share one attention copy."""
        return self.engine.tensor_parallel // self.engine.attention_data_parallel

    @property
    def expert_layout(self) -> tuple[int, int]:
        """(tensor, expert) parallel sizes of the routed experts."""
        ep = self.engine.expert_parallel
        return self.engine.tensor_parallel // ep, ep

    def launches(self) -> float:
        """Kernels of one pass through all layers."""
        card, tp = self.card, self.engine.tensor_parallel
        reduces = 2 * card.num_layers if tp > 1 else 0
        ffn = card.num_dense_layers * DENSE_LAUNCHES + card.num_moe_layers * MOE_LAUNCHES
        return card.num_layers * ATTENTION_LAUNCHES + ffn + reduces

    def layer_components(self, tokens: FloatArray, graph: bool, layers: float, moe_layers: float) -> Components:
        """Times of ``layers`` layers, ``moe_layers`` of them with experts, for one iteration of ``tokens`` tokens."""
        engine, card = self.engine, self.card
        own = np.ceil(tokens / engine.attention_data_parallel)
        out: Components = {"attention projections": self._projections(own).times(layers)}
        dense_layers = layers - moe_layers
        if dense_layers > 0:
            matrices = work.ffn_matrices(card.hidden_size, card.intermediate_size, engine.tensor_parallel)
            out["feed-forward"] = self.operators.gemms(tokens, matrices, engine.weight_precision).times(dense_layers)
        if moe_layers > 0:
            out["experts"] = self._experts(tokens).times(moe_layers)
        if engine.tensor_parallel > 1:
            out["all-reduce"] = self._exchange(tokens, own, graph).times(layers)
        width = card.intermediate_size / engine.tensor_parallel if card.moe is None else 0.0
        out["elementwise"] = elementwise(self.operators, card, own, self.attention_tp, width).times(layers)
        return out

    def components(self, tokens: FloatArray, graph: bool) -> Components:
        """All layers of the model."""
        return self.layer_components(tokens, graph, self.card.num_layers, self.card.num_moe_layers)

    def head_components(self, rows: FloatArray, sampled: FloatArray, head: Head | None = None) -> Components:
        """LM head over ``rows`` positions, gathering logits over TP, and sampling on ``sampled`` of them."""
        vocab, hidden = head or (self.card.vocab_size, self.card.hidden_size)
        tp = self.engine.tensor_parallel
        product = self.operators.gemm(rows, Matrix("lm_head", -(-vocab // tp), hidden), "bf16")
        gather = self.fabric.collective("all_gather", tp, rows * vocab * BYTES_PER_ELEMENT["bf16"])
        moved = sampled * vocab * BYTES_PER_ELEMENT["fp32"] * SAMPLER_PASSES
        drawn = self.operators.sampling(sampled, vocab) or self.operators.stream(moved, SAMPLER_PASSES)
        return {"LM head": product + gather, "sampling": drawn}

    def _projections(self, tokens: FloatArray) -> Timed:
        precision, kv = self.engine.weight_precision, self.engine.kv_precision
        if self.card.mla is not None:
            return self.operators.latent_projections(self.card, self.attention_tp, precision, kv, tokens)
        return self.operators.gemms(tokens, work.attention_matrices(self.card, self.attention_tp), precision)

    def prefill_module(self, tokens: FloatArray, prompt_tokens: float) -> Timed | None:
        """Attention with its projections of one layer, as measured together; None where they are priced apart."""
        if self.card.mla is None:
            return None
        precision, kv = self.engine.weight_precision, self.engine.kv_precision
        tokens = np.maximum(tokens, 1.0)
        return self.operators.latent_prefill(self.card, self.attention_tp, precision, kv, tokens, prompt_tokens)

    def _experts(self, tokens: FloatArray) -> Timed:
        card, engine, moe = self.card, self.engine, self.card.moe
        if moe is None:
            return zero(tokens)
        router = self.operators.gemm(tokens, Matrix("router", moe.num_experts, card.hidden_size), "bf16")
        routed = self.operators.experts(
            tokens, card.hidden_size, moe, engine.weight_precision, self.expert_layout, engine.expert_balance
        )
        shared = self.operators.gemms(
            tokens, work.shared_expert_matrices(card, engine.tensor_parallel), engine.weight_precision
        )
        return router + routed + shared

    def _exchange(self, tokens: FloatArray, own: FloatArray, graph: bool) -> Timed:
        """Two all-reduces of a layer, or gather and scatter around the experts under data-parallel attention."""
        row_bytes = self.card.hidden_size * BYTES_PER_ELEMENT["bf16"]
        attention = self.fabric.all_reduce(self.attention_tp, own * row_bytes, graph)
        if self.engine.attention_data_parallel == 1:
            return attention.times(2.0)
        tp = self.engine.tensor_parallel
        gather = self.fabric.collective("all_gather", tp, tokens * row_bytes)
        return attention + gather + self.fabric.collective("reduce_scatter", tp, tokens * row_bytes)

    def cached_attention(self, sequences: FloatArray, context: FloatArray, queries: int) -> Timed:
        """Attention of ``queries`` positions per sequence over cached context, all layers; broadcasts its arguments.

        Several queries take the time measured for so many, never less than one takes. Without a measurement the cache
        is read once whatever their number; where that many queries need longer to compute, they do.
        """
        own, cached = np.broadcast_arrays(
            np.ceil(sequences / self.engine.attention_data_parallel), np.maximum(context, 1.0)
        )
        card, tp, kv = self.card, self.attention_tp, self.engine.kv_precision
        if card.mla is not None:
            once = self.operators.latent_attention(card, tp, self.engine.weight_precision, kv, own, cached)
            flops = work.latent_attention(own, cached, card, tp, BYTES_PER_ELEMENT[kv]).flops
        else:
            once = self.operators.decode_attention(card, tp, kv, own, cached)
            several = self.operators.verify_attention(card, tp, kv, own, cached, queries) if queries > 1 else None
            if several is not None:
                return Timed(np.maximum(several.seconds, once.seconds), several.measured, several.bound).times(
                    card.num_layers
                )
            flops = work.decode_attention(own, cached, card.num_heads // tp, 1, card.head_dim, 1.0).flops
        return self._at_least_computed(once, flops, queries).times(card.num_layers)

    def _at_least_computed(self, once: Timed, flops: FloatArray, queries: int) -> Timed:
        """``queries`` queries on a cache that one query reads in ``once``; never more than that many single passes."""
        computed = np.minimum(self.operators.attention_compute_s(flops * queries), once.seconds * queries)
        binding = computed > once.seconds
        bound = "compute" if bool(np.mean(binding) > 0.5) else once.bound
        return Timed(np.where(binding, computed, once.seconds), np.where(binding, 0.0, once.measured), bound)


def elementwise(operators: Operators, card: ModelCard, tokens: FloatArray, attention_tp: int, width: float) -> Timed:
    """Norms, residual additions, rotary embedding, cache write and activation (of ``width`` values) of one layer.

    As measured kernel by kernel; without such measurements, and under MLA, as one stream of their bytes.
    """
    heads, kv_heads = card.num_heads // attention_tp, max(1, card.num_kv_heads // attention_tp)
    kernels = [
        ("rms_norm", card.hidden_size, 2.0),
        ("residual_add", card.hidden_size, 2.0),
        ("norm_rotary" if card.qk_norm else "rotary", (heads + kv_heads) * card.head_dim, 1.0),
        ("cache_write", kv_heads * card.head_dim, 1.0),
        *([("activation", int(width), 1.0)] if width else []),
    ]
    measured = zero(tokens)
    for op, values, times in kernels:
        found = None if card.mla is not None else operators.elementwise(op, tokens, values)
        if found is None:
            return operators.stream(work.elementwise_bytes(tokens, card.hidden_size, width), ELEMENTWISE_KERNELS)
        measured = measured + found.times(times)
    return measured


def total(components: Components) -> FloatArray:
    """Sum of the component times."""
    return np.asarray(np.sum([timed.seconds for timed in components.values()], axis=0), dtype=np.float64)


def pipeline_hops(engine: Engine, fabric: Fabric, tokens: FloatArray, hidden: int) -> Timed:
    """Point-to-point messages between the stages of a replica."""
    hops = engine.pipeline_parallel - 1
    size = tokens * hidden * BYTES_PER_ELEMENT["bf16"]
    profile = fabric.profile
    crosses = engine.gpus_per_replica > fabric.domain
    rate = fabric.network if crosses else fabric.nvlink
    latency = profile.network_latency_s.value if crosses else profile.nvlink_latency_s.value
    return modelled(hops * (latency + size / rate), "network")
