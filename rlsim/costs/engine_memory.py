"""Bytes of an engine GPU, by what holds them, and the room that they leave to its cache."""

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from msgspec import Struct

from rlsim.costs.engine.capture import captured_sizes, largest_captured_tokens, memory_share
from rlsim.costs.engine.draft import draft_card
from rlsim.costs.engine.prices import most_sequences
from rlsim.costs.operators import work
from rlsim.costs.operators.recurrent import indexer_matrices
from rlsim.costs.trainer.layout import adapter_parameters, expert_matrices
from rlsim.errors import Infeasible
from rlsim.files.yaml import lists_beside
from rlsim.results import MemoryParts
from rlsim.schema.drafter import draft_kv_bytes_per_token, draft_parameters
from rlsim.schema.engine import Engine
from rlsim.schema.engine_parameters import version_order
from rlsim.schema.model import (
    ModelCard,
    kv_bytes_per_token,
    mixer_parameters,
    parameter_counts,
    state_bytes_per_sequence,
)
from rlsim.schema.scenario import Scenario
from rlsim.units import BYTES_PER_ELEMENT, GIB

_TERMS = lists_beside(__file__, "memory.yaml")["engine"]
_SPREADS = lists_beside(__file__, "memory.yaml")["spread"]
SPREAD = {name: float(term["value"]) for name, term in _SPREADS.items() if name != "trainers"}
"""Standard deviations of what is counted; sources in memory.yaml."""
TRAINER_SPREADS: dict[str, float] = _SPREADS["trainers"]["value"]
"""Of trainers whose peaks are known in numbers, by the framework of their stack."""
TERMS = {name: term["value"] for name, term in _TERMS.items()}
"""What no model or layout states; sources, rows and residuals in memory.yaml."""
CONTEXT_BYTES = TERMS["context_gib"] * GIB
"""CUDA context of a process."""
SAMPLER_SINCE = version_order(_TERMS["sampler_bytes"]["since"])
GRAPHS_IN_SHARE = version_order(TERMS["graphs_in_share"])
"""Releases of vLLM from which its sampler takes less, and from which graphs count in its share of the memory."""
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

    kv_bytes: of the GPU's cache. running_sequences: of the replica, whose recurrent states fit; None where no layer
    keeps a state.
    """

    parts: MemoryParts
    available_bytes: float
    kv_capacity_tokens: float
    kv_bytes: float
    running_sequences: int | None = None


def weight_bytes(card: ModelCard, precision: str) -> float:
    """Bytes of all weights; embedding, LM head and routers stay in BF16, under MXFP4 and INT4 all but routed
    experts."""
    counts = parameter_counts(card)
    high = counts.embedding + counts.lm_head + card.num_moe_layers * counts.router_per_layer
    if precision in ("mxfp4", "int4") and card.moe is not None:
        high = counts.total - card.num_moe_layers * card.moe.num_experts * counts.expert
    return high * BYTES_PER_ELEMENT["bf16"] + (counts.total - high) * BYTES_PER_ELEMENT[precision]


def _older(engine: Engine, release: tuple[int, ...]) -> bool:
    """Whether a vLLM is older than ``release``; one that is not stated counts as the newest."""
    return engine.version is not None and version_order(engine.version) < release


def engine_activation_bytes(card: ModelCard, engine: Engine, sampler_bytes: float | None = None) -> float:
    """Peak of the engine's profile run, per GPU: a forward pass of as many tokens as it batches, or its sampler.

    Of a layer the input, its norm's output and the FFN's products, of experts for each row of the chosen ones (fused
    kernels make room for every row on each GPU), whose width tensor parallelism divides and expert parallelism does not
    (NeMo-RL 7ea279abf weight_sync/nccl_reshard_utils.py:821). vLLM's sampler runs on one rank with whole logits of as
    many sequences as may run, in FP32 with what sorting them takes; others sample in what their share leaves
    (memory.yaml). sampler_bytes: of a logit; default those of the release.
    """
    tp, tokens = engine.tensor_parallel, engine.budget_tokens
    rows = 2 * card.hidden_size + 3 * card.intermediate_size / tp
    if card.moe is not None:
        width = card.moe.expert_intermediate_size / (tp // engine.expert_parallel)
        routed = 3 * width + card.expert_hidden_size
        shared = sum(one.n for one in work.shared_expert_matrices(card, 1)[:1]) / tp
        rows = 2 * card.hidden_size + card.moe.top_k * routed + shared
    forward = tokens * rows * BYTES_PER_ELEMENT["bf16"]
    if engine.name != "vllm":
        return forward
    each: float = sampler_bytes or TERMS["sampler_bytes"]["before" if _older(engine, SAMPLER_SINCE) else "since"]
    return max(forward, min(engine.most_running, tokens) * card.vocab_size * each)


def communication_bytes(tensor_parallel: int) -> float:
    """Buffers of NCCL and custom all-reduce on each of ``tensor_parallel`` GPUs, and what kernels hold on one."""
    sizes, gib = zip(*TERMS["runtime_gib"], strict=True)
    return float(np.interp(math.log2(tensor_parallel), np.log2(sizes), gib)) * GIB


def _graph_bytes(scenario: Scenario) -> float:
    engine, card = scenario.released_engine, scenario.model
    if not engine.cuda_graphs:
        return 0.0
    captured = largest_captured_tokens(engine, scenario.speculation.queries, scenario.hardware)
    captures = len(captured_sizes(captured)) * scenario.speculation.captured_lengths
    layers = card.num_layers / engine.pipeline_parallel
    fitted = captures * layers * card.hidden_size / engine.tensor_parallel * TERMS["graph_bytes"]
    return min(float(fitted), float(TERMS["graphs_most_gib"]) * GIB)


def _weights(scenario: Scenario) -> float:
    """Weights of a GPU: its share of all, what GPUs repeat, MXFP4's padding, adapters."""
    engine, card = scenario.released_engine, scenario.model
    own_bytes, bytes_each = (
        BYTES_PER_ELEMENT[p] for p in (engine.attention_precision(card), engine.dense_precision(card))
    )
    # Data-parallel attention holds the mixers once for each copy, where the rest is divided over all GPUs.
    copies = engine.attention_data_parallel - 1
    more = mixer_parameters(card) * (copies * own_bytes + own_bytes - bytes_each) + _repeated(engine, card, own_bytes)
    if engine.weight_precision == "mxfp4" and card.moe is not None:
        width, multiple = card.expert_hidden_size, TERMS["mxfp4_padding"]
        experts = card.num_moe_layers * card.moe.num_experts * sum(one.elements for one in expert_matrices(card))
        more += experts * (-(-width // multiple) * multiple / width - 1) * BYTES_PER_ELEMENT["mxfp4"]
    if engine.lora_rank:  # one slot, allocated whole when the engine starts
        more += adapter_parameters(card, engine.lora_rank) * BYTES_PER_ELEMENT["bf16"]
    return (weight_bytes(card, engine.weight_precision) + more) / engine.gpus_per_replica


def _repeated(engine: Engine, card: ModelCard, own_bytes: float) -> float:
    """Bytes that the GPUs of a replica hold beyond one copy of all weights and those of the attention copies.

    Indexers, projections into latents and routers are whole on every GPU (ReplicatedLinear of vLLM and SGLang), and so
    is the embedding beside SGLang's attention copies (00114aef1, srt/models/deepseek_v2.py: enable_tp). What latents
    are multiplied with in decoding is held again in BF16: SGLang's w_kc and w_vc (post_load_weights there), of
    quantised weights vLLM's W_UK_T and W_UV (37fa5c094, v1/attention/backends/mla/common.py), else views.
    """
    gpus, copies, counts = engine.tensor_parallel, engine.attention_data_parallel, parameter_counts(card)
    bf16 = BYTES_PER_ELEMENT["bf16"]
    more = card.num_moe_layers * counts.router_per_layer * (gpus - 1) * bf16
    if engine.name == "sglang" and copies > 1:
        more += counts.embedding * (gpus - 1) * bf16
    if card.sparse_attention is not None:
        indexer = sum(matrix.elements for matrix in indexer_matrices(card)) * card.num_index_layers
        more += indexer * own_bytes * (gpus - copies)
    if card.mla is not None:
        elements = {one.name: one.elements * card.num_attention_layers for one in work.attention_matrices(card, 1)}
        more += elements["qkv_down"] * own_bytes * (gpus - copies)
        if engine.name == "sglang" or own_bytes != bf16:
            more += elements.get("kv_up", 0) * bf16 * copies
    return more


def exchanges_tokens(scenario: Scenario) -> bool:
    """Whether GPUs of a replica share experts, whose gathered tokens and workspaces are not counted."""
    return scenario.model.moe is not None and scenario.engine.gpus_per_replica > 1


def engine_spread(scenario: Scenario) -> float:
    """Standard deviation of the bytes of an engine GPU, of its cache as well: of all engines, more where GPUs share
    experts, and of a vLLM whose release nobody states that of its profile run between both samplers, evenly."""
    engine, card = scenario.released_engine, scenario.model
    spread = SPREAD["engine_moe_gib" if exchanges_tokens(scenario) else "engine_gib"] * GIB
    if engine.name != "vllm" or engine.version is not None:
        return spread
    low, high = (engine_activation_bytes(card, engine, each) for each in sorted(TERMS["sampler_bytes"].values()))
    return math.hypot(spread, (high - low) / math.sqrt(12))


def room_bytes(scenario: Scenario, parts: MemoryParts) -> float:
    """Bytes of a GPU that are left to the cache beside ``parts``.

    vLLM: share x memory less all that its process took since its context, graphs since 0.21. SGLang: mem_fraction of
    what is free before weights are loaded, activations and graphs in the rest (srt/model_executor/
    model_runner_kv_cache_mixin.py of 0.5.8). TensorRT-LLM: its fraction of what is free when all is loaded
    (kv_cache_config.free_gpu_memory_fraction)."""
    engine, total = scenario.released_engine, scenario.hardware.memory_bytes.value
    share, graphs, context = memory_share(scenario), parts.graphs or 0.0, parts.context or 0.0
    if engine.name == "sglang":
        held = parts.weights + (parts.draft or 0.0) + (parts.state or 0.0)
        return (total - context - parts.runtime) * share - held
    if engine.name == "trtllm":
        return (total - parts.total) * share * float(TERMS["trtllm_share"])
    outside = context + (graphs if _older(engine, GRAPHS_IN_SHARE) else 0.0)
    return total * share - (parts.total - outside)


def engine_parts(scenario: Scenario) -> tuple[MemoryParts, int | None]:
    """Bytes of a rollout GPU by part, and the sequences of a replica whose recurrent states fit; None without such."""
    engine, card = scenario.released_engine, scenario.model
    draft = draft_card(scenario.speculation, card)
    drafting = scenario.speculation
    published = engine.dense_precision(card) if draft is not None and draft.kind == "mtp" else "bf16"
    draft_precision = drafting.draft_precision or published
    shared = drafting.draft_tensor_parallel or engine.tensor_parallel
    parts = MemoryParts(
        weights=_weights(scenario),
        runtime=communication_bytes(engine.tensor_parallel),
        activations=engine_activation_bytes(card, engine),
        draft=0.0 if draft is None else draft_parameters(draft, card) / shared * BYTES_PER_ELEMENT[draft_precision],
        graphs=_graph_bytes(scenario),
        context=CONTEXT_BYTES,
    )
    if card.recurrent is None:
        return parts, None
    running = sequences_with_state(scenario, room_bytes(scenario, parts))
    held = math.ceil(running / engine.attention_data_parallel) * state_bytes_per_gpu_sequence(scenario)
    return replace(parts, state=held), running


def engine_memory(scenario: Scenario) -> EngineMemory:
    """Memory of one rollout GPU. Raises Infeasible where the weights leave no room for one longest sequence, or where
    there are more replicas than sequences."""
    engine, card = scenario.engine, scenario.model
    if scenario.loop.supervised:  # nobody asks this engine for anything
        held = MemoryParts(weights=0.0, runtime=0.0, activations=0.0)
        return EngineMemory(held, scenario.hardware.memory_bytes.value, scenario.workload.max_sequence_tokens, 0.0, 1)
    _check_replicas(scenario)
    parts, running = engine_parts(scenario)
    room, per_token = room_bytes(scenario, parts), kv_bytes_per_gpu_token(scenario)
    longest, memory = scenario.workload.max_sequence_tokens, scenario.hardware.memory_bytes.value
    share = memory_share(scenario)
    safe = NormalDist().inv_cdf(scenario.simulation.least_fit) * engine_spread(scenario)
    if room < longest * per_token + safe or running == 0:
        raise Infeasible(
            f"{card.name} with engine.tensor_parallel={engine.tensor_parallel} and one sequence of {longest} tokens "
            f"does not fit into engine.gpu_memory_utilization={share:g} of a "
            f"{scenario.hardware.name} GPU{surely_words(scenario)} ({parts.listed}); raise one of these two, or lower "
            "workload.max_sequence_tokens",
            memory * share + longest * per_token + safe - room,
            memory * share, "bytes",
        )  # fmt: skip
    # Copies of the attention hold different sequences: their caches add up.
    return EngineMemory(parts, memory, room / per_token * engine.attention_data_parallel, room, running)


def surely_words(scenario: Scenario) -> str:
    """With what probability a refused scenario would have to fit; empty for an even chance."""
    least = scenario.simulation.least_fit
    return "" if least == 0.5 else f" with a probability of {100 * least:g} %"


def _check_replicas(scenario: Scenario) -> None:
    """Every replica has a rollout, of those that may be in flight at once."""
    workload = scenario.workload
    ahead = max(1.0, scenario.loop.asynchrony.pace) if scenario.loop.mode == "async" else 1.0
    rollouts = math.ceil(workload.samples_per_step * workload.generated_batch_factor * ahead)
    replicas = scenario.replicas
    if replicas > rollouts:
        raise Infeasible(
            "more engine replicas than rollouts in flight; take fewer generating GPUs (cluster.num_gpus, cluster."
            "generation_gpus), a larger engine.tensor_parallel or more samples (workload.prompts_per_step)",
            replicas, rollouts, "replicas",
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
        own = scenario.speculation.draft_tensor_parallel or tp
        shared = 1 if draft.kind == "mtp" and card.mla is not None else min(own, draft.num_kv_heads)
        total += draft_kv_bytes_per_token(draft, card, engine.kv_precision) / shared
    return total
