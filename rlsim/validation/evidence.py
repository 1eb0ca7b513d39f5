"""Measured times as evidence: how far each lies from its prediction, what moves that, and what else shares its error.

One record for every measured iteration, training step, weight transfer, RL step and published phase of one. The record
holds derivatives of the prediction by every fitted term (docs/uncertainty.md), so that a fit, a fit without some
groups, or one with a few rows more is linear algebra.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlsim.costs.operators.groups import phase_groups
from rlsim.errors import RlsimError
from rlsim.parameters.posterior import NONE
from rlsim.parameters.sets import Fitted
from rlsim.projection.uncertainty.evidence import MEASURED_S, Evidence, Kind
from rlsim.projection.uncertainty.features import step_about
from rlsim.projection.uncertainty.response import StepResponse, step_response
from rlsim.projection.uncertainty.slopes import PhaseSlopes, Slopes, phase_slopes
from rlsim.projection.variant import SimulatedVariant, simulate_variant
from rlsim.schema.scenario import Scenario
from rlsim.validation.halves import TableRecords
from rlsim.validation.iterations import validate_iterations
from rlsim.validation.measured import MeasuredRow
from rlsim.validation.rows import Row, SkippedRow, number, scenario_of
from rlsim.validation.structure import (
    Structure,
    iteration_structures,
    step_s_of,
    tokens_of,
    training_structures,
    transfer_structures,
)
from rlsim.validation.table import TableRow
from rlsim.validation.training_rows import validate_training
from rlsim.validation.transfer_rows import validate_transfers

NOT_A_LOAD = 0.5
"""A row that takes less than this share of what its kernels alone take was measured under another load than it says."""
REPLICATIONS = 2
"""Of each simulated step."""


def iteration_evidence(records: TableRecords, fitted: Fitted) -> list[Evidence]:
    """Rows of a table of measured iterations; those under another load than they say are left out."""
    rows = validate_iterations(records, fitted.engines).rows
    kept = [row if _as_it_says(row) else replace(row, predicted=None) for row in rows]
    return in_order("iteration", kept, iteration_structures(kept, records.rows, fitted))


def _as_it_says(row: MeasuredRow) -> bool:
    if row.predicted is None or row.measured is None:
        return False
    return row.measured >= NOT_A_LOAD * 1e3 * step_s_of(row) / tokens_of(row)


def training_evidence(records: TableRecords, fitted: Fitted) -> list[Evidence]:
    """Rows of a table of measured training steps."""
    rows = validate_training(records, fitted).rows
    return in_order("training", rows, training_structures(rows, records.rows, fitted))


def transfer_evidence(records: Sequence[TableRow], fitted: Fitted) -> list[Evidence]:
    """Measured weight transfers, each once."""
    rows = validate_transfers(TableRecords("transfers", "", records), fitted.transfers).rows
    return in_order("transfer", rows, transfer_structures(rows, records, fitted))


def in_order(kind: Kind, rows: Sequence[MeasuredRow], structures: Iterable[Structure]) -> list[Evidence]:
    """A record of each measured row that has a structure, in the order of the table."""
    out = {}
    for one in structures:
        row = rows[one.place]
        if row.measured and row.predicted:
            surprise = float(np.log(row.measured / row.predicted))
            about = {**one.about, MEASURED_S: row.measured * (1e-3 if row.unit == "ms" else 1.0)}
            out[one.place] = Evidence(kind, row.id, surprise, one.slopes, one.groups, about)
    return [out[place] for place in sorted(out)]


def step_evidence(records: TableRecords, fitted: Fitted) -> list[Evidence]:
    """Measured RL steps and their published phases; rows that say ``in_fit`` false are left out."""
    out = []
    for done, record in enumerate(records.rows, start=1):
        records.tell(done)
        cells = record.cells
        if record.problem or cells.get("in_fit", "").lower() == "false":
            continue
        try:
            scenario, name = with_sets(scenario_of(cells, replications=REPLICATIONS), fitted), cells.get("id", "")
            measured, run = measured_times(cells, scenario), simulate_variant(scenario)
            out += simulated_evidence(name, run, measured, phase_groups(scenario, name))
        except (SkippedRow, RlsimError):
            continue
    return out


def with_sets(scenario: Scenario, fitted: Fitted) -> Scenario:
    """The scenario with its fitted sets stated."""
    sets = {
        "parameters": fitted.steps,
        "engine_parameters": fitted.engines,
        "training_parameters": fitted.training,
        "transfer_parameters": fitted.transfers,
        "posterior": NONE,
    }
    return scenario.model_copy(update={"simulation": scenario.simulation.model_copy(update=sets)})


def measured_times(cells: Row, scenario: Scenario) -> dict[Kind, float]:
    """Measured seconds of a row's step and of those of its phases that it gives."""
    out: dict[Kind, float] = {"step": number(cells, "total_step_time_s")}
    phases: tuple[Kind, ...] = ("generation", "logprob", "train", "refit")
    for kind in phases:
        busy = kind == "generation" and scenario.loop.mode == "async"
        if cells.get(f"{kind}_s", "").strip() and not busy:
            out[kind] = number(cells, f"{kind}_s")
    return {kind: value for kind, value in out.items() if value > 0}


def simulated_evidence(
    name: str,
    run: SimulatedVariant,
    measured: Mapping[Kind, float],
    by_phase: Mapping[str, Sequence[str]],
    centre: Callable[[list[float]], Any] = np.mean,
) -> list[Evidence]:
    """Evidence of one measured step: the whole and its phases. by_phase: groups of each phase.

    centre: of the simulated steps, as the measured times are one of theirs.
    """
    scenario, response, slopes = run.scenario, step_response(run), phase_slopes(run)
    steps = [step for replication in run.steps for step in replication]
    transfer = "prepare_s" if scenario.loop.mode == "sync" else "refit_s"
    names = {"generation": "generation_s", "logprob": "logprob_s", "train": "train_s", "refit": transfer}
    predicted = {kind: float(centre([step.phases[phase] for step in steps])) for kind, phase in names.items()}
    predicted["step"] = float(centre([step.seconds for step in steps]))
    about = step_about(scenario)
    out = []
    for kind, seconds in measured.items():
        if predicted[kind] <= 0:
            continue
        row_slopes, groups = _combined(kind, response, slopes, by_phase)
        surprise = float(np.log(seconds / predicted[kind]))
        out.append(Evidence(kind, name, surprise, row_slopes, groups, {**about, MEASURED_S: seconds}))
    return out


def _combined(
    kind: Kind, response: StepResponse, slopes: PhaseSlopes, groups: Mapping[str, Sequence[str]]
) -> tuple[Slopes, dict[str, float]]:
    """Slopes and coefficients of a phase, or of the step by what each phase is of it."""
    phase = "transfer" if kind == "refit" else kind
    shares = response.shares if kind == "step" else {phase: 1.0}
    terms: dict[str, float] = {}
    coefficients: dict[str, float] = {}
    for name, share in shares.items():
        for term, slope in getattr(slopes, name).items():
            terms[term] = terms.get(term, 0.0) + share * slope
        for group in groups[name]:
            coefficients[group] = coefficients.get(group, 0.0) + share
    return terms, coefficients
