"""Coefficients of gradients and optimizer, each seen alone; and that more of anything good never costs."""

from typing import Any

import builders
import numpy as np
import pytest
from builders import BANDWIDTH, BARE, MATRIX_RATE, ONE, bare, exactly, seconds, training

from rlsim.costs.operators import work
from rlsim.costs.operators.collectives import LINK_EFFICIENCY, Collectives
from rlsim.costs.operators.work import Matrix, newton_schulz_flops
from rlsim.schema.model import parameter_counts
from rlsim.schema.trainer import StackFeatures
from rlsim.tables.profile import load_profile


def test_adam_and_muon_move_and_spread_their_state() -> None:
    update = training(bare()).update
    assert update.optimizer_s == exactly(update.layout.optimizer_parameters * (2 * 12 + 4 + 2) / BANDWIDTH)
    costs, fabric = training(bare()), Collectives(BARE, None)
    elements = costs.layout.dense_parameters
    scatter = float(fabric.collective("reduce_scatter", 8, 4 * elements).seconds)
    gather = float(fabric.collective("all_gather", 8, 2 * elements).seconds)
    assert costs.update.exchange_s(0.0, 0.0) == exactly(scatter + gather)
    assert costs.update.exchange_s(1e9, scatter / 2) == exactly(scatter * 0.75 + gather / 2)
    apart = training(bare(), features=StackFeatures(gradient_overlap=False)).update
    assert apart.exchange_s(1e9, 1e9) == exactly(scatter + gather)
    # Over 8 GPUs each matrix is orthogonalised once; under TP2 by both ranks of a group, who gather it first.
    (once, none), (twice, gather) = _orthogonalised(1), _orthogonalised(2)
    assert (twice, none) == (exactly(2 * once), 0.0)
    assert gather > 0
    given = bare("qwen3-30b-a3b", trainer={"optimizer": "muon", "expert_parallel": 8, "tensor_parallel": 2})
    update = training(given).update
    matrices = work.attention_matrices(given.model, 1)
    attention = 48 / 4 * sum(newton_schulz_flops(one) for one in matrices)
    experts = 48 * 128 / 8 * sum(newton_schulz_flops(one) for one in work.ffn_matrices(2048, 768, 1))
    gathered = 48 / 4 * sum(one.elements for one in matrices) * 2
    gather = float(Collectives(BARE, None).collective("all_gather", 2, gathered).seconds)
    assert update.orthogonalisation_s() == exactly((attention + experts) / MATRIX_RATE + gather)


@pytest.mark.parametrize("hardware", ["h100_sxm", "gb200_nvl72"])
def test_a_state_in_host_memory_is_stepped_there_or_comes_over_the_link(hardware: str) -> None:
    keys: dict[str, Any] = {"optimizer_on_host": True, "host_memory_bytes_per_s": 5e10}
    link = load_profile(hardware).host_link_bandwidth_bytes_per_s.value * LINK_EFFICIENCY
    plain, host, device, default = (
        training(builders.scenario(hardware=hardware, trainer=one)).update
        for one in ({}, keys, {**keys, "optimizer_step": "device"}, {"optimizer_on_host": True})
    )
    parameters = plain.layout.optimizer_parameters
    assert host.optimizer_s == exactly(parameters * ((2 * 12 + 6) / 5e10 + 6 / link))
    assert device.optimizer_s == exactly(plain.optimizer_s + parameters * 2 * 12 / link)
    rate = {"h100_sxm": 614.4e9 / 2 / 8, "gb200_nvl72": 512e9 / 2 / 2}[hardware]
    assert default.optimizer_s == exactly(parameters * ((2 * 12 + 6) / rate + 6 / link))
    assert (plain.optimizer_bound, host.optimizer_bound, device.optimizer_bound) == ("memory", "host", "host link")


def test_matrices_are_orthogonalised_in_five_steps_of_three_products_experts_whole_on_their_ranks() -> None:
    assert newton_schulz_flops(Matrix("square", 100, 100)) == 5 * 3 * 2 * 100**3
    assert newton_schulz_flops(Matrix("flat", 100, 300)) == 5 * (2 * 2 * 100 * 100 * 300 + 2 * 100**3)
    given = bare("qwen3-30b-a3b", trainer={"optimizer": "muon", "expert_parallel": 8})
    attention = sum(newton_schulz_flops(one) for one in work.attention_matrices(given.model, 1)) / 8
    experts = 128 / 8 * sum(newton_schulz_flops(one) for one in work.ffn_matrices(2048, 768, 1))
    assert training(given).update.orthogonalisation_s() == exactly(48 * (attention + experts) / MATRIX_RATE)


def _orthogonalised(tensor_parallel: int) -> tuple[float, float]:
    """Seconds of arithmetic and of the gather of one Muon step beyond Adam's."""
    given = bare(trainer={"optimizer": "muon", "tensor_parallel": tensor_parallel})
    update = training(given).update
    matrices = work.attention_matrices(given.model, 1) + work.ffn_matrices(4096, 12_288, 1)
    flops = 36 * sum(newton_schulz_flops(one) for one in matrices) / (8 / tensor_parallel)
    whole = 36 * sum(one.elements for one in matrices) / (8 / tensor_parallel)
    gather = float(Collectives(BARE, None).collective("all_gather", tensor_parallel, 2 * whole).seconds)
    adam = training(bare(trainer={"tensor_parallel": tensor_parallel})).update.optimizer_s
    assert update.optimizer_s - adam == exactly(flops / MATRIX_RATE + gather)
    return flops, gather


def test_updates_pass_by_pass_and_fsdp_gathers() -> None:
    given = bare(trainer={"recompute": "none"})
    plain, slow = (training(given, update_speed=speed) for speed in (1.0, 0.5))
    assert slow.forward(ONE).seconds == exactly(plain.forward(ONE).seconds)
    for name in ("products", "attention", "elementwise"):
        assert seconds(slow.step(ONE).parts, name) == exactly(2 * seconds(plain.step(ONE).parts, name))
    cover = training(given, update_speed=0.5, overlap_cost=0.0)
    stage = cover._stage(ONE, True).seconds
    forward = cover._stage(ONE, False).seconds / 0.5
    wanted = cover.update.exchange_s(forward, stage - forward)
    assert seconds(cover.step(ONE).parts, "gradient exchange") == exactly(wanted)
    given = bare(trainer={"backend": "fsdp", "recompute": "full"})
    update, fabric = training(given).update, Collectives(BARE, None)
    size = update.layout.parameters * 2
    gather = float(fabric.collective("all_gather", 8, size).seconds)
    scatter = float(fabric.collective("reduce_scatter", 8, size).seconds)
    assert update.gathering_s(0.0, backward=False) == exactly(gather)
    assert update.gathering_s(0.0, backward=True) == exactly(2 * gather + scatter)
    assert update.gathering_s(gather, backward=False) == exactly(gather / 2)
    # EP4 of 8 GPUs: a rank holds a quarter of the experts and shares it with one other rank.
    given = bare("qwen3-30b-a3b", trainer={"backend": "fsdp", "expert_parallel": 4})
    layout = training(given).layout
    counts = parameter_counts(given.model)
    experts = 48 * 128 * counts.expert
    assert (layout.expert_parameters, layout.expert_shards) == (exactly(experts / 4), 2)
    assert layout.sharded_parameters == exactly(counts.total / 8)


MOE: dict[str, Any] = {"cluster": {"num_gpus": 32},
                       "trainer": {"tensor_parallel": 2, "pipeline_parallel": 2, "expert_parallel": 8}}  # fmt: skip


@pytest.mark.parametrize("name", ["cuda_graphs", "tensor_overlap", "exchange_overlap", "gradient_overlap"])
@pytest.mark.parametrize("hardware", ["h100_sxm", "gb200_nvl72"])
def test_a_feature_that_is_switched_on_never_slows_a_step(name: str, hardware: str) -> None:
    steps = []
    for state in (False, True):
        # Without a host floor: launches beside another micro-batch take the host longer.
        sections = {**MOE, "trainer": {**MOE["trainer"], "precision": "fp8", "moe_host_layer_s": 0.0, name: state}}
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
