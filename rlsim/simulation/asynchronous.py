"""Lagged asynchronous RL: trainer and generator are two SimPy processes that meet when a batch is ready and when the
trainer publishes its weights.
"""

from __future__ import annotations

import copy
import math

import simpy

from rlsim.costs.interface import EngineCounters, Prices
from rlsim.results import StepPhases
from rlsim.schema.scenario import Scenario
from rlsim.simulation.generator import Generator
from rlsim.simulation.trace import Process, StepRecord, Trace
from rlsim.workload.draw import DrawnWorkload


def run_asynchronous(
    env: simpy.Environment, scenario: Scenario, workload: DrawnWorkload, prices: Prices, trace: Trace
) -> None:
    """Simulate all training steps into ``trace``; the first one waits for the first batch from an empty pool."""
    generator = Generator(env, scenario, workload, prices, trace)
    env.process(generator.generate())
    env.run(until=env.process(_train(env, scenario, workload, prices, trace, generator)))
    trace.curve("running sequences", generator.times_s, generator.running_at)


def _train(
    env: simpy.Environment,
    scenario: Scenario,
    workload: DrawnWorkload,
    prices: Prices,
    trace: Trace,
    generator: Generator,
) -> Process:
    """Take the batch of each step, train on it, publish the weights."""
    poll_s, before = scenario.loop.poll_s, EngineCounters()
    for step, cost in enumerate(prices.steps):
        if step == scenario.simulation.warmup_steps:
            before = copy.deepcopy(generator.pool.counters)
        start_s, busy_s = float(env.now), generator.busy_s()
        yield from _until(env, generator.batch_ready(step), poll_s)
        trace.span("trainer", "exposed_generation_s", step, start_s, float(env.now))
        exposed_s = float(env.now) - start_s
        staleness = generator.take(step)
        for name, phase in (("data_s", cost.data), ("logprob_s", cost.logprob), ("train_s", cost.train)):
            yield from trace.passing(env, "trainer", name, step, phase.seconds)
        if not scenario.loop.in_flight_updates:
            begin_s = float(env.now)
            yield from _until(env, generator.block(), poll_s)
            exposed_s += float(env.now) - begin_s
            trace.span("trainer", "exposed_generation_s", step, begin_s, float(env.now), "drain")
        generator.pause(prices.refit.seconds)
        yield from trace.passing(env, "trainer", "refit_s", step, prices.refit.seconds)
        generator.publish_weights()
        phases = StepPhases(
            data_s=cost.data.seconds,
            prepare_s=0.0,
            generation_s=generator.busy_s() - busy_s,
            logprob_s=cost.logprob.seconds,
            train_s=cost.train.seconds,
            refit_s=prices.refit.seconds,
            exposed_generation_s=exposed_s,
        )
        trace.steps.append(StepRecord.of(step, start_s, float(env.now), phases, staleness, workload.steps[step]))
    trace.count(generator.pool.counters, generator.pool.peak_kv_tokens)
    trace.counters.add(before, -1)


def _until(env: simpy.Environment, event: simpy.Event, poll_s: float) -> Process:
    """Wait for an event that is looked for every ``poll_s`` seconds; at once where that is 0."""
    start_s = float(env.now)
    yield event
    if poll_s:
        polls = math.ceil((env.now - start_s) / poll_s - 1e-9)
        yield env.timeout(max(0.0, start_s + polls * poll_s - env.now))
