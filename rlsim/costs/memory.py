"""Bytes per GPU, by pool and what holds them; whether a configuration fits."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from msgspec import Struct

from rlsim.costs.engine.capture import captured_sizes, largest_captured_tokens
from rlsim.costs.engine.draft import draft_card, trained_draft
from rlsim.costs.engine.prices import most_sequences
from rlsim.costs.operators import work
from rlsim.costs.operators.recurrent import indexer_matrices, recurrent_matrices
from rlsim.costs.operators.work import Matrix
from rlsim.costs.trainer.layout import expert_matrices, micro_batch_of, train_layout
from rlsim.errors import Infeasible
from rlsim.results import MemoryParts
from rlsim.schema.drafter import draft_kv_bytes_per_token, draft_parameters
from rlsim.schema.model import (
    ModelCard,
    kv_bytes_per_token,
    mixer_parameters,
    parameter_counts,
    state_bytes_per_sequence,
)
from rlsim.schema.scenario import Scenario
from rlsim.units import BYTES_PER_ELEMENT, GIB

RUNTIME_BYTES = 2.0 * GIB
"""CUDA context, NCCL buffers and allocator slack per process. Assumption (NCCL alone reports 0.35-0.4 GB)."""
GRAPH_BYTES_PER_CAPTURE = 10 * 2**20
"""Device memory of one captured graph size. Assumption from engine logs of 0.5-1 GiB for 50-70 sizes."""
ACTIVATION_BYTES_PER_HIDDEN = 34.0
"""Bytes of activations per token and hidden unit of a drafter's layer, attention recomputed in its kernel (Korthikanti
et al., arXiv 2205.05198, equation 4 without the attention matrix)."""
GATHERED_BLOCKS = 2
"""Blocks whose weights an FSDP rank holds whole: the one that computes and the one that is fetched ahead (PyTorch's
fully_shard)."""
ENGINE_ACTIVATION_ROWS = 8
"""Rows of hidden size that an engine holds per batched token in the largest layer. Assumption."""

STATE_SHARE = 0.9 / 1.9
"""Most of the room beside weights and graphs that recurrent states take: SGLang's default (mamba_full_memory_ratio 0.9:
states over cache), which then runs no more sequences than have one. vLLM takes states from the pages of its cache when
a sequence starts, so that it can hold more tokens while fewer sequences run."""
MEAN_CACHED_SHARE = 0.5
"""Of the longest sequence, what a running one holds in its cache: the mean of one that grows to it. Counts only where
windowed layers keep less of a longer sequence. Assumption."""
WINDOWED_LEAST = {"sglang": 0.8, "trtllm": 1.0}
"""Share of a sequence that windowed layers keep at the least, by engine. SGLang gives their pool that many tokens for
each of the others' (swa_full_tokens_ratio, srt/server_args.py of 0.5.9 and 0.5.12; 0.5.6 keeps all of gpt-oss and
Gemma). TensorRT-LLM keeps all unless its kv_cache_config names windows; inferred: with long responses gpt-oss-120b is
then predicted 2 % off instead of 38 (calibration/published/rollouts.csv)."""


class EngineMemory(Struct, frozen=True):
    """One engine GPU: parts in bytes, and how many tokens of KV cache the whole replica can hold.

    running_sequences: of the replica, whose recurrent states fit; None where no layer keeps a state.
    """

    parts: MemoryParts
    available_bytes: float
    kv_capacity_tokens: float
    running_sequences: int | None = None


def weight_bytes(card: ModelCard, precision: str) -> float:
    """Bytes of all weights; embedding, LM head and routers stay in BF16, under MXFP4 all but routed experts."""
    counts = parameter_counts(card)
    high = counts.embedding + counts.lm_head + card.num_moe_layers * counts.router_per_layer
    if precision == "mxfp4" and card.moe is not None:
        high = counts.total - card.num_moe_layers * card.moe.num_experts * counts.expert
    return high * BYTES_PER_ELEMENT["bf16"] + (counts.total - high) * BYTES_PER_ELEMENT[precision]


def engine_memory(scenario: Scenario) -> EngineMemory:
    """Memory of one rollout GPU. Raises Infeasible where the weights leave no room for one longest sequence, or where
    there are more replicas than sequences."""
    engine, card = scenario.released_engine, scenario.model
    _check_replicas(scenario)
    memory = scenario.hardware.memory_bytes.value
    shards = engine.tensor_parallel * engine.pipeline_parallel
    copies = engine.attention_data_parallel - 1
    mixers = mixer_parameters(card)
    own_bytes, bytes_each = (BYTES_PER_ELEMENT[p] for p in (engine.attention_precision(card), engine.dense_precision))
    # Data-parallel attention holds the mixers once for each copy, where the rest is divided over all GPUs.
    repeated = mixers * (copies * own_bytes + own_bytes - bytes_each)
    if card.sparse_attention is not None:
        # Every GPU of an attention copy holds the indexers whole.
        indexer = sum(matrix.elements for matrix in indexer_matrices(card)) * card.num_index_layers
        repeated += indexer * own_bytes * (engine.tensor_parallel - engine.attention_data_parallel)
    draft = draft_card(scenario.speculation, card)
    draft_precision = engine.dense_precision if draft is not None and draft.kind == "mtp" else "bf16"
    rows = engine.max_batched_tokens * ENGINE_ACTIVATION_ROWS / engine.tensor_parallel
    drafting = 0.0 if draft is None else draft_parameters(draft, card) / engine.tensor_parallel
    captured = largest_captured_tokens(engine, scenario.speculation.queries, scenario.hardware)
    captures = len(captured_sizes(captured)) * scenario.speculation.captured_lengths if engine.cuda_graphs else 0
    parts = MemoryParts(
        weights=(weight_bytes(card, engine.weight_precision) + repeated) / shards,
        runtime=RUNTIME_BYTES,
        activations=rows * card.hidden_size * BYTES_PER_ELEMENT["bf16"],
        draft=drafting * BYTES_PER_ELEMENT[draft_precision],
        graphs=float(captures * GRAPH_BYTES_PER_CAPTURE),
    )
    allowed, running = memory * engine.gpu_memory_utilization, None
    if card.recurrent is not None:
        running = sequences_with_state(scenario, allowed - parts.total)
        held = math.ceil(running / engine.attention_data_parallel) * state_bytes_per_gpu_sequence(scenario)
        parts = replace(parts, state=held)
    room = allowed - parts.total
    per_token = kv_bytes_per_gpu_token(scenario)
    # Copies of the attention hold different sequences: their caches add up.
    capacity = room / per_token * engine.attention_data_parallel
    longest = scenario.workload.max_sequence_tokens
    if room < longest * per_token or running == 0:
        needed = parts.total + longest * per_token
        raise Infeasible(
            f"{card.name} with engine.tensor_parallel={engine.tensor_parallel} and one sequence of {longest} tokens "
            f"does not fit into engine.gpu_memory_utilization={engine.gpu_memory_utilization:g} of a "
            f"{scenario.hardware.name} GPU; raise one of these two, or lower workload.max_sequence_tokens",
            needed, allowed, "bytes",
        )  # fmt: skip
    return EngineMemory(parts, memory, capacity, running)


def _check_replicas(scenario: Scenario) -> None:
    """Every replica has a rollout, of those that may be in flight at once."""
    workload = scenario.workload
    ahead = max(1.0, scenario.loop.asynchrony.pace) if scenario.loop.mode == "async" else 1.0
    rollouts = math.ceil(workload.samples_per_step * workload.generated_batch_factor * ahead)
    replicas = scenario.cluster.generation // scenario.engine.gpus_per_replica
    if replicas > rollouts:
        raise Infeasible(
            "more engine replicas than rollouts in flight; take fewer generating GPUs (cluster.num_gpus, cluster."
            "generation_gpus), a larger engine.tensor_parallel or more samples (workload.prompts_per_step)",
            replicas, rollouts, "replicas",
        )  # fmt: skip


def _check_ranks(scenario: Scenario, data_parallel: int) -> None:
    """Every data-parallel rank has a sample of each update."""
    samples = scenario.trainer.global_batch_samples or scenario.workload.samples_per_step
    if data_parallel > samples:
        most = scenario.cluster.training // data_parallel * samples
        raise Infeasible(
            f"more data-parallel ranks than samples of an update; take at most {most} training GPUs (cluster.num_gpus, "
            "cluster.training_gpus), a larger trainer.tensor_parallel or trainer.global_batch_samples",
            data_parallel, samples, "ranks",
        )  # fmt: skip


def state_bytes_per_gpu_sequence(scenario: Scenario) -> float:
    """Bytes of recurrent state that a running sequence takes on each GPU of its attention copy.

    A speculating engine keeps a state after each verified position beside the sequence's own (vLLM and SGLang), so
    that a rejection needs no recomputation.
    """
    engine, speculation = scenario.engine, scenario.speculation
    states = speculation.queries
    sharing = engine.tensor_parallel // engine.attention_data_parallel * engine.pipeline_parallel
    return states * state_bytes_per_sequence(scenario.model) / sharing


def sequences_with_state(scenario: Scenario, room_bytes: float) -> int:
    """Sequences of a replica whose recurrent states are reserved in ``room_bytes`` of a GPU beside weights and graphs.

    All that can run at once, or as many as STATE_SHARE of that room holds; the rest is left to the cache.
    """
    copies, each = scenario.engine.attention_data_parallel, state_bytes_per_gpu_sequence(scenario)
    return min(most_sequences(scenario), copies * int(STATE_SHARE * max(room_bytes, 0.0) / each))


_SPREAD = "raise one of these"
_REMEDIES = {
    "optimizer": f"{_SPREAD} or cluster.num_gpus, or lower trainer.optimizer_bytes_per_parameter",
    "activations": "set trainer.recompute=full or lower trainer.micro_batch_tokens",
    "logits": "raise trainer.tensor_parallel or lower trainer.micro_batch_tokens",
}
"""What to change where a part of a trainer's memory is too large."""


def windowed_share(scenario: Scenario) -> float:
    """Share of a sequence of mean length that windowed layers keep in the engine's cache: its last window (vLLM's
    hybrid cache), or more (WINDOWED_LEAST); 1 without such layers."""
    window, context = scenario.model.sliding_window_tokens, scenario.workload.max_sequence_tokens * MEAN_CACHED_SHARE
    return 1.0 if window is None else max(WINDOWED_LEAST.get(scenario.engine.name, 0.0), min(1.0, window / context))


def kv_bytes_per_gpu_token(scenario: Scenario) -> float:
    """KV bytes that one cached token takes on each GPU of its replica (target and draft)."""
    engine, card = scenario.engine, scenario.model
    tp = engine.tensor_parallel // engine.attention_data_parallel
    # A latent vector serves all heads and is held by each GPU; KV heads are divided until each GPU has one.
    sharing = 1 if card.mla is not None else min(tp, card.num_kv_heads)
    total = kv_bytes_per_token(card, engine.kv_precision, windowed_share(scenario))
    total /= sharing * engine.pipeline_parallel
    draft = draft_card(scenario.speculation, card)
    if draft is not None:
        shared = 1 if draft.kind == "mtp" and card.mla is not None else min(tp, draft.num_kv_heads)
        total += draft_kv_bytes_per_token(draft, card, engine.kv_precision) / shared
    return total


@lru_cache(maxsize=64)  # of every layout of a search, whose model is one
def activation_bytes_per_token(card: ModelCard) -> float:
    """Bytes of activations of the mean layer per token in BF16, without tensor parallelism: what backward passes read.

    A block keeps its input before and after its norm, what its products give and what the next ones take. Attention is
    computed again in its kernel, and so are the states of chunks of a recurrent mixer (mamba_ssm,
    flash-linear-attention). Experts keep a row for each of a token's top_k, but not their outputs: the router's weights
    apply before the second product, which needs none of them back (assumption; Megatron-Core can do either).

    >>> from rlsim.loading.models import load_card
    >>> activation_bytes_per_token(load_card("llama-3.1-8b"))  # 2 x (2 h + 6,144 + 4,096 + 2 h + 3 x 14,336)
    139264.0
    """
    counts, recurrent = card.layer_counts, card.recurrent
    elements = counts.attention * _attention_elements(card)
    if recurrent is not None:
        # Inputs of its convolution and its gate, the convolution's outputs, its output before and after the gate.
        width = sum(matrix.k for matrix in recurrent_matrices(card, 1) if matrix.name == "output")
        mixer = 2 * card.hidden_size + 2 * recurrent.conv_channels + 3 * width
        elements += (counts.linear + counts.mamba) * mixer
    dense = work.ffn_matrices(card.hidden_size, card.intermediate_size, 1, card.gated_ffn)
    elements += counts.dense * (2 * card.hidden_size + _inner_elements(dense))
    elements += counts.moe * _moe_elements(card)
    return elements / card.num_layers * BYTES_PER_ELEMENT["bf16"]


def _attention_elements(card: ModelCard) -> int:
    """Queries, keys and values, before their own norms or as latents too, what heads give, and a gate's product."""
    matrices = work.attention_matrices(card, 1)
    elements = 2 * card.hidden_size + sum(one.n for one in matrices[:-1]) + matrices[-1].k
    if card.mla is not None:
        return elements + (card.mla.q_lora_rank or 0) + card.mla.kv_lora_rank
    normed = (card.num_heads + card.num_kv_heads) * card.head_dim if card.qk_norm or card.qk_norm_over_heads else 0
    return elements + normed + (matrices[-1].k if card.attention_output_gate else 0)


def _inner_elements(matrices: list[Matrix]) -> int:
    """Elements a token that a block's first product gives and its second takes; 0 without a block."""
    return matrices[0].n + matrices[-1].k if matrices else 0


def _moe_elements(card: ModelCard) -> int:
    """Input and its norm, the rows of the chosen experts with what is between their products, shared experts."""
    if card.moe is None:
        return 0
    routed = card.moe.top_k * (card.expert_hidden_size + _inner_elements(expert_matrices(card)))
    shared, latent = work.shared_expert_matrices(card, 1), work.latent_expert_matrices(card)
    return 2 * card.hidden_size + routed + (_inner_elements(shared) + _inner_elements(latent))


def critic_swapped(scenario: Scenario) -> bool:
    """Whether the value model and the policy take turns on the training GPUs, as states that are offloaded can."""
    return scenario.trainer.critic and scenario.trainer.offload and scenario.cluster.colocated


def _trained_draft_bytes(scenario: Scenario, tokens: float) -> float | None:
    """Bytes of a drafter that one training GPU trains beside the policy; None where it trains none.

    Weights, gradients and optimizer state; a whole copy over the tensor-parallel group (FSDP: over all GPUs), its
    optimizer spread over the copies. The states of the target that an EAGLE-3 head reads are held for its pass, and so
    are its own activations and FP32 logits.
    """
    draft, trainer, card = trained_draft(scenario), scenario.trainer, scenario.model
    if draft is None:
        return None
    gpus, high = scenario.cluster.training, BYTES_PER_ELEMENT["fp32"]
    held = draft_parameters(draft, card) / (gpus if trainer.backend == "fsdp" else trainer.tensor_parallel)
    whole = draft_parameters(draft, card) / gpus
    fused = tokens * draft.fused_hidden_states * card.hidden_size * BYTES_PER_ELEMENT["bf16"]
    own = tokens * draft.hidden_size * ACTIVATION_BYTES_PER_HIDDEN * draft.num_layers
    logits = 2 * tokens * draft.vocab_size * high
    state = held * (BYTES_PER_ELEMENT["bf16"] + high) + whole * trainer.optimizer_bytes_per_parameter
    return state + (fused + own + logits) / trainer.tensor_parallel


def trainer_memory(scenario: Scenario) -> MemoryParts:
    """Bytes of one training GPU in the backward pass. Raises Infeasible where they, or those of a reference pool, are
    more than the device has, or where ranks would have no sample.

    Of a pipeline the fuller stage counts: the first holds activations of PP micro-batches (1F1B), the last of one and
    the logits.
    """
    if scenario.cluster.reference_gpus:
        _check_fits(scenario, _gpu(scenario, scenario.cluster.reference_gpus, update=False), "the reference policy of")
    parts = _gpu(scenario, scenario.cluster.training, update=True)
    _check_fits(scenario, parts, "training")
    return parts


def resident_bytes(scenario: Scenario) -> float:
    """What a colocated trainer leaves on each GPU for the rollout: nothing where it offloads, else weights, optimizer
    and Megatron's buffers of gradients, of a value model too; FSDP's gradients go with the step (PyTorch: zero_grad
    sets them to none)."""
    trainer = scenario.trainer
    if not scenario.cluster.colocated or trainer.offload:
        return 0.0
    layout = train_layout(trainer, scenario.model, scenario.cluster.training)
    optimizer = (
        0.0 if trainer.optimizer_on_host else layout.optimizer_parameters * trainer.optimizer_bytes_per_parameter
    )
    held, each = layout.parameters, BYTES_PER_ELEMENT["bf16"] + layout.trained_share * BYTES_PER_ELEMENT["fp32"]
    if trainer.backend == "fsdp":  # trained parameters are the optimizer's FP32 ones
        held, each = layout.sharded_parameters, (1 - layout.trained_share) * BYTES_PER_ELEMENT["bf16"]
    return (held * each + optimizer) * (2 if trainer.critic else 1)


def check_beside(scenario: Scenario) -> None:
    """Raise Infeasible where an engine's share of a GPU and what a trainer leaves there are more than it has."""
    available, share = scenario.hardware.memory_bytes.value, scenario.engine.gpu_memory_utilization
    resident = resident_bytes(scenario)
    if resident and share * available + resident > available:
        raise Infeasible(
            f"engine.gpu_memory_utilization={share:g} of a {scenario.hardware.name} GPU does not fit beside a trainer "
            f"that stays there (trainer.offload false); lower it, or let the trainer offload",
            share * available + resident, available, "bytes",
        )  # fmt: skip


def _gpu(scenario: Scenario, gpus: int, update: bool) -> MemoryParts:
    """One of ``gpus`` GPUs in the trainer's layout. update: with all that a backward pass needs; else a forward pass
    holds weights, one layer's activations and logits without their gradient."""
    trainer, card = scenario.trainer, scenario.model
    layout = train_layout(trainer, card, gpus)
    _check_ranks(scenario, layout.data_parallel)
    fsdp = trainer.backend == "fsdp"
    held = layout.sharded_parameters if fsdp else layout.parameters
    longest = scenario.workload.max_sequence_tokens
    packed = scenario.sequence_packing
    capacity = micro_batch_of(trainer, longest, update, packed) * (1 if packed else longest)
    tokens = capacity / trainer.context_parallel
    layers = card.num_layers / trainer.pipeline_parallel
    full = tokens * activation_bytes_per_token(card) / trainer.tensor_parallel
    inputs = tokens * card.hidden_size * BYTES_PER_ELEMENT["bf16"] / trainer.tensor_parallel
    # Full recomputation keeps what enters each layer, and the activations of the one layer that is computed again.
    kept, working = (layers * inputs, full) if trainer.recompute == "full" else (layers * full, 0.0)
    kept, working, trained = (kept, working, layout.trained_share) if update else (0.0, full, 0.0)
    chunk = min(tokens, trainer.logits_chunk_tokens or tokens)
    logits = chunk * card.vocab_size / trainer.tensor_parallel * (trainer.logits_bytes or 2 * BYTES_PER_ELEMENT["fp32"])
    # Without a backward pass their gradient, as large again, is not there.
    logits *= 1.0 if update else 0.5
    first_stage_is_fuller = (trainer.pipeline_parallel - 1) * kept > logits
    weights = held * BYTES_PER_ELEMENT["bf16"]
    if fsdp:  # trained parameters are sharded as the optimizer's FP32 ones; two blocks are gathered in BF16
        block = min(1.0, GATHERED_BLOCKS / card.num_layers) * layout.parameters
        weights = ((1 - trained) * held + block) * BYTES_PER_ELEMENT["bf16"]
    gradients = trained * held * BYTES_PER_ELEMENT["fp32"]
    optimizer = layout.optimizer_parameters * trainer.optimizer_bytes_per_parameter
    optimizer = 0.0 if trainer.optimizer_on_host or not update else optimizer
    return MemoryParts(
        weights=weights,
        runtime=RUNTIME_BYTES,
        activations=kept * (trainer.pipeline_parallel if first_stage_is_fuller else 1) + working,
        gradients=gradients,
        optimizer=optimizer,
        draft=_trained_draft_bytes(scenario, tokens) if update else None,
        logits=0.0 if first_stage_is_fuller else logits,
        critic=weights + gradients + optimizer if update and trainer.critic and not critic_swapped(scenario) else None,
    )


def _check_fits(scenario: Scenario, parts: MemoryParts, what: str) -> None:
    """Raise Infeasible where the parts exceed a training GPU."""
    trainer, card, available = scenario.trainer, scenario.model, scenario.training_device.memory_bytes.value
    if parts.total > available:
        worst, _ = max(parts.items(), key=lambda part: part[1])
        raise Infeasible(
            f"{what} {card.name} with trainer.tensor_parallel={trainer.tensor_parallel}, pipeline_parallel="
            f"{trainer.pipeline_parallel}, expert_parallel={trainer.expert_parallel} does not fit a "
            f"{scenario.training_device.name} GPU; most of it is {worst}: {_REMEDIES.get(worst, _SPREAD)}",
            parts.total, available, "bytes",
        )  # fmt: skip
