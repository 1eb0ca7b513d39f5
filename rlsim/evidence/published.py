"""All published tables beside their predictions: steps, a study of speculation, speed-ups at fixed batch, transfers.

The study is arXiv 2604.26779; its batch and lengths are unpublished, and the scenarios qwen8b_rl_zero, qwen8b_rl_think
and qwen8b_async_lag1 state what was assumed.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from rlsim.errors import InputError
from rlsim.evidence import Kind
from rlsim.evidence.compare import Progress, validate_table, validated
from rlsim.evidence.cross import validate_cross
from rlsim.evidence.tables import Table, read_table
from rlsim.evidence.transfers import each_once
from rlsim.files.reading import data_folder, shown_path
from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.results import Interval, Projection
from rlsim.results.validation import Published, PublishedFigure, Validation

NGRAM_DRAFT_LENGTH = 5
"""k of the study's n-gram runs is unpublished; 5 is the value of vLLM's own examples. Assumption."""
PHASES = ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s", "step_s")
Answer = Callable[..., Projection]
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
    """Published speed-ups at fixed batch beside ours."""
    table = Table.read(published_table("speculation.csv"), Kind.SPECULATION)
    for row, record in zip(validated(Kind.SPECULATION, table).rows, table.rows, strict=True):
        if row.predicted is not None and row.measured is not None:
            cell = record.cells
            drafts = f"k={cell['k']}, length {cell['acceptance_length']}"
            label = f"{row.id} {cell['model']} on {cell['gpu']}: {drafts}"
            yield _figure("speedup at fixed batch", label, "x", row.measured, row.predicted)


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
