"""Measured weight transfers: which method, framework, bytes and links a row means, and what its prediction holds."""

from pathlib import Path

import pytest
from measured_tables import TRANSFER, write

from rlsim.costs.memory import weight_bytes
from rlsim.costs.operators.groups import transfer_groups
from rlsim.costs.transfer.job import job_of
from rlsim.costs.transfer.methods import TransferTerms, transfer_parts
from rlsim.evidence.compare import validate_table
from rlsim.evidence.published import published_table
from rlsim.evidence.tables import SkippedRow
from rlsim.evidence.transfers import framework_of, links_of_row, method_of, transfer_job, weights_of
from rlsim.loading.models import load_card
from rlsim.loading.scenario import load_scenario
from rlsim.parameters.sets import load_transfer_parameters
from rlsim.parameters.terms import current
from rlsim.results.validation import Validation


def validated(tmp_path: Path, *rows: dict[str, str]) -> Validation:
    return validate_table(write(tmp_path / "t.csv", [{**TRANSFER, **row} for row in rows]))


@pytest.mark.parametrize(
    ("method", "placement", "wanted"),
    [
        ("NCCL broadcast", "disaggregated", "nccl_broadcast"),
        ("nccl full broadcast", "", "nccl_broadcast"),
        ("NCCL, async engine", "disaggregated", "nccl_broadcast"),
        ("NeMo-RL refit (collective), prefix cache invalidated", "disaggregated async 1-off", "nccl_broadcast"),
        ("all-gather + broadcast", "", "nccl_broadcast"),
        ("per-tensor NCCL broadcast", "disaggregated async", "nccl_per_tensor"),
        ("NCCL per tensor", "", "nccl_per_tensor"),
        ("plain", "disaggregated", "nccl_per_tensor"),
        ("NCCL-Reshard, python fallback path", "disaggregated", "nccl_reshard"),
        ("NCCL-Xfer prototype", "disaggregated", "nccl_reshard"),
        ("NIXL GPU RDMA (8 rails; sharded experts)", "", "rdma"),
        ("NIXL checkpoint engine", "disaggregated", "rdma"),
        ("mooncake", "disaggregated, receive only (no load into the engine)", "rdma"),
        ("checkpoint-engine", "disaggregated", "checkpoint_engine"),
        ("broadcast", "colocated ParameterServer (host memory to GPU)", "checkpoint_engine"),
        ("P2P (mooncake) to 16 GPUs", "colocated ParameterServer (host memory to GPU)", "checkpoint_engine_p2p"),
        ("delta_sharded", "disaggregated", "delta_sharded"),
        ("sparse XOR delta, S3, 3 % changed", "disaggregated", "delta_sharded"),
        ("CUDA IPC colocated, BF16 to MXFP8, before", "colocated sync", "cuda_ipc"),
        ("colocated", "colocated sync", "cuda_ipc"),
        ("safetensors on disk", "disaggregated", "disk"),
    ],
)  # fmt: skip
def test_transfers_by_their_method(method: str, placement: str, wanted: str) -> None:
    assert method_of({"method": method, "placement": placement}) == wanted


@pytest.mark.parametrize(("framework", "layout", "wanted"), [
    ("NeMo-RL 0.6.0 + vLLM 0.20.0", "TP4", "nemo_rl"),
    ("checkpoint-engine + vLLM 0.10.2rc1", "", "checkpoint_engine"),
    ("verl + SGLang", "1+1 nodes", "verl"),
    ("verl", "Megatron", "verl_megatron"),
    ("verl (mbridge)", "", "verl_megatron"),
    ("verl (TorchTitan / FSDP engine) + SGLang", "FSDP2 dp_shard16", "verl_torchtitan"),
    ("MarinSkyRL (FSDP2 to vLLM)", "", "skyrl"),
    ("somebody's own", "", "other"),
])  # fmt: skip
def test_frameworks_by_name_and_backend(framework: str, layout: str, wanted: str) -> None:
    assert framework_of({"framework": framework, "train_parallelism": layout}) == wanted
    assert wanted == "other" or wanted in load_transfer_parameters().names


def test_a_row_is_priced_like_its_scenario_within_the_links(tmp_path: Path) -> None:
    given = load_scenario(
        "quickstart",
        [
            "model=qwen3-30b-a3b", "cluster.num_gpus=32", "cluster.generation_gpus=16", "engine.tensor_parallel=8",
            "trainer.pipeline_parallel=2", "trainer.expert_parallel=8", "loop.refit_method=nccl_reshard",
            "speculation.method=none",
        ],
    )  # fmt: skip
    fitted = current()
    terms = TransferTerms.of(fitted.transfers, "nemo_rl")
    seconds = sum(part.seconds for part in transfer_parts(job_of(given), terms))
    seconds *= fitted.factor(transfer_groups("nemo_rl", "nccl_reshard", "Qwen3-30B-A3B"))
    row = validated(tmp_path, {}).rows[0]
    assert row.predicted == pytest.approx(seconds)
    assert row.group == "nemo_rl, nccl_reshard"
    assert row.details["refit_method"] == "nccl_reshard"
    row = validated(tmp_path, {"method": "NCCL broadcast", "time_s": "0.02"}).rows[0]
    assert "faster than the links" in str(row.skipped)
    shared = {"method": "CUDA IPC", "placement": "colocated sync", "num_gpus": "16", "train_parallelism": "EP8"}
    whole, alone = validated(tmp_path, shared, {**shared, "id": "b", "timed": "transfer"}).rows
    assert (whole.predicted or 0) > (alone.predicted or 0) + 2


def test_weights_and_senders_are_what_a_row_tells() -> None:
    carded = weights_of({"model": "Qwen3.5-9B"})
    assert (carded.bytes, carded.tensors, carded.estimated) == (2 * 8_953_803_264, 32 * 11 + 3, False)
    stated = weights_of({"model": "Nemotron Nano 3", "weight_gb": "63.2", "params_total_b": "31.6"})
    assert (stated.bytes, stated.estimated) == (63.2e9, False)
    assert stated.tensors == 29 * 11 + 23 * (9 + 2 * 129) + 3
    unknown = weights_of({"model": "Snowball 67B-A2B MoE", "weight_gb": "134", "params_total_b": "67"})
    assert (unknown.bytes, unknown.tensors, unknown.estimated) == (134e9, 48 * (9 + 3 * 128) + 3, True)
    plain = weights_of({"model": "Somebody-7B"})
    assert (plain.bytes, plain.expert_share, plain.estimated) == (14e9, 0.0, True)
    with pytest.raises(SkippedRow, match="weight_gb"):
        weights_of({"model": "secret"})
    verl = {**TRANSFER, "framework": "verl + SGLang", "method": "nccl full broadcast"}
    on = transfer_job({**verl, "train_parallelism": "2+2 nodes, offload on"})[0].sender
    off = transfer_job({**verl, "train_parallelism": "2+2 nodes, offload off"})[0].sender
    assert on.fsdp
    assert on.onload_bytes == pytest.approx(2 * weight_bytes(load_card("qwen3-30b-a3b"), "bf16") / 16)
    assert off.onload_bytes == 0.0
    assert transfer_job({**verl, "train_parallelism": "FSDP engine FSDP1 16"})[0].sender.full_state
    assert transfer_job({**verl, "train_parallelism": "HSDP 2x4 TP2"})[0].sender.copy_gpus == 8
    assert not transfer_job({**verl, "framework": "verl (Megatron)"})[0].sender.fsdp


@pytest.mark.parametrize(
    ("gpu", "nvlink", "network"),
    [
        ("H800", 200e9, 50e9), ("H20", 450e9, 50e9), ("A100/A800 80GB", 300e9, 25e9), ("A800", 200e9, 25e9),
        ("H100 (8-GPU nodes)", 450e9, 50e9), ("GB300 NVL72", 900e9, 100e9), ("", 450e9, 50e9),
    ],
)  # fmt: skip
def test_links_of_gpus_with_and_without_a_profile(gpu: str, nvlink: float, network: float) -> None:
    found = links_of_row(gpu)
    assert (found.nvlink_bytes_per_s, found.network_bytes_per_s) == (nvlink, network)


@pytest.mark.parametrize(("table", "rows"), [("refit.csv", 20), ("refit_colocated.csv", 24)])
def test_published_transfers_are_met(table: str, rows: int) -> None:
    """Every published row without an objection is priced; median within 25 % and none off by more than 2.5 times."""
    found = validate_table(published_table(table))
    assert len(found.scored) == rows
    assert found.score.median_abs_error < 0.25
    assert all(1 / 2.5 < (row.predicted or 0) / (row.measured or 1) < 2.5 for row in found.scored)
