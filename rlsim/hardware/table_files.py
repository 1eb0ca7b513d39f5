"""Reading of measured-table files: one Parquet file per operation in long form, one ``metadata.yaml`` per folder.

A row is key columns (what is discrete: precision, heads, parallel sizes), size columns (what is interpolated) and
``latency_s``. Rows are sorted by key, so that the rows of one key are contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from numpy.typing import NDArray

from rlsim.datafiles import DOCUMENT_BYTES, read_text
from rlsim.errors import InputError
from rlsim.hardware.interpolation import Grid, build_grid

LATENCY = "latency_s"
METADATA = "metadata.yaml"

Key = tuple[str | int, ...]


@dataclass(frozen=True)
class TableLayout:
    """Columns of one operation's file.

    growth: exponent beyond the largest size, per size column (see Grid). Holes of the grid are filled along the last
    size first, that in which the latency is best known.
    """

    name: str
    keys: tuple[str, ...]
    sizes: tuple[str, ...]
    growth: tuple[float, ...]


GEMM = TableLayout("gemm", ("precision",), ("n", "k", "m"), (1.0, 1.0, 1.0))
DECODE_ATTENTION = TableLayout(
    "decode_attention", ("head_dim", "kv_precision", "heads", "kv_heads"), ("context_tokens", "batch"), (1.0, 1.0)
)
PREFILL_ATTENTION = TableLayout(
    "prefill_attention", ("head_dim", "kv_precision", "heads", "kv_heads"), ("prompt_tokens", "batch"), (2.0, 1.0)
)
MLA_DECODE = TableLayout(
    "mla_decode", ("gemm_precision", "kv_precision"), ("heads", "context_tokens", "batch"), (1.0, 1.0, 1.0)
)
MLA_PREFILL = TableLayout(
    "mla_prefill", ("gemm_precision", "kv_precision"), ("heads", "prompt_tokens", "batch"), (1.0, 2.0, 1.0)
)
MLA_DECODE_KERNEL = TableLayout(
    "mla_decode_kernel", ("kv_precision",), ("heads", "context_tokens", "batch"), (1.0, 1.0, 1.0)
)
MLA_PREFILL_KERNEL = TableLayout(
    "mla_prefill_kernel", ("kv_precision",), ("heads", "prompt_tokens", "batch"), (1.0, 2.0, 1.0)
)
MOE = TableLayout(
    "moe",
    ("precision", "hidden", "width", "top_k", "experts", "tensor_parallel", "expert_parallel", "distribution"),
    ("tokens",),
    (1.0,),
)
QUANTIZE = TableLayout("quantize", ("op",), ("k", "m"), (1.0, 1.0))
"""FP8 scaling of activations: dynamic_scale is what a scale of each token adds to one that is known beforehand."""
EXPERT_EXCHANGE = TableLayout(
    "expert_exchange",
    ("transport", "phase", "precision", "hidden", "top_k", "experts", "num_gpus"),
    ("tokens",),
    (1.0,),
)
"""Tokens to the GPUs of their experts and back; phases prepare (two-sided transport), dispatch and combine; tokens per
GPU."""
ALL_REDUCE = TableLayout("all_reduce", ("mode", "num_gpus"), ("message_bytes",), (1.0,))
COLLECTIVES = TableLayout("collectives", ("op", "num_gpus"), ("message_bytes",), (1.0,))
VERIFY_ATTENTION = TableLayout(
    "verify_attention",
    ("head_dim", "kv_precision", "heads", "kv_heads"),
    ("queries", "batch", "context_tokens"),
    (1.0, 1.0, 1.0),
)
"""Attention of k+1 queries per sequence; context_tokens counts the cached ones and the first query."""
SAMPLING = TableLayout("sampling", ("op", "vocabulary"), ("rows",), (1.0,))
ELEMENTWISE = TableLayout("elementwise", ("op", "width"), ("rows",), (1.0,))
"""Norm, residual addition, activation, rotation (with or without a norm per head), cache write; width in values."""
REJECTION = TableLayout("rejection", ("vocabulary", "draft_vocabulary"), ("queries", "batch"), (0.0, 1.0))
"""Acceptance test and residual draw; queries is k+1."""
LAYOUTS = (
    GEMM, DECODE_ATTENTION, PREFILL_ATTENTION, MLA_DECODE, MLA_PREFILL, MLA_DECODE_KERNEL, MLA_PREFILL_KERNEL, MOE,
    QUANTIZE, EXPERT_EXCHANGE, ALL_REDUCE, COLLECTIVES, VERIFY_ATTENTION, SAMPLING, ELEMENTWISE, REJECTION,
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """One operation's rows, grouped by key. rows: key -> slice into the columns."""

    layout: TableLayout
    rows: dict[Key, slice]
    sizes: tuple[NDArray[np.int64], ...]
    latency_s: NDArray[np.float32]
    _grids: dict[Key, Grid] = field(default_factory=dict)

    def grid(self, key: Key, substitute: Grid | None = None) -> Grid | None:
        """Grid of ``key`` (built once), or None where the table has no row of it."""
        if key not in self._grids:
            if key not in self.rows:
                return None
            here = self.rows[key]
            columns = [size[here] for size in self.sizes]
            self._grids[key] = build_grid(columns, self.latency_s[here], self.layout.growth, substitute)
        return self._grids[key]


def read_table(folder: Path, layout: TableLayout) -> Table:
    """The table of one operation; empty where the folder has no file of it.

    Raises InputError where the file is not Parquet, lacks a column or holds a latency that is not positive.
    """
    path = folder / f"{layout.name}.parquet"
    if not path.is_file():
        return Table(layout, {}, (), np.empty(0, np.float32))
    columns = [*layout.keys, *layout.sizes, LATENCY]
    try:
        with pq.ParquetFile(path) as file:  # read_table would import pandas
            table = file.read(columns=columns, use_threads=False)
        keys = [_codes(table.column(name)) for name in layout.keys]
        sizes = tuple(_numbers(table.column(name)).astype(np.int64) for name in layout.sizes)
        latency = _numbers(table.column(LATENCY)).astype(np.float32)
    except (pa.ArrowException, KeyError, OSError, TypeError, ValueError) as error:
        wanted = ", ".join(columns)
        raise InputError(f"{path.name} of {folder.name}: not a table with columns {wanted} ({error})") from error
    if not (np.isfinite(latency) & (latency > 0)).all():
        raise InputError(f"{path.name} of {folder.name}: {LATENCY} must be positive and finite in every row")
    return Table(layout, _slices(keys), sizes, latency)


def _codes(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[Any]]:
    encoded = column.combine_chunks().dictionary_encode()
    return np.from_dlpack(encoded.indices).astype(np.int64), encoded.dictionary.to_pylist()


def _numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    """A numeric column; through DLPack, because Arrow's own conversion imports pandas."""
    return np.from_dlpack(column.combine_chunks())


def _slices(keys: Sequence[tuple[NDArray[np.int64], list[Any]]]) -> dict[Key, slice]:
    """Key -> its rows, for rows sorted by key."""
    codes = np.stack([code for code, _ in keys])
    if codes.shape[1] == 0:
        return {}
    starts = np.concatenate([[0], 1 + np.flatnonzero((np.diff(codes) != 0).any(0)), [codes.shape[1]]])
    names = [[words[code] for code in codes[row, starts[:-1]]] for row, (_, words) in enumerate(keys)]
    return {key: slice(a, b) for key, a, b in zip(zip(*names, strict=True), starts[:-1], starts[1:], strict=True)}


def read_metadata(folder: Path) -> dict[str, Any]:
    """What the folder says of its own origin. Raises InputError where the file is no YAML mapping."""
    path = folder / METADATA
    try:
        content = yaml.safe_load(read_text(path, DOCUMENT_BYTES))
    except yaml.YAMLError as error:
        raise InputError(f"{path.name} of {folder.name}: cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path.name} of {folder.name}: must be a mapping")
    return content
