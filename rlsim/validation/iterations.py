"""Measured engine iterations beside the engine's own costs, each measured as its source measured it.

A decode step alone (``decode_step_ms_est``, or the latency of decode workers that never prefill) is one iteration of
the running batch at its mean context. Aggregate serving, where prompts are prefilled between decode steps, is simulated
as a closed loop on the simulation's own replica.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlsim.costs.interface import IterationTable
from rlsim.errors import RlsimError
from rlsim.parameters.fitted import current
from rlsim.parameters.sets import shipped
from rlsim.report.format import signed_percent
from rlsim.schema.engine_parameters import EngineParameters
from rlsim.simulation.closed_loop import closed_loop
from rlsim.simulation.iteration_times import prepare
from rlsim.simulation.requests import Request
from rlsim.validation.halves import TableRecords
from rlsim.validation.iteration_points import (
    ASSUMED_ACCEPTANCE,
    SERVING_BUDGET_TOKENS,
    EngineSetup,
    Load,
    PreparedEngine,
    engine_setup,
    load_of,
    prepared_engine,
)
from rlsim.validation.measured import MeasuredRow, MeasuredTable, Names, measured_value
from rlsim.validation.rows import SkippedRow
from rlsim.validation.scores import Score
from rlsim.validation.speculation_pairs import speculation_pairs

LEAST_MEASURED = 64
"""Requests at least over which a closed loop is averaged."""
ALONE, LOOP = "decode step", "time per output token"


@dataclass(frozen=True)
class _Point:
    """A row that can be simulated: its place in the table, its engine and its load."""

    place: int
    setup: EngineSetup
    load: Load


@dataclass(frozen=True)
class _Latency:
    """What was simulated, in seconds: a decode step, and time per output token and to the first one if served."""

    step_s: float
    tpot_s: float | None = None
    ttft_s: float | None = None


def validate_iterations(records: TableRecords, engines: EngineParameters | None = None) -> MeasuredTable:
    """Every row of a table of measured iterations beside its prediction; the seed is of the lengths in closed loops.

    engines: host and graph terms of the engines, without group deviations; default what rlsim is priced with.
    """
    fitted = current() if engines is None else replace(shipped(), engines=engines)
    rows, points, names = [], [], Names()
    for place, record in enumerate(records.rows):
        row = _described(names.of(record), record.cells)
        try:
            names.check(record)
            load = load_of(record.cells)
            points.append(_Point(place, engine_setup(record.cells, load), load))
        except (SkippedRow, RlsimError) as reason:
            row = row.skip(reason)
        rows.append(row)
    done = len(records.rows) - len(points)
    # In the order of their engines, so that each is prepared once; a table of 5,000 rows has some 1,000 of them.
    loops: dict[tuple[EngineSetup, Load, str], _Latency] = {}
    for point in sorted(points, key=lambda point: (str(point.setup), point.place)):
        cells = records.rows[point.place].cells
        try:
            engine = prepared_engine(point.setup, fitted)
            rows[point.place] = _predicted(rows[point.place], cells, point, engine, loops, records.seed)
        except (SkippedRow, RlsimError) as reason:
            rows[point.place] = rows[point.place].skip(reason)
        done += 1
        records.tell(done)
    pairs = speculation_pairs(rows, [record.cells for record in records.rows])
    ttft = Score.of_errors(_ttft_errors(rows))
    return MeasuredTable(
        "iterations", records.table, records.digest, tuple(rows), _remarks(rows),
        {"speculation_pairs": pairs.as_dict(), "ttft": ttft.as_dict()}, (*pairs.text(), *_ttft_text(ttft)),
    )  # fmt: skip


def _described(name: str, cells: Mapping[str, str]) -> MeasuredRow:
    """The row before its prediction: what was measured, and what it is grouped by."""
    method = cells.get("spec_method", "").lower()
    model = cells.get("model", "").split("/")[-1]
    about = [model, cells.get("gpu", ""), cells.get("engine", "")]
    if method and method != "none":
        about.append("speculative")
    step_ms = measured_value(cells, ["decode_step_ms_est"])
    return MeasuredRow(
        name, ", ".join(about), "ms",
        measured=step_ms or measured_value(cells, ["tpot_ms"]),
        details={
            "model": model,
            "gpu": cells.get("gpu", ""),
            "engine": cells.get("engine", ""),
            "engine_version": cells.get("engine_version", ""),
            "speculative": method not in ("", "none"),
            "quantity": ALONE if step_ms or cells.get("serving_mode") == "disagg" else LOOP,
        },
    )  # fmt: skip


def _predicted(
    row: MeasuredRow,
    cells: Mapping[str, str],
    point: _Point,
    engine: PreparedEngine,
    loops: dict[tuple[EngineSetup, Load, str], _Latency],
    seed: int,
) -> MeasuredRow:
    """The row with its prediction; raises SkippedRow where nothing of it was measured."""
    if row.measured is None:
        raise SkippedRow("neither decode_step_ms_est nor tpot_ms is a number above 0")
    served_alone = cells.get("serving_mode") == "disagg"
    averaged = "mean" if cells.get("tpot_kind", "mean") == "mean" else "median"
    key = (point.setup, point.load, "alone" if served_alone else averaged)
    if key not in loops:
        loops[key] = _latency(engine.costs.table, point.load, served_alone, averaged, seed)
    found = loops[key]
    step_measured = measured_value(cells, ["decode_step_ms_est"]) is not None
    predicted_s = found.step_s if step_measured else found.tpot_s
    if predicted_s is None:
        raise SkippedRow(f"acceptance_length is not given for spec_k {point.setup.draft_length}")
    ttft = found.ttft_s
    return replace(row, cuts=_cuts(row, engine, point)).predict(
        1e3 * predicted_s,
        engine.deviation,
        batch=point.load.batch,
        context_tokens=point.load.context_tokens,
        step_predicted_ms=1e3 * found.step_s,
        measured_step=step_measured,
        gpus_per_engine=point.setup.gpus,
        release=point.setup.version,
        several_nodes=engine.several_nodes,
        acceptance_length=point.load.acceptance_length,
        tpot_predicted_ms=None if found.tpot_s is None else 1e3 * found.tpot_s,
        tpot_measured_ms=measured_value(cells, ["tpot_ms"]),
        ttft_predicted_ms=None if ttft is None else 1e3 * ttft,
        ttft_measured_ms=None if ttft is None else measured_value(cells, ["ttft_ms"]),
    )


def _cuts(row: MeasuredRow, engine: PreparedEngine, point: _Point) -> tuple[str, ...]:
    """Further sets that the row is scored in; those of engines and batches hold rows without speculation alone."""
    if point.setup.draft_length:
        return ("speculative rows",)
    batch = point.load.batch
    size = "up to 8" if batch <= 8 else "9 to 63" if batch < 64 else "from 64 on"
    place = "several nodes or trays" if engine.several_nodes else "one node or tray"
    both = f"plain, engine in {place}, running batch {size}"
    whole = (
        "plain rows",
        f"plain, engine in {place}",
        f"plain, running batch {size}",
        f"plain, {row.details['quantity']}",
    )
    return whole if engine.several_nodes else (*whole, both)


def _latency(table: IterationTable, load: Load, alone: bool, averaged: str, seed: int) -> _Latency:
    step_s = decode_step_s(table, load.batch, load.context_tokens)
    if load.acceptance_length is None:
        return _Latency(step_s)
    if alone:
        return _Latency(step_s, step_s / load.acceptance_length)
    requests, measured = drawn_requests(load, seed)
    served = closed_loop(table, requests, load.concurrency, measured.stop)[measured.start :]
    mean = np.mean if averaged == "mean" else np.median
    return _Latency(step_s, float(mean([one.tpot_s for one in served])), float(mean([one.ttft_s for one in served])))


def decode_step_s(table: IterationTable, batch: float, context_tokens: float) -> float:
    """Seconds of one iteration that decodes ``batch`` sequences, between whole numbers of them linearly."""
    times = prepare(table)
    below = int(batch)
    low = times.decode(below, context_tokens)
    if batch == below:
        return low
    return low + (batch - below) * (times.decode(below + 1, context_tokens) - low)


def drawn_requests(load: Load, seed: int) -> tuple[list[Request], range]:
    """Requests of a closed loop, and those of them that are averaged: the ones between the first and the last wave."""
    first = load.concurrency
    measured = range(first, first + max(2 * load.concurrency, LEAST_MEASURED))
    count = measured.stop + load.concurrency
    rng = np.random.default_rng(np.random.SeedSequence([seed, load.concurrency, load.prompt_tokens]))
    prompts, responses = (
        rng.integers(max(1, round(load.shortest * nominal)), nominal, count, endpoint=True).tolist()
        for nominal in (load.prompt_tokens, load.response_tokens)
    )
    accepted = load.acceptance_length or 1.0
    return [
        Request(i, i, prompt, response, max(1, round((response - 1) / accepted)) if response > 1 else 0)
        for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True))
    ], measured


def _ttft_errors(rows: Sequence[MeasuredRow]) -> list[float]:
    """Signed errors of the time to the first token as shares, of the rows that were served in a closed loop."""
    both = [(row.details.get("ttft_predicted_ms"), row.details.get("ttft_measured_ms")) for row in rows]
    return [float(predicted) / float(measured) - 1 for predicted, measured in both if predicted and measured]


def _ttft_text(score: Score) -> list[str]:
    if not score.n:
        return []
    return [
        f"time to the first token, closed loops: {score.n} rows, bias {signed_percent(score.bias or 0.0)}, "
        f"median error {100 * (score.median_abs_error or 0.0):.0f} %"
    ]


def _remarks(rows: Sequence[MeasuredRow]) -> tuple[str, ...]:
    scored = [row for row in rows if row.predicted is not None]
    out = []
    if scored:
        out = [
            f"token budget of an iteration taken as {SERVING_BUDGET_TOKENS:,}",
            "KV cache, where a row does not tell: FP8 for quantised checkpoints on Blackwell, else BF16",
            "graphs are captured up to the batch that is served: no row tells what was captured",
        ]
    if any(row.details.get("speculative") for row in scored):
        lengths = ", ".join(f"{length:g} at K={k}" for k, length in ASSUMED_ACCEPTANCE.items())
        out.append(f"MTP rows that state no acceptance length are taken at that of random tokens: {lengths}")
    return tuple(out)
