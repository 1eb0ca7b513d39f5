"""Least work of measured rows: what the datasheet must be able to do in the time that a row claims.

FLOPs and bytes here are lower bounds (no activations, no routing imbalance), so that a row which beats the datasheet
with them is wrong whatever the kernel.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlsim.calibration.columns import Columns, row_count
from rlsim.calibration.package_tables import Sheet
from rlsim.costs.operators import work
from rlsim.costs.operators.work import Work
from rlsim.units import BYTES_PER_ELEMENT, FloatArray

L2_BYTES = {80: 40 * 2**20, 90: 50 * 2**20, 100: 126 * 2**20}
"""L2 cache by compute capability (A100 and H100 whitepapers: 40 and 50 MB; B200 as its driver reports: 126 MiB).

So much of the bytes may have stayed in the cache between two runs of a benchmark, and is not held against the HBM.
"""
MLA_KV_LATENT, MLA_ROPE, MLA_NOPE, MLA_VALUE = 512, 64, 128, 128
"""Dimensions of DeepSeek-V3's attention (its config.json), the only model of the package's MLA tables."""
INDEX_KEY = 128.0
"""Bytes of a token's index key without its scale (index_head_dim of DeepSeek-V3.2 and GLM-5, in FP8)."""
UNGATED = ((2688, 1856), (1024, 2688), (2048, 5120))
"""(hidden, width) of experts with two matrices instead of three: those of Nemotron 3, whose config.json says
mlp_hidden_act relu2; the bandwidth of their rows exceeds the HBM's by the same factor of 3/2 otherwise."""
TOUCHED = 1
"""Assignments per expert from which a balanced router leaves no expert out: it deals them out evenly (the time of the
tables is then that of all weights, at 85 to 97 % of the HBM bandwidth)."""


@dataclass(frozen=True)
class LeastTime:
    """Least seconds of each row: of its arithmetic at the peak rate, and of its bytes at the full bandwidth, all of
    them (``moved_s``) or those that no cache can have held (``memory_s``).
    """

    compute_s: FloatArray
    moved_s: FloatArray
    memory_s: FloatArray


def least_time(name: str, table: Columns, sheet: Sheet) -> LeastTime:
    """Least seconds of the rows of operation ``name`` (see TableLayout for the names).

    Attention over an FP8 cache may run its arithmetic in FP8, and is held against that rate.
    """
    least = least_work(name, table)
    if name in ("all_reduce", "collectives"):
        link_s = least.bytes / sheet.link_bytes_per_s
        # No cache shortens what crosses a link.
        return LeastTime(np.zeros_like(link_s), link_s, link_s)
    moved_s = least.bytes / sheet.hbm_bytes_per_s
    beyond_s = np.maximum(least.bytes - l2_bytes(sheet), 0.0) / sheet.hbm_bytes_per_s
    if name in _STATE_BYTES:
        return LeastTime(np.zeros_like(moved_s), moved_s, beyond_s)
    precision = table["precision"] if "precision" in table else table["kv_precision"]
    # NaN: not every precision has a rate on every sheet; the checks then rest on bytes.
    peak = np.array([sheet.flops.get(str(word), np.nan) for word in precision])
    return LeastTime(least.flops / peak, moved_s, beyond_s)


def least_work(name: str, table: Columns) -> Work:
    """FLOP and bytes that the rows of operation ``name`` cannot do without."""
    return _COUNTERS[name](table)


def l2_bytes(sheet: Sheet) -> float:
    """L2 cache of a compute capability; 10.3 and later count as 10.0."""
    return float(max(size for capability, size in L2_BYTES.items() if capability <= max(sheet.compute_capability, 80)))


def element_bytes(precision: NDArray[Any]) -> FloatArray:
    """Bytes of one stored value, row by row."""
    return np.array([BYTES_PER_ELEMENT[str(word).removesuffix("_block")] for word in precision])


def _floats(table: Columns, *names: str) -> list[FloatArray]:
    return [table[name].astype(np.float64) for name in names]


def _gemm(table: Columns) -> Work:
    m, n, k = _floats(table, "m", "n", "k")
    # Activations may still be in the cache of the kernel before; the weight must come from memory.
    return work.gemm(m, n, k, element_bytes(table["precision"]), activation_bytes=0.0)


def _decode_attention(table: Columns) -> Work:
    batch, context, heads, kv_heads, head_dim = _floats(
        table, "batch", "context_tokens", "heads", "kv_heads", "head_dim"
    )
    return work.decode_attention(batch * context, heads, kv_heads, head_dim, element_bytes(table["kv_precision"]))


def _prefill_attention(table: Columns) -> Work:
    batch, prompt, heads, head_dim = _floats(table, "batch", "prompt_tokens", "heads", "head_dim")
    return _compute_only(work.causal_attention_flops(batch * prompt**2, heads, head_dim))


def _mla_decode(table: Columns) -> Work:
    cached = table["batch"].astype(np.float64) * table["context_tokens"]
    width = MLA_KV_LATENT + MLA_ROPE
    # Absorbed form: scores over latent and rotary part, values over the latent alone.
    flops = 2 * cached * table["heads"] * (width + MLA_KV_LATENT)
    return Work(flops, cached * width * element_bytes(table["kv_precision"]))


def _mla_prefill(table: Columns) -> Work:
    batch, prompt, heads = _floats(table, "batch", "prompt_tokens", "heads")
    # 2 FLOP a multiplication, half of the pairs masked.
    return _compute_only(batch * prompt**2 * heads * (MLA_NOPE + MLA_ROPE + MLA_VALUE))


def _moe(table: Columns) -> Work:
    """Weights count only where a balanced router touches all experts."""
    ungated = np.zeros(row_count(table), dtype=bool)
    for hidden, width in UNGATED:
        ungated |= (table["hidden"] == hidden) & (table["width"] == width)
    matrices = np.where(ungated, 2.0, 3.0) * table["hidden"] * table["width"] / table["tensor_parallel"]
    assigned = table["tokens"].astype(np.float64) * table["top_k"]
    all_touched = (table["distribution"] == "balanced") & (assigned >= TOUCHED * table["experts"])
    weights = np.where(all_touched, table["experts"] * matrices * element_bytes(table["precision"]), 0.0)
    return Work(2 * matrices * assigned / table["expert_parallel"], weights / table["expert_parallel"])


def _collective(table: Columns) -> Work:
    gpus = table["num_gpus"].astype(np.float64)
    # A GPU already has its own part of the message.
    return _bytes_only(table["message_bytes"] * (gpus - 1) / gpus)


def _state(name: str, table: Columns) -> Work:
    """Bytes of a kernel that reads or writes a state: a product of columns."""
    size, columns = _STATE_BYTES[name]
    return _bytes_only(size * np.prod(_floats(table, *columns.split()), axis=0))


def _compute_only(flops: FloatArray) -> Work:
    return Work(flops, np.zeros_like(flops))


def _bytes_only(moved: FloatArray) -> Work:
    return Work(np.zeros_like(moved), moved)


_STATE_BYTES = {
    "delta_rule_decode": (2 * BYTES_PER_ELEMENT["fp32"], "batch value_heads key_head_dim value_head_dim"),
    "delta_rule_prefill": (2 * BYTES_PER_ELEMENT["bf16"], "batch prompt_tokens value_heads value_head_dim"),
    "sparse_decode": (INDEX_KEY, "batch context_tokens indexer"),
    "sparse_prefill": (2 * BYTES_PER_ELEMENT["bf16"], "batch prompt_tokens hidden"),
}
"""Operations of which bytes alone are held against the datasheet, as a size times columns: the FP32 state of every
sequence, read and written; values, read and written in BF16; index keys of the whole cache, where they are read; input
and output of the block in BF16."""
_COUNTERS: Mapping[str, Callable[[Columns], Work]] = {
    "gemm": _gemm,
    "decode_attention": _decode_attention,
    "prefill_attention": _prefill_attention,
    "mla_decode": _mla_decode,
    "mla_prefill": _mla_prefill,
    "mla_decode_kernel": _mla_decode,
    "mla_prefill_kernel": _mla_prefill,
    "moe": _moe,
    "all_reduce": _collective,
    "collectives": _collective,
    **{name: partial(_state, name) for name in _STATE_BYTES},
}
