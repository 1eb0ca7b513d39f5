"""Bytes of a training GPU, by what holds them."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from rlsim.costs.engine.draft import trained_draft
from rlsim.costs.engine_memory import CONTEXT_BYTES, communication_bytes
from rlsim.costs.operators import work
from rlsim.costs.operators.recurrent import recurrent_matrices
from rlsim.costs.operators.work import Matrix
from rlsim.costs.trainer.layout import TrainLayout, expert_matrices, micro_batch_of, stage_layers, train_layout
from rlsim.errors import Infeasible
from rlsim.files.yaml import lists_beside
from rlsim.results import MemoryParts
from rlsim.schema.drafter import draft_parameters
from rlsim.schema.model import ModelCard, parameter_counts
from rlsim.schema.scenario import Scenario
from rlsim.schema.trainer import PipelineBalance, StackFeatures, Trainer
from rlsim.schema.workload import stated_mean
from rlsim.units import BYTES_PER_ELEMENT

TERMS = {name: term["value"] for name, term in lists_beside(__file__, "memory.yaml")["trainer"].items()}
"""What no model or layout states; sources, rows and residuals in memory.yaml."""
DEVIATIONS = 3.0
"""Standard deviations above the mean that tokens of a rank count with: one update in 700 has more. Convention."""
BF16, FP32 = BYTES_PER_ELEMENT["bf16"], BYTES_PER_ELEMENT["fp32"]
ACTIVATION_BYTES_PER_HIDDEN = 34.0
"""Bytes of activations per token and hidden unit of a drafter's layer, attention recomputed in its kernel (Korthikanti
et al., arXiv 2205.05198, equation 4 without the attention matrix)."""


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


def _spared_bytes_per_token(card: ModelCard, modules: tuple[str, ...], fp8: bool) -> float:
    """Of :func:`activation_bytes_per_token`, what is not kept: outputs of modules that are computed again (Megatron-
    Core's recompute_modules), and half of what products take where these keep their inputs in FP8."""
    counts, moe = card.layer_counts, card.moe
    dense = work.ffn_matrices(card.hidden_size, card.intermediate_size, 1, card.gated_ffn)
    routed = expert_matrices(card)
    norms = counts.mixers + counts.dense + counts.moe
    chosen = 0 if moe is None else counts.moe * moe.top_k
    inner = {
        "mlp": counts.dense * _inner_elements(dense),
        "moe": counts.moe * (_moe_elements(card) - 2 * card.hidden_size),
        "moe_act": chosen * routed[-1].k if routed and "moe" not in modules else 0,
        "layernorm": norms * card.hidden_size,
    }
    spared, taken = sum(inner.get(name, 0) for name in modules), 0
    if fp8:
        taken = counts.attention * work.attention_matrices(card, 1)[-1].k
        taken += 0 if "layernorm" in modules else norms * card.hidden_size
        taken += 0 if "mlp" in modules or not dense else counts.dense * dense[-1].k
        if routed and "moe" not in modules:
            taken += chosen * (card.expert_hidden_size + (0 if "moe_act" in modules else routed[-1].k))
    return (spared + taken / 2) / card.num_layers * BF16


def _outputs_elements(card: ModelCard) -> float:
    """Of the mean layer per token, what experts' outputs take where FP32 copies of them wait for the gradient of the
    router's weights: two elements in BF16 of each."""
    rows = 0 if card.moe is None else card.layer_counts.moe * card.moe.top_k
    return rows * card.expert_hidden_size * FP32 / BF16 / card.num_layers


def _gradient_elements(card: ModelCard, fp32_outputs: bool) -> float:
    """Gradients of a token that a block's backward pass holds beside what its products read, at their most: of a second
    product's output and what is between the products, of experts for each chosen row.

    Of outputs weighed in FP32: those of the weighed ones, of the outputs, and their product for the router's weights,
    each in FP32 (autograd of prime-rl 559b44772 trainer/models/layers/moe.py:900, torchtitan's layer).
    """
    if card.moe is None:
        dense = work.ffn_matrices(card.hidden_size, card.intermediate_size, 1, card.gated_ffn)
        return card.hidden_size + _inner_elements(dense)
    row = card.expert_hidden_size + _inner_elements(expert_matrices(card))
    return card.moe.top_k * max(row, 3 * card.expert_hidden_size * FP32 / BF16 if fp32_outputs else 0)


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


class Stage(NamedTuple):
    """What one pipeline stage holds, of one GPU: parameters of its blocks, of embedding and head, layers, micro-batches
    in flight, and whether the loss is computed there."""

    blocks: float
    ends: float
    layers: float
    in_flight: float
    loss: bool


def stages(scenario: Scenario, layout: TrainLayout, balance: PipelineBalance) -> tuple[Stage, ...]:
    """The first and the last stage; one where there is no pipeline.

    A tied head is a copy of the embedding on the last stage (Megatron-Core); MTP layers lie there. In flight: 1F1B, and
    interleaved as Megatron-Core warms up (core/pipeline_parallel/schedules.py), at most the micro-batches of an update.
    """
    trainer, card = scenario.trainer, scenario.model
    counts, pp, tp = parameter_counts(card), trainer.pipeline_parallel, trainer.tensor_parallel
    embedding, head = counts.embedding / tp, (counts.lm_head or counts.embedding) / tp
    extra = 0.0 if not trainer.mtp_layers else trainer.mtp_layers * counts.mtp / max(card.mtp_layers, 1) / tp
    blocks = layout.parameters * pp - embedding - counts.lm_head / tp
    if pp == 1:
        return (
            Stage(blocks + extra, embedding + counts.lm_head / tp, card.num_layers + trainer.mtp_layers, 1.0, True),
        )
    middle, last = (share * pp * (card.num_layers / pp) for share in stage_layers(card, trainer, balance))
    each = blocks / card.num_layers
    return (
        Stage(each * middle, embedding, middle, _in_flight(scenario, layout, 0), False),
        Stage(each * last + extra, head, last + trainer.mtp_layers, _in_flight(scenario, layout, pp - 1), True),
    )


def _in_flight(scenario: Scenario, layout: TrainLayout, rank: int) -> float:
    """Micro-batches whose activations stage ``rank`` holds at once."""
    trainer = scenario.trainer
    pp, pieces = trainer.pipeline_parallel, trainer.virtual_stages
    held = float(pp - rank) if pieces == 1 else (2 * (pp - rank - 1) + (pieces - 1) * pp + 1) / pieces
    if scenario.sequence_packing:
        return held
    samples = trainer.global_batch_samples or scenario.workload.samples_per_step
    return min(held, max(1.0, samples / (layout.data_parallel * trainer.micro_batch_samples)))


def logits_bytes(scenario: Scenario, features: StackFeatures) -> float:
    """Bytes that a backward pass holds for each logit: as stated, else as stack or backend does."""
    known = TERMS["logits_bytes"]
    if features.logits_bytes is not None:
        return features.logits_bytes
    fused = features.fused_cross_entropy and scenario.trainer.backend == "megatron"
    return float(known["fused" if fused else scenario.trainer.backend])


def zero_stage(trainer: Trainer, layout: TrainLayout) -> int:
    """What data-parallel ranks share (Trainer.zero_stage); a single one shares nothing."""
    if layout.dense_shards == 1:
        return 0
    return trainer.zero_stage if trainer.zero_stage is not None else 3 if trainer.backend == "fsdp" else 1


def _states(
    scenario: Scenario, features: StackFeatures, layout: TrainLayout, stage: Stage, update: bool
) -> tuple[float, float, float]:
    """Bytes of weights, gradients and optimizer of a stage.

    FSDP (ZeRO-3): trained weights are the optimizer's FP32 ones, frozen ones are sharded as they are; the root unit
    (embedding, head) and two blocks are gathered in BF16 (the root does not reshard after its forward pass).
    """
    trainer, zero = scenario.trainer, zero_stage(scenario.trainer, layout)
    share = layout.trained_share if update else 0.0
    held = stage.blocks + stage.ends
    sharded = held * layout.sharded_parameters / layout.parameters
    fsdp = trainer.backend == "fsdp"
    each = FP32 if fsdp else BYTES_PER_ELEMENT[features.gradient_precision]
    optimizer = share * (sharded if zero >= 1 else held) * trainer.optimizer_bytes_per_parameter
    gradients = share * (sharded if zero >= 2 else held) * each
    frozen = BYTES_PER_ELEMENT[features.frozen_precision] if fsdp and trainer.lora_rank else BF16
    weights = held * frozen
    if zero == 3:
        block = stage.blocks / scenario.model.num_layers
        gathered = stage.ends + block * min(TERMS["gathered_blocks"], scenario.model.num_layers)
        weights = (1 - share) * sharded * frozen + gathered * BF16
        # CPUOffloadPolicy keeps shards of weights, gradients and states on the host, where the optimizer steps.
        gradients *= not (trainer.optimizer_on_host and trainer.optimizer_step == "host")
    return weights, gradients, 0.0 if trainer.optimizer_on_host or not update else optimizer


class Moment(NamedTuple):
    """What a training GPU holds only at one moment of its passes, in bytes; gradients: of whole units."""

    activations: float
    logits: float
    gradients: float = 0.0


def _moments(
    scenario: Scenario, features: StackFeatures, layout: TrainLayout, stage: Stage, tokens: float, logits: float
) -> tuple[Moment, ...]:
    """The loss, the backward pass of a block, and that of the root unit, which never hold at once what each needs.

    Blocks keep all that they give, or with full recomputation their inputs, of which one is then computed again. ZeRO-3
    reduces gradients of a unit when all are there, from BF16 by way of FP32 (fully_shard, reduce_dtype FP32); that of a
    tied head waits for the embedding's.
    """
    trainer, card = scenario.trainer, scenario.model
    kept, again = _activations(scenario, features, tokens, stage)
    elements = _gradient_elements(card, features.fp32_expert_outputs)
    gradients = tokens * elements * BF16 / trainer.tensor_parallel
    block = root = tied = 0.0
    if zero_stage(trainer, layout) == 3 and layout.trained_share == 1.0:
        block, root = (units * (BF16 + FP32) for units in (stage.blocks / card.num_layers, stage.ends))
        tied = 0.0 if parameter_counts(card).lm_head else stage.ends * BF16
    return (
        Moment(kept, logits),
        Moment(kept + again + gradients, 0.0, block + tied),
        Moment(0.0, 0.0, root),
    )


def _block_bytes(scenario: Scenario, features: StackFeatures, tokens: float) -> tuple[float, float]:
    """Bytes of what a block gives that its backward pass reads, and of its input."""
    trainer, card = scenario.trainer, scenario.model
    modules = trainer.recompute_modules if trainer.recompute == "selective" else ()
    each = activation_bytes_per_token(card)
    if features.fp32_expert_outputs and "moe" not in modules:
        each += _outputs_elements(card) * BF16
    if card.moe is not None and "moe" not in modules:
        # GPUs that share an expert hold the tokens of each other that they have gathered for it.
        gathered = (trainer.expert_tensor_parallel - 1) * card.moe.top_k * card.expert_hidden_size
        each += card.num_moe_layers / card.num_layers * gathered * BF16
    if trainer.recompute != "full":
        each -= _spared_bytes_per_token(card, modules, trainer.precision == "fp8")
    full = tokens * each / trainer.tensor_parallel
    inputs = tokens * card.hidden_size * BF16 / trainer.tensor_parallel
    if not trainer.sequence_parallel and trainer.tensor_parallel > 1:
        repeated = tokens * card.hidden_size * (1 - 1 / trainer.tensor_parallel)
        full += repeated * TERMS["no_sequence_parallel_bytes"]
        inputs += repeated * BF16
    return full, inputs


def _activations(scenario: Scenario, features: StackFeatures, tokens: float, stage: Stage) -> tuple[float, float]:
    """Bytes that a stage keeps for its backward passes, and of a block that is computed again."""
    trainer = scenario.trainer
    full, inputs = _block_bytes(scenario, features, tokens)
    most = stage.layers * full * stage.in_flight
    if trainer.recompute != "full":
        return most, 0.0
    kept = stage.layers * inputs * (TERMS["host_input_share"] if trainer.activations_on_host else 1.0)
    # Never more than what is kept without recomputation.
    kept = min(kept * stage.in_flight, most)
    return kept, min(full * min(1.0, stage.layers), most - kept)


def trainer_parts(scenario: Scenario, gpus: int, update: bool) -> MemoryParts:
    """Bytes of one of ``gpus`` GPUs in the trainer's layout, in its fuller pipeline stage. update: with all that a
    backward pass needs; else a forward pass holds weights, one layer's activations and logits without gradient."""
    trainer = scenario.trainer
    layout = train_layout(trainer, scenario.model, gpus)
    _check_ranks(scenario, layout.data_parallel)
    features = scenario.training_features  # found once for all that asks: a search looks at thousands of layouts
    ends = stages(scenario, layout, features.pipeline_balance)
    held = (_stage_parts(scenario, features, layout, stage, update) for stage in ends)
    return max(held, key=lambda parts: parts.total)


def rank_tokens(scenario: Scenario, layout: TrainLayout, update: bool) -> float:
    """Most tokens that the samples of a rank have together, of an update or else of a step: as many as the longest
    each, or packed ones of lognormal responses their mean and DEVIATIONS standard deviations of their sum."""
    workload, trainer = scenario.workload, scenario.trainer
    of_all = (trainer.global_batch_samples if update else None) or workload.samples_per_step
    samples, longest = math.ceil(of_all / layout.data_parallel), workload.max_sequence_tokens
    lengths = (workload.prompt_tokens, workload.response_tokens)
    spread = [one for one in lengths if one.kind == "lognormal"]
    known = workload.response_tokens in spread and all(stated_mean(one) for one in lengths)
    known = known and all(one.cut_share is None for one in spread)  # it takes the place of log_sigma
    if not (scenario.sequence_packing and known) or workload.agent is not None:
        return samples * longest
    # Lengths before their cap vary more than after it, and those of a prompt's samples together.
    variance = sum(stated_mean(one) ** 2 * math.expm1(one.log_sigma**2) for one in spread)
    together = 1 + (min(samples, workload.generations_per_prompt) - 1) * workload.group_correlation
    likely = samples * sum(map(stated_mean, lengths)) + DEVIATIONS * math.sqrt(samples * variance * together)
    return min(samples * longest, max(longest, likely))


def _stage_parts(
    scenario: Scenario, features: StackFeatures, layout: TrainLayout, stage: Stage, update: bool
) -> MemoryParts:
    trainer, card, packed = scenario.trainer, scenario.model, scenario.sequence_packing
    longest = scenario.workload.max_sequence_tokens
    capacity = micro_batch_of(trainer, longest, update, packed) * (1 if packed else longest)
    # No micro-batch holds more than all samples of a rank.
    tokens = min(capacity, rank_tokens(scenario, layout, update)) / trainer.context_parallel
    chunk, vocabulary = tokens, card.vocab_size / trainer.tensor_parallel
    if trainer.logits_chunk_tokens is not None:
        chunk = min(tokens, trainer.logits_chunk_tokens)
        vocabulary = min(vocabulary, features.logits_chunk_vocabulary or vocabulary)
    logits = chunk * vocabulary * logits_bytes(scenario, features)
    # Without a backward pass their gradient, as large again, is not there.
    logits *= (1.0 if update else 0.5) * (1 + (trainer.mtp_layers if update else 0)) * stage.loss
    weights, gradients, optimizer = _states(scenario, features, layout, stage, update)
    draft = _trained_draft_bytes(scenario, tokens) if update else None
    moments: tuple[Moment, ...]
    if update:
        moments = _moments(scenario, features, layout, stage, tokens, logits)
    else:
        moments = (Moment(_block_bytes(scenario, features, tokens)[0], logits),)
    activations, logits, passing = max(moments, key=sum)
    gradients += passing
    critic = weights + gradients + optimizer if update and trainer.critic and not critic_swapped(scenario) else None
    allocated = weights + gradients + optimizer + activations + logits + (draft or 0.0) + (critic or 0.0)
    return MemoryParts(
        weights=weights,
        runtime=CONTEXT_BYTES + communication_bytes(min(8, trainer.tensor_parallel)),
        activations=activations,
        gradients=gradients,
        optimizer=optimizer,
        draft=draft,
        logits=logits,
        critic=critic,
        slack=allocated * TERMS["slack"] if trainer.backend == "fsdp" else None,
    )
