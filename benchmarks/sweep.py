"""How fast sweeps and plans are: 1,000 cells of the 235B synchronous scenario, exponents of the cost, a whole plan.

Prints seconds of a 1,000-cell sweep, the exponents with which the cost of a sweep grows in cells and in rollouts (1 is
linear), and seconds of a plan over the default space of the same scenario.

    python benchmarks/sweep.py [--jobs 2] [--skip-plan]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from rlsim.loading.scenario import load_scenario, vary
from rlsim.planning import plan, sweep

SCENARIO = "qwen235b_512"
AXES = (
    "speculation.draft_length=1:10",
    "speculation.acceptance_length=1.1:2:0.1",
    "engine.host_iteration_s=0.001:0.01:0.001",
)
CELLS = (125, 250, 500, 1000)
PROMPTS = (64, 128, 256, 512, 1024)


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def exponent(sizes: tuple[int, ...], seconds: list[float]) -> float:
    """Slope of the cost over size in logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def sweep_of(cells: int, jobs: int) -> float:
    """Seconds of a sweep of ``cells`` cells, all with costs of their own."""
    scenario = load_scenario(SCENARIO)
    axis = ",".join(f"{0.001 + 1e-6 * i:.6f}" for i in range(cells))
    return timed(lambda: sweep(scenario, [f"engine.host_iteration_s={axis}"], jobs=jobs))


def cell_of(prompts: int) -> float:
    """Seconds of one cell of 32 samples per prompt, least of three."""
    scenario = vary(load_scenario(SCENARIO), f"workload.prompts_per_step={prompts}")
    axes = [f"engine.host_iteration_s={0.001 + 1e-5 * prompts}"]
    seeds = [vary(scenario, f"simulation.seed={seed}") for seed in range(3)]
    return min(timed(lambda s=seed: sweep(s, axes)) for seed in seeds)


def main() -> None:
    """Run everything and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--skip-plan", action="store_true")
    options = parser.parse_args()
    scenario = load_scenario(SCENARIO)
    seconds = timed(lambda: sweep(scenario, AXES, jobs=options.jobs))
    print(f"1,000 cells (k x acceptance x host time) on {options.jobs} processes: {seconds:6.1f} s")
    cells = [sweep_of(count, 1) for count in CELLS]
    shown = ", ".join(f"{count}: {value:.1f} s" for count, value in zip(CELLS, cells, strict=True))
    print(f"cells that share no iteration table, 1 process: {shown}; exponent {exponent(CELLS, cells):.2f}")
    rollouts = [cell_of(prompts) for prompts in PROMPTS]
    shown = ", ".join(f"{32 * p}: {1e3 * value:.0f} ms" for p, value in zip(PROMPTS, rollouts, strict=True))
    print(f"one cell by rollouts: {shown}; exponent {exponent(PROMPTS, rollouts):.2f}")
    if options.skip_plan:
        return
    start = time.perf_counter()
    answer = plan(scenario, jobs=options.jobs)
    seconds = time.perf_counter() - start
    print(f"plan over {answer.configurations:,} configurations on {options.jobs} processes: {seconds:.1f} s")
    print(f"  {answer.simulated} simulated; {answer.best.name}, {answer.best.step_s:.1f} s")


if __name__ == "__main__":
    main()
