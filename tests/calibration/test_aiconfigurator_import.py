"""Import of measured tables from a synthetic package: what is wrong is rejected with its reason, the rest is kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsim.calibration import package_tables, table_checks
from rlsim.calibration.aiconfigurator import ImportReport, import_tables, list_systems
from rlsim.calibration.columns import lines_along
from rlsim.errors import InputError
from rlsim.tables import files
from rlsim.tables.operators import ExpertShape, Heads, OperatorTables

PEAK, FP8_PEAK, HBM = 1e15, 2e15, 4e12
COMMON = {"framework": "VLLM", "version": "1.0", "device": "Toy GPU"}
GEMM_M = (1, 2, 4, 8, 16, 32, 33, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

Row = dict[str, Any]


def gemm_row(m: int, n: int, k: int, dtype: str = "bfloat16", **changes: Any) -> Row:
    """A product at 70 % of the toy datasheet behind a launch of 3 us, in milliseconds."""
    width, peak = (2, PEAK) if dtype == "bfloat16" else (1, FP8_PEAK)
    ideal_s = max(2 * m * n * k / peak, n * k * width / HBM)
    row = {"kernel_source": f"{dtype}_kernel", "gemm_dtype": dtype, "m": m, "n": n, "k": k}
    return {**COMMON, **row, "latency": (3e-6 + ideal_s / 0.7) * 1e3, **changes}


def moe_row(tokens: int, dtype: str, distribution: str, expert_parallel: int = 1, slower: float = 1.0) -> Row:
    """64 experts of 4096 x 1536, top-8, at 80 % of the bandwidth of all weights, or of the rate."""
    matrices = 3 * 4096 * 1536
    peak, width = (PEAK, 2) if dtype == "bfloat16" else (FP8_PEAK, 1)
    compute_s = 2 * matrices * tokens * 8 / peak / expert_parallel
    memory_s = min(64, tokens * 8) * matrices * width / HBM / expert_parallel
    uneven = 1.0 if distribution == "balanced" else 1.0 if tokens < 128 else 1.4
    shape = {"hidden_size": 4096, "inter_size": 1536, "topk": 8, "num_experts": 64, "moe_tp_size": 1}
    key = {"kernel_source": f"{dtype}_experts", "moe_dtype": dtype, "moe_ep_size": expert_parallel}
    latency = (1e-5 + (compute_s + memory_s) / 0.8 * uneven) * 1e3 * slower
    return {**COMMON, **shape, **key, "num_tokens": tokens, "distribution": distribution, "latency": latency}


def all_reduce_row(mode: str, gpus: int, elements: int) -> Row:
    launch_us = 25.0 if mode == "eager" else 5.0
    key = {"backend": f"vllm_{mode}", "allreduce_dtype": "bfloat16", "num_gpus": gpus, "message_size": elements}
    return {**COMMON, "kernel_source": "custom", **key, "latency": launch_us * 1e-3 + elements * 2 / 2e11 * 1e3}


def attention_row(batch: int, step: int, **changes: Any) -> Row:
    key = {"num_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "beam_width": 1, "window_size": 0}
    types = {"attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "kernel_source": "flash"}
    cache_s = batch * (step + 1) * 2 * 128 * 2 * 2 / HBM
    sizes = {"batch_size": batch, "isl": 1, "step": step, "latency": (1e-5 + cache_s / 0.8) * 1e3}
    return {**COMMON, **key, **types, **sizes, **changes}


def without(row: Row, name: str) -> Row:
    return {key: value for key, value in row.items() if key != name}


def put(package: Path, family: str, engine: str, name: str, rows: list[Row], version: str = "1.0") -> None:
    folder = package / "systems" / "data" / "toy" / family / engine / version
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{**row, "version": version} if row["version"] == "1.0" else row for row in rows]
    pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}_perf.parquet")


def good_gemm() -> list[Row]:
    shapes = [(n, k) for n in (32, 1024, 4096) for k in (32, 2048)]
    return [gemm_row(m, n, k, dtype) for dtype in ("bfloat16", "fp8") for n, k in shapes for m in GEMM_M]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "aiconfigurator_core"
    (root / "systems" / "data").mkdir(parents=True)
    (tmp_path / "aiconfigurator_core-9.9.0.dist-info").mkdir()
    gpu = {"mem_bw": HBM, "bfloat16_tc_flops": PEAK, "fp8_tc_flops": FP8_PEAK, "sm_version": 90}
    sheet = {"gpu": gpu, "node": {"intra_node_bw": 4.5e11}}
    (root / "systems" / "toy.yaml").write_text(yaml.safe_dump(sheet), encoding="utf-8")
    versions = {"defaults": {"vllm": {"current": "1.0"}}, "overrides": {}}
    (root / "systems" / "query_versions.yaml").write_text(yaml.safe_dump(versions), encoding="utf-8")
    put(root, "gemm", "vllm", "gemm", good_gemm())
    return root


def imported(package: Path, tmp_path: Path) -> tuple[ImportReport, OperatorTables]:
    report = import_tables("toy", "vllm", tmp_path / "out", package)
    return report, OperatorTables.load("toy", "vllm", tmp_path / "out")


def with_rows(package: Path, replaced: list[Row]) -> None:
    """The good products with some replaced, matched by dtype, m, n and k."""
    names = ("gemm_dtype", "m", "n", "k")
    rows = {tuple(row[name] for name in names): row for row in good_gemm()}
    rows.update({tuple(row[name] for name in names): row for row in replaced})
    put(package, "gemm", "vllm", "gemm", list(rows.values()))


def test_good_rows_are_kept_and_thinned_to_four_steps_per_doubling(package: Path, tmp_path: Path) -> None:
    report, tables = imported(package, tmp_path)
    gemm = report.operations["gemm"]
    assert gemm.rejected == {}
    assert gemm.rows_in_file == len(good_gemm())
    assert gemm.rows_kept == gemm.rows_selected == len(good_gemm()) * (len(GEMM_M) - 1) // len(GEMM_M)
    found = tables.gemm_s("bf16", 64, 1024, 2048)
    assert found is not None and found.measured.all()
    assert found.seconds == pytest.approx(gemm_row(64, 1024, 2048)["latency"] * 1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("reason", "bad"),
    [
        ("latency is not a positive finite number", gemm_row(64, 1024, 2048, latency=float("nan"))),
        ("latency is not a positive finite number", gemm_row(64, 1024, 2048, latency=-1.0)),
        ("faster than the datasheet allows", gemm_row(4096, 4096, 2048, latency=2 * 4096**2 * 2048 / PEAK * 1e3 * 0.9)),
        ("slower than larger m", gemm_row(1, 4096, 2048, "fp8", latency=0.05)),
        ("slower than the work grows with m", gemm_row(16384, 4096, 2048, latency=0.6)),
    ],
)
def test_one_bad_row_is_rejected_with_its_reason(package: Path, tmp_path: Path, reason: str, bad: Row) -> None:
    with_rows(package, [bad])
    report, tables = imported(package, tmp_path)
    assert report.operations["gemm"].rejected == {reason: 1}
    precision = {"bfloat16": "bf16", "fp8": "fp8"}[bad["gemm_dtype"]]
    found = tables.gemm_s(precision, bad["m"], bad["n"], bad["k"])
    assert found is not None and not found.measured.any()
    right = gemm_row(bad["m"], bad["n"], bad["k"], bad["gemm_dtype"])["latency"] * 1e-3
    assert found.seconds == pytest.approx(right, rel=0.25)


def test_host_bound_plateau_is_rejected_and_the_rows_above_it_kept(package: Path, tmp_path: Path) -> None:
    plain_rows = [row for row in good_gemm() if row["gemm_dtype"] == "fp8"]
    block = [{**row, "gemm_dtype": "fp8_block", "latency": max(row["latency"] * 1.1, 0.1)} for row in plain_rows]
    put(package, "gemm", "vllm", "gemm", good_gemm() + block)
    report, tables = imported(package, tmp_path)
    above = [row for row in block if row["latency"] > 0.12]
    assert [(row["m"], row["n"]) for row in above] == [(16384, 4096)]
    assert report.operations["gemm"].rejected == {"host-bound plateau": len(block) // len(GEMM_M) * 15 - 1}
    small, plain = tables.gemm_s("fp8_block", 16, 4096, 2048), tables.gemm_s("fp8", 16, 4096, 2048)
    assert small is not None and plain is not None and not small.measured
    assert small.seconds == plain.seconds


def moe_rows(dtypes: dict[str, float], balanced_of: dict[int, float] | None = None) -> list[Row]:
    """EP1 and EP2; balanced_of: factors on the balanced rows of either."""
    factors = {("balanced", ep): factor for ep, factor in (balanced_of or {}).items()}
    return [
        moe_row(tokens, dtype, distribution, ep, slower * factors.get((distribution, ep), 1.0))
        for dtype, slower in dtypes.items()
        for distribution in ("balanced", "power_law_1.01")
        for ep in (1, 2)
        for tokens in (1, 8, 64, 128, 512, 2048)
    ]


def test_precision_slower_than_bf16_is_rejected(package: Path, tmp_path: Path) -> None:
    put(package, "moe", "vllm", "moe", moe_rows({"bfloat16": 1.0, "fp8": 6.0, "fp8_block": 1.2}))
    report, tables = imported(package, tmp_path)
    assert report.operations["moe"].rejected == {"kernel slower than bf16 of the same shape": 24}
    assert tables.moe_s(ExpertShape("fp8", 4096, 1536, 8, 64, 1, 1), "balanced", 64) is None
    assert tables.moe_s(ExpertShape("fp8_block", 4096, 1536, 8, 64, 1, 1), "balanced", 64) is not None


def test_balanced_rows_that_cannot_have_read_all_weights_are_rejected(package: Path, tmp_path: Path) -> None:
    put(package, "moe", "vllm", "moe", moe_rows({"bfloat16": 1.0}, balanced_of={1: 0.5}))
    report, tables = imported(package, tmp_path)
    assert report.operations["moe"].rejected == {"faster than the datasheet allows: not routed as labelled": 12}
    assert tables.moe_s(ExpertShape("bf16", 4096, 1536, 8, 64, 1, 2), "balanced", 64) is None
    assert tables.moe_s(ExpertShape("bf16", 4096, 1536, 8, 64, 1, 2), "power_law_1.01", 64) is not None


def test_balanced_rows_slower_than_uneven_ones_are_rejected(package: Path, tmp_path: Path) -> None:
    put(package, "moe", "vllm", "moe", moe_rows({"bfloat16": 1.0}, balanced_of={2: 1.8}))
    report, _ = imported(package, tmp_path)
    assert report.operations["moe"].rejected == {"balanced, yet slower than a power law": 6}


def test_units_and_sizes_of_the_package_are_converted(package: Path, tmp_path: Path) -> None:
    sizes = [128 * 2**power for power in range(12)]
    reductions = [all_reduce_row(mode, 2, size) for mode in ("eager", "graph") for size in sizes]
    put(package, "comm", "vllm", "custom_allreduce", reductions)
    contexts = (1, 1023, 2047, 4095)
    windowed = attention_row(1, 1023, window_size=128)
    attention = [attention_row(batch, step) for batch in (1, 8, 64) for step in contexts]
    put(package, "attention", "vllm", "generation_attention", [*attention, windowed])
    _, tables = imported(package, tmp_path)
    reduced = tables.all_reduce_s(2, 2 * sizes[-1], graph=True)
    assert reduced is not None and reduced.measured.all()
    assert reduced.seconds == pytest.approx(5e-6 + 2 * sizes[-1] / 2e11, rel=1e-3)
    decode = tables.decode_attention_s(Heads(8, 2, 128, "bf16"), 64, 1024)
    assert decode is not None and decode.measured.all()
    assert decode.seconds == pytest.approx(attention_row(64, 1023)["latency"] * 1e-3, rel=1e-3)


def test_attention_files_of_older_collections_state_no_window(package: Path, tmp_path: Path) -> None:
    rows = [attention_row(batch, step) for batch in (1, 8, 64) for step in (1, 1023, 2047, 4095)]
    put(package, "attention", "vllm", "generation_attention", [without(row, "window_size") for row in rows])
    report, tables = imported(package, tmp_path)
    assert report.operations["decode_attention"].rows_kept == 12
    assert tables.decode_attention_s(Heads(8, 2, 128, "bf16"), 8, 1024) is not None


def test_all_reduce_without_a_mode_was_replayed_from_a_graph(package: Path, tmp_path: Path) -> None:
    rows = [without(all_reduce_row("graph", 2, 128 * 2**power), "backend") for power in range(12)]
    put(package, "comm", "vllm", "custom_allreduce", rows)
    _, tables = imported(package, tmp_path)
    found = tables.all_reduce_s(2, 256, graph=True)
    assert found is not None and found.seconds == pytest.approx(5e-6, rel=0.01)
    assert tables.all_reduce_s(2, 256, graph=False) is None


def mla_row(heads: int, batch: int, step: int, isl: int, latency: float) -> Row:
    key = {"mla_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "kernel_source": "flash", "tp_size": 128 // heads}
    return {**COMMON, **key, "num_heads": heads, "batch_size": batch, "isl": isl, "step": step, "latency": latency}


def test_latent_attention_of_engines_without_module_is_the_kernel_alone(package: Path, tmp_path: Path) -> None:
    decode = [
        mla_row(h, b, c - 1, 1, 0.01 + b * c * 4e-7) for h in (16, 128) for b in (1, 8) for c in (128, 1024, 8192)
    ]
    prompts = [mla_row(h, 1, 0, p, 0.01 + h * p * p * 1e-9) for h in (16, 128) for p in (128, 1024)]
    put(package, "mla", "vllm", "generation_mla", decode)
    put(package, "mla", "vllm", "context_mla", prompts)
    report, tables = imported(package, tmp_path)
    assert {"mla_decode", "mla_prefill"} <= set(report.missing)
    assert tables.mla_decode_s(16, "bf16", "bf16", 8, 1024) is None
    found = tables.at(files.MLA_DECODE_KERNEL, ("bf16",), 16, 1024, 8)
    assert found is not None and found.measured.all()
    assert found.seconds == pytest.approx((0.01 + 8 * 1024 * 4e-7) * 1e-3, rel=1e-3)
    prompt = tables.at(files.MLA_PREFILL_KERNEL, ("bf16",), 128, 1024, 1)
    assert prompt is not None and prompt.seconds == pytest.approx((0.01 + 128 * 1024**2 * 1e-9) * 1e-3, rel=1e-3)


def test_release_candidates_count_and_builds_of_a_branch_do_not(package: Path, tmp_path: Path) -> None:
    versions = {"defaults": {"vllm": {"current": "1.1rc20"}}, "overrides": {}}
    (package / "systems" / "query_versions.yaml").write_text(yaml.safe_dump(versions), encoding="utf-8")
    for version in ("1.1rc3", "1.1rc20", "1.1rc23", "1.1", "1.0.post2", "1.1rc20.dev5"):
        put(package, "gemm", "vllm", "gemm", good_gemm(), version)
    assert list_systems(package) == [("toy", "vllm", "1.1rc20")]
    report, _ = imported(package, tmp_path)
    assert report.operations["gemm"].engine_version == "1.1rc20"


def test_outlier_of_attention_is_rejected_by_both_its_neighbourhoods(package: Path, tmp_path: Path) -> None:
    rows = [attention_row(batch, 2**power - 1) for batch in (1, 2, 4, 8, 16, 32) for power in range(8, 17)]
    # 1.6 times too slow, yet below the next larger sizes and within what a doubling of the work allows.
    spike = next(row for row in rows if row["batch_size"] == 8 and row["step"] == 2**14 - 1)
    spike["latency"] *= 1.6
    put(package, "attention", "vllm", "generation_attention", rows)
    report, _ = imported(package, tmp_path)
    assert sum(report.operations["decode_attention"].rejected.values()) == 1


def test_older_engine_version_serves_what_the_current_one_lacks(package: Path, tmp_path: Path) -> None:
    rows = [all_reduce_row(mode, 2, 128) for mode in ("eager", "graph")]
    put(package, "comm", "vllm", "custom_allreduce", rows, "0.9")
    put(package, "comm", "vllm", "custom_allreduce", rows, "2.0")
    report, tables = imported(package, tmp_path)
    assert report.operations["all_reduce"].engine_version == "0.9"
    assert report.operations["gemm"].engine_version == "1.0"
    assert "moe" in report.missing
    assert tables.metadata["operations"]["all_reduce"]["engine_version"] == "0.9"


def test_circumstances_tell_origin_and_licence(package: Path, tmp_path: Path) -> None:
    meta = package / "systems" / "data" / "toy" / "gemm" / "vllm" / "1.0" / "collection_meta.yaml"
    meta.write_text("collected_at: '2026-08-31'\n", encoding="utf-8")
    report, tables = imported(package, tmp_path)
    told = tables.metadata
    assert told["device"] == "Toy GPU" and told["engine_version"] == "1.0"
    assert told["source"]["version"] == "9.9.0" and told["source"]["license"] == "Apache-2.0"
    assert told["collected_until"] == "2026-08-31"
    assert str(tmp_path) not in (tables.folder / "metadata.yaml").read_text(encoding="utf-8")
    assert "gemm: 180 of 180 rows kept" in report.text()
    fitted = tables.fitted_efficiency("gemm", "bf16")
    assert fitted is not None and fitted.floor_s == pytest.approx(3e-6, rel=0.1)


def test_unknown_system_and_engine_are_told_what_is_there(package: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no system 'gb300'; known: toy"):
        import_tables("gb300", "vllm", tmp_path / "out", package)
    with pytest.raises(InputError, match=r"no version of 'tgi'; known: vllm"):
        import_tables("toy", "tgi", tmp_path / "out", package)
    assert not (tmp_path / "out").exists()


def test_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(package_tables, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'rlsim\[aic\]'"):
        list_systems()
    with pytest.raises(InputError, match="holds no systems/data"):
        import_tables("toy", "vllm", tmp_path / "out", tmp_path)


def test_missing_column_is_named(package: Path, tmp_path: Path) -> None:
    put(package, "gemm", "vllm", "gemm", [without(row, "k") for row in good_gemm()])
    with pytest.raises(InputError, match=r"gemm_perf\.parquet of aiconfigurator-core: has no column 'k'"):
        import_tables("toy", "vllm", tmp_path / "out", package)


@settings(max_examples=30)
@given(st.lists(st.floats(-2.0, 2.0), min_size=12, max_size=12))
def test_smoothing_is_monotone_in_both_sizes_and_keeps_what_is_monotone(noise: list[float]) -> None:
    batch, context = np.repeat([1, 2, 4], 4), np.tile([10, 20, 40, 80], 3)
    table = {"batch": batch, "context": context, "head": np.zeros(12), "latency_s": np.exp(np.array(noise))}
    smooth = table_checks.monotone(table, ("batch", "context"), ("head",))
    for size, other in (("batch", "context"), ("context", "batch")):
        values = lines_along({**table, "latency_s": smooth}, size, (other,)).values
        assert (np.diff(np.log(values), axis=1) >= -1e-9).all()
    again = table_checks.monotone({**table, "latency_s": smooth}, ("batch", "context"), ("head",))
    np.testing.assert_allclose(again, smooth, rtol=1e-9)


def test_smoothing_of_one_size_is_the_geometric_mean_of_what_it_joins() -> None:
    table = {"m": np.array([1, 2, 4, 8]), "key": np.zeros(4), "latency_s": np.array([1.0, 4.0, 2.0, 8.0])}
    np.testing.assert_allclose(table_checks.monotone(table, ("m",), ("key",)), [1.0, 8**0.5, 8**0.5, 8.0])
