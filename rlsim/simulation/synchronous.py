"""Synchronous RL: trainer and generator take turns; on split pools the same with the other pool idle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.interface import Prices, StepCost
from rlsim.results import StepPhases, TokenLedger
from rlsim.schema.scenario import Scenario
from rlsim.simulation.pool import fleet_of
from rlsim.simulation.rollout import AgentRollout, RolloutResult, agent_rollout, rollout
from rlsim.simulation.streaming import streamed
from rlsim.simulation.trace import StepRecord, Trace
from rlsim.units import FloatArray
from rlsim.workload.draw import DrawnStep, DrawnWorkload

if TYPE_CHECKING:
    from rlsim.simulation.racing import Rounds

SHOWN_REPLICAS = 8
"""Replicas drawn in the timeline."""


class _Generated(Struct, frozen=True, eq=False):
    """What a step generated: its work with the samples to train on, seconds of the phase, response tokens of all
    samples, aborted ones up to then, and when the samples to train on had their rewards, from its beginning."""

    drawn: DrawnStep
    seconds: float
    tokens: float
    finish_s: FloatArray


def run_synchronous(scenario: Scenario, workload: DrawnWorkload, prices: Prices, trace: Trace) -> None:
    """Simulate all steps into ``trace``: hand the weights over, generate the batch, train on it.

    One waits for the other throughout, so that a running time is clock enough.
    """
    rounds, now_s = None, 0.0
    if scenario.workload.racing:
        from rlsim.simulation.racing import Rounds  # and with it the engines of asynchronous loops

        rounds = Rounds(scenario, prices)
    for step, planned in enumerate(workload.steps):
        start_s = now_s
        # Weights move once a step; between two rollouts of it a colocated engine only sleeps and wakes.
        prepare_s = prices.prepare.seconds + (len(planned.rollouts) - 1) * prices.wake.seconds
        now_s = trace.passed("trainer", "prepare_s", step, now_s, prepare_s)
        if scenario.loop.supervised:
            made = _Generated(planned, 0.0, 0.0, np.zeros(0))
        else:
            made = _generated(scenario, planned, prices, trace, rounds, step, now_s)
        now_s += made.seconds
        # A batch that was not known before it was generated is priced now.
        drawn = made.drawn
        cost = prices.steps[step] if prices.steps else prices.batch(drawn.trained_tokens, drawn.generated_samples)
        exposed_s, overlapped_s = made.seconds, 0.0
        if scenario.loop.streaming:
            now_s, exposed_s, overlapped_s = _rest(scenario, made, cost, trace, step, now_s)
        else:
            for name, phase in (("data_s", cost.data), ("logprob_s", cost.logprob), ("train_s", cost.train)):
                now_s = trace.passed("trainer", name, step, now_s, phase.seconds)
        phases = StepPhases(
            data_s=cost.data.seconds,
            prepare_s=prepare_s,
            generation_s=made.seconds,
            logprob_s=cost.logprob.seconds,
            train_s=cost.train.seconds,
            refit_s=prices.refit.seconds,
            exposed_generation_s=exposed_s,
        )
        samples = {0: len(made.drawn.trained_tokens)}
        record = StepRecord.of(step, start_s, now_s, phases, samples, made.drawn, cost)
        trace.steps.append(replace(record, generated_tokens=made.tokens, overlapped_s=overlapped_s))


def _generated(
    scenario: Scenario, drawn: DrawnStep, prices: Prices, trace: Trace, rounds: Rounds | None, step: int, begin_s: float
) -> _Generated:
    """The rollouts of a step with the weights that its trainer published at ``begin_s``."""
    agents, tokens = _agent_rollouts(scenario, drawn, prices), float(drawn.generated_tokens)
    if rounds is not None:
        found = rounds.next(drawn)
        drawn, results, tokens = found.drawn, [found.result], found.generated_tokens
    else:
        results = [one.result for one in agents] if agents else _rollouts(scenario, drawn, prices)
    if step >= scenario.measured_steps.start:
        _count(trace, drawn, results, agents, tokens)
    generation_s = sum(result.seconds + scenario.workload.environment_s for result in results)
    trace.passed("generator", "generation_s", step, begin_s, generation_s)
    if step == 0:  # one step shows the pattern of all
        _show_rollout(trace, results, begin_s, step)
        for number, one in enumerate(agents):
            before_s = sum(result.seconds + scenario.workload.environment_s for result in results[:number])
            trace.agents_shown(one.timeline, begin_s + before_s, step)
    return _Generated(drawn, generation_s, tokens, _finish_s(drawn, results, scenario.workload.environment_s))


def _rest(
    scenario: Scenario, made: _Generated, cost: StepCost, trace: Trace, step: int, now_s: float
) -> tuple[float, float, float]:
    """What a streaming trainer has left when generation ends; (its end, seconds waited, overlapped) in the step.

    Waiting and work alternate; the timeline draws all waiting first. A step never ends before its generation, whose
    last samples may be some that nobody trains on.
    """
    found = streamed(made.finish_s, made.drawn.trained_tokens, cost, scenario.trainer)
    phases = (("logprob_s", cost.logprob), ("train_s", cost.train), ("data_s", cost.data))
    work_s, begin_s = sum(phase.seconds for _, phase in phases), now_s - made.seconds
    # Whatever of generation the work does not fill is waited for, or the step would end before it.
    exposed_s = max(found.exposed_s, made.seconds - work_s)
    at_s = begin_s + exposed_s
    trace.span("trainer", "exposed_generation_s", step, (begin_s, at_s), "waiting and work alternate")
    for name, phase in phases:
        trace.span("trainer", name, step, (at_s, at_s + phase.seconds))
        at_s += phase.seconds
    return now_s + max(0.0, exposed_s + work_s - made.seconds), exposed_s, found.overlapped_s


def _finish_s(drawn: DrawnStep, results: Sequence[RolloutResult], environment_s: float) -> FloatArray:
    """When each sample that is trained on had its reward, from the beginning of the first rollout."""
    found, before_s = [], 0.0
    for one, result in zip(drawn.rollouts, results, strict=True):
        # Rollouts of one step follow each other, each after the rewards of the one before.
        found.append(before_s + result.finish_s[one.trained] + environment_s)
        before_s += result.seconds + environment_s
    return np.concatenate(found)


def _count(
    trace: Trace, drawn: DrawnStep, results: Sequence[RolloutResult], agents: Sequence[AgentRollout], tokens: float
) -> None:
    """What the engines did for a measured step, and where its tokens went: to training, or else thrown away."""
    for result in results:
        trace.count(result.counters, float(result.peak_kv_tokens.max(initial=0.0)))
        trace.imbalances.append(result.imbalance)
    if not agents:
        consumed = float(drawn.consumed_tokens)
        trace.book(TokenLedger(tokens, consumed, 0.0, tokens - consumed, 0.0, 0.0))
    for one in agents:
        trace.agents.add(one.counters)


def _rollouts(scenario: Scenario, drawn: DrawnStep, prices: Prices) -> list[RolloutResult]:
    """The rollouts of a step, one after the other with the same weights."""
    fleet = fleet_of(scenario, prices)
    return [
        rollout(one.batch, iterations, fleet) for one, iterations in zip(drawn.rollouts, drawn.iterations, strict=True)
    ]


def _agent_rollouts(scenario: Scenario, drawn: DrawnStep, prices: Prices) -> list[AgentRollout]:
    """Rollouts of trajectories of several turns, one after the other; empty where there are no agents."""
    agent, fleet = scenario.workload.agent, fleet_of(scenario, prices)
    if agent is None:
        return []
    return [
        agent_rollout(one, iterations, fleet, agent)
        for one, iterations in zip(drawn.rollouts, drawn.iterations, strict=True)
    ]


def _show_rollout(trace: Trace, results: Sequence[RolloutResult], offset_s: float, step: int) -> None:
    """Replica lanes and the number of running sequences of the rollouts of one step, drawn without gaps."""
    if not trace.detailed:
        return
    times: list[float] = []
    running: list[float] = []
    for result in results:
        for replica, end in enumerate(result.replica_end_s[:SHOWN_REPLICAS]):
            trace.span(f"replica {replica}", "generation_s", step, (offset_s, offset_s + float(end)))
        at_s, counts = result.running_curve()
        times += [offset_s + t for t in at_s]
        running += counts
        offset_s += result.seconds
    trace.curve("running sequences", times, running)
