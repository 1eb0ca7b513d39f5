"""Lagged asynchronous RL: the trainer's steps, which meet the generator where a batch is ready and where the trainer
publishes its weights.

All that happens in between is the generator's, which runs ahead to the next of these moments in one call.
"""

from __future__ import annotations

import copy
import math

from rlsim.costs.interface import EngineCounters, Prices
from rlsim.results import StepPhases
from rlsim.schema.scenario import Scenario
from rlsim.simulation.agent_counters import AgentCounters
from rlsim.simulation.generator import Generator, PythonGenerator
from rlsim.simulation.kernel.generator import KernelGenerator
from rlsim.simulation.kernel.library import library
from rlsim.simulation.trace import StepRecord, Trace
from rlsim.workload.draw import DrawnWorkload


def run_asynchronous(scenario: Scenario, workload: DrawnWorkload, prices: Prices, trace: Trace) -> None:
    """Simulate all training steps into ``trace``; the first one waits for the first batch from an empty pool."""
    generator, before, now_s = generator_of(scenario, workload, prices, trace), EngineCounters(), 0.0
    agents: AgentCounters | None = None
    for step in range(len(prices.steps)):
        if step == scenario.simulation.warmup_steps:
            before, agents = copy.deepcopy((generator.counters, generator.agent_counters))
        now_s = _train(step, now_s, scenario, workload, prices, trace, generator)
    trace.count(generator.counters, generator.peak_kv_tokens)
    trace.counters.add(before, -1)
    if agents is not None and generator.agent_counters is not None:
        trace.agents.add(generator.agent_counters)
        trace.agents.add(agents, -1)
    generator.close()


def generator_of(scenario: Scenario, workload: DrawnWorkload, prices: Prices, trace: Trace) -> Generator:
    """A generator that has started on the first weights: the kernel's, or the reference where that is not there."""
    kernel = library()
    if kernel is None:
        return PythonGenerator(scenario, workload, prices, trace)
    return KernelGenerator(kernel, scenario, workload, prices, trace)


def _train(
    step: int,
    start_s: float,
    scenario: Scenario,
    workload: DrawnWorkload,
    prices: Prices,
    trace: Trace,
    generator: Generator,
) -> float:
    """Take the batch of a step, train on it, publish the weights; when that is done."""
    poll_s, cost, busy_s = scenario.loop.poll_s, prices.steps[step], generator.busy_s(start_s)
    now_s = _seen_at(start_s, generator.batch_ready(step, start_s), poll_s)
    exposed_s = now_s - start_s
    staleness = generator.take(step)
    trace.span("trainer", "exposed_generation_s", step, start_s, now_s)
    for name, phase in (("data_s", cost.data), ("logprob_s", cost.logprob), ("train_s", cost.train)):
        begin_s, now_s = now_s, now_s + phase.seconds
        trace.span("trainer", name, step, begin_s, now_s)
    if not scenario.loop.in_flight_updates:
        begin_s, now_s = now_s, _seen_at(now_s, generator.drain(now_s), poll_s)
        exposed_s += now_s - begin_s
        trace.span("trainer", "exposed_generation_s", step, begin_s, now_s, "drain")
    generator.pause(now_s, prices.refit.seconds)
    begin_s, now_s = now_s, now_s + prices.refit.seconds
    trace.span("trainer", "refit_s", step, begin_s, now_s)
    generator.publish_weights(now_s)
    phases = StepPhases(
        data_s=cost.data.seconds,
        prepare_s=0.0,
        generation_s=generator.busy_s(now_s) - busy_s,
        logprob_s=cost.logprob.seconds,
        train_s=cost.train.seconds,
        refit_s=prices.refit.seconds,
        exposed_generation_s=exposed_s,
    )
    trace.steps.append(StepRecord.of(step, start_s, now_s, phases, staleness, workload.steps[step]))
    return now_s


def _seen_at(start_s: float, time_s: float, poll_s: float) -> float:
    """When a trainer that looks every ``poll_s`` seconds from ``start_s`` on sees what happens at ``time_s``."""
    if not poll_s:
        return time_s
    return max(time_s, start_s + math.ceil((time_s - start_s) / poll_s - 1e-9) * poll_s)
