"""What moves the prediction of each row of a table: its derivatives by fitted terms, and its groups, for every kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlsim.costs.engine.prices import EngineInputs
from rlsim.costs.operators.groups import engine_groups, trainer_groups, transfer_groups
from rlsim.costs.overheads import engine_host
from rlsim.costs.transfer.methods import TransferTerms
from rlsim.evidence.engines import EngineSetup, Load, engine_setup, inputs_of, load_of
from rlsim.evidence.tables import Kind, Row, TableRow
from rlsim.evidence.training import TrainerRow, trainer_row
from rlsim.evidence.transfers import framework_of, transfer_job, transfer_s
from rlsim.parameters.sets import Fitted
from rlsim.parameters.terms import moved, terms_of
from rlsim.projection.uncertainty.evidence import Kind as TimeKind
from rlsim.projection.uncertainty.slopes import STEP, Slopes, point_changes_s
from rlsim.results.validation import ComparedRow

About = Mapping[str, str | float]
ERRORS: Mapping[Kind, TimeKind] = {
    Kind.ITERATIONS: "iteration",
    Kind.TRAINING: "training",
    Kind.TRANSFERS: "transfer",
}
"""Kinds of tables whose rows are predicted without a simulated step, and the kind of time that they measure."""


@dataclass(frozen=True)
class Structure:
    """Of the row at ``place``: derivatives of the logarithm of its prediction, and coefficients of its groups."""

    place: int
    slopes: Slopes
    groups: Mapping[str, float]
    about: About


def structures(
    kind: Kind, rows: Sequence[ComparedRow], records: Sequence[TableRow], fitted: Fitted
) -> Iterator[Structure]:
    """Of every predicted row of a table of one of the kinds in ERRORS."""
    predicted = [(place, record.cells) for place, record in enumerate(records) if rows[place].predicted is not None]
    if kind is Kind.ITERATIONS:
        yield from _iterations(rows, predicted, fitted)
    elif kind is Kind.TRAINING:
        moves = _moves(fitted, "training/", "steps/")
        for place, cells in predicted:
            trainer = trainer_row(cells)
            groups = dict.fromkeys(trainer_groups(trainer.scenario), 1.0)
            yield Structure(place, _training_slopes(trainer, fitted, moves), groups, _about_training(trainer))
    else:
        moves = _moves(fitted, "transfers/")
        for place, cells in predicted:
            yield _transfer(place, cells, fitted, moves)


def _moves(fitted: Fitted, *heads: str) -> dict[str, Fitted]:
    """The sets with each term moved by STEP, of the terms whose names begin with one of ``heads``."""
    names = (term.name for term in terms_of(fitted))
    return {name: moved(fitted, {name: STEP}) for name in names if name.startswith(heads)}


def _iterations(
    rows: Sequence[ComparedRow], predicted: Sequence[tuple[int, Row]], fitted: Fitted
) -> Iterator[Structure]:
    """Of every predicted iteration; all loads of an engine are priced at once."""
    moves = _moves(fitted, "engines/")
    by_setup: dict[EngineSetup, list[tuple[int, Load]]] = {}
    for place, cells in predicted:
        load = load_of(cells)
        by_setup.setdefault(engine_setup(cells, load), []).append((place, load))
    for setup, loads in by_setup.items():
        inputs = inputs_of(setup, fitted)
        # Under the deviation of the row's groups, or that would count as a slope of every term.
        hosts = {
            name: replace(engine_host(inputs.engine, sets.engines), factor=inputs.host.factor)
            for name, sets in moves.items()
            if len(parts := name.split("/")) < 3 or parts[1] == setup.engine
        }
        batches = np.array([max(load.batch, 1.0) for _, load in loads])
        contexts = np.array([load.context_tokens for _, load in loads])
        base_s, changes_s = point_changes_s(inputs, batches, contexts, hosts)
        groups = _iteration_groups(setup, inputs)
        for at, (place, load) in enumerate(loads):
            row = rows[place]
            # What no host term changes of a predicted iteration: prefills between decode steps.
            other_s = 1e-3 * (row.predicted or 0.0) * tokens_of(row) - step_s_of(row)
            whole_s = base_s[at] + other_s
            slopes = {name: float(change[at] / whole_s) for name, change in changes_s.items() if change[at]}
            yield Structure(place, slopes, groups, _about_iteration(setup, load, inputs))


def tokens_of(row: ComparedRow) -> float:
    """Tokens that the measured time of an iteration's row is divided by."""
    return 1.0 if row.details["measured_step"] else float(row.details["acceptance_length"] or 1.0)


def step_s_of(row: ComparedRow) -> float:
    """Predicted seconds of the decode iteration itself."""
    return 1e-3 * float(row.details["step_predicted_ms"] or 0.0)


def _iteration_groups(setup: EngineSetup, inputs: EngineInputs) -> dict[str, float]:
    groups = engine_groups(
        setup.engine, setup.version, inputs.device.profile.name, inputs.model, setup.weight_precision
    )
    layout = f"{setup.gpus} GPUs, DP {setup.attention_data_parallel}, EP {setup.expert_parallel}"
    same = f"{setup.engine} {setup.version}, {setup.model}, {setup.device}, {setup.weight_precision}, {layout}"
    drafts = f"k {setup.draft_length}" if setup.draft_length else ""
    return dict.fromkeys((*groups, f"engine setup: {same} {drafts}"), 1.0)


def _about_iteration(setup: EngineSetup, load: Load, inputs: EngineInputs) -> About:
    return {
        "model": inputs.model.name, "device": inputs.device.profile.name, "engine": setup.engine,
        "release": setup.version or "", "gpus": float(setup.gpus), "expert_parallel": float(setup.expert_parallel),
        "attention_data_parallel": float(setup.attention_data_parallel), "precision": setup.weight_precision,
        "batch": load.batch, "context_tokens": load.context_tokens, "draft_length": float(setup.draft_length),
    }  # fmt: skip


def _training_slopes(trainer: TrainerRow, fitted: Fitted, moves: Mapping[str, Fitted]) -> Slopes:
    now, base, out = trainer.overheads(fitted), trainer.seconds(fitted), dict[str, float]()
    for name, sets in moves.items():
        if trainer.overheads(sets) != now and (after := trainer.seconds(sets)) != base:
            out[name] = float(np.log(after / base)) / STEP
    return out


def _about_training(trainer: TrainerRow) -> About:
    scenario = trainer.scenario
    sizes = ("tensor_parallel", "pipeline_parallel", "expert_parallel")
    return {
        "model": scenario.model.name, "device": scenario.hardware.name, "framework": trainer.framework,
        "release": trainer.release or "", "gpus": float(scenario.cluster.num_gpus),
        "precision": scenario.trainer.precision, **{name: float(getattr(scenario.trainer, name)) for name in sizes},
        "sequence_tokens": float(scenario.workload.max_sequence_tokens),
    }  # fmt: skip


def _transfer(place: int, cells: Row, fitted: Fitted, moves: Mapping[str, Fitted]) -> Structure:
    framework, job = framework_of(cells), transfer_job(cells)[0]
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
    return Structure(place, slopes, groups, about)
