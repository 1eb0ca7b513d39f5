"""Weight transfers: bytes over links by hand, published refit times, what a split cluster does not pay."""

from typing import Any

import builders
import pytest

from rlsim.costs.memory import weight_bytes
from rlsim.costs.operators.collectives import LINK_EFFICIENCY
from rlsim.costs.overheads import overheads_of
from rlsim.costs.trainer.layout import adapter_parameters, train_layout, weight_tensors
from rlsim.costs.transfer.job import WeightTransfer, job_of
from rlsim.loading.models import load_card
from rlsim.loading.scenario import load_scenario, vary
from rlsim.parameters.terms import fitted_of
from rlsim.schema.model import parameter_counts
from rlsim.schema.scenario import Scenario

V = builders.PLAIN.refit.values


def _movement(given: Scenario) -> WeightTransfer:
    return WeightTransfer(given, builders.fabric(given.hardware), builders.PLAIN)


def _split(model: str = "qwen3-8b", **sections: Any) -> Scenario:
    return builders.scenario(model, cluster={"num_gpus": 16, "generation_gpus": 8, "training_gpus": 8}, **sections)


def test_offload_copies_by_hand_and_split_clusters_pay_the_transfer_alone() -> None:
    """8 data-parallel ranks: Adam state of an eighth, weights whole, out to new pageable memory and in from it."""
    given = builders.scenario()
    parameters = parameter_counts(given.model).total
    parts = {part.name: part.seconds for part in _movement(given).prepare().parts}
    held, sharded = 12 * parameters / 8, 2 * parameters
    tensors = weight_tensors(given.model)
    assert parts["optimizer offload"] == pytest.approx(held / V.pageable_out_bytes_per_s + 3 * tensors / 8 * V.copy_s)
    assert parts["optimizer onload"] == pytest.approx(held / V.pageable_in_bytes_per_s + 3 * tensors / 8 * V.copy_s)
    assert parts["policy weights offload"] == pytest.approx(sharded / V.pageable_out_bytes_per_s + tensors * V.copy_s)
    assert parts["policy weights onload"] == pytest.approx(sharded / V.pageable_in_bytes_per_s + tensors * V.copy_s)
    assert parts["engine sleep"] == parts["engine wake"] == pytest.approx(sharded / (64e9 * V.host_link_share))
    assert parts["sleep and wake calls"] == V.sleep_wake_s
    assert _movement(given).reference_swap_s() == pytest.approx(4 * sharded / (64e9 * LINK_EFFICIENCY))
    transfers = _movement(builders.scenario())
    prepare, transfer = transfers.prepare(), transfers.transfer()
    assert prepare.seconds > transfer.seconds
    assert prepare.parts[: len(transfer.parts)] == transfer.parts
    for given in (_split(), builders.scenario(trainer={"offload": False})):
        transfers = _movement(given)
        assert transfers.prepare().seconds == transfers.transfer().seconds


def test_a_stated_bandwidth_replaces_that_of_links_and_auto_chooses_by_pools() -> None:
    plain = _movement(_split()).transfer()
    stated = _movement(_split(loop={"refit_bandwidth_bytes_per_s": 5e9})).transfer()
    assert stated.parts[0].seconds == pytest.approx(2 * parameter_counts(_split().model).total / 5e9)
    assert stated.parts[0].source == "assumed"
    assert stated.parts[1:] == plain.parts[1:]
    assert stated.seconds > plain.seconds
    assert (job_of(builders.scenario()).method, job_of(_split()).method) == ("cuda_ipc", "nccl_broadcast")
    assert job_of(_split(loop={"refit_method": "rdma"})).method == "rdma"

    def gathering(given: Scenario) -> float:
        return sum(part.seconds for part in _movement(given).transfer().parts
                   if part.name == "gathering of full tensors")  # fmt: skip

    assert gathering(builders.scenario()) == 0
    assert gathering(builders.scenario(trainer={"tensor_parallel": 2})) > 0


def test_the_job_of_a_scenario_by_hand_whose_layout_keeps_every_parameter() -> None:
    """30B with FP8 in the engine: BF16 travels and is quantised tensor by tensor, or FP8 travels as it is."""
    shape: dict[str, Any] = {"engine": {"weight_precision": "fp8", "tensor_parallel": 4}}
    layout = {"trainer": {"expert_parallel": 4, "pipeline_parallel": 2}}
    found = job_of(_split("qwen3-30b-a3b", **shape, **layout))
    assert (found.quantised, found.wire_bytes) == (True, weight_bytes(load_card("qwen3-30b-a3b"), "bf16"))
    assert (found.tensors, found.stacked_tensors) == (18867.0, 48 * (8 + 1 + 3) + 3)
    assert found.expert_share == pytest.approx(
        48 * 128 * 3 * 2048 * 768 / parameter_counts(_split("qwen3-30b-a3b").model).total
    )
    assert (found.sender.copy_gpus, found.sender.gpus, found.receiver.replica_gpus) == (8, 8, 4)
    ready = job_of(_split("qwen3-30b-a3b", loop={"refit_precision": "engine"}, **shape, **layout))
    assert (ready.quantised, ready.wire_bytes) == (False, weight_bytes(load_card("qwen3-30b-a3b"), "fp8"))
    fsdp = job_of(_split(trainer={"backend": "fsdp"}, loop={"refit_onload": True}))
    assert (fsdp.sender.copy_gpus, fsdp.sender.fsdp) == (8, True)
    assert fsdp.sender.onload_bytes == pytest.approx(4 * parameter_counts(_split().model).total / 8)
    # Summed over the ranks of one model copy, dense and expert shards give the whole model.
    given = builders.scenario("qwen3-30b-a3b", cluster={"num_gpus": 32},
                              trainer={"tensor_parallel": 2, "pipeline_parallel": 2, "expert_parallel": 8})  # fmt: skip
    layout = train_layout(given.trainer, given.model, 32)
    total = parameter_counts(given.model).total
    assert layout.data_parallel == 8
    assert layout.dense_parameters * 4 + layout.expert_parameters * 16 == pytest.approx(total)
    assert layout.optimizer_parameters * 32 == pytest.approx(total)


DEEPSEEK: dict[str, Any] = {"cluster": {"num_gpus": 288, "generation_gpus": 32, "training_gpus": 256},
                            "engine": {"tensor_parallel": 32},
                            "trainer": {"expert_parallel": 16, "pipeline_parallel": 16}}  # fmt: skip
VERL_30B: dict[str, Any] = {"cluster": {"num_gpus": 16, "generation_gpus": 8, "training_gpus": 8},
                            "trainer": {"backend": "fsdp", "expert_parallel": 8}}  # fmt: skip


@pytest.mark.parametrize(("model", "shape", "loop", "measured_s"), [
    # NVIDIA-NeMo/RL docs/guides/checkpoint-engine-refit.md at 7ea279abf: asynchronous engine.
    ("deepseek-v3", DEEPSEEK, {"refit_method": "nccl_broadcast"}, 14.21),
    ("deepseek-v3", DEEPSEEK, {"refit_method": "rdma"}, 9.25),
    ("deepseek-v3", DEEPSEEK, {"refit_method": "rdma", "refit_full_experts": True}, 36.8),
    # verl docs/advance/delta_weight_sync.md at 1dda039b9.
    ("qwen3-30b-a3b", VERL_30B, {"refit_method": "nccl_broadcast", "refit_framework": "verl"}, 32.2),
    ("qwen3-30b-a3b", VERL_30B,
     {"refit_method": "delta_sharded", "refit_framework": "verl", "refit_changed_share": 0.00035}, 7.1),
])  # fmt: skip
def test_published_transfers(model: str, shape: dict[str, Any], loop: dict[str, Any], measured_s: float) -> None:
    given = builders.scenario(model, loop=loop, **shape)
    fitted = overheads_of(given, fitted_of(given))
    found = WeightTransfer(given, builders.fabric(given.hardware), fitted).transfer().seconds
    assert found == pytest.approx(measured_s, rel=0.25)


@pytest.mark.parametrize(
    ("stack", "backend", "split", "alone"),
    [
        ("miles", "megatron", True, True),
        ("prime_rl", "fsdp", True, True),
        ("skyrl", "fsdp", False, True),
        ("skyrl", "megatron", True, False),  # merged
        ("verl", "fsdp", False, True),
        ("verl", "fsdp", True, False),  # checkpoint engines send all weights
        ("nemo_rl-0.7", "fsdp", True, False),  # merged
    ],
)
def test_an_adapter_travels_alone_where_the_engine_applies_it(
    stack: str, backend: str, split: bool, alone: bool
) -> None:
    pools = {"cluster.generation_gpus": 4} if split else {}
    given = vary(
        load_scenario("quickstart"),
        {"stack": stack, "trainer.backend": backend, "trainer.lora_rank": 32, "speculation": {"method": "none"},
         "trainer.pipeline_parallel": 1, **pools},
    )  # fmt: skip
    job, whole = job_of(given), weight_bytes(given.model, "bf16")
    rank = adapter_parameters(given.model, 32) * 2
    assert job.full_bytes == job.wire_bytes == (rank if alone else whole)
    # verl's FSDP ranks gather all weights for it.
    assert job.gathered_bytes == (whole if alone and stack == "verl" else None)
    assert job_of(vary(given, {"trainer.lora_rank": None})).wire_bytes == whole
    assert job_of(vary(given, {"engine.lora_rank": 0})).wire_bytes == whole
