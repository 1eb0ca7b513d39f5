"""A whole run on the CPU: complete, resumable after a kill, never leaving a bad file."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import rlsim
from rlsim.calibration import runner
from bench.cases import make_cell
from bench.collectives import default_ranks
from rlsim.calibration.grids import Grid, cells_of
from bench.timing import Sample
from bench import BenchError

CPU = torch.device("cpu")
CHILD = """
import sys
from pathlib import Path
sys.path[:0] = {paths!r}
from conftest import TINY_GRID
from bench.run import run
if __name__ == "__main__":
    run("cpu", Path({out!r}), True, progress=False, grid=TINY_GRID)
"""


def keys(path: Path) -> list[str]:
    return [record["cell"] for record in json.loads(path.read_text())["cells"]]


def expected(grid: Grid) -> list[str]:
    return [cell.key for cell in cells_of(grid, False, False, default_ranks(CPU))]


def start_child(tmp_path: Path, out: Path) -> subprocess.Popen[bytes]:
    script = tmp_path / "child.py"
    script.write_text(
        CHILD.format(paths=[str(Path(__file__).parent), str(Path(rlsim.__file__).parent.parent)], out=str(out))
    )
    return subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE)


def test_a_killed_run_continues_and_ends_with_the_same_cells(tmp_path: Path, tiny_grid: Grid) -> None:
    out = tmp_path / "out"
    journal = out / runner.JOURNAL
    child = start_child(tmp_path, out)
    while child.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < 10):
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    kept = journal.read_bytes().count(b"\n")
    assert 10 <= kept < len(expected(tiny_grid))
    assert not (out / runner.MEASUREMENTS).exists()

    outcome = runner.run("cpu", out, True, progress=False, grid=tiny_grid)
    assert outcome.measured_now == len(expected(tiny_grid)) - kept
    assert keys(outcome.path) == expected(tiny_grid)
    samples = [record["sample"] for record in json.loads(outcome.path.read_text())["cells"] if "sample" in record]
    assert len(samples) == len(expected(tiny_grid))
    assert all(sample["seconds_median"] > 0 for sample in samples)

    again = runner.run("cpu", out, True, progress=False, grid=tiny_grid)
    assert again.measured_now == 0
    assert keys(again.path) == expected(tiny_grid)


def few_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [make_cell("launch_eager", 1.0, 8.0, {}), make_cell("rms_norm", 1.0, 8.0, {"rows": 2, "width": 8})]
    monkeypatch.setattr(runner, "cells_of", lambda *_: cells)


def test_a_time_that_is_not_finite_never_replaces_a_good_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_cells(monkeypatch)
    good = runner.run("cpu", tmp_path, True, progress=False).path.read_bytes()
    monkeypatch.setattr(runner, "measure", lambda *_: Sample(float("nan"), 0.0, 0.0, 3, 0.0))
    with pytest.raises(BenchError, match="nothing was overwritten"):
        runner.run("cpu", tmp_path, True, resume=False, progress=False)
    assert (tmp_path / runner.MEASUREMENTS).read_bytes() == good


def test_a_disturbed_cell_gets_one_second_look_and_the_calmer_sample_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_cells(monkeypatch)
    samples = [Sample(5.0, 1.0, 9.0, 3, 0.5), Sample(2.0, 2.0, 2.0, 7, 0.01), Sample(1.0, 1.0, 1.0, 7, 0.01)]
    monkeypatch.setattr(runner, "measure", lambda *_: samples.pop(0))
    monkeypatch.setattr(runner.Watch, "mark", lambda _, sample: sample)
    path = runner.run("cpu", tmp_path, True, progress=False).path
    medians = [record["sample"]["seconds_median"] for record in json.loads(path.read_text())["cells"]]
    assert medians == [1.0, 2.0]
    assert samples == []


def test_what_the_device_cannot_do_is_recorded_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [make_cell("gemm", 1.0, 1.0, {"m": 1, "n": 16, "k": 16, "dtype": "fp8"})]
    monkeypatch.setattr(runner, "cells_of", lambda *_: cells)
    outcome = runner.run("cpu", tmp_path, True, progress=False)
    assert len(outcome.unsupported) == 1
    assert "1 cells not supported here: this device has no FP8 matrix product" in runner.outcome_text(outcome)


def test_an_operator_that_this_torch_lacks_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_cells(monkeypatch)

    def missing(*_: object) -> None:
        raise AttributeError("module 'torch' has no attribute '_grouped_mm'")

    monkeypatch.setitem(runner.OPERATORS, "launch_eager", missing)
    outcome = runner.run("cpu", tmp_path, True, progress=False)
    assert outcome.unsupported == ("launch_eager {}: module 'torch' has no attribute '_grouped_mm'",)
    assert len(keys(outcome.path)) == 2


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "cpu:0", ""])
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(BenchError, match="unknown device"):
        runner.open_device(name)


def test_a_missing_gpu_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BenchError, match="no CUDA GPU here; use --device cpu"):
        runner.open_device("cuda")
