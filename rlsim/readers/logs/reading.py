"""A log of a run: its file or folder, the steps of it that count, and its metrics, a number by name and step. Logs that
are text are exports of wandb, JSON lines, MLPerf's ``:::MLLOG`` lines and verl's console lines.

Which metrics of a framework are which phase: NeMo-RL 0.7 names its timers ``timing/train/*``
(nemo_rl/algorithms/grpo.py), verl ``timing_s/*`` (verl/trainer/ppo/ray_trainer.py), MLPerf's GRPO reference and tables
of rlsim by their columns.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlsim.errors import InputError, shortened
from rlsim.files.reading import TABLE_BYTES, TRACE_BYTES, read_bytes, read_text, shown_path, text_lines
from rlsim.files.yaml import lists_beside
from rlsim.readers.logs.retold import told_twice
from rlsim.readers.logs.tensorboard import Advance, Scalars, add_events, is_event_file, number_of
from rlsim.units import FloatArray
from rlsim.workload.lengths import rows_of

EVENT_FILES = "*tfevents*"
MOST_FILES = 64
LONGEST_S = 1e7
"""Longest time of a step, four months; what is longer is no time in seconds."""
SAMPLES = "global_batch_size"
"""MLPerf's event that holds for the whole run."""


@dataclass(frozen=True, eq=False)
class RunLog:
    """The steps of a run. steps: their numbers, increasing, shape (n,); values: seconds or tokens of each, shape (n,),
    NaN where a step does not tell them. metrics: the names that each quantity was read from. samples: of one step,
    where the log states them. remarks: on steps that it tells twice.
    """

    where: str
    form: str
    steps: tuple[int, ...]
    values: Mapping[str, FloatArray]
    metrics: Mapping[str, tuple[str, ...]]
    samples: float | None = None
    remarks: tuple[str, ...] = ()


def read_log(path: Path, advance: Advance = lambda done, total: None) -> RunLog:
    """The log in ``path``: an event file of TensorBoard, a folder of them, or a text log.

    advance: called with (done, total) records of an event file now and then.

    Raises InputError naming file and place where it cannot be read, holds no time of a step, or one that is none.
    """
    scalars, size = Scalars(shown_path(path)), 0
    for file in _event_files(path) if path.is_dir() else [path]:
        content = read_bytes(file, TRACE_BYTES)
        if file == path and not is_event_file(content):
            return _log(scalars, add_text(scalars, read_text(path, TRACE_BYTES)))
        size += len(content)
        if size > TABLE_BYTES:
            raise InputError(f"{scalars.where}: event files of more than {TABLE_BYTES / 2**20:,.0f} MiB are not read")
        add_events(scalars, content, shown_path(file), advance)
    return _log(scalars, "TensorBoard")


def _event_files(path: Path) -> list[Path]:
    files = sorted(path.glob(EVENT_FILES))
    if not files:
        raise InputError(f"{shown_path(path)}: the folder holds no event files of TensorBoard ({EVENT_FILES})")
    if len(files) > MOST_FILES:
        raise InputError(f"{shown_path(path)}: holds {len(files):,} event files; at most {MOST_FILES} are read")
    return files


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
    used = [name for quantity in (*PHASES, *FACTS) for name in metrics.get(quantity, ())]
    return RunLog(scalars.where, form, tuple(steps), values, metrics, samples, told_twice(scalars, used))


def _value(scalars: Scalars, names: tuple[str, ...], step: int, quantity: str) -> float:
    """Sum of the metrics of a quantity at a step; NaN for a step without the first one, which tells nothing."""
    if step not in scalars.values[names[0]]:
        return math.nan
    found = {name: scalars.values[name].get(step, 0.0) for name in names}
    for name, value in found.items():
        if not 0 <= value <= LONGEST_S or (quantity in FACTS and value <= 0):
            raise InputError(f"{scalars.where}, step {step}: '{shortened(name)}' cannot be {value:g}")
    return sum(found.values())


Quantity = Literal[
    "step", "data", "generation", "exposed_generation", "logprob", "train", "refit",
    "prompt_tokens", "response_tokens", "acceptance_length",
]  # fmt: skip
PHASES: tuple[Quantity, ...] = ("step", "generation", "exposed_generation", "logprob", "train", "refit", "data")
FACTS: tuple[Quantity, ...] = ("prompt_tokens", "response_tokens", "acceptance_length")
NAMINGS: Sequence[Sequence[str]] = lists_beside(__file__)["namings"]
"""A quantity and the metrics of a step that add up to it, in order of preference: the first whose first metric is there
tells the quantity."""
_KNOWN = frozenset(name for _, *names in NAMINGS for name in names)


def found_namings(metrics: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """The metrics of a log that make up each quantity; those of seconds may end in ``_s``."""
    seconds = {name.removesuffix("_s"): name for name in metrics if name.endswith("_time_s")}
    present = {name: name for name in metrics} | seconds
    out: dict[str, tuple[str, ...]] = {}
    for quantity, *names in NAMINGS:
        if names[0] in present and quantity not in out:
            out[quantity] = tuple(dict.fromkeys(present[name] for name in names if name in present))
    return out


MLLOG = ":::MLLOG "
STEPS = ("_step", "step", "Step", "train/global_step", "global_step", "trainer/global_step", "training/global_step")
"""Keys that may hold the number of a step; rows without any are counted."""
MLLOG_STEPS = ("step", "step_num", "train_step", "samples_count", "epoch_num")
"""Metadata of MLPerf's events that orders them (mlcommons/logging)."""
_CONSOLE = re.compile(r"\bstep:(\d{1,12}) - ")
_PAIR = re.compile(r"([A-Za-z_][\w./@-]{0,200}):([-+0-9.eEnaifNIF]{1,40})(?= - |\s*$)")
CONSOLE_CHARACTERS = 100_000
RUN = " - "
"""What stands between the run and the metric in columns of a chart that wandb exports."""
_SIDES = ("__MIN", "__MAX")
"""Endings of columns that wandb adds to each metric of an exported chart."""


def add_text(scalars: Scalars, text: str) -> str:
    """Metrics of a text log; gives the name of its form. Raises InputError where nothing of it is known."""
    where = scalars.where
    if MLLOG in text:
        _add_mllog(scalars, text)
        return "MLPerf log"
    start = text.lstrip()[:1]
    if start == "[":
        _add_array(scalars, text)
        return "JSON"
    if _CONSOLE.search(text[: 64 * CONSOLE_CHARACTERS]) is not None and start != "{":
        _add_console(scalars, text)
        return "console of verl"
    for count, (_, row) in enumerate(rows_of(text, where), start=1):
        _add_row(scalars, row, count)
    return "JSON lines" if start == "{" else "CSV"


def _add_row(scalars: Scalars, row: Mapping[str, Any], count: int) -> None:
    given = next((name for name in STEPS if name in row), None)
    step = number_of(row[given]) if given is not None else None
    # verl's file logger keeps the metrics of a step in a mapping.
    values = row["data"] if isinstance(row.get("data"), Mapping) else row
    told = {name: value for name, value in values.items() if name != given and not name.endswith(_SIDES)}
    # wandb's exports of charts name the run before the metric.
    parted = [name.rpartition(RUN) for name in told]
    clean = {name.strip(): value for (_, _, name), value in zip(parted, told.values(), strict=True)}
    runs = {run.strip() for run, dash, name in parted if dash and name.strip() in _KNOWN}
    if len(clean) < len(told) or len(runs) > 1:
        raise InputError(f"{scalars.where}: holds several runs (columns 'RUN - METRIC'); export one of them")
    scalars.add_all(float(count) if step is None else step, clean)


def _add_array(scalars: Scalars, text: str) -> None:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{scalars.where}: not JSON ({shortened(str(error))})") from error
    for count, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise InputError(f"{scalars.where}, entry {count}: a JSON object is needed, got {type(row).__name__}")
        _add_row(scalars, row, count)


def _add_mllog(scalars: Scalars, text: str) -> None:
    """Events with a number, or with a mapping of numbers, and the step that their metadata or value tells."""
    counts: dict[str, int] = {}
    for number, line in text_lines(text, scalars.where):
        place = line.find(MLLOG)
        if place < 0:
            continue
        try:
            event = json.loads(line[place + len(MLLOG) :])
        except (ValueError, RecursionError) as error:
            raise InputError(f"{scalars.where}, line {number}: no MLPerf event ({shortened(str(error))})") from error
        if not isinstance(event, dict) or not isinstance(event.get("key"), str):
            raise InputError(f"{scalars.where}, line {number}: an MLPerf event is an object with a 'key'")
        value = event.get("value")
        record = value if isinstance(value, Mapping) else {event["key"]: value}
        step = _mllog_step(event.get("metadata"), record)
        if step is None:
            step = counts[event["key"]] = counts.get(event["key"], 0) + 1
        scalars.add_all(0.0 if event["key"] == SAMPLES else step, record)


def _mllog_step(metadata: object, record: Mapping[str, Any]) -> float | None:
    sources = [source for source in (metadata, record) if isinstance(source, Mapping)]
    steps = (number_of(source.get(name)) for source in sources for name in MLLOG_STEPS)
    return next((step for step in steps if step is not None), None)


def _add_console(scalars: Scalars, text: str) -> None:
    for _, line in text_lines(text, scalars.where):
        found = _CONSOLE.search(line[:CONSOLE_CHARACTERS])
        if found is not None:
            for name, value in _PAIR.findall(line[found.end() : CONSOLE_CHARACTERS]):
                number = number_of(value)
                if number is not None:
                    scalars.add(name, float(found[1]), number)
