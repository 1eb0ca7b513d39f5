"""How fast rollouts are simulated: 4,096 samples of about 4,200 tokens on 64 replicas, one core.

Prints rollouts per CPU second where nothing queues, with a queue on each replica, with one queue for all and in an
asynchronous loop, each with the C kernel and with the Python reference in turn, and in the same run those of the
token-by-token reference (tests/simulation/reference_rollout.py) and of a SimPy loop with one timeout per engine
iteration, each on a part of the same replicas. Costs are smooth functions of batch and context; only the time to
simulate counts here.

    python benchmarks/rollout.py
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import simpy

from rlsim.simulation.pool import Fleet
from rlsim.workload.lengths import Place

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "simulation"))

from reference_rollout import ReferenceReplica

from rlsim.costs.interface import IterationTable, PhaseCost, Prices, StepCost
from rlsim.files.kernel import VARIABLE
from rlsim.loading.scenario import load_scenario
from rlsim.schema.workload import Workload
from rlsim.simulation.asynchronous import run_asynchronous
from rlsim.simulation.iteration_times import IterationTimes
from rlsim.simulation.kernel.library import library
from rlsim.simulation.requests import Request
from rlsim.simulation.rollout import rollout, samples_of
from rlsim.simulation.trace import Trace
from rlsim.workload.acceptance import Acceptance
from rlsim.workload.batches import Batch, Generated, IntArray, draw_batch, draw_iterations
from rlsim.workload.draw import DrawnStep, DrawnWorkload

REPLICAS = 64
SIMPY_REPLICAS = 8
WORKLOAD = {
    "prompts_per_step": 128,
    "generations_per_prompt": 32,
    "max_sequence_tokens": 16384,
    "response_tokens": {"kind": "lognormal", "mean_tokens": 4200, "log_sigma": 0.7},
}
LOOP = (
    "loop.policy_lag=1", "engine.dispatch=round_robin", "trainer.global_batch_samples=null",
    "simulation.warmup_steps=0", "simulation.steps=2", "workload.generations_per_prompt=1",
)  # fmt: skip


def costs(slots: int) -> IterationTable:
    """4 ms floor, 20 us a sequence, attention proportional to cached tokens."""
    n = np.arange(slots + 1)
    step = np.where(n > 0, 4e-3 + 2e-5 * n, 0.0)
    attention = 1e-8 * np.outer(n, np.arange(65) * 256.0)
    grid = np.array([1.0, 64.0, 1024.0, 16384.0])
    prefill = np.tile(5e-6 * grid, (2, 1))
    return IterationTable(step, 256.0, attention, grid, np.array([0.0, float(slots)]), prefill, 1, 16384, slots, 1e9)


def best_of(repeats: int, run: Callable[[], object], clock_s: Callable[[], float] = time.perf_counter) -> float:
    """Least seconds of several runs by a clock."""
    times = []
    for _ in range(repeats):
        start_s = clock_s()
        run()
        times.append(clock_s() - start_s)
    return min(times)


@contextmanager
def implementation(wanted: str) -> Iterator[None]:
    """Simulate events with the kernel (auto) or with the reference (python) meanwhile."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = wanted
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def loop_of(batch: Batch, iterations: IntArray, table: IterationTable, replicas: int) -> Callable[[], None]:
    """A lagged loop of two steps of half the samples each, every one a group, and a trainer that takes no time."""
    half = batch.samples // 2
    scenario = load_scenario("qwen8b_async_lag1", [f"workload.prompts_per_step={half}", *LOOP])
    steps = []
    for part in (slice(0, half), slice(half, 2 * half)):
        drawn = Batch(batch.prompt_tokens[part], batch.response_tokens[part], np.arange(half))
        steps.append(DrawnStep((Generated(drawn, np.ones(half, dtype=np.bool_)),), (iterations[part],)))
    nothing = PhaseCost(0.0)
    step = StepCost(nothing, nothing, nothing)
    prices = Prices(
        table, replicas, nothing, nothing, nothing, (step, step), lambda lengths, generated: step, 0.0, None
    )
    return lambda: run_asynchronous(scenario, DrawnWorkload(tuple(steps), 2), prices, Trace())


def simpy_replica(
    env: simpy.Environment, timing: IterationTimes, samples: list[Request]
) -> Generator[simpy.Event, None, None]:
    """One timeout per engine iteration, everything else as cheap as it gets."""
    ends = deque(sorted((sample.iterations, sample.prompt_tokens) for sample in samples))
    iteration, context = 0, float(sum(sample.prompt_tokens for sample in samples))
    yield env.timeout(timing.prefill(0, int(context)))
    while ends:
        yield env.timeout(timing.decode(len(ends), context / len(ends)))
        iteration += 1
        context += len(ends)
        while ends and ends[0][0] <= iteration:
            context -= sum(ends.popleft())


def run_simpy(table: IterationTable, batches: list[list[Request]]) -> float:
    """Simulated seconds of the slowest replica."""
    env, timing = simpy.Environment(), IterationTimes(table)
    for shard in batches:
        env.process(simpy_replica(env, timing, shard))
    env.run()
    return float(env.now)


def report(name: str, rollouts: int, seconds: float, rate_before: float = 0.0, than: str = "") -> float:
    """Print one line with the ratio to a slower or faster rate; rollouts per second."""
    rate = rollouts / seconds
    ratio = max(rate / rate_before, rate_before / rate) if rate_before else 0.0
    compared = f"{ratio:10,.0f} x {'slower' if rate < rate_before else 'faster'} than {than}" if rate_before else ""
    print(f"{name:52s} {seconds * 1e3:9.2f} ms for {rollouts:5d} {rate:12,.0f} rollouts/s {compared}")
    return rate


def compare(name: str, rollouts: int, run: Callable[[], object]) -> float:
    """Print a path with the reference and, where it was compiled, with the kernel; its rollouts per second."""
    with implementation("python"):
        reference = report(f"{name}, Python", rollouts, best_of(3, run, time.process_time))
    with implementation("auto"):
        if library() is not None:
            return report(f"{name}, C kernel", rollouts, best_of(20, run, time.process_time), reference, "Python")
    print(f"{name}, C kernel: not compiled")
    return reference


def main() -> None:
    """Run everything and print the table."""
    batch: Batch = draw_batch(Workload.model_validate(WORKLOAD), Place(0, 0, 0))
    iterations = draw_iterations(batch, Acceptance(np.zeros(0)), Place(0, 0, 0))
    table, queued = costs(1024), costs(32)
    samples = samples_of(batch, iterations, np.arange(batch.samples))
    batches = [[samples[i] for i in part] for part in np.array_split(np.arange(batch.samples), REPLICAS)]
    result = rollout(batch, iterations, Fleet(REPLICAS, "static", table))
    count, cpu_s = batch.samples, time.process_time

    roomy, full, queue = (Fleet(REPLICAS, "static", table), Fleet(REPLICAS, "static", queued),
                          Fleet(REPLICAS, "shared_queue", queued))  # fmt: skip
    fastest = compare("static split, no queue", count, lambda: rollout(batch, iterations, roomy))
    compare("static split, 32 slots", count, lambda: rollout(batch, iterations, full))
    compare("one queue, 32 slots", count, lambda: rollout(batch, iterations, queue))
    compare("asynchronous loop", count, loop_of(batch, iterations, table, REPLICAS))
    ends: list[float] = []
    seconds = best_of(1, lambda: ends.append(run_simpy(table, batches[:SIMPY_REPLICAS])), cpu_s)
    simpy_count = sum(map(len, batches[:SIMPY_REPLICAS]))
    report("SimPy, one timeout per engine iteration", simpy_count, seconds, fastest, "no queue")
    reference = ReferenceReplica(table, prefix_caching=False)
    reference.submit(0.0, batches[0])
    seconds = best_of(1, reference.run, cpu_s)
    report("token-by-token reference", len(batches[0]), seconds, fastest, "no queue")
    plain = rollout(batch, iterations, Fleet(REPLICAS, "static", table, False))
    print(
        f"agreement: reference {reference.now / plain.replica_end_s[0] - 1:+.1e}, "
        f"SimPy {ends[0] / plain.replica_end_s[:SIMPY_REPLICAS].max() - 1:+.1e}; simulated {result.seconds:.1f} s"
    )


if __name__ == "__main__":
    main()
