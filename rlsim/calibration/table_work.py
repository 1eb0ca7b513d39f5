"""Least work of measured rows: what the datasheet must be able to do in the time that a row claims.

FLOPs and bytes here are lower bounds (no activations, no routing imbalance), so that a row which beats the datasheet
with them is wrong whatever the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlsim.calibration.columns import Columns, FloatArray, row_count
from rlsim.calibration.package_tables import Sheet
from rlsim.units import BYTES_PER_ELEMENT

L2_BYTES = {80: 40 * 2**20, 90: 50 * 2**20, 100: 126 * 2**20}
"""L2 cache by compute capability (A100 and H100 whitepapers: 40 and 50 MB; B200 as its driver reports: 126 MiB).

So much of the bytes may have stayed in the cache between two runs of a benchmark, and is not held against the HBM.
"""
MLA_HIDDEN, MLA_Q_LATENT, MLA_KV_LATENT, MLA_ROPE, MLA_NOPE, MLA_VALUE = 7168, 1536, 512, 64, 128, 128
"""Dimensions of DeepSeek-V3's attention (its config.json), the only model of the package's MLA tables."""
UNGATED = ((2688, 1856), (1024, 2688), (2048, 5120))
"""(hidden, width) of experts with two matrices instead of three: those of Nemotron 3, whose config.json says
mlp_hidden_act relu2; the bandwidth of their rows exceeds the HBM's by the same factor of 3/2 otherwise."""
TOUCHED = 1
"""Assignments per expert from which a balanced router leaves no expert out: it deals them out evenly (the time of the
tables is then that of all weights, at 85 to 97 % of the HBM bandwidth)."""


@dataclass(frozen=True)
class Work:
    """Per row: FLOPs with the peak rate they run at, and bytes that must come from memory or link with their rate."""

    flops: FloatArray
    peak_flops: FloatArray
    num_bytes: FloatArray
    bytes_per_s: float
    cache_bytes: float = 0.0

    def compute_s(self) -> FloatArray:
        """Seconds of the arithmetic at the peak rate."""
        return self.flops / self.peak_flops

    def memory_s(self) -> FloatArray:
        """Seconds of the bytes beyond the cache at the full bandwidth."""
        return np.maximum(self.num_bytes - self.cache_bytes, 0.0) / self.bytes_per_s


def least_work(name: str, table: Columns, sheet: Sheet) -> Work:
    """Work of the rows of operation ``name`` (see TableLayout for the names).

    Attention over an FP8 cache may run its arithmetic in FP8, and is held against that rate.
    """
    flops, num_bytes = _COUNTERS[name](table)
    if name in ("all_reduce", "collectives", "moe_a2a"):
        return Work(flops, np.ones(row_count(table)), num_bytes, sheet.link_bytes_per_s)
    precision = table["precision"] if "precision" in table else table["kv_precision"]
    peak = np.array([sheet.flops.get(str(word), np.nan) for word in precision])
    return Work(flops, peak, num_bytes, sheet.hbm_bytes_per_s, l2_bytes(sheet))


def l2_bytes(sheet: Sheet) -> float:
    """L2 cache of a compute capability; 10.3 and later count as 10.0."""
    return float(max(size for capability, size in L2_BYTES.items() if capability <= max(sheet.compute_capability, 80)))


def element_bytes(precision: NDArray[Any]) -> FloatArray:
    """Bytes of one stored value, row by row."""
    return np.array([BYTES_PER_ELEMENT[str(word).removesuffix("_block")] for word in precision])


def _gemm(table: Columns) -> tuple[FloatArray, FloatArray]:
    m, n, k = (table[name].astype(np.float64) for name in ("m", "n", "k"))
    return 2 * m * n * k, n * k * element_bytes(table["precision"])


def _decode_attention(table: Columns) -> tuple[FloatArray, FloatArray]:
    cached = table["batch"].astype(np.float64) * table["context_tokens"] * table["head_dim"]
    return 4 * cached * table["heads"], 2 * cached * table["kv_heads"] * element_bytes(table["kv_precision"])


def _prefill_attention(table: Columns) -> tuple[FloatArray, FloatArray]:
    square = table["batch"].astype(np.float64) * table["prompt_tokens"] ** 2
    return 2 * square * table["heads"] * table["head_dim"], np.zeros(row_count(table))


def _mla_decode(table: Columns) -> tuple[FloatArray, FloatArray]:
    cached = table["batch"].astype(np.float64) * table["context_tokens"]
    width = MLA_KV_LATENT + MLA_ROPE
    flops = 2 * cached * table["heads"] * (width + MLA_KV_LATENT)
    return flops, cached * width * element_bytes(table["kv_precision"])


def _mla_prefill(table: Columns) -> tuple[FloatArray, FloatArray]:
    square = table["batch"].astype(np.float64) * table["prompt_tokens"] ** 2
    return square * table["heads"] * (MLA_NOPE + MLA_ROPE + MLA_VALUE), np.zeros(row_count(table))


def _moe(table: Columns) -> tuple[FloatArray, FloatArray]:
    """Weights count only where a balanced router touches all experts."""
    ungated = np.zeros(row_count(table), dtype=bool)
    for hidden, width in UNGATED:
        ungated |= (table["hidden"] == hidden) & (table["width"] == width)
    matrices = np.where(ungated, 2.0, 3.0) * table["hidden"] * table["width"] / table["tensor_parallel"]
    assigned = table["tokens"].astype(np.float64) * table["top_k"]
    all_touched = (table["distribution"] == "balanced") & (assigned >= TOUCHED * table["experts"])
    weights = np.where(all_touched, table["experts"] * matrices * element_bytes(table["precision"]), 0.0)
    return 2 * matrices * assigned / table["expert_parallel"], weights / table["expert_parallel"]


def _collective(table: Columns) -> tuple[FloatArray, FloatArray]:
    gpus = table["num_gpus"].astype(np.float64)
    return np.zeros(row_count(table)), table["message_bytes"] * (gpus - 1) / gpus


def _moe_a2a(table: Columns) -> tuple[FloatArray, FloatArray]:
    """At least one copy of each token in FP8 leaves the rank unless all its experts are there."""
    remote = 1.0 - 1.0 / table["expert_parallel"]
    return np.zeros(row_count(table)), table["tokens"] * table["hidden"] * remote


_COUNTERS = {
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
    "moe_a2a": _moe_a2a,
}
