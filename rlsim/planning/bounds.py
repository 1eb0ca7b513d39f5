"""Least time that a configuration can take, in closed form: what it need not be simulated for.

With R replicas, W sequence-iterations to run, s(n) the context-free time of an iteration of n sequences and
a(n, c) >= alpha n c its attention over mean context c,

    T >= (W min_n s(n)/n + alpha C) / R,     C = sum over sequences of iterations x mean context,

since every iteration of n sequences does n of the W. A single sequence needs T >= I min_n s(n) + alpha I c. With at
most N sequences in flight at once, no instant is faster than R g(N / R), g the concave majorant of n / s(n).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.engine.prices import engine_times
from rlsim.costs.interface import IterationTable
from rlsim.costs.prices import PriceInputs, trained_batch
from rlsim.costs.trainer.floors import floors_s, stages_s
from rlsim.costs.trainer.training import train_cost
from rlsim.files.progress import ProgressLine
from rlsim.loading.scenario import vary
from rlsim.loading.variation import Overrides, even_batches
from rlsim.planning.execution import Runner, in_order
from rlsim.planning.space import OWN_LAG, Engine, EngineLayout, GpuSplit, Layout, Space, TrainerLayout, on_split
from rlsim.schema.scenario import Scenario
from rlsim.simulation.intake import groups_each, groups_per_step, most_in_flight
from rlsim.units import FloatArray
from rlsim.workload.acceptance import DraftPlan
from rlsim.workload.agents import Turns
from rlsim.workload.batches import Batch
from rlsim.workload.draw import draw_step

FIRST_DONE_MARGIN = 0.95
"""Share of the bound that steps need which train on what is done first: those of a few steps are not the samples drawn
for them, and shorter ones come first (seen: 2.3 % below the bound over twelve steps)."""
POOL_MARGIN = 0.9
"""Share of the drawn work that the measured steps of a lagged loop are taken to hold: the pool may have done some of it
in the warm-up, and some of what it does is of later steps. In steady state both are equal; of 192 loops with 16 or 64
samples a step and long tails one was below the whole, by 8 % (two measured steps of 16 samples)."""


class RolloutWork(Struct, frozen=True):
    """One drawn batch in sequence-iterations: total, weighted by context, and of the sequence with most."""

    iterations: float
    context_iterations: float
    longest_iterations: float
    longest_context: float
    samples: int


def draft_plan_of(inputs: PriceInputs) -> DraftPlan | None:
    """The draft lengths that drawn verifications depend on; None unless acceptance varies between samples."""
    return inputs.draft_plan if inputs.scenario.speculation.variation is not None else None


def rollout_works(scenario: Scenario, step: int) -> tuple[RolloutWork, ...]:
    """The rollouts that a simulation of ``scenario`` draws for ``step``: one, more under dynamic sampling.

    Of a race, the samples that would win it if all generated equally fast: no less is generated, in long rounds more.
    """
    agent = scenario.workload.agent
    drawn = draw_step(scenario, step, 0, draft_plan_of(PriceInputs(scenario)))
    may_end_early = agent is not None and agent.trajectory_timeout_s is not None
    works = []
    for one, counts in zip(drawn.rollouts, drawn.iterations, strict=True):
        batch = one.batch
        if scenario.workload.racing:
            # Of a race only the winners are certain to be generated to their ends.
            won = one.trained
            batch = Batch(batch.prompt_tokens[won], batch.response_tokens[won], batch.group[won])
            counts = counts[won]
        works.append(_work(batch, one.turns, counts.astype(np.float64), may_end_early))
    return tuple(works)


def _work(batch: Batch, turns: Turns | None, iterations: FloatArray, first_alone: bool) -> RolloutWork:
    """The work of responses, or of trajectories, whose turns follow each other; first_alone: only the first of these
    are certain."""
    tokens = batch.response_tokens if turns is None else turns.response_tokens
    # Contexts rise from 0 by tokens / iterations and end one such step below all tokens; this is their mean.
    half = 0.5 * np.maximum(tokens - tokens / np.maximum(iterations, 1), 0)
    if turns is None:
        return _summed(iterations, batch.prompt_tokens + half)
    first = turns.first[:-1]
    context = np.repeat(batch.prompt_tokens, np.diff(turns.first)) + turns.history_tokens + half
    if first_alone:
        return _summed(iterations[first], context[first])
    whole = np.add.reduceat(iterations, first)
    return _summed(whole, np.add.reduceat(iterations * context, first) / np.maximum(whole, 1.0))


def _summed(iterations: FloatArray, context: FloatArray) -> RolloutWork:
    """Sequences by their iterations and mean contexts."""
    longest = int(np.argmax(iterations))
    total, weighted = float(iterations.sum()), float((iterations * context).sum())
    return RolloutWork(total, weighted, float(iterations[longest]), float(context[longest]), len(iterations))


class EngineRates(Struct, frozen=True):
    """What bounds need of an iteration table. sequence_s: min s(n)/n; iteration_s: min s(n); attention_s: alpha."""

    sequence_s: float
    iteration_s: float
    attention_s: float
    batch: FloatArray
    rate: FloatArray

    def rate_at(self, sequences: float) -> float:
        """Concave majorant of n / s(n), sequence-iterations per second."""
        return float(np.interp(sequences, self.batch, self.rate))


def engine_rates(table: IterationTable) -> EngineRates:
    """Rates of one replica; only batch sizes that fit its slots count."""
    most = min(
        len(table.step_s) - 1, table.max_running_sequences, table.max_batched_tokens // table.tokens_per_sequence
    )
    n = np.arange(1, max(1, most) + 1, dtype=np.float64)
    step_s = table.step_s[1 : len(n) + 1]
    contexts = np.arange(1, table.attention_s.shape[1]) * table.context_step_tokens
    # The least slope of the whole table: a bound may not count more attention than any iteration has.
    alpha = np.min(table.attention_s[1 : len(n) + 1, 1:] / (n[:, None] * contexts[None, :])) if contexts.size else 0.0
    batch, rate = _majorant(np.concatenate([[0.0], n]), np.concatenate([[0.0], n / step_s]))
    return EngineRates(float(np.min(step_s / n)), float(np.min(step_s)), float(alpha), batch, rate)


def _majorant(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Upper concave hull of points with increasing x, from 0 to its highest point, level beyond."""
    hull: list[tuple[float, float]] = []
    for here, high in zip(x.tolist(), y[: int(np.argmax(y)) + 1].tolist(), strict=False):
        while len(hull) > 1:
            (left, low), (middle, between) = hull[-2:]
            if (between - low) * (here - left) > (high - low) * (middle - left):
                break  # the middle one lies above the line between the others
            hull.pop()
        hull.append((here, high))
    return np.array([at for at, _ in hull]), np.array([value for _, value in hull])


def spread_bound_s(rates: EngineRates, work: RolloutWork, replicas: int) -> float:
    """Least seconds of a batch spread evenly over replicas that are always at their best batch size."""
    return (work.iterations * rates.sequence_s + work.context_iterations * rates.attention_s) / replicas


def rollout_bound_s(rates: EngineRates, work: RolloutWork, replicas: int) -> float:
    """Least seconds from submission of a batch to its last token: spread evenly, or the longest sequence alone."""
    # Alone and at the fastest iteration of any batch size: nothing can be quicker.
    straggler_s = work.longest_iterations * (rates.iteration_s + rates.attention_s * work.longest_context)
    return max(spread_bound_s(rates, work, replicas), straggler_s)


def lagged_bound_s(
    rates: EngineRates, works: Sequence[RolloutWork], replicas: int, scenario: Scenario, trainer_s: float
) -> float:
    """Least mean seconds of the measured steps of a lagged loop, ``works`` drawn for each, beside a trainer of
    ``trainer_s`` a step.

    The trainer, and the pool with no more batches in flight than the rules let start. Aborted and dropped work, pauses,
    drains and stragglers only add to it. The pool's share is that of the steady state, whatever it had done when the
    first step began, less POOL_MARGIN.
    """
    rules, groups = scenario.loop.asynchrony, groups_per_step(scenario) * groups_each(scenario)
    batches = min(rules.pace, most_in_flight(scenario) / groups)
    spread_s = crowd_s = 0.0
    for work in works:
        spread_s += spread_bound_s(rates, work, replicas) / len(works)
        crowd_s += work.iterations / (replicas * rates.rate_at(work.samples * batches / replicas)) / len(works)
    pool_s = POOL_MARGIN * max(spread_s, crowd_s)
    if rules.membership != "target":
        return FIRST_DONE_MARGIN * max(trainer_s, pool_s)
    return max(trainer_s, pool_s)


TRAINERS_PER_TASK = 12
ROUNDED = 1.0 - 1e-9
"""Factor on bounds, as sums in another order round otherwise."""


PLAIN = 0.03
"""Share of a trainer's seconds that a layout over fewer GPUs may take more: a few per cent between layouts are less
than the model's error of either, and nobody runs eight stages by eight context ranks to save them. Convention."""


class Candidate(Struct, frozen=True):
    """A layout with the fastest of ``trainers`` trainer layouts. bound_s: what its measured steps take at least in the
    mean, in seconds."""

    layout: Layout
    trainers: int
    bound_s: float


class TrainerTask(Struct, frozen=True):
    """Trainer layouts to price beside one engine on one split, each valid there. least_s: seconds per step of the
    fastest layout known already."""

    scenario: Scenario
    split: GpuSplit
    engine: Engine
    trainers: tuple[TrainerLayout, ...]
    least_s: float = math.inf

    def inputs(self) -> Iterator[PriceInputs]:
        """Price inputs of each trainer layout, without speculation."""
        plain = on_split(self.scenario, self.split, TrainerLayout())
        first = PriceInputs(replace(self.engine, draft_length=0).applied(plain))
        return (first.of_trainer(trainer.of(plain.trainer)) for trainer in self.trainers)


def _prefer_even(space: Space, scenario: Scenario) -> None:
    """Leave out trainers whose ranks have unequal parts of an update, at which the stack stops, where others of as many
    GPUs and of the lag fit."""
    even = {
        number: [one for one in found if even_batches(scenario, space.splits[number].training, one.shards)]
        for number, found in space.trainers.items()
    }
    able = {space.splits[number].group for number in space.usable if even[number]}
    space.trainers.update((number, found) for number, found in even.items() if space.splits[number].group in able)


def bounded_candidates(scenario: Scenario, space: Space, run: Runner) -> list[Candidate]:
    """Every split and engine with its fastest trainer, least bound first; none of splits without engine or trainer."""
    _prefer_even(space, scenario)
    trainers = fastest_trainers(scenario, space, run)
    parts = [
        (number, Layout(space.splits[number], engine, trainers[number][0]))
        for number in space.usable
        for engine in space.engines[number]
    ]
    rates = _rates(scenario, [layout for _, layout in parts], run)
    works: dict[tuple[str, int, DraftPlan | None], list[tuple[RolloutWork, ...]]] = {}
    moved_s: dict[tuple[int, EngineLayout, int, bool], float] = {}
    plain = {number: on_split(scenario, space.splits[number], trainer) for number, (trainer, _) in trainers.items()}
    found = []
    for number, layout in parts:
        candidate = layout.engine.applied(plain[number])
        # Under a policy an engine's batch decides what is drafted, and with it how many verifications a sample takes.
        key = repr(candidate.speculation), layout.split.lag, draft_plan_of(PriceInputs(candidate))
        if key not in works:
            works[key] = [rollout_works(candidate, step) for step in candidate.measured_steps]
        # A drafter's weights may be sent along, however much it drafts.
        way = number, layout.engine.layout, layout.engine.prefill_gpus, layout.engine.draft_length > 0
        if way not in moved_s:
            moved_s[way] = transfer_s(PriceInputs(candidate))
        # Weights are published once in loop.update_every steps.
        trainer_s = trainers[number][1] + moved_s[way] / candidate.loop.update_every
        bound_s = _bound_s(candidate, rates[layout.engine], works[key], trainer_s)
        found.append(Candidate(layout, len(space.trainers[number]), bound_s))
    # The search takes them in this order, in which its first results exclude most of the others.
    return sorted(found, key=lambda one: one.bound_s)


def _bound_s(
    scenario: Scenario, rates: EngineRates, works: Sequence[tuple[RolloutWork, ...]], trainer_s: float
) -> float:
    """Mean over the measured steps. The trainer's seconds hold all of a step but generation."""
    replicas = scenario.replicas
    if scenario.loop.mode == "sync":
        rewards_s = scenario.workload.environment_s
        generation = [rollout_bound_s(rates, work, replicas) + rewards_s for step in works for work in step]
        return sum(generation) / len(works) + trainer_s
    return lagged_bound_s(rates, [work for (work,) in works], replicas, scenario, trainer_s)


def fastest_trainers(scenario: Scenario, space: Space, run: Runner) -> dict[int, tuple[TrainerLayout, float]]:
    """The trainer of each usable split with the seconds of its passes in a step: ranked on one, priced on all.

    Of those within PLAIN of the fastest the one that divides the model among the fewest GPUs.
    """
    near: dict[int, list[tuple[float, TrainerLayout]]] = {}
    places = [
        (number, start) for number in space.usable for start in range(0, len(space.trainers[number]), TRAINERS_PER_TASK)
    ]

    def task(number: int, trainers: Sequence[TrainerLayout]) -> TrainerTask:
        least_s = min(near[number])[0] if number in near else math.inf
        return TrainerTask(scenario, space.splits[number], space.engines[number][0], tuple(trainers), least_s)

    tasks = (task(number, space.trainers[number][start : start + TRAINERS_PER_TASK]) for number, start in places)
    with ProgressLine("trainer layouts priced, in dozens", len(places)) as progress:
        for index, seconds in run(trainer_step_s, tasks):
            number, start = places[index]
            priced = zip(seconds, space.trainers[number][start : start + TRAINERS_PER_TASK], strict=False)
            every = [*priced, *near.get(number, [])]
            near[number] = [one for one in every if one[0] <= (1 + PLAIN) * min(every)[0]]
            progress.advance(1)
    # Layouts have an order, so that equal ones give one answer however the tasks come back.
    chosen = [(number, min((one.shards, s, one) for s, one in found)[2]) for number, found in near.items()]
    passes = dict(run(trainer_passes_s, [task(number, (trainer,)) for number, trainer in chosen]))
    return {number: (trainer, passes[index]) for index, (number, trainer) in enumerate(chosen)}


def trainer_step_s(task: TrainerTask) -> list[float]:
    """Seconds of each trainer layout on the first measured step with its weight transfer, enough to rank them.

    Of a layout that takes longer than the fastest one by more than PLAIN, the first bound that says so. The transfer
    adds up from the engine's and the trainer's.
    """
    out, least_s = [], task.least_s
    for inputs in task.inputs():
        for seconds in tighter_s(inputs):
            if seconds > (1 + PLAIN) * least_s:
                break
        else:
            least_s = min(least_s, seconds)
        out.append(seconds)
    return out


def tighter_s(inputs: PriceInputs) -> Iterator[float]:
    """Least seconds of a trainer layout on the first measured step, ever tighter and dearer to find; the last are what
    it takes."""
    first = inputs.scenario.measured_steps[0]
    batch = trained_batch(draw_step(inputs.scenario, first, 0))
    update_s, logprob_s = floors_s(inputs.trainer, batch)
    yield ROUNDED * (update_s + logprob_s)
    moved_s = transfer_s(inputs)
    yield ROUNDED * (update_s + logprob_s + moved_s)
    yield ROUNDED * (stages_s(inputs.trainer, batch) + logprob_s + moved_s)
    yield ROUNDED * (train_cost(inputs.trainer, batch).seconds + logprob_s + moved_s)
    yield _passes_s(inputs, (first,)) + moved_s


def trainer_passes_s(task: TrainerTask) -> float:
    """Seconds per step of the passes of the task's one trainer layout, over all measured steps."""
    (inputs,) = task.inputs()
    return _passes_s(inputs, inputs.scenario.measured_steps)


def _passes_s(inputs: PriceInputs, steps: Sequence[int]) -> float:
    """Mean seconds of data handling, log-probs and training over the drawn work of ``steps``."""
    seconds = 0.0
    for step in steps:
        cost = inputs.step_cost(trained_batch(draw_step(inputs.scenario, step, 0)))
        seconds += cost.data.seconds + cost.logprob.seconds + cost.train.seconds
    return seconds / len(steps)


def transfer_s(inputs: PriceInputs) -> float:
    """Seconds of the weight transfer, with everything around it in a synchronous step."""
    transfers = inputs.transfers
    return (transfers.prepare() if inputs.scenario.loop.mode == "sync" else transfers.transfer()).seconds


def _rates(scenario: Scenario, layouts: Iterable[Layout], run: Runner) -> dict[Engine, EngineRates]:
    """Rates of each engine from the table of the split with most sequences per replica, which holds those of all."""
    place: dict[Engine, Layout] = {}
    for layout in sorted(layouts, key=lambda one: (one.split.generation, one.split.lag != OWN_LAG, -one.split.lag)):
        place.setdefault(layout.engine, layout)
    # The search begins with small replicas, whose tables the process then still has.
    place = dict(reversed(place.items()))
    tasks = [(scenario, layout.overrides()) for layout in place.values()]
    with ProgressLine("engines bounded", len(tasks)) as progress:
        return dict(zip(place, in_order(run, engine_rates_of, tasks, progress), strict=True))


def engine_rates_of(task: tuple[Scenario, Overrides]) -> EngineRates:
    """Rates of one engine replica."""
    return engine_rates(engine_times(PriceInputs(vary(*task)).engine).table)
