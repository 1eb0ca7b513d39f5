"""What a "what if" changes of a scenario: its keys, the work that was drawn for it, or its prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from rlsim.costs.interface import Part, PhaseCost, Prices, StepCost
from rlsim.loading.scenario import vary
from rlsim.schema.scenario import Scenario
from rlsim.units import FloatArray, IntArray
from rlsim.workload.agents import Turns
from rlsim.workload.batches import Batch, Generated
from rlsim.workload.draw import DrawnStep, DrawnWorkload

Keys = Mapping[str, Any]
"""Values of scenario keys."""
Workloads = Callable[[DrawnWorkload], DrawnWorkload]
Priced = Callable[[Prices], Prices]


class Change(Struct, frozen=True):
    """One change. keys, workload, prices: what it makes of each; how: in words; rebound: why it may cost time."""

    name: str = ""
    how: str = ""
    keys: Keys = field(default_factory=dict)
    workload: Workloads = lambda workload: workload
    prices: Priced = lambda prices: prices
    rebound: str = "other waits grow"


def with_keys(scenario: Scenario, changes: Sequence[Change]) -> Scenario:
    """The scenario under the keys of ``changes``. Raises InputError where these contradict it."""
    for change in changes:
        scenario = vary(scenario, change.keys) if change.keys else scenario
    return scenario


def equal_lengths(workload: DrawnWorkload) -> DrawnWorkload:
    """All responses of a step with their mean length."""
    return replace(workload, steps=tuple(_equal_step(step) for step in workload.steps))


def in_rounds(count: int) -> Workloads:
    """The samples of a step generated in ``count`` rollouts one after the other, each of whole groups."""

    def parted(step: DrawnStep) -> DrawnStep:
        rollouts, iterations = list[Generated](), list[IntArray]()
        for one, counts in zip(step.rollouts, step.iterations, strict=True):
            batch = one.batch
            for groups in np.array_split(np.unique(batch.group), min(count, int(np.unique(batch.group).size))):
                mine = (batch.group >= groups[0]) & (batch.group <= groups[-1])
                own = Batch(batch.prompt_tokens[mine], batch.response_tokens[mine], batch.group[mine] - groups[0])
                rollouts.append(Generated(own, one.trained[mine]))
                iterations.append(counts[mine])
        return DrawnStep(tuple(rollouts), tuple(iterations), step.acceptance)

    return lambda workload: replace(workload, steps=tuple(map(parted, workload.steps)))


def _equal_step(step: DrawnStep) -> DrawnStep:
    """A step with its tokens and iterations spread evenly; the trainer's batch, priced before, keeps its lengths."""
    rollouts, iterations = [], []
    for one, counts in zip(step.rollouts, step.iterations, strict=True):
        batch = one.batch
        even = Batch(batch.prompt_tokens, _evenly(batch.response_tokens), batch.group)
        rollouts.append(Generated(even, one.trained))
        iterations.append(_evenly(counts))
    return DrawnStep(tuple(rollouts), tuple(iterations), step.acceptance)


def _evenly(values: IntArray) -> IntArray:
    """Whole numbers with the same sum, none more than 1 apart."""
    low, larger = divmod(int(values.sum()), values.size)
    return np.where(np.arange(values.size) < larger, low + 1, low).astype(np.int64)


def equal_trajectories(workload: DrawnWorkload) -> DrawnWorkload:
    """All trajectories of a rollout with as many turns, which are dealt to them in turn: no sum over them changes."""
    return replace(workload, steps=tuple(_dealt_step(step) for step in workload.steps))


def _dealt_step(step: DrawnStep) -> DrawnStep:
    rollouts, iterations = [], []
    for one, counts in zip(step.rollouts, step.iterations, strict=True):
        assert one.turns is not None  # of scenarios with agents alone (needs: agent)
        batch = one.batch
        even = Batch(batch.prompt_tokens, _evenly(batch.response_tokens), batch.group)
        turns, order = _dealt(one.turns)
        rollouts.append(Generated(even, one.trained, turns))
        iterations.append(counts[order])
    return DrawnStep(tuple(rollouts), tuple(iterations), step.acceptance)


def _dealt(turns: Turns) -> tuple[Turns, IntArray]:
    """Turns dealt to trajectories one by one, what comes between them likewise; and which turn stands where."""
    size = turns.first.size - 1
    order, first = _dealing(turns.count, size)
    between, _ = _dealing(turns.count - size, size)
    old_gaps, gaps = (np.delete(np.arange(turns.count), ends[1:] - 1) for ends in (turns.first, first))
    seconds, observed, calls = np.zeros(turns.count), np.zeros(turns.count, np.int64), None
    seconds[gaps] = turns.environment_s[old_gaps][between]
    again = turns.history_tokens[old_gaps + 1] == 0  # an attempt that failed: nothing follows its last turn
    grown = turns.history_tokens[old_gaps + 1] - turns.history_tokens[old_gaps] - turns.response_tokens[old_gaps]
    observed[gaps] = np.where(again, 1, grown)[between]
    if turns.calls is not None:
        calls = np.ones(turns.count, np.int64)
        calls[gaps] = turns.calls[old_gaps][between]
    # Attempts are as long as they were in the mean: without failures as long as a trajectory.
    longest = -(-turns.count // int(np.count_nonzero(turns.history_tokens == 0)))
    response, number = turns.response_tokens[order], np.arange(turns.count) - np.repeat(first[:-1], np.diff(first))
    before = np.cumsum(response + observed) - response - observed
    history = before - before[np.arange(turns.count) - number % longest]
    return Turns(first, history, response, seconds, turns.judge_s, calls, turns.start_s), order


def _dealing(count: int, size: int) -> tuple[IntArray, IntArray]:
    """So many things dealt to ``size`` hands: who has which, hand by hand, and where each hand begins and the last
    ends."""
    number = np.arange(count)
    ends = np.cumsum(np.bincount(number % size, minlength=size))
    # By hand, then in the order of dealing: lexsort sorts by its last key first.
    return np.lexsort((number, number % size)), np.concatenate(([0], ends)).astype(np.int64)


def no_refit(prices: Prices) -> Prices:
    """Weights that reach the engine at once."""
    nothing = PhaseCost(0.0)
    return replace(prices, refit=nothing, prepare=nothing, wake=nothing)


def without_parts(named: Callable[[Part], bool]) -> Priced:
    """Log-probs and updates, and a driver's work on the batch, without the parts that are ``named``."""
    return passes_with(lambda phase, part: 0.0 if named(part) else 1.0)


def passes_with(factor: Callable[[str, Part], float], *data: Part) -> Priced:
    """Data handling, log-probs and updates with each part times ``factor`` of its phase (data, logprob, train), and
    further parts of ``data`` handling."""

    def changed(cost: StepCost) -> StepCost:
        def phase(name: str) -> PhaseCost:
            parts = getattr(cost, name).parts
            moved = [part.lasting(factor(name, part) * part.seconds, part.measured) for part in parts]
            return PhaseCost.of([*moved, *(data if name == "data" else ())])

        return replace(cost, data=phase("data"), logprob=phase("logprob"), train=phase("train"))

    def priced(prices: Prices) -> Prices:
        batch = prices.batch

        def again(total_tokens: FloatArray, generated_samples: int) -> StepCost:
            return changed(batch(total_tokens, generated_samples))

        return replace(prices, steps=tuple(changed(cost) for cost in prices.steps), batch=again)

    return priced


def iterations_with(factor: float) -> Priced:
    """Engine iterations times ``factor``."""
    names = ("step_s", "attention_s", "prefill_s", "prefill_context_s")

    def priced(prices: Prices) -> Prices:
        table = prices.iteration
        return replace(prices, iteration=replace(table, **{name: factor * getattr(table, name) for name in names}))

    return priced
