"""Look-ups of recurrent layers and of sparse attention, as :mod:`rlsim.tables.operators` has those of other operators.

Each returns None where the tables hold nothing like it; what was not measured itself is scaled from the nearest and
counts as not measured.
"""

from __future__ import annotations

import math

from numpy.typing import ArrayLike

from rlsim.tables import files
from rlsim.tables.files import Key, Table, TableLayout
from rlsim.tables.interpolation import TableTime
from rlsim.tables.operators import OperatorTables

SparseShape = tuple[int, bool, int, str, str]
"""Hidden size, whether the block ranks tokens itself, heads per rank, precision of the projections and of the cache."""


DeltaRule = tuple[int, int, int, int]
"""Key heads and value heads of a rank, and the width of each."""


def delta_rule_decode_s(tables: OperatorTables, shape: DeltaRule, batch: ArrayLike) -> TableTime | None:
    """Seconds of the recurrent step of the gated delta rule for one token of each of ``batch`` sequences."""
    return _delta_rule(tables, files.DELTA_RULE_DECODE, (*shape[2:], *shape[:2]), batch)


def delta_rule_prefill_s(
    tables: OperatorTables, shape: DeltaRule, batch: ArrayLike, prompt_tokens: ArrayLike
) -> TableTime | None:
    """Seconds of the chunked rule over ``batch`` prompts of ``prompt_tokens`` each."""
    return _delta_rule(tables, files.DELTA_RULE_PREFILL, (*shape[2:], *shape[:2]), prompt_tokens, batch)


def _delta_rule(
    tables: OperatorTables, layout: TableLayout, shape: tuple[int, int, int, int], *sizes: ArrayLike
) -> TableTime | None:
    """The measured shape of the same head widths with the most similar number of value heads, then of key heads."""
    table: Table = tables.table(layout)

    def distance(key: Key) -> tuple[float, float]:
        heads = zip(key[2:], shape[2:], strict=True)
        keys, values = (abs(math.log(float(here) / there)) for here, there in heads)
        return values, keys

    near = min((key for key in table.rows if key[:2] == shape[:2]), key=distance, default=None)
    grid = table.grid(near) if near is not None else None
    if grid is None or near is None:
        return None
    found = grid.lookup(*sizes)
    return found if near == shape else found.scaled(shape[3] / float(near[3]))


def convolution_decode_s(tables: OperatorTables, conv_kernel: int, channels: int, batch: ArrayLike) -> TableTime | None:
    """Short convolution for one token of each of ``batch`` sequences; channels per rank."""
    grid = tables.table(files.CONVOLUTION_DECODE).grid((conv_kernel,))
    return grid.lookup(channels, batch) if grid else None


def convolution_prefill_s(
    tables: OperatorTables, conv_kernel: int, channels: int, batch: ArrayLike, prompt_tokens: ArrayLike
) -> TableTime | None:
    """Short convolution over ``batch`` prompts of ``prompt_tokens`` each; channels per rank."""
    grid = tables.table(files.CONVOLUTION_PREFILL).grid((conv_kernel,))
    return grid.lookup(channels, prompt_tokens, batch) if grid else None


def sparse_decode_s(
    tables: OperatorTables,
    shape: SparseShape,
    batch: ArrayLike,
    context_tokens: ArrayLike,
) -> TableTime | None:
    """Whole block of sparse latent attention at decode, one query per sequence.

    Includes the projections, the indexer over the whole context and attention to the tokens that it ranks highest; not
    the norm before nor the all-reduce after it. fp8 projections take fp8_block and count as not measured; a block
    without an indexer that was not measured takes the one with.
    """
    return _sparse(tables, files.SPARSE_DECODE, shape, batch, context_tokens)


def sparse_prefill_s(
    tables: OperatorTables,
    shape: SparseShape,
    batch: ArrayLike,
    prompt_tokens: ArrayLike,
) -> TableTime | None:
    """The same block on ``batch`` prompts of ``prompt_tokens`` each, nothing cached before."""
    return _sparse(tables, files.SPARSE_PREFILL, shape, batch, prompt_tokens)


def sparse_reach_tokens(tables: OperatorTables, shape: SparseShape) -> int:
    """Most cached tokens of all sequences together with which the block was measured at decode; 0 without it.

    Collections stop where a cache of the benchmark is full, so that long contexts were measured at small batches alone.
    """
    table = tables.table(files.SPARSE_DECODE)
    key = _sparse_key(table, shape)
    if key is None:
        return 0
    _, batch, context = (column[table.rows[key]] for column in table.sizes)
    return int((batch * context).max())


def _sparse(tables: OperatorTables, layout: TableLayout, shape: SparseShape, *sizes: ArrayLike) -> TableTime | None:
    table = tables.table(layout)
    key = _sparse_key(table, shape)
    grid = table.grid(key) if key is not None else None
    if grid is None:
        return None
    hidden, indexer, heads, gemm_precision, kv_precision = shape
    found = grid.lookup(heads, *sizes)
    return found if key == (hidden, int(indexer), gemm_precision, kv_precision) else found.scaled(1.0)


def _sparse_key(table: Table, shape: SparseShape) -> Key | None:
    """The measured key nearest to a shape."""
    hidden, indexer, _, gemm_precision, kv_precision = shape
    exact: Key = (hidden, int(indexer), gemm_precision, kv_precision)
    near = "fp8_block" if gemm_precision == "fp8" else gemm_precision
    others: list[Key] = [(hidden, int(indexer), near, kv_precision), (hidden, 1, near, kv_precision)]
    return next((key for key in (exact, *others) if key in table.rows), None)
