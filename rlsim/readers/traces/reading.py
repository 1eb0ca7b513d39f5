"""Files of requests: which format they are in, and the lengths that they hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.files.reading import TRACE_BYTES, read_bytes, read_text, shown_path
from rlsim.readers.traces.acceptance import MeasuredAcceptance, is_engine_metrics, read_acceptance
from rlsim.readers.traces.form import Format
from rlsim.readers.traces.requests import (
    MAGIC,
    TOKEN_BLOCKS,
    Collected,
    Requests,
    add_nemo_rl,
    add_verl,
    chosen_columns,
    parquet_requests,
)
from rlsim.workload.lengths import QUANTILE, number_in, rows_of

MOST_FILES = 1000
"""Files of a folder of rollouts that are read; they may hold TRACE_BYTES together."""


@dataclass(frozen=True)
class Reading:
    """How a trace is read. column, prompt_column, group_column: names where they are not guessed; group_size: samples
    in a row that share a prompt; characters_per_token: of rollouts that hold text alone."""

    form: Format = Format.AUTO
    column: str | None = None
    prompt_column: str | None = None
    group_column: str | None = None
    group_size: int | None = None
    characters_per_token: float = 4.0


def text_of(path: Path) -> tuple[str, str]:
    """Text of a trace and its name for messages; of a folder, that of its JSONL files in the order of their names.

    Raises InputError where there is none, or more than is read.
    """
    if not path.is_dir():
        return read_text(path, TRACE_BYTES), shown_path(path)
    files = sorted(path.glob("*.jsonl"), key=_by_number)
    if not files:
        raise InputError(f"{shown_path(path)}: the folder holds no .jsonl files (rollouts of verl or NeMo-RL)")
    if len(files) > MOST_FILES:
        raise InputError(f"{shown_path(path)}: holds {len(files):,} .jsonl files; at most {MOST_FILES:,} are read")
    texts, left = list[str](), TRACE_BYTES
    for file in files:
        texts.append(read_text(file, left).rstrip("\n"))
        left -= len(texts[-1])
        if left <= 0:
            raise InputError(
                f"{shown_path(path)}: holds more than {TRACE_BYTES / 2**20:,.0f} MiB, the most that is read"
            )
    return "\n".join(texts), shown_path(path)


def _by_number(path: Path) -> tuple[int, str]:
    digits = "".join(letter for letter in path.stem if letter.isascii() and letter.isdigit())[:12]
    return int(digits or 0), path.name


def is_parquet(path: Path) -> bool:
    """Whether a file begins as Parquet files do. Raises InputError where it cannot be read."""
    return path.is_file() and read_bytes(path, TRACE_BYTES)[: len(MAGIC)] == MAGIC


def format_of(text: str, where: str) -> Format:
    """The format of a text trace, by its first row. Raises InputError where nothing tells it."""
    if is_engine_metrics(text):
        return Format.VLLM_METRICS
    first = next(rows_of(text, where), None)
    if first is None:
        raise InputError(f"{where}: no rows; at least one length is needed")
    row = first[1]
    if not text.lstrip().startswith("{"):
        return Format.AZURE if "ContextTokens" in row and "GeneratedTokens" in row else Format.CSV
    if "output_length" in row and (TOKEN_BLOCKS in row or "timestamp" in row):
        return Format.MOONCAKE
    if isinstance(row.get("output"), str):
        return Format.VERL
    return Format.NEMO_RL if "input_lengths" in row else Format.JSONL


def read_requests(text: str, where: str, form: Format, reading: Reading) -> Requests:
    """Lengths of a text trace in ``form``. Raises InputError naming the line of what cannot be used."""
    collected, remarks = Collected(), list[str]()
    if form is Format.VERL:
        remarks += add_verl(collected, rows_of(text, where), where, reading.characters_per_token)
    elif form is Format.NEMO_RL:
        remarks += add_nemo_rl(collected, rows_of(text, where), where, reading.group_size)
    else:
        remarks += _add_columns(collected, text, where, reading)
    return collected.requests(where, str(form), reading.group_size, remarks)


def _add_columns(collected: Collected, text: str, where: str, reading: Reading) -> list[str]:
    """Rows of a CSV or of JSON objects with a column for each length."""
    names: tuple[str, str | None, str | None] | None = None
    blocks = False
    for line, row in rows_of(text, where):
        if names is None:
            if QUANTILE in row and reading.column is None:
                told = "{kind: trace, path: FILE}"
                raise InputError(f"{where}: is a table of quantiles already; state it: workload.response_tokens={told}")
            asked = (reading.column, reading.prompt_column, reading.group_column)
            names, blocks = chosen_columns(row, asked, where), TOKEN_BLOCKS in row
        response, prompt, group = names
        key = None if group is None else _key(row, group, where, line)
        prompt_tokens = None if prompt is None else number_in(row, prompt, where, line)
        collected.add(number_in(row, response, where, line), prompt_tokens, key)
    if not blocks:
        return []
    return [
        f"{TOKEN_BLOCKS} names shared prefixes of conversations, not samples of one prompt: no groups are made of it"
    ]


def _key(row: Mapping[str, Any], name: str, where: str, line: int) -> str | float:
    value = row.get(name)
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise InputError(f"{where}, line {line}: '{shortened(name)}' must name a prompt by a text or a number")
    return value


def read_trace(path: Path, reading: Reading) -> Requests | MeasuredAcceptance:
    """Lengths of the requests in ``path``, a file or a folder of rollouts; of engine metrics their acceptance.

    Raises InputError naming file and line of what cannot be used.
    """
    if reading.form is Format.PARQUET or (reading.form is Format.AUTO and is_parquet(path)):
        names = (reading.column, reading.prompt_column, reading.group_column)
        return parquet_requests(read_bytes(path, TRACE_BYTES), shown_path(path), names, reading.group_size)
    text, where = text_of(path)
    form = format_of(text, where) if reading.form is Format.AUTO else reading.form
    if form is Format.VLLM_METRICS:
        return read_acceptance(text, where)
    return read_requests(text, where, form, reading)
