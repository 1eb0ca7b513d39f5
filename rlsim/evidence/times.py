"""Measured times as evidence: how far each lies from its prediction, what moves that, and what else shares its error.

One record for every measured iteration, training step, weight transfer, RL step and published phase of one. The record
holds derivatives of the prediction by every fitted term (docs/uncertainty.md), so that a fit, a fit without some
groups, or one with a few rows more is linear algebra.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from rlsim.costs.operators.groups import phase_groups
from rlsim.errors import RlsimError
from rlsim.evidence.compare import VALIDATORS
from rlsim.evidence.phases import known_phases, phase_scenario
from rlsim.evidence.rows import first_line, named
from rlsim.evidence.steps import scenario_of
from rlsim.evidence.structure import ERRORS, structures
from rlsim.evidence.tables import STEP_COLUMNS, Kind, Row, SkippedRow, Table, number
from rlsim.parameters.sets import Fitted
from rlsim.projection.uncertainty.evidence import MEASURED_S, Evidence
from rlsim.projection.uncertainty.evidence import Kind as TimeKind
from rlsim.projection.uncertainty.learning import simulated_evidence, with_sets
from rlsim.projection.variant import simulate_variant
from rlsim.results.validation import ComparedRow
from rlsim.schema.scenario import Scenario

REPLICATIONS = 2
"""Of each simulated step."""
MOST_SAMPLES = 65_536
"""Samples of one simulated step, more than any published one by a factor of ten."""
PHASES: tuple[TimeKind, ...] = ("generation", "logprob", "train", "refit")
Reasons = Mapping[str, str]
"""Why rows are left out, by id."""


def compared_times(
    kind: Kind, table: Table, sets: Fitted, usable: Callable[[ComparedRow], bool] = lambda row: True
) -> tuple[list[Evidence], Reasons]:
    """Rows of a table of iterations, training steps or transfers as evidence around ``sets``, in its order."""
    found = VALIDATORS[kind](table, sets)
    rows = [row if usable(row) else row.model_copy(update={"predicted": None}) for row in found.rows]
    out = {}
    for one in structures(kind, rows, table.rows, sets):
        row = rows[one.place]
        if row.measured and row.predicted:
            log_error = float(np.log(row.measured / row.predicted))
            about = {**one.about, MEASURED_S: row.measured * (1e-3 if row.unit == "ms" else 1.0)}
            out[one.place] = Evidence(ERRORS[kind], row.id, log_error, one.slopes, one.groups, about)
    return [out[place] for place in sorted(out)], {row.id: row.skipped for row in found.rows if row.skipped}


def step_times(table: Table, sets: Fitted, same_run: bool = False) -> tuple[list[Evidence], Reasons]:
    """Measured RL steps and their phases as evidence around ``sets``; rows that say ``in_fit`` false are left out.

    same_run: whether phases of a row share the deviation of their run beside those of their groups.
    """
    out, reasons = list[Evidence](), dict[str, str]()
    for done, ((name, problem), record) in enumerate(zip(named(table), table.rows, strict=True), start=1):
        try:
            if problem or record.cells.get("in_fit", "").lower() == "false":
                raise SkippedRow(problem or "in_fit is false")
            scenario, measured = _measured_step(record.cells, sets)
            groups = phase_groups(scenario, name) if same_run else phase_groups(scenario)
            out += simulated_evidence(name, simulate_variant(scenario), measured, groups)
        except (SkippedRow, RlsimError) as reason:
            reasons[f"{name}, line {record.line}" if name in reasons else name] = first_line(reason)
        table.report(done)
    return out, reasons


def _measured_step(cells: Row, sets: Fitted) -> tuple[Scenario, Mapping[TimeKind, float]]:
    """Scenario of a row and measured seconds of its step and phases; a generation beside training is busy time."""
    whole = all(column in cells for column in STEP_COLUMNS)
    if whole and number(cells, "total_step_time_s") <= 0:
        raise SkippedRow("total_step_time_s must be above 0")
    scenario = scenario_of(cells, replications=REPLICATIONS) if whole else phase_scenario(cells, 0)
    samples = scenario.workload.samples_per_step * scenario.workload.generated_batch_factor
    if samples > MOST_SAMPLES:
        raise SkippedRow(f"{samples:,.0f} samples in one step are more than {MOST_SAMPLES:,}")
    if whole:
        columns = {"step": "total_step_time_s"} | {phase: f"{phase}_s" for phase in PHASES}
        known = {kind: number(cells, column) for kind, column in columns.items() if cells.get(column, "").strip()}
    else:
        known = known_phases(cells)
    if scenario.loop.mode == "async":
        known.pop("generation", None)
    kinds: tuple[TimeKind, ...] = ("step", *PHASES)
    measured = {kind: known[kind] for kind in kinds if known.get(kind, 0.0) > 0}
    if not measured:
        raise SkippedRow("no time of it is given")
    return with_sets(scenario, sets, REPLICATIONS), measured
