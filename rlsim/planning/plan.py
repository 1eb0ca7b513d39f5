"""plan(): the best configuration under constraints, what comes close, what limits each, and how sure the order is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rlsim.errors import Infeasible, InputError
from rlsim.loading import dump_scenario, vary
from rlsim.planning.cells import SEARCH_REPLICATIONS, Cell, bounded_cells
from rlsim.planning.compare import differences
from rlsim.planning.confidence import ranking_confidence
from rlsim.planning.execution import Runner, executor
from rlsim.planning.finalists import NEAR, Contest, Finals, best_by_group, final_result, finals, pareto_front
from rlsim.planning.layouts import Layout
from rlsim.planning.objective import Objective
from rlsim.planning.results import CellNumbers, CellResult, Change, Plan, PlanRow
from rlsim.planning.sampled import sampled_search
from rlsim.planning.search import search
from rlsim.planning.space import InfeasiblePart, SearchLimits, build_space, nearest_miss
from rlsim.planning.variation import Overrides, varied
from rlsim.report.format import percent
from rlsim.schema.scenario import Scenario
from rlsim.workload.draw import draw

MOST_EXHAUSTIVE = 20_000
"""Cells (split x engine) up to which every one is bounded and, where the bound allows, simulated."""


@dataclass(frozen=True)
class _Searched:
    """Rows of all groups searched with their finals, and the counts behind them."""

    rows: tuple[PlanRow, ...] = ()
    finals: Finals = field(default_factory=Finals)
    rejected: tuple[InfeasiblePart, ...] = ()
    considered: int = 0
    configurations: int = 0
    simulated: int = 0
    exhaustive: bool = True

    def after(self, smaller: _Searched) -> _Searched:
        """These sizes and the smaller ones looked at before, none of whose plans keeps to the constraints."""
        return _Searched(
            (*smaller.rows, *self.rows),
            replace(self.finals, missed=(*smaller.finals.missed, *self.finals.missed)),
            (*smaller.rejected, *self.rejected),
            smaller.considered + self.considered,
            smaller.configurations + self.configurations,
            smaller.simulated + self.simulated,
            smaller.exhaustive and self.exhaustive,
        )


def plan(
    scenario: Scenario,
    *,
    objective: Objective | None = None,
    limits: SearchLimits | None = None,
    method: str = "auto",
    draws: int | None = None,
    jobs: int | None = 1,
    dask: str | None = None,
) -> Plan:
    """Search engine layout, trainer layout, split, lag and speculation jointly.

    objective: what is made best, and constraints, default the shortest step. limits: cluster sizes, lags and layouts to
    look at, default the scenario's own size and lags up to its own (at least 1). method: exhaustive (bounds, then
    simulation of what they leave), optuna (sampled, for very large spaces; needs the extra ``plan``), or auto. draws:
    draws behind the ranking confidence, 0 for none. Raises InputError for contradictions and Infeasible, with the
    nearest miss and the binding constraint, where nothing can run or nothing keeps to the constraints.
    """
    objective = objective or Objective()
    objective.check()
    limits = limits or default_limits(scenario, objective)
    _check_dynamic_sampling(scenario, limits)
    with executor(jobs, dask) as run:
        contest = Contest(scenario, objective, limits)
        found = _search_sizes(contest, method, run)
        if not found.finals.kept:
            raise _nothing(contest, found)
        return _answer(contest, found, draws, run)


def _check_dynamic_sampling(scenario: Scenario, limits: SearchLimits) -> None:
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


def default_limits(scenario: Scenario, objective: Objective | None = None) -> SearchLimits:
    """The scenario's cluster size (around it where the smallest cluster is asked for) and lags 0 to its own, or 1.

    Under dynamic sampling lag 0 only, since it repeats rollouts within a step.
    """
    gpus = scenario.cluster.num_gpus
    sizes = (gpus,)
    if objective is not None and objective.measure == "gpus":
        sizes = tuple(sorted({max(1, gpus * 2**i // 16) for i in range(8)}))
    most = max(1, scenario.loop.policy_lag) if scenario.workload.usable_group_share == 1 else 0
    return SearchLimits(sizes, tuple(range(most + 1)))


def _search_sizes(contest: Contest, method: str, run: Runner) -> _Searched:
    """Search all sizes at once; for the smallest cluster size by size until one reaches the target."""
    if method not in ("auto", "exhaustive", "optuna"):
        raise InputError(f"--search {method}: must be auto, exhaustive or optuna")
    if contest.objective.measure != "gpus":
        return _searched(contest, contest.limits, method, run)
    total = _Searched()
    for gpus in sorted(contest.limits.sizes):
        total = _searched(contest, replace(contest.limits, sizes=(gpus,)), method, run).after(total)
        if total.finals.kept:
            break
    return total


def _searched(contest: Contest, limits: SearchLimits, method: str, run: Runner) -> _Searched:
    scenario = contest.scenario
    space = build_space(scenario, limits)
    count = sum(len(engines) for engines in space.engines.values())
    if method == "optuna" or (method == "auto" and count > MOST_EXHAUSTIVE):
        found = sampled_search(scenario, space, run)
    else:
        found = search(scenario, bounded_cells(scenario, space, run), NEAR, run)
    rows, rejected = [], list(space.rejected)
    for index, result in found.results.items():
        row = _row(contest, found.cells[index], result)
        if isinstance(row, PlanRow):
            rows.append(row)
        else:
            rejected.append(row)
    return _Searched(
        tuple(rows),
        finals(contest, rows, run),
        tuple(rejected),
        space.considered,
        space.configurations,
        len(found.results),
        found.exhaustive,
    )


def _row(contest: Contest, cell: Cell, result: CellResult) -> PlanRow | InfeasiblePart:
    """The plan of a simulated cell, or why it is none: the simulation may see more memory in use than the bounds."""
    overrides, numbers = cell.layout.overrides(), result.numbers
    if numbers is None:
        error = result.infeasible
        return InfeasiblePart.by(overrides, error) if error else InfeasiblePart(overrides, result.reason)
    used = max(numbers.generation_memory_bytes, numbers.training_memory_bytes)
    miss = contest.limits.headroom_miss(contest.scenario, used, overrides)
    return miss or PlanRow(cell.layout, cell.trainers, cell.bound_s, numbers, SEARCH_REPLICATIONS)


def _nothing(contest: Contest, found: _Searched) -> Infeasible | InputError:
    """The nearest miss and what binds it."""
    if found.finals.missed:
        row = min(found.finals.missed, key=contest.breach)
        allowed = contest.objective.allowed_steps(contest.scenario, row.numbers.num_gpus)
        binding = min(allowed, key=lambda step: step.longest_s)
        miss = row.step_s / binding.longest_s - 1
        return Infeasible(
            f"no plan keeps to the {binding.constraint}; the nearest is {row.name}, missing it by {percent(miss, 1)}",
            row.step_s, binding.longest_s, "s per step",
        )  # fmt: skip
    nearest = nearest_miss(found.rejected)
    if nearest is None:
        return InputError("the limits leave no plan to look at; widen --gpus, --max-staleness or the layouts")
    what = ", ".join(f"{key}={value}" for key, value in nearest.overrides.items())
    return Infeasible(
        f"no plan fits; the nearest miss is {what}: {nearest.reason}", nearest.needed, nearest.available, nearest.unit
    )


def _answer(contest: Contest, found: _Searched, draws: int | None, run: Runner) -> Plan:
    scenario, kept = contest.scenario, found.finals.kept
    best = _beside_baseline(scenario, kept[0])
    kept = (best, *kept[1:])
    groups = best_by_group(kept)
    ways = _ways(scenario, best.layout)
    stages = dict(run(final_result, [(scenario, overrides, False) for _, overrides in ways]))
    current = stages[0].numbers
    numbers, ranked = best.numbers, (*kept, *found.finals.rest)
    tokens = numbers.tokens_per_s * best.step_s
    return Plan(
        scenario=scenario.name,
        objective=contest.objective,
        objective_value=contest.objective.value(scenario, numbers.num_gpus, best.step_s, tokens),
        best=best,
        near=tuple(contest.near(kept)),
        pareto=tuple(pareto_front(groups)),
        by_group=tuple(groups),
        ranked=ranked,
        current=current,
        waterfall=_waterfall(best, [(what, stages[i].numbers) for i, (what, _) in enumerate(ways)]),
        confidence=ranking_confidence(scenario, ranked, draws, run),
        considered=found.considered,
        configurations=found.configurations,
        simulated=found.simulated,
        exhaustive=found.exhaustive,
        best_scenario=dump_scenario(_stated(scenario, best, contest.objective)),
    )


def _beside_baseline(scenario: Scenario, row: PlanRow) -> PlanRow:
    """The plan with its speed-ups over the autoregressive baseline."""
    numbers = final_result((scenario, row.layout.overrides(), True)).numbers
    return replace(row, numbers=numbers or row.numbers)


def _ways(scenario: Scenario, best: Layout) -> list[tuple[str, Overrides]]:
    """Stages from the scenario as it is towards the best plan, before its split and lag."""
    drafting = best.engine.drafting.overrides()
    layouts = {**drafting, **best.engine.layout.overrides(), **best.trainer.overrides()}
    return [("as it is", {}), (str(best.engine.drafting), drafting), ("layouts", layouts)]


def _waterfall(best: PlanRow, stages: Sequence[tuple[str, CellNumbers | None]]) -> tuple[Change, ...]:
    """What each stage takes; one that cannot run falls to the next one."""
    done = [Change(what, numbers.step_s.mean) for what, numbers in stages if numbers is not None]
    return (*done, Change("GPUs, split and lag", best.step_s)) if stages[0][1] is not None else ()


def _stated(scenario: Scenario, best: PlanRow, objective: Objective) -> Scenario:
    """The plan as a scenario that asks its own question."""
    question = f"What does the plan for {objective.measure.replace('_', ' ')} of '{scenario.name}' take? {best.name}."
    return vary(varied(scenario, best.layout.overrides()), {"question": question})


def changes(scenario: Scenario, row: PlanRow) -> list[str]:
    """Overrides that turn ``scenario`` into the plan, as ``--set`` takes them; what stays the same is left out."""
    changed = differences(scenario, varied(scenario, row.layout.overrides()))
    return [f"{key}={json.dumps(value)}" for key, (_, value) in changed.items()]
