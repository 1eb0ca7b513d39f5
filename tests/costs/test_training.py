"""Train step and log-prob passes as wholes: parts, exchange between nodes, stages, published phase times."""

import math
from functools import cache

import builders
import numpy as np
import pytest
from builders import ONE, VOCABULARY, bare, exactly, seconds, training
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace
from pydantic import ValidationError

from rlsim.costs.prices import PriceInputs
from rlsim.costs.trainer.layout import (
    MicroBatches,
    TrainedBatch,
    balanced_ranks,
    bins_by_step,
    dealt_bins,
    dealt_samples,
    gpu_shares,
    packed_bins,
    padded_samples,
    stage_layers,
    stage_shapes,
)
from rlsim.costs.trainer.training import LM_HEAD, step_cost
from rlsim.costs.trainer.work import LayerSplit, TrainedLayer, layer_work
from rlsim.files.kernel import VARIABLE, compiled
from rlsim.loading.models import load_card
from rlsim.loading.scenario import load_scenario
from rlsim.schema.architecture import WHOLE_LAYER
from rlsim.schema.trainer import PipelineBalance, StackFeatures, Trainer

BATCH = MicroBatches(count=8, tokens=4096.0, sum_squared=4 * 1024.0**2, steps=1)


@pytest.mark.parametrize("balance", [1.0, 0.8, 0.25])
def test_what_ranks_wait_for_the_busiest_is_a_part_of_its_own(balance: float) -> None:
    """The time is that of the busiest rank; the mean one works on ``balance`` times its tokens."""
    costs = training(builders.scenario())
    even, uneven = (costs.step(replace(BATCH, balance=share)) for share in (1.0, balance))
    assert uneven.seconds == pytest.approx(even.seconds)
    assert seconds(even.parts, "rank imbalance") == 0
    assert seconds(uneven.parts, "products") == pytest.approx(balance * seconds(even.parts, "products"))
    names = ("products", "attention", "elementwise", "LM head", "loss", "communication", "quantisation")
    waited = sum(seconds(even.parts, name) - seconds(uneven.parts, name) for name in names)
    assert seconds(uneven.parts, "rank imbalance") == pytest.approx(waited)


def test_expert_gradients_cross_the_domain_and_dense_layers_are_of_the_first_stage() -> None:
    """EP8 fills an H100 node: the expert replicas of 16 GPUs sit on two nodes, 8 GPUs apart."""
    shape = {"cluster": {"num_gpus": 16}, "trainer": {"expert_parallel": 8}}
    update = training(builders.scenario("qwen3-30b-a3b", **shape)).update
    wire = update.layout.expert_parameters * (4 + 2) / 2 / (50e9 * 0.75)
    assert update.exchange_s(0.0, 0.0) > wire
    card = load_card("deepseek-v3")
    assert [(moe, count) for moe, _, count in stage_shapes(card, 4)] == [(True, 58)]
    assert [(moe, count) for moe, _, count in stage_shapes(card, 1)] == [(False, 3), (True, 58)]
    assert [count for _, _, count in stage_shapes(load_card("llama-3.1-8b"), 4)] == [32]


EIGHT = {"cluster": {"num_gpus": 8}}


def test_gpus_that_share_experts_compute_as_much_and_move_more() -> None:
    """EP2 x ETP4 holds as many parameters of experts as EP8; each GPU gathers its group's tokens for a quarter of every
    expert and adds up with them, in place of sending its own to whole ones."""
    found = {}
    for ep, sharing in ((8, 1), (2, 4)):
        sizes = {"tensor_parallel": 4, "expert_parallel": ep, "expert_tensor_parallel": sharing}
        costs = training(builders.scenario("qwen3-30b-a3b", cluster={"num_gpus": 8}, trainer=sizes))
        split = LayerSplit.of(costs.trainer, StackFeatures())
        layer = TrainedLayer(costs.card, split, costs.device, BATCH, WHOLE_LAYER, True)
        found[sharing] = costs.layout.expert_parameters, layer_work(layer)
    (alone, whole), (together, shared) = found[1], found[4]
    assert alone == together and whole.expert_bytes == shared.expert_bytes
    assert shared.local_experts == 4 * whole.local_experts
    # As many operations, of four times as many experts on as many rows and a quarter of the columns: never faster.
    assert shared.experts.forward.seconds[0] > whole.experts.forward.seconds[0]
    fabric, sent = costs.device.fabric, split.expert_imbalance * BATCH.tokens / 4 * 8 * 2048 * 2
    around = sum(float(fabric.collective(op, 4, 4 * sent).seconds) for op in ("all_gather", "reduce_scatter"))
    assert shared.exchange_s == pytest.approx(2 * float(fabric.collective("alltoall", 2, sent, 4).seconds) + around)
    with pytest.raises(ValidationError, match="x expert_tensor_parallel"):
        builders.scenario("qwen3-30b-a3b", cluster={"num_gpus": 8}, trainer={**sizes, "expert_parallel": 4})


def dealt(model: str, stages: int, balance: PipelineBalance = "auto") -> tuple[float, float]:
    """Layers of a middle and of the last stage."""
    card = load_card(model)
    counted = sum(count for _, _, count in stage_shapes(card, stages))
    middle, last = stage_layers(card, Trainer(pipeline_parallel=stages), balance)
    return middle * counted, last * counted


@pytest.mark.parametrize(("model", "stages", "balance", "layers"), [
    ("qwen3-235b-a22b", 8, "auto", (12, 11)),  # 94 layers, embedding and loss as one each
    ("llama-3.1-405b", 16, "auto", (8, 7)),  # 126 the same way
    ("deepseek-v3", 16, "auto", (4, 1)),  # Et*4|(t*4|)*14tmL
    ("deepseek-v3", 4, "auto", (16, 13)),
    ("llama-3.1-70b", 4, "auto", (20, 20)),
    ("llama-3.1-70b", 4, "head", (21, 17)),
    ("deepseek-v3", 16, "layers", (61 / 16, 61 / 16)),
    ("deepseek-v3", 1, "head", (61, 61)),
])  # fmt: skip
def test_layers_of_stages(model: str, stages: int, balance: PipelineBalance, layers: tuple[float, float]) -> None:
    assert dealt(model, stages, balance) == (exactly(layers[0]), exactly(layers[1]))


@pytest.mark.parametrize(("balance", "head_counts"), [("layers", True), ("head", False)])
def test_the_head_adds_to_the_last_stage_or_takes_the_place_of_layers(balance: str, head_counts: bool) -> None:
    """Llama-3.1-70B in 4 stages: 20 layers each and the head, or 21 and 17 with it (the head is worth some 1.5)."""
    layout = {"pipeline_parallel": 4, "virtual_stages": 5, "recompute": "none"}
    given = bare("llama-3.1-70b", trainer=layout, **EIGHT)
    found = training(given, features=StackFeatures(pipeline_balance=balance))
    batch = replace(ONE, count=16.0)
    step, layer = found.step(batch), found.layers.layer(ONE, False)
    one_s = seconds(layer.forward()) + seconds(layer.backward())
    assert (seconds(step.parts, LM_HEAD) > 0) == head_counts
    head_s = seconds((*found.head(ONE), *found.head(ONE, backward=True)))
    assert one_s < head_s < 2 * one_s
    busiest_s, middle_s = (20 * one_s + head_s, 20 * one_s) if head_counts else (21 * one_s, 21 * one_s)
    passes_s = 16 * busiest_s + 3 / 5 * middle_s
    others = ("gradient exchange", "optimizer", "step synchronisation")
    assert step.seconds - sum(seconds(step.parts, name) for name in others) == exactly(passes_s)


def test_activations_and_their_gradients_travel_between_stages_without_virtual_ones() -> None:
    """Qwen3-8B, 8,192 tokens of 4,096 BF16 values there and back, within NVLink or over the network."""
    sent_s = {}
    for name, gpus, virtual in (("inside", 8, 1), ("across", 16, 1), ("virtual", 16, 3)):
        layout = {"pipeline_parallel": 2, "virtual_stages": virtual}
        given = bare(trainer={**layout, "recompute": "none"}, cluster={"num_gpus": gpus})
        sent_s[name] = seconds(training(given).step(ONE).parts, "stage transfers")
    moved = 2 * 8192 * 4096 * 2
    fabric = builders.fabric(builders.BARE)
    assert sent_s == {
        "inside": exactly(moved / fabric.nvlink), "across": exactly(moved / fabric.network), "virtual": 0.0,
    }  # fmt: skip
    forward = training(bare(trainer={"pipeline_parallel": 2}, **EIGHT)).forward(ONE)
    assert seconds(forward.parts, "stage transfers") == exactly(moved / 2 / fabric.nvlink)


def test_the_head_runs_three_products_and_low_precision_halves_gradients_and_parameters() -> None:
    forward, backward = (training(bare()).head(ONE, backward=way) for way in (False, True))
    rows = np.array([8192.0])
    assert seconds(backward, LM_HEAD) == exactly(2 * seconds(forward, LM_HEAD))
    assert seconds(backward, "loss") == exactly(2 * seconds(forward, "loss"))
    moved = float(rows[0]) * VOCABULARY * 72 / 3
    assert seconds(forward, "loss") == exactly(moved / builders.BANDWIDTH)
    frozen = training(bare(trainer={"lora_rank": 16})).head(ONE, backward=True)
    assert seconds(frozen, LM_HEAD) == exactly(seconds(forward, LM_HEAD))
    given = bare(trainer={"precision": "fp8"}, cluster={"num_gpus": 16})
    plain, halved = (
        training(given, features=features).update.exchange_s(0.0, 0.0)
        for features in (StackFeatures(), StackFeatures(gradient_precision="bf16", fp8_parameter_gather=True))
    )
    fabric, elements = builders.fabric(builders.BARE), training(given).layout.dense_parameters
    for found, gradient, weight in ((plain, 4, 2), (halved, 2, 1)):
        scatter = fabric.collective("reduce_scatter", 16, elements * gradient).seconds
        gather = fabric.collective("all_gather", 16, elements * weight).seconds
        assert found == exactly(float(scatter + gather))


LENGTHS = st.lists(st.integers(1, 100), min_size=1, max_size=60)


@given(LENGTHS, st.integers(100, 300))
def test_bins_lie_between_volume_and_one_sample_each(lengths: list[int], capacity: int) -> None:
    bins = packed_bins(np.array(lengths, dtype=float), capacity)
    assert math.ceil(sum(lengths) / capacity) <= len(bins.tokens) <= len(lengths)
    assert max(bins.tokens) <= capacity and list(bins.tokens) == sorted(bins.tokens, reverse=True)
    assert (bins.tokens.sum(), bins.sum_squared.sum()) == (sum(lengths), sum(length**2 for length in lengths))


def _optimum(lengths: tuple[int, ...], capacity: int) -> int:

    @cache
    def best(left: int) -> tuple[int, int]:
        if left == 0:
            return 1, 0
        found = (len(lengths) + 1, 0)
        for i, length in enumerate(lengths):
            if left >> i & 1:
                bins, load = best(left & ~(1 << i))
                fits = load + length <= capacity
                found = min(found, (bins, load + length) if fits else (bins + 1, length))
        return found

    return best((1 << len(lengths)) - 1)[0]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(20, 40))
def test_bins_are_at_most_one_above_the_optimum_of_small_cases(lengths: list[int], capacity: int) -> None:
    """Best-fit decreasing needs at most 11/9 OPT + 6/9 bins (Johnson 1974); up to four bins that is OPT + 1."""
    optimum = _optimum(tuple(lengths), capacity)
    assert optimum <= len(packed_bins(np.array(lengths, dtype=float), capacity).tokens) <= optimum + 1


@given(st.lists(st.integers(1, 900), min_size=1, max_size=200), st.integers(1, 1000), st.integers(1, 20))
def test_the_kernel_fills_the_bins_and_deals_the_ranks_of_the_reference(
    lengths: list[int], capacity: int, ranks: int
) -> None:
    if compiled() is None:
        pytest.skip("no kernel")  # an installation without a compiler has the reference alone
    with pytest.MonkeyPatch.context() as patch:
        found = []
        for wanted in ("auto", "python"):
            patch.setenv(VARIABLE, wanted)
            bins = packed_bins(np.array(lengths, dtype=float), capacity)
            dealt = balanced_ranks(np.array(lengths, dtype=float), ranks).tolist()
            found.append((bins.tokens.tolist(), bins.sum_squared.tolist(), dealt))
    assert found[0] == found[1]


def test_bins_are_dealt_fullest_first_and_never_hold_more_than_their_capacity_on_average() -> None:
    assert packed_bins(np.array([150.0, 40.0, 60.0]), 100).tokens.tolist() == [150.0, 100.0]
    assert packed_bins(np.array([40.0, 60.0, 0.0]), 1e30).tokens.tolist() == [100.0]
    batch = dealt_bins(bins_by_step(np.array([10.0, 9.0, 8.0, 7.0]), 10.0, 1, 1), 3)
    assert (batch.count, batch.tokens, batch.sum_squared) == (2.0, 17 / 2, 149 / 2)
    assert batch.balance == pytest.approx(34 / 3 / 17)
    # Optimizer steps differ in length: their mean micro-batch count, rounded down, would overfill each.
    lengths = np.array([100.0] * 7 + [0.0] * 3)
    assert dealt_bins(bins_by_step(lengths, 100.0, 5, 1), 1).tokens <= 100.0


@given(LENGTHS, st.integers(1, 4), st.sampled_from([1, 2, 8]))
def test_micro_batches_of_one_rank_keep_every_token(lengths: list[int], steps: int, multiple: int) -> None:
    values = np.array(lengths, dtype=float)
    exact = np.ceil(values / multiple) * multiple
    longest = np.full_like(values, values.max())
    even = steps * math.ceil(len(values) / steps) / len(values)
    ways = [(dealt_bins(bins_by_step(values, 128.0, steps, multiple), 1), exact, 1.0),
            (dealt_samples(exact, (1, 1), steps, 128.0, "tokens"), exact, 1.0),
            (dealt_samples(exact, (1, 1), steps, 128.0, "samples"), exact, 1.0),
            (padded_samples(values, 1, steps, 1), longest, even)]  # fmt: skip
    for batch, expected, times in ways:
        slots = batch.count * batch.steps
        assert batch.tokens * slots == pytest.approx(times * expected.sum())
        assert batch.sum_squared * slots == pytest.approx(times * (expected**2).sum())
        assert batch.count >= 1
        assert batch.balance == pytest.approx(1 / times)


@given(LENGTHS, st.integers(1, 8), st.integers(1, 4))
def test_the_busiest_rank_has_between_the_mean_and_everything(lengths: list[int], ranks: int, steps: int) -> None:
    values = np.array(lengths, dtype=float)
    for batch in (
        dealt_bins(bins_by_step(values, 128.0, steps, 1), ranks),
        dealt_samples(values, (ranks, 1), steps, 128.0, "tokens"),
        dealt_samples(values, (ranks, 1), steps, 128.0, "samples"),
        dealt_samples(values, (ranks, 2), steps, 128.0, "gpu_tokens"),
    ):
        busiest = batch.tokens * batch.count * steps
        assert values.sum() / ranks <= busiest * (1 + 1e-12) and busiest <= values.sum() * (1 + 1e-12)
        assert batch.balance == pytest.approx(values.sum() / ranks / busiest)


def test_dealing_by_work_leaves_the_longest_sample_and_updates_of_gpus_are_not_even() -> None:
    """Eight ranks of equal work, one sample as long as all others of a rank; in their order two ranks share it all."""
    lengths = np.array([800.0] + [100.0] * 63)
    balanced = dealt_samples(lengths, (8, 1), 1, 4096.0, "tokens")
    assert balanced.tokens == 800.0 + 7 * 100.0
    assert balanced.tokens == dealt_samples(lengths, (8, 1), 1, 4096.0, "samples").tokens
    tail = np.array([400.0] * 8 + [100.0] * 56)
    assert dealt_samples(tail, (8, 1), 1, 4096.0, "tokens").tokens == 400.0 + 7 * 100.0
    assert dealt_samples(tail, (8, 1), 1, 4096.0, "samples").tokens == 8 * 400.0
    # Two ranks of two GPUs: every GPU has as many tokens, but an update holds the long samples of one rank alone.
    lengths = np.array([8.0, 8.0, 8.0, 8.0, 1.0, 1.0, 1.0, 1.0])
    shares = gpu_shares(lengths, 2, 2)
    assert sorted(np.concatenate(shares).tolist()) == sorted(lengths.tolist())
    assert [share.tolist() for share in shares] == [[8.0, 1.0, 8.0, 1.0]] * 2
    even = dealt_samples(lengths, (2, 2), 2, 64.0, "gpu_tokens")
    assert (even.tokens, even.balance) == (9.0, 1.0)
    # Four GPUs of one rank each hold a long and a short one in their order; an update of two samples is one GPU's.
    mixed = np.array([1.0, 8.0, 8.0, 1.0, 8.0, 1.0, 1.0, 8.0])
    uneven = dealt_samples(mixed, (4, 1), 2, 64.0, "gpu_tokens")
    assert uneven.tokens == 8.0 and uneven.balance == pytest.approx(4.5 / 8.0)
    assert dealt_samples(mixed, (4, 1), 2, 64.0, "tokens").balance == pytest.approx(36.0 / 64.0)


@pytest.mark.parametrize(("name", "unread"), [("quickstart", 10), ("qwen235b_512", 2)])
def test_terms_that_a_trainer_does_not_read_change_nothing(name: str, unread: int) -> None:
    inputs, batch = PriceInputs(load_scenario(name)).trainer, TrainedBatch.of(np.full(64, 900.0), 64)
    own = {term: value for term, value in asdict(inputs.overheads).items() if isinstance(value, float)}
    moved = {term: replace(inputs.overheads, **{term: 1.05 * value}) for term, value in own.items()}
    still = [one for one in moved.values() if not one.read_otherwise(inputs.overheads, inputs.model, inputs.trainer)]
    assert all(step_cost(replace(inputs, overheads=one), batch) == step_cost(inputs, batch) for one in still)
    assert len(still) == unread
