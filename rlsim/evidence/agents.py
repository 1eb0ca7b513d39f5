"""Measured runs of agents beside the shipped scenario that describes them.

One step of agents is one draw of its trajectories, so a run is compared by the median of its steps and by their spread,
which a simulation must reach from the distribution of its trajectories alone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlsim.errors import InputError, RlsimError
from rlsim.evidence.tables import Row, TableRow, measured_value, number
from rlsim.loading import load_scenario, vary
from rlsim.results import Interval
from rlsim.results.validation import ComparedRow
from rlsim.schema.scenario import Scenario
from rlsim.simulated import SimulatedVariant, simulate_variant
from rlsim.simulation.trace import StepRecord
from rlsim.uncertainty.predictive import around, prediction_of

AGENT_SCENARIOS = ("mlperf_grpo",)
"""Shipped scenarios that describe agents of measured runs."""
SUMMARISED = {
    "exposed_generation": "exposed_generation_time_s",
    "train": "policy_training_time_s",
    "refit": "weight_sync_time_s",
    "step": "train_step_time_s",
}
"""Phases of which a run's steps are summarised, and their columns."""
SPREAD = ("exposed_generation", "step")
"""Of which the spread is compared too: those that wait for trajectories."""
LOW, HIGH = 10, 90
"""Percentiles between which the spread over the steps of a run lies."""
FEWEST_STEPS = 5


@dataclass(frozen=True)
class AgentRun:
    """The rows of one batch size of one measured run, all its seeds together, and the scenario that describes them."""

    name: str
    scenario: Scenario
    rows: tuple[Row, ...]


def agent_scenario(cells: Row, seed: int) -> Scenario | None:
    """The shipped scenario of a row's agents: same model, device, GPUs and turns; with the row's batch. None without.

    Raises RlsimError where the row's batch makes no sense.
    """
    turns = measured_value(cells, "max_agent_turns")
    if not turns:
        return None
    for scenario in _shipped():
        agent, cluster = scenario.workload.agent, scenario.cluster
        named = (cells.get("model", "").rpartition("/")[2].lower(), cells.get("num_gpus"), cells.get("generation_gpus"))
        device = cells.get("gpu", "").lower().replace(" ", "_")
        ours = (scenario.model.name.lower(), str(cluster.num_gpus), str(cluster.generation))
        if agent is not None and named == ours and device == scenario.hardware.name and turns == agent.max_turns:
            return vary(
                scenario,
                f"workload.prompts_per_step={cells['prompts_per_step']}",
                f"workload.generations_per_prompt={cells['generations_per_prompt']}",
                f"simulation.seed={seed}",
            )
    return None


@functools.cache
def _shipped() -> tuple[Scenario, ...]:
    found = []
    for name in AGENT_SCENARIOS:
        try:
            found.append(load_scenario(name))
        except InputError:  # its model card or its profile is not there: then no row is like it
            continue
    return tuple(found)


def agent_runs(records: Sequence[TableRow], seed: int) -> list[AgentRun]:
    """Measured runs of agents among the rows of a table that nobody objects to, by scenario and batch."""
    runs: dict[str, tuple[Scenario, list[Row]]] = {}
    for record in records:
        cells = record.cells
        if record.problem or cells.get("flag", "") or not measured_value(cells, "max_agent_turns"):
            continue
        try:
            scenario = agent_scenario(cells, seed)
        except RlsimError:
            continue
        if scenario is not None:
            key = f"{scenario.name}, batch {scenario.workload.samples_per_step}"
            runs.setdefault(key, (scenario, []))[1].append(cells)
    return [AgentRun(name, scenario, tuple(rows)) for name, (scenario, rows) in runs.items()]


@functools.lru_cache(maxsize=8)
def simulated_run(scenario: Scenario) -> SimulatedVariant:
    """The run that a scenario describes; rows and summaries of one batch share it."""
    return simulate_variant(scenario)


def run_rows(run: AgentRun) -> list[ComparedRow]:
    """Medians over the steps of a run, and the spread of the phases that wait, beside those of the simulated steps."""
    simulated = simulated_run(run.scenario)
    steps = [step for replication in simulated.steps for step in replication]
    out = []
    for phase, column in SUMMARISED.items():
        values = seconds_of(run.rows, column)
        if len(values) < FEWEST_STEPS:
            continue
        drawn = [_seconds(step, phase) for step in steps]
        out.append(_row(run, f"{phase}, median of steps", float(np.median(values)), _median(simulated, phase, drawn)))
        if phase in SPREAD:
            width = spread(drawn)
            out.append(_row(run, f"{phase}, p10 to p90 of steps", spread(values), Interval(width, width, width)))
    return out


def seconds_of(rows: Sequence[Row], column: str) -> list[float]:
    """Seconds of the rows that give any; a step that waited for nothing counts with 0."""
    return [value for cells in rows if (value := number(cells, column, -1.0)) >= 0]


def _row(run: AgentRun, group: str, measured: float, found: Interval) -> ComparedRow:
    stack = "" if run.scenario.stack is None else run.scenario.stack.name
    details = {"model": run.scenario.model.name, "gpu": run.scenario.hardware.name, "stack": stack, "framework": stack}
    details["num_gpus"] = str(run.scenario.cluster.num_gpus)
    interval = {"predicted": found.mean, "low": found.low, "high": found.high}
    return ComparedRow(id=f"{run.name}: {group}", group=group, measured=measured, **interval, details=details)


def spread(values: Sequence[float]) -> float:
    """Seconds between the 10th and the 90th percentile."""
    low, high = np.percentile(values, (LOW, HIGH))
    return float(high - low)


def _seconds(step: StepRecord, phase: str) -> float:
    return step.seconds if phase == "step" else step.phases[f"{phase}_s"]


def _median(run: SimulatedVariant, phase: str, values: Sequence[float]) -> Interval:
    predicted, median = prediction_of(run), float(np.median(values))
    if phase == "step":
        return around(median, predicted.step_factor)
    exposed = phase == "exposed_generation"
    return around(median, predicted.exposed_factor(median) if exposed else predicted.phase_factor(f"{phase}_s"))
