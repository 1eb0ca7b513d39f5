"""CPU time and memory of the commands on every shipped scenario: ``python benchmarks/commands.py [--all]``.

Each command runs in a process of its own; printed are the least CPU seconds (user and system, its own processes
included) of some runs, their ratio to the least of ``python -c 'import numpy, pydantic'`` in the same loop (BLAS
threads off in both), the median, and the largest resident memory. What a first run after installation adds (byte code
is compiled and kept) is the difference of the first line. ``--all`` adds 8,192 GPUs, a long run, plans, improve and
thousand-cell sweeps, one of them also on two processes by the clock, and the moves of a warm scenario (``rlsim.live``).
Results are for comparing: with each other, or by ``benchmarks/compare`` with another revision in the same minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CELLS = ("speculation.draft_length=1:10", "speculation.acceptance_length=1.1:2:0.1",
                     "engine.host_iteration_s=0.001:0.01:0.001")  # fmt: skip
SIZES = (*CELLS[:2], "cluster.num_gpus=128:1280:128")
"""Axes of a thousand cells: host times, of which no two cells share an engine's table, and numbers of GPUs."""
SPARING = {"plan": 3, "sweep": 3, "run": 1}
"""Repeats of what takes ten seconds and more; all else is repeated as asked."""


def scenarios(root: Path) -> list[str]:
    """Names of the scenarios that a checkout ships."""
    return sorted(path.stem for path in (root / "scenarios").glob("*.yaml"))


def cells(scenario: str, axes: tuple[str, ...], jobs: int) -> tuple[str, ...]:
    """The sweep of a scenario over some axes."""
    return ("sweep", scenario, *(word for axis in axes for word in ("--vary", axis)), "--jobs", str(jobs))


def cases(root: Path, everything: bool) -> list[tuple[str, ...]]:
    """Commands to time."""
    short = [("--help",), *(("project", name) for name in scenarios(root))]
    if not everything:
        return short
    return [
        *short,
        ("project", "qwen235b_2048", "cluster.num_gpus=8192"),
        ("improve", "quickstart"),
        ("plan", "quickstart", "--jobs", "1"),
        ("plan", "qwen235b_512", "--max-staleness", "1"),
        cells("qwen235b_512", SIZES, 1),
        cells("qwen235b_512", SIZES, 2),
        cells("qwen235b_512", CELLS, 1),
        cells("qwen235b_2048", CELLS, 1),
        ("run", "qwen235b_2048", "--steps", "1000"),
    ]


MOVES = """
import gc, json, sys, time
from rlsim.explore.live import Live
from rlsim.loading.scenario import load_scenario
live, out = Live(load_scenario(sys.argv[1])), {}
gc.freeze()
for slider in live.sliders:
    for value in [one for one in slider.values if one != slider.values[slider.start]][:8]:
        live._exact.clear()
        live.settle({})
        try:
            times = [time.process_time()]
            for answer in (live.move, live.settle):
                answer({slider.key: value})
                times.append(time.process_time())
            out.setdefault(slider.key, []).append([1e3 * (after - before) for before, after in zip(times, times[1:])])
        except Exception as error:  # a place of a slider where nothing fits
            print(error, file=sys.stderr)
print(json.dumps(out))
"""
"""Milliseconds of CPU of the first and of the exact answer to up to eight moves of each slider, each from the start."""


def moves(root: Path, scenario: str, cache: str) -> None:
    """Print what moves of a warm scenario take."""
    found = subprocess.run(
        [sys.executable, "-c", MOVES, scenario], cwd=root, env=_environment(root, cache), capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    for key, times in json.loads(found.stdout).items():
        first, exact = zip(*times, strict=True)
        shown = f"{min(first):8.0f} ms (median {statistics.median(first):.0f}, most {max(first):.0f})"
        print(f"{f'move of {scenario}: {key}'[:62]:62s} {shown}, exact {statistics.median(exact):.0f} ms", flush=True)


def _environment(root: Path, cache: str) -> dict[str, str]:
    # An environment that keeps no byte code would compile rlsim's sources in every run: no user's command does.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPATH": str(root), "PYTHONPYCACHEPREFIX": cache}
    return environment | dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


REFERENCE = ("-c", "import numpy, pydantic")


def timed(
    root: Path, words: tuple[str, ...], cache: str, program: tuple[str, ...] = ("-m", "rlsim")
) -> tuple[float, float, float]:
    """CPU seconds, peak gigabytes and seconds by the clock of a run of a checkout's command; cache: for byte code."""
    measure = (
        "import resource, subprocess, sys, time\n"
        "begun = time.perf_counter()\n"
        "code = subprocess.run([sys.executable, *sys.argv[1:]], stdout=subprocess.DEVNULL).returncode\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(code, used.ru_utime + used.ru_stime, used.ru_maxrss, time.perf_counter() - begun)"
    )
    found = subprocess.run(
        [sys.executable, "-c", measure, *program, *words],
        cwd=root,
        env=_environment(root, cache),
        capture_output=True,
        text=True,
        check=True,
    )
    code, seconds, peak, wall = found.stdout.split()
    if int(code):
        raise SystemExit(f"rlsim {' '.join(words)}: exit code {code}\n{found.stderr}")
    return float(seconds), float(peak) * (1 if sys.platform == "darwin" else 1024) / 1e9, float(wall)


def shown(words: tuple[str, ...]) -> str:
    """A command as the table names it."""
    axes = [
        words[place + 1].partition("=")[0].rpartition(".")[2] for place, word in enumerate(words) if word == "--vary"
    ]
    if axes:
        return f"rlsim sweep {words[1]}: 1,000 cells, {' x '.join(axes)}, --jobs {words[-1]}"
    return f"rlsim {' '.join(words)}"


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also a run of 1,000 steps and sweeps of 1,000 cells")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        first, *_ = timed(ROOT, ("project", "quickstart"), cache)
        print(f"{'rlsim project quickstart, first after installation':62s} {first:8.2f} s")
        for words in cases(ROOT, options.all):
            repeats = min(options.repeats, SPARING.get(words[0], options.repeats))
            runs, references = [], []
            for _ in range(repeats):  # in turn, so that both meet the same machine
                references.append(timed(ROOT, (), cache, REFERENCE)[0])
                runs.append(timed(ROOT, words, cache))
            seconds, least = [run[0] for run in runs], min(references)
            ratio, middle = min(seconds) / least, statistics.median(seconds) / statistics.median(references)
            told = f"{min(seconds):8.2f} s {ratio:6.1f}x (median {middle:.1f}x) {max(run[1] for run in runs):6.2f} GB"
            clock = f", {min(run[2] for run in runs):.1f} s by the clock" if words[0] == "sweep" else ""
            print(f"{shown(words):75s} {told}, least of {repeats}{clock}", flush=True)
        for name in ("quickstart", "qwen235b_2048") if options.all else ():
            moves(ROOT, name, cache)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9
    print(f"largest resident memory of all: {peak:.2f} GB")


if __name__ == "__main__":
    main()
