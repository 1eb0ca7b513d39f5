"""The RL loop as SimPy processes: synchronous steps, phase after phase; asynchronous ones in ``asynchronous``."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import simpy

from rlsim.schema.scenario import Scenario
from rlsim.simulation.asynchronous import run_asynchronous
from rlsim.simulation.rollout import RolloutResult, rollout, rollout_facts
from rlsim.simulation.tally import Tally
from rlsim.simulation.trace import Trace
from rlsim.simulation.world import World, record

Process = Generator[simpy.Event, object, None]
SHOWN_REPLICAS = 8
"""Replicas drawn in the timeline."""


def cycle_steps(scenario: Scenario) -> int:
    """Consecutive steps that make one observation: policy_lag of an asynchronous loop, else 1.

    At lag L the batches of L steps start together and finish together, so a generation-bound trainer waits for the
    first of them and hardly for the others (185, 42, 185, 42 s at lag 2): only the mean over all L means anything.
    """
    return max(1, scenario.loop.policy_lag)


def measured_steps(scenario: Scenario) -> int:
    """Steps simulated after the warm-up: ``simulation.steps``, rounded up to whole cycles."""
    size = cycle_steps(scenario)
    return -(-scenario.simulation.steps // size) * size


def run_loop(world: World, trace: Trace) -> None:
    """Simulate one arm of one replication into ``trace``: warm-up and measured steps."""
    env = simpy.Environment()
    count = world.scenario.simulation.warmup_steps + measured_steps(world.scenario)
    if world.scenario.loop.mode == "async":
        run_asynchronous(env, world, trace, count)
        return
    env.process(_synchronous(env, world, trace, count))
    env.run()


def _synchronous(env: simpy.Environment, world: World, trace: Trace, count: int) -> Process:
    """One step after the other; on split pools the same phases with the other pool idle."""
    prepare, wake, refit = (cost.seconds for cost in (world.costs.prepare(), world.costs.wake(), world.costs.refit()))
    for step in range(count):
        start = float(env.now)
        work = world.draws.step(step, world.costs)
        results = _rollouts(world, step)
        tally = Tally(0)
        for result in results:
            tally.add(result.tally)
        if step >= world.scenario.simulation.warmup_steps:
            trace.iterations(tally)
        facts = {**tally.facts(), **rollout_facts(results)}
        if world.scenario.workload.usable_group_share < 1:
            facts["rollouts"] = float(len(results))
        generation = sum(result.seconds + world.scenario.workload.environment_s for result in results)
        phases = {
            "prepare_s": prepare + (len(results) - 1) * wake,
            "generation_s": generation,
            "data_s": work.data.seconds,
            "logprob_s": work.logprob.seconds,
            "train_s": work.train.seconds,
        }
        for name, seconds in phases.items():
            begin = float(env.now)
            yield env.timeout(seconds)
            trace.span("generator" if name == "generation_s" else "trainer", name, step, begin, float(env.now))
        if step == 0:
            _show_rollout(trace, results, start + phases["prepare_s"], step)
        phases |= {"refit_s": refit, "exposed_generation_s": generation}
        trace.steps.append(record(world, step, start, float(env.now), phases, {0: len(work.trained_tokens)}, facts))


def _rollouts(world: World, step: int) -> list[RolloutResult]:
    """The rollouts of a step, one after the other with the same weights."""
    engine = world.scenario.engine
    return [
        rollout(
            generated.batch,
            world.draws.iterations(step, world.acceptance, number),
            world.replicas,
            engine.dispatch,
            world.costs.iteration,
            engine.prefix_caching,
        )
        for number, generated in enumerate(world.draws.rollouts(step))
    ]


def _show_rollout(trace: Trace, results: Sequence[RolloutResult], offset_s: float, step: int) -> None:
    """Replica lanes and the number of running sequences of the rollouts of one step, drawn without gaps."""
    if not trace.detailed:
        return
    times: list[float] = []
    running: list[float] = []
    for result in results:
        for replica, end in enumerate(result.replica_end_s[:SHOWN_REPLICAS]):
            trace.span(f"replica {replica}", "generation_s", step, offset_s, offset_s + float(end))
        at_s, counts = result.running_curve()
        times += [offset_s + t for t in at_s]
        running += counts
        offset_s += result.seconds
    trace.curve("running sequences", times, running)
