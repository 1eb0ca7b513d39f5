"""Runs as people have them: a scenario and the measured phases of each, whatever framework they are of.

A table of kind ``wild`` has a row for each measured step, with its phases in seconds under the names of any framework
that ``names.yaml`` holds; ``scenarios/ID.yaml`` beside it says how the run was: engine, adapters, offload, network,
agents. A value is left out where the row's flag or notes say that it is none of its phase.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlsim.evidence.rows import Comparison, MeasuredRow, Predict, Prediction
from rlsim.evidence.tables import Row, SkippedRow, Table, measured_value
from rlsim.files.yaml import lists_beside
from rlsim.loading.scenario import load_scenario, vary
from rlsim.parameters.sets import Fitted
from rlsim.projection.precision import precise
from rlsim.projection.summary import around_phase
from rlsim.projection.uncertainty.predictive import prediction_of
from rlsim.projection.variant import SimulatedVariant, simulate_variant
from rlsim.results import Interval
from rlsim.schema.scenario import Scenario

WILD: Mapping[str, Sequence[str]] = lists_beside(__file__)["wild_phases"]
"""Phases of users' runs with the columns that may hold their seconds."""
WAITS = "generation not comparable"
"""Part of a flag: generation waits for an environment that the scenario does not describe, or holds other phases."""
DERIVED = "is the sum"
"""Part of a note: the step is the sum of other columns."""
GENERATION = ("generation", "exposed_generation")


def phases_of(cells: Row) -> dict[str, float]:
    """Measured seconds of the phases of a row, those left out that measure something else."""
    found = {phase: value for phase, columns in WILD.items() if (value := measured_value(cells, *columns))}
    if WAITS in cells.get("flag", ""):
        found = {phase: value for phase, value in found.items() if phase not in (*GENERATION, "step")}
    if DERIVED in cells.get("notes", ""):
        found.pop("step", None)
    return found


def scenario_of_run(folder: Path, name: str) -> Scenario:
    """The scenario of the run called ``name``. Raises SkippedRow where there is none."""
    path = folder / "scenarios" / f"{name}.yaml"
    if not path.is_file():
        raise SkippedRow(f"scenarios/{name}.yaml is not there")
    return load_scenario(path)


def predicted_phase(run: SimulatedVariant, phase: str) -> Interval | None:
    """A phase of ``run`` with its 90 % interval; None where it has none.

    A hand-over is measured as all that lies between the update and the first token, as a synchronous step has it.
    """
    if phase == "step":
        return around_phase(run, "step")
    transfer = "prepare_s" if run.scenario.loop.mode == "sync" else "refit_s"
    name = transfer if phase == "transfer" else f"{phase}_s"
    if not run.phases_s[name]:
        return None
    prediction_of(run)
    return around_phase(run, name)


def _measured_rows(name: str, cells: Row) -> list[MeasuredRow]:
    about = {column: cells.get(column, "") for column in ("source", "framework", "model", "gpu", "num_gpus")}
    found = phases_of(cells)
    rows = [MeasuredRow(f"{name}:{phase}", phase, "s", value, cells, about) for phase, value in found.items()]
    return rows or [MeasuredRow(name, "no phase", "s", None, cells, about)]


def _predictor(table: Table, fitted: Fitted) -> Predict:
    runs: dict[str, SimulatedVariant] = {}

    def predict(row: MeasuredRow) -> Prediction:
        if table.folder is None:
            raise SkippedRow("the table has no folder with scenarios")
        if row.measured is None:
            raise SkippedRow("no phase is given")
        name = row.cells["id"]
        if name not in runs:
            scenario = scenario_of_run(table.folder, name)
            runs[name] = precise(simulate_variant(vary(scenario, {"simulation.seed": table.seed})))
        time = predicted_phase(runs[name], row.group)
        if time is None:
            raise SkippedRow("the simulated step has no such phase")
        framework = str(row.cells.get("framework", ""))
        return Prediction(time, {"stack": _stack(runs[name])}, (f"{row.group}, {framework}", f"all, {framework}"))

    return predict


def _stack(run: SimulatedVariant) -> str:
    stack = run.scenario.stack
    return "" if stack is None else stack.name


WILD_ROWS = Comparison(_measured_rows, _predictor, harmless_flags=(WAITS, "length_implied"))
"""Phases of users' runs beside those of their scenarios."""
