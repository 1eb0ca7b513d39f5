"""Hardware profiles: what ships, and what a profile refuses."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rlsim.costs.operators.device import device_of
from rlsim.costs.operators.work import Matrix
from rlsim.errors import InputError
from rlsim.schema.hardware import HardwareProfile, SourcedValue
from rlsim.tables.profile import list_profiles, load_profile

REQUIRED = {"gb200_nvl72", "h100_sxm", "h200_sxm", "b200_sxm"}


def _quantities(profile: HardwareProfile) -> dict[str, SourcedValue]:
    values = {name: getattr(profile, name) for name in type(profile).model_fields}
    return {name: value for name, value in values.items() if isinstance(value, SourcedValue)}


def test_required_profiles_ship() -> None:
    assert set(list_profiles()) >= REQUIRED


@pytest.mark.parametrize("name", list_profiles())
def test_profile_is_plausible(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    # Ridge points of the last three generations: 100 to 400 BF16 FLOP per byte of memory traffic.
    if name != "h20_sxm":  # made to have little arithmetic: 37
        assert 100 < profile.flops("bf16") / float(profile.memory_bandwidth_bytes_per_s) < 400
    # Links are slower the farther they reach.
    links = [profile.memory_bandwidth_bytes_per_s, profile.nvlink_bandwidth_bytes_per_s]
    links.append(profile.network_bandwidth_bytes_per_s)
    assert sorted(map(float, links), reverse=True) == [float(link) for link in links]
    assert 1e-6 < float(profile.nvlink_latency_s) < float(profile.eager_launch_s) < 1e-4
    assert 30e9 < float(profile.memory_bytes) < 400e9


@pytest.mark.parametrize("name", list_profiles())
def test_every_number_names_its_origin(name: str) -> None:
    profile = load_profile(name)
    quantities = _quantities(profile)
    assert len(quantities) >= 16
    measured = {key for key, value in quantities.items() if value.source == "measured"}
    own = profile.operator_tables == name
    assert ({"eager_launch_s", "nvlink_latency_s"} <= measured) is own
    assert all("parquet" in quantities[key].ref for key in ("eager_launch_s", "nvlink_latency_s"))
    price = quantities["price_per_gpu_hour_usd"]
    assert price.source == "assumed"
    assert re.search(r"20\d\d-\d\d", price.ref)


def test_published_gb200() -> None:
    """NVIDIA GB200 NVL72 datasheet: 72 GPUs, 576 TB/s, and 360 / 720 / 1,440 PFLOP/s with sparsity."""
    profile = load_profile("GB200-NVL72")
    gpus = int(profile.nvlink_domain_gpus)
    assert (gpus, int(profile.gpus_per_node)) == (72, 4)
    assert gpus * float(profile.memory_bandwidth_bytes_per_s) == pytest.approx(576e12)
    for precision, petaflops in (("bf16", 360), ("fp8", 720), ("nvfp4", 1440)):
        assert 2 * gpus * profile.flops(precision) == pytest.approx(petaflops * 1e15)


def test_grace_host_link_is_faster_than_pcie_and_its_launches_slower() -> None:
    """Eager launches cost 39 us on GB200 and 17 us on H100 in the same vLLM 0.24.0 tables."""
    grace, x86 = load_profile("gb200_nvl72"), load_profile("h100_sxm")
    assert float(grace.host_link_bandwidth_bytes_per_s) > 3 * float(x86.host_link_bandwidth_bytes_per_s)
    assert 2 < float(grace.eager_launch_s) / float(x86.eager_launch_s) < 3


def test_absent_precision_is_an_input_error() -> None:
    with pytest.raises(InputError, match="'h100_sxm' has no nvfp4 rate; it has bf16, fp8"):
        load_profile("h100_sxm").flops("nvfp4")


def test_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown hardware profile 'h100'; nearest: .*h100_sxm"):
        load_profile("h100")
    with pytest.raises(InputError, match=r"known: .*gb200_nvl72"):
        load_profile("zzzzzzzz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_bytes": 8e10}, "memory_bytes"),
        ({"bf16_flops": {"value": -1.0, "source": "datasheet", "ref": "x"}}, "greater than 0"),
        ({"bf16_flops": {"value": 1e15, "source": "guess", "ref": "x"}}, "datasheet"),
        ({"bf16_flops": {"value": 1e15, "source": "assumed", "ref": ""}}, "at least 1 character"),
        ({"bf16_flops": {"value": float("inf"), "source": "assumed", "ref": "x"}}, "finite"),
        ({"gpus_per_node": {"value": 4.5, "source": "assumed", "ref": "x"}}, "whole number"),
        ({"gpus_per_node": {"value": 5, "source": "assumed", "ref": "x"}}, "do not divide"),
    ],
)
def test_profile_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        HardwareProfile.model_validate({**load_profile("h100_sxm").model_dump(), **changes})


def test_profile_by_path_relative_to_a_folder(tmp_path: Path) -> None:
    text = "\n".join(f"{key}: {_yaml(value)}" for key, value in load_profile("h100_sxm").model_dump().items())
    (tmp_path / "mine.yaml").write_text(text.replace("name: h100_sxm", "name: mine"))
    assert load_profile("mine.yaml", base=tmp_path).name == "mine"
    with pytest.raises(InputError, match="no such file"):
        load_profile("other.yaml", base=tmp_path)


def test_invalid_profile_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("name: bad\nmemory_byte: {value: 80 GB, source: datasheet, ref: x}\n")
    with pytest.raises(InputError, match=r"bad\.yaml: .*memory_bytes") as raised:
        load_profile(tmp_path / "bad.yaml")
    assert "\n" not in str(raised.value)


def _yaml(value: Any) -> str:
    if isinstance(value, dict):
        return f'{{value: {value["value"]}, source: {value["source"]}, ref: "{value["ref"]}"}}'
    return "null" if value is None else str(value)


def test_devices_without_tables_of_their_own_carry_those_of_their_kin_over() -> None:
    """An H20 has 148 / 989 of the arithmetic and 4.0 / 3.35 of the bandwidth of an H100 (their datasheets)."""
    kin, weak = (device_of(load_profile(name), "vllm").operators for name in ("h100_sxm", "h20_sxm"))
    large, few = np.array([8192.0]), np.array([1.0])
    matrix = Matrix("m", 8192, 8192)
    flops, moved = 2 * 8192.0**3, 2 * (8192.0**2 + 2 * 8192)
    longer_s = weak.gemm(large, matrix, "bf16").seconds - kin.gemm(large, matrix, "bf16").seconds
    assert longer_s[0] == pytest.approx(flops / 148e12 - flops / 989.5e12, rel=0.01)
    shorter_s = kin.gemm(few, matrix, "bf16").seconds - weak.gemm(few, matrix, "bf16").seconds
    assert shorter_s[0] == pytest.approx(moved / 3.35e12 - moved / 4.0e12, rel=0.01)
    assert float(weak.gemm(large, matrix, "bf16").measured[0]) == 0.0
    slow, fast = load_profile("h800_sxm"), load_profile("h100_sxm")
    assert float(slow.nvlink_bandwidth_bytes_per_s) / float(fast.nvlink_bandwidth_bytes_per_s) == pytest.approx(4 / 9)
