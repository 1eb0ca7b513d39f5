"""Sweeps: the same numbers as a projection, for any number of jobs, through kills; what cannot run keeps its reason."""

import csv
import math
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rlsim.errors import InputError
from rlsim.files.journal import Journal, journal_name
from rlsim.loading.scenario import dump_scenario, vary
from rlsim.loading.variation import Overrides
from rlsim.planning import execution, sweep
from rlsim.planning.execution import executor
from rlsim.planning.grammar import grid, parse_axis
from rlsim.projection.project import project
from rlsim.report.figures import grids as pictures
from rlsim.report.page.report import report
from rlsim.report.text.planning import render_sweep, split_of
from rlsim.results.sweep import break_even_lengths, identity_in
from rlsim.schema.scenario import Scenario

JOURNAL = journal_name("sweep")
K, A = "speculation.draft_length", "speculation.acceptance_length"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("axis", [
    f"{A}=1.5,2.5", "engine.tensor_parallel=1,2", "trainer.tensor_parallel=1,2",
    "workload.response_tokens.mean_tokens=150,250", "speculation.online_training=false,true", "lag=0,1",
    "engine.host_iteration_s=0.001,0.004", "loop.refit_fixed_s=1,2",
])  # fmt: skip
def test_a_cell_is_the_projection_of_its_scenario(tiny: Scenario, axis: str) -> None:
    """Costs shared between cells never change an answer."""
    result = sweep(tiny, [axis], replications=2)
    for row, cell in zip(result.rows, grid([parse_axis(axis)]), strict=True):
        # A lag on shared GPUs takes the best of some splits, which the row names.
        split = {"generation_share": row["generation_gpus"] / row["num_gpus"]} if cell.get("lag") else {}
        answer = project(vary(vary(tiny, {**cell, **split}), "simulation.replications=2"))
        step = answer.candidate.step_s
        assert (row["step_s"], row["step_low_s"], row["step_high_s"]) == (step.mean, step.low, step.high)
        speedup = answer.rollout_speedup
        found = [row[f"rollout_speedup{end}"] for end in ("", "_low", "_high")]
        assert found == [speedup.mean, speedup.low, speedup.high]
        assert row["end_to_end_speedup_high"] == answer.end_to_end_speedup.high
        assert row["baseline_step_s"] == answer.baseline.step_s.mean
        assert row["generation_memory_bytes"] == answer.candidate.memory["generation"].total_bytes
        assert row["digest"] == answer.digest


def test_cells_that_cannot_run_keep_their_reason_and_alone_leave_nothing(tiny: Scenario, tmp_path: Path) -> None:
    rows = sweep(tiny, ["engine.tensor_parallel=1,3", "engine.gpu_memory_utilization=0.8,0.02"]).rows
    assert [row["status"] for row in rows] == ["ok", "infeasible", "invalid", "invalid"]
    assert "does not fit into engine.gpu_memory_utilization=0.02 of a h100_sxm GPU" in rows[1]["reason"]
    assert rows[2]["reason"].startswith("engine.tensor_parallel")
    out = tmp_path / "new" / "folder"
    with pytest.raises(InputError, match=r"none of the 2 cells can run; the first, engine\.tensor_parallel=3: eng"):
        sweep(tiny, ["engine.tensor_parallel=3,5"], out=out)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").write_text("")
    with pytest.raises(InputError, match="none of the 2 cells can run"):
        sweep(tiny, ["engine.tensor_parallel=3,5"], out=tmp_path)
    assert contents(tmp_path) == {"mine": b""}


def test_what_is_done_stays_without_results(tiny: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    module = sys.modules["rlsim.planning.sweep"]
    monkeypatch.setattr(module, "write_parquet", full)
    with pytest.raises(InputError, match="No space left"):
        sweep(tiny, [f"{K}=1:2"], out=tmp_path)
    assert journal_lines(tmp_path) == 3


def test_files_hold_rows_and_pictures_and_speedups_break_even(tiny: Scenario, tmp_path: Path) -> None:
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
    result = sweep(tiny, ["speculation.draft_length=3", f"{A}=1:4:0.25"])
    speedups = [row["rollout_speedup"] for row in result.rows]
    assert speedups == sorted(speedups)
    length = break_even_lengths(result.done, K)[3]
    at = sweep(tiny, [f"{A}={length}"]).rows[0]["rollout_speedup"]
    assert at == pytest.approx(1.0, abs=0.02)
    result = sweep(tiny, ["workload.prompts_per_step=4,8,16", "trainer.global_batch_samples=16"], replications=1)
    lines = render_sweep(result).splitlines()
    first = lines[lines.index("Fastest 3 by time per consumed sample  mean [90 % interval]") + 2].split()
    best = min(result.done, key=lambda row: row["step_s"] / row["workload.prompts_per_step"])
    assert int(first[0]) == best["workload.prompts_per_step"] == 16
    assert float(first[2]) == pytest.approx(1e3 * best["step_s"] / (16 * 4), abs=0.01)
    assert "USD at 3.00 per GPU and hour" in "\n".join(lines)


@pytest.mark.parametrize(("axes", "picture"), [
    (["cluster.num_gpus=8,16", "lag=0,1"], "scaling.png"),
    (["k=0:2", "engine.dispatch=static,round_robin"], "lines.png"),
])  # fmt: skip
def test_pictures_follow_the_axes(tiny: Scenario, tmp_path: Path, axes: list[str], picture: str) -> None:
    sweep(tiny, axes, replications=1, out=tmp_path)
    assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


def test_shares_are_shown_with_the_split_that_was_run(tiny: Scenario, tmp_path: Path) -> None:
    result = sweep(tiny, ["lag=0,1", "generation_share=0.25,0.3,0.5"], replications=1, out=tmp_path / "o")
    lines = [line.split() for line in render_sweep(result).splitlines()]
    head = next(line for line in lines if "generation_share" in line)
    place = head.index("generate+train")
    shown = {tuple(line[:2]): line[place] for line in lines if line and line[0] in ("0", "1")}
    assert shown[("1", "0.25")] == shown[("1", "0.3")] == "2+6" and shown[("1", "0.5")] == "4+4"
    assert shown[("0", "0.25")] == "8"
    assert "8 shared" in render_sweep(result)
    page = report(tmp_path / "o")
    assert "generation_share 0.3 (2+6 GPUs)" in page and "<td>4+4</td>" in page
    assert "generate+train" not in render_sweep(sweep(tiny, ["k=2"], replications=1))


def test_a_picture_names_scenario_and_slice(tiny: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = sweep(tiny, [f"{K}=1:2", f"{A}=1,1.5,2", "cluster.num_gpus=8,16"], replications=1)
    heat, scaling = pictures.sweep_figures(result).values()
    assert heat.get_suptitle() == "quickstart; cluster.num_gpus = 8 (1 of 2 values)"
    assert scaling.get_suptitle() == f"quickstart; {A} = 1 (1 of 3 values)"
    titles = [axes.get_title("left") for axes in scaling.axes]
    assert titles == ["Step time (s)", "End to end, speed-up by speculation"]
    cells = {text.get_position() for axes in heat.axes for text in axes.texts}
    assert "break-even" not in {text.get_text() for axes in heat.axes for text in axes.texts}
    assert len(cells) == 6


def test_a_script_without_a_main_guard_may_use_processes(tiny: Scenario, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(dump_scenario(tiny))
    script = tmp_path / "plain.py"
    script.write_text(
        f"import rlsim\nscenario = rlsim.load_scenario({str(tmp_path / 'tiny.yaml')!r})\n"
        "result = rlsim.sweep(scenario, ['k=0:3'], jobs=2)\nprint(len(result.done))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "4\n", "")


def journal_lines(out: Path) -> int:
    path = out / JOURNAL
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_finished_cells_are_not_computed_again(tiny: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["rlsim.planning.sweep"]
    computed: list[Overrides] = []
    original = module.evaluate_overrides
    monkeypatch.setattr(module, "evaluate_overrides", lambda base, o: computed.append(o) or original(base, o))  # type: ignore[func-returns-value]
    whole = sweep(tiny, [f"{K}=1:3"], out=tmp_path / "whole")
    identity = identity_in(tmp_path / "whole" / "results.parquet")
    computed.clear()
    journal = Journal(tmp_path / "again", identity, "sweep")
    journal.add([(0, whole.rows[0]), (2, whole.rows[2])])
    journal.close()
    assert sweep(tiny, [f"{K}=1:3"], out=tmp_path / "again").rows == whole.rows
    assert [overrides[K] for overrides in computed] == [2]


def process_of(task: int) -> tuple[int, int]:
    return os.getpid(), math.factorial(task)


@pytest.mark.parametrize(("worth_s", "others"), [(1e9, False), (-1.0, True)])
def test_tasks_move_to_processes_where_worth_it(monkeypatch: pytest.MonkeyPatch, worth_s: float, others: bool) -> None:
    monkeypatch.setattr(execution, "WORTH_S", worth_s)
    monkeypatch.setattr(execution, "local_jobs", lambda jobs: 2)
    with executor(None, most=12) as run:
        found = dict(run(process_of, range(12)))
    assert {index: value for index, (_, value) in found.items()} == {i: math.factorial(i) for i in range(12)}
    assert any(process != os.getpid() for process, _ in found.values()) == others


def test_a_stated_number_is_taken_and_few_cores_plan_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with executor(2, most=4) as run:
        assert all(process != os.getpid() for _, (process, _) in run(process_of, range(4)))
    monkeypatch.setattr(execution, "local_jobs", lambda jobs: 2)
    with executor(None) as run:
        assert all(process == os.getpid() for _, (process, _) in run(process_of, range(4)))


def test_an_address_without_a_scheduler_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from dask import distributed

    def refuse(*args: object, **named: object) -> None:
        raise OSError("nobody there")

    monkeypatch.setattr(distributed, "Client", refuse)
    with (
        pytest.raises(InputError, match=r"--dask tcp://127.0.0.1:9: no scheduler answers there"),
        executor("tcp://127.0.0.1:9"),
    ):
        pass


@pytest.mark.parametrize(("reference", "shown"), [(0, "8+8"), (8, "8 shared")])
def test_a_pool_of_the_reference_is_no_part_of_a_split(reference: int, shown: str) -> None:
    row = {"num_gpus": 16, "generation_gpus": 8, "training_gpus": 8, "reference_gpus": reference}
    assert split_of(row) == shown
