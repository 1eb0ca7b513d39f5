"""Measured operator tables: look-up exact on measured points, smooth and monotone between, flagged outside."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsim.calibration.table_writing import MANTISSA_BITS, round_mantissa
from rlsim.errors import InputError
from rlsim.files.reading import data_folder
from rlsim.tables import files
from rlsim.tables.files import available
from rlsim.tables.interpolation import build_grid
from rlsim.tables.operators import ExpertShape, Heads, OperatorTables
from tests.costs.builders import faked

SYSTEMS = ("gb200_nvl72", "h100_sxm", "h200_sxm", "b200_sxm")
BF16_FLOPS = {"gb200_nvl72": 2.5e15, "h100_sxm": 989e12, "h200_sxm": 989e12, "b200_sxm": 2.25e15}
HBM_BYTES_PER_S = {"gb200_nvl72": 8e12, "h100_sxm": 3.35e12, "h200_sxm": 4.8e12, "b200_sxm": 8e12}
ROUNDING = 2.0 ** -(MANTISSA_BITS + 1)


@pytest.fixture(scope="module")
def real() -> dict[str, OperatorTables]:
    return {system: OperatorTables.load(system, "vllm") for system in SYSTEMS}


def write(folder: Path, layout: files.TableLayout, rows: list[tuple[object, ...]]) -> None:
    faked(folder, (layout, rows))
    (folder / files.METADATA).write_text("system: toy\n", encoding="utf-8")


def gemm_rows(precision: str = "bf16", only_m: tuple[int, ...] = (1, 16, 256, 4096)) -> list[tuple[object, ...]]:
    return [
        (precision, n, k, m, 2e-6 + m * n * k * 1e-15) for n in (512, 1024, 4096) for k in (512, 2048) for m in only_m
    ]


def test_measured_points_come_back_exactly(tmp_path: Path) -> None:
    write(tmp_path / "toy" / "vllm", files.GEMM, gemm_rows())
    tables = OperatorTables.load("toy", "vllm", tmp_path)
    for _, n, k, m, latency in gemm_rows():
        found = tables.gemm_s("bf16", m, n, k)
        assert found is not None and found.measured.all()
        assert found.seconds == pytest.approx(latency, rel=ROUNDING)


@given(st.floats(1.0, 5.0), st.floats(-6.0, 0.0))
def test_power_laws_are_interpolated_without_error(exponent: float, scale: float) -> None:
    sizes = np.array([1, 8, 100, 5000])
    grid = build_grid([sizes], 10**scale * sizes**exponent, [exponent])
    x = np.array([1.0, 3.3, 77.0, 4000.0, 20000.0])
    np.testing.assert_allclose(grid.lookup(x).seconds, 10**scale * x**exponent, rtol=1e-9)


def test_outside_the_measured_sizes_latency_stays_or_grows_and_holes_are_not_called_measured() -> None:
    grid = build_grid([np.array([4, 8])], np.array([1e-5, 1.5e-5]), [1.0])
    found = grid.lookup([1, 4, 8, 80])
    np.testing.assert_allclose(found.seconds, [1e-5, 1e-5, 1.5e-5, 1.5e-4])
    assert found.measured.tolist() == [False, True, True, False]
    # 2 x 3 grid with the corner (32, 400) missing: it continues along the last size in proportion to the work.
    first, second = np.array([1, 1, 1, 32, 32]), np.array([100, 200, 400, 100, 200])
    grid = build_grid([first, second], np.array([1.0, 2.0, 4.0, 8.0, 16.0]), [1.0, 1.0])
    hole = grid.lookup([32, 32, 32, 20], [400, 200, 300, 390])
    np.testing.assert_allclose(hole.seconds[:2], [32.0, 16.0])
    assert hole.measured.tolist() == [False, True, False, False]


@given(*(st.floats(1.0, 500.0) for _ in range(3)))
def test_one_size_finds_what_many_do(n: float, k: float, m: float) -> None:
    sizes = np.meshgrid([2, 16, 128], [4, 64], [1, 8, 32, 256], indexing="ij")
    columns = [column.ravel()[:-2] for column in sizes]  # with holes
    grid = build_grid(columns, 1e-6 * np.prod(columns, axis=0) ** 0.7, [1.0, 1.0, 1.0])
    for place in ((n, k, m), (float(round(n)), 4.0, m), (16.0, k, 8.0), (16.0, 64.0, 32.0)):
        one, many = grid.lookup(*place), grid.lookup(*place[:2], np.full(3, place[2]))
        assert (one.seconds.item(), one.measured.item()) == (many.seconds[0], many.measured[0])


def test_look_up_is_continuous_unknown_keys_are_told_and_tables_small(real: dict[str, OperatorTables]) -> None:
    nodes = 2.0 ** np.arange(0, 13)
    for step in (1 - 1e-9, 1 + 1e-9):
        at = real["gb200_nvl72"].gemm_s("bf16", nodes, 6000, 4096)
        near = real["gb200_nvl72"].gemm_s("bf16", nodes * step, 6000, 4096)
        np.testing.assert_allclose(near.seconds, at.seconds, rtol=1e-7)
    tables = real["gb200_nvl72"]
    assert tables.gemm_s("int4", 1, 1024, 1024) is None
    assert tables.moe_s(ExpertShape("bf16", 4096, 1536, 8, 128, 8, 1), "balanced", 64) is None
    assert tables.all_reduce_s(16, 1024, graph=True) is None
    assert tables.fitted_efficiency("gemm", "int4") is None
    with pytest.raises(InputError, match=r"no measured tables of system 'b400'.*leave operator_tables out.*gb200"):
        OperatorTables.load("b400", "vllm")
    assert {(system, "vllm") for system in SYSTEMS} <= set(available())
    sizes = [path.stat().st_size for path in data_folder("calibration").glob("tables/*/*/*.npz")]
    assert max(sizes) < 1.5e6
    assert sum(sizes) < 12.5e6


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("precision", ["bf16", "fp8", "fp8_block"])
def test_gemm_never_gets_faster_with_more_rows(real: dict[str, OperatorTables], system: str, precision: str) -> None:
    m = np.unique(np.geomspace(1, 60000, 400).astype(int))
    for n, k in ((9216, 4096), (4096, 12288), (1280, 8192), (151936, 2048), (100, 100)):
        found = real[system].gemm_s(precision, m, n, k)
        assert (np.diff(found.seconds) >= -1e-12 * found.seconds[1:]).all()


@pytest.mark.parametrize("system", SYSTEMS)
def test_attention_never_gets_faster_and_operators_are_credible(real: dict[str, OperatorTables], system: str) -> None:
    sizes = np.unique(np.geomspace(1, 4000, 60).astype(int))
    for kv_precision in ("bf16", "fp8"):
        decode = real[system].decode_attention_s(Heads(8, 1, 128, kv_precision), sizes[:, None], 16 * sizes)
        prefill = real[system].prefill_attention_s(Heads(32, 8, 128, kv_precision), sizes[:, None], 4 * sizes)
        for found in (decode, prefill):
            for axis in (0, 1):
                assert (np.diff(np.log(found.seconds), axis=axis) >= -2 * ROUNDING).all()
    # NVIDIA datasheets: dense BF16 rates; 8192^3 at 40 to 100 % of them.
    found = real[system].gemm_s("bf16", 4096, 8192, 8192)
    assert found is not None and found.measured.all()
    share = 2 * 4096 * 8192 * 8192 / found.seconds / BF16_FLOPS[system]
    assert 0.4 < share < 1.0
    found = real[system].decode_attention_s(Heads(32, 8, 128, "bf16"), 64, 8192)
    cache_bytes = 64 * 8192 * 8 * 128 * 2 * 2
    assert 0.5 < cache_bytes / found.seconds / HBM_BYTES_PER_S[system] < 1.0
    # Tokens of the MoE tables are those of the whole group: 64 x 8 assignments touch all 128 experts on every rank.
    for expert_parallel in (1, 2, 4):
        found = real[system].moe_s(ExpertShape("bf16", 4096, 1536, 8, 128, 1, expert_parallel), "balanced", 64)
        weights = 128 / expert_parallel * 3 * 4096 * 1536 * 2
        assert 0.6 < weights / found.seconds / HBM_BYTES_PER_S[system] < 1.0
    # Of a full tensor of 256 MiB each GPU sends 3/4 in an all-gather over 4: below the link rate, above half of it.
    link = 900e9 if system in ("gb200_nvl72", "b200_sxm") else 450e9
    for op in ("all_gather", "reduce_scatter"):
        found = real[system].collective_s(op, 4, 2.0**28)
        assert 0.4 < 0.75 * 2.0**28 / found.seconds / link < 1.0
    gemm = real[system].fitted_efficiency("gemm", "bf16")
    assert 0.4 < gemm.compute_median < gemm.compute_p90 < 1.0
    assert gemm.memory_median is not None and 0.4 < gemm.memory_median < 1.0
    assert 1e-6 < gemm.floor_s < 1e-5


def test_products_blocks_and_uneven_routing_take_what_they_must(real: dict[str, OperatorTables]) -> None:
    # Seen on one H200: 770-800 TFLOP/s for BF16 8192^3 on random data; the table was measured on another one.
    found = real["h200_sxm"].gemm_s("bf16", 4096, 8192, 8192)
    assert 2 * 4096 * 8192 * 8192 / found.seconds == pytest.approx(785e12, rel=0.15)
    args = ("bf16", 4096, 1536, 8, 128, 1, 8)
    even = real["gb200_nvl72"].moe_s(ExpertShape(*args), "balanced", 16384)
    uneven = real["gb200_nvl72"].moe_s(ExpertShape(*args), "power_law_1.2", 16384)
    assert uneven.seconds > 1.2 * even.seconds
    # From 1 to 128 heads an H100 must read 343 MB more BF16 weights, 235 MB of them the output projection.
    one, all_heads = (real["h100_sxm"].mla_decode_s(heads, "bf16", "bf16", 1, 64) for heads in (1, 128))
    assert all_heads.seconds - one.seconds > 343e6 / HBM_BYTES_PER_S["h100_sxm"]


def test_unmeasured_heads_and_host_bound_rows_are_scaled(tmp_path: Path) -> None:
    rows = [(128, "bf16", 8, 2, context, batch, 1e-5 * batch) for context in (64, 4096) for batch in (1, 64)]
    write(tmp_path / "toy" / "vllm", files.DECODE_ATTENTION, rows)
    tables = OperatorTables.load("toy", "vllm", tmp_path)
    exact = tables.decode_attention_s(Heads(8, 2, 128, "bf16"), 64, 4096)
    doubled = tables.decode_attention_s(Heads(16, 4, 128, "bf16"), 64, 4096)
    assert exact.measured.all() and not doubled.measured.any()
    np.testing.assert_allclose(doubled.seconds, 2 * exact.seconds)
    assert tables.decode_attention_s(Heads(8, 2, 128, "fp8"), 64, 4096) is None
    rows = [(128, "bf16", 8, 2, prompt, batch, 1e-9 * batch * prompt**2) for prompt in (64, 4096) for batch in (1, 8)]
    write(tmp_path / "toy" / "vllm", files.PREFILL_ATTENTION, rows)
    tables = OperatorTables.load("toy", "vllm", tmp_path)
    exact = tables.prefill_attention_s(Heads(8, 2, 128, "bf16"), 8, 4096)
    doubled = tables.prefill_attention_s(Heads(16, 4, 128, "bf16"), 8, 4096)
    wider = tables.prefill_attention_s(Heads(8, 2, 256, "bf16"), 8, 4096)
    assert exact.measured.all() and not doubled.measured.any()
    np.testing.assert_allclose(doubled.seconds, 2 * exact.seconds)
    np.testing.assert_allclose(wider.seconds, 2 * exact.seconds)
    large = [(*row[:4], 1.5 * float(str(row[4]))) for row in gemm_rows("fp8_block", (4096,))]
    write(tmp_path / "toy" / "vllm", files.GEMM, [*gemm_rows("fp8"), *large, ("fp8_block", 512, 512, 16, 2e-6)])
    tables = OperatorTables.load("toy", "vllm", tmp_path)
    block, plain = (tables.gemm_s(precision, [16, 4096], 1024, 2048) for precision in ("fp8_block", "fp8"))
    assert block.measured.tolist() == [False, True]
    np.testing.assert_allclose(block.seconds / plain.seconds, [1.0, 1.5], rtol=1e-3)


def test_broken_files_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "toy" / "vllm"
    write(folder, files.GEMM, gemm_rows())
    (folder / "moe.npz").write_bytes(b"no archive")
    (folder / "gemm.npz").rename(folder / "decode_attention.npz")
    tables = OperatorTables.load("toy", "vllm", tmp_path)
    with pytest.raises(InputError, match=r"moe\.npz of vllm"):
        tables.moe_s(ExpertShape("bf16", 1, 1, 1, 1, 1, 1), "balanced", 1)
    with pytest.raises(InputError, match=r"decode_attention\.npz of vllm.*head_dim"):
        tables.decode_attention_s(Heads(8, 1, 128, "bf16"), 1, 1)
    (folder / files.METADATA).write_text("[1, 2", encoding="utf-8")
    with pytest.raises(InputError, match=r"metadata\.yaml of vllm"):
        OperatorTables.load("toy", "vllm", tmp_path)


@given(st.lists(st.floats(1e-7, 10.0), min_size=1, max_size=50))
def test_rounding_keeps_order_and_is_within_half_a_step(values: list[float]) -> None:
    seconds = np.sort(np.array(values))
    rounded = round_mantissa(seconds)
    assert (np.diff(rounded) >= 0).all()
    np.testing.assert_allclose(rounded, seconds, rtol=ROUNDING * (1 + 1e-6))
