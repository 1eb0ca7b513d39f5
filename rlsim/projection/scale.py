"""Lagged loops on more engines than are worth simulating: one of many equal pools is, with its share of the prompts,
and both halves of it, which show what engines do together that no pool of them does alone.

All of a cluster's engines wait for the slowest of them where a step waits for its own groups, so that a step grows with
their number. What doubling the pool adds to each step is measured on equal drawn work and carried on to the whole by
how maxima of many grow; the trainer's work is priced for all samples of the cluster.
"""

import math
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from rlsim.costs.interface import Prices, StepCost
from rlsim.costs.prices import PriceInputs, ScenarioPrices, priced
from rlsim.results import PHASES, Curve, StepPhases
from rlsim.schema.base import replaced
from rlsim.schema.scenario import MOST_SAMPLES, Scenario
from rlsim.schema.workload import LognormalTime
from rlsim.simulation.intake import groups_each, most_in_flight
from rlsim.simulation.run import simulate
from rlsim.simulation.trace import StepRecord, Trace
from rlsim.units import FloatArray
from rlsim.workload.acceptance import DraftPlan
from rlsim.workload.agents import Turns, mean_turns
from rlsim.workload.batches import Batch, Generated
from rlsim.workload.draw import FEW_STALE_BATCHES, DrawnStep, DrawnWorkload, Stretch, TooFewDrawnError, draw

Found = TypeVar("Found")

TURN = 0.3
"""Work of a turn of an agent over that of a sample: 850,000 turns a second of coding_agent_64, 245,000 samples of
verl_dapo_7b on one machine."""
LEAST = 16
"""Engines, and prompts of a step, of half a pool: fewer are no cluster in small."""
LEAST_POOLS = 4
"""Pools below which one of them and its halves take about as long as all."""
LEAST_GROWTH, BOUNDED_GROWTH, FREE_GROWTH = 0.5, 1.0, math.sqrt(2.0)
"""What a doubling of engines adds over what the one before added: all values between the first and another one are
equally likely. A half: what goes with one over their number. 1: the mean maximum of exponential tails, which grows with
the logarithm of their number; that of times which a cap or a timeout cuts grows less. Where nothing cuts them at most
that of tails of finite variance, with the root of their number (Gumbel, Statistics of Extremes, 1958). Measured:
benchmarks/scale.py."""
PRICED_LEVELS = 100
"""A batch of other mean length is priced at the nearest hundredth of the typical one."""


def pools_of(scenario: Scenario) -> int:
    """Equal pools that the engines of a scenario are taken as, of which one is simulated; 1: all of them are.

    More where two replications of all samples are more work than MOST_SAMPLES and nothing asks for all
    (simulation.exact): as few as let two of a pool and its halves be no more, where engines, prompts and all limits on
    what is in flight divide evenly.
    """
    asked = scenario.simulation
    exact = asked.replications is not None if asked.exact is None else asked.exact
    work = max(1.0, TURN * mean_turns(scenario.workload.agent))
    work *= scenario.measured_steps.stop * scenario.workload.samples_per_step
    # Engines that prefill for all others belong to no pool, nor does a store whose rate all share.
    engine = scenario.engine
    whole = engine.prefill is not None or (engine.kv_offload is not None and engine.kv_offload.store_bytes_per_s)
    if exact or scenario.loop.mode == "sync" or 2 * work <= MOST_SAMPLES or whole:
        return 1
    workload, agent, limits = scenario.workload, scenario.workload.agent, list[int]()
    if (in_flight := most_in_flight(scenario)) != sys.maxsize:
        limits.append(in_flight // groups_each(scenario))
    if agent is not None:
        judge = agent.judge and agent.judge.concurrency
        bounds = agent.max_environments, agent.sandboxes, agent.started_sandboxes, judge
        limits += [limit for limit in bounds if limit]
    engines = scenario.replicas
    # Of fewer engines than a prompt has samples some would meet a prompt again and find it in their prefix cache.
    most = min(engines // max(LEAST, workload.generations_per_prompt), workload.prompts_per_step // LEAST) // 2
    shared = math.gcd(engines, workload.prompts_per_step, workload.launched_prompts, *limits)
    fitting = [count for count in range(LEAST_POOLS, most + 1) if shared % (2 * count) == 0]
    return next((count for count in fitting if 4 * work <= count * MOST_SAMPLES), max(fitting, default=1))


@lru_cache(maxsize=64)
def pool_of(scenario: Scenario, count: int) -> Scenario:
    """One of ``count`` equal pools, for the draws and rules of its loop; its own numbers of GPUs are prices'."""
    if count == 1:
        return scenario
    workload, agent, most, limit = scenario.workload, scenario.workload.agent, most_in_flight(scenario), None
    if most != sys.maxsize:
        limit = most // groups_each(scenario) // count
    if agent is not None:
        judge = agent.judge and replaced(agent.judge, {"concurrency": agent.judge.concurrency // count})
        names = [name for name in ("max_environments", "started_sandboxes") if getattr(agent, name)]
        shares = {name: getattr(agent, name) // count for name in names}
        sandboxes, rate = agent.sandboxes, agent.calls_per_s
        limits = {
            "nodes": None,
            "max_trajectories": sandboxes and sandboxes // count,
            "calls_per_s": rate and rate / count,
        }
        agent = replaced(agent, {"judge": judge, **shares, **limits})
    shared = {"prompts_per_step": workload.prompts_per_step // count, "agent": agent}
    loop = replaced(scenario.loop, {"max_in_flight_groups": limit})
    return replaced(scenario, {"workload": replaced(workload, shared), "loop": loop})


def on_enough_work(
    scenario: Scenario,
    replication: int,
    plan: DraftPlan | None,
    stretch: Stretch,
    run: Callable[[DrawnWorkload], Found],
) -> Found:
    """What ``run`` makes of the work that a pool of ``scenario`` meets, with as much of it as it turns out to need."""
    count = pools_of(scenario)
    pool = pool_of(scenario, count)
    if count == 1:
        with suppress(TooFewDrawnError):
            return run(draw(pool, replication, plan, stretch, FEW_STALE_BATCHES))
    return run(draw(pool, replication, plan, stretch))


def whole_step(scenario: Scenario, workload: DrawnWorkload) -> DrawnStep:
    """The first measured step of the cluster: that of its pool, and of the steps after it for the other pools."""
    count, first = pools_of(scenario), scenario.measured_steps.start
    if count == 1:
        return workload.steps[first]
    steps = [workload.steps[(first + number) % len(workload.steps)] for number in range(count)]
    rollouts, iterations = zip(*((step.rollouts[0], step.iterations[0]) for step in steps), strict=True)
    return DrawnStep(rollouts, iterations, steps[0].acceptance)


def priced_pool(inputs: PriceInputs, workload: DrawnWorkload) -> ScenarioPrices:
    """Prices of a scenario whose pool meets ``workload``: of a trainer that has the batches of all pools.

    Each is as long in the mean as the pool's and spread as all that the pool draws. Raises as its parts do.
    """
    count = pools_of(inputs.scenario)
    if count == 1:
        return priced(inputs, workload)
    trained = workload.steps[: workload.trained]
    drawn = np.concatenate([step.trained_tokens for step in trained])
    typical = np.resize(drawn, count * trained[0].trained_tokens.size)
    generated, mean, found = count * trained[0].generated_samples, float(typical.mean()), dict[int, StepCost]()

    def batch(total_tokens: FloatArray, generated_samples: int) -> StepCost:
        level = round(PRICED_LEVELS * float(total_tokens.mean()) / mean)
        if level not in found:
            found[level] = inputs.batch_cost(level / PRICED_LEVELS * typical, generated)
        return found[level]

    known = trained if inputs.scenario.known_batches else ()
    steps = tuple(batch(step.trained_tokens, step.generated_samples) for step in known)
    return replace(inputs.before_work, steps=steps, batch=batch)


def simulate_pool(scenario: Scenario, workload: DrawnWorkload, prices: Prices, trace: Trace | None = None) -> Trace:
    """What the cluster of a scenario does whose pool meets ``workload``, as :func:`~rlsim.simulation.run.simulate`.

    Its steps take what those of the pool do and what more pools add; tokens, samples and counts are those of all.
    """
    count = pools_of(scenario)
    if count == 1:
        return simulate(scenario, workload, prices, trace)

    def run(parts: int, work: DrawnWorkload, into: Trace) -> Trace:
        return simulate(pool_of(scenario, parts), work, replace(prices, replicas=prices.replicas // parts), into)

    found = run(count, workload, trace or Trace())
    measured = scenario.measured_steps
    if len(found.steps) == measured.stop:  # not given up
        halves = [run(2 * count, half, Trace(tokens=False)) for half in _halves(workload)]
        pairs = [replace(one, steps=one.steps[measured.start :]) for one in halves]
        _carry_on(found, [list(each) for each in zip(*(one.steps for one in pairs), strict=True)], carried(scenario)[0])
    return _times(found, count)


def carried(scenario: Scenario) -> tuple[float, float]:
    """What all pools of a scenario add over what doubling one did: mean and standard deviation over the growths."""
    agent = scenario.workload.agent
    times = [] if agent is None else [agent.environment_s, *([agent.judge.trajectory_s] if agent.judge else [])]
    cut = agent is None or agent.turn_timeout_s or agent.trajectory_timeout_s
    free = not cut and any(isinstance(time, LognormalTime) for time in times)
    # Midpoints, none of which is 1.
    growth = np.linspace(LEAST_GROWTH, FREE_GROWTH if free else BOUNDED_GROWTH, 101)
    growth = (growth[1:] + growth[:-1]) / 2
    sums = growth * (1.0 - growth ** math.log2(pools_of(scenario))) / (1.0 - growth)
    return float(sums.mean()), float(sums.std())


def _carry_on(found: Trace, halves: list[list[StepRecord]], times: float) -> None:
    """Add to the measured steps of a pool so many times what doubling it did."""
    start = len(found.steps) - len(halves)
    added = dict.fromkeys(("step", *PHASES), 0.0)
    for place, pair in enumerate(halves, start):
        step = found.steps[place]
        more = {name: step.phases[name] - float(np.mean([one.phases[name] for one in pair])) for name in PHASES}
        more["step"] = step.seconds - float(np.mean([one.seconds for one in pair]))
        phases = StepPhases(**{name: step.phases[name] + times * more[name] for name in PHASES})
        found.steps[place] = replace(step, end_s=step.end_s + times * more["step"], phases=phases)
        for name in added:
            added[name] += more[name] / len(halves)
    found.doubling = added


def _times(trace: Trace, count: int) -> Trace:
    """The trace with tokens, samples and counts of ``count`` pools in place of one."""
    for place, step in enumerate(trace.steps):
        trace.steps[place] = replace(
            step,
            samples=count * step.samples,
            generated_tokens=count * step.generated_tokens,
            total_tokens=count * step.total_tokens,
            staleness={age: count * samples for age, samples in step.staleness.items()},
            token_ages={age: count * tokens for age, tokens in step.token_ages.items()},
        )
    trace.counters.add(trace.counters.copy(), count - 1)
    trace.agents.add(replace(trace.agents), count - 1)
    trace.ledger = trace.ledger and trace.ledger.scaled(count)
    trace.curves = [Curve(one.name, one.times_s, tuple(count * n for n in one.values)) for one in trace.curves]
    return trace


def _halves(workload: DrawnWorkload) -> list[DrawnWorkload]:
    """The work of both halves of a pool: the first and the second half of the prompts of each step."""
    return [replace(workload, steps=tuple(_half(step, place) for step in workload.steps)) for place in (0, 1)]


def _half(step: DrawnStep, place: int) -> DrawnStep:
    (one,), (iterations,) = step.rollouts, step.iterations
    size, turns = one.batch.samples // 2, one.turns
    own = slice(place * size, (place + 1) * size)
    group = one.batch.group[own] - one.batch.group[own.start]
    batch = Batch(one.batch.prompt_tokens[own], one.batch.response_tokens[own], group)
    if turns is None:
        return DrawnStep((Generated(batch, one.trained[own]),), (iterations[own],), step.acceptance)
    first = turns.first[own.start : own.stop + 1]
    every = slice(int(first[0]), int(first[-1]))
    turns = Turns(
        first - first[0], turns.history_tokens[every], turns.response_tokens[every], turns.environment_s[every],
        turns.judge_s[own],
    )  # fmt: skip
    return DrawnStep((Generated(batch, one.trained[own], turns),), (iterations[every],), step.acceptance)
