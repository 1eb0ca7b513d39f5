"""Import of recurrent layers and sparse attention from a synthetic aisimulate, as a folder and as a wheel."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from rlsim.calibration.aisimulate import import_tables, list_systems
from rlsim.errors import InputError
from rlsim.tables import files
from rlsim.tables.files import METADATA
from rlsim.tables.operators import DeltaRule, OperatorTables, SparseShape

COMMON = {"framework": "SGLang", "version": "1.0", "device": "Toy GPU"}
BATCHES, PROMPTS = (1, 2, 4, 8, 16, 32, 64), (64, 128, 256, 512, 1024)


def rule_row(phase: str, kernel: str, batch: int, tokens: int, latency_ms: float) -> dict[str, Any]:
    shape = {"d_model": 4096, "d_conv": 4, "num_k_heads": 2, "head_k_dim": 128, "num_v_heads": 8, "head_v_dim": 128}
    size = {"batch_size": batch, "seq_len": tokens, "num_tokens": batch * tokens, "model_name": "toy"}
    return {**COMMON, "op_name": "gdn", "kernel_source": kernel, "phase": phase, **shape, **size, "latency": latency_ms}


def sparse_row(op: str, batch: int, step: int, latency_ms: float, **changes: Any) -> dict[str, Any]:
    types = {"mla_dtype": "bfloat16", "kv_cache_dtype": "fp8", "gemm_type": "fp8_block"}
    row = {"model": "zai-org/GLM-5", "architecture": "GlmMoeDsaForCausalLM", "kernel_source": "toy", **types}
    return {
        **COMMON, "op_name": op, **row, "num_heads": 8, "batch_size": batch, "isl": 1, "tp_size": 8, "step": step,
        "latency": latency_ms, **changes,
    }  # fmt: skip


@pytest.fixture
def package(tmp_path: Path) -> Path:
    systems = tmp_path / "unpacked" / "aisimulate_core" / "systems"
    rule = systems / "data" / "toy" / "linear_attention" / "sglang" / "1.0"
    sparse = systems / "data" / "toy" / "sparse_attention" / "sglang" / "1.0"
    rule.mkdir(parents=True)
    sparse.mkdir(parents=True)
    rows = [rule_row("generation", "fused_recurrent_packed", b, 1, 0.004 + 0.001 * b) for b in BATCHES]
    rows += [rule_row("generation", "causal_conv1d_update", b, 1, 0.002) for b in BATCHES]
    rows += [rule_row("context", kernel, b, p, base + each * b * p)
             for kernel, base, each in (("chunk_gated_delta_rule", 0.02, 1e-5), ("causal_conv1d_fn", 0.002, 1e-6))
             for b in BATCHES for p in PROMPTS]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), rule / "gdn_perf.parquet")
    cached = [sparse_row(op, b, step, 0.05 + 1e-4 * b + 1e-8 * b * step * of)
              for op, of in (("dsa_generation_module", 2.0), ("dsa_generation_module_skip_indexer", 1.0))
              for b in BATCHES for step in (2, 1024, 2048, 4096, 8192, 5000)]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(cached), sparse / "dsa_generation_module_perf.parquet")
    gpu = {"mem_bw": 4e12, "bfloat16_tc_flops": 1e15, "fp8_tc_flops": 2e15, "sm_version": 90}
    (systems / "toy.yaml").write_text(yaml.safe_dump({"gpu": gpu, "node": {"intra_node_bw": 4e11}}))
    slots = {"defaults": {"sglang": {"current": "1.0"}}}
    (systems / "query_versions.yaml").write_text(yaml.safe_dump(slots))
    (tmp_path / "unpacked" / "aisimulate-0.13.dist-info").mkdir()
    return tmp_path / "unpacked"


@pytest.fixture
def wheel(package: Path, tmp_path: Path) -> Path:
    path = tmp_path / "toy.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(package.rglob("*")):
            archive.write(file, file.relative_to(package).as_posix() + ("/" if file.is_dir() else ""))
    return path


def test_folder_and_wheel_give_the_same_tables(package: Path, wheel: Path, tmp_path: Path) -> None:
    for source, name in ((package, "a"), (wheel, "b")):
        assert list_systems(source) == [("toy", "sglang", "1.0")]
        import_tables("toy", "sglang", tmp_path / name, source)
    one, other = (sorted((tmp_path / name).rglob("*.*")) for name in ("a", "b"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]
    assert len(one) == 6
    folder = tmp_path / "toy" / "sglang"
    folder.mkdir(parents=True)
    before = "schema: rlsim.tables/1\nsource: {package: aiconfigurator-core}\n"
    (folder / METADATA).write_text(before)
    import_tables("toy", "sglang", tmp_path, package)
    assert (folder / METADATA).read_text() == before
    assert yaml.safe_load((folder / "aisimulate.yaml").read_text())["source"]["license"] == "Apache-2.0"


def test_rows_come_back_in_seconds_blocks_with_and_without_an_indexer_told_apart(package: Path, tmp_path: Path) -> None:
    import_tables("toy", "sglang", tmp_path, package)
    tables = OperatorTables.load("toy", "sglang", tmp_path)
    assert tables.metadata["source"]["package"] == "aisimulate"
    assert tables.metadata["source"]["version"] == "0.13"
    step = tables.delta_rule_s(files.DELTA_RULE_DECODE, DeltaRule(128, 128, 2, 8), np.array([16.0]))
    assert step is not None and step.measured[0]
    assert step.seconds[0] == pytest.approx(20e-6, rel=1e-3)
    wider = tables.delta_rule_s(files.DELTA_RULE_DECODE, DeltaRule(128, 128, 4, 16), np.array([16.0]))
    assert wider is not None and not wider.measured[0]
    assert wider.seconds[0] == pytest.approx(40e-6, rel=1e-3)
    shift = tables.at(files.CONVOLUTION_DECODE, (4,), 2 * 2 * 128 + 8 * 128, np.array([4.0]))
    assert shift is not None and shift.seconds[0] == pytest.approx(2e-6, rel=1e-3)
    batch, context = np.array([64.0]), np.array([8192.0])
    ranking, reusing = (tables.sparse_decode_s(SparseShape(6144, indexer, 8, "fp8_block", "fp8"), batch, context)
                        for indexer in (True, False))  # fmt: skip
    assert (ranking.seconds - reusing.seconds)[0] == pytest.approx(1e-11 * 64 * 8192, rel=0.05)
    assert tables.sparse_reach_tokens(SparseShape(6144, True, 8, "fp8_block", "fp8")) == 64 * 8192
    plain = tables.sparse_decode_s(SparseShape(6144, True, 8, "fp8", "fp8"), batch, context)
    assert plain is not None and not plain.measured[0]
    assert tables.sparse_decode_s(SparseShape(4096, True, 8, "fp8_block", "fp8"), batch, context) is None


@pytest.mark.parametrize(("system", "backend", "message"),
    [("nowhere", "sglang", "no system 'nowhere'"), ("toy", "trtllm", "declares no version of 'trtllm'")])  # fmt: skip
def test_what_is_lacking_is_one_line(package: Path, tmp_path: Path, system: str, backend: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        import_tables(system, backend, tmp_path / "out", package)
    assert "\n" not in str(raised.value) and not (tmp_path / "out").exists()


def test_other_files_are_no_package(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_text("not a wheel")
    for source in (tmp_path / "x.whl", tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match="aisimulate"):
            list_systems(source)
