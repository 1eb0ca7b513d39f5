"""plan(): the best configuration under constraints, what comes close, what limits each, and how sure the order is."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from rlsim.errors import Infeasible, InputError
from rlsim.loading.scenario import dump_scenario, vary
from rlsim.loading.variation import Overrides
from rlsim.planning.cells import SEARCH_REPLICATIONS, Cell, bounded_cells
from rlsim.planning.compare import differences
from rlsim.planning.evaluate import baseline_cell, beside
from rlsim.planning.execution import Runner, executor
from rlsim.planning.finalists import (
    NEAR,
    Contest,
    Finalist,
    Finals,
    best_by_group,
    final_cell,
    final_means,
    final_replications,
    finals,
    pareto_front,
)
from rlsim.planning.objective import Objective
from rlsim.planning.outlook import Kept, p90, probability, quantile
from rlsim.planning.results import CellResult, Change, Plan, PlanRow
from rlsim.planning.search import search
from rlsim.planning.space import InfeasiblePart, SearchLimits, build_space, nearest_miss
from rlsim.report.format import percent
from rlsim.schema.scenario import Scenario
from rlsim.workload.draw import draw


@dataclass(frozen=True)
class _Searched:
    """Rows of all groups searched with their finals, and the counts behind them."""

    rows: tuple[PlanRow, ...] = ()
    finals: Finals = field(default_factory=Finals)
    rejected: tuple[InfeasiblePart, ...] = ()
    considered: int = 0
    configurations: int = 0
    simulated: int = 0

    def after(self, smaller: _Searched) -> _Searched:
        """These sizes and the smaller ones looked at before, none of whose plans keeps to the constraints."""
        return _Searched(
            (*smaller.rows, *self.rows),
            replace(self.finals, missed=(*smaller.finals.missed, *self.finals.missed)),
            (*smaller.rejected, *self.rejected),
            smaller.considered + self.considered,
            smaller.configurations + self.configurations,
            smaller.simulated + self.simulated,
        )


def plan(
    scenario: Scenario,
    *,
    objective: Objective | None = None,
    limits: SearchLimits | None = None,
    jobs: int | None = 1,
    dask: str | None = None,
) -> Plan:
    """Search engine layout, trainer layout, split, lag and speculation jointly.

    objective: what is made best, and constraints, default the shortest step. limits: cluster sizes, lags and layouts to
    look at, default the scenario's own size and lags up to its own (at least 1). Raises
    InputError for contradictions and Infeasible, with the nearest miss and the binding constraint, where nothing can
    run or nothing keeps to the constraints.
    """
    objective = objective or Objective()
    objective.check()
    limits = limits or default_limits(scenario, objective)
    _check_dynamic_sampling(scenario, limits)
    with executor(jobs, dask) as run:
        contest = Contest(scenario, objective, limits, _current(scenario))
        found = _search_sizes(contest, run)
        if not found.finals.kept:
            raise _nothing(contest, found)
        return _answer(contest, found, run)


def _current(scenario: Scenario) -> Finalist | None:
    """The scenario as it is; None where it cannot run."""
    cell = final_cell((scenario, {}))
    numbers = cell.result.numbers
    return None if numbers is None or cell.timed is None else Finalist(numbers, cell.timed)


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


def _search_sizes(contest: Contest, run: Runner) -> _Searched:
    """Search all sizes at once; for the smallest cluster size by size until one reaches the target."""
    if contest.objective.measure != "gpus":
        return _searched(contest, contest.limits, run)
    total = _Searched()
    for gpus in sorted(contest.limits.sizes):
        total = _searched(contest, replace(contest.limits, sizes=(gpus,)), run).after(total)
        if total.finals.kept:
            break
    return total


def _searched(contest: Contest, limits: SearchLimits, run: Runner) -> _Searched:
    scenario = contest.scenario
    space = build_space(scenario, limits)
    found = search(scenario, bounded_cells(scenario, space, run, limits.near_evidence), NEAR, run)
    rows, rejected = [], list(space.rejected)
    for index, result in found.results.items():
        row = _row(contest, found.cells[index], result)
        if isinstance(row, PlanRow):
            rows.append(row)
        else:
            rejected.append(row)
    last = finals(contest, rows, run)
    return _Searched(
        tuple(rows),
        last,
        (*rejected, *last.rejected),
        space.considered,
        space.configurations,
        len(found.results),
    )


def _row(contest: Contest, cell: Cell, result: CellResult) -> PlanRow | InfeasiblePart:
    """The plan of a simulated cell, or why it is none: the simulation may see more memory in use than the bounds."""
    overrides, numbers = cell.layout.overrides(), result.numbers
    if numbers is None:
        error = result.infeasible
        return InfeasiblePart.by(overrides, error) if error else InfeasiblePart(overrides, result.reason)
    used = max(numbers.generation_memory_bytes, numbers.training_memory_bytes)
    miss = contest.limits.headroom_miss(contest.scenario, used, overrides)
    return miss or PlanRow(cell.layout, cell.trainers, cell.bound_s, numbers, SEARCH_REPLICATIONS, cell.near_evidence)


def _nothing(contest: Contest, found: _Searched) -> Infeasible | InputError:
    """The nearest miss and what binds it."""
    if found.finals.missed:
        return _missed(contest, min(found.finals.missed, key=contest.miss))
    if contest.limits.near_evidence and found.configurations and not found.simulated:
        return InputError(
            "--near-evidence leaves no plan: no measured run lies near any layout that fits; leave it out"
        )
    nearest = nearest_miss(found.rejected)
    if nearest is None:
        return InputError("the limits leave no plan to look at; widen --gpus, --max-staleness or the layouts")
    what = ", ".join(f"{key}={value}" for key, value in nearest.overrides.items())
    return Infeasible(
        f"no plan fits; the nearest miss is {what}: {nearest.reason}", nearest.needed, nearest.available, nearest.unit
    )


def _missed(contest: Contest, one: Finalist) -> Infeasible:
    binding = min(contest.allowed(one), key=lambda step: step.longest_s)
    wanted = contest.objective.confidence
    return Infeasible(
        f"no plan keeps to the {binding.constraint} with a probability of {percent(wanted)}; the nearest is "
        f"{one.plan.name}, which keeps to it with {percent(probability(one.step_s, binding.longest_s))}",
        quantile(one.step_s, wanted),
        binding.longest_s,
        f"s per step with {percent(wanted)}",
    )


def _answer(contest: Contest, found: _Searched, run: Runner) -> Plan:
    scenario, objective, kept = contest.scenario, contest.objective, found.finals.kept
    first = kept[0]
    best = _beside_baseline(scenario, first)
    ranked = (best, *(one.plan for one in kept[1:]), *found.finals.rest)
    shown = ranked[: len(kept)]
    groups = best_by_group(contest, shown)
    near = next((one for one in kept if one.plan.near_evidence), None)
    current = contest.current
    rivals = [*([] if current is None else [current]), *kept[1:]]
    return Plan(
        scenario=scenario.name,
        objective=objective,
        objective_value=_value(contest, first),
        best=best,
        best_near=None if near is None else best if near is first else near.plan,
        against_near=None if near is None else contest.against(first, near),
        near=tuple(contest.near(shown)),
        pareto=tuple(pareto_front(groups)),
        by_group=tuple(groups),
        ranked=ranked,
        current=None if current is None else current.numbers,
        waterfall=_waterfall(contest, best, run),
        against=tuple(contest.against(first, rival) for rival in rivals),
        constraints=_kept(contest, first),
        considered=found.considered,
        configurations=found.configurations,
        simulated=found.simulated,
        only_near=contest.limits.near_evidence,
        best_scenario=dump_scenario(_stated(scenario, best, objective)),
    )


def _value(contest: Contest, best: Finalist) -> float:
    """The measure of the best plan in its own unit: at the 90th percentile of the step where that is made best."""
    numbers, mean_s = best.numbers, best.timed.step_s
    step_s = p90(best.step_s) if contest.objective.statistic == "p90" else mean_s
    return contest.objective.value(contest.scenario, numbers.num_gpus, step_s, numbers.tokens_per_s * mean_s)


def _kept(contest: Contest, best: Finalist) -> tuple[Kept, ...]:
    """How the best plan keeps to what was asked: by its draws, by construction, or as far as the model says."""
    n, limits = best.numbers, contest.limits
    timed = [
        Kept(one.constraint, one.longest_s, best.timed.step_s, "s per step", probability(best.step_s, one.longest_s))
        for one in contest.allowed(best)
    ]
    used = max(n.generation_memory_bytes, n.training_memory_bytes) / contest.scenario.hardware.memory_bytes.value
    lag = Kept("policy lag", float(max(limits.lags)), float(n.policy_lag), "steps", 1.0)
    return (*timed, lag, Kept("memory", 1 - limits.memory_headroom, used, "share of a GPU", None))


def _beside_baseline(scenario: Scenario, best: Finalist) -> PlanRow:
    """The plan with its speed-ups over the autoregressive baseline."""
    replications: Overrides = {"simulation.replications": final_replications(scenario)}
    whole = vary(scenario, {**best.plan.layout.overrides(), **replications})
    try:
        return replace(best.plan, numbers=beside(whole, best.numbers, best.timed, baseline_cell(whole)))
    except (Infeasible, InputError):
        return best.plan


def _waterfall(contest: Contest, best: PlanRow, run: Runner) -> tuple[Change, ...]:
    """What each stage takes from the scenario as it is towards the best plan; one that cannot run is left out."""
    if contest.current is None:
        return ()
    drafting = best.layout.engine.drafting.overrides()
    layouts = {**drafting, **best.layout.engine.layout.overrides(), **best.layout.trainer.overrides()}
    ways = {str(best.layout.engine.drafting): drafting, "layouts": layouts}
    stages = dict(run(final_means, [(contest.scenario, overrides) for overrides in ways.values()]))
    steps = [(what, stages[place].numbers) for place, what in enumerate(ways)]
    done = [Change(what, numbers.step_s.mean) for what, numbers in steps if numbers is not None]
    as_is = Change("as it is", contest.current.numbers.step_s.mean)
    return (as_is, *done, Change("GPUs, split and lag", best.step_s))


def _stated(scenario: Scenario, best: PlanRow, objective: Objective) -> Scenario:
    """The plan as a scenario that asks its own question."""
    question = f"What does the plan for {objective.measure.replace('_', ' ')} of '{scenario.name}' take? {best.name}."
    return vary(vary(scenario, best.layout.overrides()), {"question": question})


def changes(scenario: Scenario, row: PlanRow) -> list[str]:
    """Overrides that turn ``scenario`` into the plan, as ``--set`` takes them; what stays the same is left out."""
    changed = differences(scenario, vary(scenario, row.layout.overrides()))
    return [f"{key}={json.dumps(value)}" for key, (_, value) in changed.items()]
