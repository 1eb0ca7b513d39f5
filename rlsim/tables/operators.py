"""Measured operator latencies of one device and engine: look-up with provenance.

Every look-up is vectorised over its sizes and returns a :class:`TableTime` (seconds, measured), or None where the
tables hold nothing for the discrete key; the caller then falls back to a roofline at
:meth:`OperatorTables.fitted_efficiency`.
Interpolation and what happens outside the measured range: :mod:`rlsim.tables.interpolation`. Origin, checks and the
meaning of each size: ``calibration/README.md`` and ``metadata.yaml`` beside the tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rlsim.errors import InputError
from rlsim.files.reading import data_folder
from rlsim.tables import files
from rlsim.tables.files import METADATA, Key, Table, TableLayout, read_metadata, read_table
from rlsim.tables.interpolation import TableTime

CALIBRATION = "calibration"
TABLES = "tables"
"""Folder of calibration/ with a folder of tables for each device."""
MEASURED = "measured"
"""Folder of a system's own measurements, which belong to no engine."""
SUBSTITUTES = {"fp8_block": "fp8"}
"""Precision whose GEMM rows fill the holes of another (host-bound rows of block-scaled FP8), marked as not measured."""
WIDER = {
    "nvfp4": ("nvfp4", "fp8", "bf16"),
    "fp8": ("fp8", "bf16"),
    "fp8_block": ("fp8", "bf16"),
    "bf16": ("bf16",),
}
"""Precisions whose exchange stands in for that of another, nearest first: none that moves fewer bytes."""
EAGER_PROBE_BYTES = 64 * 1024
"""Largest all-reduce message whose time is launch rather than transfer; the host cost is read below it."""
EAGER_PROBE_GPUS = (2, 4)


class Heads(NamedTuple):
    """Attention heads of one rank, the width of each, and the precision of the KV cache."""

    heads: int
    kv_heads: int
    head_dim: int
    kv_precision: str


class ExpertShape(NamedTuple):
    """Routed experts of a layer and how ranks share them; precision: bf16, fp8, fp8_block or nvfp4."""

    precision: str
    hidden: int
    width: int
    top_k: int
    experts: int
    tensor_parallel: int
    expert_parallel: int


@dataclass(frozen=True)
class Efficiency:
    """Achieved share of the datasheet in the measured rows of one operation; None where it was not fitted.

    compute: median and 90th percentile share of the peak rate where the operation is bound by arithmetic.
    memory: likewise of the HBM bandwidth where it is bound by bytes. floor_s: latency of the smallest shapes.
    """

    compute_median: float | None = None
    compute_p90: float | None = None
    memory_median: float | None = None
    memory_p90: float | None = None
    floor_s: float | None = None


@dataclass(frozen=True, eq=False)
class OperatorTables:
    """Tables of one folder; each file is read at its first look-up.

    metadata: content of metadata.yaml (device, engine and version, source package, rows kept and rejected).
    """

    folder: Path
    metadata: dict[str, Any]
    _tables: dict[str, Table] = field(default_factory=dict)

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
            known = ", ".join(f"{name} ({engine})" for name, engine in available(root)) or "none"
            raise InputError(
                f"no measured tables of system '{system}' with backend '{backend}'; available: {known}; "
                "others are imported with rlsim calibrate --from aiconfigurator"
            )
        return cls(here, read_metadata(here))

    def _table(self, layout: TableLayout) -> Table:
        if layout.name not in self._tables:
            self._tables[layout.name] = read_table(self.folder, layout)
        return self._tables[layout.name]

    def table(self, layout: TableLayout) -> Table:
        """Rows of one operation, for look-ups that have a module of their own."""
        return self._table(layout)

    def gemm_s(self, precision: str, m: ArrayLike, n: int, k: int) -> TableTime | None:
        """Matrix product of m x k activations with k x n weights, cold weights, under a CUDA graph.

        precision: bf16, fp8 (one scale per token), fp8_block (128 x 128 scales) or nvfp4; all but bf16 include the
        quantisation of BF16 activations. n or k beyond the grid scale with the work and count as not measured.
        """
        table = self._table(files.GEMM)
        other = SUBSTITUTES.get(precision)
        grid = table.grid((precision,), table.grid((other,)) if other else None)
        return grid.lookup(n, k, m) if grid else None

    def dynamic_scale_s(self, m: ArrayLike, k: int) -> TableTime | None:
        """What finding the FP8 scales of m x k activations adds to a product whose scales are known beforehand."""
        grid = self._table(files.QUANTIZE).grid(("dynamic_scale",))
        return grid.lookup(k, m) if grid else None

    def expert_exchange_s(
        self, step: tuple[str, str], precision: str, hidden: int, num_gpus: int, tokens: ArrayLike
    ) -> TableTime | None:
        """One phase of an all-to-all of TensorRT-LLM around experts over NVLink; None where it was not measured.

        step: transport and phase, two_sided (prepare, dispatch, combine) or one_sided (dispatch, combine). tokens: of
        one GPU. A precision, a width or a number of GPUs that was not measured takes the nearest and counts as not
        measured.
        """
        table = self._table(files.EXPERT_EXCHANGE)
        wider = WIDER[precision]
        keys = [key for key in table.rows if key[:2] == step and key[2] in wider]
        if not keys:
            return None
        near = min(keys, key=lambda k: (wider.index(str(k[2])), _far(k[6:], (num_gpus,))))
        grid = table.grid(near)
        if grid is None:
            return None
        exact = near[2] == precision and near[3] == hidden and near[6] == num_gpus
        found = grid.lookup(tokens)
        return found if exact else found.scaled(max(1.0, hidden / float(near[3])))

    def decode_attention_s(self, shape: Heads, batch: ArrayLike, context_tokens: ArrayLike) -> TableTime | None:
        """Attention of one query per sequence over ``context_tokens`` cached tokens (the new one included).

        heads, kv_heads: per rank. A (heads, kv_heads, head_dim) that was not measured takes the nearest measured one,
        preferably of the same group size or the same kv_heads, scaled by KV bytes and marked as not measured.
        """
        found = self._nearest_attention(files.DECODE_ATTENTION, shape, context_tokens, batch)
        if found is None:
            return None
        look, near = found
        return look if near == shape else look.scaled(shape.kv_heads * shape.head_dim / (near.kv_heads * near.head_dim))

    def prefill_attention_s(self, shape: Heads, batch: ArrayLike, prompt_tokens: ArrayLike) -> TableTime | None:
        """Causal attention over ``batch`` whole prompts of ``prompt_tokens`` each, nothing cached before.

        heads, kv_heads: per rank; what was not measured is scaled from the nearest by heads x head_dim (FLOPs).
        """
        found = self._nearest_attention(files.PREFILL_ATTENTION, shape, prompt_tokens, batch)
        if found is None:
            return None
        look, near = found
        return look if near == shape else look.scaled(shape.heads * shape.head_dim / (near.heads * near.head_dim))

    def _nearest_attention(
        self, layout: TableLayout, shape: Heads, *sizes: ArrayLike
    ) -> tuple[TableTime, Heads] | None:
        """What the nearest measured heads take, not scaled, and which these are; None without any."""
        table = self._table(layout)
        near = _nearest_heads(table, shape)
        grid = table.grid(near[0]) if near else None
        if near is None or grid is None:
            return None
        return grid.lookup(*sizes), Heads(*near[1:], shape.kv_precision)

    def mla_decode_s(
        self, heads: int, gemm_precision: str, kv_precision: str, batch: ArrayLike, context_tokens: ArrayLike
    ) -> TableTime | None:
        """Whole multi-head latent attention block of DeepSeek-V3 at decode, one query per sequence.

        Includes the projections into the latents (7168 to 1536 + 512 + 64), the query up-projection, the absorbed
        key and value products, attention over the latent cache and the output projection; excludes the block's norm and
        the all-reduce after it. heads: per rank (128 / tensor parallel). gemm_precision: bf16, fp8_block or nvfp4; fp8
        takes fp8_block and counts as not measured.
        """
        return self._mla(files.MLA_DECODE, heads, gemm_precision, kv_precision, batch, context_tokens)

    def mla_prefill_s(
        self, heads: int, gemm_precision: str, kv_precision: str, batch: ArrayLike, prompt_tokens: ArrayLike
    ) -> TableTime | None:
        """Whole MLA block on ``batch`` prompts of ``prompt_tokens``, nothing cached before.

        Includes the same as :meth:`mla_decode_s`, with the key-value up-projection instead of the absorbed products.
        """
        return self._mla(files.MLA_PREFILL, heads, gemm_precision, kv_precision, batch, prompt_tokens)

    def _mla(
        self,
        layout: TableLayout,
        heads: int,
        gemm_precision: str,
        kv_precision: str,
        batch: ArrayLike,
        tokens: ArrayLike,
    ) -> TableTime | None:
        table = self._table(layout)
        exact = table.grid((gemm_precision, kv_precision))
        if exact is not None:
            return exact.lookup(heads, tokens, batch)
        if gemm_precision != "fp8":
            return None
        block = table.grid(("fp8_block", kv_precision))
        return block.lookup(heads, tokens, batch).scaled(1.0) if block else None

    def mla_decode_kernel_s(
        self, heads: int, kv_precision: str, batch: ArrayLike, context_tokens: ArrayLike
    ) -> TableTime | None:
        """Absorbed attention of DeepSeek-V3 over the latent cache alone, one query per sequence; heads per rank."""
        grid = self._table(files.MLA_DECODE_KERNEL).grid((kv_precision,))
        return grid.lookup(heads, context_tokens, batch) if grid else None

    def mla_prefill_kernel_s(
        self, heads: int, kv_precision: str, batch: ArrayLike, prompt_tokens: ArrayLike
    ) -> TableTime | None:
        """Attention of DeepSeek-V3 over whole prompts alone, without projections; heads per rank."""
        grid = self._table(files.MLA_PREFILL_KERNEL).grid((kv_precision,))
        return grid.lookup(heads, prompt_tokens, batch) if grid else None

    def verify_attention_s(
        self, shape: Heads, queries: int, batch: ArrayLike, context_tokens: ArrayLike
    ) -> TableTime | None:
        """Attention of ``queries`` positions per sequence, causal among themselves, over ``context_tokens`` tokens.

        The context includes the first of the queries. None for fewer queries than were measured.
        """
        table, (heads, kv_heads, head_dim, _) = self._table(files.VERIFY_ATTENTION), shape
        near = _nearest_heads(table, shape)
        grid = table.grid(near[0]) if near else None
        if near is None or grid is None or np.log(queries) < grid.axes[0][0] - 1e-9:
            return None
        found, (_, found_heads, found_kv, found_dim) = grid.lookup(queries, batch, context_tokens), near
        if (found_heads, found_kv, found_dim) == (heads, kv_heads, head_dim):
            return found
        return found.scaled(kv_heads * head_dim / (found_kv * found_dim))

    def sampling_s(self, op: Literal["softmax", "draw"], vocabulary: int, rows: ArrayLike) -> TableTime | None:
        """One step of sampling on ``rows`` rows; a vocabulary that was not measured scales from the nearest."""
        table = self._table(files.SAMPLING)
        key = min((key for key in table.rows if key[0] == op), key=lambda k: _far(k[1:], (vocabulary,)), default=None)
        return _scaled_to(table, key, 1, vocabulary, rows)

    def elementwise_s(self, op: str, width: int, rows: ArrayLike) -> TableTime | None:
        """One elementwise kernel on ``rows`` rows of ``width`` values; a width not measured scales from the nearest."""
        table = self._table(files.ELEMENTWISE)
        key = min((key for key in table.rows if key[0] == op), key=lambda k: _far(k[1:], (width,)), default=None)
        return _scaled_to(table, key, 1, width, rows)

    def rejection_s(self, vocabulary: int, draft_vocabulary: int, queries: int, batch: ArrayLike) -> TableTime | None:
        """Acceptance test of ``queries`` - 1 drafted tokens and the draw after them, from probabilities.

        Vocabularies that were not measured scale from the nearest ones with the target's.
        """
        table = self._table(files.REJECTION)
        key = min(table.rows, key=lambda k: _far(k, (vocabulary, draft_vocabulary)), default=None)
        found = _scaled_to(table, key, 0, vocabulary, queries, batch)
        return found.scaled(1.0) if found is not None and key is not None and key[1] != draft_vocabulary else found

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
        grid = self._table(files.MOE).grid((*shape, distribution))
        return grid.lookup(tokens) if grid else None

    def all_reduce_s(self, num_gpus: int, message_bytes: ArrayLike, graph: bool) -> TableTime | None:
        """All-reduce of a tensor of ``message_bytes`` held by each GPU, as the engine runs it inside one NVLink domain.

        graph: inside a CUDA graph, or launched eagerly by the host. A number of GPUs that the engine's table lacks is
        taken from NCCL where that was measured (a graph measurement is then not distinguished), else None.
        """
        grid = self._table(files.ALL_REDUCE).grid(("graph" if graph else "eager", num_gpus))
        return grid.lookup(message_bytes) if grid else self.collective_s("all_reduce", num_gpus, message_bytes)

    def collective_s(self, op: str, num_gpus: int, message_bytes: ArrayLike) -> TableTime | None:
        """NCCL collective over one NVLink domain, BF16.

        op: all_gather, reduce_scatter, alltoall or all_reduce. message_bytes: the *full* tensor, that is the gathered
        output of all_gather, the unreduced input of reduce_scatter, the whole send buffer of one GPU in alltoall.
        """
        grid = self._table(files.COLLECTIVES).grid((op, num_gpus))
        return grid.lookup(message_bytes) if grid else None

    def eager_launch_s(self) -> float:
        """Host seconds of launching one custom operation eagerly.

        Median over small messages of eager minus graph time of the engine's all-reduce on 2 and 4 GPUs.
        Raises InputError where the tables lack it.
        """
        table = self._table(files.ALL_REDUCE)
        costs = []
        for gpus in EAGER_PROBE_GPUS:
            eager, graph = table.grid(("eager", gpus)), table.grid(("graph", gpus))
            if eager is None or graph is None:
                continue
            sizes = np.exp(eager.axes[0])
            sizes = sizes[sizes <= EAGER_PROBE_BYTES * (1 + 1e-9)]
            costs.append(eager.lookup(sizes).seconds - graph.lookup(sizes).seconds)
        if not costs:
            raise InputError(f"tables in {self.folder.name} hold no eager and graph all-reduce on 2 or 4 GPUs")
        return float(np.median(np.concatenate(costs)))

    def fitted_efficiency(self, op: str, precision: str) -> Efficiency | None:
        """Achieved share of the datasheet, fitted when the tables were made; None where there is none.

        op: gemm, decode_attention, prefill_attention or moe. precision: that of the weights, or of the KV cache.
        """
        fitted = self.metadata.get("efficiency", {}).get(op, {}).get(precision)
        return Efficiency(**fitted) if fitted else None


def tables_folder() -> Path:
    """Where the tables that come with rlsim are: ``<device>/<engine>/`` below it."""
    return data_folder(CALIBRATION) / TABLES


def available(folder: Path | None = None) -> list[tuple[str, str]]:
    """(system, backend) of every set of tables under ``folder`` (default: those that come with rlsim), sorted."""
    root = folder if folder is not None else tables_folder()
    return sorted((path.parent.parent.name, path.parent.name) for path in root.glob(f"*/*/{METADATA}"))


def _far(key: Key, wanted: tuple[int, ...]) -> float:
    """Distance of sizes in their logarithm."""
    return sum(abs(math.log(float(here) / there)) for here, there in zip(key, wanted, strict=True))


def _scaled_to(table: Table, key: Key | None, place: int, vocabulary: int, *sizes: ArrayLike) -> TableTime | None:
    """Look-up at ``key``, whose vocabulary stands at ``place``, in proportion to the wanted vocabulary."""
    grid = table.grid(key) if key is not None else None
    if grid is None or key is None:
        return None
    found = grid.lookup(*sizes)
    return found if key[place] == vocabulary else found.scaled(vocabulary / float(key[place]))


def _nearest_heads(table: Table, shape: Heads) -> tuple[Key, int, int, int] | None:
    """Measured (key, heads, kv_heads, head_dim) nearest to the wanted one; None where the KV precision is absent."""
    heads, kv_heads, head_dim, kv_precision = shape

    def distance(found: tuple[Key, int, int, int]) -> tuple[float, bool, float]:
        _, found_heads, found_kv, found_dim = found
        related = found_heads * kv_heads == heads * found_kv or found_kv == kv_heads
        far = abs(math.log(found_heads / heads)) + abs(math.log(found_kv / kv_heads))
        return abs(math.log(found_dim / head_dim)), not related, far

    exact: Key = (head_dim, kv_precision, heads, kv_heads)
    if exact in table.rows:
        return exact, heads, kv_heads, head_dim
    found = [(key, int(key[2]), int(key[3]), int(key[0])) for key in table.rows if key[1] == kv_precision]
    return min(found, key=distance, default=None)
