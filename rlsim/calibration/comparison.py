"""Measured cases beside the imported tables of the same device, operator by operator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.cases import Case
from bench.measurements import Measurements
from rlsim.files.lookup import catalogue
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import table
from rlsim.tables.interpolation import TableTime
from rlsim.tables.operators import ExpertShape, Heads, OperatorTables, available
from rlsim.tables.profile import load_profile

REFERENCE_ENGINE = "vllm"


@dataclass(frozen=True)
class Ratio:
    """Measured over imported seconds of one operator: how many cases, and quantiles of the ratio."""

    op: str
    cases: int
    p10: float
    median: float
    p90: float


def compare(measured: Measurements, tables: OperatorTables) -> list[Ratio]:
    """Ratios for the operators that both have, over cases inside the imported range."""
    ratios: dict[str, list[float]] = {}
    for record in measured.of():
        found = _imported(record.case, tables)
        if found is not None and bool(np.all(found.measured)):
            label = f"{record.case.op} {record.case.text('dtype') or record.case.text('distribution') or 'bf16'}"
            ratios.setdefault(label, []).append(record.seconds / float(found.seconds))
    return [Ratio(op, len(r), *(float(q) for q in np.percentile(r, [10, 50, 90]))) for op, r in ratios.items()]


def _imported(case: Case, tables: OperatorTables) -> TableTime | None:
    n = case.number
    if case.op == "gemm":
        return tables.gemm_s(case.text("dtype"), n("m"), n("n"), n("k"))
    if case.op == "decode_attention":
        cached = n("context") + 1
        return tables.decode_attention_s(Heads(n("heads"), n("kv_heads"), n("head_dim"), "bf16"), n("batch"), cached)
    if case.op == "prefill_attention":
        heads = Heads(n("heads"), n("kv_heads"), n("head_dim"), "bf16")
        return tables.prefill_attention_s(heads, n("batch"), n("tokens"))
    if case.op == "moe":
        shape = (n("hidden"), n("width"), n("top_k"), n("experts"))
        return tables.moe_s(ExpertShape("bf16", *shape, 1, 1), case.text("distribution"), n("tokens"))
    if case.op == "all_reduce":
        return tables.all_reduce_s(n("ranks"), n("bytes"), case.text("mode") == "graph")
    return None


def comparison_text(measured: Measurements, name: str, style: Style = DEFAULT_STYLE) -> str:
    """Table of the ratios for device ``name``; empty where no tables of it were imported."""
    if name not in catalogue("hardware_profiles"):
        return ""
    system = load_profile(name).operator_tables
    if system is None or (system, REFERENCE_ENGINE) not in available():
        return ""
    ratios = compare(measured, OperatorTables.load(system, REFERENCE_ENGINE))
    rows = [(r.op, str(r.cases), f"{r.p10:.2f}", f"{r.median:.2f}", f"{r.p90:.2f}") for r in ratios]
    title = f"measured over imported ({system}, {REFERENCE_ENGINE}) seconds"
    return "\n".join([title, *table(("operator", "cases", "p10", "median", "p90"), rows, style)])
