"""Measured operator latencies of one device and engine: look-up with provenance.

Every look-up is vectorised over its sizes and returns a :class:`TableTime` (seconds, measured), or None where the
tables hold nothing for the discrete key; the caller then falls back to a roofline at the ``fitted_efficiency``.
Interpolation and what happens outside the measured range: :mod:`rlsim.tables.interpolation`. Origin, checks and the
meaning of each size: ``calibration/README.md`` and ``metadata.yaml`` beside the tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field
from numpy.typing import ArrayLike

from rlsim.errors import InputError
from rlsim.tables import files
from rlsim.tables.files import (
    MEASURED,
    METADATA,
    Key,
    Table,
    TableLayout,
    available,
    read_metadata,
    read_table,
    tables_folder,
)
from rlsim.tables.interpolation import Grid, TableTime

SUBSTITUTES = {"fp8_block": "fp8"}
"""Precision whose GEMM rows fill the holes of another (host-bound rows of block-scaled FP8), marked as not measured."""
QUERY_HEADS, KV_HEADS = 2, 3
"""Columns of attention tables."""
WIDER = {"nvfp4": ("nvfp4", "fp8", "bf16"), "fp8": ("fp8", "bf16"), "fp8_block": ("fp8", "bf16"), "bf16": ("bf16",),
         "mxfp4": ("bf16",), "int4": ("bf16",)}  # fmt: skip
"""Precisions whose exchange stands in for that of another, nearest first: none that moves fewer bytes."""


class Heads(NamedTuple):
    """Attention heads of one rank, the width of each, and the precision of the KV cache."""

    heads: int
    kv_heads: int
    head_dim: int
    kv_precision: str


class ExpertShape(NamedTuple):
    """Routed experts of a layer and how ranks share them; precision: bf16, fp8, fp8_block, nvfp4, mxfp4 or int4."""

    precision: str
    hidden: int
    width: int
    top_k: int
    experts: int
    tensor_parallel: int
    expert_parallel: int


class DeltaRule(NamedTuple):
    """Width of a key and of a value head of the gated delta rule, and such heads of a rank."""

    key_dim: int
    value_dim: int
    key_heads: int
    value_heads: int


class SparseShape(NamedTuple):
    """A block of sparse latent attention: whether it ranks tokens itself, heads per rank, precisions of its projections
    and of the cache."""

    hidden: int
    indexer: bool
    heads: int
    gemm_precision: str
    kv_precision: str


class Likeness(NamedTuple):
    """What stands in for a key that was not measured.

    equal: columns that must be the same; grow: columns in proportion to whose product the time grows; far: distance of
    a measured key.
    """

    wanted: Key
    equal: tuple[int, ...]
    grow: tuple[int, ...]
    far: Callable[[Key], Any]

    def factor(self, near: Key) -> float:
        """Time at the wanted key over that at ``near``."""
        there, here = (math.prod(int(key[column]) for column in self.grow) for key in (self.wanted, near))
        return there / here


class Efficiency(Struct, frozen=True):
    """Achieved share of the datasheet in the measured rows of one operation; None where it was not fitted.

    compute: median and 90th percentile share of the peak rate where the operation is bound by arithmetic.
    memory: likewise of the HBM bandwidth where it is bound by bytes. floor_s: latency of the smallest shapes.
    """

    compute_median: float | None = None
    compute_p90: float | None = None
    memory_median: float | None = None
    memory_p90: float | None = None
    floor_s: float | None = None


class OperatorTables(Struct, frozen=True, eq=False):
    """Tables of one folder; each file is read at its first look-up.

    metadata: content of metadata.yaml (device, engine and version, source package, rows taken and rejected).
    """

    folder: Path
    metadata: dict[str, Any]
    _tables: dict[str, Table] = field(default_factory=dict)
    _substitutes: dict[tuple[str, Key, tuple[int, ...], tuple[int, ...]], Key | None] = field(default_factory=dict)

    @classmethod
    def load(cls, system: str, backend: str, folder: Path | None = None) -> OperatorTables:
        """Tables of ``system`` (for instance gb200) measured with ``backend`` (for instance vllm).

        A system without tables of that engine is answered by those that ``rlsim calibrate`` measured without one, in
        <system>/measured/. folder: a calibration folder of the same structure; default is that of this installation.
        Raises InputError that names what is there.
        """
        root = folder if folder is not None else tables_folder()
        here = root / system / backend
        if not (here / METADATA).is_file():
            here = root / system / MEASURED
        if not (here / METADATA).is_file():
            known = ", ".join(dict.fromkeys(name for name, _ in available(root))) or "none"
            raise InputError(
                f"no measured tables of system '{system}' with backend '{backend}': leave operator_tables out to model "
                f"the device from its datasheet; available: {known}; rlsim calibrate import brings others"
            )
        return cls(here, read_metadata(here))

    def table(self, layout: TableLayout) -> Table:
        """Rows of one operation."""
        if layout.name not in self._tables:
            self._tables[layout.name] = read_table(self.folder, layout)
        return self._tables[layout.name]

    def at(self, layout: TableLayout, key: Key, *sizes: ArrayLike) -> TableTime | None:
        """What was measured at ``key``, whose columns and ``sizes`` are in the order of the layout."""
        grid = self.table(layout).grid(key)
        return grid.lookup(*sizes) if grid else None

    def _first(self, layout: TableLayout, keys: Sequence[Key], *sizes: ArrayLike) -> TableTime | None:
        """Time at the first of ``keys`` that was measured; not measured where that is not the very first."""
        key = next((key for key in keys if key in self.table(layout).rows), keys[0])
        found = self.at(layout, key, *sizes)
        # By 1: it only marks the time as not measured.
        return found if found is None or key == keys[0] else found.scaled(1.0)

    def _nearest(self, layout: TableLayout, like: Likeness) -> Key | None:
        """The wanted key or the measured one nearest to it; None where none agrees in what must be equal."""
        rows, place = self.table(layout).rows, (layout.name, like.wanted, like.equal, like.grow)
        if like.wanted in rows:
            return like.wanted
        if place not in self._substitutes:
            alike = (key for key in rows if all(key[column] == like.wanted[column] for column in like.equal))
            self._substitutes[place] = min(alike, key=like.far, default=None)
        return self._substitutes[place]

    def _near(self, layout: TableLayout, like: Likeness, *sizes: ArrayLike) -> TableTime | None:
        """Time at the nearest measured key, scaled and not measured where that is not the wanted one."""
        near = self._nearest(layout, like)
        found = None if near is None else self.at(layout, near, *sizes)
        return found if found is None or near is None or near == like.wanted else found.scaled(like.factor(near))

    def gemm_s(self, precision: str, m: ArrayLike, n: int, k: int) -> TableTime | None:
        """Matrix product of m x k activations with k x n weights, cold weights, under a CUDA graph.

        precision: bf16, fp8 (one scale per token), fp8_block (128 x 128 scales) or nvfp4; all but bf16 include the
        quantisation of BF16 activations. n or k beyond the grid scale with the work and count as not measured.
        """
        grid = self.gemm_grid(precision)
        return grid.lookup(n, k, m) if grid else None

    def gemm_grid(self, precision: str) -> Grid | None:
        """Grid of matrix products over n, k and m; None where none was measured."""
        table, other = self.table(files.GEMM), SUBSTITUTES.get(precision)
        return table.grid((precision,), table.grid((other,)) if other else None)

    def dynamic_scale_s(self, m: ArrayLike, k: int) -> TableTime | None:
        """What finding the FP8 scales of m x k activations adds to a product whose scales are known beforehand."""
        return self.at(files.QUANTIZE, ("dynamic_scale",), k, m)

    def expert_exchange_s(
        self, step: tuple[str, str], precision: str, hidden: int, num_gpus: int, tokens: ArrayLike
    ) -> TableTime | None:
        """One phase of an all-to-all of TensorRT-LLM around experts over NVLink; None where it was not measured.

        step: transport and phase, two_sided (prepare, dispatch, combine) or one_sided (dispatch, combine). tokens: of
        one GPU. A precision, a width or a number of GPUs that was not measured takes the nearest and counts as not
        measured.
        """
        wider = WIDER[precision]
        keys = [key for key in self.table(files.EXPERT_EXCHANGE).rows if key[:2] == step and key[2] in wider]
        near = min(keys, key=lambda k: (wider.index(str(k[2])), _far(k[6], num_gpus)), default=None)
        found = None if near is None else self.at(files.EXPERT_EXCHANGE, near, tokens)
        if found is None or near is None or (near[2], near[3], near[6]) == (precision, hidden, num_gpus):
            return found
        return found.scaled(max(1.0, hidden / float(near[3])))

    def decode_attention_s(self, shape: Heads, batch: ArrayLike, context_tokens: ArrayLike) -> TableTime | None:
        """Attention of one query per sequence over ``context_tokens`` cached tokens (the new one included).

        heads, kv_heads: per rank. A (heads, kv_heads, head_dim) that was not measured takes the nearest measured one,
        preferably of the same group size or the same kv_heads, scaled by KV bytes and marked as not measured.
        """
        return self._near(files.DECODE_ATTENTION, _heads_like(shape, KV_HEADS), context_tokens, batch)

    def prefill_attention_s(self, shape: Heads, batch: ArrayLike, prompt_tokens: ArrayLike) -> TableTime | None:
        """Causal attention over ``batch`` whole prompts of ``prompt_tokens`` each, nothing cached before.

        heads, kv_heads: per rank; what was not measured is scaled from the nearest by heads x head_dim (FLOPs).
        """
        return self._near(files.PREFILL_ATTENTION, _heads_like(shape, QUERY_HEADS), prompt_tokens, batch)

    def verify_attention_s(
        self, shape: Heads, queries: int, batch: ArrayLike, context_tokens: ArrayLike
    ) -> TableTime | None:
        """Attention of ``queries`` positions per sequence, causal among themselves, over ``context_tokens`` tokens.

        The context includes the first of the queries. None for fewer queries than were measured.
        """
        like, table = _heads_like(shape, KV_HEADS), self.table(files.VERIFY_ATTENTION)
        near = self._nearest(files.VERIFY_ATTENTION, like)
        if near is None or queries < table.sizes[0][table.rows[near]].min():
            return None
        return self._near(files.VERIFY_ATTENTION, like, queries, batch, context_tokens)

    def mla_decode_s(
        self, heads: int, gemm_precision: str, kv_precision: str, batch: ArrayLike, context_tokens: ArrayLike
    ) -> TableTime | None:
        """Whole multi-head latent attention block of DeepSeek-V3 at decode, one query per sequence.

        Includes the projections into the latents (7168 to 1536 + 512 + 64), the query up-projection, the absorbed
        key and value products, attention over the latent cache and the output projection; excludes the block's norm and
        the all-reduce after it. heads: per rank (128 / tensor parallel). gemm_precision: bf16, fp8_block or nvfp4; fp8
        takes fp8_block and counts as not measured.
        """
        return self._first(files.MLA_DECODE, _blocks(gemm_precision, kv_precision), heads, context_tokens, batch)

    def mla_prefill_s(
        self, heads: int, gemm_precision: str, kv_precision: str, batch: ArrayLike, prompt_tokens: ArrayLike
    ) -> TableTime | None:
        """Whole MLA block on ``batch`` prompts of ``prompt_tokens``, nothing cached before.

        Includes the same as :meth:`mla_decode_s`, with the key-value up-projection instead of the absorbed products.
        """
        return self._first(files.MLA_PREFILL, _blocks(gemm_precision, kv_precision), heads, prompt_tokens, batch)

    def sparse_decode_s(self, shape: SparseShape, batch: ArrayLike, context_tokens: ArrayLike) -> TableTime | None:
        """Whole block of sparse latent attention at decode, one query per sequence.

        Includes the projections, the indexer over the whole context and attention to the tokens that it ranks highest;
        not the norm before nor the all-reduce after it. fp8 projections take fp8_block and count as not measured; a
        block without an indexer that was not measured takes the one with.
        """
        return self._first(files.SPARSE_DECODE, _sparse_blocks(shape), shape.heads, batch, context_tokens)

    def sparse_prefill_s(self, shape: SparseShape, batch: ArrayLike, prompt_tokens: ArrayLike) -> TableTime | None:
        """Seconds of the whole sparse block on ``batch`` prompts of ``prompt_tokens`` each, nothing cached before."""
        return self._first(files.SPARSE_PREFILL, _sparse_blocks(shape), shape.heads, batch, prompt_tokens)

    def sparse_reach_tokens(self, shape: SparseShape) -> int:
        """Most cached tokens of all sequences together with which the block was measured at decode; 0 without it.

        Collections stop where a cache of the benchmark is full, so that long contexts were measured at small batches.
        """
        table = self.table(files.SPARSE_DECODE)
        key = next((key for key in _sparse_blocks(shape) if key in table.rows), None)
        if key is None:
            return 0
        _, batch, context = (column[table.rows[key]] for column in table.sizes)
        return int((batch * context).max())

    def delta_rule_s(self, layout: TableLayout, shape: DeltaRule, *sizes: ArrayLike) -> TableTime | None:
        """Gated delta rule of ``layout``, token by token or chunk by chunk.

        The measured shape of the same head widths with the most similar number of value heads, then of key heads.
        """
        return self._near(
            layout, Likeness(shape, (0, 1), (3,), lambda key: (_far(key[3], shape[3]), _far(key[2], shape[2]))), *sizes
        )

    def sampling_s(self, op: Literal["softmax", "draw"], vocabulary: int, rows: ArrayLike) -> TableTime | None:
        """One step of sampling on ``rows`` rows; a vocabulary that was not measured scales from the nearest."""
        return self._near(files.SAMPLING, _sized_like((op, vocabulary), 1), rows)

    def elementwise_s(self, op: str, width: int, rows: ArrayLike) -> TableTime | None:
        """One elementwise kernel on ``rows`` rows of ``width`` values; a width not measured scales from the nearest."""
        return self._near(files.ELEMENTWISE, _sized_like((op, width), 1), rows)

    def rejection_s(self, vocabulary: int, draft_vocabulary: int, queries: int, batch: ArrayLike) -> TableTime | None:
        """Acceptance test of ``queries`` - 1 drafted tokens and the draw after them, from probabilities.

        Vocabularies that were not measured scale from the nearest ones with the target's.
        """
        wanted = vocabulary, draft_vocabulary
        like = Likeness(wanted, (), (0,), lambda key: _far(key[0], wanted[0]) + _far(key[1], wanted[1]))
        return self._near(files.REJECTION, like, queries, batch)

    def host_s(self, name: str) -> float | None:
        """Host seconds that the metadata state: graph_replay, enqueue_layer...; None without."""
        found = self.metadata.get("host", {}).get(f"{name}_s")
        return None if found is None else float(found)

    def moe_s(self, shape: ExpertShape, distribution: str, tokens: ArrayLike) -> TableTime | None:
        """Routed experts of one layer on one rank: both expert GEMMs, activation, token permutation and weighted sum.

        tokens: tokens routed over *all* experts together, that is the sum over the ranks of the expert-parallel group
        (with attention data-parallel: tokens per rank x ranks), not the tokens of one rank. The rank holds
        experts / expert_parallel experts of width / tensor_parallel; under a power law it is the most loaded one.
        Excludes router, shared experts and the communication around the experts.
        distribution: balanced, power_law_1.01 or power_law_1.2.
        """
        return self.at(files.MOE, (*shape, distribution), tokens)

    def all_reduce_s(self, num_gpus: int, message_bytes: ArrayLike, graph: bool) -> TableTime | None:
        """All-reduce of a tensor of ``message_bytes`` held by each GPU, as the engine runs it inside one NVLink domain.

        graph: inside a CUDA graph, or launched eagerly by the host. A number of GPUs that the engine's table lacks is
        taken from NCCL where that was measured (a graph measurement is then not distinguished), else None.
        """
        own = self.at(files.ALL_REDUCE, ("graph" if graph else "eager", num_gpus), message_bytes)
        return own or self.collective_s("all_reduce", num_gpus, message_bytes)

    def collective_s(self, op: str, num_gpus: int, message_bytes: ArrayLike) -> TableTime | None:
        """NCCL collective over one NVLink domain, BF16.

        op: all_gather, reduce_scatter, alltoall or all_reduce. message_bytes: the *full* tensor, that is the gathered
        output of all_gather, the unreduced input of reduce_scatter, the whole send buffer of one GPU in alltoall.
        """
        return self.at(files.COLLECTIVES, (op, num_gpus), message_bytes)

    def fitted_efficiency(self, op: str, precision: str) -> Efficiency | None:
        """Achieved share of the datasheet, fitted when the tables were made; None where there is none.

        op: gemm, decode_attention, prefill_attention or moe. precision: that of the weights, or of the KV cache.
        """
        fitted = self.metadata.get("efficiency", {}).get(op, {}).get(precision)
        return Efficiency(**fitted) if fitted else None


def _blocks(gemm_precision: str, kv_precision: str) -> list[Key]:
    """Precisions of latent blocks, first as wanted; per-token FP8 is taken as block FP8."""
    near = "fp8_block" if gemm_precision == "fp8" else gemm_precision
    # Latent blocks were measured in BF16, block FP8 and NVFP4 alone.
    return [(gemm_precision, kv_precision), (near, kv_precision)]


def _sparse_blocks(shape: SparseShape) -> list[Key]:
    blocks = _blocks(shape.gemm_precision, shape.kv_precision)
    ranking = (shape.hidden, 1, *blocks[1])
    return [*((shape.hidden, int(shape.indexer), *block) for block in blocks), ranking]


def _far(here: str | int, there: str | int) -> float:
    """Distance of sizes in their logarithm."""
    # Logarithms, since times go with ratios of sizes: 4 heads are as far from 8 as 8 from 16.
    return abs(math.log(float(here) / float(there)))


def _sized_like(wanted: Key, size: int) -> Likeness:
    return Likeness(wanted, (0,), (size,), lambda key: _far(key[size], wanted[size]))


def _heads_like(shape: Heads, heads: int) -> Likeness:
    """Attention of one KV precision: time grows with the width and the number of ``heads`` (a column)."""
    wanted = (shape.head_dim, shape.kv_precision, shape.heads, shape.kv_heads)

    def far(key: Key) -> tuple[float, bool, float]:
        queries, kv_heads = float(key[QUERY_HEADS]), key[KV_HEADS]
        related = queries * shape.kv_heads == shape.heads * float(kv_heads) or kv_heads == shape.kv_heads
        return (
            _far(key[0], wanted[0]),
            not related,
            _far(key[QUERY_HEADS], wanted[QUERY_HEADS]) + _far(key[KV_HEADS], wanted[KV_HEADS]),
        )

    return Likeness(wanted, (1,), (heads, 0), far)
