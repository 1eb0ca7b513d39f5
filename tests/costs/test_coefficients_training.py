"""Coefficients of training, each seen alone: rooflines without tables, overheads at round values."""

import builders
import numpy as np
import pytest
from builders import BANDWIDTH, BARE, MATRIX_RATE, ONE, VOCABULARY, bare, even, exactly, seconds, training
from msgspec.structs import replace

from rlsim.costs.interface import Part
from rlsim.costs.operators import work
from rlsim.costs.operators.collectives import Collectives
from rlsim.costs.operators.device import device_of
from rlsim.costs.operators.operators import Operators
from rlsim.costs.trainer.layer import LayerTime, TrainingLayers
from rlsim.costs.trainer.layout import MicroBatches
from rlsim.schema.architecture import LayerShape
from rlsim.schema.model import parameter_counts

OVERLAP = even(tensor_overlap=True, exchange_overlap=True)


def layer_time(forward: float, backward: float, attention: float = 0.0, **more: float) -> LayerTime:
    device = (Part("products", forward, "compute"), Part("attention", attention, "compute"))
    return LayerTime(device=device, device_backward=(Part("products", backward, "compute"),),
                     communication_s=more.get("out", 0.0), communication_backward_s=more.get("back", 0.0),
                     floor_s=more.get("floor", 0.0))  # fmt: skip


def test_a_host_floor_holds_once_forward_and_twice_backward_and_recomputation_repeats_its_part() -> None:
    layer = layer_time(2.0, 4.5, floor=4.0)
    assert seconds(layer.forward()) == exactly((2.0**6 + 4.0**6) ** (1 / 6))
    assert seconds(layer.backward()) == exactly((4.5**6 + 8.0**6) ** (1 / 6))
    assert seconds(layer_time(5.0, 0.0, floor=0.5).forward(), "host floor") == pytest.approx(0.0, abs=1e-5)
    assert seconds(layer_time(0.0, 0.0, floor=4.0).forward(), "host floor") == 4.0
    assert seconds(layer_time(0.0, 0.0, out=1.0, back=3.0).backward()) == 3.0
    layer = layer_time(1.0, 2.0, attention=3.0, out=0.5)
    assert [seconds(layer.recomputed(kind)) for kind in ("none", "selective", "full")] == [0.0, 3.0, 4.5]


def test_backward_takes_both_gradients_two_and_a_half_attentions_and_rests_on_no_measurement() -> None:
    layer = training(bare()).layers.layer(ONE, False)
    forward, backward = layer.device, layer.device_backward
    assert seconds(backward, "products") == exactly(2 * seconds(forward, "products"))
    assert seconds(backward, "attention") == exactly(2.5 * seconds(forward, "attention"))
    assert seconds(backward, "elementwise") == exactly(2 * seconds(forward, "elementwise"))
    # FlashAttention-2, where it takes longer: two FLOP for each pair, head and element of a head, in one sequence.
    slow = training(bare(), attention_flops_per_s=1e12).layers.layer(ONE, False)
    assert seconds(slow.device, "attention") == exactly(2 * ONE.sum_squared * 32 * 128 / 1e12)
    assert seconds(slow.device_backward, "attention") == exactly(2.5 * seconds(slow.device, "attention"))
    assert bare(trainer={"backend": "fsdp"}).training_features.flash_attention_2
    assert not bare().training_features.flash_attention_2
    given = builders.scenario()
    device = device_of(given.hardware, "vllm")
    layer = TrainingLayers(given.model, given.trainer, device, builders.PLAIN_TRAINING).layer(ONE, False)
    assert sum(part.seconds * part.measured for part in layer.forward()) > 0
    assert sum(part.seconds * part.measured for part in layer.backward()) == 0


def test_products_elementwise_traffic_and_permutation_of_a_layer() -> None:
    layer = training(bare()).layers.layer(ONE, False)
    weights = sum(one.elements for one in work.attention_matrices(bare().model, 1))
    weights += sum(one.elements for one in work.ffn_matrices(4096, 12_288, 1))
    assert seconds(layer.device, "products") == exactly(2 * 8192 * weights / MATRIX_RATE)
    # Dense: 8 rows of hidden and 3 of width a token; experts: 8 rows of hidden, and of each of 8 routed copies 3 of
    # the expert's width and 6 of hidden.
    dense = training(bare()).layers.layer(ONE, False).device
    assert seconds(dense, "elementwise") == exactly(8192 * (8 * 4096 + 3 * 12_288) * 2 / BANDWIDTH)
    given = bare("qwen3-30b-a3b", trainer={"expert_parallel": 8})
    experts = training(given).layers.layer(ONE, True).device
    assert seconds(experts, "elementwise") == exactly(8192 * (8 * 2048 + 8 * (3 * 768 + 6 * 2048)) * 2 / BANDWIDTH)
    passes = training(given, elementwise_passes=2.0, permute_passes=12.0).layers.layer(ONE, True).device
    assert seconds(passes, "elementwise") == exactly(2 * seconds(experts, "elementwise"))
    # gpt-oss: 12 inner widths and two rows of hidden size each routed copy; the function three widths.
    given = bare("gpt-oss-20b", trainer={"expert_parallel": 8})
    plain, fused = (training(given, features=even(fused_grouped_mlp=state)).layers.layer(ONE, True).device
                    for state in (False, True))  # fmt: skip
    bare_norms = 8192 * 8 * 2880 + 8192 * 4 * 6 * 2880
    assert seconds(fused, "elementwise") == exactly((bare_norms + 8192 * 4 * (12 + 2) * 2880) * 2 / BANDWIDTH)
    assert seconds(plain, "elementwise") - seconds(fused, "elementwise") == exactly(8192 * 4 * 3 * 2880 * 2 / BANDWIDTH)


@pytest.mark.parametrize("model", ["qwen3-8b", "qwen3-30b-a3b"])
def test_layers_that_stay_in_bf16_take_their_share_at_its_speed_and_are_not_quantised(model: str) -> None:
    given = bare(model, trainer={"precision": "fp8"})
    moe = given.model.moe is not None

    def parts(share: float, projections: bool = False) -> dict[str, float]:
        own = even(bf16_layer_share=share, bf16_projections=projections)
        low = {"dense_efficiency": 0.5, "grouped_efficiency": 0.25}
        wide = {"wide_efficiency": 0.8, "wide_grouped_efficiency": 0.4}
        passes = training(given, features=own, **low, **wide).layers.layer(ONE, moe)
        return {part.name: part.seconds for part in passes.device}

    # Without tables BF16 runs at half the rate of FP8, here at 1.6 times its efficiency.
    low, mixed, kept = parts(0.0), parts(0.25), parts(0.0, projections=True)
    assert mixed["products"] == pytest.approx((0.75 + 0.25 * 2 / 1.6) * low["products"], rel=1e-2)
    if moe:  # What each expert gets is few tokens, so that it gains less from 8 bits.
        assert 0.75 + 0.25 / 1.6 < mixed["experts"] / low["experts"] < 0.75 + 0.25 * 2 / 1.6
    assert mixed["quantisation"] == pytest.approx(0.75 * low["quantisation"], rel=1e-2)
    assert low["products"] < kept["products"] < 2 / 1.6 * low["products"]
    assert kept["quantisation"] < low["quantisation"]
    assert kept.get("experts") == low.get("experts")


def test_efficiencies_and_speeds_stretch_times_and_leave_measured_seconds() -> None:
    given = builders.scenario()
    device = device_of(given.hardware, "vllm")
    full, half = (
        TrainingLayers(given.model, given.trainer, device, replace(builders.PLAIN_TRAINING, dense_efficiency=e))
        .layer(ONE, False)
        .device[0]
        for e in (1.0, 0.5)
    )
    assert full.measured > 0.9
    assert half.seconds == exactly(2 * full.seconds)
    assert half.seconds * half.measured == exactly(full.seconds * full.measured)
    given = bare("qwen3-30b-a3b", trainer={"expert_parallel": 8})
    alone = bare("qwen3-30b-a3b", trainer={"expert_parallel": 128}, cluster={"num_gpus": 128})
    for own, term in (given, "grouped_efficiency"), (alone, "dense_efficiency"):  # a rank's only expert: any product
        half, full = (training(own, **{term: share}).layers.layer(ONE, True).device for share in (0.5, 1.0))
        assert seconds(half, "experts") == exactly(2 * seconds(full, "experts"))
    plain, slow = (training(given, moe_speed=speed).layers.layer(ONE, True).device for speed in (1.0, 0.5))
    assert [part.seconds for part in slow] == [exactly(2 * part.seconds) for part in plain]
    same = training(given, moe_speed=0.5).layers.layer(ONE, False).device
    assert [part.seconds for part in same] == [part.seconds for part in training(given).layers.layer(ONE, False).device]


def test_ring_traffic_goes_round_and_exchange_once_to_each_gpu_half_hidden() -> None:
    """Keys and values of one other rank: 2 x 8 heads x 128 x 2 bytes a token, hidden by nothing at one short sequence
    each, where the attention takes the least time of a kernel; what is hidden costs half."""
    given = bare(trainer={"context_parallel": 2, "recompute": "full"})
    short = MicroBatches(1, 65_536.0, 65_536.0, 1)
    layer = training(given).layers.layer(short, False)
    wire = given.hardware.nvlink_latency_s.value + 0.5 * 65_536 * 2 * 8 * 128 * 2 / (450e9 * 0.75)
    attention = seconds(layer.device, "attention")
    assert layer.communication_s == exactly(wire - attention / 2)
    assert layer.communication_backward_s == exactly(2 * wire - 2.5 * attention / 2)
    given = bare("qwen3-30b-a3b", trainer={"tensor_parallel": 2, "expert_parallel": 8})
    open_s, hidden_s = (training(given, features=features).layers.layer(ONE, True).communication_s
                        for features in (even(), OVERLAP))  # fmt: skip
    assert hidden_s == exactly(open_s / 2)
    slow = builders.scaled(BARE, "nvlink_bandwidth_bytes_per_s", 1e-3)
    far = builders.scenario("qwen3-30b-a3b", slow, trainer={"expert_parallel": 8})
    layer = training(far, features=OVERLAP).layers.layer(ONE, True)
    alone = training(far).layers.layer(ONE, True).communication_s
    # Beside it runs the opposite pass of another micro-batch: half of both passes hides, at half its price.
    assert layer.communication_s == exactly(alone - seconds((*layer.device, *layer.device_backward)) / 4)
    # Eight even draws among 16 GPUs hit 6.45 of them, among two nodes 1.99; half of those are the own node.
    fabric = Collectives(BARE, None)
    latency = BARE.nvlink_latency_s.value + BARE.network_latency_s.value
    near = 1e9 * 16 * (1 - (15 / 16) ** 8) * 15 / 16 / (450e9 * 0.75)
    far = 1e9 * 2 * (1 - 0.5**8) / 2 / (50e9 * 0.75)
    assert far > near
    assert fabric.token_exchange(16, 1e9, 8).seconds == exactly(far + latency)
    alone = 1e9 * 8 * (1 - (7 / 8) ** 8) * 7 / 8 / (450e9 * 0.75)
    assert fabric.token_exchange(8, 1e9, 8).seconds == exactly(alone + BARE.nvlink_latency_s.value)
    assert fabric.token_exchange(1, 1e9, 8).seconds == 0.0
    # Eight in a row, sixteen to a GPU, reach 1.44 of 8 GPUs; one to a GPU, all of them.
    along = 1e9 * (1 + 7 / 16) * 7 / 8 / (450e9 * 0.75) + BARE.nvlink_latency_s.value
    assert fabric.token_exchange(8, 1e9, 8, 16.0).seconds == exactly(along)
    assert fabric.token_exchange(16, 1e9, 8, 1.0).seconds == exactly(1e9 * (1 + 7 / 8) / 2 / (50e9 * 0.75) + latency)


def test_eight_bits_quantise_inputs_and_outputs_and_frozen_weights_spare_a_product() -> None:
    given = bare(trainer={"precision": "fp8"})
    layer = training(given).layers.layer(ONE, False)
    matrices = work.attention_matrices(given.model, 1) + work.ffn_matrices(4096, 12_288, 1)
    assert seconds(layer.device, "quantisation") == exactly(8192 * 4 * sum(one.k for one in matrices) / BANDWIDTH)
    wanted = 8192 * 4 * sum(one.n for one in matrices) / BANDWIDTH
    assert seconds(layer.device_backward, "quantisation") == exactly(wanted)
    assert seconds(training(bare()).layers.layer(ONE, False).device, "quantisation") == 0.0
    # LoRA of rank 16: one product backward, and two thin matrices beside each one of a layer.
    apart = even(fused_adapters=False)
    whole, thin = (training(bare(trainer={"lora_rank": rank}), features=apart) for rank in (None, 16))
    full, frozen = (one.layers.layer(ONE, False) for one in (whole, thin))
    within = training(bare(trainer={"lora_rank": 16})).layers.layer(ONE, False)
    assert seconds(within.device, "elementwise") == exactly(seconds(full.device, "elementwise"))
    assert seconds(frozen.device_backward, "products") == exactly(seconds(frozen.device, "products"))
    assert seconds(frozen.device, "products") == exactly(seconds(full.device, "products"))
    matrices = work.attention_matrices(whole.card, 1) + work.ffn_matrices(4096, 12_288, 1)
    beside = 8192 * 2 * sum(one.k + 4 * one.n for one in matrices) / BANDWIDTH
    assert seconds(frozen.device, "elementwise") - seconds(full.device, "elementwise") == exactly(beside)
    widths = sum(one.n + one.k for one in work.attention_matrices(whole.card, 1) + work.ffn_matrices(4096, 12_288, 1))
    trained = 16 * 36 * widths
    assert thin.layout.optimizer_parameters == exactly(trained / 8)
    assert whole.layout.optimizer_parameters == exactly(parameter_counts(whole.card).total / 8)


def test_a_dense_layer_launches_seventeen_kernels_and_a_fifth_more_a_graph_of_the_iteration_none() -> None:
    given = bare(trainer={"host_launch_s": 1e-3})
    kinds = (("attention", True), ("attention", False), ("none", True))  # a whole layer, a mixer alone, a block alone
    floors = [training(given).layers.layer(ONE, False, LayerShape(*kind)).floor_s for kind in kinds]
    assert floors == [exactly(launches * 1.2 * 1e-3) for launches in (17, 11, 6)]
    given = bare("nemotron-3-nano-30b-a3b", trainer={"expert_parallel": 8}, cluster={"num_gpus": 8})
    shape = LayerShape("none", True)
    found = training(given, expert_host_s=3e-4).layers.layer(ONE, True, shape)
    assert found.floor_s == exactly(16 * 2e-4)
    whole = training(given, expert_host_s=3e-4, features=even(cuda_graphs="iteration")).layers
    assert [whole.layer(ONE, moe, shape).floor_s for moe in (False, True)] == [0.0, 0.0]


@pytest.mark.parametrize(("expert_parallel", "experts"), [(8, 16), (4, 32), (128, 1)])
def test_the_floor_of_a_moe_layer_grows_with_the_experts_on_a_rank(expert_parallel: int, experts: int) -> None:
    given = bare("qwen3-30b-a3b", trainer={"expert_parallel": expert_parallel}, cluster={"num_gpus": 128})
    floor_s = training(given, moe_host_layer_s=0.005, expert_host_s=1e-4).layers.layer(ONE, True).floor_s
    assert floor_s == exactly(0.005 + experts * 1e-4)


def test_experts_of_a_rank_run_one_after_the_other_the_busiest_rank_has_more() -> None:
    given = bare("qwen3-30b-a3b", trainer={"expert_parallel": 8})
    forced, uneven = (
        training(given, elementwise_passes=0.0, features=even(expert_imbalance=imbalance)).layers.layer(ONE, True)
        for imbalance in (1.0, 1.5)
    )
    for name in ("experts", "elementwise"):
        assert seconds(uneven.device, name) == pytest.approx(1.5 * seconds(forced.device, name), rel=0.05), name
    assert uneven.communication_s == pytest.approx(1.5 * forced.communication_s, rel=0.05)
    for name in ("products", "attention"):
        assert seconds(uneven.device, name) == seconds(forced.device, name)
    # A rank with all experts, and one whose experts drop what is too much, get the same whatever the routing.
    for layout, features in ({"expert_parallel": 1}, {}), ({"expert_parallel": 8}, {"token_drop": True}):
        own, uneven = bare("qwen3-30b-a3b", trainer=layout), even(expert_imbalance=2.0, **features)
        times = [training(own, features=one).layers.layer(ONE, True) for one in (even(**features), uneven)]
        assert times[0].device == times[1].device
    # TP2 EP8: a rank routes half of its group's tokens to 8 experts each; 16 experts share what reaches the rank.
    given, operators = (bare("qwen3-30b-a3b", trainer={"tensor_parallel": 2, "expert_parallel": 8}),
                        Operators(BARE, None))  # fmt: skip
    dense = operators.gemms(np.array([8192.0]), work.attention_matrices(given.model, 2), "bf16")
    router = operators.gemm(np.array([4096.0]), work.Matrix("router", 128, 2048), "bf16")
    one = operators.gemms(np.array([4096 * 8 / 16]), work.ffn_matrices(2048, 768, 1), "bf16")
    found = training(given).layers.layer(ONE, True).device
    assert seconds(found, "products") == exactly(float((dense + router).seconds[0]))
    assert seconds(found, "experts") == exactly(16 * float(one.seconds[0]))


def test_tensor_parallel_layers_gather_and_scatter_twice_shared_experts_too_and_routed_ones_exchange_twice() -> None:
    given = bare("qwen3-30b-a3b", trainer={"tensor_parallel": 2, "expert_parallel": 8})
    found, fabric = training(given).layers, Collectives(BARE, None)
    row = 8192 * 2048 * 2
    pair = float(fabric.collective("all_gather", 2, row).seconds + fabric.collective("reduce_scatter", 2, row).seconds)
    exchange = float(fabric.collective("alltoall", 8, row * 8 / 2).seconds)
    assert found.layer(ONE, False).communication_s == exactly(2 * pair)
    assert found.layer(ONE, True).communication_s == exactly(pair + 2 * exchange)
    assert found.layer(ONE, True).communication_backward_s == exactly(pair + 2 * exchange)
    given = bare("glm-4.5-air", trainer={"tensor_parallel": 2, "expert_parallel": 8})
    layers = training(given).layers
    exchange = layers.layer(ONE, True).communication_s - layers.layer(ONE, False).communication_s
    assert given.model.moe is not None and given.model.moe.num_shared_experts == 1
    assert exchange == exactly(
        2 * float(Collectives(BARE, None).collective("alltoall", 8, 8192 / 2 * 8 * given.model.hidden_size * 2).seconds)
    )


@pytest.mark.parametrize(("precision", "rank", "wire", "gathers"),
                         [("bf16", None, 2.0, 1.0), ("fp8", None, 1.0, 1.0), ("fp8", 16, 1.0, 0.0)])  # fmt: skip
def test_gathers_have_the_precision_and_hide(precision: str, rank: int | None, wire: float, gathers: float) -> None:
    layout = {"tensor_parallel": 2, "precision": precision, "lora_rank": rank, "recompute": "none"}
    given, fabric, row = bare("qwen3-8b", trainer=layout), Collectives(BARE, None), 8192 * 4096
    gather = float(fabric.collective("all_gather", 2, wire * row).seconds)
    scatter = float(fabric.collective("reduce_scatter", 2, 2.0 * row).seconds)
    for features, awaited in ((even(), 1.0), (OVERLAP, 0.25)):
        layer = training(given, overlap_cost=0.25, features=features).layers.layer(ONE, False)
        assert layer.communication_s == exactly(2 * awaited * (gather + scatter))
        assert layer.communication_backward_s == exactly(2 * (awaited * gather + 0.25 * (scatter + gathers * gather)))


@pytest.mark.parametrize("stages", [1, 4])
def test_head_and_loss_run_once_forward_and_twice_backward(stages: int) -> None:
    costs = training(bare(trainer={"recompute": "none", "pipeline_parallel": stages}))
    forward, step = costs.forward(ONE).parts, costs.step(ONE).parts
    for name in ("LM head", "loss"):
        assert seconds(step, name) - seconds(forward, name) == exactly(2 * seconds(forward, name))
    assert seconds(forward, "loss") == exactly(8192 * VOCABULARY * 4 * 6 / BANDWIDTH)
    assert seconds(forward, "LM head") == exactly(2 * 8192 * VOCABULARY * 4096 / MATRIX_RATE)


@pytest.mark.parametrize(("recompute", "passes"), [("none", 3), ("full", 4)])
def test_a_step_passes_forward_twice_backward_and_again_what_is_recomputed(recompute: str, passes: int) -> None:
    costs = training(bare(trainer={"recompute": recompute}))
    forward, step = costs.forward(ONE).parts, costs.step(ONE).parts
    assert seconds(step, "products") == exactly(passes * seconds(forward, "products"))


@pytest.mark.parametrize(("virtual_stages", "local", "drains"), [(1, None, 1), (3, None, 1), (3, 10, 1), (1, 4, 3)])
def test_a_bubble_is_a_pipeline_less_a_stage_each_time_it_drains(virtual_stages: int, local: int, drains: int) -> None:
    """1F1B: (PP - 1) / m of the busy time (Narayanan et al., arXiv 2104.04473, 2.2); 10 samples in 4s drain thrice."""
    trainer = {"pipeline_parallel": 4, "recompute": "full", "virtual_stages": virtual_stages,
               "micro_batch_samples": 2, "local_batch_samples": local, "sequence_packing": False}  # fmt: skip
    batch = replace(ONE, count=5, steps=3)
    costs = training(bare(trainer=trainer))
    for parts in (costs.forward(batch).parts, costs.step(batch).parts):
        layers = ("products", "attention", "elementwise", "communication", "host floor")
        stage = sum(seconds(parts, name) for name in layers) / 15
        assert seconds(parts, "pipeline bubble") == exactly(drains * 3 * 3 * stage / virtual_stages)
