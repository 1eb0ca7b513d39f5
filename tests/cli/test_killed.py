"""Long commands that are killed, and processes that die under them: what is finished stays, and the end is the same."""

import os
import random
import signal
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rlsim.errors import InputError
from rlsim.files.journal import Journal, journal_name
from rlsim.files.writing import STAGE_PREFIX, exclusive, staged_folder
from rlsim.loading.scenario import load_scenario
from rlsim.planning import execution, sweep
from rlsim.planning.execution import executor

AXES = ["speculation.draft_length=1:4", "engine.tensor_parallel=1,2", "workload.prompts_per_step=8,16,32"]


@pytest.mark.parametrize(
    "command", ["sweep", *(pytest.param(one, marks=pytest.mark.nightly) for one in ("watch", "project"))]
)
def test_a_killed_command_ends_with_the_bytes_of_an_undisturbed_one(
    command: str, script: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    killed = script("scripts/killed")
    expected, took_s = killed.undisturbed(command, tmp_path)
    assert killed.moment(command, expected, took_s, random.Random(7)) == ""


def test_folders_of_killed_runs_go_and_those_that_are_filled_stay(tmp_path: Path) -> None:
    left, filled = tmp_path / f"{STAGE_PREFIX}left", tmp_path / f"{STAGE_PREFIX}filled"
    for folder in (left, filled):
        folder.mkdir()
        (folder / "half").write_text("half")
    with exclusive(filled), staged_folder(tmp_path) as stage:
        (stage / "whole").write_text("whole")
    assert {path.name for path in tmp_path.iterdir()} == {"whole", filled.name}


def test_a_folder_that_was_made_goes_where_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), staged_folder(tmp_path / "out"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def dies_at_three(task: int) -> int:
    """A task that ends its process, as a system does that is short of memory."""
    if task == 3:
        os._exit(9)
    return task


def test_a_local_process_that_dies_is_an_answer() -> None:
    with pytest.raises(InputError, match=r"ended from outside.*the same command goes on"), executor(2) as run:
        list(run(dies_at_three, range(20)))


def cluster_of(workers: int) -> Any:
    """A Dask cluster on this machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dask.distributed import LocalCluster

        return LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)


def at_first_cells(act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has ``act`` called once the first cells of a sweep are put down; gives the numbers of all cells put down."""
    put_down, add = list[int](), Journal.add

    def added(journal: Journal, rows: Iterable[tuple[int, dict[str, Any]]]) -> None:
        found = list(rows)
        add(journal, found)
        if not put_down:
            act()
        put_down.extend(index for index, _ in found)

    monkeypatch.setattr(Journal, "add", added)
    return put_down


@pytest.mark.filterwarnings("ignore")
def test_a_dask_worker_that_is_killed_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load_scenario("quickstart", {"simulation.replications": 1, "trainer.global_batch_samples": 32})
    sweep(scenario, AXES, out=tmp_path / "local")
    with cluster_of(2) as cluster:
        put_down = at_first_cells(lambda: os.kill(cluster.workers[0].pid, signal.SIGKILL), monkeypatch)
        sweep(scenario, AXES, jobs=cluster.scheduler_address, out=tmp_path / "dask")
    assert len(put_down) == 24  # each once
    for name in ("results.csv", "results.parquet"):
        assert (tmp_path / "local" / name).read_bytes() == (tmp_path / "dask" / name).read_bytes()


@pytest.mark.filterwarnings("ignore")
def test_without_dask_workers_a_sweep_ends_in_time_and_goes_on_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "WATCH_S", 0.2)
    monkeypatch.setattr(execution, "WORKERLESS_S", 2.0)
    scenario = load_scenario("quickstart", {"simulation.replications": 1, "trainer.global_batch_samples": 32})
    sweep(scenario, AXES, out=tmp_path / "local")
    with cluster_of(1) as cluster, monkeypatch.context() as patch:
        put_down = at_first_cells(lambda: cluster.scale(0), patch)
        with pytest.raises(InputError, match=r"no worker has been there for 2 s; what is finished is kept"):
            sweep(scenario, AXES, jobs=cluster.scheduler_address, out=tmp_path / "dask")
    assert put_down and (tmp_path / "dask" / journal_name("sweep")).exists()
    again = at_first_cells(lambda: None, monkeypatch)
    sweep(scenario, AXES, out=tmp_path / "dask")
    assert sorted({*put_down, *again}) == list(range(24)) and not {*put_down} & {*again}
    for name in ("results.csv", "results.parquet"):
        assert (tmp_path / "local" / name).read_bytes() == (tmp_path / "dask" / name).read_bytes()
