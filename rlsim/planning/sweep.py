"""A grid of scenarios, cell by cell on equal work: through interruptions, and the same for any number of jobs."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rlsim.errors import InputError, shortened
from rlsim.files.journal import Journal, journal_name, opened_journal
from rlsim.files.progress import ProgressLine
from rlsim.files.reading import installed_version
from rlsim.files.writing import staged_folder
from rlsim.loading.scenario import as_scenario, scenario_digest
from rlsim.loading.variation import Overrides
from rlsim.planning.evaluate import evaluate_means, evaluate_overrides
from rlsim.planning.execution import executor, local_jobs
from rlsim.planning.grammar import Axis, axis_of, grid, parse_axis
from rlsim.projection.assumptions import caveats_of
from rlsim.projection.moves import varied
from rlsim.projection.variant import so_many
from rlsim.projection.verdict import PLAIN_HOST, backing, host_decides, unmeasured_winner
from rlsim.report.format import seconds
from rlsim.results.record import Row
from rlsim.results.sweep import SweepResult, identity_in, write_csv, write_parquet
from rlsim.schema.base import changed
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.scenario import Scenario

SWEEP_REPLICATIONS = 3
"""Replications of a sweep's cell by default: cells share their work, so differences show with few."""
CHUNK, LARGEST_CHUNK = 8, 128
"""Most neighbouring cells handed to one process, and to each of several: they share most of their costs, which another
one would find anew."""
# Part of what a journal is recognised by: raise it when rows change, and older journals are not continued.
JOURNAL_FORMAT = 1
COMMAND = "sweep"
JOURNAL = journal_name(COMMAND)
CSV, PARQUET = "results.csv", "results.parquet"
_Cell = tuple[int, Overrides]


class _Chunk(Struct, frozen=True):
    base: Scenario
    settings: Overrides
    cells: tuple[_Cell, ...]
    run_steps: int | None


def sweep(
    scenario: Scenario | Path | str,
    vary: Sequence[str | Axis] | Mapping[str, Any],
    *,
    replications: int | None = None,
    run_steps: int | None = None,
    jobs: int | str | None = 1,
    out: Path | None = None,
    overwrite: bool = False,
) -> SweepResult:
    """Evaluate ``scenario`` over the grid of ``vary`` (``key=values`` each, see :func:`parse_axis`, or a mapping of
    keys to their values: ``{"k": [0, 2, 4]}``, a text being read as ``1:8`` is on the command line).

    replications: per cell, default SWEEP_REPLICATIONS or the scenario's where that is less; all cells draw the same
    work. run_steps: adds time, cost and energy of a run of that many steps. jobs: processes (None: all cores), or the
    address of a running Dask scheduler. out: folder for results.csv, results.parquet and pictures; an interrupted sweep
    into the same folder goes on where it stopped, and finished results there are replaced only with ``overwrite``.
    Raises InputError for wrong axes, where ``out`` holds results, and where no cell can run, which writes nothing.
    """
    asked = [axis_of(*one) for one in vary.items()] if isinstance(vary, Mapping) else vary
    scenario, axes = as_scenario(scenario), tuple(one if isinstance(one, Axis) else parse_axis(one) for one in asked)
    if not axes:
        raise InputError("a sweep needs at least one --vary KEY=VALUES")
    cells, count = grid(axes), replications or min(SWEEP_REPLICATIONS, scenario.replications)
    fixed = any(key == "simulation.replications" for axis in axes for key in axis.keys)
    base = _Chunk(scenario, {} if fixed else so_many(scenario, count), tuple(enumerate(cells)), run_steps)
    written = [[axis.keys, axis.values] for axis in axes]  # what must agree for a sweep to be continued
    content = (JOURNAL_FORMAT, installed_version(), scenario_digest(scenario), written, base.settings, run_steps)
    identity = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    # Results with a journal beside them are of a sweep that was interrupted while it replaced them: it may go on.
    finished = out is not None and not overwrite and (out / CSV).exists() and not (out / JOURNAL).exists()
    if out is not None and finished and identity_in(out / PARQUET) != identity:
        raise InputError(f"{out}: holds the results of another sweep; choose another --out or give --overwrite")
    with opened_journal(out, identity, COMMAND) as journal:
        rows = _run(base, jobs, journal)
        result = SweepResult(
            scenario=scenario.name,
            axes={",".join(axis.keys): axis.values for axis in axes},
            replications=count,
            rows=tuple(rows),
            batch=(scenario.workload.prompts_per_step, scenario.workload.generations_per_prompt),
            own_replications=scenario.simulation.replications or 0,
            caveats=caveats_of(scenario),
        )
        if not result.done:
            raise InputError(f"none of the {len(rows)} cells can run; the first, {_failure_text(cells[0], rows[0])}")
        result = changed(result, verdict=_verdict(result, base))
        if out is not None:
            _write(result, out, identity)
    return result


def _verdict(result: SweepResult, whole: _Chunk) -> tuple[str, ...]:
    """What the fastest cell, by the time of a sample, must be read with: its device, and what decides the order."""
    cells = dict(whole.cells)
    done = sorted(
        ((row["step_s"] / result.samples(row), place) for place, row in enumerate(result.rows) if row["status"] == "ok")
    )
    if not done or not any(key.startswith("hardware") for key in cells[done[0][1]]):
        return unmeasured_winner(whole.base.hardware) if done else ()
    devices, best = _devices(whole.base, {place: cells[place] for _, place in done}), done[0][1]

    def words(place: int) -> str:
        cell = " ".join(f"{key}={value}" for key, value in cells[place].items())
        return f"{cell}, {seconds(result.rows[place]['step_s'])}"

    measured = next((words(place) for _, place in done if not backing(devices[place])), "")
    remark = unmeasured_winner(devices[best], measured)
    host = devices[best].host_cpu
    rival = next((place for _, place in done if devices[place].host_cpu != host), None)
    if rival is None:
        return remark
    pair = (best, rival)

    def plain_s(place: int) -> float | None:
        settings = {**whole.settings, **cells[pair[place]], "hardware.host_cpu": PLAIN_HOST}
        numbers = evaluate_means(whole.base, settings).numbers
        return None if numbers is None else numbers.step_s.mean

    steps_s = (result.rows[best]["step_s"], result.rows[rival]["step_s"])
    of_both = (devices[best], devices[rival])
    return (*remark, *host_decides(of_both, steps_s, (words(best), words(rival)), plain_s))


def _devices(base: Scenario, cells: Mapping[int, Overrides]) -> dict[int, HardwareProfile]:
    """The device of each cell by its place; each choice of one is resolved once."""
    found, out = dict[str, HardwareProfile](), dict[int, HardwareProfile]()
    for place, cell in cells.items():
        chosen: Overrides = {key: value for key, value in cell.items() if key.startswith("hardware")}
        name = json.dumps(chosen)
        if name not in found:
            found[name] = varied(base, chosen).hardware
        out[place] = found[name]
    return out


def _failure_text(cell: Overrides, row: Row) -> str:
    """``key=value, ...: reason`` of a cell that cannot run."""
    words = (f"{key}={shortened(str(value))}" for key, value in cell.items())
    return f"{', '.join(words)}: {row['reason']}"


def _run(whole: _Chunk, jobs: int | str | None, journal: Journal | None) -> list[Row]:
    rows: dict[int, Row] = dict(journal.rows) if journal else {}
    missing = [(index, cell) for index, cell in whole.cells if index not in rows]
    chunks = [replace(whole, cells=cells) for cells in _dealt(whole, missing, local_jobs(jobs))]
    with ProgressLine("cells", len(whole.cells), len(rows)) as progress, executor(jobs, len(chunks)) as run:
        for _, finished in run(_evaluate_chunk, chunks):
            if journal is not None:
                journal.add(finished)
            rows.update(finished)
            progress.advance(len(finished))
    return [rows[index] for index, _ in whole.cells]


def _dealt(whole: _Chunk, cells: Sequence[_Cell], jobs: int) -> Iterator[tuple[_Cell, ...]]:
    """Neighbouring ``cells`` together: for each of ``jobs`` processes some of a part of its own, in turn, which it gets
    where all are equally fast; ever fewer, so that they end at much the same time."""
    # Asynchronous cells take as long as many others and travel alone.
    slow = whole.base.loop.mode == "async" or bool({"lag", "loop.mode"} & whole.cells[0][1].keys())
    most = 1 if slow else CHUNK if jobs == 1 else LARGEST_CHUNK
    parts = [cells[len(cells) * job // jobs : len(cells) * (job + 1) // jobs] for job in range(jobs)]
    while any(parts):
        sizes = [max(1, min(most, len(part) // 2)) for part in parts]
        yield from (tuple(part[:size]) for part, size in zip(parts, sizes, strict=True) if part)
        parts = [part[size:] for part, size in zip(parts, sizes, strict=True)]


def _evaluate_chunk(chunk: _Chunk) -> list[tuple[int, Row]]:
    return [(index, _cell_row(chunk, cell)) for index, cell in chunk.cells]


def _cell_row(chunk: _Chunk, cell: Overrides) -> Row:
    """The row of results.csv of a cell: its keys, its status, and its numbers where it has any."""
    result = evaluate_overrides(chunk.base, {**chunk.settings, **cell})
    # type() and not isinstance(), for which true is an integer: it is written as JSON writes it.
    row: Row = {key: value if type(value) in (int, float, str) else json.dumps(value) for key, value in cell.items()}
    row |= {"status": result.status, "reason": result.reason}
    numbers = result.numbers
    if numbers is not None:
        row |= numbers.row()
    if numbers is not None and chunk.run_steps is not None:
        row["run_s"] = numbers.step_s.mean * chunk.run_steps
        row["run_cost_usd"] = numbers.cost_per_step_usd * chunk.run_steps
        row["run_energy_j"] = numbers.energy_per_step_j * chunk.run_steps
    return row


def _write(result: SweepResult, out: Path, identity: str) -> None:
    # Imported here: pictures need matplotlib, which no cell does.
    from rlsim.report.figures.grids import sweep_figures
    from rlsim.report.figures.style import save_picture

    frame = result.to_frame()
    with staged_folder(out) as folder:
        write_csv(frame, folder / CSV)
        write_parquet(frame, folder / PARQUET, identity, result.scenario)
        for name, figure in sweep_figures(result).items():
            save_picture(figure, folder / f"{name}.png")
