"""Measured engine iterations beside the engine's own costs, each measured as its source measured it.

A decode step alone (``decode_step_ms_est``, or the latency of decode workers that never prefill) is one iteration of
the running batch at its mean context. Aggregate serving, where prompts are prefilled between decode steps, is simulated
as a closed loop on the simulation's own replica.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlsim.costs.interface import IterationTable
from rlsim.errors import RlsimError
from rlsim.evidence import engines
from rlsim.evidence.rows import Comparison, MeasuredRow, Predict, Prediction
from rlsim.evidence.tables import Row, SkippedRow, Table, measured_value
from rlsim.files.yaml import lists_beside
from rlsim.parameters.sets import Fitted
from rlsim.results.validation import ComparedRow, Detail, Score, SpeculationPair, SpeculationPairs
from rlsim.schema.scenario import Scenario
from rlsim.simulation.closed_loop import closed_loop
from rlsim.simulation.iteration_times import prepare
from rlsim.simulation.requests import Request

WAVES = 10
"""Requests of each client of a closed loop."""
CLIENT_ITERATIONS, CLIENT_TOKEN_S = 4.65, 9.45e-6
"""What a client's time to the first token holds besides the engine's: decode iterations, and seconds of a prompt token.

A request comes while an iteration runs and the next one is often scheduled already; its first token leaves with those
of all others that one process turns into text and sends; prompts are encoded. Fitted by ``python -m
research.first_token`` to 2,302 of the 2,396 closed loops of decode_iterations.csv, those that are off by less than a
factor of five: 18 % off in the median, 19, 18, 19 and 19 % with whole engines, models, devices and sources left out. If
the engine's own time were free, it would count 1.08 times.
"""
WINDOW_PREFILLS = 0.5
"""Prefills of a window of tokens up to which its median is one without."""
ALONE, LOOP = "decode step", "time per output token"
AGREEING: Sequence[str] = lists_beside(__file__)["pair_columns"]
"""Columns that both rows of a pair share."""
CLEAR = 0.05
"""Speed-ups nearer to 1 than this are not asked for their sign: repeated points differ by as much."""


@dataclass(frozen=True)
class _Latency:
    """Simulated seconds: of a decode step, and time per output token and to the first one if served."""

    step_s: float
    tpot_s: float | None = None
    ttft_s: float | None = None


def _predictor(table: Table, fitted: Fitted) -> Predict:
    """A function that predicts measured iterations; the table's seed is of the lengths in closed loops."""
    loops: dict[tuple[Scenario, engines.Load, str], _Latency] = {}
    speculating = {_published(record.cells) for record in table.rows if _speculates(record.cells)}

    def predict(row: MeasuredRow) -> Prediction:
        if row.cells.get("spec_basis") == "presumed" and _published(row.cells) in speculating:
            raise SkippedRow("spec_method is presumed, and another row tells of speculation in the same measurement")
        load = engines.load_of(row.cells)
        setup = engines.engine_setup(row.cells, load)
        costs = engines.prepared_engine(setup, fitted)
        if row.measured is None:
            raise SkippedRow("neither decode_step_ms_est nor tpot_ms is a number above 0")
        served_alone = row.cells.get("serving_mode") == "disagg"
        averaged = "mean" if row.cells.get("tpot_kind", "mean") == "mean" else "median"
        # Rows of one load that several sources publish are simulated once.
        key = (setup, load, "alone" if served_alone else averaged)
        if key not in loops:
            loops[key] = _latency(costs.table, load, key[2], table.seed)
        return _predicted(row, setup, load, fitted, loops[key])

    return predict


def _speculates(cells: Row) -> bool:
    return cells.get("spec_method", "").lower() not in ("", "none")


def _published(cells: Row) -> tuple[object, ...]:
    """Key that copies of a measurement share, however many digits they print."""
    tpot_ms, ttft_ms = (measured_value(cells, column) or 0.0 for column in ("tpot_ms", "ttft_ms"))
    return (*_agreeing(cells), round(tpot_ms, 2), round(ttft_ms, 1))


def _engine_of(row: MeasuredRow) -> str:
    """The engine of a row; empty where it has none. A table of 5,000 rows has some 1,000 engines, each prepared once
    in their order."""
    try:
        return engines.engine_setup(row.cells, engines.load_of(row.cells)).model_dump_json()
    except (SkippedRow, RlsimError):
        return ""


def _step_ms(cells: Row) -> float | None:
    """Milliseconds of the decode step alone, where it was measured; else None.

    A median over windows of several tokens (``stream_interval_est``) is one of windows with a prefill, where requests
    of an engine that prefills too follow each other faster than these windows: there the time per token is better.
    """
    names = ("stream_interval_est", "concurrency", "osl")
    window, clients, tokens = (measured_value(cells, name) or 0.0 for name in names)
    prefills = cells.get("serving_mode") == "agg" and window > 1 and window * clients > WINDOW_PREFILLS * tokens
    return None if prefills and measured_value(cells, "tpot_ms") else measured_value(cells, "decode_step_ms_est")


def _measured_rows(name: str, cells: Row) -> list[MeasuredRow]:
    model, speculative = cells.get("model", "").split("/")[-1], _speculates(cells)
    step_ms = _step_ms(cells)
    about = {"model": model} | {column: cells.get(column, "") for column in ("gpu", "engine", "engine_version")}
    group = ", ".join([model, about["gpu"], about["engine"], *(["speculative"] if speculative else [])])
    quantity = ALONE if step_ms or cells.get("serving_mode") == "disagg" else LOOP
    details: dict[str, Detail] = {**about, "speculative": speculative, "quantity": quantity}
    return [MeasuredRow(name, group, "ms", step_ms or measured_value(cells, "tpot_ms"), cells, details)]


def _predicted(row: MeasuredRow, setup: Scenario, load: engines.Load, fitted: Fitted, found: _Latency) -> Prediction:
    """The decode step, or the time per output token where that was measured. Raises SkippedRow where it is unknown."""
    step_measured = _step_ms(row.cells) is not None
    predicted_s = found.step_s if step_measured else found.tpot_s
    if predicted_s is None:
        raise SkippedRow(f"acceptance_length is not given for spec_k {setup.speculation.draft_length}")
    ttft, gpus = found.ttft_s, setup.engine.tensor_parallel
    several_nodes = gpus > int(setup.hardware.gpus_per_node)
    return Prediction.within(
        1e3 * predicted_s,
        fitted.engines.family(setup.engine.name).error,
        _cuts(row, several_nodes, load),
        batch=load.batch,
        context_tokens=load.context_tokens,
        step_predicted_ms=1e3 * found.step_s,
        measured_step=step_measured,
        gpus_per_engine=gpus,
        release=setup.engine.version,
        several_nodes=several_nodes,
        acceptance_length=load.acceptance_length,
        tpot_predicted_ms=None if found.tpot_s is None else 1e3 * found.tpot_s,
        tpot_measured_ms=measured_value(row.cells, "tpot_ms"),
        ttft_predicted_ms=None if ttft is None else 1e3 * ttft,
        ttft_measured_ms=None if ttft is None else measured_value(row.cells, "ttft_ms"),
    )


def _cuts(row: MeasuredRow, several_nodes: bool, load: engines.Load) -> tuple[str, ...]:
    """Further sets that the row is scored in; those of engines and batches hold rows without speculation alone."""
    if row.details["speculative"]:
        return ("speculative rows",)
    size = "up to 8" if load.batch <= 8 else "9 to 63" if load.batch < 64 else "from 64 on"
    place = "several nodes or trays" if several_nodes else "one node or tray"
    names = ["plain rows", f"plain, engine in {place}", f"plain, running batch {size}"]
    names.append(f"plain, {row.details['quantity']}")
    return tuple(names if several_nodes else [*names, f"plain, engine in {place}, running batch {size}"])


def _latency(table: IterationTable, load: engines.Load, measured_as: str, seed: int) -> _Latency:
    """Simulated latencies; measured_as: alone (one iteration), or mean or median over the requests of a closed loop."""
    step_s = decode_step_s(table, load.batch, load.context_tokens)
    if load.acceptance_length is None:
        return _Latency(step_s)
    if measured_as == "alone":
        return _Latency(step_s, step_s / load.acceptance_length)
    requests, measured = drawn_requests(load, seed, lockstep=table.chunked_prefill or load.shortest < 1)
    loop = closed_loop(table, requests, load.concurrency, measured.stop, load.receive_interval)
    served = loop[measured.start :]
    mean = np.mean if measured_as == "mean" else np.median
    client_s = CLIENT_ITERATIONS * step_s + load.mean_share * load.prompt_tokens * CLIENT_TOKEN_S
    ttft_s = client_s + float(mean([one.ttft_s for one in served]))
    return _Latency(step_s, float(mean([one.tpot_s for one in served])), ttft_s)


def decode_step_s(table: IterationTable, batch: float, context_tokens: float) -> float:
    """Seconds of one iteration that decodes ``batch`` sequences, between whole numbers of them linearly."""
    times = prepare(table)
    below = int(batch)
    low = times.decode(below, context_tokens)
    if batch == below:
        return low
    return low + (batch - below) * (times.decode(below + 1, context_tokens) - low)


def drawn_requests(load: engines.Load, seed: int, lockstep: bool) -> tuple[list[Request], range]:
    """Requests of a closed loop, and those of them that are averaged.

    Benchmarks begin with a wave of all clients at once, ask WAVES requests of each and average all of them (InferenceX,
    ``benchmarks/benchmark_lib.sh`` at 843c6254f: ten times the concurrency). lockstep: without it the first wave is
    anywhere in its responses and not averaged, as in a loop that has run for a while: an engine that prefills alone
    would answer equal lengths and be asked again in lockstep for ever, and no prompt would interrupt those that decode.
    """
    first, count = load.concurrency, WAVES * load.concurrency
    measured = range(0 if lockstep else first, count)
    count += 0 if lockstep else first
    # Seeded by the load: a row draws the same lengths wherever it stands in a table.
    rng = np.random.default_rng(np.random.SeedSequence([seed, load.concurrency, load.prompt_tokens]))
    prompts, responses = (
        rng.integers(max(1, round(load.shortest * nominal)), nominal, count, endpoint=True).tolist()
        for nominal in (load.prompt_tokens, load.response_tokens)
    )
    if not lockstep:
        shares = zip(responses[:first], rng.uniform(size=first), strict=True)
        responses[:first] = [max(1, round(tokens * left)) for tokens, left in shares]
    accepted = load.acceptance_length or 1.0
    return [
        # The prefill yields the first token, iterations the others.
        Request(i, i, prompt, response, max(1, round((response - 1) / accepted)) if response > 1 else 0)
        for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True))
    ], measured


def _extra_fields(table: Table, rows: Sequence[ComparedRow]) -> dict[str, Any]:
    """Remarks, speed-ups over plain partners and the time to the first token."""
    scored = [row for row in rows if row.predicted is not None]
    out = []
    if scored:
        out = [
            f"token budget of an iteration taken as {engines.SERVING_BUDGET_TOKENS:,}",
            "KV cache, where a row does not tell: FP8 for quantised checkpoints on Blackwell, else BF16",
            "graphs are captured up to the batch that is served: no row tells what was captured",
        ]
    if any(row.details.get("speculative") for row in scored):
        lengths = ", ".join(f"{length:g} at K={k}" for k, length in engines.ASSUMED_ACCEPTANCE.items())
        out.append(f"MTP rows that state no acceptance length are taken at that of random tokens: {lengths}")
    pairs = speculation_pairs(rows, [record.cells for record in table.rows])
    first = [both for row in rows if (both := _times(row, "ttft"))]  # of rows that were served in a closed loop
    ttft = Score.of_errors([predicted / measured - 1 for measured, predicted in first])
    return {"remarks": tuple(out), "speculation_pairs": pairs, "ttft": ttft}


ITERATIONS = Comparison(_measured_rows, _predictor, _extra_fields, _engine_of)
"""Measured engine iterations beside the engine's own costs."""


def speculation_pairs(rows: Sequence[ComparedRow], cells: Sequence[Row]) -> SpeculationPairs:
    """Each speculating row with a plain one that agrees with it in AGREEING; ``cells`` of the rows in their order.

    The partner is of the same source if there is one, and of the nearest release.
    """
    times = [_times(row, "tpot") for row in rows]
    plain: dict[tuple[str, ...], list[int]] = {}
    for i, row in enumerate(rows):
        if times[i] and not row.details.get("speculative"):
            plain.setdefault(_agreeing(cells[i]), []).append(i)
    pairs = []
    for i, row in enumerate(rows):
        here, partners = times[i], plain.get(_agreeing(cells[i]), [])
        if here is None or not partners or not row.details.get("speculative"):
            continue
        # Of equally near partners the first one counts.
        nearest = min(partners, key=lambda other: (*_distance(cells[i], cells[other]), other))
        # Partners all have times; "or here" is for the type checker.
        measured, predicted = (a / b for a, b in zip(times[nearest] or here, here, strict=True))
        names = {"id": row.id, "plain_id": rows[nearest].id, "group": row.group}
        pairs.append(SpeculationPair(**names, batch=row.details.get("batch"), measured=measured, predicted=predicted))
    clear = [pair for pair in pairs if abs(pair.measured - 1) > CLEAR]
    right = [(pair.measured > 1) == (pair.predicted > 1) for pair in clear]
    score = Score.of_errors([pair.predicted / pair.measured - 1 for pair in pairs])
    errors = score.model_dump(include={"n", "median_abs_error", "p90_abs_error", "bias"})
    share = sum(right) / len(right) if right else None
    return SpeculationPairs(**errors, clear=len(clear), right_sign_share=share, pairs=tuple(pairs))


def _times(row: ComparedRow, name: str) -> tuple[float, float] | None:
    """Measured and predicted time per output token (tpot) or to the first one (ttft), where the row has both."""
    measured, predicted = row.details.get(f"{name}_measured_ms"), row.details.get(f"{name}_predicted_ms")
    return (float(measured), float(predicted)) if measured and predicted else None


def _agreeing(cells: Row) -> tuple[str, ...]:
    return tuple(cells.get(column, "") for column in AGREEING)


def _distance(one: Row, other: Row) -> tuple[bool, float]:
    """Distance of two rows for pairing: whether sources differ, then how far releases are apart."""
    apart = abs(_release(one.get("engine_version", "")) - _release(other.get("engine_version", "")))
    return one.get("source") != other.get("source"), math.inf if math.isnan(apart) else apart


def _release(text: str) -> float:
    """A release as one number, so that 0.5.9 is nearer to 0.5.10 than to 0.6; NaN where the text names none."""
    parts = re.findall(r"\d+", text)[:3] if re.match(r"v?\d+\.\d", text) else ["nan"]
    return float(sum(float(part) / 1000**i for i, part in enumerate(parts)))
