"""From a table of measured steps to a file of fitted parameters, with its score."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from rlsim.datafiles import data_folder
from rlsim.errors import InputError, RlsimError
from rlsim.hardware.fitted import load_fitted
from rlsim.schema.fitted import FittedParameters
from rlsim.schema.scenario import Scenario
from rlsim.validation.fit import (
    PHASE_WEIGHT,
    FloatArray,
    Mapper,
    Observation,
    Problem,
    process_map,
    simulate,
    with_values,
)
from rlsim.validation.rows import NEEDED, Skip, number, scenario_of
from rlsim.validation.table import read_table

FIT_REPLICATIONS = 1
PHASE_COLUMNS = {"generation_s": "generation_s", "logprob_s": "logprob_s", "train_s": "train_s", "refit_s": "prepare_s"}
"""Columns with published phases and what they are called here."""
GROUPINGS = {"model": "model", "device": "gpu", "release": "framework_version"}
"""What is left out as a whole when a fit is scored, and the column that names it."""
FEWEST_ROWS = 2
START = "start"
"""Committed values from which the fit to published steps starts."""


@dataclass(frozen=True)
class StepFit:
    """Fitted parameters and ln(predicted / measured) of each row, with all rows and with its group left out."""

    parameters: FittedParameters
    rows: tuple[Mapping[str, str], ...]
    residuals: FloatArray
    held_out: dict[str, FloatArray]

    def text(self) -> str:
        """What was fitted and how well, for a terminal."""
        record = self.parameters.fit
        lines = [
            f"{record.rows} steps: median error {record.median_error:.1%}, 90th percentile {record.p90_error:.1%}",
            *(f"  left out by {name}: median {value:.1%}" for name, value in record.held_out_median_error.items()),
            "",
            f"{'row':<52} {'error':>7}" + "".join(f" {name:>8}" for name in self.held_out),
        ]
        for i, row in enumerate(self.rows):
            held = "".join(f" {np.expm1(values[i]):>+8.1%}" for values in self.held_out.values())
            lines.append(f"{row['id'][-52:]:<52} {np.expm1(self.residuals[i]):>+7.1%}{held}")
        return "\n".join(lines)


def problem_of(table: Path, start: FittedParameters, mapper: Mapper) -> tuple[Problem, list[Mapping[str, str]]]:
    """The fit of ``table``; rows that cannot be simulated, or say ``in_fit`` false, are left out.

    InputError where too few are left.
    """
    scenarios: list[Scenario] = []
    rows: list[Mapping[str, str]] = []
    observations: list[Observation] = []
    for record in read_table(table, NEEDED):
        if record.cells.get("in_fit", "").lower() == "false":
            continue
        try:
            scenario = _small(scenario_of(record.cells, replications=FIT_REPLICATIONS))
            measured = number(record.cells, "total_step_time_s")
            simulate((scenario, start))
        except (Skip, RlsimError, ValueError):
            continue
        index = len(scenarios)
        scenarios.append(scenario)
        rows.append(record.cells)
        observations.append(Observation(index, "step_s", measured, 1.0))
        for column, phase in PHASE_COLUMNS.items():
            if record.cells.get(column, ""):
                observations.append(Observation(index, phase, number(record.cells, column), PHASE_WEIGHT))
    if len(scenarios) < FEWEST_ROWS:
        raise InputError(f"{table}: only {len(scenarios)} rows can be simulated; a fit needs at least {FEWEST_ROWS}")
    return Problem(scenarios, observations, start, mapper=mapper), rows


def _small(scenario: Scenario) -> Scenario:
    """Fewer simulated steps; a fit needs means, not intervals."""
    if scenario.loop.mode == "sync":
        return scenario
    lag = scenario.loop.policy_lag
    simulation = {"seed": scenario.simulation.seed, "replications": 1, "steps": 2, "warmup_steps": lag + 1}
    return Scenario.model_validate({**dict(scenario), "simulation": simulation})


def fit_steps(
    table: Path,
    start: FittedParameters | None = None,
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
    start = start or load_fitted(START if table.resolve() == published.resolve() else None)
    with process_map() as workers:
        problem, rows = problem_of(table, start, _mapper(workers))
        tell(f"{len(rows)} rows, {len(problem.observations)} measured times, {len(problem.parameters)} parameters")
        x, base, slope = problem.fit(rounds, tell)
        held = {}
        for grouping, column in GROUPINGS.items():
            groups = [row.get(column, "") for row in rows]
            if len(set(groups)) > 1:
                held[grouping] = problem.held_out(x, base, slope, groups)
                tell(f"left out by {grouping}: median {_median(held[grouping]):.1%}")
    steps = np.array([r for r, o in zip(base, problem.observations, strict=True) if o.quantity == "step_s"])
    return StepFit(_recorded(problem, x, steps, held, table, name), tuple(rows), steps, held)


def _mapper(workers: ProcessPoolExecutor) -> Mapper:
    def apply(
        function: Callable[[tuple[Scenario, FittedParameters]], dict[str, float]],
        tasks: Iterable[tuple[Scenario, FittedParameters]],
    ) -> Iterable[dict[str, float]]:
        return workers.map(function, tasks, chunksize=8)

    return apply


def _median(residuals: FloatArray) -> float:
    return float(np.median(np.abs(np.expm1(residuals))))


def _recorded(
    problem: Problem, x: FloatArray, steps: FloatArray, held: Mapping[str, FloatArray], table: Path, name: str | None
) -> FittedParameters:
    """The parameters, rounded to what they are worth, with the record of the fit.

    The model error is that of models left out; a table of one model says nothing of it and keeps the start's.
    """
    low = np.array([parameter.low for parameter in problem.parameters])
    settled = np.where(x - low < 1e-6 * problem.scale, low, x)
    rounded = np.array([float(f"{value:.3g}") for value in settled])
    document = with_values(problem.start, problem.parameters, rounded).model_dump()
    if "model" in held:
        document["step_error"] = float(f"{_robust_deviation(held['model']):.3g}")
    document["fit"] = {
        "command": f"rlsim calibrate --from-steps {table.name}",
        "rows": len(steps),
        "data_digest": hashlib.sha256(table.read_bytes()).hexdigest()[:16],
        "median_error": float(f"{_median(steps):.3g}"),
        "p90_error": float(f"{np.quantile(np.abs(np.expm1(steps)), 0.9):.3g}"),
        "held_out_median_error": {name: float(f"{_median(values):.3g}") for name, values in held.items()},
    }
    document["name"] = name or table.stem
    document["description"] = (
        f"Fitted to {len(steps)} measured RL steps of {table.name}, starting from {problem.start.name}."
    )
    return FittedParameters.model_validate(document)


def _robust_deviation(residuals: FloatArray) -> float:
    """Standard deviation that a normal distribution with the same 90th percentile of |residual| would have."""
    return float(np.quantile(np.abs(residuals), 0.9) / 1.6448536269514722)


def to_yaml(fitted: FittedParameters) -> str:
    """The file that ``simulation.parameters`` can name."""
    return yaml.safe_dump(fitted.model_dump(mode="json"), sort_keys=False, width=110)
