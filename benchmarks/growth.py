"""How cost grows: in samples, GPUs, steps and sweep cells. ``python benchmarks/growth.py [--largest-samples 1048576]``.

Prints CPU seconds by size with the exponent of a power law through them (1 is linear), for the event-driven paths of a
rollout, for whole projections in GPUs (samples grow with them) and in steps, and for sweeps in cells; then the largest
resident memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
from project import peak_gigabytes
from rollout import best_of, costs, loop_of

from rlsim.loading.scenario import load_scenario
from rlsim.planning import sweep
from rlsim.projection.project import project
from rlsim.simulation.pool import Fleet
from rlsim.simulation.rollout import rollout
from rlsim.workload.batches import Batch

SAMPLES_PER_REPLICA = 64
SLOTS = 32


def growth(what: str, sizes: Sequence[int], run: Callable[[int], Callable[[], object]], repeats: int = 2) -> None:
    """Print the CPU seconds of ``run(size)()`` by size and the exponent of their growth."""
    seconds = [best_of(repeats, run(size), time.process_time) for size in sizes]
    slope = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
    shown = ", ".join(f"{size:,}: {second:.3g}" for size, second in zip(sizes, seconds, strict=True))
    print(f"{what:24s} exponent {slope:5.2f}   CPU seconds {shown}", flush=True)


def drawn(samples: int) -> tuple[Batch, np.ndarray]:
    """Lengths of ``samples`` samples, log-normal around 4,200 tokens, and their iterations."""
    tokens = np.random.default_rng(samples).lognormal(8.1, 0.7, samples).clip(1, 16_000).astype(np.int64)
    return Batch(np.full(samples, 100, dtype=np.int64), tokens, np.arange(samples) // 16), tokens


def rollout_of(samples: int, dispatch: str) -> Callable[[], object]:
    """One rollout with queues."""
    batch, iterations = drawn(samples)
    return lambda: rollout(batch, iterations, Fleet(samples // SAMPLES_PER_REPLICA, dispatch, costs(SLOTS)))


def projection_of(*changes: str) -> Callable[[], object]:
    """A projection of the asynchronous scenario of 2,048 GPUs with changes."""
    scenario = load_scenario("qwen235b_2048", ["simulation.replications=1", *changes])
    return lambda: project(scenario)


def cells_of(cells: int) -> Callable[[], object]:
    """A sweep whose cells share no iteration table."""
    scenario = load_scenario("qwen235b_512")
    axis = ",".join(f"{0.001 + 1e-6 * i:.6f}" for i in range(cells))
    return lambda: sweep(scenario, [f"engine.host_iteration_s={axis}"], jobs=1)


def main() -> None:
    """Run everything and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest-samples", type=int, default=2**20)
    options = parser.parse_args()
    samples = [size for size in (2**14, 2**16, 2**18, 2**20) if size <= options.largest_samples]
    growth("samples, static", samples, lambda size: rollout_of(size, "static"))
    growth("samples, one queue", samples, lambda size: rollout_of(size, "shared_queue"))
    growth("samples, loop", samples, lambda size: loop_of(*drawn(size), costs(1024), size // SAMPLES_PER_REPLICA))
    gpus = [2**11, 2**12, 2**13, 2**14, 2**15]
    growth("GPUs and samples", gpus, lambda size: projection_of(
        f"cluster.num_gpus={size}", f"cluster.generation_gpus={size * 3 // 4}", f"cluster.training_gpus={size // 4}",
        f"workload.prompts_per_step={size // 16}", "simulation.steps=4"))  # fmt: skip
    growth("steps", [16, 64, 256], lambda size: projection_of(f"simulation.steps={size}"))
    growth("cells", [32, 128, 512], cells_of, repeats=1)
    print(f"peak memory {peak_gigabytes():.2f} GB")


if __name__ == "__main__":
    main()
