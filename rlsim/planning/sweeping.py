"""A grid of scenarios, cell by cell on equal work: through interruptions, and the same for any number of jobs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlsim.datafiles import shown_path
from rlsim.errors import InputError
from rlsim.loading import scenario_digest
from rlsim.loading_yaml import parse_value
from rlsim.outputs import staged_folder
from rlsim.planning.evaluate import evaluate_assignment
from rlsim.planning.execution import executor, local_jobs
from rlsim.planning.grammar import Axis, grid, parse_axis
from rlsim.planning.journal import Journal
from rlsim.planning.tables import columns_of, parquet_identity, write_csv, write_parquet
from rlsim.progress import ProgressLine
from rlsim.schema.scenario import Scenario

SWEEP_REPLICATIONS = 3
"""Replications of a sweep's cell unless told otherwise: cells share their work, so differences show with few."""
LARGEST_CHUNK = 8
"""Neighbouring cells handed to a process at once; they share most of their costs."""
JOURNAL_FORMAT = 1


@dataclass(frozen=True)
class SweepResult:
    """Rows in the order of the grid: the axes, status (ok, infeasible, invalid), reason, then the numbers."""

    scenario: str
    axes: tuple[Axis, ...]
    rows: tuple[dict[str, Any], ...]
    replications: int

    @property
    def done(self) -> list[dict[str, Any]]:
        """Rows of cells that can run."""
        return [row for row in self.rows if row["status"] == "ok"]

    def as_dict(self) -> dict[str, Any]:
        """The form of ``--json``."""
        return {
            "schema": "rlsim.sweep/1",
            "scenario": self.scenario,
            "axes": {",".join(axis.keys): list(axis.values) for axis in self.axes},
            "replications": self.replications,
            "rows": list(self.rows),
        }


@dataclass(frozen=True)
class _Chunk:
    base: Scenario
    settings: tuple[str, ...]
    cells: tuple[tuple[int, dict[str, str]], ...]
    run_steps: int | None


def sweep(
    scenario: Scenario,
    vary: Sequence[str | Axis],
    *,
    replications: int | None = None,
    run_steps: int | None = None,
    jobs: int | None = 1,
    dask: str | None = None,
    out: Path | None = None,
    overwrite: bool = False,
) -> SweepResult:
    """Evaluate ``scenario`` over the grid of ``vary`` (``key=values`` each, see :func:`parse_axis`).

    replications: per cell, default SWEEP_REPLICATIONS or the scenario's where that is less; all cells draw the same
    work. run_steps: adds time, cost and energy of a run of that many steps. jobs: processes (None: all cores; a script
    that asks for several needs the usual ``if __name__ == "__main__"``). dask: address of a Dask scheduler instead.
    out: folder for results.csv, results.parquet and pictures; an interrupted sweep into the same folder goes on where
    it stopped. overwrite: replace the finished results of another sweep there. Raises InputError for wrong axes, for
    such a folder otherwise, and where no cell can run; nothing is then left behind.
    """
    axes = tuple(axis if isinstance(axis, Axis) else parse_axis(axis) for axis in vary)
    if not axes:
        raise InputError("a sweep needs at least one --vary KEY=VALUES")
    count = replications or min(SWEEP_REPLICATIONS, scenario.simulation.replications)
    fixed = any(key == "simulation.replications" for axis in axes for key in axis.keys)
    settings = () if fixed else (f"simulation.replications={count}",)
    cells = grid(axes)
    if out is None:
        rows = _run(scenario, cells, settings, run_steps, jobs, dask, None)
    else:
        identity = _identity(scenario, axes, settings, run_steps)
        if not overwrite:
            _refuse_other_results(out, identity)
        created = not out.exists()
        with closing(Journal(out, identity)) as journal:
            rows = _run(scenario, cells, settings, run_steps, jobs, dask, journal)
            result = SweepResult(scenario.name, axes, tuple(rows), count)
            if result.done:
                _write(result, out, identity)
            journal.remove()
        if created and not result.done:
            out.rmdir()
    result = SweepResult(scenario.name, axes, tuple(rows), count)
    if not result.done:
        raise InputError(f"none of the {len(rows)} cells can run; the first: {rows[0]['reason']}")
    return result


def _refuse_other_results(out: Path, identity: str) -> None:
    found = [name for name in ("results.parquet", "results.csv") if (out / name).exists()]
    if found and parquet_identity(out / "results.parquet") != identity:
        raise InputError(
            f"{shown_path(out)}: holds {found[0]} of another sweep; choose another --out or replace it with --overwrite"
        )


def _identity(scenario: Scenario, axes: Sequence[Axis], settings: Sequence[str], run_steps: int | None) -> str:
    """What must agree for an interrupted sweep to be continued."""
    from rlsim import __version__

    content = [
        JOURNAL_FORMAT,
        __version__,
        scenario_digest(scenario),
        [[axis.keys, axis.values] for axis in axes],
        list(settings),
        run_steps,
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _run(
    scenario: Scenario,
    cells: Sequence[dict[str, str]],
    settings: tuple[str, ...],
    run_steps: int | None,
    jobs: int | None,
    dask: str | None,
    journal: Journal | None,
) -> list[dict[str, Any]]:
    rows: dict[int, dict[str, Any]] = dict(journal.rows) if journal else {}
    missing = [(index, cell) for index, cell in enumerate(cells) if index not in rows]
    size = _chunk_size(scenario, cells, jobs)
    chunks = [
        _Chunk(scenario, settings, tuple(missing[start : start + size]), run_steps)
        for start in range(0, len(missing), size)
    ]
    with ProgressLine("cells", len(cells), len(rows)) as progress, executor(jobs, dask, len(chunks)) as run:
        for _, finished in run(_evaluate_chunk, chunks):
            if journal is not None:
                journal.add(finished)
            rows.update(finished)
            progress.advance(len(finished))
    return [rows[index] for index in range(len(cells))]


def _chunk_size(scenario: Scenario, cells: Sequence[dict[str, str]], jobs: int | None) -> int:
    """Cells per task; asynchronous cells take seconds each and travel alone."""
    slow = scenario.loop.mode == "async" or any("lag" in cell or "loop.mode" in cell for cell in cells[:1])
    return 1 if slow else max(1, min(LARGEST_CHUNK, len(cells) // (4 * local_jobs(jobs))))


def _evaluate_chunk(chunk: _Chunk) -> list[tuple[int, dict[str, Any]]]:
    return [(index, _row(chunk, cell)) for index, cell in chunk.cells]


def _row(chunk: _Chunk, cell: dict[str, str]) -> dict[str, Any]:
    outcome = evaluate_assignment(chunk.base, cell, chunk.settings)
    row: dict[str, Any] = {key: _typed(value) for key, value in cell.items()}
    row |= {"status": outcome.status, "reason": outcome.reason, **outcome.values}
    if chunk.run_steps is not None and outcome.status == "ok":
        row["run_s"] = row["step_s"] * chunk.run_steps
        row["run_cost_usd"] = row["cost_per_step_usd"] * chunk.run_steps
        row["run_energy_j"] = row["energy_per_step_j"] * chunk.run_steps
    return row


def _typed(text: str) -> Any:
    value = parse_value(text, f"--vary {text}")
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else text


def _write(result: SweepResult, out: Path, identity: str) -> None:
    from rlsim.planning.pictures import draw_sweep

    columns = _columns(result)
    with staged_folder(out) as folder:
        write_csv(result.rows, folder / "results.csv", columns)
        write_parquet(result.rows, folder / "results.parquet", columns, identity)
        draw_sweep(result, folder)


def _columns(result: SweepResult) -> list[str]:
    """Axes first, whatever the first rows lack."""
    return columns_of(sorted(result.rows, key=lambda row: row["status"] != "ok"))
