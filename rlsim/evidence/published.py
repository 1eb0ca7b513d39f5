"""All published tables beside their predictions: steps, a study of speculation, speed-ups at fixed batch, transfers.

The study is arXiv 2604.26779; its batch and lengths are unpublished, and the scenarios qwen8b_rl_zero, qwen8b_rl_think
and qwen8b_async_lag1 state what was assumed. At fixed batch speed-up = acceptance length x t(decode) / t(draft and
verify), as since Leviathan et al. (arXiv 2211.17192), of rows with known GPU, engine, batch and acceptance length. The
parallel size of these is unpublished; the autoregressive rate shows one GPU (about 190 tokens/s of a model of 8B
parameters are 64 % of what reading the weights once per token would allow on an H200). SGLang's scheduler works while
the device does, except with EAGLE drafts, which switched that off until late 2025.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from rlsim.costs.engine.prices import EngineInputs, engine_prices
from rlsim.costs.interface import IterationTable
from rlsim.costs.prices import PriceInputs
from rlsim.errors import InputError
from rlsim.evidence.compare import Progress, validate_table, validated
from rlsim.evidence.cross import validate_cross
from rlsim.evidence.engines import engine_document
from rlsim.evidence.rows import device_profile_name, model_card_name
from rlsim.evidence.tables import Kind, Table, read_table
from rlsim.evidence.transfers import each_once
from rlsim.files.reading import data_folder, shown_path
from rlsim.loading.models import load_card
from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.results import Interval, Projection
from rlsim.results.validation import Published, PublishedFigure, Validation
from rlsim.schema.scenario import Scenario
from rlsim.tables.profile import load_profile

NGRAM_DRAFT_LENGTH = 5
"""k of the study's n-gram runs is unpublished; 5 is the value of vLLM's own examples. Assumption."""
PHASES = ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s", "step_s")
Answer = Callable[..., Projection]
CONTEXT_TOKENS = 500
"""Mean context of the published runs (prompt and half of the answer). Unpublished: an assumption; small at batch 1."""
MOST_CONTEXT_TOKENS = 4096
CAPTURED_TOKENS = 512
"""Largest captured batch of engines with their usual limit of 256 sequences and more."""


Tables = Mapping[Kind, Sequence[Path]]


def run_published(
    seed: int = 0,
    replications: int = 4,
    progress: Progress | None = None,
    tables: Tables | None = None,
    cross: bool = False,
) -> Published:
    """Predict every published table that comes with rlsim, and ``tables`` by kind, of which those of one are joined.

    cross: leave groups out of the joint fit as well. Raises InputError where one of the tables is of another kind.
    """
    # First what a user gave: a mistake in it shows before the published tables take their minutes.
    given = {str(kind): _joined(kind, paths, progress, seed) for kind, paths in (tables or {}).items() if paths}
    steps = validate_table(published_table("rl_steps.csv"), Kind.STEPS, progress, seed, replications)
    refits, left_out = published_refits()
    return Published(
        steps=steps,
        digest=published_digest(),
        compared=(*study(seed, replications), *measured_speculation(), *refits),
        cross=validate_cross() if cross else None,
        refits_left_out=left_out,
        **given,
    )


def published_table(name: str) -> Path:
    """A table of published figures that comes with rlsim."""
    return data_folder("calibration") / "published" / name


def published_digest() -> str:
    """First 16 hex digits of the SHA-256 of the published tables, names included."""
    digest = hashlib.sha256()
    for path in sorted(published_table("").glob("*.csv")):
        # A checkout on Windows has CRLF; the digest is of the content.
        digest.update(path.name.encode() + b"\0" + path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:16]


def _joined(kind: Kind, paths: Sequence[Path], progress: Progress | None, seed: int) -> Validation:
    """The tables at ``paths``, joined; a transfer that several rows hold is scored once."""
    for path in paths:
        if [other.resolve() for other in paths].count(path.resolve()) > 1:
            raise InputError(f"--{kind}: {shown_path(path)} is given more than once")
    found = [validate_table(path, kind, progress, seed) for path in paths]
    if len(found) == 1 and kind is not Kind.TRANSFERS:
        return found[0]
    rows = [row for validation in found for row in validation.rows]
    return Validation.of(
        kind,
        list(each_once(rows)) if kind is Kind.TRANSFERS else rows,
        table=", ".join(validation.table for validation in found),
        digest=", ".join(validation.digest for validation in found),
        remarks=tuple(dict.fromkeys(remark for validation in found for remark in validation.remarks)),
    )


def study(seed: int = 0, replications: int = 4) -> tuple[PublishedFigure, ...]:
    """Every figure of the study: generation speed-ups, step times by phase, the asynchronous pair."""

    @cache
    def answer(scenario: str, *overrides: str) -> Projection:
        drawn = (f"simulation.seed={seed}", f"simulation.replications={replications}")
        return project(load_scenario(scenario, [*drawn, *overrides]))

    waits = ("step_s", "exposed_generation_s")
    lagged = _arms(answer, "study_async.csv", "asynchronous, lag 1", waits, "qwen8b_async_lag1")
    return (*_speedups(answer), *_arms(answer, "study_step_times.csv", "step times", PHASES), *lagged)


def _speedups(answer: Answer) -> Iterator[PublishedFigure]:
    for record in read_table(published_table("study_speculation.csv"), ("workload", "generation_speedup")):
        cell = record.cells
        stated = {name: cell[name] for name in ("method", "draft_length", "acceptance_length", "online_training")}
        stated["draft_length"] = stated["draft_length"] or str(NGRAM_DRAFT_LENGTH)
        overrides = [f"speculation.{name}={value}" for name, value in stated.items()]
        projection = answer(f"qwen8b_{cell['workload']}", *overrides)
        k = cell["draft_length"] or f"{NGRAM_DRAFT_LENGTH} (assumed)"
        online = ", trained online" if cell["online_training"] == "true" else ""
        drafts = f"{cell['method']} {cell['draft']}{online}, k={k}, length {cell['acceptance_length']}"
        label = f"{cell['workload']}: {drafts}"
        measured = float(cell["generation_speedup"])
        yield _figure(f"generation speedup, {cell['table']}", label, "x", measured, projection.rollout_speedup)


def _arms(
    answer: Answer, table: str, group: str, phases: Sequence[str], scenario: str = ""
) -> Iterator[PublishedFigure]:
    """Steps and phases with and without speculation, of one scenario or of that of each workload."""
    for record in read_table(published_table(table), ("method", *phases)):
        cell, workload = record.cells, "" if scenario else record.cells["workload"]
        projection = answer(scenario or f"qwen8b_{workload}")
        arm = projection.baseline if cell["method"] == "none" else projection.candidate
        for phase in phases:
            found = arm.step_s if phase == "step_s" else arm.phases[phase]
            label = f"{workload} {cell['method']}: {phase.removesuffix('_s').replace('_', ' ')}".lstrip()
            yield _figure(group, label, "s", float(cell[phase]), found)


def _figure(group: str, label: str, unit: str, measured: float, predicted: Interval | float) -> PublishedFigure:
    interval = predicted if isinstance(predicted, Interval) else Interval(predicted, predicted, predicted)
    return PublishedFigure(group=group, label=label, unit=unit, measured=measured, predicted=interval)


def measured_speculation() -> Iterator[PublishedFigure]:
    """Published speed-ups at fixed batch and autoregressive iterations beside ours."""
    rates = set[str]()
    needed = ("id", "model", "gpu", "batch", "draft_length", "acceptance_length", "ar_tokens_per_s", "sd_tokens_per_s")
    for record in read_table(published_table("speculation_measured.csv"), needed):
        cell, batch = record.cells, int(record.cells["batch"])
        tables = [_fixed_batch_table(cell, k) for k in (0, int(cell["draft_length"]))]
        plain, drafted = (iteration_s(table, batch, CONTEXT_TOKENS) for table in tables)
        measured = float(cell["sd_tokens_per_s"]) / float(cell["ar_tokens_per_s"])
        drafts = f"k={cell['draft_length']}, length {cell['acceptance_length']}"
        label = f"{cell['id']} {cell['model']} on {cell['gpu']}: {drafts}"
        speedup = float(cell["acceptance_length"]) * plain / drafted
        yield _figure("speedup at fixed batch", label, "x", measured, speedup)
        # Rows of several drafts repeat the autoregressive rate that they are compared with: it is scored once.
        if cell["ar_tokens_per_s"] not in rates:
            rates.add(cell["ar_tokens_per_s"])
            label = f"{cell['model']} on {cell['gpu']}, batch {batch}, {cell['dataset']}"
            yield _figure("autoregressive iteration", label, "s", batch / float(cell["ar_tokens_per_s"]), plain)


def _fixed_batch_table(cell: Mapping[str, str], k: int) -> IterationTable:
    engine = {"tensor_parallel": int(cell["tensor_parallel"]), "weight_precision": cell["precision"]}
    eagle = {"method": "eagle3", "draft_length": k, "acceptance_length": 1.0} if k else {}
    largest = (int(cell["batch"]), MOST_CONTEXT_TOKENS)
    return engine_prices(
        engine_inputs_of(cell["model"], device_profile_name(cell["gpu"], listed=True), largest, engine, eagle)
    ).table


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


def published_refits() -> tuple[list[PublishedFigure], dict[str, str]]:
    """Published transfers between split pools, and why others are not simulated, by id. Unnamed GPUs are H100."""
    table, figures, reasons = Table.read(published_table("refit.csv"), Kind.TRANSFERS), [], dict[str, str]()
    for row, record in zip(validated(Kind.TRANSFERS, table).rows, table.rows, strict=True):
        cell = record.cells
        if row.predicted is None or row.measured is None:
            reasons[row.id] = str(row.skipped)
            continue
        label = f"{row.id}: {cell['model']}, {cell['train_gpus']} + {cell['gen_gpus']} GPUs, {cell['method']}"
        # Releases of a framework are scored together: the name ends at the first blank.
        figures.append(_figure(f"refit, {cell['framework'].split()[0]}", label, "s", row.measured, row.predicted))
    return figures, reasons
