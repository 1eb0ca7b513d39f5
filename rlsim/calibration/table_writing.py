"""Writing of compact measured tables: the same bytes for the same rows."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlsim.calibration.columns import BOUND_RATIO, Columns, Efficiencies, efficiency, take
from rlsim.calibration.lower_bounds import element_bytes, least_time, least_work
from rlsim.calibration.package_tables import Sheet
from rlsim.calibration.table_checks import BULK_S, GRAPH_LAUNCH_S, LAUNCH_BOUND_S
from rlsim.tables.files import LATENCY, TableLayout, write_columns
from rlsim.tables.operators import Efficiency
from rlsim.units import FloatArray

MANTISSA_BITS = 11
"""Bits stored of a latency: a relative error below 2**-12, far below the noise of any measurement, at half the size."""
BULK_GEMM_M, BULK_GEMM_NK = 4096, 1024
"""Products that show the compute efficiency: at least so many rows, and so wide."""
SKINNY_GEMM_M = 16
"""Products that show the memory efficiency: at most so many rows."""
FEWEST_ROWS = 20
"""Rows that an efficiency must rest on."""


def round_mantissa(seconds: FloatArray) -> NDArray[np.float32]:
    """Nearest float32 with MANTISSA_BITS bits behind the point; keeps order and positivity."""
    drop = 23 - MANTISSA_BITS
    bits = seconds.astype(np.float32).view(np.uint32)
    # Half of the last bit is added before the cut; a carry goes into the exponent, where it belongs.
    return (((bits + (1 << (drop - 1))) >> drop) << drop).view(np.float32)


def write_table(folder: Path, layout: TableLayout, table: Columns) -> Path:
    """Write one operation's rows, sorted by key and size. Returns the file."""
    names = [*layout.keys, *layout.sizes]
    # lexsort takes its most significant key last.
    table = take(table, np.lexsort([table[name] for name in reversed(names)]))
    return write_columns(folder, layout, {**table, LATENCY: round_mantissa(table[LATENCY])})


def efficiencies(tables: Mapping[str, Columns], sheet: Sheet) -> Efficiencies:
    """Achieved share of the datasheet by operation and precision, none where too few rows show it.

    Compute: rows at least BOUND_RATIO times more bound by arithmetic than by bytes; memory: the reverse. GEMM rows are
    those of BULK_GEMM_M and BULK_GEMM_NK, or of SKINNY_GEMM_M; attention and MoE rows those beyond BULK_S.
    """
    found: dict[str, dict[str, Efficiency]] = {}
    for name in ("gemm", "decode_attention", "prefill_attention", "moe"):
        table = tables.get(name)
        if table is None:
            continue
        key = "kv_precision" if "kv_precision" in table else "precision"
        for precision in np.unique(table[key]):
            rows = take(table, table[key] == precision)
            fitted = _fit(name, rows, sheet)
            if fitted != Efficiency():
                found.setdefault(name, {})[str(precision)] = fitted
    return found


def _ideal(name: str, rows: Columns, sheet: Sheet) -> tuple[FloatArray, FloatArray]:
    """Seconds of the rows' arithmetic and bytes without the leniency of the checks: activations counted, attention in
    BF16, nothing in the cache.
    """
    least, moved = least_time(name, rows, sheet), least_work(name, rows)
    compute_s = least.compute_s if "precision" in rows else moved.flops / sheet.flops["bf16"]
    if name != "gemm":
        return compute_s, least.moved_s
    activations = rows["m"] * (2.0 * rows["n"] + rows["k"] * element_bytes(rows["precision"]))
    return compute_s, least.moved_s + activations / sheet.hbm_bytes_per_s


def _fit(name: str, rows: Columns, sheet: Sheet) -> Efficiency:
    latency = rows["latency_s"]
    compute_s, memory_s = _ideal(name, rows, sheet)
    bulk = np.maximum(compute_s, memory_s) > BULK_S
    by_compute = (compute_s > BOUND_RATIO * memory_s) & bulk
    by_memory = (memory_s > BOUND_RATIO * compute_s) & bulk
    if name == "gemm":
        by_compute &= (rows["m"] >= BULK_GEMM_M) & (rows["n"] >= BULK_GEMM_NK) & (rows["k"] >= BULK_GEMM_NK)
        by_memory = (rows["m"] <= SKINNY_GEMM_M) & (memory_s > BOUND_RATIO * compute_s) & (memory_s > 0.2 * BULK_S)
    if name == "moe":
        # Uneven routing and idle ranks would count as slow kernels.
        unsharded = (rows["expert_parallel"] == 1) & (rows["distribution"] == "balanced")
        by_compute, by_memory = by_compute & unsharded, by_memory & unsharded

    tiny = np.maximum(compute_s, memory_s) < LAUNCH_BOUND_S
    launch_bound = name != "moe" and tiny.sum() >= FEWEST_ROWS and np.median(latency[tiny]) < GRAPH_LAUNCH_S
    computed, moved = (ideal[rows] / latency[rows] for rows, ideal in ((by_compute, compute_s), (by_memory, memory_s)))
    return efficiency(computed, moved, FEWEST_ROWS, float(np.median(latency[tiny])) if launch_bound else None)
