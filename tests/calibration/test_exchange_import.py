"""Import of what quantised products and experts over several nodes need: scales of activations and all-to-all."""

from pathlib import Path
from typing import Any

import pytest
from test_aiconfigurator_import import COMMON, Row, gemm_row, good_gemm, imported, package, put

__all__ = ["package"]
SIZES = (1, 16, 256, 4096)


def scale_row(m: int, k: int, dtype: str = "fp8") -> Row:
    """Finding the scales of m x k activations: 2 us and the bytes at 1 TB/s."""
    key = {"kernel_source": "difference", "quant_dtype": dtype, "m": m, "k": k}
    return {**COMMON, **key, "latency": (2e-6 + m * k / 1e12) * 1e3}


def exchange_row(phase: str, tokens: int, gpus: int = 8, dtype: str = "fp8", source: str = "NVLinkTwoSided") -> Row:
    """One phase of an all-to-all: 10 us and the bytes at 0.5 TB/s; one-sided takes half of it."""
    shape = {"hidden_size": 7168, "topk": 8, "num_experts": 256, "moe_ep_size": gpus, "num_tokens": tokens}
    seconds = (1e-5 + tokens * 7168 / 5e11) * (0.5 if source == "NVLinkOneSided" else 1.0)
    return {**COMMON, **shape, "kernel_source": source, "op_name": phase, "moe_dtype": dtype, "latency": seconds * 1e3}


def test_scales_of_activations_are_those_of_fp8_however_short(package: Path, tmp_path: Path) -> None:
    rows = [scale_row(m, k, dtype) for m in SIZES for k in (1024, 8192) for dtype in ("fp8", "int8")]
    put(package, "quantize", "vllm", "computescale", rows)
    report, tables = imported(package, tmp_path)
    assert report.operations["quantize"].rows_kept == 8
    found = tables.dynamic_scale_s(256, 8192)
    assert found is not None and found.measured.all()
    assert found.seconds == pytest.approx(2e-6 + 256 * 8192 / 1e12, rel=1e-3)
    # No datasheet bounds it: 1 ns for 4096 x 8192 values.
    rows = [{**scale_row(m, k), "latency": 1e-6} for m in SIZES for k in (1024, 8192)]
    put(package, "quantize", "vllm", "computescale", rows)
    report, _ = imported(package, tmp_path)
    assert report.operations["quantize"].rejected == {}


def test_files_without_kept_rows_write_nothing_and_whole_older_ones_are_read(package: Path, tmp_path: Path) -> None:
    put(package, "quantize", "vllm", "computescale", [scale_row(m, 1024, "int8") for m in SIZES])
    _, tables = imported(package, tmp_path)
    assert tables.dynamic_scale_s(16, 1024) is None
    assert not (tables.folder / "quantize.npz").exists()
    rows = good_gemm()
    put(package, "gemm", "vllm", "gemm", [{**row, "version": "0.9"} for row in rows])
    report, _ = imported(package, tmp_path)
    assert report.operations["gemm"].rows_in_file == len(rows)
    whole = report.operations["gemm"].rows_kept
    assert whole > 0
    older = [{**row, "version": "0.9", "latency": row["latency"] / 2} for row in rows]
    put(package, "gemm", "vllm", "gemm", [*rows, *older])
    report, tables = imported(package, tmp_path)
    assert report.operations["gemm"].rows_in_file == 2 * len(rows)
    assert report.operations["gemm"].rows_kept == whole
    found = tables.gemm_s("bf16", 64, 1024, 2048)
    assert found.seconds == pytest.approx(gemm_row(64, 1024, 2048)["latency"] * 1e-3, rel=1e-3)


@pytest.mark.parametrize("phase", ["prepare", "dispatch", "combine"])
def test_all_to_all_is_read_by_transport_and_phase(package: Path, tmp_path: Path, phase: str) -> None:
    rows = [exchange_row(f"alltoall_{phase}", tokens, gpus) for tokens in SIZES for gpus in (4, 8)]
    rows += [exchange_row(f"alltoall_{phase}", tokens, 8, source="NVLinkOneSided") for tokens in SIZES]
    rows += [exchange_row("alltoall_other", tokens) for tokens in SIZES]
    rows += [exchange_row(f"alltoall_{phase}", tokens, dtype="int4") for tokens in SIZES]
    put(package, "comm", "vllm", "trtllm_alltoall", rows)
    report, tables = imported(package, tmp_path)
    assert report.operations["expert_exchange"].rows_kept == 12
    two, one = (tables.expert_exchange_s((f"{way}_sided", phase), "fp8", 7168, 8, 256) for way in ("two", "one"))
    assert two is not None and one is not None and two.measured.all() and one.measured.all()
    assert two.seconds == pytest.approx(1e-5 + 256 * 7168 / 5e11, rel=1e-3)
    assert one.seconds == pytest.approx(two.seconds / 2, rel=1e-3)
    others = {"prepare", "dispatch", "combine"} - {phase}
    assert all(tables.expert_exchange_s(("two_sided", other), "fp8", 7168, 8, 256) is None for other in others)


def fast_rows(share: float) -> list[Row]:
    """60 products of which ``share`` are possible, the others a hundred times faster than that."""

    def row(number: int, **changes: Any) -> Row:
        m, n, k = (changes[name] for name in "mnk")
        right = gemm_row(m, n, k)
        return right if number < share * 60 else {**right, "latency": right["latency"] / 100}

    points = [(m, n, 8192) for n in (8192, 16384, 32768) for m in (1024 * step for step in range(1, 21))]
    return [row(number, m=m, n=n, k=k) for number, (m, n, k) in enumerate(points)]


@pytest.mark.parametrize(("share", "kept"), [(0.05, False), (0.5, True)])
def test_an_operation_with_few_rows_left_is_dropped(package: Path, tmp_path: Path, share: float, kept: bool) -> None:
    put(package, "gemm", "vllm", "gemm", fast_rows(share))
    put(package, "quantize", "vllm", "computescale", [scale_row(m, 1024) for m in SIZES])
    report, tables = imported(package, tmp_path)
    gemm = report.operations["gemm"]
    assert gemm.rows_kept < gemm.rows_selected
    assert (gemm.rows_kept >= 0.1 * gemm.rows_selected) == kept
    assert ("too few of the operation's rows are left" in gemm.rejected) != kept
    assert (tables.folder / "gemm.npz").exists() == kept
