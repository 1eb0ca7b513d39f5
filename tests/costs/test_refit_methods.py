"""Weight transfers by method: bytes and seconds of each by hand, and what may never make one slower."""

from typing import Any, get_args

import pytest
from msgspec.structs import replace

from rlsim.costs.transfer.job import HostCopies
from rlsim.costs.transfer.methods import (
    Links,
    Method,
    Receiver,
    Sender,
    TransferJob,
    TransferTerms,
    gather_s,
    tensor_s,
    transfer_parts,
)
from rlsim.parameters.sets import load_transfer_parameters
from rlsim.schema.engine_parameters import OTHER

METHODS: tuple[Method, ...] = get_args(Method)
START = load_transfer_parameters("start")
V = START.values
NODES = Links(nvlink_bytes_per_s=450e9, domain_gpus=8, node_gpus=8, network_bytes_per_s=50e9, host_bytes_per_s=64e9)
NETWORK, NVLINK = 50e9 * V.network_share, 450e9 * V.nvlink_share
SHARD = 50e9 * V.shard_share
HOST = 64e9 * V.host_link_share


def job(method: Method, **changes: Any) -> TransferJob:
    """60 GB of weights in 20,000 tensors from 16 GPUs (PP2 EP8) to 16 of TP4; nine tenths of them experts."""
    base = TransferJob(method, full_bytes=60e9, wire_bytes=60e9, tensors=20_000.0, stacked_tensors=500.0,
                       sender=Sender(16, copy_gpus=16, expert_parallel=8, pipeline_parallel=2),
                       receiver=Receiver(16, replica_gpus=4), links=NODES, expert_share=0.9)  # fmt: skip
    return replace(base, **changes)


def terms(framework: str = "nemo_rl", **changes: Any) -> TransferTerms:
    return replace(TransferTerms.of(START, framework), **changes)


def seconds(given: TransferJob, found: TransferTerms | None = None) -> dict[str, float]:
    return {part.name: part.seconds for part in transfer_parts(given, found or terms())}


def total(given: TransferJob, found: TransferTerms | None = None) -> float:
    return sum(seconds(given, found).values())


@pytest.mark.parametrize(("method", "changes", "received"), [
    ("nccl_broadcast", {}, 60e9),
    ("nccl_per_tensor", {}, 60e9),
    ("cuda_ipc", {}, 60e9),
    ("checkpoint_engine", {}, 60e9),
    ("nccl_reshard", {}, 60e9 / 4),
    ("rdma", {}, 0.1 * 60e9 + 0.9 * 60e9 / 4),
    ("rdma", {"full_experts": True}, 60e9),
    ("delta_sharded", {"changed_share": 0.01}, 60e9 * 0.01 * 3),
])  # fmt: skip
def test_bytes_that_an_engine_gpu_receives(method: Method, changes: dict[str, Any], received: float) -> None:
    assert job(method, **changes).received_bytes == pytest.approx(received)


def test_a_rank_loads_what_nemo_rl_counted_and_gathers_over_a_domain_or_two() -> None:
    """NeMo-RL checkpoint-engine guide: 69.95 GiB a rank of 32 with sharded experts: 17e9 parameters and 654e9 / 32."""
    full, experts = 2 * 671e9, 654e9 / 671e9
    given = job("rdma", full_bytes=full, wire_bytes=full, expert_share=experts, receiver=Receiver(32, 32))
    assert given.received_bytes == pytest.approx(69.95 * 2**30, rel=0.02)
    assert gather_s(8e9, 1, NODES, (NVLINK, NETWORK), 8) == 0.0
    assert gather_s(8e9, 8, NODES, (NVLINK, NETWORK), 8) == pytest.approx(7e9 / NVLINK)
    assert gather_s(8e9, 16, NODES, (NVLINK, NETWORK), 8) == pytest.approx(4e9 / (8 * NETWORK))
    assert gather_s(8e9, 16, NODES, (NVLINK, NETWORK), 1) == pytest.approx(4e9 / NETWORK)


def test_a_packed_broadcast_hides_the_gather_under_the_send_over_one_port_or_all_or_nvlink() -> None:
    parts = seconds(job("nccl_broadcast"))
    assert parts["weights on the wire"] == pytest.approx(60e9 / (8 * NETWORK))
    assert parts["gathering of full tensors"] == 0.0
    assert parts["handling of weight tensors"] == pytest.approx(20_000 * (V.export_tensor_s + V.load_tensor_s))
    assert parts["refit synchronisation"] == 0.5
    parts = seconds(job("nccl_broadcast"), terms("verl"))
    assert parts["weights on the wire"] == pytest.approx(60e9 / NETWORK)
    small = job("nccl_broadcast", sender=Sender(4), receiver=Receiver(4))
    assert seconds(small)["weights on the wire"] == pytest.approx(60e9 / NVLINK)
    one, packed = (tensor_s(job(method), terms()) for method in ("nccl_per_tensor", "nccl_broadcast"))
    assert one - packed == pytest.approx(V.collective_tensor_s)


def test_fsdp_gathers_fp32_tensor_by_tensor_and_resharding_is_bound_by_the_busier_side() -> None:
    fsdp = Sender(16, copy_gpus=16, fsdp=True)
    parts = seconds(job("nccl_broadcast", sender=fsdp), terms("verl"))
    assert parts["gathering of full tensors"] == pytest.approx(2 * 60e9 / 2 / NETWORK)
    per_tensor = V.export_tensor_s + V.load_tensor_s + V.fsdp_tensor_s + V.fsdp_node_s
    assert parts["handling of weight tensors"] == pytest.approx(20_000 * per_tensor)
    whole = seconds(job("nccl_broadcast", sender=replace(fsdp, full_state=True)), terms("verl"))
    assert whole["gathering of full tensors"] == pytest.approx(2 * parts["gathering of full tensors"])
    # 16 GPUs of TP4 are 4 replicas: each training GPU of 16 sends 15 GB and each engine GPU receives 15 GB.
    parts = seconds(job("nccl_reshard"))
    assert parts["weights on the wire"] == pytest.approx(15e9 / SHARD)
    own_tensors = (500 + 19_500 / 8) / 2
    assert parts["handling of weight tensors"] == pytest.approx(own_tensors * V.shard_tensor_s)
    assert parts["connections of shards"] == pytest.approx(16 * V.shard_peer_s)
    few = job("nccl_reshard", sender=Sender(8, copy_gpus=8))
    assert seconds(few)["weights on the wire"] == pytest.approx(30e9 / SHARD)


def test_a_checkpoint_engine_overlaps_copies_and_broadcast_and_copies_by_hand() -> None:
    here = job("checkpoint_engine", sender=Sender(16, in_host_memory=True))
    parts = seconds(here, terms("checkpoint_engine"))
    assert parts["weights on the wire"] == pytest.approx(60e9 / (8 * NETWORK))
    assert parts["weights to host memory"] == parts["gathering of full tensors"] == 0.0
    assert parts["handling of weight tensors"] == pytest.approx(20_000 * V.load_tensor_s)
    alone = replace(here, receiver=Receiver(1), links=replace(NODES, nvlink_bytes_per_s=1e15))
    assert seconds(alone)["weights on the wire"] == pytest.approx(60e9 / HOST)
    fetched = seconds(replace(here, method="checkpoint_engine_p2p"), terms("checkpoint_engine"))
    assert fetched["weights on the wire"] - parts["weights on the wire"] == pytest.approx(60e9 / (8 * SHARD))
    assert seconds(job("checkpoint_engine"))["weights to host memory"] == pytest.approx(60e9 / 16 / HOST)
    pinned, pageable = (HostCopies(V, NODES, kind) for kind in (True, False))
    assert pinned.out_s(5e9, 500) == pytest.approx(5e9 / HOST)
    assert pageable.out_s(5e9, 500) == pytest.approx(5e9 / V.pageable_out_bytes_per_s + 500 * V.copy_s)
    assert pageable.in_s(5e9, 500) == pytest.approx(5e9 / V.pageable_in_bytes_per_s + 500 * V.copy_s)
    grace = HostCopies(V, replace(NODES, grace=True), False)
    assert grace.out_s(5e9, 0) == pytest.approx(5e9 / V.pageable_out_grace_bytes_per_s)


def test_other_methods_by_hand_and_stated_values_win() -> None:
    parts = seconds(job("rdma"))
    assert parts["weights on the wire"] == pytest.approx(job("rdma").received_bytes / SHARD)
    delta = seconds(job("delta_sharded"))["weights on the wire"]
    assert delta == pytest.approx(3.6e9 * (1 / V.delta_bytes_per_s + 1 / (8 * NETWORK)))
    disk = seconds(job("disk", disk_bytes_per_s=5e9))["weights on the wire"]
    assert disk == pytest.approx(60e9 / 2 / 5e9 + 60e9 / 5e9)
    parts = seconds(job("cuda_ipc", quantised=True))
    assert parts["quantisation of weight tensors"] == pytest.approx(20_000 * V.quantise_tensor_s)
    assert seconds(job("cuda_ipc"))["quantisation of weight tensors"] == 0.0
    grace = job("nccl_broadcast", links=replace(NODES, grace=True))
    assert tensor_s(grace, terms()) == pytest.approx(V.grace_factor * tensor_s(job("nccl_broadcast"), terms()))
    stated = TransferTerms.of(START, "nemo_rl", tensor_s=1e-3, fixed_s=7.0)
    parts = {part.name: part for part in transfer_parts(job("cuda_ipc"), stated, stated_bytes_per_s=5e9)}
    assert parts["weights on the wire"].seconds == pytest.approx(12.0)
    assert parts["weights on the wire"].source == "assumed"
    assert parts["handling of weight tensors"].seconds == pytest.approx(20.0)
    assert parts["refit synchronisation"].seconds == 7.0
    other = TransferTerms.of(START, OTHER)
    assert (other.family.link_factor, other.family.host_factor, other.fixed_s) == (1.0, 1.0, V.fixed_s)
    measured = load_transfer_parameters()
    assert TransferTerms.of(measured, OTHER).error > TransferTerms.of(measured, "nemo_rl").error


FASTER = {"nvlink": {"links": replace(NODES, nvlink_bytes_per_s=900e9)},
          "network": {"links": replace(NODES, network_bytes_per_s=100e9)},
          "host link": {"links": replace(NODES, host_bytes_per_s=225e9)},
          "one domain": {"links": replace(NODES, domain_gpus=64)}, "fewer tensors": {"tensors": 10_000.0},
          "narrower weights": {"wire_bytes": 30e9}, "faster disk": {"disk_bytes_per_s": 10e9},
          "fewer changes": {"changed_share": 0.001}}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("change", FASTER)
@pytest.mark.parametrize("framework", ["nemo_rl", "verl", "verl_torchtitan"])
@pytest.mark.parametrize("fsdp", [False, True])
def test_nothing_faster_makes_a_transfer_slower(method: Method, change: str, framework: str, fsdp: bool) -> None:
    given = job(method, sender=Sender(16, copy_gpus=16, expert_parallel=8, pipeline_parallel=2, fsdp=fsdp))
    fitted = TransferTerms.of(load_transfer_parameters(), framework)
    assert total(replace(given, **FASTER[change]), fitted) <= total(given, fitted) * (1 + 1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_more_ports_of_the_sender_or_sharded_experts_never_slow_a_transfer(method: Method) -> None:
    one, all_of_them = (replace(terms("verl"), family=START.family("verl").model_copy(update={"rails": rails}))
                        for rails in ("one", "node"))  # fmt: skip
    assert total(job(method), all_of_them) <= total(job(method), one)
    assert total(job(method)) <= total(job(method, full_experts=True))
    assert total(job("rdma")) < total(job("rdma", full_experts=True))
