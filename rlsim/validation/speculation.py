"""Measured speculative decoding at fixed batch: speedups beside those of the cost model.

speedup = acceptance length x t(decode) / t(draft and verify), as in acceptance models since Leviathan et al.
(arXiv 2211.17192). Kept are published rows with a known GPU and engine, a model card of ours, BF16, a chain of k
drafts, batch and acceptance length. Their parallel size is unpublished; the autoregressive rate shows one GPU (about
190 tokens/s of a model of 8B parameters are 64 % of what reading the weights once per token would allow on an H200).
SGLang's scheduler works while the device does, except with EAGLE drafts, which switched that off until late 2025.
"""

from __future__ import annotations

from collections.abc import Mapping

from rlsim.costs.engine.prices import engine_prices
from rlsim.costs.interface import IterationTable
from rlsim.results import Interval
from rlsim.validation.iteration_sweeps import engine_inputs_of, iteration_s
from rlsim.validation.rows import profile_name
from rlsim.validation.study import PublishedFigure, published_table
from rlsim.validation.table import read_table

CONTEXT_TOKENS = 500
"""Mean context of the published runs (prompt and half of the answer). Unpublished: an assumption; small at batch 1."""
MOST_CONTEXT_TOKENS = 4096
_COLUMNS = ("id", "model", "gpu", "batch", "draft_length", "acceptance_length", "ar_tokens_per_s", "sd_tokens_per_s")


def measured_speculation() -> tuple[PublishedFigure, ...]:
    """Published speedups and autoregressive rates beside ours."""
    out, tables, rates = [], dict[tuple[str, ...], IterationTable](), set[str]()
    for record in read_table(published_table("speculation_measured.csv"), _COLUMNS):
        cell = record.cells
        batch = int(cell["batch"])
        plain, drafted = (
            iteration_s(_table(cell, k, tables), batch, CONTEXT_TOKENS) for k in (0, int(cell["draft_length"]))
        )
        speedup = float(cell["acceptance_length"]) * plain / drafted
        measured = float(cell["sd_tokens_per_s"]) / float(cell["ar_tokens_per_s"])
        drafts = f"k={cell['draft_length']}, length {cell['acceptance_length']}"
        label = f"{cell['id']} {cell['model']} on {cell['gpu']}: {drafts}"
        out.append(PublishedFigure("speedup at fixed batch", label, "x", measured, _sharp(speedup)))
        if cell["ar_tokens_per_s"] not in rates:
            rates.add(cell["ar_tokens_per_s"])
            label = f"{cell['model']} on {cell['gpu']}, batch {batch}, {cell['dataset']}"
            measured_s = batch / float(cell["ar_tokens_per_s"])
            out.append(PublishedFigure("autoregressive iteration", label, "s", measured_s, _sharp(plain)))
    return tuple(out)


def _table(cell: Mapping[str, str], k: int, tables: dict[tuple[str, ...], IterationTable]) -> IterationTable:
    key = (cell["model"], cell["gpu"], cell["batch"], str(k))
    if key not in tables:
        engine = {
            "tensor_parallel": int(cell["tensor_parallel"]),
            "weight_precision": cell["precision"],
            "async_scheduling": k == 0,
        }
        eagle = {"method": "eagle3", "draft_length": k, "acceptance_length": 1.0} if k else {}
        hardware = profile_name(cell["gpu"])
        batch = int(cell["batch"])
        inputs = engine_inputs_of(cell["model"], hardware, batch, MOST_CONTEXT_TOKENS, engine, eagle)
        tables[key] = engine_prices(inputs).table
    return tables[key]


def _sharp(value: float) -> Interval:
    return Interval(value, value, value)
