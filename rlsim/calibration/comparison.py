"""Measured cells beside the imported tables of the same device, operator by operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlsim.calibration.selfcheck import read_measurements
from rlsim.hardware.interpolation import Lookup
from rlsim.hardware.lookup import catalogue
from rlsim.hardware.profile import load_profile
from rlsim.hardware.tables import OperatorTables, available

REFERENCE_ENGINE = "vllm"


@dataclass(frozen=True)
class Ratio:
    """Measured over imported seconds of one operator: how many cells, and quantiles of the ratio."""

    op: str
    cells: int
    p10: float
    median: float
    p90: float


def compare(records: Sequence[Mapping[str, Any]], tables: OperatorTables) -> list[Ratio]:
    """Ratios for the operators that both have, over cells inside the imported range."""
    ratios: dict[str, list[float]] = {}
    for record in records:
        found = _imported(record, tables) if "sample" in record else None
        if found is not None and bool(np.all(found.measured)):
            label = f"{record['op']} {record['params'].get('dtype', 'bf16')}"
            ratios.setdefault(label, []).append(record["sample"]["seconds_median"] / float(found.seconds))
    return [Ratio(op, len(r), *(float(q) for q in np.percentile(r, [10, 50, 90]))) for op, r in ratios.items()]


def _imported(record: Mapping[str, Any], tables: OperatorTables) -> Lookup | None:
    p, op = record["params"], record["op"]
    if op == "gemm":
        return tables.gemm_s(p["dtype"], p["m"], p["n"], p["k"])
    if op == "decode_attention":
        return tables.decode_attention_s(p["heads"], p["kv_heads"], p["head_dim"], "bf16", p["batch"], p["context"] + 1)
    if op == "prefill_attention":
        return tables.prefill_attention_s(p["heads"], p["kv_heads"], p["head_dim"], "bf16", p["batch"], p["tokens"])
    if op == "moe" and p["distribution"] == "balanced":
        return tables.moe_s("bf16", p["hidden"], p["width"], p["top_k"], p["experts"], 1, 1, "balanced", p["tokens"])
    if op == "all_reduce":
        return tables.all_reduce_s(p["ranks"], p["bytes"], False)
    return None


def comparison_text(measurements: Path, name: str) -> str:
    """Table of the ratios for device ``name``; empty where no tables of it were imported."""
    if name not in catalogue("hardware_profiles"):
        return ""
    system = load_profile(name).operator_tables
    if system is None or (system, REFERENCE_ENGINE) not in available():
        return ""
    ratios = compare(read_measurements(measurements)["cells"], OperatorTables.load(system, REFERENCE_ENGINE))
    lines = [
        f"measured over imported ({system}, {REFERENCE_ENGINE}) seconds",
        f"{'operator':<24} {'cells':>6} {'p10':>6} {'median':>7} {'p90':>6}",
    ]
    return "\n".join(
        [*lines, *(f"{r.op:<24} {r.cells:>6} {r.p10:>6.2f} {r.median:>7.2f} {r.p90:>6.2f}" for r in ratios)]
    )
