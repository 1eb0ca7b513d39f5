"""Logs that are text: exports of wandb, JSON lines, MLPerf's ``:::MLLOG`` lines and verl's console lines."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.files.reading import text_lines
from rlsim.readers.logs.scalars import Scalars, number_of
from rlsim.workload.lengths import rows_of

MLLOG = ":::MLLOG "
STEPS = ("_step", "step", "Step", "train/global_step", "global_step", "trainer/global_step", "training/global_step")
"""Keys that may hold the number of a step; rows without any are counted."""
MLLOG_STEPS = ("step", "step_num", "train_step", "samples_count", "epoch_num")
"""Metadata of MLPerf's events that orders them (mlcommons/logging)."""
FACTS = ("global_batch_size",)
"""MLPerf's events that hold for the whole run."""
_CONSOLE = re.compile(r"\bstep:(\d{1,12}) - ")
_PAIR = re.compile(r"([A-Za-z_][\w./@-]{0,200}):([-+0-9.eEnaifNIF]{1,40})(?= - |\s*$)")
CONSOLE_CHARACTERS = 100_000
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
    clean = {_metric(name): value for name, value in values.items() if name != given and not name.endswith(_SIDES)}
    if len(clean) < sum(name != given and not name.endswith(_SIDES) for name in values):
        raise InputError(f"{scalars.where}: holds several runs (columns 'RUN - METRIC'); export one of them")
    scalars.add_all(float(count) if step is None else step, clean)


def _metric(name: str) -> str:
    """A metric without the run before it, as in wandb's exports of charts."""
    return name.rpartition(" - ")[2].strip()


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
        scalars.add_all(0.0 if event["key"] in FACTS else step, record)


def _mllog_step(metadata: object, record: Mapping[str, Any]) -> float | None:
    for source in (metadata, record):
        if isinstance(source, Mapping):
            for name in MLLOG_STEPS:
                found = number_of(source.get(name))
                if found is not None:
                    return found
    return None


def _add_console(scalars: Scalars, text: str) -> None:
    for _, line in text_lines(text, scalars.where):
        found = _CONSOLE.search(line[:CONSOLE_CHARACTERS])
        if found is not None:
            for name, value in _PAIR.findall(line[found.end() : CONSOLE_CHARACTERS]):
                number = number_of(value)
                if number is not None:
                    scalars.add(name, float(found[1]), number)
