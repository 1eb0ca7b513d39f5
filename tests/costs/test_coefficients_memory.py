"""Coefficients of memory, weights, packing and the adding up of parts, as in test_coefficients."""

import builders
import numpy as np
import pytest
from builders import BARE, VOCABULARY, bare, exactly, seconds

from rlsim.costs.interface import Part, PhaseCost, add_up
from rlsim.costs.memory import activation_bytes_per_token, engine_memory, trainer_memory
from rlsim.costs.operators.collectives import Collectives
from rlsim.costs.trainer.layout import (
    TrainedBatch,
    bins_by_step,
    dealt_bins,
    micro_batch_of,
    padded_samples,
    train_layout,
    weight_tensors,
)
from rlsim.costs.transfer.job import WeightTransfer
from rlsim.loading.models import load_card
from rlsim.schema.model import parameter_counts


def test_memory_of_an_engine_gpu_and_what_ranks_share() -> None:
    parts = engine_memory(bare(engine={"max_batched_tokens": 8192, "max_captured_tokens": 8})).parts
    assert (parts.runtime, parts.context) == (exactly(0.14 * 2**30), 2**29)
    assert parts.graphs == 4 * 120 * 36 * 4096
    # The sampler's, of 1,024 rows of logits; half as many sequences take half as much.
    assert parts.activations == 1024 * VOCABULARY * 20
    given = bare(trainer={"recompute": "full", "reference_logprobs": True}, loop={"offload_memory": "pinned"})
    transfers = WeightTransfer(given, Collectives(BARE, None), builders.PLAIN)
    link = BARE.host_link_bandwidth_bytes_per_s.value
    rate = link * builders.PLAIN.refit.values.host_link_share
    layout = train_layout(given.trainer, given.model, 8)
    parts = transfers.prepare().parts
    for way in ("offload", "onload"):
        assert seconds(parts, f"optimizer {way}") == exactly(12 * layout.optimizer_parameters / rate)
        assert seconds(parts, f"policy weights {way}") == exactly(2 * layout.parameters / rate)
    assert transfers.reference_swap_s() == exactly(4 * 2 * layout.parameters / (link * 0.75))
    # 16 GPUs, TP2 PP2 CP2: two replicas, dense state over four ranks; EP4 leaves two copies of each expert.
    assert weight_tensors(load_card("qwen3-8b")) == 36 * (8 + 3) + 3
    assert weight_tensors(load_card("qwen3-30b-a3b")) == 48 * (8 + 1 + 3 * 128) + 3
    sizes = {"tensor_parallel": 2, "pipeline_parallel": 2, "context_parallel": 2, "expert_parallel": 4}
    given = bare("qwen3-30b-a3b", cluster={"num_gpus": 16}, trainer=sizes)
    layout = train_layout(given.trainer, given.model, 16)
    assert (layout.data_parallel, layout.dense_shards, layout.expert_shards) == (2, 4, 2)


LAYER_8B = 2 * ((2 * 4096 + 6144 + 5120 + 4096) + (2 * 4096 + 3 * 12288))
"""Bytes of a layer of Qwen3-8B and a token: input, norm, queries with keys and values, before their norms, attention's
output; input, norm, gate and up, their product."""


@pytest.mark.parametrize(
    ("model", "elements"),
    [
        # 34 bytes for each of 4,096 values, as in Korthikanti et al. (arXiv 2205.05198).
        ("llama-3.1-8b", 2 * 4096 + 6144 + 4096 + 2 * 4096 + 3 * 14336),
        # Eight rows of 2,048 go to experts of width 768, which keep gate, up and product of each.
        ("qwen3-30b-a3b", 2 * 2048 + 5120 + 4608 + 4096 + 2 * 2048 + 8 * (2048 + 3 * 768)),
        ("qwen3-235b-a22b", 2 * 4096 + 9216 + 8704 + 8192 + 2 * 4096 + 8 * (4096 + 3 * 1536)),
        # Latents before and after their norms; queries, keys and values of 128 heads; 3 dense layers of 61.
        ("deepseek-v3", 2 * 7168 + 2112 + 2048 + 24576 + 32768 + 16384 + 2 * 7168
         + (3 * 3 * 18432 + 58 * (8 * (7168 + 3 * 2048) + 3 * 2048)) / 61),
    ],
)  # fmt: skip
def test_a_layer_keeps_what_its_blocks_count(model: str, elements: float) -> None:
    assert activation_bytes_per_token(load_card(model)) == exactly(2 * elements)


def test_memory_of_a_training_gpu_and_of_the_first_of_four_pipeline_stages() -> None:
    """All that each layer keeps of a token, or one layer of it with its gradients and the inputs of all."""
    tokens, sections = 4096, {"tensor_parallel": 8}
    plain, again, fused = (
        trainer_memory(
            bare(trainer={**sections, "recompute": kind, "micro_batch_tokens": tokens, "logits_bytes": each})
        )
        for kind, each in (("none", 8), ("full", 8), ("full", 0.5))
    )
    assert plain.activations == exactly(36 * tokens * LAYER_8B / 8)
    assert plain.logits == again.logits == exactly(2 * tokens * VOCABULARY / 8 * 4)
    # At the loss inputs alone; in a block the layer, and gradients of the second product's output and what it takes.
    inputs = 36 * tokens * 4096 * 2
    assert again.activations == exactly(inputs / 8)
    assert fused.activations == exactly((inputs + tokens * (LAYER_8B + 2 * (4096 + 3 * 12288))) / 8)
    assert fused.logits == 0.0
    layout = train_layout(bare(trainer=sections).trainer, load_card("qwen3-8b"), 8)
    assert plain.weights == exactly(2 * layout.parameters)
    assert plain.gradients == exactly(4 * layout.parameters)
    assert plain.optimizer == exactly(12 * layout.optimizer_parameters)
    sizes = {"tensor_parallel": 8, "pipeline_parallel": 4, "recompute": "none", "micro_batch_tokens": 4096}
    parts = trainer_memory(bare(cluster={"num_gpus": 32}, trainer=sizes))
    assert parts.activations == exactly(4096 * (4 * 9 * LAYER_8B + 2 * (4096 + 3 * 12288)) / 8)
    assert parts.logits == 0.0


def test_gradients_of_whole_units_wait_for_their_reduction() -> None:
    """A block's in BF16 and FP32, and beside it a tied head's in BF16, which the embedding's comes to."""
    given = {"backend": "fsdp", "recompute": "full", "logits_bytes": 0.01, "micro_batch_tokens": 65536}
    card = load_card("qwen3-0.6b")
    assert card.tied_embeddings
    counts = parameter_counts(card)
    parts = trainer_memory(bare("qwen3-0.6b", "b300_sxm", cluster={"num_gpus": 8}, trainer=given))
    block = (counts.total - counts.embedding) / 28
    assert parts.gradients == exactly(4 * counts.total / 8 + 6 * block + 2 * counts.embedding)


def test_experts_weighed_in_fp32_hold_copies_and_their_gradients() -> None:
    """Eight rows of 2,048 of a token, at two elements of BF16: outputs; gradients of both sides and their product."""
    tokens = 32768
    given = {
        "expert_parallel": 8,
        "backend": "fsdp",
        "recompute": "full",
        "logits_bytes": 0.5,
        "micro_batch_tokens": tokens,
    }
    held = [
        trainer_memory(bare("qwen3-30b-a3b", "b300_sxm", trainer={**given, "fp32_expert_outputs": kind})).activations
        for kind in (False, True)
    ]
    row, rows = 2048 + 3 * 768, 8 * 2048 * 2
    assert held[1] - held[0] == exactly(tokens * 2 * (rows + max(3 * rows - 8 * row, 0)))


def test_packing_rounds_bins_up_and_pads_and_parts_of_equal_names_add_up() -> None:
    lengths = np.array([5.0, 5.0, 5.0, 5.0, 5.0])
    packed = dealt_bins(bins_by_step(lengths, 10.0, 1, 1), 2)
    assert (packed.count, packed.tokens, packed.sum_squared, packed.balance) == (2.0, 15 / 2, 75 / 2, 5 / 6)
    padded = dealt_bins(bins_by_step(lengths, 8.0, 1, 4), 1)
    assert (padded.count, padded.tokens) == (5.0, 8.0)
    loose = padded_samples(np.array([2.0, 4.0, 6.0]), 1, 1, 2)
    assert (loose.count, loose.tokens) == (2.0, 9.0)
    for lengths in (np.array([6.0, 4.0]), np.array([9.0, 1.0])):
        assert dealt_bins(bins_by_step(lengths, 10.0, 1, 1), 1).count == 1.0
    parts = [Part("a", 1.0, "compute", "modelled", 1.0), Part("b", 2.0, "memory"), Part("a", 3.0, "network", "assumed"),
             Part("c", 0.0, "none")]  # fmt: skip
    a, b = add_up(parts)
    assert (a.seconds, a.measured, a.bound, a.source) == (4.0, 0.25, "network", "assumed")
    assert b == parts[1]
    assert PhaseCost.of(parts).repeated(2).seconds == 12.0


@pytest.mark.parametrize(("context_parallel", "padded"), [(1, 6.0), (2, 8.0), (4, 16.0)])
def test_sequences_are_padded_to_tensor_and_twice_context_parallel(context_parallel: int, padded: float) -> None:
    trainer = bare(trainer={"tensor_parallel": 2, "context_parallel": context_parallel}).trainer
    assert TrainedBatch.of(np.array([5.0]), 1).packed(trainer, "bins", 1, 64, 1).tokens == padded


@pytest.mark.parametrize(("update", "stated", "samples"), [(True, 6, 2), (False, 6, 6), (False, None, 2)])
def test_a_log_prob_pass_without_packing_has_micro_batches_of_its_own(
    update: bool, stated: int | None, samples: int
) -> None:
    given = {"sequence_packing": False, "micro_batch_samples": 2, "logprob_micro_batch_samples": stated}
    trainer = bare(trainer=given).trainer
    capacity = micro_batch_of(trainer, 64, update, packed=False)
    assert capacity == samples
    batches = TrainedBatch.of(np.full(12, 5.0), 12).packed(trainer, "bins", 1, capacity, 1)
    assert (batches.count, batches.tokens) == (12 / samples, 5.0 * samples)


@pytest.mark.parametrize(("update", "stated", "tokens"), [(True, 90, 50), (False, 90, 90), (False, None, 50)])
def test_a_log_prob_pass_with_packing_has_micro_batches_of_its_own(
    update: bool, stated: int | None, tokens: int
) -> None:
    trainer = bare(trainer={"micro_batch_tokens": 50, "logprob_micro_batch_tokens": stated}).trainer
    assert micro_batch_of(trainer, 64, update, packed=True) == tokens
    assert micro_batch_of(bare().trainer, 64, update, packed=True) == 64
