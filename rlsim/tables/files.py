"""Measured-table files: one archive of columns per operation, one ``metadata.yaml`` per folder.

A row is key columns (what is discrete: precision, heads, parallel sizes), size columns (what is interpolated),
``latency_s`` and the measured kernel. Rows are sorted by key, so that the rows of one key are contiguous: the file
(.npz, an array for each column) holds a key once, with the number of its rows.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from rlsim.errors import InputError
from rlsim.files.archives import archive, read_arrays
from rlsim.files.reading import TABLE_BYTES, data_folder
from rlsim.files.yaml import read_value
from rlsim.tables.interpolation import Grid, build_grid

LATENCY = "latency_s"
KERNEL = "kernel"
METADATA = "metadata.yaml"
CALIBRATION = "calibration"
TABLES = "tables"
"""Folder of calibration/ with a folder of tables for each device."""
MEASURED = "measured"
"""Folder of a system's own measurements, which belong to no engine."""
SUFFIX = ".npz"
ROWS = "rows_of_key"
"""Array of a file with the number of rows of each key."""
WORDS = ".words"
"""A column of text is stored as numbers of words; this array holds the words."""

Key = tuple[str | int, ...]


class TableLayout(Struct, frozen=True):
    """Columns of one operation's file.

    growth: exponent beyond the largest size, per size column (see Grid). Holes of the grid are filled along the last
    size first, that in which the latency is best known.
    """

    name: str
    keys: tuple[str, ...]
    sizes: tuple[str, ...]
    growth: tuple[float, ...]


def _layout(name: str, keys: str, sizes: str, **growth: float) -> TableLayout:
    """growth: of the sizes in which the work is not linear."""
    columns = tuple(sizes.split())
    return TableLayout(name, tuple(keys.split()), columns, tuple(growth.get(size, 1.0) for size in columns))


_HEADS = "head_dim kv_precision heads kv_heads"
GEMM = _layout("gemm", "precision", "n k m")
DECODE_ATTENTION = _layout("decode_attention", _HEADS, "context_tokens batch")
PREFILL_ATTENTION = _layout("prefill_attention", _HEADS, "prompt_tokens batch", prompt_tokens=2.0)
MLA_DECODE = _layout("mla_decode", "gemm_precision kv_precision", "heads context_tokens batch")
MLA_PREFILL = _layout("mla_prefill", "gemm_precision kv_precision", "heads prompt_tokens batch", prompt_tokens=2.0)
"""Whole blocks of DeepSeek-V3's latent attention, and below their attention alone; heads per rank."""
MLA_DECODE_KERNEL = _layout("mla_decode_kernel", "kv_precision", "heads context_tokens batch")
MLA_PREFILL_KERNEL = _layout("mla_prefill_kernel", "kv_precision", "heads prompt_tokens batch", prompt_tokens=2.0)
MOE = _layout("moe", "precision hidden width top_k experts tensor_parallel expert_parallel distribution", "tokens")
QUANTIZE = _layout("quantize", "op", "k m")
"""FP8 scaling of activations: dynamic_scale is what a scale of each token adds to one that is known beforehand."""
EXPERT_EXCHANGE = _layout("expert_exchange", "transport phase precision hidden top_k experts num_gpus", "tokens")
"""Tokens to the GPUs of their experts and back; phases prepare (two-sided transport), dispatch and combine; tokens per
GPU."""
ALL_REDUCE = _layout("all_reduce", "mode num_gpus", "message_bytes")
COLLECTIVES = _layout("collectives", "op num_gpus", "message_bytes")
VERIFY_ATTENTION = _layout("verify_attention", _HEADS, "queries batch context_tokens")
"""Attention of k+1 queries per sequence; context_tokens counts the cached ones and the first query."""
SAMPLING = _layout("sampling", "op vocabulary", "rows")
ELEMENTWISE = _layout("elementwise", "op width", "rows")
"""Norm, residual addition, activation, rotation (with or without a norm per head), cache write; width in values."""
REJECTION = _layout("rejection", "vocabulary draft_vocabulary", "queries batch", queries=0.0)
"""Acceptance test and residual draw; queries is k+1."""
_DELTA_RULE = "key_head_dim value_head_dim key_heads value_heads"
DELTA_RULE_DECODE = _layout("delta_rule_decode", _DELTA_RULE, "batch")
"""Recurrent step of the gated delta rule, one token of each sequence; heads per rank, FP32 state."""
DELTA_RULE_PREFILL = _layout("delta_rule_prefill", _DELTA_RULE, "prompt_tokens batch")
"""The same rule chunk by chunk over whole prompts."""
CONVOLUTION_DECODE = _layout("convolution_decode", "conv_kernel", "channels batch")
"""Short causal convolution before a recurrence, one token of each sequence; channels per rank."""
CONVOLUTION_PREFILL = _layout("convolution_prefill", "conv_kernel", "channels prompt_tokens batch")
_SPARSE = "hidden indexer gemm_precision kv_precision"
SPARSE_DECODE = _layout("sparse_decode", _SPARSE, "heads batch context_tokens")
"""Whole block of sparse latent attention at decode: projections, indexer (1; 0: another layer's ranking is reused) and
attention to the tokens that rank highest."""
SPARSE_PREFILL = _layout("sparse_prefill", _SPARSE, "heads batch prompt_tokens", prompt_tokens=2.0)
LAYOUTS = (
    GEMM, DECODE_ATTENTION, PREFILL_ATTENTION, MLA_DECODE, MLA_PREFILL, MLA_DECODE_KERNEL, MLA_PREFILL_KERNEL, MOE,
    QUANTIZE, EXPERT_EXCHANGE, ALL_REDUCE, COLLECTIVES, VERIFY_ATTENTION, SAMPLING, ELEMENTWISE, REJECTION,
    DELTA_RULE_DECODE, DELTA_RULE_PREFILL, CONVOLUTION_DECODE, CONVOLUTION_PREFILL, SPARSE_DECODE, SPARSE_PREFILL,
)  # fmt: skip


class Table(Struct, frozen=True):
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


def tables_folder() -> Path:
    """Where the tables that come with rlsim are: ``<device>/<engine>/`` below it."""
    return data_folder(CALIBRATION) / TABLES


def available(folder: Path | None = None) -> list[tuple[str, str]]:
    """(system, backend) of every set of tables under ``folder`` (default: those that come with rlsim), sorted."""
    systems = (one for one in os.scandir(folder or tables_folder()) if one.is_dir())  # a glob takes twice as long
    found = ((one.name, engine) for one in systems for engine in os.scandir(one))
    return sorted((name, one.name) for name, one in found if os.path.exists(f"{one.path}/{METADATA}"))  # noqa: PTH110


def table_path(folder: Path, layout: TableLayout) -> Path:
    """File of one operation's rows; absent where none was measured."""
    return folder / f"{layout.name}{SUFFIX}"


def read_table(folder: Path, layout: TableLayout) -> Table:
    """The table of one operation; empty where the folder has no file of it.

    Raises InputError where the file is no archive, lacks a column or holds a latency that is not positive.
    """
    if not table_path(folder, layout).is_file():
        return Table(layout, {}, (), np.empty(0, np.float32))
    keys, counts, columns = _read(folder, layout, (*layout.sizes, LATENCY))
    ends = np.cumsum(counts).tolist()
    names = zip(*(keys[name] for name in layout.keys), strict=True)
    rows = {key: slice(start, end) for key, start, end in zip(names, [0, *ends[:-1]], ends, strict=True)}
    # Widened: products of sizes (batch x context) overflow the narrow types of the file.
    return Table(layout, rows, tuple(columns[name].astype(np.int64) for name in layout.sizes), columns[LATENCY])


def read_columns(folder: Path, layout: TableLayout) -> dict[str, NDArray[Any]]:
    """All columns of one operation's rows in long form, the kernel's name among them; empty where there is no file.

    Raises InputError as :func:`read_table` does.
    """
    if not table_path(folder, layout).is_file():
        return {}
    keys, counts, columns = _read(folder, layout, (*layout.sizes, KERNEL, LATENCY))
    return {name: np.repeat(np.array(values), counts) for name, values in keys.items()} | columns


def write_columns(folder: Path, layout: TableLayout, columns: Mapping[str, NDArray[Any]]) -> Path:
    """Write one operation's rows, in long form and sorted by key. Returns the file; equal rows give equal bytes."""
    count = len(columns[LATENCY])
    starts = np.zeros(count, dtype=bool)
    starts[:1] = True
    for name in layout.keys:
        starts[1:] |= columns[name][1:] != columns[name][:-1]
    first = np.flatnonzero(starts)
    arrays = {ROWS: _narrow(np.diff([*first, count]))}
    for name in (*layout.keys, *layout.sizes, KERNEL):
        column = columns[name][first] if name in layout.keys else columns[name]
        if column.dtype.kind in "iu":
            arrays[name] = _narrow(column)
        else:
            words, codes = np.unique(column.astype(str), return_inverse=True)
            arrays[name], arrays[f"{name}{WORDS}"] = _narrow(codes), words
    # Single precision holds seven digits of times that are measured to some percent.
    arrays[LATENCY] = columns[LATENCY].astype("<f4")
    path = table_path(folder, layout)
    path.write_bytes(archive(arrays))
    return path


def _narrow(values: NDArray[Any]) -> NDArray[Any]:
    """The same whole numbers in the smallest type that holds them all."""
    # Little-endian wherever it is written: equal rows give equal bytes.
    return np.asarray(values).astype(np.min_scalar_type(int(np.max(values, initial=0))).newbyteorder("<"))


def _read(
    folder: Path, layout: TableLayout, names: tuple[str, ...]
) -> tuple[dict[str, list[str | int]], NDArray[np.int64], dict[str, NDArray[Any]]]:
    """Key columns by key, rows of each key, and the wanted columns by row."""
    path = table_path(folder, layout)
    wanted = {ROWS, *layout.keys, *names}
    # Whichever of the columns are text; names that the file lacks are passed over.
    wanted |= {f"{name}{WORDS}" for name in wanted}
    try:
        arrays = read_arrays(path, TABLE_BYTES, lambda name: name in wanted)
        # Columns with words instead of their numbers.
        found: dict[str, NDArray[Any]] = {name: values for name, values in arrays.items() if not name.endswith(WORDS)}
        found |= {name: arrays[f"{name}{WORDS}"][codes] for name, codes in found.items() if f"{name}{WORDS}" in arrays}
        counts = found[ROWS].astype(np.int64)
        keys: dict[str, list[str | int]] = {name: found[name].tolist() for name in layout.keys}
        columns = {name: found[name] for name in names}
        _check(counts, keys, columns)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        listed = ", ".join([*layout.keys, *names])
        raise InputError(f"{path.name} of {folder.name}: not a table with columns {listed} ({error})") from error
    latency = columns[LATENCY]
    # Logarithms are interpolated, and one NaN would spread to all its neighbours.
    if not (np.isfinite(latency) & (latency > 0)).all():
        raise InputError(f"{path.name} of {folder.name}: {LATENCY} must be positive and finite in every row")
    return keys, counts, columns


def _check(counts: NDArray[np.int64], keys: Mapping[str, list[Any]], columns: Mapping[str, NDArray[Any]]) -> None:
    """Raises ValueError where the lengths of columns do not fit each other."""
    if counts.ndim != 1 or (counts < 0).any() or any(len(values) != len(counts) for values in keys.values()):
        raise ValueError("its keys differ in number")
    total = int(counts.sum())
    if any(values.shape != (total,) for values in columns.values()):
        raise ValueError(f"its columns do not have {total} rows each")


def read_metadata(folder: Path) -> dict[str, Any]:
    """What the folder says of its own origin. Raises InputError where the file is no YAML mapping."""
    path = folder / METADATA
    try:
        content = read_value(path)
    except InputError as error:
        raise InputError(f"{path.name} of {folder.name}: cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path.name} of {folder.name}: must be a mapping")
    return content
