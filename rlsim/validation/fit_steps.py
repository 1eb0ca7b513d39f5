"""From a table of measured steps to a file of fitted parameters, with its score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from rlsim.errors import Infeasible, InputError, shortened
from rlsim.files.reading import data_folder, shown_path
from rlsim.parameters.sets import load_parameters
from rlsim.parameters.terms import START
from rlsim.report.format import percent, signed_percent
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import table
from rlsim.schema.parameters import GlobalParameters
from rlsim.schema.scenario import Scenario
from rlsim.tables.fingerprint import file_digest
from rlsim.units import FloatArray
from rlsim.validation.fit import (
    PHASE_WEIGHT,
    Mapper,
    MeanTimes,
    Observation,
    StepFitProblem,
    process_map,
    simulate,
    with_values,
)
from rlsim.validation.rows import NEEDED, SkippedRow, number, scenario_of
from rlsim.validation.scores import robust_deviation
from rlsim.validation.table import TableRow, read_table

FIT_REPLICATIONS = 1
PHASE_COLUMNS = {"generation_s": "generation_s", "logprob_s": "logprob_s", "train_s": "train_s", "refit_s": "prepare_s"}
"""Columns with published phases and what they are called here."""
GROUPINGS = {"model": "model", "device": "gpu", "release": "framework_version"}
"""What is left out as a whole when a fit is scored, and the column that names it."""
FEWEST_ROWS = 2
MAX_FIT_SAMPLES = 16_384
"""Samples of one step: a fit simulates each row more than a hundred times. The largest published step has 4,096."""


@dataclass(frozen=True)
class StepFit:
    """Fitted parameters and ln(predicted / measured) of each row, with all rows and with its group left out.

    skipped: id of each row of the table that was not used, and why.
    """

    parameters: GlobalParameters
    rows: tuple[Mapping[str, str], ...]
    residuals: FloatArray
    held_out: dict[str, FloatArray]
    skipped: Mapping[str, str]

    def text(self, style: Style = DEFAULT_STYLE) -> str:
        """What was fitted and how well, for a terminal."""
        record = self.parameters.fit
        columns = [np.expm1(values) for values in (self.residuals, *self.held_out.values())]
        rows = [
            (shortened(row["id"]), *(signed_percent(errors[i], 1) for errors in columns))
            for i, row in enumerate(self.rows)
        ]
        lines = [
            f"{record.rows} steps: median error {percent(record.median_error, 1)}, "
            f"90th percentile {percent(record.p90_error, 1)}",
            *(f"  left out by {name}: median {percent(v, 1)}" for name, v in record.held_out_median_error.items()),
            "",
            *table(("row", "error", *self.held_out), rows, style),
        ]
        if self.skipped:
            reasons = [(shortened(name), shortened(reason, 200)) for name, reason in self.skipped.items()]
            lines += ["", f"{len(self.skipped)} rows not used:", *table(("", ""), reasons, style, "<")]
        return "\n".join(lines)


def problem_from(
    table: Path, start: GlobalParameters, mapper: Mapper
) -> tuple[StepFitProblem, list[Mapping[str, str]], Mapping[str, str]]:
    """The fit of ``table``, its rows, and by id why other rows are left out.

    These cannot be read or simulated, or say ``in_fit`` false. InputError where too few are left.
    """
    scenarios: list[Scenario] = []
    rows: list[Mapping[str, str]] = []
    observations: list[Observation] = []
    skipped: dict[str, str] = {}
    for record in read_table(table, NEEDED):
        try:
            scenario, observed = _usable(record, start, len(scenarios))
        except (SkippedRow, Infeasible, InputError) as error:
            skipped[f"line {record.line} {record.cells.get('id', '')}".strip()] = str(error)
            continue
        scenarios.append(scenario)
        rows.append(record.cells)
        observations += observed
    if len(scenarios) < FEWEST_ROWS:
        first = next((f"; {shortened(name)}: {reason}" for name, reason in skipped.items()), "")
        raise InputError(
            f"{shown_path(table)}: only {len(scenarios)} rows can be simulated; a fit needs at least {FEWEST_ROWS}"
            f"{shortened(first, 300)}"
        )
    return StepFitProblem(scenarios, observations, start, mapper=mapper), rows, skipped


def _usable(record: TableRow, start: GlobalParameters, index: int) -> tuple[Scenario, list[Observation]]:
    """Scenario ``index`` of the fit and what was measured of it. Raises SkippedRow, Infeasible or InputError.

    The row is simulated once, so that it cannot fail in the middle of a fit.
    """
    if record.problem:
        raise SkippedRow(record.problem)
    if record.cells.get("in_fit", "").lower() == "false":
        raise SkippedRow("in_fit is false")
    scenario = _small(scenario_of(record.cells, replications=FIT_REPLICATIONS))
    samples = round(scenario.workload.samples_per_step * scenario.workload.generated_batch_factor)
    if samples > MAX_FIT_SAMPLES:
        raise SkippedRow(f"{samples:,} samples in one step are more than {MAX_FIT_SAMPLES:,}")
    observed = [Observation(index, "step_s", _measured(record.cells, "total_step_time_s"), 1.0)]
    for column, phase in PHASE_COLUMNS.items():
        if record.cells.get(column, ""):
            observed.append(Observation(index, phase, _measured(record.cells, column), PHASE_WEIGHT))
    simulate((scenario, start))
    return scenario, observed


def _measured(row: Mapping[str, str], column: str) -> float:
    """Seconds of a cell, above 0: a fit compares logarithms."""
    value = number(row, column)
    if value <= 0:
        raise SkippedRow(f"{column} must be above 0; got {row[column]}")
    return value


def _small(scenario: Scenario) -> Scenario:
    """Fewer simulated steps; a fit needs means, not intervals."""
    if scenario.loop.mode == "sync":
        return scenario
    lag = scenario.loop.policy_lag
    simulation = {"seed": scenario.simulation.seed, "replications": 1, "steps": 2, "warmup_steps": lag + 1}
    return Scenario.model_validate({**dict(scenario), "simulation": simulation})


def fit_steps(
    table: Path,
    start: GlobalParameters | None = None,
    rounds: int = 3,
    name: str | None = None,
    tell: Callable[[str], object] = lambda line: None,
) -> StepFit:
    """Fit the global parameters to ``table`` and score them by leaving out models, devices and releases.

    start: where the fit begins and what it is pulled to; by default the published fit, and for the published table
    itself the committed start values. tell: called with a line now and then. Raises InputError where too few rows can
    be simulated.
    """
    published = data_folder("calibration") / "published" / "rl_steps.csv"
    start = start or load_parameters(START if table.resolve() == published.resolve() else None)
    with process_map() as workers:
        problem, rows, skipped = problem_from(table, start, _mapper(workers))
        tell(f"{len(rows)} rows, {len(problem.observations)} measured times, {len(problem.parameters)} parameters")
        x, base, slope = problem.fit(rounds, tell)
        held = {}
        for grouping, column in GROUPINGS.items():
            groups = [row.get(column, "") for row in rows]
            if len(set(groups)) > 1:
                held[grouping] = problem.held_out(x, base, slope, groups)
                tell(f"left out by {grouping}: median {percent(_median(held[grouping]), 1)}")
    steps = np.array([r for r, o in zip(base, problem.observations, strict=True) if o.quantity == "step_s"])
    informed = [parameter.path for parameter, column in zip(problem.parameters, slope.T, strict=True) if column.any()]
    parameters = _recorded(problem, x, informed, steps, held, skipped, table, name)
    return StepFit(parameters, tuple(rows), steps, held, skipped)


def _mapper(workers: ProcessPoolExecutor) -> Mapper:
    def apply(
        function: Callable[[tuple[Scenario, GlobalParameters]], MeanTimes],
        tasks: Iterable[tuple[Scenario, GlobalParameters]],
    ) -> Iterable[MeanTimes]:
        return workers.map(function, tasks, chunksize=8)

    return apply


def _median(residuals: FloatArray) -> float:
    return float(np.median(np.abs(np.expm1(residuals))))


def _recorded(
    problem: StepFitProblem,
    x: FloatArray,
    informed: Sequence[str],
    steps: FloatArray,
    held: Mapping[str, FloatArray],
    skipped: Mapping[str, str],
    table: Path,
    name: str | None,
) -> GlobalParameters:
    """The parameters, rounded to what they are worth, with the record of the fit.

    informed: those that some measured time depends on; only they are fitted.

    The model error is that of models left out; a table of one model says nothing of it and keeps the start's.
    """
    low = np.array([parameter.low for parameter in problem.parameters])
    settled = np.where(x - low < 1e-6 * problem.scale, low, x)
    rounded = np.array([float(f"{value:.3g}") for value in settled])
    document = with_values(problem.start, problem.parameters, rounded).model_dump()
    if "model" in held:
        document["step_error"] = float(f"{robust_deviation(held['model']):.3g}")
    document["fit"] = {
        "command": f"rlsim calibrate --from-steps {table.name}",
        "rows": len(steps),
        "data_digest": file_digest(table)[:16],
        "median_error": float(f"{_median(steps):.3g}"),
        "p90_error": float(f"{np.quantile(np.abs(np.expm1(steps)), 0.9):.3g}"),
        "fitted": informed,
        "skipped": {shortened(name): shortened(reason, 200) for name, reason in skipped.items()},
        "held_out_median_error": {name: float(f"{_median(values):.3g}") for name, values in held.items()},
    }
    document["name"] = name or table.stem
    document["description"] = (
        f"Fitted to {len(steps)} measured RL steps of {table.name}, starting from {problem.start.name}."
    )
    return GlobalParameters.model_validate(document)


def to_yaml(fitted: GlobalParameters) -> str:
    """The file that ``simulation.parameters`` can name."""
    return yaml.safe_dump(fitted.model_dump(mode="json"), sort_keys=False, width=110)
