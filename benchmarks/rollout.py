"""How fast rollouts are simulated: 4,096 samples of about 4,200 tokens on 64 replicas, one core.

Prints rollouts per second of the closed form, of the event-driven path with a queue, and of the asynchronous pool, and
in the same run those of the token-by-token reference (tests/simulation/reference_rollout.py) and of a SimPy loop with
one timeout per engine iteration, each on a part of the same replicas. Costs are smooth functions of batch and context;
only the time to simulate counts here.

    python benchmarks/rollout.py
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np
import simpy

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "simulation"))

from reference_rollout import ReferenceReplica

from rlsim.costs.interface import IterationTable
from rlsim.schema.workload import Workload
from rlsim.simulation.iteration_times import IterationTimes
from rlsim.simulation.pool import GenerationPool
from rlsim.simulation.requests import Request
from rlsim.simulation.rollout import rollout, samples_of
from rlsim.workload.acceptance import Acceptance
from rlsim.workload.batches import Batch, draw_batch, draw_iterations

REPLICAS = 64
SIMPY_REPLICAS = 8
WORKLOAD = {
    "prompts_per_step": 128,
    "generations_per_prompt": 32,
    "max_sequence_tokens": 16384,
    "response_tokens": {"kind": "lognormal", "mean_tokens": 4200, "log_sigma": 0.7},
}


def costs(slots: int) -> IterationTable:
    """4 ms floor, 20 us a sequence, attention proportional to cached tokens."""
    n = np.arange(slots + 1)
    step = np.where(n > 0, 4e-3 + 2e-5 * n, 0.0)
    attention = 1e-8 * np.outer(n, np.arange(65) * 256.0)
    grid = np.array([1.0, 64.0, 1024.0, 16384.0])
    prefill = np.tile(5e-6 * grid, (2, 1))
    return IterationTable(step, 256.0, attention, grid, np.array([0.0, float(slots)]), prefill, 1, 16384, slots, 1e9)


def best_of(repeats: int, run: Callable[[], object]) -> float:
    """Least seconds of several runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def run_pool(table: IterationTable, samples: list[Request], in_flight: int) -> None:
    """Keep ``in_flight`` samples unfinished: every completion submits the next sample."""
    pool = GenerationPool(table, REPLICAS, "round_robin")
    waiting = deque(samples)
    pool.submit(0.0, [waiting.popleft() for _ in range(in_flight)])

    def finished(time_s: float, sample: int, replica: int) -> bool:
        if waiting:
            pool.submit(time_s, [waiting.popleft()])
        return False

    pool.run(math.inf, finished)


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


def report(name: str, rollouts: int, seconds: float, fastest: float) -> float:
    """Print one line; rollouts per second."""
    rate = rollouts / seconds
    ratio = f"{fastest / rate:12,.0f} x slower" if fastest else ""
    print(f"{name:58s} {seconds * 1e3:10.2f} ms for {rollouts:5d} {rate:14,.0f} rollouts/s {ratio}")
    return rate


def main() -> None:
    """Run everything and print the table."""
    batch: Batch = draw_batch(Workload.model_validate(WORKLOAD), 0, 0, 0)
    iterations = draw_iterations(batch, Acceptance(np.zeros(0)), 0, 0, 0)
    table, queued = costs(1024), costs(32)
    samples = samples_of(batch, iterations, np.arange(batch.samples))
    batches = [[samples[i] for i in part] for part in np.array_split(np.arange(batch.samples), REPLICAS)]
    result = rollout(batch, iterations, REPLICAS, "static", table)
    count = batch.samples

    closed = best_of(20, lambda: rollout(batch, iterations, REPLICAS, "static", table))
    fastest = report("closed form, static split, no queue", count, closed, 0.0)
    seconds = best_of(3, lambda: rollout(batch, iterations, REPLICAS, "static", queued))
    report("event-driven, static split, 32 slots a replica", count, seconds, fastest)
    seconds = best_of(3, lambda: rollout(batch, iterations, REPLICAS, "shared_queue", queued))
    report("event-driven, one queue, 32 slots a replica", count, seconds, fastest)
    seconds = best_of(3, lambda: run_pool(table, samples, count // 2))
    report("asynchronous pool, every completion submits a sample", count, seconds, fastest)
    ends: list[float] = []
    seconds = best_of(1, lambda: ends.append(run_simpy(table, batches[:SIMPY_REPLICAS])))
    report("SimPy, one timeout per engine iteration", sum(map(len, batches[:SIMPY_REPLICAS])), seconds, fastest)
    reference = ReferenceReplica(table, prefix_caching=False)
    reference.submit(0.0, batches[0])
    seconds = best_of(1, reference.run)
    report("token-by-token reference", len(batches[0]), seconds, fastest)
    plain = rollout(batch, iterations, REPLICAS, "static", table, prefix_caching=False)
    print(
        f"agreement: reference {reference.now / plain.replica_end_s[0] - 1:+.1e}, "
        f"SimPy {ends[0] / plain.replica_end_s[:SIMPY_REPLICAS].max() - 1:+.1e}; simulated {result.seconds:.1f} s"
    )


if __name__ == "__main__":
    main()
