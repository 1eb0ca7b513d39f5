"""The run itself: every cell once, journalled as it is measured, written as a whole only when all are there."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from rlsim.calibration.cell import Cell
from rlsim.calibration.circumstances import clocks, describe, fingerprint
from rlsim.calibration.collectives import default_ranks, measure_collectives
from rlsim.calibration.grids import Grid, cells_of, grid_for
from rlsim.calibration.journal import Journal, Record, write_whole
from rlsim.calibration.operators import OPERATORS, prepare, supports_fp8
from rlsim.calibration.operators_training import NEEDS_GRADIENTS
from rlsim.calibration.progress import Progress
from rlsim.calibration.timing import Call, Limits, Mode, Sample, Watch, measure, measure_host
from rlsim.calibration.workbench import UnsupportedError, Workbench
from rlsim.errors import InputError

JOURNAL, MEASUREMENTS = "journal.jsonl", "measurements.json"
SCHEMA = "rlsim.measurements/1"
_LEAST_S, _MOST_S = 0.02, 1.0
_SPREAD = {True: 0.03, False: 0.01}
_DISTURBED_SPREAD = 0.1
"""Spread from which a sample counts as disturbed by something else on the machine; such cells get a second look at
the end.
"""
_SECOND_LOOK_S, _SECOND_LOOK_SHARE = 1.0, 0.25
"""Most seconds of one second look, and of all together as a share of the run's budget."""
_BUSY_SHARE = 0.5
"""Load average per core from which a CPU counts as busy with something else."""
_FULL_MEMORY = 0.6
"""Share of device memory held by torch from which its caches are emptied between cells."""


@dataclass(frozen=True)
class Outcome:
    """Where the measurements lie, how many cells were measured now and in all, which the device could not run, and
    whether a CPU had other work when the run began."""

    path: Path
    measured_now: int
    cells: int
    unsupported: tuple[str, ...]
    throttled: int
    seconds: float
    busy: str = ""


def open_device(name: str) -> torch.device:
    """Device ``cpu``, ``cuda`` or ``cuda:N``. InputError where it is unknown or this machine lacks it."""
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not (kind == "cuda" and index.isdigit())):
        raise InputError(f"unknown device '{name}'; use cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "device 'cuda': torch finds no CUDA GPU here; use --device cpu, or run on a machine with a GPU"
        )
    if index and int(index) >= torch.cuda.device_count():
        raise InputError(f"device '{name}': this machine has {torch.cuda.device_count()} GPUs")
    device = torch.device(kind, int(index or 0)) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    return device


def run(
    device_name: str,
    out: Path,
    quick: bool,
    resume: bool = True,
    progress: bool | None = None,
    grid: Grid | None = None,
) -> Outcome:
    """Measure all cells of a grid on a device into the folder ``out``.

    With ``resume`` the cells journalled there before under equal circumstances are kept. ``measurements.json`` is
    replaced only by a complete run with finite times. progress: bar on stderr; None means on a terminal. Raises
    InputError for everything that a user can mend.
    """
    device = open_device(device_name)
    grid_name = "custom" if grid else "quick" if quick else "full"
    chosen = grid or grid_for(device.type, quick)
    ranks = default_ranks(device)
    cells = cells_of(chosen, device.type == "cuda", supports_fp8(device), ranks)
    circumstances = describe(device, grid_name)
    journal = _open_journal(out, fingerprint(circumstances), resume)
    started = time.monotonic()
    before = len([cell for cell in cells if cell.key in journal.records])
    bar = Progress(len(cells), before, progress)
    try:
        bench, watch = Workbench(device), Watch(device)
        _measure_missing(cells, journal, bench, watch, chosen, quick, bar)
        _look_again(cells, journal, bench, watch, chosen, quick)
    finally:
        bar.close()
    records = [journal.records[cell.key] for cell in cells]
    _write(out / MEASUREMENTS, circumstances, device, records)
    outcome = _outcome(out, records, len(cells) - before, time.monotonic() - started)
    return replace(outcome, busy=_busy(circumstances) if outcome.measured_now else "")


def _busy(circumstances: dict[str, Any]) -> str:
    """Warning where a CPU was working for others when the run began."""
    load, cores = circumstances["load_at_start"], circumstances["host_cores"]
    if circumstances["device_type"] == "cuda" or load <= _BUSY_SHARE * cores:
        return ""
    return f"the machine was busy at the start (load {load} on {cores} cores): times may be too long"


def _open_journal(out: Path, print_: str, resume: bool) -> Journal:
    path = out / JOURNAL
    if not resume:
        with contextlib.suppress(FileNotFoundError):
            try:
                path.unlink()
            except OSError as error:
                if isinstance(error, FileNotFoundError):
                    raise
                raise InputError(f"cannot write {path}: {error.strerror}") from error
    return Journal(path, print_)


def _measure_missing(
    cells: Sequence[Cell], journal: Journal, bench: Workbench, watch: Watch, grid: Grid, quick: bool, bar: Progress
) -> None:
    missing = [cell for cell in cells if cell.key not in journal.records]
    single = [cell for cell in missing if cell.op in OPERATORS]
    deadline = time.monotonic() + grid.budget_s * len(missing) / len(cells)
    for cell, record in _collective_records([cell for cell in missing if cell.op not in OPERATORS], bench.device):
        _keep(journal, cell, record)
        bar.advance(cell.op)
    for position, cell in enumerate(single):
        share = (deadline - time.monotonic()) / (len(single) - position)
        limits = Limits(target_spread=_SPREAD[quick], max_seconds=min(_MOST_S, max(_LEAST_S, share)))
        _keep(journal, cell, _record(cell, bench, watch, limits))
        bar.advance(cell.op)


def _look_again(
    cells: Sequence[Cell], journal: Journal, bench: Workbench, watch: Watch, grid: Grid, quick: bool
) -> None:
    """Measure disturbed cells once more; the sample with the smaller spread stays."""
    limits = Limits(target_spread=_SPREAD[quick], max_seconds=_SECOND_LOOK_S)
    deadline = time.monotonic() + _SECOND_LOOK_SHARE * grid.budget_s
    for cell in cells:
        first = journal.records[cell.key]
        if time.monotonic() > deadline:
            return
        if cell.op not in OPERATORS or "second_look" in first or not _disturbed(first):
            continue
        second = _record(cell, bench, watch, limits)
        better = second if "sample" in second and second["sample"]["spread"] < first["sample"]["spread"] else first
        kept: Record = {key: better[key] for key in ("sample", "facts") if key in better}
        _keep(journal, cell, {**kept, "second_look": True})


def _disturbed(record: Record) -> bool:
    sample = record.get("sample")
    return sample is not None and (sample["throttled"] or sample["spread"] > _DISTURBED_SPREAD)


def _keep(journal: Journal, cell: Cell, record: Record) -> None:
    journal.append(
        {
            "cell": cell.key,
            "op": cell.op,
            "params": dict(cell.params),
            "flops": cell.flops,
            "bytes": cell.bytes,
            **record,
        }
    )


def _record(cell: Cell, bench: Workbench, watch: Watch, limits: Limits) -> Record:
    """Sample and facts of one cell, or why the device cannot run it."""
    try:
        with torch.inference_mode(cell.op not in NEEDS_GRADIENTS):
            record = _timed_record(cell, bench, watch, limits)
        _trim(bench.device)
        return record
    except UnsupportedError as error:
        return {"unsupported": str(error)}
    except torch.OutOfMemoryError:
        _free(bench)
        return {"unsupported": "not enough device memory"}
    except (RuntimeError, TypeError, AttributeError, ValueError) as error:  # torch differs by version and device
        _require_alive(bench.device, cell, error)
        return {"unsupported": (str(error) or type(error).__name__).splitlines()[0]}


def _timed_record(cell: Cell, bench: Workbench, watch: Watch, limits: Limits) -> Record:
    prepared = prepare(cell, bench)
    timed = measure_host if prepared.host_only else _timer(prepared.mode)
    sample = watch.mark(timed(prepared.calls, bench.device, limits))
    while sample.throttled and watch.cool_down():
        sample = watch.mark(timed(prepared.calls, bench.device, limits))
    return sample_record(cell, sample, prepared.facts)


def _timer(mode: Mode) -> Callable[[Sequence[Call], torch.device, Limits], Sample]:
    return lambda calls, device, limits: measure(calls, device, mode, limits)


def sample_record(cell: Cell, sample: Sample, facts: dict[str, Any]) -> Record:
    """Journal entry of a sample. InputError where its time is not finite and positive: such a run must not pass as
    measured.
    """
    if not (math.isfinite(sample.seconds_median) and sample.seconds_median > 0 and math.isfinite(sample.spread)):
        raise InputError(
            f"cell '{cell.key}' took {sample.seconds_median} s, which cannot be; nothing was overwritten, run again"
        )
    return {"sample": asdict(sample), **({"facts": facts} if facts else {})}


def _collective_records(cells: Sequence[Cell], device: torch.device) -> Iterator[tuple[Cell, Record]]:
    """Samples of the collectives; those that the processes did not deliver are unsupported with the reason."""
    left = list(cells)
    try:
        for cell, sample in measure_collectives(cells, device):
            left.remove(cell)
            yield cell, sample_record(cell, sample, {})
    except (UnsupportedError, mp.ProcessRaisedException, mp.ProcessExitedException, OSError) as error:
        reason = [line for line in str(error).splitlines() if line.strip()][-1]
        for cell in left:
            yield cell, {"unsupported": reason}


def _trim(device: torch.device) -> None:
    """Give cached blocks back where they would soon be in the way of the next cell."""
    if device.type != "cuda":
        return
    if torch.cuda.memory_reserved(device) > _FULL_MEMORY * torch.cuda.get_device_properties(device).total_memory:
        torch.cuda.empty_cache()


def _free(bench: Workbench) -> None:
    for slot in ("weights", "model"):
        bench.memory.pop(slot, None)
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()


def _require_alive(device: torch.device, cell: Cell, error: Exception) -> None:
    """InputError where the device answers nothing any more (a fault that stays until the process ends)."""
    if device.type != "cuda":
        return
    try:
        torch.ones(1, device=device).item()
    except RuntimeError:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(
            f"the device failed at '{cell.key}' ({reason}); run the same command again to continue"
        ) from error


def _write(path: Path, circumstances: dict[str, Any], device: torch.device, records: Sequence[Record]) -> None:
    ended = {"clocks_at_end": clocks(device)} if device.type == "cuda" else {}
    whole = {"schema": SCHEMA, "circumstances": {**circumstances, **ended}, "cells": list(records)}
    write_whole(path, json.dumps(whole, allow_nan=False, indent=1) + "\n")


def _outcome(out: Path, records: Sequence[Record], now: int, seconds: float) -> Outcome:
    unsupported = tuple(f"{record['cell']}: {record['unsupported']}" for record in records if "unsupported" in record)
    throttled = sum(1 for record in records if record.get("sample", {}).get("throttled"))
    return Outcome(out / MEASUREMENTS, now, len(records), unsupported, throttled, seconds)


def outcome_text(outcome: Outcome) -> str:
    """Summary in a few lines."""
    lines = [f"{outcome.cells} cells, {outcome.measured_now} measured now in {outcome.seconds:.0f} s: {outcome.path}"]
    if outcome.busy:
        lines.append(outcome.busy)
    if outcome.throttled:
        lines.append(f"{outcome.throttled} cells were measured while the device was slowed down or shared")
    reasons: dict[str, int] = {}
    for entry in outcome.unsupported:
        reason = entry.split(": ", 1)[-1]
        reasons[reason] = reasons.get(reason, 0) + 1
    lines += [f"{count} cells not supported here: {reason}" for reason, count in reasons.items()]
    return "\n".join(lines)
