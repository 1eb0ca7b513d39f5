"""How fast a projection is, and how much memory it takes; prints, never fails: ``python benchmarks/project.py``.

In one run: one warm synchronous step of 4,096 rollouts on a prepared model, the asynchronous scenario of 2,048 GPUs
with its replications, ``rlsim --help``, peak memory, and the table of ``benchmarks/rollout.py`` with the ratios to the
token-by-token reference and to a SimPy loop with one timeout per engine iteration. Seconds are wall time, so other
work on the machine shows in them.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import rollout

from rlsim.costs.prices import price
from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.simulation.run import simulate
from rlsim.workload.batches import draw_rollouts
from rlsim.workload.draw import draw

SYNCHRONOUS, ASYNCHRONOUS = "qwen235b_512", "qwen235b_2048"
REPEATS = 5


def line(what: str, value: float, unit: str, aim: str) -> None:
    """Print one figure beside its aim."""
    print(f"{what:68s} {value:9.3f} {unit:3s} (aim: {aim})")


def one_step() -> float:
    """Least seconds of one synchronous step, draws and all, with costs prepared before."""
    scenario = load_scenario(SYNCHRONOUS, ["simulation.replications=1"])

    def step() -> None:
        draw_rollouts.cache_clear()
        workload = draw(scenario, 0)
        simulate(scenario, workload, price(scenario, workload))

    step()
    return rollout.best_of(REPEATS, step)


def whole_projection(name: str) -> tuple[float, float]:
    """Seconds of a first and of the best later projection of a scenario."""
    start = time.perf_counter()
    scenario = load_scenario(name)
    project(scenario)
    return time.perf_counter() - start, rollout.best_of(REPEATS, lambda: project(scenario))


def command(*arguments: str) -> float:
    """Least seconds of an ``rlsim`` command in a process of its own."""
    call = [sys.executable, "-c", "from rlsim.cli import main; main()", *arguments]
    return rollout.best_of(REPEATS, lambda: subprocess.run(call, check=True, capture_output=True))


def peak_gigabytes() -> float:
    """Largest resident memory of this process so far; the kernel counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e9 if sys.platform == "darwin" else peak * 1024 / 1e9


def main() -> None:
    """Run everything and print the table."""
    line(f"one synchronous step, 4,096 rollouts, warm ({SYNCHRONOUS})", 1e3 * one_step(), "ms", "< 50")
    first, later = whole_projection(ASYNCHRONOUS)
    line(f"asynchronous projection with its replications, first ({ASYNCHRONOUS})", first, "s", "< 3")
    line("the same again", later, "s", "< 3")
    line("peak memory of the above", peak_gigabytes(), "GB", "< 1")
    line(f"rlsim project {ASYNCHRONOUS}, whole command", command("project", ASYNCHRONOUS, "--json"), "s", "< 3")
    line("rlsim --help, whole command", command("--help"), "s", "< 0.5")
    print()
    rollout.main()


if __name__ == "__main__":
    main()
