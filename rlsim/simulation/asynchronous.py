"""Lagged RL: the trainer's steps, which meet the generator where a batch is ready and where the trainer publishes its
weights.

All that happens in between is the generator's, which runs ahead to the next of these moments in one call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from rlsim.costs.interface import EngineCounters, Prices, StepCost
from rlsim.results import StepPhases
from rlsim.schema.scenario import Scenario
from rlsim.simulation.agent_counters import AgentCounters
from rlsim.simulation.generator import Generator, PythonGenerator
from rlsim.simulation.intake import FloatArray, IntArray
from rlsim.simulation.kernel.generator import KernelGenerator
from rlsim.simulation.kernel.library import library
from rlsim.simulation.ledger import TokenAccount
from rlsim.simulation.trace import StepRecord, Trace
from rlsim.workload.draw import DrawnWorkload


def run_asynchronous(scenario: Scenario, workload: DrawnWorkload, prices: Prices, trace: Trace) -> None:
    """Simulate all training steps into ``trace``; the first one waits for the first batch from an empty pool."""
    generator, before, now_s = generator_of(scenario, workload, prices, trace), EngineCounters(), 0.0
    trainer = _Trainer(scenario, workload, prices, trace, generator)
    account = TokenAccount(workload, generator) if scenario.workload.agent is None else None
    agents: AgentCounters | None = None
    for step in range(workload.trained):
        if step == scenario.measured_steps.start:
            before = generator.counters.copy()
            agents = None if generator.agent_counters is None else replace(generator.agent_counters)
            if account is not None:
                account.open()
        now_s = trainer.train(step, now_s)
    trace.count(generator.counters, generator.peak_kv_tokens)
    trace.counters.add(before, -1)
    if account is not None:
        trace.ledger = account.close()
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


@dataclass(frozen=True)
class _Trainer:
    """The trainer of a lagged loop. Times in seconds."""

    scenario: Scenario
    workload: DrawnWorkload
    prices: Prices
    trace: Trace
    generator: Generator

    def train(self, step: int, start_s: float) -> float:
        """Take the batch of a step, train on it and publish the weights where it is time to; when that is done."""
        generator, rules = self.generator, self.generator.intake.rules
        busy_s = generator.busy_s(start_s)
        updates = (step + 1) % rules.update_every == 0
        drains = updates and rules.at_update == "drain"
        now_s = self._wait(step, start_s, generator.batch_ready(step, start_s))
        if drains and not rules.overlap:
            now_s = self._wait(step, now_s, generator.drain(now_s), "drain")
        exposed_s, refit_s = now_s - start_s, self.prices.refit.seconds if updates else 0.0
        groups = generator.take(step, now_s)
        staleness = generator.intake.ages(groups)
        total_tokens, cost = self._work(step, groups)
        phases = (("data_s", cost.data), ("logprob_s", cost.logprob), ("train_s", cost.train))
        if not rules.overlap:
            generator.pause(now_s, sum(phase.seconds for _, phase in phases) + refit_s)
        for name, phase in phases:
            begin_s, now_s = now_s, now_s + phase.seconds
            self.trace.span("trainer", name, step, begin_s, now_s)
        if drains and rules.overlap:
            begin_s, now_s = now_s, self._wait(step, now_s, generator.drain(now_s), "drain")
            exposed_s += now_s - begin_s
        if updates:
            if rules.overlap:
                generator.pause(now_s, refit_s)
            begin_s, now_s = now_s, now_s + refit_s
            self.trace.span("trainer", "refit_s", step, begin_s, now_s)
            generator.publish_weights(now_s)
        elif not rules.overlap:
            generator.resume(now_s)
        phase_s = StepPhases(
            data_s=cost.data.seconds,
            prepare_s=0.0,
            generation_s=generator.busy_s(now_s) - busy_s,
            logprob_s=cost.logprob.seconds,
            train_s=cost.train.seconds,
            refit_s=refit_s,
            exposed_generation_s=exposed_s,
        )
        record = StepRecord.of(step, start_s, now_s, phase_s, staleness, self.workload.steps[step], cost, total_tokens)
        self.trace.steps.append(record)
        return now_s

    def _wait(self, step: int, start_s: float, until_s: float, detail: str = "") -> float:
        """Wait for the generator; when a trainer that looks every now and then sees that it may go on."""
        now_s = _seen_at(start_s, until_s, self.scenario.loop.poll_s)
        self.trace.span("trainer", "exposed_generation_s", step, start_s, now_s, detail)
        return now_s

    def _work(self, step: int, groups: IntArray) -> tuple[FloatArray | None, StepCost]:
        """Total tokens of the samples of a batch that nobody knew beforehand, and what the trainer does with it."""
        if self.scenario.known_batches:
            return None, self.prices.steps[step]
        batch, number = np.divmod(groups, self.generator.intake.batch)
        size = self.generator.intake.size
        lengths = [
            self.workload.steps[one].rollouts[0].batch.total_tokens.reshape(-1, size)[number[batch == one]].ravel()
            for one in np.unique(batch).tolist()
        ]
        total_tokens = np.concatenate(lengths).astype(np.float64)
        return total_tokens, self.prices.batch(total_tokens, self.workload.steps[step].generated_samples)


def _seen_at(start_s: float, time_s: float, poll_s: float) -> float:
    """When a trainer that looks every ``poll_s`` seconds from ``start_s`` on sees what happens at ``time_s``."""
    if not poll_s:
        return time_s
    return max(time_s, start_s + math.ceil((time_s - start_s) / poll_s - 1e-9) * poll_s)
