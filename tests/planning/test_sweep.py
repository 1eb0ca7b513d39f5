"""Sweeps: the same numbers as a projection, for any number of jobs, through kills; what cannot run keeps its reason."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rlsim.errors import InputError
from rlsim.loading import dump_scenario, vary
from rlsim.planning import sweep
from rlsim.planning.journal import JOURNAL, Journal
from rlsim.progress import ProgressLine
from rlsim.projection import project
from rlsim.schema.scenario import Scenario

K, A = "speculation.draft_length", "speculation.acceptance_length"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(
    "axis",
    [
        f"{A}=1.5,2.5",
        "engine.tensor_parallel=1,2",
        "trainer.tensor_parallel=1,2",
        "workload.response_tokens.mean_tokens=150,250",
        "speculation.online_training=false,true",
        "lag=0,1",
        "engine.host_iteration_s=0.001,0.004",
        "loop.refit_fixed_s=1,2",
    ],
)
def test_a_cell_is_the_projection_of_its_scenario(tiny: Scenario, axis: str) -> None:
    """Costs shared between cells never change an answer."""
    from rlsim.planning.variation import varied

    result = sweep(tiny, [axis], replications=2)
    key = result.axes[0].name
    for row, value in zip(result.rows, result.axes[0].values, strict=True):
        answer = project(vary(varied(tiny, {key: value}), "simulation.replications=2"))
        step = answer.candidate.step_s
        assert (row["step_s"], row["step_low_s"], row["step_high_s"]) == (step.mean, step.low, step.high)
        assert row["rollout_speedup"] == answer.rollout_speedup.mean
        assert row["end_to_end_speedup_high"] == answer.end_to_end_speedup.high
        assert row["baseline_step_s"] == answer.baseline.step_s.mean
        assert row["generation_memory_bytes"] == answer.candidate.memory[0].total_bytes
        assert row["digest"] == answer.digest


def test_cells_that_cannot_run_stay_with_their_reason(tiny: Scenario) -> None:
    rows = sweep(tiny, ["engine.tensor_parallel=1,3", "trainer.micro_batch_tokens=2048,8000000"]).rows
    assert [row["status"] for row in rows] == ["ok", "infeasible", "invalid", "invalid"]
    assert "does not fit a h100_sxm GPU" in rows[1]["reason"]
    assert rows[2]["reason"].startswith("engine.tensor_parallel")


def test_a_sweep_without_any_cell_that_runs_is_an_error_and_leaves_nothing(tiny: Scenario, tmp_path: Path) -> None:
    for out in (tmp_path / "new", tmp_path):
        with pytest.raises(InputError, match=r"none of the 2 cells can run; the first: .*engine.tensor_parallel"):
            sweep(tiny, ["engine.tensor_parallel=3,5"], out=out)
    assert not list(tmp_path.iterdir())


def test_finished_results_of_another_sweep_are_kept_unless_told_otherwise(tiny: Scenario, tmp_path: Path) -> None:
    sweep(tiny, [f"{A}=2"], replications=1, out=tmp_path)
    kept = contents(tmp_path)
    with pytest.raises(InputError, match=r"holds results.parquet of another sweep.*--overwrite"):
        sweep(tiny, [f"{A}=3"], replications=1, out=tmp_path)
    assert contents(tmp_path) == kept
    sweep(tiny, [f"{A}=2"], replications=1, out=tmp_path)
    assert contents(tmp_path) == kept
    sweep(tiny, [f"{A}=3"], replications=1, out=tmp_path, overwrite=True)
    assert contents(tmp_path) != kept
    (tmp_path / "results.parquet").unlink()
    with pytest.raises(InputError, match=r"results.csv of another sweep"):
        sweep(tiny, [f"{A}=3"], replications=1, out=tmp_path)


def test_whole_numbers_beyond_64_bits_are_written_as_text(tiny: Scenario, tmp_path: Path) -> None:
    sweep(tiny, [f"engine.max_batched_tokens=4096,{10**30}"], replications=1, out=tmp_path)
    table = pq.read_table(tmp_path / "results.parquet").to_pylist()
    assert [row["engine.max_batched_tokens"] for row in table] == ["4096", str(10**30)]


def test_files_hold_the_rows_and_pictures(tiny: Scenario, tmp_path: Path) -> None:
    result = sweep(tiny, [f"{K}=1:3", f"{A}=1,1.5,2"], out=tmp_path, run_steps=100)
    assert set(contents(tmp_path)) == {"results.csv", "results.parquet", "heatmap.png"}
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    table = pq.read_table(tmp_path / "results.parquet").to_pylist()
    assert len(rows) == len(table) == len(result.rows) == 9
    assert [float(row["step_s"]) for row in rows] == pytest.approx([row["step_s"] for row in table], rel=1e-8)
    assert table[0][K] == 1
    assert table[0]["status"] == "ok"
    for row in result.rows:
        assert row["run_s"] == pytest.approx(100 * row["step_s"])
        gpu_seconds = row["num_gpus"] * row["step_s"]
        assert row["cost_per_step_usd"] == pytest.approx(
            gpu_seconds / 3600 * tiny.hardware.price_per_gpu_hour_usd.value
        )
        assert row["run_energy_j"] == pytest.approx(100 * gpu_seconds * tiny.hardware.power_w.value)


@pytest.mark.parametrize(
    ("axes", "picture"),
    [
        (["cluster.num_gpus=8,16", "lag=0,1"], "scaling.png"),
        (["k=0:2", "engine.dispatch=static,round_robin"], "lines.png"),
    ],
)
def test_pictures_follow_the_axes(tiny: Scenario, tmp_path: Path, axes: list[str], picture: str) -> None:
    sweep(tiny, axes, replications=1, out=tmp_path)
    assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


def test_speedup_rises_with_acceptance_and_breaks_even_in_between(tiny: Scenario) -> None:
    from rlsim.planning.breakeven import break_even_lengths

    result = sweep(tiny, ["speculation.draft_length=3", f"{A}=1:4:0.25"])
    speedups = [row["rollout_speedup"] for row in result.rows]
    assert speedups == sorted(speedups)
    length = break_even_lengths(result.done, K)[3]
    at = sweep(tiny, [f"{A}={length}"]).rows[0]["rollout_speedup"]
    assert at == pytest.approx(1.0, abs=0.02)


def test_the_result_does_not_depend_on_the_number_of_jobs(tiny: Scenario, tmp_path: Path) -> None:
    for jobs in (1, 2):
        sweep(tiny, [f"{K}=1:4", f"{A}=1,1.5,2,4"], jobs=jobs, out=tmp_path / str(jobs))
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


# --- interruptions --------------------------------------------------------------------------------------------------

AXES = ("speculation.draft_length=1:6", "speculation.acceptance_length=1:2:0.125")


def command(scenario: Path, out: Path, jobs: int) -> list[str]:
    code = "from rlsim.cli import main; import sys; main(sys.argv[1:])"
    axes = [item for axis in AXES for item in ("--vary", axis)]
    return [sys.executable, "-c", code, "sweep", str(scenario), *axes, "--jobs", str(jobs), "--out", str(out)]


def journal_lines(out: Path) -> int:
    path = out / JOURNAL
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_killed_sweep_ends_with_the_bytes_of_an_undisturbed_one(tiny: Scenario, tmp_path: Path) -> None:
    scenario = tmp_path / "tiny.yaml"
    scenario.write_text(dump_scenario(tiny))
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    seen = 1
    for jobs in (2, 1):
        process = subprocess.Popen(command(scenario, torn, jobs), stdout=subprocess.DEVNULL, start_new_session=True)
        while process.poll() is None and journal_lines(torn) <= seen:
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        if journal_lines(torn) > seen:
            seen = journal_lines(torn)
    assert (torn / JOURNAL).exists() and not (torn / "results.csv").exists()
    (torn / ".rlsim-half").mkdir()
    with (torn / JOURNAL).open("ab") as journal:
        journal.write(b'{"cell": 53, "row": {"torn')
    kept = {json.loads(line)["cell"] for line in (torn / JOURNAL).read_bytes().splitlines()[1:-1]}
    assert kept
    for out in (torn, whole):
        subprocess.run(command(scenario, out, 1), stdout=subprocess.DEVNULL, check=True)
    assert contents(torn) == contents(whole)
    assert len(contents(whole)["results.csv"].splitlines()) == 6 * 9 + 1


def test_finished_cells_are_not_computed_again(tiny: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlsim.planning import sweeping

    whole = sweep(tiny, [f"{K}=1:3"])
    identity = sweeping._identity(tiny, whole.axes, ("simulation.replications=3",), None)
    journal = Journal(tmp_path, identity)
    journal.add([(0, whole.rows[0]), (2, whole.rows[2])])
    journal.close()
    computed: list[dict[str, str]] = []
    original = sweeping.evaluate_assignment
    monkeypatch.setattr(
        sweeping, "evaluate_assignment", lambda base, cell, *rest: computed.append(cell) or original(base, cell, *rest)
    )
    assert sweep(tiny, [f"{K}=1:3"], out=tmp_path).rows == whole.rows
    assert computed == [{K: "2"}]


def test_a_journal_of_another_sweep_is_not_mixed_in(tiny: Scenario, tmp_path: Path) -> None:
    Journal(tmp_path, "another").close()
    with pytest.raises(InputError, match="another, interrupted sweep"):
        sweep(tiny, [f"{K}=1:3"], out=tmp_path)


def test_a_folder_that_is_a_file_is_an_answer(tiny: Scenario, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        sweep(tiny, [f"{K}=1:3"], out=tmp_path / "file")


def test_progress_tells_the_time_left_by_its_own_pace(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine("cells", 100, 20) as line:
        line.advance(20)
        assert line.text(30.0) == "40/100 cells  40%  0:01:30 left"
    assert capsys.readouterr() == ("", "")
