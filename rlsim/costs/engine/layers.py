"""Device time of the layers of a model in a rollout engine, without attention over cached context."""

from collections.abc import Callable
from functools import reduce

import numpy as np
from msgspec import Struct

from rlsim.costs.engine.adapters import adapters
from rlsim.costs.engine.capture import largest_captured_tokens
from rlsim.costs.engine.hosts import NO_HOST, HostOverheads
from rlsim.costs.engine.releases import COPIES_ACCEPTED_STATE, READS_LATENTS_AGAIN
from rlsim.costs.operators import work
from rlsim.costs.operators.collectives import Collectives
from rlsim.costs.operators.latent import LatentBlock, SparseBlock, prompt_scores
from rlsim.costs.operators.operators import Operators
from rlsim.costs.operators.recurrent import RecurrentBlock, gate_bytes, recurrent_matrices, split_bytes
from rlsim.costs.operators.time import OperatorTime, beside, mean_layer, modelled, zero
from rlsim.costs.operators.work import Matrix, Number
from rlsim.schema.architecture import LayerCounts, MoECard
from rlsim.schema.engine import Engine
from rlsim.schema.model import ModelCard
from rlsim.tables.operators import ExpertShape
from rlsim.units import BYTES_PER_ELEMENT, MICROSECOND, FloatArray

SAMPLER_PASSES = 4.0
"""Passes over FP32 logits when sampling: temperature, softmax (two), draw. Counted from the published samplers."""
ELEMENTWISE_KERNELS, MIXING_KERNELS = 4.0, 6.0
"""Elementwise kernels per layer: two fused add-norms, rotary embedding with KV write, gated activation; and of residual
streams: into each of two blocks the weights and the mixing, and the mixing behind it."""
ATTENTION_LAUNCHES, DENSE_LAUNCHES, MOE_LAUNCHES = 13, 4, 8
"""Launches that a compiled engine spends on attention, a dense FFN and a MoE FFN of a layer outside a graph. Attention
is an operator of its own between the compiled pieces, with some Python before its kernels: outside the graph it
took 0.13 ms a layer of Qwen3-30B-A3B on an H100's host (vLLM PR 25444: 4.07 requests/s instead of 5.98), 13 launches of
10 us. Compiled pieces: norm, gate-up, activation, down (4); norm, router, top-k, alignment, two grouped products,
activation, sum (8). Of kernels alone that model has 17 a layer, all-reduces included (Megatron-LM PR 6064: 810)."""
RECURRENT_LAUNCHES = 21
"""Launches of a recurrent mixer outside a graph, where it works on prompts chunk by chunk. Counted in the layer of
Qwen3-Next and flash-linear-attention's chunk_gated_delta_rule: norm, two input products, split, convolution, gates,
states gathered and scattered, gated norm, output (10); two norms of queries and keys, cumulated decays, products of
keys, triangular solve, its two products, states, outputs, and the copies of three of them (11)."""
UNCOMPILED_LAUNCHES = 17
"""Operators that an uncompiled dense layer dispatches. Counted in vLLM's Qwen3 layer: norm, QKV, splits and norms of
the heads, rotary embedding, cache write, attention, output (11); norm, gate-up, activation, its buffer, down (6)."""

GRAPH_NODE_S = 1.3 * MICROSECOND
"""Least time of a kernel between others in a replayed graph (1.34 us for a serialized node, Megatron-LM PR 6453)."""
STATE_KERNELS = 2
"""Kernels of a recurrent step: the convolution and the state."""
OWN_EXPERTS = ("vllm", "sglang")
"""Engines that choose the kernel of quantised experts by device and model, as their tables were collected. Recipes of
TensorRT-LLM name one by layout (moe_config.backend; one for block FP8 on Blackwell that its tables lack), and those of
MXFP4 the precision of activations: for these the fastest measured counts."""
EXPERT_KERNELS = 4
"""Kernels that the measured experts consist of: permutation, two grouped products with the activation, sum."""

NORM_STATISTICS_BYTES = 8.0
"""Sums of squares of queries and keys of one token in FP32."""
ALL_REDUCE_OVER_TRAYS = ("sglang", "trtllm")
"""Engines whose own all-reduce works between nodes of one NVLink domain (multi-node NVLink memory); vLLM takes NCCL."""

Components = dict[str, OperatorTime]
Head = tuple[int, int, int]
"""Vocabulary and hidden size of an LM head, and the GPUs that share it."""


class EngineLayers(Struct, frozen=True):
    """The target model on one replica; token arrays are tokens of the whole replica in one iteration."""

    card: ModelCard
    engine: Engine
    operators: Operators
    fabric: Collectives
    host: HostOverheads = NO_HOST
    routing_overlap: float = 1.0
    verified: int = 1
    """Positions of a sequence among the tokens, which share experts as Workload.routing_overlap says."""

    def captured_tokens(self, per_sequence: int) -> int:
        """Largest captured batch of one attention copy in tokens."""
        return largest_captured_tokens(self.engine, per_sequence, self.operators.profile)

    def compute_bound(self, tokens: FloatArray) -> FloatArray:
        """How far products on ``tokens`` are bound by compute: 0 up to the ridge of the roofline, 1 from twice that on.

        At the ridge 2 T FLOP a weight over the peak take as long as its bytes over the bandwidth (datasheet: 295 tokens
        on an H100); of experts each has its share of the tokens. In between kernels reach neither bound.
        """
        profile, precision = self.operators.profile, self.engine.weight_precision
        peak = profile.flops("fp8" if precision == "fp8_block" else precision)
        ridge = BYTES_PER_ELEMENT[precision] * peak / (2.0 * profile.memory_bandwidth_bytes_per_s.value)
        if self.card.moe is not None:
            ridge *= self.card.moe.num_experts / self.card.moe.top_k
        return np.clip(tokens / ridge - 1.0, 0.0, 1.0)

    def _chained(self, timed: OperatorTime, kernels: float = 1.0) -> OperatorTime:
        """An operator between others: its start and end overlap with theirs, which a measurement alone cannot show."""
        return timed.shortened_by(self.host.overlap_s * kernels, GRAPH_NODE_S * kernels)

    def _products(self, tokens: FloatArray, matrices: list[Matrix], precision: str) -> OperatorTime:
        """Matrix products one after the other."""
        out = zero(tokens)
        for matrix in matrices:
            out = out + self._chained(self.operators.gemm(tokens, matrix, precision))
        return out

    @property
    def attention_tp(self) -> int:
        """GPUs that share one attention copy."""
        return self.engine.tensor_parallel // self.engine.attention_data_parallel

    def launches(self) -> float:
        """Kernels of one pass through all layers."""
        counts, tp = self.card.layer_counts, self.engine.tensor_parallel
        reduces = counts.mixers + counts.ffns if tp > 1 else 0
        mixers = counts.attention * ATTENTION_LAUNCHES + (counts.linear + counts.mamba) * RECURRENT_LAUNCHES
        return mixers + counts.dense * DENSE_LAUNCHES + counts.moe * MOE_LAUNCHES + reduces

    def pieces(self) -> float:
        """Launches of one pass through all layers whose compiled pieces are graphs: attention and what follows it."""
        mixers = self.card.layer_counts.attention * (ATTENTION_LAUNCHES + 1.0)
        return mixers + self.card.num_recurrent_layers * RECURRENT_LAUNCHES

    def layer_components(self, tokens: FloatArray, counts: LayerCounts) -> Components:
        """Times of blocks of the kinds and numbers of ``counts`` for one iteration of ``tokens`` tokens, in a graph."""
        engine, card = self.engine, self.card
        own = np.ceil(tokens / engine.attention_data_parallel)
        out: Components = {}
        if counts.attention > 0:
            out["attention projections"] = self._projections(own).repeated(counts.attention)
        recurrent = counts.linear + counts.mamba
        if recurrent > 0:
            matrices = recurrent_matrices(card, self.attention_tp)
            products = self._products(own, matrices, engine.attention_precision(card))
            out["recurrent projections"] = products.repeated(recurrent)
        if counts.dense > 0:
            sizes = card.hidden_size, card.intermediate_size, engine.tensor_parallel
            matrices = work.ffn_matrices(*sizes, card.gated_ffn)
            out["feed-forward"] = self._products(tokens, matrices, engine.dense_precision(card)).repeated(counts.dense)
        if counts.moe > 0:
            out["experts"] = self._experts(tokens).repeated(counts.moe)
        if engine.tensor_parallel > 1:
            out["all-reduce"] = self._all_exchanges(tokens, own, True, counts)
        out["elementwise"] = self._elementwise(own, counts)
        if engine.lora_rank:
            out["adapters"] = adapters(self.operators, card, engine, counts, own, tokens)
        if self.host.layers_s > 0:
            further_s = self.host.layers_s * counts.mixers / card.layer_counts.mixers
            out["further kernels"] = modelled(np.full_like(own, further_s), "memory")
        return out

    def _elementwise(self, own: FloatArray, counts: LayerCounts) -> OperatorTime:
        """Small kernels of all blocks: two norms of a whole layer, one of a single block; gates of recurrent ones."""
        card, engine, tp = self.card, self.engine, self.attention_tp
        width = card.intermediate_size / engine.tensor_parallel if card.moe is None else 0.0
        if card.recurrent is None or counts.mixers == counts.attention:
            small = elementwise(self.operators, card, own, tp, width)
            return self._chained(small, ELEMENTWISE_KERNELS).repeated(counts.attention)
        stream, gated = self.operators.stream, gate_bytes(own, card.recurrent, tp)
        norms = counts.mixers + counts.ffns
        out = self._chained(stream(work.elementwise_bytes(own, card.hidden_size / 2.0, 0.0))).repeated(norms)
        out = out + self._chained(stream(gated)).repeated(counts.linear + counts.mamba)
        if card.linear_attention is not None:
            out = out + self._chained(stream(split_bytes(own, card.linear_attention, tp))).repeated(counts.linear)
        if card.attention_output_gate:
            row = card.num_heads / tp * card.head_dim * BYTES_PER_ELEMENT["bf16"]
            out = out + self._chained(stream(3.0 * own * row)).repeated(counts.attention)
        # Queries and keys are rotated and written: read once, written once.
        own_heads = work.heads_of(card, tp)
        heads = (own_heads.heads + 2 * own_heads.kv_heads) * card.head_dim
        rotary = self._chained(stream(2.0 * own * heads * BYTES_PER_ELEMENT["bf16"]))
        activated = self._chained(stream(work.elementwise_bytes(own, 0, width))) if counts.dense else zero(own)
        return out + rotary.repeated(counts.attention) + activated.repeated(counts.dense)

    def _all_exchanges(self, tokens: FloatArray, own: FloatArray, graph: bool, counts: LayerCounts) -> OperatorTime:
        """What blocks exchange."""
        out = self._after_blocks(tokens, own, graph, counts)
        if not self.card.qk_norm_over_heads or self.attention_tp == 1:
            return out
        # The norm runs over the heads of all GPUs, which therefore exchange its statistics (two numbers a token).
        return out + self._reduced(own, NORM_STATISTICS_BYTES, graph).repeated(counts.attention)

    def _after_blocks(self, tokens: FloatArray, own: FloatArray, graph: bool, counts: LayerCounts) -> OperatorTime:
        """What they exchange after them: a layer of a mixer and a feed-forward block as one, single blocks apart."""
        if counts.mixers == counts.ffns:
            return self._exchange(tokens, own, graph).repeated(counts.mixers)
        attention = self._reduced(own, self.card.hidden_size * BYTES_PER_ELEMENT["bf16"], graph)
        whole = self._exchange(tokens, own, graph)
        ffn = OperatorTime(whole.seconds - attention.seconds, whole.measured, whole.bound)
        return attention.repeated(counts.mixers) + ffn.repeated(counts.ffns)

    def components(self, tokens: FloatArray) -> Components:
        """All layers of the model in a graph."""
        return self.layer_components(tokens, self.card.layer_counts)

    def launched(self, tokens: FloatArray, captured: Components) -> Components:
        """``captured``, all layers of the model on ``tokens``, launched by the host: another all-reduce."""
        if "all-reduce" not in captured:
            return captured
        own = np.ceil(tokens / self.engine.attention_data_parallel)
        return captured | {"all-reduce": self._all_exchanges(tokens, own, False, self.card.layer_counts)}

    def state_components(self, tokens: FloatArray, queries: int) -> Components:
        """Recurrent state of sequences that put ``tokens`` tokens, ``queries`` each, into an iteration; {} without."""
        recurrent, engine = self.card.recurrent, self.engine
        if recurrent is None:
            return {}
        own = np.ceil(tokens / queries / engine.attention_data_parallel)
        copied = engine.name in COPIES_ACCEPTED_STATE
        once = RecurrentBlock(self.operators, recurrent, self.attention_tp).decode(own, queries, copied)
        return {"recurrent state": self._chained(once, STATE_KERNELS).repeated(self.card.num_recurrent_layers)}

    def prompt_states(self, batch: FloatArray, prompt_tokens: float) -> OperatorTime | None:
        """Recurrence of all layers over ``batch`` prompts, their projections apart; None without."""
        recurrent = self.card.recurrent
        if recurrent is None:
            return None
        # A part of a prompt runs as one prompt as long as that part.
        length = np.minimum(batch * prompt_tokens, prompt_tokens)
        block = RecurrentBlock(self.operators, recurrent, self.attention_tp)
        return block.prefill(np.maximum(batch, 1.0), length).repeated(self.card.num_recurrent_layers)

    def head_components(self, rows: FloatArray, sampled: FloatArray, head: Head | None = None) -> Components:
        """LM head over ``rows`` positions, gathering logits over TP, and sampling on ``sampled`` of them."""
        vocab, hidden, tp = head or (self.card.vocab_size, self.card.hidden_size, self.engine.tensor_parallel)
        product = self.operators.gemm(rows, Matrix("lm_head", -(-vocab // tp), hidden), "bf16")
        gather = self.fabric.collective("all_gather", tp, rows * vocab * BYTES_PER_ELEMENT["bf16"])
        moved = sampled * vocab * BYTES_PER_ELEMENT["fp32"] * SAMPLER_PASSES
        drawn = self.operators.sampling(sampled, vocab) or self.operators.stream(moved, SAMPLER_PASSES)
        return {"LM head": product + gather, "sampling": drawn}

    def _projections(self, tokens: FloatArray) -> OperatorTime:
        precision, tp = self.engine.attention_precision(self.card), self.attention_tp
        matrices = work.attention_matrices(self.card, tp)
        if self.card.mla is None:
            return self._products(tokens, matrices, precision)
        # A sparse block was measured whole, with what its kernels overlap among themselves.
        kernels = 1.0 if self.card.sparse_attention is not None else len(matrices)
        return self._chained(self._over_latents(lambda block: block.projections(tokens)), kernels)

    def _latents(self) -> list[tuple[int, LatentBlock]]:
        """Latent blocks by kind, with their layers: with and without an indexer of their own, where there are any."""
        engine, card = self.engine, self.card
        own = (self.operators, card, self.attention_tp, engine.attention_precision(card), engine.kv_precision)
        if card.sparse_attention is None:
            return [(card.num_layers, LatentBlock(*own))]
        layers = {True: card.num_index_layers, False: card.num_layers - card.num_index_layers}
        return [(count, SparseBlock(*own, indexer=indexer)) for indexer, count in layers.items() if count]

    def _over_latents(self, price: Callable[[LatentBlock], OperatorTime]) -> OperatorTime:
        """Mean layer of the kinds of latent blocks."""
        return mean_layer([(layers, price(block)) for layers, block in self._latents()])

    def prefill_module(self, tokens: FloatArray, prompt_tokens: Number) -> OperatorTime | None:
        """Attention with its projections of one layer, as measured together; None where they are priced apart."""
        if self.card.mla is None:
            return None
        own = np.maximum(tokens, 1.0)
        found = [(layers, block.prefill(own, prompt_tokens)) for layers, block in self._latents()]
        known = [(layers, timed) for layers, timed in found if timed is not None]
        return mean_layer(known) if len(known) == len(found) else None

    def prompt_attention(self, batch: FloatArray, prompt_tokens: Number) -> OperatorTime:
        """Attention of one layer over ``batch`` prompts, its projections apart; of a part of one its share."""
        operators, card = self.operators, self.card
        whole, part = np.maximum(batch, 1.0), np.minimum(batch, 1.0)
        attended = operators.prefill_attention(card, self.attention_tp, whole, prompt_tokens)
        if card.sparse_attention is not None:
            attended = attended + prompt_scores(operators, card, whole, np.full_like(whole, prompt_tokens))
        return attended.scaled_by(part)

    def _experts(self, tokens: FloatArray) -> OperatorTime:
        card, engine, moe = self.card, self.engine, self.card.moe
        if moe is None:
            return zero(tokens)
        precision, tp = engine.weight_precision, engine.tensor_parallel
        router = self._chained(self.operators.gemm(tokens, Matrix("router", moe.num_experts, card.hidden_size), "bf16"))
        ep, sizes = engine.expert_parallel, (card.expert_hidden_size, moe.expert_intermediate_size)
        # Engines split the tensor-parallel ranks between experts (EP) and the width of each expert (TP / EP).
        shape = ExpertShape(precision, *sizes, moe.top_k, moe.num_experts, tensor_parallel=tp // ep, expert_parallel=ep)
        # Where experts spread over nodes, engines run the grouped products of libraries that all of them link.
        own = engine.name in OWN_EXPERTS and precision != "mxfp4" and tp <= int(self.fabric.profile.gpus_per_node)
        routed = self._routed(tokens, shape, moe, own)
        if moe.latent_size is not None:
            router = router + self._products(tokens, work.latent_expert_matrices(card), engine.dense_precision(card))
        shared = self._products(tokens, work.shared_expert_matrices(card, tp), engine.dense_precision(card))
        # Shared experts run on a stream of their own beside the routed ones.
        return beside(router + self._chained(routed, EXPERT_KERNELS), shared)

    def _routed(self, tokens: FloatArray, shape: ExpertShape, moe: MoECard, own: bool) -> OperatorTime:
        """Routed experts of one layer, of which positions of one sequence share some."""
        how = moe.matrices, self.engine.expert_balance, own
        routed = self.operators.experts(tokens, shape, *how)
        if self.verified == 1 or self.routing_overlap == 1.0:
            return routed
        # Weights that are not read save time, down to one position of each sequence and to the products' own FLOP.
        chosen = moe.num_experts, moe.top_k
        fewer = work.experts_touched(tokens * self.verified ** (self.routing_overlap - 1.0), *chosen)
        share = fewer / work.experts_touched(tokens, *chosen)
        alone = self.operators.experts(tokens / self.verified, shape, *how)
        products = work.Work(work.grouped_experts(tokens, shape, moe.matrices).flops, np.zeros_like(tokens))
        least_s = np.maximum(alone.seconds, self.operators.roofline(products, shape.precision, "moe").seconds)
        return routed.scaled_by(np.maximum(share, np.minimum(least_s / routed.seconds, 1.0)))

    def _reduced(self, own: FloatArray, row_bytes: float, graph: bool) -> OperatorTime:
        """One all-reduce between the GPUs of an attention copy, of ``row_bytes`` for each token."""
        shared = self.engine.name in ALL_REDUCE_OVER_TRAYS
        hop_s = self.host.network_hop_s
        return self._chained(self.fabric.all_reduce(self.attention_tp, own * row_bytes, graph, shared, hop_s))

    def _exchange(self, tokens: FloatArray, own: FloatArray, graph: bool) -> OperatorTime:
        """Two all-reduces of a layer, or around the experts under data-parallel attention gather and scatter.

        Experts spread over several nodes of one NVLink domain exchange tokens by all-to-all instead of gathering all.
        """
        card, engine = self.card, self.engine
        row_bytes = card.hidden_size * BYTES_PER_ELEMENT["bf16"]
        attention = self._reduced(own, row_bytes, graph)
        if engine.attention_data_parallel == 1:
            return attention.repeated(2.0)
        tp = engine.tensor_parallel
        several_nodes = int(self.fabric.profile.gpus_per_node) < tp <= self.fabric.domain and self.fabric.rack_aligned
        if several_nodes and engine.expert_parallel == tp and card.moe is not None:
            precision, top_k = engine.weight_precision, card.moe.top_k
            return attention + self.fabric.expert_exchange(tp, np.ceil(tokens / tp), card.hidden_size, precision, top_k)
        gather = self._chained(self.fabric.collective("all_gather", tp, tokens * row_bytes))
        scatter = self._chained(self.fabric.collective("reduce_scatter", tp, tokens * row_bytes))
        return attention + gather + scatter

    def cached_attention(self, sequences: FloatArray, context: FloatArray, queries: int) -> OperatorTime:
        """Attention of ``queries`` positions per sequence over cached context, all layers; broadcasts its arguments.

        Several queries take the time measured for so many, never less than one takes. Without a measurement the cache
        is read once whatever their number; where that many queries need longer to compute, they do. Windowed layers
        see no more than their window.
        """
        own, cached = np.broadcast_arrays(
            np.ceil(sequences / self.engine.attention_data_parallel), np.maximum(context, 1.0)
        )
        times = []
        for layers, window in self.card.attention_kinds:
            seen = cached if window is None else np.minimum(cached, float(window))
            times.append((layers, self._cached_layer(own, seen, queries)))
        return mean_layer(times).repeated(self.card.num_attention_layers) if times else zero(own)

    def _cached_layer(self, own: FloatArray, cached: FloatArray, queries: int) -> OperatorTime:
        """Attention of one layer over ``cached`` tokens of each of ``own`` sequences."""
        card, tp, kv = self.card, self.attention_tp, self.engine.kv_precision
        if card.sparse_attention is not None:
            # Every query ranks the cache and gathers tokens of its own: kernels take each as a sequence.
            return self._over_latents(lambda block: block.attention(own * queries, cached))
        if card.mla is not None:
            once = self._over_latents(lambda block: block.attention(own, cached))
            if self.engine.name in READS_LATENTS_AGAIN and self.operators.profile.nvfp4_flops is None:
                return once.repeated(queries)
            flops = work.latent_attention(own, cached, card, tp, BYTES_PER_ELEMENT[kv]).flops
        else:
            heads = work.heads_of(card, tp, kv)
            once = self.operators.decode_attention(heads, own, cached)
            several = self.operators.verify_attention(heads, own, cached, queries) if queries > 1 else None
            if several is not None:
                return OperatorTime(np.maximum(several.seconds, once.seconds), several.measured, several.bound)
            flops = work.decode_attention(own * cached, heads.heads, 1, card.head_dim, 1.0).flops
        # Never more than that many single passes.
        computed = np.minimum(self.operators.attention_compute_s(flops * queries), once.seconds * queries)
        binding = computed > once.seconds
        bound = "compute" if bool(np.mean(binding) > 0.5) else once.bound
        return OperatorTime(np.where(binding, computed, once.seconds), np.where(binding, 0.0, once.measured), bound)


def elementwise(
    operators: Operators, card: ModelCard, tokens: FloatArray, attention_tp: int, width: float
) -> OperatorTime:
    """Norms, residual additions, rotary embedding, cache write and activation (of ``width`` values) of one layer.

    As measured kernel by kernel; without such measurements, and under MLA, as one stream of their bytes.
    """
    heads, kv_heads, *_ = work.heads_of(card, attention_tp)
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
            moved = work.elementwise_bytes(tokens, card.hidden_size, width, card.residual_streams)
            return operators.stream(moved, ELEMENTWISE_KERNELS + (MIXING_KERNELS if card.residual_streams > 1 else 0.0))
        measured = measured + found.repeated(times)
    return measured


def total(components: Components) -> FloatArray:
    """Sum of the component times, one after the other."""
    return np.asarray(reduce(np.add, [timed.seconds for timed in components.values()]), dtype=np.float64)
