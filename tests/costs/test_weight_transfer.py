"""Weight transfers: bytes over links by hand, published refit times, what a split cluster does not pay."""

from __future__ import annotations

from typing import Any

import builders
import pytest

from rlsim.costs.collectives import LINK_EFFICIENCY
from rlsim.costs.layout import train_layout, weight_tensors
from rlsim.costs.overheads import overheads_of
from rlsim.costs.weight_transfer import WeightTransfer
from rlsim.hardware.cards import load_card
from rlsim.hardware.parameters import load_engine_parameters, load_parameters
from rlsim.schema.model import parameter_counts
from rlsim.schema.scenario import Scenario


def _movement(given: Scenario) -> WeightTransfer:
    return WeightTransfer(given, builders.fabric(given.hardware), builders.PLAIN)


def _named(given: Scenario) -> dict[str, float]:
    return {part.name: part.seconds for part in _movement(given).prepare().parts}


def _split(model: str = "qwen3-8b", **sections: Any) -> Scenario:
    return builders.scenario(model, cluster={"num_gpus": 16, "generation_gpus": 8, "training_gpus": 8}, **sections)


def test_offload_copies_of_a_colocated_step_by_hand() -> None:
    """8 data-parallel ranks: Adam state of an eighth, weights whole, each there and back over PCIe 5."""
    given = builders.scenario()
    parameters, rate = parameter_counts(given.model).total, 64e9 * LINK_EFFICIENCY
    parts = _named(given)
    assert parts["optimizer to host and back"] == pytest.approx(2 * 12 * parameters / 8 / rate)
    assert parts["policy weights to host and back"] == pytest.approx(2 * 2 * parameters / rate)
    assert parts["engine weights to host and back"] == pytest.approx(2 * 2 * parameters / rate)
    assert _movement(given).reference_swap_s() == pytest.approx(4 * 2 * parameters / rate)


def test_parts_add_up_and_the_transfer_is_part_of_preparing() -> None:
    transfers = _movement(builders.scenario())
    prepare, transfer = transfers.prepare(), transfers.transfer()
    assert sum(part.seconds for part in prepare.parts) == pytest.approx(prepare.seconds)
    assert prepare.seconds > transfer.seconds
    assert prepare.parts[: len(transfer.parts)] == transfer.parts


def test_a_split_cluster_or_no_offload_pays_the_transfer_alone() -> None:
    for given in (_split(), builders.scenario(trainer={"offload": False})):
        transfers = _movement(given)
        assert transfers.prepare().seconds == transfers.transfer().seconds


def test_a_stated_bandwidth_replaces_that_of_the_links() -> None:
    plain = _movement(_split()).transfer()
    stated = _movement(_split(loop={"refit_bandwidth_bytes_per_s": 5e9})).transfer()
    assert stated.parts[0].seconds == pytest.approx(2 * parameter_counts(_split().model).total / 5e9)
    assert stated.parts[0].source == "assumed"
    assert stated.parts[1:] == plain.parts[1:]
    assert stated.seconds > plain.seconds


@pytest.mark.parametrize(("model", "measured_s"), [("qwen2.5-7b", 5.75), ("qwen3-30b-a3b", 32.2)])
def test_verls_broadcasts_with_the_values_that_the_documentation_gives(model: str, measured_s: float) -> None:
    """verl docs/advance/delta_weight_sync.md, commit 1dda039b9: NCCL full broadcast, FSDP to SGLang, H100."""
    given = _split(model, loop={"refit_fixed_s": 2.1, "refit_bandwidth_bytes_per_s": 5e9, "refit_tensor_s": 1.1e-3})
    found = overheads_of(given, load_parameters(None), load_engine_parameters())
    transfers = WeightTransfer(given, builders.fabric(given.hardware), found)
    assert transfers.transfer().seconds == pytest.approx(measured_s, rel=0.15)


def test_broadcast_crosses_the_network_and_resharding_moves_shards() -> None:
    """16 GPUs are two nodes: a broadcast sends 2 bytes a parameter over eight rails, resharding one shard a GPU."""
    full = 2 * parameter_counts(builders.scenario().model).total
    broadcast = _movement(_split(loop={"refit": "broadcast"})).transfer().parts[0].seconds
    assert broadcast == pytest.approx(full / (8 * 50e9 * LINK_EFFICIENCY), rel=0.2)
    shape = {"engine": {"tensor_parallel": 8}}
    reshard = _movement(_split(loop={"refit": "reshard"}, **shape)).transfer().parts[0].seconds
    assert reshard == pytest.approx(full / 8 / (50e9 * LINK_EFFICIENCY))


def test_a_model_held_whole_by_every_trainer_gathers_nothing() -> None:
    def on_the_wire(given: Scenario) -> float:
        return sum(part.seconds for part in _movement(given).transfer().parts if part.name == "weights on the wire")

    assert on_the_wire(builders.scenario()) == 0
    assert on_the_wire(builders.scenario(trainer={"tensor_parallel": 2})) > 0


def test_published_refit_of_deepseek_v3() -> None:
    """NVIDIA-NeMo/RL docs/guides/checkpoint-engine-refit.md: 256 training and 32 generation GPUs, NCCL broadcast
    14.2 s, NIXL resharding 9.25 s. Both within 35 %, resharding the shorter."""
    shape: dict[str, Any] = {
        "cluster": {"num_gpus": 288, "generation_gpus": 32, "training_gpus": 256},
        "engine": {"tensor_parallel": 32},
        "trainer": {"expert_parallel": 16, "pipeline_parallel": 16},
    }
    broadcast = _movement(builders.scenario("deepseek-v3", loop={"refit": "broadcast"}, **shape)).transfer().seconds
    reshard = _movement(builders.scenario("deepseek-v3", loop={"refit": "reshard"}, **shape)).transfer().seconds
    assert broadcast == pytest.approx(14.2, rel=0.35)
    assert reshard == pytest.approx(9.25, rel=0.35)
    assert reshard < broadcast


def test_weight_tensors_of_deepseek_v3_are_mostly_experts() -> None:
    """The checkpoint's index lists about 46,000 BF16 tensors without FP8 scales and MTP: 58 x 257 x 3 of experts."""
    assert weight_tensors(load_card("deepseek-v3")) == pytest.approx(45_300, rel=0.02)


def test_layout_keeps_every_parameter() -> None:
    """Summed over the ranks of one model copy, dense and expert shards give the whole model."""
    given = builders.scenario("qwen3-30b-a3b", cluster={"num_gpus": 32},
                              trainer={"tensor_parallel": 2, "pipeline_parallel": 2, "expert_parallel": 8})  # fmt: skip
    layout = train_layout(given.trainer, given.model, 32)
    total = parameter_counts(given.model).total
    assert layout.data_parallel == 8
    assert layout.dense_parameters * 4 + layout.expert_parameters * 16 == pytest.approx(total)
    assert layout.optimizer_parameters * 32 == pytest.approx(total)
