"""The cells of a space, each with its trainer and with a bound below what its simulation takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlsim.costs.engine.prices import engine_prices
from rlsim.costs.prices import PriceInputs
from rlsim.costs.trainer.prices import TrainedBatch, step_cost, train_cost
from rlsim.files.progress import ProgressLine
from rlsim.loading.scenario import vary
from rlsim.loading.variation import Overrides
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
from rlsim.planning.space import Space, own_trainer
from rlsim.projection.uncertainty.nearest import near_evidence
from rlsim.schema.scenario import Scenario
from rlsim.workload.draw import draw_step

TRAINERS_PER_TASK = 12
SEARCH_REPLICATIONS = 1
"""The search compares plans on one drawn workload, the same for all."""


@dataclass(frozen=True)
class Cell:
    """A split and an engine with a trainer, chosen from ``trainers`` layouts: the fastest there, or the fastest near
    measured training steps.

    bound_s: what its measured steps take at least in the mean. near_evidence: whether measured runs lie near it.
    """

    layout: Layout
    trainers: int
    bound_s: float
    near_evidence: bool = False


@dataclass(frozen=True)
class TrainerTask:
    """Trainer layouts to price beside one engine on one split, each valid there.

    near: those that measured training steps lie near. least_s, near_least_s: seconds per step of the fastest layout
    known already, and of the fastest near one.
    """

    scenario: Scenario
    split: GpuSplit
    engine: Engine
    trainers: tuple[TrainerLayout, ...]
    near: frozenset[TrainerLayout] = frozenset()
    least_s: float = math.inf
    near_least_s: float = math.inf

    def inputs(self) -> Iterator[PriceInputs]:
        """What prices of each trainer layout depend on, without speculation."""
        fixed = {**self.split.overrides(), **self.engine.layout.overrides(), "k": 0}
        settings = {**fixed, **self.trainers[0].overrides(), "simulation.replications": SEARCH_REPLICATIONS}
        first = vary(self.scenario, settings)
        for trainer in self.trainers:  # checked when the space was built
            own = first.trainer.model_copy(update=trainer.sizes())
            yield PriceInputs(first.model_copy(update={"trainer": own}))


ChosenTrainers = dict[int, list[tuple[TrainerLayout, float]]]
"""By number of the split: the fastest trainer there, the fastest near measured training steps and the scenario's own,
each once, with the seconds per step of its passes."""


def bounded_cells(scenario: Scenario, space: Space, run: Runner, only_near: bool = False) -> list[Cell]:
    """Cells of the space with their bounds, least bound first; splits without engine or trainer have none.

    Trainers other than the fastest make cells only where measured runs lie near. only_near: no cells elsewhere.
    """
    trainers = chosen_trainers(scenario, space, run)
    parts = [
        (number, Layout(space.splits[number], engine, trainer), passes_s, place > 0 or only_near)
        for number in space.usable
        for engine in space.engines[number]
        for place, (trainer, passes_s) in enumerate(trainers[number])
    ]
    if only_near:
        parts = [part for part in parts if near_evidence(vary(scenario, part[1].overrides()))]
    rates = _rates(scenario, [layout for _, layout, _, _ in parts], run)
    works: dict[tuple[str, int], list[tuple[RolloutWork, ...]]] = {}
    cells = []
    for number, layout, passes_s, near_alone in parts:
        candidate = vary(scenario, layout.overrides())
        near = near_evidence(candidate)
        if near_alone and not near:
            continue
        key = (repr(candidate.speculation), layout.split.lag)
        work = works.get(key) or works.setdefault(key, _works(candidate))
        bound_s = _bound_s(candidate, rates[layout.engine], work, passes_s + _transfer_s(candidate))
        cells.append(Cell(layout, len(space.trainers[number]), bound_s, near))
    return sorted(cells, key=lambda cell: cell.bound_s)


def _transfer_s(scenario: Scenario) -> float:
    """Seconds per step of publishing weights, which happens once in ``loop.update_every`` steps."""
    return transfer_s(PriceInputs(scenario)) / scenario.loop.update_every


def _works(scenario: Scenario) -> list[tuple[RolloutWork, ...]]:
    return [rollout_works(scenario, step) for step in scenario.measured_steps]


def _bound_s(
    scenario: Scenario, rates: EngineRates, works: Sequence[tuple[RolloutWork, ...]], trainer_s: float
) -> float:
    """Mean over the measured steps. The trainer's seconds hold all of a step but generation."""
    replicas = scenario.cluster.generation // scenario.engine.gpus_per_replica
    if scenario.loop.mode == "sync":
        rewards_s = scenario.workload.environment_s
        generation = [rollout_bound_s(rates, work, replicas) + rewards_s for step in works for work in step]
        return sum(generation) / len(works) + trainer_s
    rules = scenario.loop.asynchrony
    return lagged_bound_s(rates, [work for (work,) in works], replicas, rules, trainer_s)


def chosen_trainers(scenario: Scenario, space: Space, run: Runner) -> ChosenTrainers:
    """Trainers of each usable split: ranked on one step, the chosen ones then priced on all."""
    ranked: dict[int, list[tuple[float, TrainerLayout]]] = {number: [] for number in space.usable}
    places = [
        (number, start) for number in space.usable for start in range(0, len(space.trainers[number]), TRAINERS_PER_TASK)
    ]

    def tasks() -> Iterator[TrainerTask]:
        for number, start in places:
            trainers, near = space.trainers[number], frozenset(space.near_trainers[number])
            least_s = min((seconds for seconds, _ in ranked[number]), default=math.inf)
            near_least_s = min((seconds for seconds, one in ranked[number] if one in near), default=math.inf)
            part = tuple(trainers[start : start + TRAINERS_PER_TASK])
            yield TrainerTask(
                scenario, space.splits[number], space.engines[number][0], part, near, least_s, near_least_s
            )

    with ProgressLine("trainer layouts priced, in dozens", len(places)) as progress:
        for index, seconds in run(trainer_step_s, tasks()):
            number, start = places[index]
            ranked[number] += zip(seconds, space.trainers[number][start : start + TRAINERS_PER_TASK], strict=False)
            progress.advance(1)
    chosen = [(number, trainer) for number in space.usable for trainer in _chosen(scenario, space, number, ranked)]
    exact = [
        TrainerTask(scenario, space.splits[number], space.engines[number][0], (trainer,)) for number, trainer in chosen
    ]
    priced = dict(run(trainer_passes_s, exact))
    out: ChosenTrainers = {number: [] for number in space.usable}
    for index, (number, trainer) in enumerate(chosen):
        out[number].append((trainer, priced[index]))
    return out


def _chosen(
    scenario: Scenario, space: Space, number: int, ranked: Mapping[int, Sequence[tuple[float, TrainerLayout]]]
) -> list[TrainerLayout]:
    """The fastest, the fastest near the evidence, and the scenario's own where it fits."""
    near = set(space.near_trainers[number])
    every = [trainer for _, trainer in sorted(ranked[number])]
    return list(dict.fromkeys([every[0], *[t for t in every if t in near][:1], *near & {own_trainer(scenario)}]))


def trainer_step_s(task: TrainerTask) -> list[float]:
    """Seconds of each trainer layout on the first measured step with its weight transfer, enough to rank them.

    Of a layout whose updates alone take longer than the fastest one (of its kind: near measured steps, or any), the
    updates are all that is priced: it is neither. The transfer adds up from the engine's and the trainer's.
    """
    out, least_s, near_least_s = [], task.least_s, task.near_least_s
    for layout, inputs in zip(task.trainers, task.inputs(), strict=True):
        near, first = layout in task.near, inputs.scenario.measured_steps[0]
        seconds = train_cost(inputs.trainer, _batch(inputs.scenario, first)).seconds
        if seconds <= (near_least_s if near else least_s):
            seconds = _passes_s(inputs, (first,)) + transfer_s(inputs)
            least_s = min(least_s, seconds)
            near_least_s = min(near_least_s, seconds) if near else near_least_s
        out.append(seconds)
    return out


def trainer_passes_s(task: TrainerTask) -> float:
    """Seconds per step of the passes of the task's one trainer layout, over all measured steps."""
    (inputs,) = task.inputs()
    return _passes_s(inputs, inputs.scenario.measured_steps)


def _passes_s(inputs: PriceInputs, steps: Sequence[int]) -> float:
    """Mean seconds of data handling, log-probs and training over the drawn work of ``steps``."""
    seconds = 0.0
    for step in steps:
        cost = step_cost(inputs.trainer, _batch(inputs.scenario, step))
        seconds += cost.data.seconds + cost.logprob.seconds + cost.train.seconds
    return seconds / len(steps)


def _batch(scenario: Scenario, step: int) -> TrainedBatch:
    """What a step of the first replication trains on."""
    drawn = draw_step(scenario, step, 0)
    return TrainedBatch.of(drawn.trained_tokens, drawn.generated_samples)


def transfer_s(inputs: PriceInputs) -> float:
    """Seconds of the weight transfer, with everything around it in a synchronous step."""
    transfers = inputs.transfers
    return (transfers.prepare() if inputs.scenario.loop.mode == "sync" else transfers.transfer()).seconds


def _rates(scenario: Scenario, layouts: Iterable[Layout], run: Runner) -> dict[Engine, EngineRates]:
    """Rates of each engine from the table of the split with most sequences per replica, which holds those of all."""
    place: dict[Engine, Layout] = {}
    for layout in sorted(layouts, key=lambda one: (one.split.generation, -one.split.lag)):
        place.setdefault(layout.engine, layout)
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
    return engine_rates(engine_prices(PriceInputs(vary(*task)).engine).table)
