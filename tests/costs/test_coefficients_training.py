"""Coefficients of training, each seen alone: rooflines without tables, overheads at round values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import builders
import numpy as np
import pytest

from rlsim.costs import work
from rlsim.costs.collectives import Collectives
from rlsim.costs.device import device_of
from rlsim.costs.interface import Part
from rlsim.costs.operators import Operators
from rlsim.costs.packing import MicroBatches
from rlsim.costs.training import TrainingCosts
from rlsim.costs.training_layer import LayerTime, TrainingLayers
from rlsim.costs.training_update import newton_schulz_flops
from rlsim.costs.work import Matrix
from rlsim.hardware.profile import load_profile
from rlsim.schema.model import parameter_counts
from rlsim.schema.scenario import Scenario
from rlsim.schema.stack import StackFeatures

BARE = builders.without_tables("h100_sxm")
BANDWIDTH = 3.35e12 * 0.8
MATRIX_RATE = 989e12 * 0.7
VOCABULARY = 151_936
ONE = MicroBatches(count=1, tokens=8192.0, sum_squared=8 * 1024.0**2, real_tokens=8192.0, steps=1)
DEVICE = ("products", "attention", "elementwise")
OVERLAP = StackFeatures(tensor_overlap=True, exchange_overlap=True)


def exactly(value: float) -> object:
    return pytest.approx(value, rel=1e-9)


def scenario(model: str = "qwen3-8b", **sections: object) -> Scenario:
    return builders.scenario(model, BARE, **sections)


def training(given: Scenario, **terms: Any) -> TrainingCosts:
    own = replace(builders.PLAIN_TRAINING, **{"moe_host_layer_s": 0.0, **terms})
    device = device_of(given.hardware, "vllm")
    return TrainingCosts(given.model, given.trainer, device, own, given.cluster.training)


def seconds(parts: tuple[Part, ...], name: str) -> float:
    return sum(part.seconds for part in parts if part.name == name)


def total(parts: tuple[Part, ...]) -> float:
    return sum(part.seconds for part in parts)


# --- one layer --------------------------------------------------------------------------------------------------------


def layer_time(forward: float, backward: float, attention: float = 0.0, **more: float) -> LayerTime:
    """A layer with round times."""
    device = (Part("products", forward, "compute"), Part("attention", attention, "compute"))
    return LayerTime(
        device=device,
        device_backward=(Part("products", backward, "compute"),),
        communication_s=more.get("out", 0.0),
        communication_backward_s=more.get("back", 0.0),
        floor_s=more.get("floor", 0.0),
    )


def test_a_host_floor_holds_once_forward_and_twice_backward() -> None:
    layer = layer_time(2.0, 4.5, floor=4.0)
    assert seconds(layer.forward(), "host floor") == 2.0
    assert seconds(layer.backward(), "host floor") == 8.0 - 4.5
    assert seconds(layer_time(5.0, 0.0, floor=4.0).forward(), "host floor") == 0.0
    assert total(layer_time(0.0, 0.0, out=1.0, back=3.0).backward()) == 3.0


def test_recomputation_repeats_nothing_the_attention_or_the_layer() -> None:
    layer = layer_time(1.0, 2.0, attention=3.0, out=0.5)
    assert [total(layer.recomputed(kind)) for kind in ("none", "selective", "full")] == [0.0, 3.0, 4.5]


def test_backward_takes_both_gradients_two_and_a_half_attentions_and_twice_the_traffic() -> None:
    layer = training(scenario()).layers.layer(ONE, False)
    forward, backward = layer.device, layer.device_backward
    assert seconds(backward, "products") == exactly(2 * seconds(forward, "products"))
    assert seconds(backward, "attention") == exactly(2.5 * seconds(forward, "attention"))
    assert seconds(backward, "elementwise") == exactly(2 * seconds(forward, "elementwise"))


def test_only_the_forward_pass_rests_on_measurements() -> None:
    given = builders.scenario()
    device = device_of(given.hardware, "vllm")
    layer = TrainingLayers(given.model, given.trainer, device, builders.PLAIN_TRAINING).layer(ONE, False)
    assert sum(part.seconds * part.measured for part in layer.forward()) > 0
    assert sum(part.seconds * part.measured for part in layer.backward()) == 0


def test_frozen_weights_need_the_gradients_of_their_inputs_alone() -> None:
    """LoRA of rank 16: one product backward, and two thin matrices beside each one of a layer."""
    apart = StackFeatures(fused_adapters=False)
    whole, thin = (training(scenario(trainer={"lora_rank": rank}), features=apart) for rank in (None, 16))
    full, frozen = (one.layers.layer(ONE, False) for one in (whole, thin))
    within = training(scenario(trainer={"lora_rank": 16})).layers.layer(ONE, False)
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


def test_products_of_a_layer_are_two_flop_for_each_weight_and_token() -> None:
    layer = training(scenario()).layers.layer(ONE, False)
    weights = sum(one.elements for one in work.attention_matrices(scenario().model, 1))
    weights += sum(one.elements for one in work.ffn_matrices(4096, 12_288, 1))
    assert seconds(layer.device, "products") == exactly(2 * 8192 * weights / MATRIX_RATE)


def test_an_efficiency_stretches_a_time_and_leaves_its_measured_seconds() -> None:
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


def test_a_speed_of_the_framework_divides_every_kernel_of_its_kind_of_layer() -> None:
    given = scenario("qwen3-30b-a3b", trainer={"expert_parallel": 8})
    plain, slow = (training(given, moe_speed=speed).layers.layer(ONE, True).device for speed in (1.0, 0.5))
    assert [part.seconds for part in slow] == [exactly(2 * part.seconds) for part in plain]
    same = training(given, moe_speed=0.5).layers.layer(ONE, False).device
    assert [part.seconds for part in same] == [part.seconds for part in training(given).layers.layer(ONE, False).device]


def test_ring_traffic_goes_round_once_forward_and_twice_backward() -> None:
    """Keys and values of one other rank: 2 x 8 heads x 128 x 2 bytes a token, hidden by nothing at one short sequence
    each, where the attention takes the least time of a kernel; what is hidden costs half."""
    given = scenario(trainer={"context_parallel": 2, "recompute": "full"})
    short = MicroBatches(1, 65_536.0, 65_536.0, 65_536.0, 1)
    layer = training(given).layers.layer(short, False)
    wire = given.hardware.nvlink_latency_s.value + 0.5 * 65_536 * 2 * 8 * 128 * 2 / (450e9 * 0.75)
    attention = seconds(layer.device, "attention")
    assert layer.communication_s == exactly(wire - attention / 2)
    assert layer.communication_backward_s == exactly(2 * wire - 2.5 * attention / 2)


def test_elementwise_traffic_of_a_dense_layer_and_permutation_of_a_moe_layer() -> None:
    """Dense: 8 rows of hidden and 3 of width a token; experts: 8 rows of hidden, and of each of 8 routed copies 3 of
    the expert's width and 6 of hidden."""
    dense = training(scenario()).layers.layer(ONE, False).device
    assert seconds(dense, "elementwise") == exactly(8192 * (8 * 4096 + 3 * 12_288) * 2 / BANDWIDTH)
    given = scenario("qwen3-30b-a3b", trainer={"expert_parallel": 8})
    experts = training(given).layers.layer(ONE, True).device
    assert seconds(experts, "elementwise") == exactly(8192 * (8 * 2048 + 8 * (3 * 768 + 6 * 2048)) * 2 / BANDWIDTH)
    passes = training(given, elementwise_passes=2.0, permute_passes=12.0).layers.layer(ONE, True).device
    assert seconds(passes, "elementwise") == exactly(2 * seconds(experts, "elementwise"))


def test_biases_of_experts_move_their_activations_again_unless_one_kernel_holds_them() -> None:
    """gpt-oss: 12 inner widths and two rows of hidden size for each of four routed copies."""
    given = scenario("gpt-oss-20b", trainer={"expert_parallel": 8})
    plain, fused = (
        training(given, features=StackFeatures(fused_grouped_mlp=state)).layers.layer(ONE, True).device
        for state in (False, True)
    )
    moved = 8192 * 4 * (12 * 2880 + 2 * 2880) * 2
    assert seconds(plain, "elementwise") - seconds(fused, "elementwise") == exactly(moved / BANDWIDTH)


def test_products_in_eight_bits_quantise_inputs_forward_and_gradients_of_outputs_backward() -> None:
    given = scenario(trainer={"precision": "fp8"})
    layer = training(given).layers.layer(ONE, False)
    matrices = work.attention_matrices(given.model, 1) + work.ffn_matrices(4096, 12_288, 1)
    assert seconds(layer.device, "quantisation") == exactly(8192 * 4 * sum(one.k for one in matrices) / BANDWIDTH)
    wanted = 8192 * 4 * sum(one.n for one in matrices) / BANDWIDTH
    assert seconds(layer.device_backward, "quantisation") == exactly(wanted)
    assert seconds(training(scenario()).layers.layer(ONE, False).device, "quantisation") == 0.0


def test_a_dense_layer_launches_seventeen_kernels_and_a_fifth_more() -> None:
    given = scenario(trainer={"host_launch_s": 1e-3})
    assert training(given).layers.layer(ONE, False).floor_s == exactly(17 * 1.2 * 1e-3)


@pytest.mark.parametrize(("expert_parallel", "factor"), [(8, 1.0), (4, 2.0), (2, 4.0)])
def test_the_floor_of_a_moe_layer_grows_beyond_sixteen_experts_on_a_rank(expert_parallel: int, factor: float) -> None:
    given = scenario("qwen3-30b-a3b", trainer={"expert_parallel": expert_parallel, "tensor_parallel": 1})
    assert training(given, moe_host_layer_s=0.005).layers.layer(ONE, True).floor_s == exactly(0.005 * factor)


def test_tensor_parallel_layers_gather_and_scatter_twice_and_experts_exchange_twice() -> None:
    given = scenario("qwen3-30b-a3b", trainer={"tensor_parallel": 2, "expert_parallel": 8})
    found, fabric = training(given).layers, Collectives(BARE, None)
    row = 8192 * 2048 * 2
    pair = float(fabric.collective("all_gather", 2, row).seconds + fabric.collective("reduce_scatter", 2, row).seconds)
    exchange = float(fabric.collective("alltoall", 8, row * 8 / 2).seconds)
    assert found.layer(ONE, False).communication_s == exactly(2 * pair)
    assert found.layer(ONE, True).communication_s == exactly(pair + 2 * exchange)
    assert found.layer(ONE, True).communication_backward_s == exactly(pair + 2 * exchange)


def test_overlapped_exchange_costs_half_of_what_is_hidden_and_all_of_the_rest() -> None:
    given = scenario("qwen3-30b-a3b", trainer={"tensor_parallel": 2, "expert_parallel": 8})
    open_s, hidden_s = (
        training(given, features=features).layers.layer(ONE, True).communication_s
        for features in (StackFeatures(), OVERLAP)
    )
    assert hidden_s == exactly(open_s / 2)
    slow = builders.scaled(BARE, "nvlink_bandwidth_bytes_per_s", 1e-3)
    far = builders.scenario("qwen3-30b-a3b", slow, trainer={"expert_parallel": 8})
    layer = training(far, features=OVERLAP).layers.layer(ONE, True)
    bare = training(far).layers.layer(ONE, True).communication_s
    assert layer.communication_s == exactly(bare - total(layer.device) / 2)


def test_a_token_goes_once_to_each_gpu_of_its_experts_and_once_to_each_domain() -> None:
    """Eight even draws among 16 GPUs hit 6.45 of them, among two nodes 1.99; half of those are the own node."""
    fabric = Collectives(BARE, None)
    latency = BARE.nvlink_latency_s.value + BARE.network_latency_s.value
    near = 1e9 * 16 * (1 - (15 / 16) ** 8) * 15 / 16 / (450e9 * 0.75)
    far = 1e9 * 2 * (1 - 0.5**8) / 2 / (50e9 * 0.75)
    assert far > near
    assert fabric.token_exchange(16, 1e9, 8).seconds == exactly(far + latency)
    alone = 1e9 * 8 * (1 - (7 / 8) ** 8) * 7 / 8 / (450e9 * 0.75)
    assert fabric.token_exchange(8, 1e9, 8).seconds == exactly(alone + BARE.nvlink_latency_s.value)
    assert fabric.token_exchange(1, 1e9, 8).seconds == 0.0


def test_experts_of_a_rank_run_one_after_the_other_on_their_share_of_the_tokens() -> None:
    """TP2 EP8: a rank routes half of its group's tokens to 8 experts each; 16 experts share what reaches the rank."""
    given, operators = (
        scenario("qwen3-30b-a3b", trainer={"tensor_parallel": 2, "expert_parallel": 8}),
        Operators(BARE, None),
    )
    dense = operators.gemms(np.array([8192.0]), work.attention_matrices(given.model, 2), "bf16")
    router = operators.gemm(np.array([4096.0]), work.Matrix("router", 128, 2048), "bf16")
    one = operators.gemms(np.array([4096 * 8 / 16]), work.ffn_matrices(2048, 768, 1), "bf16")
    found = training(given).layers.layer(ONE, True).device
    assert seconds(found, "products") == exactly(float((dense + router).seconds[0]))
    assert seconds(found, "experts") == exactly(16 * float(one.seconds[0]))


# --- passes -----------------------------------------------------------------------------------------------------------


def test_head_and_loss_run_once_forward_and_twice_backward() -> None:
    costs = training(scenario(trainer={"recompute": "none"}))
    forward, step = costs.forward(ONE).parts, costs.step(ONE).parts
    for name in ("LM head", "loss"):
        assert seconds(step, name) - seconds(forward, name) == exactly(2 * seconds(forward, name))
    assert seconds(forward, "loss") == exactly(8192 * VOCABULARY * 4 * 6 / BANDWIDTH)
    assert seconds(forward, "LM head") == exactly(2 * 8192 * VOCABULARY * 4096 / MATRIX_RATE)


@pytest.mark.parametrize("virtual_stages", [1, 3])
def test_the_bubble_is_one_stage_less_than_the_pipeline_over_the_virtual_stages(virtual_stages: int) -> None:
    trainer = {"pipeline_parallel": 4, "recompute": "full", "virtual_stages": virtual_stages}
    batch = replace(ONE, count=5, steps=3)
    parts = training(scenario(trainer=trainer)).forward(batch).parts
    stage = sum(seconds(parts, name) for name in (*DEVICE, "communication", "host floor")) / 15
    assert seconds(parts, "pipeline bubble") == exactly(3 * 3 * stage / virtual_stages)


# --- the update -------------------------------------------------------------------------------------------------------


def test_adam_moves_its_state_twice() -> None:
    update = training(scenario()).update
    assert update.optimizer_s() == exactly(update.layout.optimizer_parameters * (2 * 12 + 4 + 2) / BANDWIDTH)


def test_a_square_matrix_is_orthogonalised_in_five_steps_of_three_products() -> None:
    assert newton_schulz_flops(Matrix("square", 100, 100)) == 5 * 3 * 2 * 100**3
    assert newton_schulz_flops(Matrix("flat", 100, 300)) == 5 * (2 * 2 * 100 * 100 * 300 + 2 * 100**3)


def _orthogonalised(tensor_parallel: int) -> tuple[float, float]:
    """Seconds of arithmetic and of the gather of one Muon step beyond Adam's."""
    given = scenario(trainer={"optimizer": "muon", "tensor_parallel": tensor_parallel})
    update = training(given).update
    matrices = work.attention_matrices(given.model, 1) + work.ffn_matrices(4096, 12_288, 1)
    flops = 36 * sum(newton_schulz_flops(one) for one in matrices) / (8 / tensor_parallel)
    whole = 36 * sum(one.elements for one in matrices) / (8 / tensor_parallel)
    gather = float(Collectives(BARE, None).collective("all_gather", tensor_parallel, 2 * whole).seconds)
    adam = training(scenario(trainer={"tensor_parallel": tensor_parallel})).update.optimizer_s()
    assert update.optimizer_s() - adam == exactly(flops / MATRIX_RATE + gather)
    return flops, gather


def test_muon_is_spread_over_data_parallel_ranks_and_repeated_by_every_tensor_parallel_one() -> None:
    """Over 8 GPUs each matrix is orthogonalised once; under TP2 by both ranks of a group, who gather it first."""
    (once, none), (twice, gather) = _orthogonalised(1), _orthogonalised(2)
    assert (twice, none) == (exactly(2 * once), 0.0)
    assert gather > 0


def test_experts_lie_whole_on_their_ranks_and_are_orthogonalised_there() -> None:
    given = scenario("qwen3-30b-a3b", trainer={"optimizer": "muon", "expert_parallel": 8})
    attention = sum(newton_schulz_flops(one) for one in work.attention_matrices(given.model, 1)) / 8
    experts = 128 / 8 * sum(newton_schulz_flops(one) for one in work.ffn_matrices(2048, 768, 1))
    assert training(given).update.orthogonalisation_s() == exactly(48 * (attention + experts) / MATRIX_RATE)


def test_tensor_parallel_ranks_gather_what_is_divided_and_no_experts() -> None:
    given = scenario("qwen3-30b-a3b", trainer={"optimizer": "muon", "expert_parallel": 8, "tensor_parallel": 2})
    update = training(given).update
    matrices = work.attention_matrices(given.model, 1)
    attention = 48 / 4 * sum(newton_schulz_flops(one) for one in matrices)
    experts = 48 * 128 / 8 * sum(newton_schulz_flops(one) for one in work.ffn_matrices(2048, 768, 1))
    gathered = 48 / 4 * sum(one.elements for one in matrices) * 2
    gather = float(Collectives(BARE, None).collective("all_gather", 2, gathered).seconds)
    assert update.orthogonalisation_s() == exactly((attention + experts) / MATRIX_RATE + gather)


def test_an_update_can_be_slower_than_log_probs_pass_by_pass() -> None:
    given = scenario(trainer={"recompute": "none"})
    plain, slow = (training(given, update_speed=speed) for speed in (1.0, 0.5))
    assert slow.forward(ONE).seconds == exactly(plain.forward(ONE).seconds)
    for name in ("products", "attention", "elementwise"):
        assert seconds(slow.step(ONE).parts, name) == exactly(2 * seconds(plain.step(ONE).parts, name))
    cover = training(given, update_speed=0.5, overlap_cost=0.0)
    stage = cover._stage(ONE, True).seconds
    forward = cover._stage(ONE, False).seconds / 0.5
    wanted = cover.update.exchange_s(forward, stage - forward)
    assert seconds(cover.step(ONE).parts, "gradient exchange") == exactly(wanted)


def test_gradients_are_scattered_in_four_bytes_and_weights_gathered_in_two() -> None:
    costs, fabric = training(scenario()), Collectives(BARE, None)
    elements = costs.layout.dense_parameters
    scatter = float(fabric.collective("reduce_scatter", 8, 4 * elements).seconds)
    gather = float(fabric.collective("all_gather", 8, 2 * elements).seconds)
    assert costs.update.exchange_s(0.0, 0.0) == exactly(scatter + gather)
    assert costs.update.exchange_s(1e9, scatter / 2) == exactly(scatter * 0.75 + gather / 2)
    apart = training(scenario(), features=StackFeatures(gradient_overlap=False)).update
    assert apart.exchange_s(1e9, 1e9) == exactly(scatter + gather)


def test_fsdp_gathers_once_forward_and_twice_backward_and_scatters_two_bytes() -> None:
    given = scenario(trainer={"backend": "fsdp", "recompute": "full"})
    update, fabric = training(given).update, Collectives(BARE, None)
    size = update.layout.parameters * 2
    gather = float(fabric.collective("all_gather", 8, size).seconds)
    scatter = float(fabric.collective("reduce_scatter", 8, size).seconds)
    assert update.gathering_s(0.0, backward=False) == exactly(gather)
    assert update.gathering_s(0.0, backward=True) == exactly(2 * gather + scatter)
    assert update.gathering_s(gather, backward=False) == exactly(gather / 2)


def test_fsdp_gathers_experts_from_the_ranks_that_hold_the_same_ones() -> None:
    """EP4 of 8 GPUs: a rank holds a quarter of the experts and shares it with one other rank."""
    given = scenario("qwen3-30b-a3b", trainer={"backend": "fsdp", "expert_parallel": 4})
    layout = training(given).layout
    counts = parameter_counts(given.model)
    experts = 48 * 128 * counts.expert
    assert (layout.expert_parameters, layout.expert_shards) == (exactly(experts / 4), 2)
    assert layout.sharded_parameters == exactly(counts.total / 8)


# --- more of anything good never costs --------------------------------------------------------------------------------

MOE: dict[str, Any] = {
    "cluster": {"num_gpus": 32},
    "trainer": {"tensor_parallel": 2, "pipeline_parallel": 2, "expert_parallel": 8},
}
BATCH = replace(ONE, count=4.0)


@pytest.mark.parametrize("name", ["cuda_graphs", "tensor_overlap", "exchange_overlap", "gradient_overlap"])
@pytest.mark.parametrize("hardware", ["h100_sxm", "gb200_nvl72"])
def test_a_feature_that_is_switched_on_never_slows_a_step(name: str, hardware: str) -> None:
    steps = []
    for state in (False, True):
        sections = {**MOE, "trainer": {**MOE["trainer"], "precision": "fp8", name: state}}
        given = builders.scenario("qwen3-30b-a3b", hardware, **sections)
        steps.append(builders.Costs(given).step(np.full(256, 2000.0)).train.seconds)
    off, on = steps
    assert on <= off * (1 + 1e-12)


@pytest.mark.parametrize("gpus", [2, 8, 16, 64, 256])
@pytest.mark.parametrize("hardware", ["h100_sxm", "gb200_nvl72"])
def test_one_copy_for_each_gpu_is_never_slower_than_one_for_each_expert(gpus: int, hardware: str) -> None:
    fabric = Collectives(load_profile(hardware), None)
    for tokens in (1e6, 1e9):
        once = float(fabric.token_exchange(gpus, tokens, 8).seconds)
        assert once <= float(fabric.collective("alltoall", gpus, 8 * tokens).seconds) * (1 + 1e-9)


@pytest.mark.parametrize("features", [StackFeatures(), OVERLAP])
@pytest.mark.parametrize("link", ["nvlink_bandwidth_bytes_per_s", "network_bandwidth_bytes_per_s"])
def test_a_faster_link_never_slows_a_step(link: str, features: StackFeatures) -> None:
    steps = []
    for factor in (0.1, 0.5, 1.0, 4.0):
        given = builders.scenario("qwen3-30b-a3b", builders.scaled(BARE, link, factor), **MOE)
        steps.append(training(given, features=features).step(BATCH).seconds)
    assert steps == sorted(steps, reverse=True)


def test_more_virtual_stages_never_lengthen_a_step() -> None:
    steps = [
        training(scenario(trainer={"pipeline_parallel": 4, "virtual_stages": v})).step(BATCH).seconds
        for v in (1, 2, 4, 9)
    ]
    assert steps == sorted(steps, reverse=True)
