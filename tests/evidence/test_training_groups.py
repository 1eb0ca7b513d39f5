"""What training steps are scored together with."""

import pytest
from measured_tables import TRAINING

from rlsim.evidence.training import _cuts, _described


def cells(**changes: str) -> dict[str, str]:
    return {**TRAINING, "release": "NeMo 26.02.01", **changes}


@pytest.mark.parametrize(
    ("changes", "group"),
    [
        ({}, "Megatron-Bridge 26.02, dense, H100, BF16"),
        ({"release": "nemo:26.06", "model": "Qwen3_30B_a3B"}, "Megatron-Bridge 26.06, MoE, H100, BF16"),
        ({"gpu": "GB300 NVL72", "precision": "FP8-MX"}, "Megatron-Bridge 26.02, dense, GB300, MXFP8"),
        ({"precision": "MXFP8"}, "Megatron-Bridge 26.02, dense, H100, MXFP8"),
        ({"precision": "FP8 block/subchannel (128x128 Hopper)"}, "Megatron-Bridge 26.02, dense, H100, FP8"),
        ({"precision": "nvfp4"}, "Megatron-Bridge 26.02, dense, H100, NVFP4"),
        ({"framework": "prime-rl trainer (FSDP2)", "release": "unknown"}, "prime-rl trainer, dense, H100, BF16"),
        ({"framework": "torchtitan", "release": "2024-12"}, "torchtitan 2024-12, dense, H100, BF16"),
        ({"model": "no such model", "release": ""}, "Megatron-Bridge, H100, BF16"),
        ({"framework": "", "release": "", "precision": ""}, "dense, H100"),
    ],
)
def test_a_group_tells_release_family_device_and_precision(changes: dict[str, str], group: str) -> None:
    assert _described("a", cells(**changes))[0].group == group


def test_cuts_are_the_parts_of_the_group_and_release_by_family_and_rack() -> None:
    assert _cuts(cells(gpu="GB200", model="Qwen3_30B_a3B")) == (
        "release: Megatron-Bridge 26.02",
        "family: MoE",
        "device: GB200",
        "precision: BF16",
        "MoE on NVL72 racks, Megatron-Bridge 26.02",
    )
    assert _cuts(cells())[-1] == "dense on 8-GPU nodes, Megatron-Bridge 26.02"
    assert _cuts({"model": "none", "gpu": "", "precision": ""}) == ()
    details = _described("a", cells())[0].details
    assert (details["framework"], details["series"], details["family"]) == ("Megatron-Bridge", "26.02", "dense")
