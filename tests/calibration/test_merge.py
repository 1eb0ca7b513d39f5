"""Merging: the user's rows win, the others stay, and each row keeps its origin."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from rlsim.calibration.calibrate import OWN, Merged, merge_tables
from rlsim.calibration.columns import Columns
from rlsim.calibration.table_writing import write_table
from rlsim.errors import InputError
from rlsim.tables.files import GEMM, METADATA, MOE, read_columns
from rlsim.tables.operators import OperatorTables


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


def test_tables_that_only_one_side_has_are_taken_whole(folders: tuple[Path, Path], tmp_path: Path) -> None:
    key = {"precision": "bf16", "hidden": 64, "width": 32, "top_k": 2, "experts": 8, "tensor_parallel": 1}
    row = {**key, "expert_parallel": 1, "distribution": "balanced", "tokens": 4, "kernel": "k", "latency_s": 1e-6}
    write_table(folders[0], MOE, {name: np.array([value]) for name, value in row.items()})
    assert merge_tables(*folders, tmp_path / "out")["moe"] == Merged(imported=0, replaced=0, added=1, left_out=0)


def test_a_folder_without_tables_is_refused_and_nothing_written(folders: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        merge_tables(tmp_path / "nowhere", folders[1], tmp_path / "out")
    assert not (tmp_path / "out").exists()
