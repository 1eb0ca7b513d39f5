"""Causes of idle time, and how each is taken away while everything else, drawn work included, stays as it is: a
scenario simulated without some of them, or with faults put in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from rlsim.costs.interface import Part, PhaseCost, Prices, StepCost
from rlsim.costs.prices import PriceInputs, ScenarioPrices
from rlsim.costs.trainer.layer import IMBALANCE
from rlsim.loading.scenario import vary
from rlsim.projection.idle import BUBBLE
from rlsim.projection.scale import pool_of, pools_of, priced_pool, simulate_pool, whole_step
from rlsim.projection.variant import SimulatedVariant
from rlsim.schema.loop import Loop
from rlsim.schema.scenario import Scenario
from rlsim.units import FloatArray, IntArray
from rlsim.workload.batches import Batch, Generated
from rlsim.workload.draw import DrawnStep, DrawnWorkload, draw

FURTHER_BATCHES = 8
"""Batches by which a loop's limit is widened to see what it costs."""
UNLIMITED_GROUPS = 20_000_000
REBOUND = (
    "equal lengths keep the batch at its largest to the end (beyond the captured graphs, where it exceeds them) and "
    "end together, so that a trainer within a tight limit waits for all of them"
)
"""Why a rollout without its tail may take longer."""

Changes = Mapping[str, Any]
"""Values of scenario keys."""
Workloads = Callable[[DrawnWorkload], DrawnWorkload]
Priced = Callable[[Prices], Prices]


class Cause(Struct, frozen=True):
    """One cause. changes, workload, prices: what changes where it is taken away. rebound: why that may cost time."""

    name: str
    how: str
    changes: Changes = field(default_factory=dict)
    workload: Workloads = lambda workload: workload
    prices: Priced = lambda prices: prices
    rebound: str = "other waits grow"


def causes_of(scenario: Scenario) -> tuple[Cause, ...]:
    """The causes that a scenario can have, in the order in which they are taken away one after the other.

    What is outside the cluster comes first, then the order of generation and training, then what each half does alone.
    Alone a removal may cost time (``rebound``).
    """
    found: list[Cause] = []
    agent, loop = scenario.workload.agent, scenario.loop
    if scenario.workload.environment_s or agent is not None:
        changes: dict[str, Any] = {"workload.environment_s": 0.0}
        if agent is not None:
            nothing = {"kind": "constant", "seconds": 0.0}
            keys = {"environment_s": nothing, "max_environments": None, "judge": None}
            changes |= {f"workload.agent.{key}": value for key, value in keys.items()}
        found.append(Cause("environment", "rewards and environments answer at once", changes))
    if loop.mode == "async":
        how = f"generation may get {FURTHER_BATCHES} batches further ahead"
        found.append(Cause("staleness limit", how, _further(loop)))
        if loop.max_in_flight_groups is not None:
            unlimited = {"loop.max_in_flight_groups": UNLIMITED_GROUPS}
            found.append(Cause("queue cap", "no limit on groups in flight", unlimited))
        if loop.poll_s:
            found.append(Cause("polling", "the trainer sees its batch at once", {"loop.poll_s": 0.0}))
    # Turns of agents have no single response length that could be evened out.
    if agent is None:
        how = "all responses of a step have their mean length"
        found.append(Cause("straggler tail", how, workload=equal_lengths, rebound=REBOUND))
    found.append(Cause("refit", "weights reach the engine at once", prices=no_refit))
    if scenario.trainer.pipeline_parallel > 1:
        found.append(
            Cause(BUBBLE, "stages never wait for each other", prices=without_parts(lambda part: part.name == BUBBLE))
        )
    if scenario.trainer.sequence_packing:
        even = without_parts(lambda part: part.name == IMBALANCE)
        found.append(Cause(IMBALANCE, "all data-parallel ranks get as many tokens", prices=even))
    return tuple(found)


def _further(loop: Loop) -> Changes:
    if loop.staleness_fraction is not None:
        return {"loop.staleness_fraction": loop.staleness_fraction + FURTHER_BATCHES}
    if loop.queue_batches is not None:
        return {"loop.queue_batches": loop.queue_batches + FURTHER_BATCHES}
    # 64 is the largest lag that the schema takes.
    return {"loop.policy_lag": min(64, loop.lag + FURTHER_BATCHES)}


def equal_lengths(workload: DrawnWorkload) -> DrawnWorkload:
    """All responses of a step with their mean length."""
    return DrawnWorkload(tuple(_equal_step(step) for step in workload.steps), workload.trained)


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


def no_refit(prices: Prices) -> Prices:
    """Weights that reach the engine at once."""
    nothing = PhaseCost(0.0)
    return replace(prices, refit=nothing, prepare=nothing, wake=nothing)


def without_parts(named: Callable[[Part], bool]) -> Priced:
    """Log-probs and updates, and a driver's work on the batch, without the parts that are ``named``."""
    return passes_with(lambda phase, part: 0.0 if named(part) else 1.0)


def passes_with(factor: Callable[[str, Part], float]) -> Priced:
    """Data handling, log-probs and updates with each part times ``factor`` of its phase (data, logprob, train)."""

    def changed(cost: StepCost) -> StepCost:
        def phase(name: str) -> PhaseCost:
            parts = getattr(cost, name).parts
            return PhaseCost.of(part.lasting(factor(name, part) * part.seconds, part.measured) for part in parts)

        return StepCost(data=phase("data"), logprob=phase("logprob"), train=phase("train"))

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


def with_changes(scenario: Scenario, causes: Sequence[Cause]) -> Scenario:
    """The scenario under the keys that ``causes`` change. Raises InputError where these contradict it."""
    for cause in causes:
        scenario = vary(scenario, cause.changes) if cause.changes else scenario
    return scenario


def simulate_changed(scenario: Scenario, causes: Sequence[Cause]) -> SimulatedVariant:
    """Every replication of ``scenario`` with each of ``causes`` applied: to its keys, its drawn work and its prices.

    Raises Infeasible where it cannot run so, and InputError where it makes no sense.
    """
    scenario = with_changes(scenario, causes)
    inputs = PriceInputs(scenario)
    found_prices, traces, first_steps = [], [], []
    for replication in range(scenario.replications):
        workload = draw(pool_of(scenario, pools_of(scenario)), replication, inputs.draft_plan)
        # Priced before the causes change the work: the trainer keeps the lengths that it really has.
        prices = priced_pool(inputs, workload)
        for cause in causes:
            workload, prices = cause.workload(workload), cast(ScenarioPrices, cause.prices(prices))
        found_prices.append(prices)
        traces.append(simulate_pool(scenario, workload, prices))
        first_steps.append(whole_step(scenario, workload))
    return SimulatedVariant(inputs, first_steps[0], tuple(found_prices), tuple(traces), draft_plan=inputs.draft_plan)
