"""Requests in Parquet files: only columns of numbers, and of texts that name prompts, are ever decoded."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlsim.errors import InputError, shortened
from rlsim.readers.traces.requests import Requests, chosen_columns, group_numbers
from rlsim.units import FloatArray

MAGIC = b"PAR1"
MOST_ROWS = 20_000_000
"""A Parquet file of some KiB can claim any number of rows of one repeated value."""


def parquet_requests(content: bytes, where: str, names: Sequence[str | None], group_size: int | None) -> Requests:
    """Lengths in a Parquet file. names: columns of response, prompt and group, guessed where None.

    Raises InputError where the file is none, is cut short or lacks the columns.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(io.BytesIO(content))
        rows, present = file.metadata.num_rows, file.schema_arrow
        if rows > MOST_ROWS:
            raise InputError(f"{where}: {rows:,} rows are more than {MOST_ROWS:,}, the most that are read")
        response, prompt, group = chosen_columns(dict.fromkeys(present.names), names, where)
        chosen = [name for name in (response, prompt, group) if name is not None]
        for name in chosen:
            _check(name, present, where, text=name == group)
        # Texts stay in their dictionary: some KiB can repeat a long one any number of times.
        named = [group] if group is not None else []
        table = parquet.ParquetFile(io.BytesIO(content), read_dictionary=named).read(columns=chosen)
        lengths = _numbers(table, response, where)
        prompts = None if prompt is None else _numbers(table, prompt, where)
        keys = None
        if group is not None:
            column = table.column(group)
            if column.null_count:
                raise InputError(f"{where}: column '{shortened(group)}' must name the prompt of every sample")
            keys = column.combine_chunks().dictionary_encode().indices.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{where}: no Parquet file that can be read ({shortened(str(error))})") from error
    if not lengths.size or lengths.max() <= 0:
        raise InputError(f"{where}: no length above 0 in '{shortened(response)}'")
    return Requests(lengths, prompts, group_numbers(keys, lengths.size, group_size, where), where, "parquet")


def _check(name: str, present: Any, where: str, text: bool) -> None:
    from pyarrow import types

    if present.names.count(name) != 1:
        listed = shortened(", ".join(present.names), 200)
        raise InputError(f"{where}: no column '{shortened(name)}', or several; there is {listed}")
    kind = present.field(name).type
    fits = types.is_integer(kind) or types.is_floating(kind)
    fits |= text and (types.is_string(kind) or types.is_large_string(kind))
    if not fits:
        raise InputError(f"{where}: column '{shortened(name)}' holds {shortened(str(kind))}, no numbers")


def _numbers(table: Any, name: str, where: str) -> FloatArray:
    column = table.column(name)
    values = np.asarray(column.to_numpy(), dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(values) | (values < 0))
    if bad.size:
        raise InputError(f"{where}, row {bad[0] + 1}: '{shortened(name)}' must be a number of at least 0")
    return values
