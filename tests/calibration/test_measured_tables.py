"""From measurements to tables and a profile, on times that follow a known roofline."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from rlsim.calibration.command import calibrate_measurements, profile_name
from rlsim.calibration.fit import fit_measurements
from rlsim.calibration.grids import CPU_QUICK, GPU_QUICK, cells_of

from rlsim.calibration.cases import collectives
from rlsim.calibration.comparison import compare
from rlsim.costs.layers import ATTENTION_LAUNCHES, DENSE_LAUNCHES
from rlsim.errors import InputError
from rlsim.hardware.profile import load_profile
from rlsim.hardware.tables import OperatorTables

FLOPS, BANDWIDTH, FLOOR_S = 2e12, 1e11, 1e-6


def roofline(flops: float, moved: float) -> float:
    return FLOOR_S + max(flops / FLOPS, moved / BANDWIDTH)


def measurements(folder: Path, cells: list[Any], **circumstances: Any) -> Path:
    records = [
        {
            "cell": cell.key,
            "op": cell.op,
            "params": dict(cell.params),
            "flops": cell.flops,
            "bytes": cell.bytes,
            "sample": {
                "seconds_median": roofline(cell.flops, cell.bytes),
                "seconds_low": 0.0,
                "seconds_high": 1.0,
                "repeats": 7,
                "spread": 0.01,
                "throttled": False,
            },
        }
        for cell in cells
    ]
    known = {
        "device": "Some CPU",
        "device_type": "cpu",
        "device_count": 1,
        "device_memory_bytes": 2**34,
        "host_memory_bytes": 2**34,
        "host_cpu": "Some CPU",
        "torch": "2.13.0",
        "date": "2026-01-02T03:04:05+00:00",
        "benchmark_version": "abc",
        **circumstances,
    }
    path = folder / "measurements.json"
    path.write_text(json.dumps({"schema": "rlsim.measurements/1", "circumstances": known, "cells": records}))
    return path


@pytest.fixture
def fitted(tmp_path: Path) -> Path:
    measurements(tmp_path, cells_of(CPU_QUICK, False, False, 2))
    calibrate_measurements(tmp_path, tmp_path)
    return tmp_path


def test_tables_give_back_the_measured_times(fitted: Path) -> None:
    tables = OperatorTables.load("cpu_local", "measured", fitted)
    n, k = 384, 256
    found = tables.gemm_s("bf16", [1, 64], n, k)
    assert found is not None
    wanted = [roofline(2.0 * m * n * k, 2.0 * (m * k + n * k + m * n)) for m in (1, 64)]
    np.testing.assert_allclose(found.seconds, wanted, rtol=1e-3)
    assert found.measured.all()
    decode = tables.decode_attention_s(8, 2, 32, "bf16", 4, 513)
    assert decode is not None
    assert bool(decode.measured)
    reduce = tables.all_reduce_s(2, 65536, graph=False)
    assert reduce is not None


def test_profile_is_valid_and_holds_the_measured_rates(fitted: Path) -> None:
    profile = load_profile(fitted / "cpu_local.yaml")
    assert profile.bf16_flops.source == "measured"
    assert profile.bf16_flops.value == pytest.approx(FLOPS, rel=0.05)
    assert profile.memory_bandwidth_bytes_per_s.value == pytest.approx(BANDWIDTH, rel=0.05)
    assert profile.fp8_flops.source == "assumed"
    assert profile.eager_launch_s.source == "measured"


def test_a_launch_on_an_unknown_gpu_is_its_share_of_an_eager_layer(tmp_path: Path) -> None:
    path = measurements(tmp_path, cells_of(GPU_QUICK, True, True, 1), device="Some GPU", device_type="cuda")
    made = load_profile(calibrate_measurements(path, tmp_path).profile)
    records = json.loads(path.read_text())["cells"]
    layer = next(r for r in records if r["op"] == "host_enqueue" and r["params"]["part"] == "layer")
    per_launch = layer["sample"]["seconds_median"] / (ATTENTION_LAUNCHES + DENSE_LAUNCHES)
    assert made.eager_launch_s.value == pytest.approx(per_launch, rel=1e-3)


def test_one_query_stands_beside_several_of_the_same_kernel(fitted: Path) -> None:
    tables = OperatorTables.load("cpu_local", "measured", fitted)
    one = tables.verify_attention_s(8, 2, 32, "bf16", 1, 4, 513)
    decode = tables.decode_attention_s(8, 2, 32, "bf16", 4, 513)
    assert one is not None and decode is not None
    assert one.seconds == pytest.approx(decode.seconds, rel=1e-9)
    assert bool(one.measured)


def test_circumstances_state_origin_errors_and_efficiency(fitted: Path) -> None:
    stated = OperatorTables.load("cpu_local", "measured", fitted).circumstances
    assert stated["source"]["benchmark_version"] == "abc"
    assert stated["self_check"]["composites"] == len(CPU_QUICK.composites)
    assert 0.9 < stated["efficiency"]["gemm"]["bf16"]["memory_p90"] <= 1.0
    assert stated["efficiency"]["verify_attention"]["bf16"]["memory_median"] > 0.5
    assert (fitted / "cpu_local" / "measured" / "selfcheck.png").stat().st_size > 1000
    assert (fitted / "cpu_local" / "measured" / "selfcheck.txt").read_text().startswith("self-check on Some CPU")


def test_every_cell_keeps_its_provenance(fitted: Path) -> None:
    cells = pq.read_table(fitted / "cpu_local" / "measured" / "cells.parquet").to_pylist()
    assert len(cells) == len(cells_of(CPU_QUICK, False, False, 2))
    assert all(cell["seconds_median"] > 0 and cell["repeats"] == 7 for cell in cells)


def test_a_shipped_device_keeps_its_datasheet_and_is_compared_with_its_imported_tables(tmp_path: Path) -> None:
    cells = [*cells_of(GPU_QUICK, True, True, 1), *collectives((65536,), 2)]
    path = measurements(tmp_path, cells, device="NVIDIA H200", device_type="cuda")
    result = calibrate_measurements(path, tmp_path, merge_over="vllm")
    shipped, made = load_profile("h200_sxm"), load_profile(result.profile)
    assert result.name == "h200_sxm"
    assert made.bf16_flops == shipped.bf16_flops
    assert made.host_link_bandwidth_bytes_per_s.source == "measured"
    assert made.eager_launch_s == shipped.eager_launch_s, "an engine's own launches are known of this device"
    assert "measured over imported (h200_sxm, vllm) seconds" in result.text
    records = json.loads(path.read_text())["cells"]
    ratios = {ratio.op: ratio for ratio in compare(records, OperatorTables.load("h200_sxm", "vllm"))}
    assert ratios["gemm bf16"].cells > 50
    merged = pq.read_table(tmp_path / "h200_sxm" / "vllm" / "gemm.parquet").column("kernel").to_pylist()
    assert sum(kernel.startswith("rlsim: ") for kernel in merged) > 50
    used = OperatorTables.load(str(made.operator_tables), "vllm")
    for queries in (1, 4, 8):
        found = used.verify_attention_s(32, 8, 128, "bf16", queries, [2.0, 16.0, 100.0], [1500.0, 4097.0, 3000.0])
        assert found is not None and found.measured.all(), "contexts of all numbers of queries share one axis"
    assert used.verify_attention_s(32, 8, 128, "bf16", 0.5, 16, 4100) is None
    assert used.circumstances["self_check"]["composites"] > 0
    assert used.host_s("graph_replay") is not None
    assert ratios["gemm bf16"].median > 10, "the made-up device is far slower"


def test_a_partial_run_is_refused_and_the_good_fit_stays(fitted: Path) -> None:
    before = (fitted / "cpu_local.yaml").read_bytes()
    measurements(fitted, cells_of(CPU_QUICK, False, False, 2)[3:10])
    with pytest.raises(InputError, match="lack"):
        fit_measurements(fitted / "measurements.json", fitted, "cpu_local")
    assert (fitted / "cpu_local.yaml").read_bytes() == before


def test_missing_and_foreign_files_are_one_message(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        calibrate_measurements(tmp_path, tmp_path)
    (tmp_path / "measurements.json").write_text("{}")
    with pytest.raises(InputError, match="no measurement of rlsim"):
        calibrate_measurements(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200", "h200_sxm"),
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("NVIDIA GB200", "gb200_nvl72"),
        ("NVIDIA B200", "b200_sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100_sxm"),
        ("NVIDIA GeForce RTX 4090", "geforce_rtx_4090_local"),
    ],
)
def test_profile_names_of_known_and_unknown_devices(device: str, name: str) -> None:
    assert profile_name(device, "cuda") == name
