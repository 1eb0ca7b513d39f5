"""plan(): the best configuration under constraints, what comes close, what limits each, and how sure the order is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlsim.errors import Infeasible, InputError
from rlsim.loading import dump_scenario
from rlsim.planning.comparing import differences
from rlsim.planning.confidence import Confidence, ranking_confidence
from rlsim.planning.evaluate import Outcome, evaluate_assignment
from rlsim.planning.execution import Runner, executor
from rlsim.planning.goals import Goal
from rlsim.planning.sampled import sampled_search
from rlsim.planning.search import Cell, Found, bounded_cells, search
from rlsim.planning.space import Assignment, Limits, Rejected, Space, build_space, nearest_miss
from rlsim.planning.variation import varied
from rlsim.schema.scenario import Scenario
from rlsim.workload.draw import draw

NEAR = 0.03
"""Plans within this share of the best count as equally good."""
MOST_EXHAUSTIVE = 20_000
"""Cells (pool x engine) up to which every one is bounded and, where the bound allows, simulated."""
SHOWN_NEAR = 12
FINAL_REPLICATIONS = 4
"""Most replications behind the best plan's numbers; the order is found on one drawn workload, the same for all."""


@dataclass(frozen=True)
class PlanRow:
    """One plan. assignment: overrides of the scenario. trainers: trainer layouts it was chosen from. bound_s, step_s:
    closed-form bound and simulated step on the search's drawn work. values: columns as in a sweep."""

    name: str
    assignment: Assignment
    trainers: int
    bound_s: float
    step_s: float
    values: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Flat form of tables and JSON."""
        return {"plan": self.name, **self.assignment, "bound_s": self.bound_s, **self.values}


@dataclass(frozen=True)
class Plan:
    """The answer.

    best, near (within NEAR of it by the objective), pareto (step time against cost), by_group (best of every cluster
    size and lag), current (the scenario as it is, None where it cannot run). considered, configurations, simulated:
    combinations looked at, valid ones, and simulated ones; exhaustive: no plan outside can be better.
    """

    scenario: str
    goal: Goal
    objective_value: float
    best: PlanRow
    near: tuple[PlanRow, ...]
    pareto: tuple[PlanRow, ...]
    by_group: tuple[PlanRow, ...]
    ranked: tuple[PlanRow, ...]
    current: dict[str, Any] | None
    confidence: tuple[Confidence, ...]
    considered: int
    configurations: int
    simulated: int
    exhaustive: bool
    best_scenario: str = field(repr=False, default="")

    def as_dict(self) -> dict[str, Any]:
        """The form of ``--json``."""
        return {
            "schema": "rlsim.plan/1",
            "scenario": self.scenario,
            "objective": self.goal.objective,
            "objective_value": self.objective_value,
            "best": self.best.as_dict(),
            "near": [row.as_dict() for row in self.near],
            "pareto": [row.as_dict() for row in self.pareto],
            "by_group": [row.as_dict() for row in self.by_group],
            "current": self.current,
            "confidence": [vars(item) for item in self.confidence],
            "considered": self.considered,
            "configurations": self.configurations,
            "simulated": self.simulated,
            "exhaustive": self.exhaustive,
        }


@dataclass(frozen=True)
class _Searched:
    """Rows of all groups searched, and the counts behind them."""

    rows: tuple[PlanRow, ...]
    rejected: tuple[Rejected, ...]
    considered: int
    configurations: int
    simulated: int
    exhaustive: bool


def plan(
    scenario: Scenario,
    *,
    goal: Goal | None = None,
    limits: Limits | None = None,
    method: str = "auto",
    draws: int | None = None,
    jobs: int | None = 1,
    dask: str | None = None,
) -> Plan:
    """Search engine layout, trainer layout, split, lag and speculation jointly.

    goal: objective and constraints, default the shortest step. limits: cluster sizes, lags and layouts to look at,
    default the scenario's own size and lags up to its own (at least 1). method: exhaustive (bounds, then simulation of
    what they leave), optuna (sampled, for very large spaces; needs the extra ``plan``), or auto. draws: draws behind
    the ranking confidence, 0 for none. Raises InputError for contradictions and Infeasible, with the nearest miss and
    the binding constraint, where nothing can run or nothing keeps to the constraints.
    """
    goal = goal or Goal()
    goal.check()
    limits = limits or default_limits(scenario, goal)
    _check_dynamic_sampling(scenario, limits)
    with executor(jobs, dask) as run:
        found = _search_sizes(scenario, goal, limits, method, run)
        kept = [row for row in found.rows if _breaches(scenario, goal, row) <= 1.0]
        if not kept:
            raise _nothing(scenario, goal, found)
        return _answer(scenario, goal, found, kept, draws, run)


def _check_dynamic_sampling(scenario: Scenario, limits: Limits) -> None:
    """InputError where repeated rollouts would meet a lag; Infeasible where they find too few groups in any plan."""
    if scenario.workload.usable_group_share == 1:
        return
    if any(limits.lags):
        raise InputError(
            "workload.usable_group_share below 1 repeats rollouts within a step, which asynchronous loops do not do: "
            "look at lag 0 only (--max-staleness 0) or give workload.generated_batch_factor instead"
        )
    for replication in range(scenario.simulation.replications):
        draw(scenario, replication)


def default_limits(scenario: Scenario, goal: Goal | None = None) -> Limits:
    """The scenario's cluster size (around it where the smallest cluster is asked for) and lags 0 to its own, or 1.

    Under dynamic sampling lag 0 only, since it repeats rollouts within a step.
    """
    gpus = scenario.cluster.num_gpus
    sizes = (gpus,)
    if goal is not None and goal.objective == "gpus":
        sizes = tuple(sorted({max(1, gpus * 2**i // 16) for i in range(8)}))
    most = max(1, scenario.loop.policy_lag) if scenario.workload.usable_group_share == 1 else 0
    return Limits(sizes, tuple(range(most + 1)))


def _search_sizes(scenario: Scenario, goal: Goal, limits: Limits, method: str, run: Runner) -> _Searched:
    """Search all sizes at once; for the smallest cluster size by size until one reaches the target."""
    if method not in ("auto", "exhaustive", "optuna"):
        raise InputError(f"--search {method}: must be auto, exhaustive or optuna")
    if goal.objective != "gpus":
        return _searched(scenario, limits, method, run)
    total: _Searched | None = None
    for gpus in sorted(limits.sizes):
        here = _searched(scenario, replace(limits, sizes=(gpus,)), method, run)
        total = here if total is None else _joined(total, here)
        if any(_breaches(scenario, goal, row) <= 1.0 for row in here.rows):
            break
    if total is None:
        raise InputError("--gpus: no cluster size to look at")
    return total


def _joined(a: _Searched, b: _Searched) -> _Searched:
    return _Searched(
        (*a.rows, *b.rows),
        (*a.rejected, *b.rejected),
        a.considered + b.considered,
        a.configurations + b.configurations,
        a.simulated + b.simulated,
        a.exhaustive and b.exhaustive,
    )


def _searched(scenario: Scenario, limits: Limits, method: str, run: Runner) -> _Searched:
    space = build_space(scenario, limits)
    cells = sum(len(engines) for engines in space.engines.values())
    found: Found
    if method == "optuna" or (method == "auto" and cells > MOST_EXHAUSTIVE):
        found = sampled_search(scenario, space, run)
    else:
        found = search(scenario, bounded_cells(scenario, space, run), NEAR, run)
    rows = [_row(found.cells[i], outcome) for i, outcome in found.outcomes.items() if outcome.status == "ok"]
    rows = [row for row in rows if _leaves_headroom(scenario, limits, row, space)]
    failed = [
        Rejected.by(found.cells[i].assignment, outcome.infeasible)
        if outcome.infeasible
        else Rejected(found.cells[i].assignment, outcome.reason)
        for i, outcome in found.outcomes.items()
        if outcome.status != "ok"
    ]
    return _Searched(
        tuple(rows),
        (*space.rejected, *failed),
        space.considered,
        space.configurations,
        len(found.outcomes),
        found.exhaustive,
    )


def _leaves_headroom(scenario: Scenario, limits: Limits, row: PlanRow, space: Space) -> bool:
    """Whether the memory that the simulation saw in use leaves the wanted share free."""
    allowed = scenario.hardware.memory_bytes.value * (1 - limits.memory_headroom)
    used = max(float(row.values["generation_memory_bytes"]), float(row.values["training_memory_bytes"]))
    if used > allowed:
        reason = f"leaves less than {limits.memory_headroom:.0%} of device memory free"
        space.rejected.append(Rejected(row.assignment, reason, used, allowed, "bytes"))
    return used <= allowed


def _row(cell: Cell, outcome: Outcome) -> PlanRow:
    return PlanRow(
        describe(cell), cell.assignment, cell.trainers, cell.bound_s, outcome.step_s[0], dict(outcome.values)
    )


def describe(cell: Cell) -> str:
    """A plan in a line: ``512 GPUs, lag 1, 256+256, engine TP8 EP8, k=5, trainer TP2 PP4 CP2 EP16``."""
    pool = f"{cell.pool.gpus} GPUs, " + (
        "sync" if cell.pool.lag == 0 else f"lag {cell.pool.lag}, {cell.pool.generation}+{cell.pool.training}"
    )
    method = cell.engine.get("speculation.method", "")
    k = cell.engine.get("k") or cell.engine.get("speculation.draft_length", "0")
    drafting = "no speculation" if k == "0" else f"{method + ' ' if method else ''}k={k}"
    return f"{pool}, engine {_layout(cell.engine, 'engine')}, {drafting}, trainer {_layout(cell.trainer, 'trainer')}"


def _layout(part: Assignment, section: str) -> str:
    letters = {"tensor": "TP", "pipeline": "PP", "context": "CP", "expert": "EP", "attention_data": "DPA"}
    sizes = {short: part.get(f"{section}.{name}_parallel", "1") for name, short in letters.items()}
    return " ".join(f"{short}{size}" for short, size in sizes.items() if size != "1") or "TP1"


def _breaches(scenario: Scenario, goal: Goal, row: PlanRow) -> float:
    """Step time over the longest one allowed, the worst over constraints; 0 without any."""
    allowed = goal.longest_step_s(scenario, int(row.values["num_gpus"]))
    return max((row.step_s / longest for longest in allowed.values()), default=0.0)


def _nothing(scenario: Scenario, goal: Goal, found: _Searched) -> Infeasible:
    """The nearest miss and what binds it."""
    if found.rows:
        row = min(found.rows, key=lambda item: _breaches(scenario, goal, item))
        allowed = goal.longest_step_s(scenario, int(row.values["num_gpus"]))
        binding = min(allowed, key=lambda name: allowed[name])
        return Infeasible(
            f"no plan keeps to the {binding}; the nearest is {row.name}, which misses it by "
            f"{row.step_s / allowed[binding] - 1:.0%}",
            row.step_s, allowed[binding], "s per step",
        )  # fmt: skip
    miss = nearest_miss(found.rejected)
    if miss is None:
        raise InputError("the limits leave no plan to look at; widen --gpus, --max-staleness or the layouts")
    what = ", ".join(f"{key}={value}" for key, value in miss.assignment.items())
    return Infeasible(
        f"no plan fits; the nearest miss is {what}: {miss.reason}", miss.needed, miss.available, miss.unit
    )


# --- the answer -----------------------------------------------------------------------------------------------------


def _answer(
    scenario: Scenario, goal: Goal, found: _Searched, kept: Sequence[PlanRow], draws: int | None, run: Runner
) -> Plan:
    ranked = sorted(kept, key=lambda row: (_score(goal, row), row.name))
    near = _near(goal, ranked)[:SHOWN_NEAR]
    groups = _best_by_group(ranked)
    best = _final(scenario, ranked[0])
    best_s = float(best.values["step_s"])
    chosen = varied(scenario, best.assignment)
    tokens = float(best.values["tokens_per_s"]) * best_s
    return Plan(
        scenario=scenario.name,
        goal=goal,
        objective_value=goal.value(scenario, chosen.cluster.num_gpus, best_s, tokens),
        best=best,
        near=tuple(near),
        pareto=tuple(pareto_front(groups)),
        by_group=tuple(groups),
        ranked=tuple(ranked),
        current=_current(scenario),
        confidence=ranking_confidence(scenario, [(row.name, row.assignment) for row in ranked], draws, run),
        considered=found.considered,
        configurations=found.configurations,
        simulated=found.simulated,
        exhaustive=found.exhaustive,
        best_scenario=dump_scenario(chosen),
    )


def _score(goal: Goal, row: PlanRow) -> tuple[float, float]:
    return goal.score(int(row.values["num_gpus"]), row.step_s)


def _near(goal: Goal, ranked: Sequence[PlanRow]) -> list[PlanRow]:
    """Plans within NEAR of the best; for the smallest cluster those of the same size."""
    best = _score(goal, ranked[0])
    if goal.objective == "gpus":
        return [row for row in ranked if _score(goal, row)[0] == best[0] and row.step_s <= best[1] * (1 + NEAR)]
    return [row for row in ranked if _score(goal, row)[0] <= best[0] * (1 + NEAR)]


def _best_by_group(ranked: Sequence[PlanRow]) -> list[PlanRow]:
    """Fastest plan of every cluster size and lag."""
    best: dict[tuple[int, int], PlanRow] = {}
    for row in ranked:
        key = (int(row.values["num_gpus"]), int(row.values["policy_lag"]))
        if key not in best or row.step_s < best[key].step_s:
            best[key] = row
    return [best[key] for key in sorted(best)]


def pareto_front(rows: Sequence[PlanRow]) -> list[PlanRow]:
    """Plans that no other one beats in step time and cost at once, cheapest first."""
    front: list[PlanRow] = []
    for row in sorted(rows, key=lambda item: (float(item.values["cost_per_step_usd"]), item.step_s)):
        if not front or row.step_s < front[-1].step_s:
            front.append(row)
    return front


def _final(scenario: Scenario, row: PlanRow) -> PlanRow:
    """The plan again with more replications and against its autoregressive baseline."""
    count = min(FINAL_REPLICATIONS, scenario.simulation.replications)
    outcome = evaluate_assignment(scenario, row.assignment, (f"simulation.replications={count}",))
    return replace(row, values=dict(outcome.values)) if outcome.status == "ok" else row


def _current(scenario: Scenario) -> dict[str, Any] | None:
    count = min(FINAL_REPLICATIONS, scenario.simulation.replications)
    outcome = evaluate_assignment(scenario, {}, (f"simulation.replications={count}",), with_baseline=False)
    return dict(outcome.values) if outcome.status == "ok" else None


def changes(scenario: Scenario, row: PlanRow) -> list[str]:
    """Overrides that turn ``scenario`` into the plan, as ``--set`` takes them; what stays the same is left out."""
    changed = differences(scenario, varied(scenario, row.assignment))
    return [f"{key}={json.dumps(value)}" for key, (_, value) in changed.items()]
