"""What moves each predicted row of a table: its slopes by fitted terms, and its groups, for every kind of a half."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlsim.costs.engine.prices import EngineInputs
from rlsim.costs.operators.groups import engine_groups, trainer_groups, transfer_groups
from rlsim.costs.overheads import engine_host, training_overheads
from rlsim.costs.trainer.prices import step_cost
from rlsim.costs.transfer.methods import TransferTerms
from rlsim.parameters.sets import Fitted
from rlsim.parameters.terms import moved, terms_of
from rlsim.projection.uncertainty.slopes import STEP, Slopes, point_changes_s
from rlsim.validation.iteration_points import EngineSetup, Load, engine_setup, inputs_of, load_of
from rlsim.validation.measured import MeasuredRow
from rlsim.validation.table import TableRow
from rlsim.validation.training_rows import TrainerSetup, row_inputs, trainer_inputs_of, trainer_setup
from rlsim.validation.transfer_rows import framework_of, transfer_job, transfer_s


@dataclass(frozen=True)
class Structure:
    """Of the row at ``place``: derivatives of the logarithm of its prediction, and coefficients of its groups."""

    place: int
    slopes: Slopes
    groups: Mapping[str, float]
    about: Mapping[str, str | float]


def moves_of(fitted: Fitted, *heads: str) -> dict[str, Fitted]:
    """The sets with each term moved by STEP, of the terms whose names begin with one of ``heads``."""
    names = (term.name for term in terms_of(fitted))
    return {name: moved(fitted, {name: STEP}) for name in names if name.startswith(heads)}


def iteration_structures(
    rows: Sequence[MeasuredRow], records: Sequence[TableRow], fitted: Fitted
) -> Iterator[Structure]:
    """Of every predicted iteration; all loads of an engine are priced at once."""
    moves = moves_of(fitted, "engines/")
    by_setup: dict[EngineSetup, list[tuple[int, Load]]] = {}
    for place, (row, record) in enumerate(zip(rows, records, strict=True)):
        if row.predicted is not None:
            load = load_of(record.cells)
            by_setup.setdefault(engine_setup(record.cells, load), []).append((place, load))
    for setup, mine in by_setup.items():
        inputs = inputs_of(setup, fitted)
        # Under the deviation of the row's groups, or that would count as a slope of every term.
        hosts = {
            name: replace(engine_host(inputs.engine, sets.engines), factor=inputs.host.factor)
            for name, sets in moves.items()
            if _of(name, setup)
        }
        batches = np.array([max(load.batch, 1.0) for _, load in mine])
        contexts = np.array([load.context_tokens for _, load in mine])
        base_s, changes_s = point_changes_s(inputs, batches, contexts, hosts)
        groups = _iteration_groups(setup, inputs)
        for at, (place, load) in enumerate(mine):
            whole_s = base_s[at] + _other_s(rows[place])
            slopes = {name: float(change[at] / whole_s) for name, change in changes_s.items() if change[at]}
            yield Structure(place, slopes, groups, _about_iteration(setup, load, inputs))


def _of(name: str, setup: EngineSetup) -> bool:
    """Whether a term is of the engine of ``setup`` or of all engines."""
    parts = name.split("/")
    return len(parts) < 3 or parts[1] == setup.engine


def tokens_of(row: MeasuredRow) -> float:
    """Tokens that the measured time of an iteration's row is divided by."""
    return 1.0 if row.details["measured_step"] else float(row.details["acceptance_length"] or 1.0)


def step_s_of(row: MeasuredRow) -> float:
    """Predicted seconds of the decode iteration itself."""
    return 1e-3 * float(row.details["step_predicted_ms"] or 0.0)


def _other_s(row: MeasuredRow) -> float:
    """Seconds of a predicted iteration that no host term changes: prefills between decode steps."""
    return 1e-3 * (row.predicted or 0.0) * tokens_of(row) - step_s_of(row)


def _iteration_groups(setup: EngineSetup, inputs: EngineInputs) -> dict[str, float]:
    groups = engine_groups(
        setup.engine, setup.version, inputs.device.profile.name, inputs.model, setup.weight_precision
    )
    layout = f"{setup.gpus} GPUs, DP {setup.attention_data_parallel}, EP {setup.expert_parallel}"
    same = f"{setup.engine} {setup.version}, {setup.model}, {setup.device}, {setup.weight_precision}, {layout}"
    drafts = f"k {setup.draft_length}" if setup.draft_length else ""
    return dict.fromkeys((*groups, f"engine setup: {same} {drafts}"), 1.0)


def _about_iteration(setup: EngineSetup, load: Load, inputs: EngineInputs) -> dict[str, str | float]:
    return {
        "model": inputs.model.name, "device": inputs.device.profile.name, "engine": setup.engine,
        "release": setup.version or "", "gpus": float(setup.gpus), "expert_parallel": float(setup.expert_parallel),
        "attention_data_parallel": float(setup.attention_data_parallel), "precision": setup.weight_precision,
        "batch": load.batch, "context_tokens": load.context_tokens, "draft_length": float(setup.draft_length),
    }  # fmt: skip


def training_structures(
    rows: Sequence[MeasuredRow], records: Sequence[TableRow], fitted: Fitted
) -> Iterator[Structure]:
    """Of every predicted training step."""
    moves = moves_of(fitted, "training/", "steps/")
    for place, (row, record) in enumerate(zip(rows, records, strict=True)):
        if row.predicted is not None:
            setup = trainer_setup(record.cells)
            scenario = row_inputs(setup)[0]
            groups = dict.fromkeys(trainer_groups(scenario), 1.0)
            yield Structure(place, _training_slopes(setup, fitted, moves), groups, _about_training(setup))


def _training_slopes(setup: TrainerSetup, fitted: Fitted, moves: Mapping[str, Fitted]) -> Slopes:
    scenario, _, batch = row_inputs(setup)
    now, out = trainer_inputs_of(setup, fitted), dict[str, float]()
    base = step_cost(now, batch).train.seconds
    for name, sets in moves.items():
        overheads = training_overheads(scenario, sets)
        if overheads != now.overheads:
            after = step_cost(replace(now, overheads=overheads), batch).train.seconds
            if after != base:
                out[name] = float(np.log(after / base)) / STEP
    return out


def _about_training(setup: TrainerSetup) -> dict[str, str | float]:
    scenario = row_inputs(setup)[0]
    return {
        "model": scenario.model.name, "device": scenario.hardware.name, "framework": setup.framework,
        "release": setup.release or "", "gpus": float(setup.gpus), "precision": setup.precision,
        "tensor_parallel": float(setup.tensor_parallel), "pipeline_parallel": float(setup.pipeline_parallel),
        "expert_parallel": float(setup.expert_parallel), "sequence_tokens": float(setup.sequence_tokens),
    }  # fmt: skip


def transfer_structures(
    rows: Sequence[MeasuredRow], records: Sequence[TableRow], fitted: Fitted
) -> Iterator[Structure]:
    """Of every predicted weight transfer."""
    moves = moves_of(fitted, "transfers/")
    for place, (row, record) in enumerate(zip(rows, records, strict=True)):
        if row.predicted is None:
            continue
        cells, framework = record.cells, framework_of(record.cells)
        job = transfer_job(cells)[0]
        base = transfer_s(cells, job, TransferTerms.of(fitted.transfers, framework))
        slopes = {}
        for name, sets in moves.items():
            after = transfer_s(cells, job, TransferTerms.of(sets.transfers, framework))
            if after != base:
                slopes[name] = float(np.log(after / base)) / STEP
        about: dict[str, str | float] = {
            "model": cells.get("model", "").split("/")[-1], "device": cells.get("gpu", ""), "framework": framework,
            "method": job.method, "gpus": float(job.sender.gpus + job.receiver.gpus),
        }  # fmt: skip
        groups = dict.fromkeys(transfer_groups(framework, job.method, str(about["model"])), 1.0)
        yield Structure(place, slopes, groups, about)
