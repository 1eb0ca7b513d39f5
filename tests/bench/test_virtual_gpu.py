"""The CUDA paths from end to end on a virtual GPU: every cell runs, nothing waits inside a graph, predictions count
every kernel.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner
from virtual_gpu import MEMORY_BYTES, virtual_gpu

from rlsim.calibration import operators, reference_speculation, runner
from bench.attention import KERNELS
from bench.cases import Cell
from rlsim.calibration.grids import GPU_FULL, GPU_QUICK, cells_of
from bench.journal import Record
from bench.operators import OPERATORS, prepare
from rlsim.calibration.selfcheck import check_file
from bench.timing import Limits, Watch
from bench.workbench import Workbench
from rlsim.cli import app

GPU = torch.device("cuda", 0)
SMALL = replace(
    GPU_QUICK,
    checked_layers=1,
    rows=(1, 16, 64),
    batches=(1, 16, 64),
    queries=(1, 4),
    contexts=(1024, 8192),
    moe_tokens=(16,),
    train_tokens=(1024,),
    copy_bytes=(2**26,),
    composites=((1, 0, 1024), (16, 3, 8192), (64, 0, 1024)),
    max_head_rows=64,
)
"""Axes of few values, among them those of the composites, so that nothing is interpolated; true dimensions."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Record]]:
    """Records of a whole run over ``SMALL``."""
    out = tmp_path_factory.mktemp("gpu")
    with virtual_gpu():
        path = runner.run("cuda", out, True, progress=False, grid=SMALL).path
    yield json.loads(path.read_text())["cells"] + [{"path": str(path)}]


def records(measured: list[Any]) -> list[Record]:
    return measured[:-1]


def folder(measured: list[Any]) -> Path:
    return Path(measured[-1]["path"]).parent


def test_every_operator_of_a_gpu_runs(measured: list[Any]) -> None:
    assert [record["unsupported"] for record in records(measured) if "unsupported" in record] == []
    assert {record["op"] for record in records(measured)} == set(OPERATORS)
    assert {record["params"].get("dtype") for record in records(measured) if record["op"] == "gemm"} == {"bf16", "fp8"}


def test_composites_are_the_sum_of_the_operators_that_predict_them(measured: list[Any]) -> None:
    """Without caches and noise a replayed graph leaves only kernels that no operator counts and interpolation."""
    check = check_file(folder(measured) / runner.MEASUREMENTS)
    errors = {mode: [abs(point.error) for point in check.points if point.mode == mode] for mode in ("graph", "eager")}
    assert {mode: len(found) for mode, found in errors.items()} == {"graph": 3, "eager": 3}
    assert max(errors["graph"]) < 0.02
    assert max(errors["eager"]) < 0.06


def test_the_documented_commands_make_a_calibration_of_it(measured: list[Any], tmp_path: Path) -> None:
    arguments = ["--from-measurements", str(folder(measured)), "--name", "h200_sxm", "--merge-over", "vllm"]
    told = CliRunner().invoke(app, ["calibrate", *arguments, "--out", str(tmp_path)])
    assert told.exit_code == 0, told.output
    assert "measured over imported (h200_sxm, vllm) seconds" in told.output
    scenario = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"
    options = ["--set", f"hardware={tmp_path / 'h200_sxm.yaml'}", "--json"]
    told = CliRunner().invoke(app, ["project", str(scenario), *options])
    assert told.exit_code == 0, told.output
    answer = json.loads(told.stdout)
    assert any("self-check error of the measured tables" in line for line in answer["assumptions"])


def one_record(cell: Cell, bench: Workbench) -> Record:
    return runner._record(cell, bench, Watch(GPU), Limits(max_seconds=0.01))


def cell_of(op: str, **wanted: object) -> Cell:
    cells = cells_of(SMALL, True, True, 1)
    return next(c for c in cells if c.op == op and wanted.items() <= dict(c.params).items())


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_attention_kernel_can_be_captured(kernel: str) -> None:
    with virtual_gpu():
        bench = Workbench(GPU, memory={"kernels 32/8/128": [kernel]})
        for cell in (cell_of("verify_attention", heads=32, kv_heads=8), cell_of("speculative_step", mode="graph")):
            assert "sample" in one_record(cell, bench)


def test_waiting_for_the_device_inside_a_graph_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = reference_speculation.verify

    def waiting(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, count = exact(*arguments)
        count.max().item()
        return tokens, count

    monkeypatch.setattr(reference_speculation, "verify", waiting)
    with virtual_gpu():
        bench = Workbench(GPU)
        assert "capturing" in one_record(cell_of("speculative_step", mode="graph"), bench)["unsupported"]
        assert "sample" in one_record(cell_of("speculative_step", mode="eager"), bench)


def test_a_tensor_left_on_the_host_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    on_device = operators.rope_table
    monkeypatch.setattr(operators, "rope_table", lambda rows, width, _: on_device(rows, width, torch.device("cpu")))
    with virtual_gpu():
        assert "device" in one_record(cell_of("rotary"), Workbench(GPU))["unsupported"]


def test_a_kernel_that_no_operator_counts_shows_in_the_self_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    forward = reference_speculation.decoder_layer
    monkeypatch.setattr(reference_speculation, "decoder_layer", lambda x, *rest: forward(x + 0.0 * x, *rest))
    grid = replace(SMALL, models=("qwen3-8b",), checked_layers=4, rows=(1, 2), composites=((1, 0, 1024),))
    with virtual_gpu():
        path = runner.run("cuda", tmp_path, True, progress=False, grid=grid).path
    point = next(point for point in check_file(path).points if point.mode == "graph")
    assert point.error < -0.01


def test_the_full_grid_fits_into_memory() -> None:
    """The cells of each operator that move most, with what is kept between cells, in 60 % of an H200's memory.

    Without training: under autograd torch tells a fused attention kernel from a naive one only on a real device.
    """
    cells = [cell for cell in cells_of(GPU_FULL, True, True, 1) if cell.op not in runner.NEEDS_GRADIENTS]
    largest = [max((cell for cell in cells if cell.op == op), key=volume) for op in sorted({cell.op for cell in cells})]
    with virtual_gpu() as gpu, torch.inference_mode():
        bench = Workbench(GPU)
        for cell in largest:
            prepare(cell, bench).calls[0]()
    assert 2e10 < gpu.memory.peak_bytes < runner._FULL_MEMORY * MEMORY_BYTES


def volume(cell: Cell) -> float:
    """Declared bytes; of a composite its cached tokens and logits."""
    params = dict(cell.params)
    return cell.bytes or float(int(params.get("batch", 0)) * int(params.get("context", 0))) * (
        1 + int(params.get("draft_length", 0))
    )
