"""A log of a run: its file or folder, and the steps of it that count."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlsim.errors import InputError, shortened
from rlsim.files.reading import TABLE_BYTES, TRACE_BYTES, read_bytes, read_text, shown_path
from rlsim.readers.logs.records import add_text
from rlsim.readers.logs.scalars import FACTS, PHASES, Scalars, found_namings
from rlsim.readers.logs.tensorboard import Advance, add_events, is_event_file
from rlsim.units import FloatArray

EVENT_FILES = "*tfevents*"
MOST_FILES = 64
LONGEST_S = 1e7
"""Longest time of a step, four months; what is longer is no time in seconds."""
SAMPLES = "global_batch_size"


@dataclass(frozen=True, eq=False)
class RunLog:
    """The steps of a run. steps: their numbers, increasing, shape (n,); values: seconds or tokens of each, shape (n,),
    NaN where a step does not tell them. metrics: the names that each quantity was read from. samples: of one step,
    where the log states them.
    """

    where: str
    form: str
    steps: tuple[int, ...]
    values: Mapping[str, FloatArray]
    metrics: Mapping[str, tuple[str, ...]]
    samples: float | None = None


def read_log(path: Path, advance: Advance = lambda done, total: None) -> RunLog:
    """The log in ``path``: an event file of TensorBoard, a folder of them, or a text log.

    advance: called with (done, total) records of an event file now and then.

    Raises InputError naming file and place where it cannot be read, holds no time of a step, or one that is none.
    """
    scalars = Scalars(shown_path(path))
    if path.is_dir():
        form = _read_folder(scalars, path, advance)
    else:
        content = read_bytes(path, TRACE_BYTES)
        if is_event_file(content):
            form = "TensorBoard"
            _check_size(len(content), scalars.where)
            add_events(scalars, content, scalars.where, advance)
        else:
            form = add_text(scalars, read_text(path, TRACE_BYTES))
    return _log(scalars, form)


def _read_folder(scalars: Scalars, path: Path, advance: Advance) -> str:
    files = sorted(path.glob(EVENT_FILES))
    if not files:
        raise InputError(f"{scalars.where}: the folder holds no event files of TensorBoard ({EVENT_FILES})")
    if len(files) > MOST_FILES:
        raise InputError(f"{scalars.where}: holds {len(files):,} event files; at most {MOST_FILES} are read")
    size = 0
    for file in files:
        content = read_bytes(file, TABLE_BYTES)
        size += len(content)
        _check_size(size, scalars.where)
        add_events(scalars, content, shown_path(file), advance)
    return "TensorBoard"


def _check_size(size: int, where: str) -> None:
    if size > TABLE_BYTES:
        raise InputError(f"{where}: event files of more than {TABLE_BYTES / 2**20:,.0f} MiB are not read")


def _log(scalars: Scalars, form: str) -> RunLog:
    metrics = found_namings(list(scalars.values))
    if not any(quantity in metrics for quantity in PHASES):
        listed = shortened(", ".join(list(scalars.values)[:8]) or "none", 150)
        raise InputError(
            f"{scalars.where}: no time of a step that is known (timing/train/* of NeMo-RL, timing_s/* of verl, "
            f"train_step_time... of MLPerf); metrics: {listed}"
        )
    steps = sorted({step for names in metrics.values() for step in scalars.values[names[0]]})
    values = {
        quantity: np.array([_value(scalars, names, step, quantity) for step in steps])
        for quantity, names in metrics.items()
    }
    samples = scalars.values.get(SAMPLES, {}).get(0)
    return RunLog(scalars.where, form, tuple(steps), values, metrics, samples)


def _value(scalars: Scalars, names: tuple[str, ...], step: int, quantity: str) -> float:
    """Sum of the metrics of a quantity at a step; NaN for a step without the first one, which tells nothing."""
    if step not in scalars.values[names[0]]:
        return math.nan
    found = {name: scalars.values[name].get(step, 0.0) for name in names}
    for name, value in found.items():
        if not 0 <= value <= LONGEST_S or (quantity in FACTS and value <= 0):
            raise InputError(f"{scalars.where}, step {step}: '{shortened(name)}' cannot be {value:g}")
    return sum(found.values())
