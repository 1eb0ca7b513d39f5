"""From measurements to tables and a profile, on times that follow a known roofline; merged with imported tables."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from bench.cases import Case, CaseList
from bench.measurements import Measurement, Measurements, Metadata, Sample, read_measurements, write_measurements
from rlsim.calibration.calibrate import OWN, Merged, calibrate_measurements, compare, merge_tables, profile_name
from rlsim.calibration.cases import CPU_QUICK, case_list, collectives, engine_step
from rlsim.calibration.columns import Columns
from rlsim.calibration.measured_tables import make_tables
from rlsim.calibration.selfcheck import CheckedPoint, SelfCheck, card_of, check_text
from rlsim.calibration.table_writing import write_table
from rlsim.costs.engine.layers import UNCOMPILED_LAUNCHES, elementwise
from rlsim.costs.operators.collectives import Collectives
from rlsim.costs.operators.operators import KERNEL_FLOOR_S, Operators
from rlsim.errors import InputError
from rlsim.tables.files import GEMM, METADATA, MOE, read_columns
from rlsim.tables.operators import ExpertShape, Heads, OperatorTables
from rlsim.tables.profile import load_profile

NODE = ("gpus_per_node", "nvlink_domain_gpus")
FLOPS, BANDWIDTH, FLOOR_S = 2e12, 1e11, 1e-6
CPU = Metadata(
    benchmark_version="abc", cases="custom", date="2026-01-02T03:04:05+00:00", device="Some CPU", device_type="cpu",
    device_count=1, device_memory_bytes=2**34, host_memory_bytes=2**34, host_cpu="Some CPU", torch="2.13.0",
)  # fmt: skip
SOME_GPU = replace(CPU, device="Some GPU", device_type="cuda")


def roofline(flops: float, moved: float) -> float:
    return FLOOR_S + max(flops / FLOPS, moved / BANDWIDTH)


def measurements(folder: Path, wanted: CaseList, cases: Sequence[Case], metadata: Metadata = CPU) -> Path:
    records = []
    for case in cases:
        seconds = roofline(case.flops, case.bytes)
        records.append(Measurement(case, Sample(seconds, 0.9 * seconds, 1.1 * seconds, 7, 0.01)))
    write_measurements(folder / "measurements.json", Measurements(metadata, wanted.models, records))
    return folder / "measurements.json"


@pytest.fixture
def fitted(tmp_path: Path) -> Path:
    wanted = case_list("cpu", True)
    measurements(tmp_path, wanted, wanted.cases)
    calibrate_measurements(tmp_path, tmp_path)
    return tmp_path


def test_tables_give_back_the_measured_times_one_query_beside_several_of_the_same_kernel(fitted: Path) -> None:
    tables = OperatorTables.load("cpu_local", "measured", fitted)
    n, k = 384, 256
    found = tables.gemm_s("bf16", [1, 64], n, k)
    wanted = [roofline(2.0 * m * n * k, 2.0 * (m * k + n * k + m * n)) for m in (1, 64)]
    np.testing.assert_allclose(found.seconds, wanted, rtol=1e-3)
    assert found.measured.all()
    decode = tables.decode_attention_s(Heads(8, 2, 32, "bf16"), 4, 513)
    assert bool(decode.measured)
    assert tables.all_reduce_s(2, 65536, graph=False) is not None
    uneven = tables.moe_s(ExpertShape("bf16", 256, 64, 2, 16, 1, 1), "power_law_1.2", 64)
    assert uneven is not None and bool(uneven.measured)
    tables = OperatorTables.load("cpu_local", "measured", fitted)
    one = tables.verify_attention_s(Heads(8, 2, 32, "bf16"), 1, 4, 513)
    decode = tables.decode_attention_s(Heads(8, 2, 32, "bf16"), 4, 513)
    assert one.seconds == pytest.approx(decode.seconds, rel=1e-9)
    assert bool(one.measured)


def test_an_eager_all_reduce_serves_less_its_launch_and_elementwise_kernels_as_measured(fitted: Path) -> None:
    profile = load_profile(fitted / "cpu_local.yaml")
    profile = profile.model_copy(update={key: profile.gpus_per_node.model_copy(update={"value": 2.0}) for key in NODE})
    tables = OperatorTables.load("cpu_local", "measured", fitted)
    eager = tables.all_reduce_s(2, [4096.0, 2**20], graph=False)
    found = Collectives(profile, tables).all_reduce(2, [4096.0, 2**20])
    wanted = np.maximum(eager.seconds - profile.eager_launch_s.value, KERNEL_FLOOR_S)
    np.testing.assert_allclose(found.seconds, wanted, rtol=1e-9)
    assert found.measured.tolist() == [0.0, 0.0]
    dims = case_list("cpu", True).models["tiny"]
    operators = Operators(load_profile(fitted / "cpu_local.yaml"), OperatorTables.load("cpu_local", "measured", fitted))
    found = elementwise(operators, card_of(dims), np.array([64.0]), 1, dims.width)
    row = 64 * 2.0
    qk, kv = (dims.heads + dims.kv_heads) * dims.head_dim, dims.kv_heads * dims.head_dim
    moved = [*(2 * [2 * row * dims.hidden, 3 * row * dims.hidden]), 3 * row * dims.width, 2 * row * qk, 4 * row * kv]
    assert found.seconds[0] == pytest.approx(sum(roofline(0.0, size) for size in moved), rel=0.02)
    assert found.measured[0] == 1.0


def test_a_replayed_all_reduce_is_that_of_captured_iterations_and_launches_are_shares(tmp_path: Path) -> None:
    wanted = case_list("cuda", True)
    both = [case for mode in ("eager", "graph") for case in collectives((65536, 2**20), 4, mode)]
    cases = [replace(case, bytes=case.bytes * (1 if case.params["mode"] == "graph" else 3)) for case in both]
    measurements(tmp_path, wanted, [*wanted.cases[:400], *cases], SOME_GPU)
    calibrate_measurements(tmp_path, tmp_path, name="mine")
    tables = OperatorTables.load("mine", "measured", tmp_path)
    replayed, eager = (tables.all_reduce_s(4, 2**20, graph=graph) for graph in (True, False))
    assert replayed.measured and replayed.seconds < eager.seconds / 2
    gather = tables.collective_s("all_gather", 4, 2**20)
    assert gather is not None and gather.seconds == pytest.approx(roofline(0, 0.75 * 2**20), rel=1e-3)
    wanted = case_list("cuda", True)
    path = measurements(tmp_path, wanted, wanted.cases, SOME_GPU)
    made = load_profile(calibrate_measurements(path, tmp_path).profile)
    enqueued = read_measurements(path).of("host_enqueue")
    layer = next(record.seconds for record in enqueued if record.case.text("part") == "layer")
    assert made.eager_launch_s.value == pytest.approx(layer / UNCOMPILED_LAUNCHES, rel=1e-3)


def test_a_profile_holds_the_measured_rates_and_circumstances_of_every_case(fitted: Path) -> None:
    profile = load_profile(fitted / "cpu_local.yaml")
    assert profile.bf16_flops.source == "measured"
    assert profile.bf16_flops.value == pytest.approx(FLOPS, rel=0.05)
    assert profile.memory_bandwidth_bytes_per_s.value == pytest.approx(BANDWIDTH, rel=0.05)
    assert profile.fp8_flops.source == "assumed"
    assert profile.eager_launch_s.source == "measured"
    stated = OperatorTables.load("cpu_local", "measured", fitted).metadata
    assert stated["source"]["benchmark_version"] == "abc"
    assert stated["self_check"]["composites"] == len(CPU_QUICK.composites)
    assert 0.9 < stated["efficiency"]["gemm"]["bf16"]["memory_p90"] <= 1.0
    assert stated["efficiency"]["verify_attention"]["bf16"]["memory_median"] > 0.5
    assert (fitted / "cpu_local" / "measured" / "selfcheck.png").stat().st_size > 1000
    assert (fitted / "cpu_local" / "measured" / "selfcheck.txt").read_text().startswith("self-check on Some CPU")
    cells = pq.read_table(fitted / "cpu_local" / "measured" / "cells.parquet").to_pylist()
    assert len(cells) == len(case_list("cpu", True).cases)
    assert all(cell["seconds_median"] > 0 and cell["repeats"] == 7 for cell in cells)


def test_a_shipped_device_keeps_its_datasheet_and_is_compared_with_its_imported_tables(tmp_path: Path) -> None:
    wanted = case_list("cuda", True)
    path = measurements(tmp_path, wanted, wanted.cases, replace(SOME_GPU, device="NVIDIA H200"))
    result = calibrate_measurements(path, tmp_path, merge_over="vllm")
    shipped, made = load_profile("h200_sxm"), load_profile(result.profile)
    assert result.profile.name == "h200_sxm.yaml"
    assert made.bf16_flops == shipped.bf16_flops
    assert made.host_link_bandwidth_bytes_per_s.source == "measured"
    assert made.eager_launch_s == shipped.eager_launch_s, "an engine's own launches are known of this device"
    assert "measured over imported (h200_sxm, vllm) seconds" in result.text
    imported = OperatorTables.load("h200_sxm", "vllm")
    ratios = {ratio.op: ratio for ratio in compare(read_measurements(path), imported)}
    assert ratios["gemm bf16"].cases > 50
    merged = read_columns(tmp_path / "h200_sxm" / "vllm", GEMM)["kernel"].tolist()
    assert sum(kernel.startswith("rlsim: ") for kernel in merged) > 50
    used = OperatorTables.load(str(made.operator_tables), "vllm")
    for queries in (1, 4, 8):
        batch, context = [2.0, 16.0, 100.0], [1500.0, 4097.0, 3000.0]
        found = used.verify_attention_s(Heads(32, 8, 128, "bf16"), queries, batch, context)
        assert found is not None and found.measured.all(), "contexts of all numbers of queries share one axis"
    assert used.verify_attention_s(Heads(32, 8, 128, "bf16"), 0.5, 16, 4100) is None
    assert used.metadata["self_check"]["composites"] > 0
    assert used.host_s("graph_replay") is not None
    assert ratios["gemm bf16"].median > 10, "the made-up device is far slower"


def test_a_partial_run_is_refused_and_the_good_fit_stays(fitted: Path) -> None:
    before = (fitted / "cpu_local.yaml").read_bytes()
    wanted = case_list("cpu", True)
    path = measurements(fitted, wanted, wanted.cases[3:10])
    with pytest.raises(InputError, match="lack"):
        make_tables(read_measurements(path), fitted, "cpu_local")
    assert (fitted / "cpu_local.yaml").read_bytes() == before


def test_missing_files_are_one_message_and_errors_median_and_90th_percentile(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        calibrate_measurements(tmp_path, tmp_path)
    (tmp_path / "measurements.json").write_text("{}")
    with pytest.raises(InputError, match="is no measurement"):
        calibrate_measurements(tmp_path, tmp_path)
    step = engine_step("m", 1, (1, 0, 1), "graph")
    points = tuple(CheckedPoint(step, 1.0, 1.0 + error / 100) for error in (-10, 1, 2, 3, 4, 5, 6, 7, 8, 20))
    check = SelfCheck("d", points)
    assert check.median_abs_error == pytest.approx(0.055)
    assert check.p90_abs_error == pytest.approx(0.10)
    assert "graph: median error 5.5 %, p90 10.0 % over 10 engine steps" in check_text(check)


@pytest.mark.parametrize(("device", "name"), [
    ("NVIDIA H200", "h200_sxm"),
    ("NVIDIA H100 80GB HBM3", "h100_sxm"),
    ("NVIDIA GB200", "gb200_nvl72"),
    ("NVIDIA B200", "b200_sxm"),
    ("NVIDIA A100-SXM4-80GB", "a100_sxm"),
    ("NVIDIA A100-SXM4-40GB", "a100_40gb"),
    ("NVIDIA L40", "l40"),
    ("NVIDIA GH200 480GB", "gh200"),
    ("NVIDIA H20-3e", "h20_3e"),
    ("NVIDIA GB10", "dgx_spark"),
    ("NVIDIA GeForce RTX 4090", "rtx_4090"),
    ("NVIDIA GeForce RTX 3090", "geforce_rtx_3090_local"),
])  # fmt: skip
def test_profile_names_of_known_and_unknown_devices(device: str, name: str) -> None:
    assert profile_name(device, "cuda") == name


def gemm_rows(rows: list[tuple[int, int, int, float]], kernel: str) -> Columns:
    sizes = dict(zip(("n", "k", "m", "latency_s"), map(np.array, zip(*rows, strict=True)), strict=True))
    return {**sizes, "precision": np.full(len(rows), "bf16"), "kernel": np.full(len(rows), kernel)}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    imported, measured = tmp_path / "imported", tmp_path / "measured"
    for folder in (imported, measured):
        folder.mkdir()
        (folder / METADATA).write_text(yaml.safe_dump({"schema": "rlsim.tables/1", "measured": {"device": "mine"}}))
    write_table(imported, GEMM, gemm_rows([(64, 64, m, m * 1e-6) for m in (1, 2, 4)], "theirs"))
    write_table(measured, GEMM, gemm_rows([(64, 64, 2, 5e-6), (64, 64, 3, 7e-6), (96, 64, 2, 9e-6)], "mine"))
    return measured, imported


def test_measured_rows_win_on_the_grid_and_keep_their_origin(folders: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "device" / "vllm"
    assert merge_tables(*folders, out)["gemm"] == Merged(imported=2, replaced=1, added=0, left_out=2)
    rows = read_columns(out, GEMM)
    kernels = dict(zip(rows["m"].tolist(), rows["kernel"].tolist(), strict=True))
    assert kernels == {1: "theirs", 2: f"{OWN}mine", 4: "theirs"}
    tables = OperatorTables.load("device", "vllm", tmp_path)
    found = tables.gemm_s("bf16", [1, 2, 4], 64, 64)
    np.testing.assert_allclose(found.seconds, [1e-6, 5e-6, 4e-6], rtol=1e-3)
    assert tables.metadata["merged"]["measured"] == {"device": "mine"}
    assert tables.metadata["merged"]["rows"]["gemm"]["replaced"] == 1


def test_tables_of_one_side_are_taken_whole_and_none_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        merge_tables(tmp_path / "nowhere", folders[1], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    key = {"precision": "bf16", "hidden": 64, "width": 32, "top_k": 2, "experts": 8, "tensor_parallel": 1}
    row = {**key, "expert_parallel": 1, "distribution": "balanced", "tokens": 4, "kernel": "k", "latency_s": 1e-6}
    write_table(folders[0], MOE, {name: np.array([value]) for name, value in row.items()})
    assert merge_tables(*folders, tmp_path / "out")["moe"] == Merged(imported=0, replaced=0, added=1, left_out=0)


@pytest.mark.parametrize(
    ("name", "merge_over", "told"), [("../up", None, "--name"), (None, "nope", "nope"), (".hidden", None, "--name")]
)
def test_what_is_refused_writes_nothing(name: str | None, merge_over: str | None, told: str, tmp_path: Path) -> None:
    wanted = case_list("cpu", True)
    (tmp_path / "in").mkdir()
    path = measurements(tmp_path / "in", wanted, wanted.cases)
    with pytest.raises(InputError, match=told):
        calibrate_measurements(path, tmp_path / "out", name, merge_over)
    assert [one.name for one in tmp_path.iterdir()] == ["in"]
