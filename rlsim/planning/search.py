"""Looking through a space: bounds first, then simulation in the order of the bounds until they exclude the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rlsim.costs.engine_prices import engine_prices
from rlsim.costs.memory import trainer_memory
from rlsim.costs.prices import price_inputs
from rlsim.costs.trainer_prices import TrainedBatch, step_cost
from rlsim.planning.bounds import (
    EngineRates,
    RolloutWork,
    engine_rates,
    lagged_bound_s,
    rollout_bound_s,
    rollout_works,
)
from rlsim.planning.evaluate import Outcome, evaluate_assignment
from rlsim.planning.execution import Runner
from rlsim.planning.space import Assignment, Pool, Space
from rlsim.planning.variation import varied
from rlsim.progress import ProgressLine
from rlsim.schema.scenario import Scenario
from rlsim.workload.acceptance import acceptance_of
from rlsim.workload.draw import draw_step

TRAINERS_PER_TASK = 12
SEARCH_SETTINGS = {"simulation.replications": "1"}
"""The search compares plans on one drawn workload, the same for all."""


@dataclass(frozen=True)
class Cell:
    """One pool and engine with the trainer that is fastest there. bound_s: no step of it can be shorter."""

    pool: Pool
    engine: Assignment
    trainer: Assignment
    trainers: int
    bound_s: float

    @property
    def assignment(self) -> Assignment:
        """The whole plan as overrides of the scenario."""
        return {**self.pool.assignment, **self.engine, **self.trainer}


@dataclass
class Found:
    """What the search has come to. outcomes: simulated cells by their number."""

    cells: list[Cell]
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    exhaustive: bool = True
    best: dict[tuple[int, int], float] = field(default_factory=dict)

    def note(self, index: int, outcome: Outcome) -> None:
        """Take a simulated cell in."""
        self.outcomes[index] = outcome
        if outcome.status == "ok":
            group = self.cells[index].pool.group
            self.best[group] = min(self.best.get(group, math.inf), outcome.step_s[0])

    def within(self, index: int, tolerance: float) -> bool:
        """Whether the cell may still lie within ``tolerance`` of the best of its group."""
        cell = self.cells[index]
        return cell.bound_s <= (1 + tolerance) * self.best.get(cell.pool.group, math.inf)


def bounded_cells(scenario: Scenario, space: Space, run: Runner) -> list[Cell]:
    """Cells of the space with their bounds, least bound first; pools without engine or trainer have none."""
    usable = [i for i in range(len(space.pools)) if space.engines[i] and space.trainers[i]]
    trainers = fastest_trainers(scenario, space, usable, run)
    rates = _rates(scenario, space, usable, trainers, run)
    works: dict[tuple[str, int], list[tuple[RolloutWork, ...]]] = {}
    cells = []
    for number in usable:
        pool, (trainer, trainer_s) = space.pools[number], trainers[number]
        for engine in space.engines[number]:
            candidate = varied(scenario, {**pool.assignment, **engine, **trainer})
            key = (repr(candidate.speculation), pool.lag)
            work = works.get(key) or works.setdefault(key, _works(candidate))
            bound = _bound_s(candidate, rates[_key(engine)], work, trainer_s + transfer_s(candidate))
            cells.append(Cell(pool, engine, trainer, len(space.trainers[number]), bound))
    return sorted(cells, key=lambda cell: (cell.bound_s, sorted(cell.assignment.items())))


def _works(scenario: Scenario) -> list[tuple[RolloutWork, ...]]:
    return [rollout_works(scenario, step) for step in _measured_steps(scenario)]


def _measured_steps(scenario: Scenario) -> range:
    warmup = scenario.simulation.warmup_steps
    return range(warmup, warmup + scenario.simulation.steps)


def _bound_s(
    scenario: Scenario, rates: EngineRates, works: Sequence[tuple[RolloutWork, ...]], trainer_s: float
) -> float:
    """Mean over the measured steps. The trainer's seconds hold all of a step but generation."""
    replicas = scenario.cluster.generation // scenario.engine.gpus_per_replica
    if scenario.loop.mode == "sync":
        rewards_s = scenario.workload.environment_s
        generation = [rollout_bound_s(rates, work, replicas) + rewards_s for step in works for work in step]
        return sum(generation) / len(works) + trainer_s
    lag = scenario.loop.policy_lag
    return sum(lagged_bound_s(rates, work, replicas, lag, trainer_s) for (work,) in works) / len(works)


def _key(engine: Assignment) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(engine.items()))


# --- trainers -------------------------------------------------------------------------------------------------------


def fastest_trainers(
    scenario: Scenario, space: Space, usable: Sequence[int], run: Runner
) -> dict[int, tuple[Assignment, float]]:
    """The fastest trainer of each pool with the seconds per step of its passes."""
    tasks, place = [], []
    for number in usable:
        pool, trainers = space.pools[number], space.trainers[number]
        fixed = {**pool.assignment, **space.engines[number][0], "k": "0"}
        for start in range(0, len(trainers), TRAINERS_PER_TASK):
            tasks.append((scenario, fixed, trainers[start : start + TRAINERS_PER_TASK]))
            place.append((number, start))
    best: dict[int, tuple[float, int]] = {}
    with ProgressLine("trainer layouts priced, in dozens", len(tasks)) as progress:
        for index, seconds in run(price_trainers, tasks):
            number, start = place[index]
            least = min((value, start + offset) for offset, value in enumerate(seconds))
            best[number] = min(best.get(number, least), least)
            progress.advance(1)
    chosen = {number: space.trainers[number][best[number][1]] for number in usable}
    exact = [
        (scenario, {**space.pools[n].assignment, **space.engines[n][0], "k": "0"}, [chosen[n]], True) for n in usable
    ]
    return {usable[i]: (chosen[usable[i]], seconds[0]) for i, seconds in run(price_trainers, exact)}


def price_trainers(task: tuple[object, ...]) -> list[float]:
    """Seconds per step of each trainer layout: with the weight transfer on the first measured step, which is enough to
    rank them, or its passes alone over all measured steps. The transfer adds up from the engine's and the trainer's."""
    scenario, fixed, trainers, every = (*task, False)[:4]
    out = []
    for trainer in trainers:  # type: ignore[attr-defined]
        candidate = varied(scenario, {**fixed, **trainer, **SEARCH_SETTINGS})  # type: ignore[arg-type, dict-item]
        steps = _measured_steps(candidate)
        if every:
            out.append(_passes_s(candidate, steps))
        else:
            out.append(_passes_s(candidate, steps[:1]) + transfer_s(candidate))
    return out


def _passes_s(scenario: Scenario, steps: Sequence[int]) -> float:
    """Mean seconds of data handling, log-probs and training over the drawn work of ``steps``."""
    trainer, acceptance, seconds = price_inputs(scenario).trainer, acceptance_of(scenario.speculation), 0.0
    trainer_memory(scenario)
    for step in steps:
        drawn = draw_step(scenario, acceptance, step, 0)
        cost = step_cost(trainer, TrainedBatch.of(drawn.trained_tokens, drawn.generated_samples))
        seconds += cost.data.seconds + cost.logprob.seconds + cost.train.seconds
    return seconds / len(steps)


def transfer_s(scenario: Scenario) -> float:
    """Seconds of the weight transfer, with everything around it in a synchronous step."""
    movement = price_inputs(scenario).movement
    return (movement.prepare() if scenario.loop.mode == "sync" else movement.transfer()).seconds


# --- engines --------------------------------------------------------------------------------------------------------


def _rates(
    scenario: Scenario,
    space: Space,
    usable: Sequence[int],
    trainers: dict[int, tuple[Assignment, float]],
    run: Runner,
) -> dict[tuple[tuple[str, str], ...], EngineRates]:
    """Rates of each engine from the table of the pool with most sequences per replica, which holds those of all."""
    crowded = sorted(usable, key=lambda n: (space.pools[n].generation, -space.pools[n].lag))
    place: dict[tuple[tuple[str, str], ...], tuple[int, Assignment]] = {}
    for number in crowded:
        for engine in space.engines[number]:
            place.setdefault(_key(engine), (number, engine))
    tasks = [
        (scenario, {**space.pools[number].assignment, **engine, **trainers[number][0]})
        for number, engine in place.values()
    ]
    keys = list(place)
    with ProgressLine("engines bounded", len(tasks)) as progress:
        out = {}
        for index, rates in run(rates_of, tasks):
            out[keys[index]] = rates
            progress.advance(1)
    return out


def rates_of(task: tuple[Scenario, Assignment]) -> EngineRates:
    """Rates of one engine replica."""
    return engine_rates(engine_prices(price_inputs(varied(*task)).engine).table)


# --- simulation -----------------------------------------------------------------------------------------------------


def simulate_cell(task: tuple[Scenario, Assignment]) -> Outcome:
    """One plan on one drawn workload, without its baseline."""
    scenario, assignment = task
    settings = tuple(f"{key}={value}" for key, value in SEARCH_SETTINGS.items())
    return evaluate_assignment(scenario, assignment, settings, with_baseline=False)


def search(scenario: Scenario, cells: list[Cell], tolerance: float, run: Runner) -> Found:
    """Simulate cells in the order of their bounds until every other one is excluded from ``tolerance`` of its group's
    best. Which cells remain does not depend on how many are simulated at once."""
    found = Found(cells)
    taken: list[int] = []

    def promising() -> Iterator[tuple[Scenario, Assignment]]:
        for index in range(len(cells)):
            if found.within(index, tolerance):
                taken.append(index)
                yield scenario, cells[index].assignment

    with ProgressLine("plans, the rest excluded by bounds", len(cells)) as progress:
        for position, outcome in run(simulate_cell, promising()):
            found.note(taken[position], outcome)
            progress.advance(1)
    found.outcomes = {i: o for i, o in found.outcomes.items() if found.within(i, tolerance)}
    return found
