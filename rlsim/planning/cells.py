"""The cells of a space, each with its fastest trainer and with a bound that no simulation of it can beat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlsim.costs.engine_prices import engine_prices
from rlsim.costs.prices import price_inputs
from rlsim.costs.trainer_prices import TrainedBatch, step_cost
from rlsim.planning.execution import Runner
from rlsim.planning.layouts import Engine, GpuSplit, Layout, TrainerLayout
from rlsim.planning.lower_bounds import (
    EngineRates,
    RolloutWork,
    engine_rates,
    lagged_bound_s,
    rollout_bound_s,
    rollout_works,
)
from rlsim.planning.space import Space
from rlsim.planning.variation import Overrides, varied
from rlsim.progress import ProgressLine
from rlsim.schema.scenario import Scenario
from rlsim.workload.acceptance import acceptance_of
from rlsim.workload.draw import draw_step

TRAINERS_PER_TASK = 12
SEARCH_REPLICATIONS = 1
"""The search compares plans on one drawn workload, the same for all."""


@dataclass(frozen=True)
class Cell:
    """A split and an engine with the trainer that is fastest there, chosen from ``trainers`` layouts.

    bound_s: no step of it can be shorter.
    """

    layout: Layout
    trainers: int
    bound_s: float


@dataclass(frozen=True)
class TrainerTask:
    """Trainer layouts to price beside one engine on one split. every: over all measured steps, not the first alone."""

    scenario: Scenario
    split: GpuSplit
    engine: Engine
    trainers: tuple[TrainerLayout, ...]
    every: bool = False

    def scenarios(self) -> Iterator[Scenario]:
        """The scenario of each trainer layout, without speculation."""
        fixed = {**self.split.overrides(), **self.engine.layout.overrides(), "k": 0}
        for trainer in self.trainers:
            settings = {**fixed, **trainer.overrides(), "simulation.replications": SEARCH_REPLICATIONS}
            yield varied(self.scenario, settings)


FastestTrainers = dict[int, tuple[TrainerLayout, float]]
"""By number of the split: the fastest trainer there, and the seconds per step of its passes."""


def bounded_cells(scenario: Scenario, space: Space, run: Runner) -> list[Cell]:
    """Cells of the space with their bounds, least bound first; splits without engine or trainer have none."""
    trainers = fastest_trainers(scenario, space, run)
    rates = _rates(scenario, space, trainers, run)
    works: dict[tuple[str, int], list[tuple[RolloutWork, ...]]] = {}
    cells = []
    for number in space.usable:
        split, (trainer, trainer_s) = space.splits[number], trainers[number]
        for engine in space.engines[number]:
            layout = Layout(split, engine, trainer)
            candidate = varied(scenario, layout.overrides())
            key = (repr(candidate.speculation), split.lag)
            work = works.get(key) or works.setdefault(key, _works(candidate))
            bound_s = _bound_s(candidate, rates[engine], work, trainer_s + transfer_s(candidate))
            cells.append(Cell(layout, len(space.trainers[number]), bound_s))
    return sorted(cells, key=lambda cell: cell.bound_s)


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


def fastest_trainers(scenario: Scenario, space: Space, run: Runner) -> FastestTrainers:
    """The fastest trainer of each usable split: ranked on one step, then priced on all."""
    tasks, place = [], []
    for number in space.usable:
        split, engine, trainers = space.splits[number], space.engines[number][0], space.trainers[number]
        for start in range(0, len(trainers), TRAINERS_PER_TASK):
            tasks.append(TrainerTask(scenario, split, engine, tuple(trainers[start : start + TRAINERS_PER_TASK])))
            place.append(number)
    best: dict[int, tuple[float, TrainerLayout]] = {}
    with ProgressLine("trainer layouts priced, in dozens", len(tasks)) as progress:
        for index, seconds in run(trainer_step_s, tasks):
            least = min(zip(seconds, tasks[index].trainers, strict=True))
            best[place[index]] = min(best.get(place[index], least), least)
            progress.advance(1)
    exact = [
        TrainerTask(scenario, space.splits[number], space.engines[number][0], (best[number][1],), every=True)
        for number in space.usable
    ]
    return {space.usable[i]: (exact[i].trainers[0], seconds) for i, (seconds,) in run(trainer_step_s, exact)}


def trainer_step_s(task: TrainerTask) -> list[float]:
    """Seconds per step of each trainer layout: with the weight transfer on the first measured step, which is enough to
    rank them, or its passes alone over all measured steps. The transfer adds up from the engine's and the trainer's."""
    out = []
    for candidate in task.scenarios():
        steps = _measured_steps(candidate)
        out.append(
            _passes_s(candidate, steps) if task.every else _passes_s(candidate, steps[:1]) + transfer_s(candidate)
        )
    return out


def _passes_s(scenario: Scenario, steps: Sequence[int]) -> float:
    """Mean seconds of data handling, log-probs and training over the drawn work of ``steps``."""
    trainer, acceptance, seconds = price_inputs(scenario).trainer, acceptance_of(scenario.speculation), 0.0
    for step in steps:
        drawn = draw_step(scenario, acceptance, step, 0)
        cost = step_cost(trainer, TrainedBatch.of(drawn.trained_tokens, drawn.generated_samples))
        seconds += cost.data.seconds + cost.logprob.seconds + cost.train.seconds
    return seconds / len(steps)


def transfer_s(scenario: Scenario) -> float:
    """Seconds of the weight transfer, with everything around it in a synchronous step."""
    transfers = price_inputs(scenario).transfers
    return (transfers.prepare() if scenario.loop.mode == "sync" else transfers.transfer()).seconds


def _rates(scenario: Scenario, space: Space, trainers: FastestTrainers, run: Runner) -> dict[Engine, EngineRates]:
    """Rates of each engine from the table of the split with most sequences per replica, which holds those of all."""
    crowded = sorted(space.usable, key=lambda n: (space.splits[n].generation, -space.splits[n].lag))
    place: dict[Engine, Layout] = {}
    for number in crowded:
        for engine in space.engines[number]:
            place.setdefault(engine, Layout(space.splits[number], engine, trainers[number][0]))
    tasks = [(scenario, layout.overrides()) for layout in place.values()]
    engines = list(place)
    with ProgressLine("engines bounded", len(tasks)) as progress:
        out = {}
        for index, rates in run(engine_rates_of, tasks):
            out[engines[index]] = rates
            progress.advance(1)
    return out


def engine_rates_of(task: tuple[Scenario, Overrides]) -> EngineRates:
    """Rates of one engine replica."""
    return engine_rates(engine_prices(price_inputs(varied(*task)).engine).table)
