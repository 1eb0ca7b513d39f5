"""Metrics of a log that is text, by its form: MLPerf's lines, JSON, tables with a header, and lines of consoles."""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.files.reading import LOG_LINES, text_lines
from rlsim.readers.logs.banners import banners_of
from rlsim.readers.logs.lines import LINE, add_lines
from rlsim.readers.logs.naming import canonical
from rlsim.readers.logs.rows import RUN, Rows
from rlsim.readers.logs.tensorboard import Scalars, number_of

MLLOG = ":::MLLOG "
MLLOG_STEPS = ("step", "step_num", "train_step", "samples_count", "epoch_num")
"""Metadata of MLPerf's events that orders them (mlcommons/logging)."""
SAMPLES = "global_batch_size"
"""MLPerf's event that holds for the whole run."""
SEPARATORS = ",;\t"
_JSON = re.compile(r"\s*\[?\s*\{\s*\"|\s*\[\s*[\[{]")
MOST_BRACKETS = 5_000_000
"""Objects and arrays of a text of JSON: each takes 2 microseconds and 90 bytes, whatever it holds."""


def add_text(scalars: Scalars, text: str) -> str:
    """Metrics of a text log; gives the name of its form. Raises InputError where nothing of it can be read."""
    start = text.lstrip()[:1]
    scalars.banners |= banners_of(text)
    if MLLOG in text:
        _add_mllog(scalars, text)
        return "MLPerf log"
    rows = Rows(scalars)
    lines = text[: 2 * LINE].splitlines()
    objects = sum(line.lstrip()[:1] == "{" for line in lines)
    if (start in ("[", "{") or 2 * objects > len(lines)) and (read := _add_json(rows, text)):
        rows.add()
        return read
    if _JSON.match(text):
        raise InputError(f"{scalars.where}: is JSON that is broken throughout")
    if (separator := _separator(text)) is not None:
        _add_table(rows, text, separator)
        rows.add()
        return "CSV"
    add_lines(scalars, text)
    return "console"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a document; a key that comes twice is of two, whose brackets between them are lost."""
    if len(out := dict(pairs)) < len(pairs):
        raise ValueError("a key comes twice in an object")
    return out


def _add_json(rows: Rows, text: str) -> str:
    """Objects of an array, of one document or of lines, and the name of that form; empty where none can be read.

    Lines that are no object are left out: the last one of a running job may be half written. Raises InputError before
    any is made where there are more than MOST_BRACKETS.
    """
    if (brackets := text.count("{") + text.count("[")) > MOST_BRACKETS:
        most = f"{MOST_BRACKETS:,}, the most that are read; give a part of it"
        raise InputError(f"{rows.scalars.where}: {brackets:,} objects and arrays are more than {most}")
    try:
        document = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict | list):
        for count, row in enumerate(document if isinstance(document, list) else [document], start=1):
            if not isinstance(row, dict):
                raise InputError(
                    f"{rows.scalars.where}, entry {count}: a JSON object is needed, got {type(row).__name__}"
                )
            rows.take(row)
        return "JSON"
    bad = 0
    for _, line in text_lines(text, rows.scalars.where, LOG_LINES):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            bad += bool(line.strip())
            continue
        if isinstance(row, dict):
            rows.take(row)
    if rows.found and bad:
        rows.scalars.remarks.append(f"{bad} {'line is' if bad == 1 else 'lines are'} not JSON and left out")
    return "JSON lines" if rows.found else ""


def _separator(text: str) -> str | None:
    """What separates the columns of a table whose header names known metrics; None of any other text."""
    head = next((line for line in text[: 2 * LINE].splitlines() if line.strip() and line[0] != "#"), "")
    counts = {one: sum(_metric(cell) is not None for cell in _cells(head, one)) for one in SEPARATORS}
    best = max(counts, key=lambda one: counts[one])
    # A first line with a number is a row of values or a line of a console, and no header.
    numbers = any(number_of(cell) is not None for cell in _cells(head, best))
    return best if counts[best] and best in head and not numbers else None


def _cells(line: str, separator: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:
        return []


def _metric(cell: str) -> str | None:
    return canonical(cell.rpartition(RUN)[2])


def _add_table(rows: Rows, text: str, separator: str) -> None:
    header: list[str] = []
    short, before, broken = 0, False, False
    for _, line in text_lines(text, rows.scalars.where, LOG_LINES):
        if not line.strip() or line[0] == "#":
            continue
        cells = _cells(line, separator)
        if not header or cells == header:  # a file that was written on after a restart has its header again
            header = cells
        elif len(cells) != len(header):
            short += 1
            if before:  # whose last cell may go on in this one
                rows.found.pop()
            broken = True
        elif broken:  # whose first cell may begin in the row before
            broken = False
            continue
        else:
            rows.take(dict(zip(header, cells, strict=True)))
        before = cells != header and len(cells) == len(header)
    if before and not text.endswith("\n") and len(rows.found) > 1:
        rows.found.pop()
    if short:
        rows.scalars.remarks.append(f"{short} rows have other columns than the header and are left out")


def _add_mllog(scalars: Scalars, text: str) -> None:
    """Events with a number, or with a mapping of numbers, and the step that their metadata or value tells."""
    counts: dict[str, int] = {}
    for number, line in text_lines(text, scalars.where, LOG_LINES):
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
    sources: Sequence[Mapping[str, Any]] = [one for one in (metadata, record) if isinstance(one, Mapping)]
    steps = (number_of(source.get(name)) for source in sources for name in MLLOG_STEPS)
    return next((step for step in steps if step is not None), None)
