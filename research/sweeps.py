"""Sweeps of engine iterations: measured decode and verification steps beside the cost model's.

``python -m research.sweeps FILE...`` prints errors by tokens per sequence; columns model, batch, seq, gamma, mode
(target_decode or target_verify), median_ms. The published sweep (furiosa-ai/EfficientRollout, arXiv 2606.18967) is
timed around the model runner: it has rows of batch 0, which no scheduler would run. Scheduler and executor time is
therefore left out here, and so is rejection sampling: verifying 4 tokens of one sequence took less time than decoding
one (9.20 against 9.53 ms). What remains:

- With many sequences steps grow with context three to four times more slowly than the memory bandwidth of an A100
  allows for caches of their own (64 sequences of Llama-3.1-8B: 1.2 us per token of context, 4.1 us at 2.04 TB/s), as if
  the sequences shared one cached prompt. The cost model has separate caches: too slow at large batch and long context.
- With few sequences a verification grows with context like a thread block that walks the cache alone (90 us per layer
  and 4,096 tokens, whatever the batch): kernels of that release split the cache only for single queries. The cost model
  lets verification read the cache as fast as decoding: too fast there.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from rlsim.costs.engine.device_times import EAGER_PART
from rlsim.costs.engine.hosts import NO_HOST
from rlsim.costs.engine.iteration import IterationCosts
from rlsim.costs.engine.prices import EngineInputs, engine_prices
from rlsim.costs.interface import IterationTable
from rlsim.costs.prices import PriceInputs
from rlsim.errors import InputError, RlsimError, shortened
from rlsim.evidence.engines import engine_document
from rlsim.evidence.rows import model_card_name
from rlsim.evidence.tables import Row, SkippedRow, number, read_table
from rlsim.loading.models import load_card
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import table
from rlsim.schema.scenario import Scenario
from rlsim.tables.profile import load_profile

SWEEP_COLUMNS = ("model", "batch", "seq", "gamma", "mode", "median_ms")
"""Columns of a sweep; the mode is target_decode or target_verify (gamma + 1 tokens of each sequence in one pass)."""
MOST_SEQUENCES, MOST_CONTEXT_TOKENS, MOST_DRAFTED = 4096, 1_000_000, 32
"""Largest point of a sweep that is compared."""
CAPTURED_TOKENS = 512
"""Largest captured batch of engines with their usual limit of 256 sequences and more."""


@dataclass(frozen=True)
class SweepPoint:
    """One engine step: ``batch`` sequences of ``context_tokens`` cached tokens, ``draft_length`` + 1 tokens each."""

    model: str
    batch: int
    context_tokens: float
    draft_length: int
    measured_s: float
    predicted_s: float

    @property
    def error_pct(self) -> float:
        """100 (predicted / measured - 1)."""
        return 100 * (self.predicted_s / self.measured_s - 1)


@dataclass(frozen=True)
class IterationSweep:
    """All comparable points of a sweep; ``skipped`` counts the others by reason."""

    name: str
    points: tuple[SweepPoint, ...]
    skipped: Mapping[str, int]

    def median_abs_error_pct(self, verifying: bool | None = None) -> float | None:
        """Median absolute error; of verification only, of decoding only, or (None) of all points."""
        chosen = [p for p in self.points if verifying is None or (p.draft_length > 0) == verifying]
        return _quantile([p.error_pct for p in chosen], 0.5)

    def text(self, style: Style = DEFAULT_STYLE) -> str:
        """Errors by number of tokens per sequence, then the summary."""
        rows = []
        for k in sorted({p.draft_length for p in self.points}):
            errors = [p.error_pct for p in self.points if p.draft_length == k]
            error = f"{_quantile(errors, 0.5):.1f} %"
            bias = f"{float(np.median(errors)):+.1f} %"
            rows.append(("decode" if k == 0 else f"verify {k} + 1", str(len(errors)), error, bias))
        lines = [style.bold(f"{shortened(self.name)}: {len(self.points)} points")]
        lines += table(("", "points", "median error", "bias"), rows, style) if rows else []
        for reason, count in self.skipped.items():
            lines += style.wrapped(f"{count} points left out: {reason}", "  ")
        median = self.median_abs_error_pct()
        return "\n".join([*lines, f"  median error {median:.1f} %" if median is not None else "  nothing to compare"])


def iteration_sweep(table: Path, hardware: str = "a100_sxm", engine_version: str = "0.11.2") -> IterationSweep:
    """Compare a sweep of engine steps with the cost model at tensor parallel 1 in BF16 with captured graphs.

    table: CSV with SWEEP_COLUMNS. hardware: profile it was measured on. engine_version: of vLLM. Steps of a drafter
    (mode drafter_decode) are left out, since drafters of sweeps are not described. Raises InputError where the file is
    no such table.
    """
    points, skipped = [], dict[str, int]()
    tables: dict[tuple[str, int], IterationTable] = {}
    records = read_table(table, SWEEP_COLUMNS)
    largest = _largest([record.cells for record in records])
    for record in records:
        try:
            if record.problem:
                raise SkippedRow("a record with another number of cells than the header")
            points.append(_point(record.cells, hardware, engine_version, tables, largest))
        except (SkippedRow, RlsimError) as reason:
            skipped[str(reason)] = skipped.get(str(reason), 0) + 1
    return IterationSweep(table.stem, tuple(points), skipped)


def _quantile(values: Sequence[float], level: float) -> float | None:
    return float(np.quantile(np.abs(values), level)) if values else None


def _largest(rows: Sequence[Row]) -> tuple[int, int]:
    """Most sequences and longest context of the sweep, where they are numbers."""

    def top(column: str, most: int) -> int:
        digits = [cell for row in rows if (cell := row.get(column, "")).isascii() and cell.isdigit() and len(cell) < 8]
        return max([1, *(value for value in map(int, digits) if value <= most)])

    return top("batch", MOST_SEQUENCES), top("seq", MOST_CONTEXT_TOKENS)


def _point(
    cells: Row,
    hardware: str,
    version: str,
    tables: dict[tuple[str, int], IterationTable],
    largest: tuple[int, int],
) -> SweepPoint:
    mode = cells["mode"]
    if mode not in ("target_decode", "target_verify"):
        raise SkippedRow(f"mode {shortened(mode, 30)}")
    batch, context, gamma = (number(cells, name) for name in ("batch", "seq", "gamma"))
    measured_ms = number(cells, "median_ms")
    if batch < 1 or context < 1 or measured_ms <= 0:
        raise SkippedRow("batch, seq and median_ms must be above 0")
    if batch > MOST_SEQUENCES or context > MOST_CONTEXT_TOKENS or gamma > MOST_DRAFTED or batch % 1 or gamma % 1:
        raise SkippedRow(
            f"batch over {MOST_SEQUENCES:,}, seq over {MOST_CONTEXT_TOKENS:,}, gamma over {MOST_DRAFTED}, or not whole"
        )
    k = int(gamma) if mode == "target_verify" else 0
    key = (cells["model"], k)
    if key not in tables:
        inputs = engine_inputs_of(cells["model"], hardware, largest, {"version": version}, verification(k))
        host = replace(NO_HOST, overlap_s=inputs.host.overlap_s)
        tables[key] = _forward_only(engine_prices(replace(inputs, host=host)))
    predicted_s = iteration_s(tables[key], int(batch), context)
    return SweepPoint(cells["model"], int(batch), context, k, measured_ms / 1e3, predicted_s)


def engine_inputs_of(
    model: str,
    hardware: str,
    largest: tuple[int, float],
    engine: Mapping[str, object],
    speculation: Mapping[str, object],
) -> EngineInputs:
    """Inputs of the prices of iterations, of a replica for the ``largest`` number of sequences and tokens of context.

    model, hardware: names of a card and a profile. engine, speculation: keys of those sections of a scenario.
    """
    (batch, context_tokens), card = largest, load_card(model_card_name(model, listed=True))
    limits = {"max_running_sequences": batch, "max_captured_tokens": CAPTURED_TOKENS}
    lengths = (2 * batch, 8, 8, max(64, int(context_tokens) + 64))
    document = engine_document(
        card, load_profile(hardware), {**limits, "dispatch": "round_robin", **engine}, speculation, lengths
    )
    return PriceInputs(Scenario.model_validate(document)).engine


def iteration_s(table: IterationTable, batch: int, context_tokens: float) -> float:
    """Seconds of one iteration of ``batch`` decoding sequences with ``context_tokens`` cached each."""
    if batch >= len(table.step_s):
        raise InputError(f"the table holds up to {len(table.step_s) - 1} sequences; got {batch}")
    grid = np.arange(table.attention_s.shape[1]) * table.context_step_tokens
    return float(table.step_s[batch] + np.interp(context_tokens, grid, table.attention_s[batch]))


def verification(draft_length: int) -> dict[str, object]:
    """Speculation keys of a verification of ``draft_length`` + 1 tokens without a drafter; none for 0."""
    if draft_length == 0:
        return {}
    lookup = {"method": "ngram", "acceptance_length": 1.0, "lookup_s_per_1k_tokens": 0.0}
    return {**lookup, "draft_length": draft_length}


def _forward_only(costs: IterationCosts) -> IterationTable:
    """Iterations up to the sampled token, without the rejection sampling that follows a verification.

    What vLLM launches between piecewise graphs because look-ups propose unequally is none of a uniform verification's.
    """
    rejection = costs.components.get("rejection sampling")
    if rejection is None:
        return costs.table
    waited = costs.components.get(EAGER_PART)
    pieces_s = 0.0 if waited is None else np.where(costs.eager, 0.0, waited.seconds)
    return replace(costs.table, step_s=np.maximum(costs.table.step_s - rejection.seconds - pieces_s, 0.0))


def main(arguments: Sequence[str]) -> int:
    """Print every sweep. Exit status 2 for what is no such table."""
    try:
        print("\n\n".join(iteration_sweep(Path(path)).text() for path in arguments))
    except RlsimError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
