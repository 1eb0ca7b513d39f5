"""The order of a list: ranks follow each other, coarse grids are whole, and every beginning at a rank makes tables."""

from itertools import groupby, product
from pathlib import Path

import pytest

from bench.cases import HANDED_OVER, TRAINING_STEP, Case, CaseList, ModelDims
from bench.measurements import Facts, Measurement, Measurements, Metadata, Sample, read_measurements, write_measurements
from research.assumptions.cases import wider_list
from rlsim.calibration.calibrate import calibrate_measurements
from rlsim.calibration.case_order import Rank, rank_of, thinned, thinned_points
from rlsim.calibration.cases import GPU_FULL, GPU_QUICK, CaseAxes, _cases, cases_of, coarse_axes, gemm
from rlsim.calibration.measured_tables import make_tables
from rlsim.calibration.memory_check import memory_text
from rlsim.calibration.training_cases import trained_parameters, training_step

GPU = Metadata(
    benchmark_version="abc", cases="custom", date="2026-01-02T03:04:05+00:00", device="Some GPU", device_type="cuda",
    device_count=1, device_memory_bytes=2**34, host_memory_bytes=2**34, host_cpu="Some CPU", torch="2.13.0",
)  # fmt: skip
FLOPS, BANDWIDTH, FLOOR_S = 2e14, 1e12, 1e-6


def measured(wanted: CaseList, cases: list[Case]) -> Measurements:
    records = []
    for case in cases:
        seconds = FLOOR_S + max(case.flops / FLOPS, case.bytes / BANDWIDTH)
        facts = Facts(peak_bytes=4 * 10**10) if case.op == TRAINING_STEP else Facts()
        records.append(Measurement(case, Sample(seconds, 0.9 * seconds, 1.1 * seconds, 7, 0.01), facts=facts))
    return Measurements(GPU, wanted.models, records, len(wanted.cases) - len(cases))


def ranks(wanted: CaseList, axes: CaseAxes) -> list[Rank]:
    keys = [{case.key for case in _cases(along, wanted.models, True)} for along in (coarse_axes(axes), axes)]
    basis = {gemm(*axes.peak_gemm, precision).key for precision in ("bf16", "fp8")}
    return [rank_of(case, basis, *keys) for case in wanted.cases]


def test_ranks_follow_each_other_and_processes_of_their_own_come_last_in_theirs() -> None:
    wanted = wider_list("cuda", quick=True)
    found = ranks(wanted, GPU_QUICK)
    assert found == sorted(found)
    assert [rank for rank, _ in groupby(found)] == [rank for rank in Rank if rank is not Rank.FURTHER_MODELS]
    beside = [case for case, rank in zip(wanted.cases, found, strict=True) if rank is Rank.BESIDE]
    assert beside[-1].op == HANDED_OVER
    further = cases_of(GPU_FULL, on_gpu=True).cases[-1]
    assert rank_of(further, (), (), ()) is Rank.FURTHER_MODELS


def test_the_coarse_part_of_the_full_list_is_a_whole_grid_that_a_short_session_measures() -> None:
    wanted = cases_of(GPU_FULL, on_gpu=True)
    first = wanted.cases[:800]
    axes = coarse_axes(GPU_FULL)
    rows = {case.number("m") for case in first if case.op == "gemm" and case.number("n") == 6144}
    assert rows >= set(axes.rows) and len(axes.rows) == 8
    attention = {(case.number("batch"), case.number("queries"), case.number("context")) for case in first
                 if case.op in ("decode_attention", "verify_attention") and case.number("kv_heads") == 8}  # fmt: skip
    grid = {point for point in product(axes.batches, axes.queries, axes.contexts)
            if point[0] * point[2] <= axes.max_cached_tokens}  # fmt: skip
    assert attention >= grid
    assert sum(case.op == TRAINING_STEP for case in first) == 8
    assert {case.op for case in first} >= {"decode_iteration", "speculative_step", "moe", "rejection", "layer_forward"}


def test_tables_are_made_of_every_beginning_at_a_rank_with_a_word_on_what_is_missing(tmp_path: Path) -> None:
    wanted = cases_of(GPU_QUICK, on_gpu=True)
    found = ranks(wanted, GPU_QUICK)
    starts = [count for count in range(1, len(found)) if found[count] != found[count - 1]]
    assert len(starts) == len(set(found)) - 1
    for count in starts:
        made = make_tables(measured(wanted, wanted.cases[:count]), tmp_path / str(count), "mine")
        assert f"{len(wanted.cases) - count} cases are missing" in made.text()
        assert bool(made.check.points) == (Rank.ENGINE_STEPS in found[:count])
        assert len(made.memory.points) == (8 if Rank.TRAINING_STEPS in found[:count] else 0)
    path = tmp_path / "measurements.json"
    write_measurements(path, measured(wanted, wanted.cases[: starts[-1]]))
    assert read_measurements(path).missing == len(wanted.cases) - starts[-1]
    text = calibrate_measurements(path, tmp_path / "out", "mine").text
    assert "training steps on one GPU" in text and "cases are missing" in text
    folder = tmp_path / "out" / "mine" / "measured"
    assert "training: median error of memory" in (folder / "selfcheck.txt").read_text()
    assert "memory:\n    cases: 8\n" in (folder / "metadata.yaml").read_text()


def test_predicted_memory_is_eighteen_bytes_a_parameter_and_what_a_step_works_on(tmp_path: Path) -> None:
    wanted = cases_of(GPU_QUICK, on_gpu=True)
    made = make_tables(measured(wanted, wanted.cases), tmp_path, "mine")
    for point in made.memory.points:
        case = point.case
        parameters = trained_parameters(wanted.models[case.text("model")].with_layers(case.number("layers")))
        logits = 10.0 * case.number("tokens") * wanted.models[case.text("model")].vocabulary
        held = point.predicted_bytes - 18.0 * parameters - logits
        assert 0 < held < 11e9
        assert point.predicted_bytes < 75e9, "fits a GPU of 80 GB"
        assert point.predicted_s > 0
    assert memory_text(made.memory).count("\n") >= len(made.memory.points)


def test_a_training_step_does_three_passes_of_work_and_a_fourth_where_layers_are_recomputed() -> None:
    dims = ModelDims(64, 4, 2, 16, 128, 256, layers=3)
    plain, again = (training_step("m", dims, 32, recompute, micro_batches=1) for recompute in ("none", "full"))
    products = dims.layers * dims.hidden * (dims.qkv_width + 64 + 3 * 128)
    assert plain.flops == pytest.approx(6 * 32 * (products + dims.vocabulary * dims.hidden), rel=0.15)
    assert again.flops - plain.flops == pytest.approx(2 * 32 * products, rel=0.1)
    assert plain.bytes > 30 * trained_parameters(dims)


def test_values_are_thinned_evenly_with_both_ends() -> None:
    assert thinned((1, 2, 4), 8) == (1, 2, 4)
    assert thinned(GPU_FULL.rows, 8) == (1, 8, 32, 96, 256, 768, 2048, 16384)
    points = [(b, c) for b in (1, 2, 4, 8) for c in (10, 20, 30) if b * c <= 120]
    assert thinned_points(points, (2, 2)) == ((1, 10), (1, 30), (8, 10))
