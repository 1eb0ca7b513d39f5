"""Lagged asynchronous RL: the trainer, and a generation pool behind the collector of :mod:`rlsim.simulation.collector`.

The trainer is a SimPy process. Between two of its decisions the collector acts alone, so the pool is run up to the next
one in one go (:func:`_pass`); there are no events per completion.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Generator

import simpy

from rlsim.simulation.collector import Collector
from rlsim.simulation.trace import Trace
from rlsim.simulation.world import World, record

Process = Generator[simpy.Event, object, None]


def run_asynchronous(env: simpy.Environment, world: World, trace: Trace, count: int) -> None:
    """Simulate ``count`` training steps into ``trace``; the first one waits for the first batch from an empty pool."""
    collector = Collector(world, trace, count)
    env.process(_train(env, world, trace, collector, count))
    env.run()
    trace.curve("running sequences", collector.times_s, collector.running_at)


def _train(env: simpy.Environment, world: World, trace: Trace, collector: Collector, count: int) -> Process:
    """Take the batch of each step, train on it, publish the weights."""
    poll_s, warmup = world.scenario.loop.poll_s, world.scenario.simulation.warmup_steps
    before = copy.deepcopy(collector.pool.tally)
    for step in range(count):
        if step == warmup:
            before = copy.deepcopy(collector.pool.tally)
        start_s, busy_s = float(env.now), collector.busy_s(float(env.now))
        yield from _until(env, collector, poll_s, functools.partial(collector.is_ready, step))
        trace.span("trainer", "exposed_generation_s", step, start_s, float(env.now))
        exposed_s = float(env.now) - start_s
        staleness = collector.take(step)
        work = world.draws.step(step, world.costs)
        phases = {"data_s": work.data.seconds, "logprob_s": work.logprob.seconds, "train_s": work.train.seconds}
        for name, seconds in phases.items():
            begin_s = float(env.now)
            yield from _pass(env, collector, seconds)
            trace.span("trainer", name, step, begin_s, float(env.now))
        if not world.scenario.loop.in_flight_updates:
            begin_s = float(env.now)
            collector.block()
            yield from _until(env, collector, poll_s, lambda: not collector.in_flight)
            exposed_s += float(env.now) - begin_s
            trace.span("trainer", "exposed_generation_s", step, begin_s, float(env.now), "drain")
        refit_s = yield from _publish(env, world, trace, collector, step)
        generation_s = collector.busy_s(float(env.now)) - busy_s
        phases |= {"prepare_s": 0.0, "generation_s": generation_s}
        phases |= {"refit_s": refit_s, "exposed_generation_s": exposed_s}
        facts = collector.pool.facts(generation_s)
        trace.steps.append(record(world, step, start_s, float(env.now), phases, staleness, facts))
    trace.iterations(collector.pool.tally, before)


def _publish(
    env: simpy.Environment, world: World, trace: Trace, collector: Collector, step: int
) -> Generator[simpy.Event, object, float]:
    """Pause the pool for the transfer of the weights that ``step`` made, then let groups start on them; its seconds."""
    refit_s, begin_s = world.costs.refit().seconds, float(env.now)
    collector.pause(begin_s, refit_s)
    yield from _pass(env, collector, refit_s)
    collector.resume(float(env.now))
    trace.span("trainer", "refit_s", step, begin_s, float(env.now))
    return refit_s


def _pass(env: simpy.Environment, collector: Collector, seconds: float) -> Process:
    """Let ``seconds`` pass for the trainer and the pool alike."""
    collector.advance(float(env.now) + seconds)
    yield env.timeout(seconds)


def _until(env: simpy.Environment, collector: Collector, poll_s: float, done: Callable[[], bool]) -> Process:
    """Look every ``poll_s`` seconds (at every change in the pool where that is 0) until ``done``."""
    while not done():
        if not collector.in_flight:
            raise RuntimeError("the trainer waits for prompt groups that nobody generates")
        yield from _pass(env, collector, poll_s or max(0.0, collector.next_change_s() - float(env.now)))
