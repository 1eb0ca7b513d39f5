"""Measured offline throughput beside the rollout itself: many requests at once, whole generations, tokens/s and GPU.

This is what a rollout of RL is without its trainer: everything is submitted at time 0 and the time ends with the last
token. The engines are those of measured iterations, the batch runs on the simulation's own replicas.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from rlsim.costs.memory import engine_memory
from rlsim.evidence.engines import Load, engine_setup, inputs_of, load_of, moved_hosts, prepared_engine
from rlsim.evidence.rows import Comparison, MeasuredRow, Predict, Prediction
from rlsim.evidence.tables import Row, SkippedRow, Table, measured_value, whole_number
from rlsim.files.yaml import lists_beside
from rlsim.parameters.sets import Fitted
from rlsim.projection.uncertainty.slopes import Slopes, point_changes_s, points_of
from rlsim.results.validation import ComparedRow
from rlsim.schema.base import changed
from rlsim.schema.loop import MOST_GPUS
from rlsim.schema.scenario import Scenario
from rlsim.simulation.pool import Fleet
from rlsim.simulation.rollout import RolloutResult, rollout
from rlsim.workload.batches import Batch

UNIT = "tokens/s/GPU"
HARMLESS_FLAGS = ("offline_throughput_batch_unknown",)
"""Objections to a row as an iteration and to none as a rollout: the batch is what the simulation finds."""
ASSUMED_REQUESTS = 3000
"""Requests at once where a row states none: those of the same page's rows of equal lengths."""
RUNNING: Mapping[str, int] = lists_beside(__file__)["offline_running"]
"""Sequences that an engine decodes at once at most, by its own default."""
NO_EVICTION = ("trtllm",)
"""Engines that reserve the whole length of a request before it starts: TensorRT-LLM's capacity scheduler,
GUARANTEED_NO_EVICT by default (tensorrt_llm/llmapi/llm_args.py)."""
STATED = re.compile(r"(\d[\d,]*) requests at once")
"""How notes of a row state its requests where it has no column for them."""


@dataclass(frozen=True)
class OfflineRun:
    """A measured rollout: its engine, what was asked of it, and how many engines shared that."""

    setup: Scenario
    load: Load
    requests: int
    engines: int

    @property
    def gpus(self) -> int:
        """GPUs of all engines."""
        return self.engines * self.setup.engine.tensor_parallel


def run_of(cells: Row) -> OfflineRun:
    """The rollout that a row measured; SkippedRow where it is open.

    An engine runs as many sequences as its default lets it and its cache holds, each copy of attention for itself, and
    so it is with the token budget of an iteration; columns max_running_sequences and max_batched_tokens win. One that
    evicts nothing (NO_EVICTION) starts a request only where its whole length has room. Its outputs are handled in the
    caller's process, as those of a synchronous RL step.
    """
    if measured_value(cells, "concurrency", "decode_batch_per_engine"):
        raise SkippedRow("a closed loop of a server, no rollout; see --kind iterations")
    requests, size = _requests(cells), whole_number(cells, "decode_gpus_per_engine")
    gpus = whole_number(cells, "num_gpus", size)
    if gpus > MOST_GPUS:
        raise SkippedRow(f"num_gpus must be at most {MOST_GPUS:,}; got {gpus}")
    if gpus % size:
        raise SkippedRow(f"num_gpus {gpus} is no multiple of decode_gpus_per_engine {size}")
    engines = gpus // size
    # Rounded up: the engine with the most requests ends last.
    each = -(-requests // engines)
    load = load_of({**cells, "decode_batch_per_engine": str(each), "est_decoding_reqs_per_engine": ""})
    setup = engine_setup(cells, load)
    copies = setup.engine.attention_data_parallel
    most = whole_number(cells, "max_running_sequences", RUNNING[setup.engine.name] * copies)
    budget = whole_number(cells, "max_batched_tokens", setup.released_engine.budget_tokens * copies)
    if setup.engine.name in NO_EVICTION:
        room = engine_memory(setup).kv_capacity_tokens / (load.prompt_tokens + load.response_tokens)
        most = min(most, max(1, int(room)))
    engine = changed(setup.engine, max_running_sequences=min(most, each), max_batched_tokens=budget, in_process=True)
    return OfflineRun(changed(setup, engine=engine), load, requests, engines)


def _requests(cells: Row) -> int:
    stated = STATED.search(cells.get("notes", ""))
    return whole_number(cells, "num_requests", int(stated[1].replace(",", "")) if stated else ASSUMED_REQUESTS)


@lru_cache(maxsize=128)
def simulated(run: OfflineRun, fitted: Fitted, seed: int) -> RolloutResult:
    """The rollout under ``fitted``; lengths are drawn from ``seed`` where they differ."""
    load = run.load
    if load.acceptance_length is None:
        raise SkippedRow(f"acceptance_length is not given for spec_k {run.setup.speculation.draft_length}")
    rng = np.random.default_rng(np.random.SeedSequence([seed, run.requests, load.prompt_tokens]))
    prompts, responses = (
        rng.integers(max(1, round(load.shortest * nominal)), nominal, run.requests, endpoint=True)
        for nominal in (load.prompt_tokens, load.response_tokens)
    )
    # The prefill yields the first token, iterations the others.
    iterations = np.where(responses > 1, np.maximum(1, np.rint((responses - 1) / load.acceptance_length)), 0)
    # Prompts of throughput benchmarks are random tokens: a prefix cache would find nothing.
    fleet = Fleet(run.engines, "round_robin", prepared_engine(run.setup, fitted).table, prefix_caching=False)
    return rollout(Batch(prompts, responses, np.arange(run.requests)), iterations.astype(np.int64), fleet)


def rollout_slopes(run: OfflineRun, fitted: Fitted, moves: Mapping[str, Fitted], seed: int) -> Slopes:
    """Derivatives of the logarithm of the rollout's time by the engine's terms; moves: sets with each moved."""
    found, inputs = simulated(run, fitted, seed), inputs_of(run.setup, fitted)
    batches, contexts, iterations = points_of(found.counters)
    if not len(batches):  # responses of one token: prefills alone, in which the terms have no part
        return {}
    _, changes_s = point_changes_s(inputs, batches, contexts, moved_hosts(inputs, moves))
    # Counters add up the iterations of all engines.
    engine_s = found.seconds * run.engines
    return {name: float(np.dot(change, iterations)) / engine_s for name, change in changes_s.items() if change.any()}


def _predictor(table: Table, fitted: Fitted) -> Predict:
    """A function that predicts measured rollouts; the table's seed is of their lengths."""

    def predict(row: MeasuredRow) -> Prediction:
        if row.measured is None:
            raise SkippedRow("tokens_per_s_per_gpu is no number above 0")
        run = run_of(row.cells)
        found = simulated(run, fitted, table.seed)
        counted = np.asarray(found.counters.iterations_at)
        running = float(np.dot(counted, np.arange(counted.size)) / max(1, counted.sum()))
        details = {**_named(run), "running_mean": running, "preemptions": found.counters.preemptions}
        details |= {"prefill_share": found.counters.prefill_s / (found.seconds * run.engines)}
        details |= {"tokens_per_gpu": found.generated_tokens / run.gpus}
        value = found.generated_tokens / found.seconds / run.gpus
        return Prediction.within(value, fitted.engines.family(run.setup.engine.name).error, _cuts(row, run), **details)

    return predict


def _named(run: OfflineRun) -> dict[str, Any]:
    engine = run.setup.engine
    return {
        "requests": run.requests, "kv_precision": engine.kv_precision, "gpus_per_engine": engine.tensor_parallel,
        "release": engine.version, "most_running": engine.most_running,
    }  # fmt: skip


def _cuts(row: MeasuredRow, run: OfflineRun) -> tuple[str, ...]:
    setup, load = run.setup, run.load
    ratio = load.prompt_tokens / load.response_tokens
    shape = "prompts longer" if ratio > 1.5 else "responses longer" if ratio < 1 / 1.5 else "as long as prompts"
    device = f"{setup.engine.name}, {setup.hardware.name}"
    return device, f"{setup.engine.name}, {setup.model.name}", shape, f"weights {setup.engine.weight_precision}"


def _measured_rows(name: str, cells: Row) -> list[MeasuredRow]:
    model = cells.get("model", "").split("/")[-1]
    about = {column: cells.get(column, "") for column in ("gpu", "engine")}
    group = ", ".join([model, *about.values()])
    details = {"model": model, **about, "isl": cells.get("isl", ""), "osl": cells.get("osl", "")}
    return [MeasuredRow(name, group, UNIT, measured_value(cells, "tokens_per_s_per_gpu"), cells, details)]


def _engine_of(row: MeasuredRow) -> str:
    return ", ".join(row.cells.get(column, "") for column in ("model", "gpu", "engine", "isl", "osl"))


def _extra_fields(table: Table, rows: Sequence[ComparedRow]) -> dict[str, Any]:
    """Remarks: assumptions about the rows that were simulated."""
    if not any(row.predicted is not None for row in rows):
        return {}
    most = ", ".join(f"{name} {count:,}" for name, count in RUNNING.items())
    return {"remarks": (
        f"rows that state no number of requests are taken at {ASSUMED_REQUESTS:,} at once",
        f"sequences running at once: at most the engine's default ({most}), each attention copy for itself",
        "KV cache, where a row does not tell: FP8 for NVIDIA's quantised checkpoints and on Blackwell, else BF16",
    )}  # fmt: skip


ROLLOUTS = Comparison(_measured_rows, _predictor, _extra_fields, _engine_of, HARMLESS_FLAGS)
"""Measured offline throughput beside the simulated rollout."""
