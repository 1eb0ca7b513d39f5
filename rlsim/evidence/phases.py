"""Phases of measured RL steps, one record each, beside those of the simulated step.

A row is read as a measured step (:mod:`rlsim.evidence.steps`) as far as its columns describe one.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlsim.errors import InputError, RlsimError, shortened
from rlsim.evidence.rows import Comparison, MeasuredRow, Predict, Prediction, device_profile_name, model_card_name
from rlsim.evidence.steps import RECIPE_OPTIMIZER_BYTES, Simulated, scenario_of
from rlsim.evidence.tables import STEP_COLUMNS, Row, SkippedRow, Table, TableRow, measured_value, number
from rlsim.evidence.transfers import parallel_sizes
from rlsim.files.yaml import lists_beside
from rlsim.loading.scenario import load_scenario, vary
from rlsim.parameters.sets import Fitted
from rlsim.projection.precision import precise
from rlsim.projection.uncertainty.predictive import around, prediction_of
from rlsim.projection.variant import SimulatedVariant, simulate_variant
from rlsim.results import Interval
from rlsim.results.validation import ComparedRow
from rlsim.schema.scenario import Scenario

AGENT_SCENARIOS = ("mlperf_grpo",)
"""Shipped scenarios that describe agents of measured runs."""
SUMMARISED: dict[str, str] = lists_beside(__file__)["summarised"]
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


@functools.cache  # asked for by every row
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
    return precise(simulate_variant(scenario))


def run_rows(run: AgentRun) -> list[ComparedRow]:
    """Medians over the steps of a run, and the spread of the phases that wait, beside those of the simulated steps."""
    scenario, simulated = run.scenario, simulated_run(run.scenario)
    steps = [step for replication in simulated.steps for step in replication]
    stack = "" if scenario.stack is None else scenario.stack.name
    details = {"model": scenario.model.name, "gpu": scenario.hardware.name, "stack": stack, "framework": stack}
    details["num_gpus"] = str(scenario.cluster.num_gpus)
    out = []
    for phase, column in SUMMARISED.items():
        values = seconds_of(run.rows, column)
        if len(values) < FEWEST_STEPS:
            continue
        name = phase if phase == "step" else f"{phase}_s"
        drawn = [step.seconds if phase == "step" else step.phases[name] for step in steps]
        median = float(np.median(drawn))
        predicted = around(median, prediction_of(simulated).factor(name, median))
        compared = {"median of steps": (float(np.median(values)), predicted)}
        if phase in SPREAD:
            width = spread(drawn)
            compared["p10 to p90 of steps"] = (spread(values), Interval(width, width, width))
        for name, (measured, found) in compared.items():
            group, interval = f"{phase}, {name}", {"predicted": found.mean, "low": found.low, "high": found.high}
            about = {"id": f"{run.name}: {group}", "group": group, "measured": measured, "details": details}
            out.append(ComparedRow(**about, **interval))
    return out


def seconds_of(rows: Sequence[Row], column: str) -> list[float]:
    """Seconds of the rows that give any; a step that waited for nothing counts with 0."""
    # A default below 0 separates a blank cell from a phase of 0 s.
    return [value for cells in rows if (value := number(cells, column, -1.0)) >= 0]


def spread(values: Sequence[float]) -> float:
    """Seconds between the 10th and the 90th percentile."""
    low, high = np.percentile(values, (LOW, HIGH))
    return float(high - low)


PHASES: dict[str, list[str]] = lists_beside(__file__)["phases"]
"""Phases that are compared, with the columns that may hold their seconds."""
_ENVIRONMENT = ("step", "generation", "exposed_generation")
"""Phases that wait for the environment of an agent."""
_STACKS = ("nemo", "verl")
"""Words of the frameworks whose stacks are known."""
_WITHOUT_REFERENCE = ("dapo",)
"""Algorithms without a reference policy (arXiv 2503.14476)."""


def _predictor(table: Table, fitted: Fitted) -> Predict:
    simulated = Simulated()

    def predict(row: MeasuredRow) -> Prediction:
        known = known_phases(row.cells)
        if not known.keys() - {"step"}:
            raise SkippedRow("no phase is given besides the whole step" if known else "no phase is given")
        scenario = agent_scenario(row.cells, table.seed) or phase_scenario(row.cells, table.seed, table.replications)
        found = simulated.variant(scenario)
        if row.group in _ENVIRONMENT and measured_value(row.cells, "max_agent_turns"):
            if scenario.workload.agent is not None:
                raise SkippedRow(
                    "is one draw of its trajectories: the median and the spread over the run's steps count"
                )
            raise SkippedRow("waits for the environment of an agent, whose times are not given")
        phase = "prepare_s" if row.group == "refit" and scenario.loop.mode == "sync" else f"{row.group}_s"
        time = found.step_s if row.group == "step" else dict(found.phases.items())[phase]
        if time.mean <= 0:
            raise SkippedRow("the simulated step has no such phase")
        stack = "" if scenario.stack is None else scenario.stack.name
        cuts = () if row.group == "step" else ("phases, without the whole step", f"{row.group}, {stack}")
        return Prediction(time, {"stack": stack}, cuts)

    return predict


def _measured_rows(name: str, cells: Row) -> list[MeasuredRow]:
    about = {column: cells.get(column, "") for column in ("model", "gpu", "num_gpus")}
    about["framework"] = cells.get("framework", "") or cells.get("framework_version", "")
    rows = [MeasuredRow(f"{name}:{phase}", phase, "s", s, cells, about) for phase, s in known_phases(cells).items()]
    return rows or [MeasuredRow(name, "no phase", "s", None, cells, about)]


def known_phases(cells: Row) -> dict[str, float]:
    """Measured seconds of each phase of PHASES that a row gives; log-probs may be given for each policy apart."""
    known = {phase: value for phase, columns in PHASES.items() if (value := measured_value(cells, *columns))}
    parts = [measured_value(cells, column) for column in ("old_logprob_s", "ref_logprob_s")]
    # Tables give the sum or each policy's pass; where they give both, the passes would count twice.
    if "logprob" not in known and any(parts):
        known["logprob"] = sum(part or 0.0 for part in parts)
    return known


def phase_scenario(cells: Row, seed: int = 0, replications: int | None = None) -> Scenario:
    """The scenario of a row of any table of measured steps or phases, as :func:`rlsim.evidence.steps.scenario_of`."""
    complete = all(column in cells for column in STEP_COLUMNS)
    return scenario_of(cells if complete else step_cells(cells), seed, replications)


def _extra_fields(table: Table, rows: Sequence[ComparedRow]) -> dict[str, Any]:
    """Remarks: frameworks that were taken as others, and the meaning of a refit."""
    scored = [row for row in rows if row.predicted is not None]
    out = []
    if any(row.group == "refit" for row in scored):
        out.append(
            "refit of a synchronous step is all between the last update and the first token, of an asynchronous one "
            "the pause of its engines"
        )
    named = dict.fromkeys((str(row.details["framework"]), str(row.details["stack"])) for row in scored)
    for framework, stack in named:
        if framework and not any(word in framework.lower() for word in _STACKS):
            out.append(f"no stack of {shortened(framework, 60)} is known: its rows take {stack}")
    return {"remarks": tuple(out)}


PHASE_ROWS = Comparison(_measured_rows, _predictor, _extra_fields)
"""Every published phase of every row beside its prediction as rlsim prices; a row without any says so."""


def _named(cells: Row) -> tuple[str, str, float]:
    """Model card, device profile and most tokens of a sequence of a row; SkippedRow lists everything that
    prevents a simulation."""
    found, reasons = [], []
    for name, column in ((model_card_name, "model"), (device_profile_name, "gpu")):
        try:
            found.append(name(cells[column]))
        except SkippedRow as reason:
            reasons.append(str(reason))
    response = number(cells, "max_response_len", 0.0)
    prompted = number(cells, "max_prompt_len", 0.0) + response if response else 0.0
    longest = number(cells, "max_seq_len", 0.0) or prompted
    if not longest or not _first(cells, lists_beside(__file__)["step_columns"]["avg_seq_len"]):
        reasons.append("the mean or the longest response is not given")
    if reasons:
        raise SkippedRow("; ".join(reasons))
    return found[0], found[1], longest


def step_cells(cells: Row) -> dict[str, str]:
    """The row in the columns of a table of measured steps. Raises SkippedRow where it leaves too much open."""
    model, device, longest = _named(cells)
    placement, without = cells.get("placement", "").lower(), cells.get("algorithm", "").lower() in _WITHOUT_REFERENCE
    lag = cells.get("async_max_age_steps", "") or ("1" if "async" in placement else "")
    out = {name: _first(cells, columns) for name, columns in lists_beside(__file__)["step_columns"].items()} | {
        # stack_of() looks for releases as v0.7; these tables write 0.7.
        "framework_version": re.sub(r"^(?=\d)", "v", cells.get("framework_version", "")),
        "model": model,
        "gpu": device,
        "on_off_policy": f"async lag {lag}" if lag else "sync",
        "colocated": "true" if placement.startswith("colocated") else "false",
        "max_seq_len": f"{longest:g}",
        "optimizer_bytes": cells.get("optimizer_bytes", "") or f"{RECIPE_OPTIMIZER_BYTES:g}",
        "train_backend": "fsdp" if "fsdp" in cells.get("train_backend", "").lower() else "megatron",
        "reference_logprobs": "true" if measured_value(cells, "ref_logprob_s") else "false" if without else "",
    }
    # scenario_of() asks for a time; nothing that is simulated depends on it.
    out["total_step_time_s"] = out["total_step_time_s"] or "1"
    for side, columns, sizes in (("gen", "gen", "tp pp ep"), ("train", "policy", "tp pp cp ep")):
        stated = parallel_sizes(cells.get(f"{side}_parallelism", ""))
        for size in sizes.split():
            out[f"{side}_{size}"] = cells.get(f"{columns}_{size}", "") or str(stated.get(size, 1))
    return out


def _first(cells: Row, columns: Sequence[str]) -> str:
    return next((cells[column] for column in columns if cells.get(column, "")), "")
