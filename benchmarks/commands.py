"""CPU time and memory of the commands on every shipped scenario: ``python benchmarks/commands.py [--all]``.

Each command runs in a process of its own; printed are the least CPU seconds (user and system, its own processes
included) of some runs, their ratio to the least of ``python -c 'import numpy, pydantic'`` in the same loop (BLAS
threads off in both), the median, and the largest resident memory. What a first run after installation adds (byte code
is compiled and kept) is the difference of the first line. ``--all`` adds a long run, plan, sensitivity and
thousand-cell sweeps.
Results are for comparing: with each other, or by ``benchmarks/compare`` with another revision in the same minutes.
"""

from __future__ import annotations

import argparse
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


def scenarios(root: Path) -> list[str]:
    """Names of the scenarios that a checkout ships."""
    return sorted(path.stem for path in (root / "scenarios").glob("*.yaml"))


def cases(root: Path, everything: bool) -> list[tuple[str, ...]]:
    """Commands to time."""
    short = [("--help",), *(("project", name) for name in scenarios(root))]
    if not everything:
        return short
    return [
        *short,
        ("run", "qwen235b_2048", "--steps", "1000"),
        ("sensitivity", "quickstart"),
        ("plan", "quickstart", "--jobs", "1"),
        ("plan", "qwen235b_512", "--max-staleness", "1", "--jobs", "1"),
        ("sweep", "qwen235b_512", *(word for axis in CELLS for word in ("--vary", axis)), "--jobs", "1"),
        ("sweep", "qwen235b_2048", *(word for axis in CELLS for word in ("--vary", axis)), "--jobs", "1"),
    ]


REFERENCE = ("-c", "import numpy, pydantic")


def timed(
    root: Path, words: tuple[str, ...], cache: str, program: tuple[str, ...] = ("-m", "rlsim")
) -> tuple[float, float]:
    """CPU seconds and peak gigabytes of one run of a checkout's command; cache: folder for its byte code."""
    # An environment that keeps no byte code would compile rlsim's sources in every run: no user's command does.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPATH": str(root), "PYTHONPYCACHEPREFIX": cache}
    environment |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    measure = (
        "import resource, subprocess, sys\n"
        "code = subprocess.run([sys.executable, *sys.argv[1:]], stdout=subprocess.DEVNULL).returncode\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(code, used.ru_utime + used.ru_stime, used.ru_maxrss)"
    )
    found = subprocess.run(
        [sys.executable, "-c", measure, *program, *words],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    code, seconds, peak = found.stdout.split()
    if int(code):
        raise SystemExit(f"rlsim {' '.join(words)}: exit code {code}\n{found.stderr}")
    return float(seconds), float(peak) * (1 if sys.platform == "darwin" else 1024) / 1e9


def shown(words: tuple[str, ...]) -> str:
    """A command as the table names it."""
    return f"rlsim {' '.join(word for word in words if word not in ('--jobs', '1'))}"[:60]


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also a run of 1,000 steps and sweeps of 1,000 cells")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        first, _ = timed(ROOT, ("project", "quickstart"), cache)
        print(f"{'rlsim project quickstart, first after installation':62s} {first:8.2f} s")
        for words in cases(ROOT, options.all):
            repeats = options.repeats if words[0] in ("--help", "project") else 1
            runs, references = [], []
            for _ in range(repeats):  # in turn, so that both meet the same machine
                references.append(timed(ROOT, (), cache, REFERENCE)[0])
                runs.append(timed(ROOT, words, cache))
            seconds, least = [run[0] for run in runs], min(references)
            ratio, middle = min(seconds) / least, statistics.median(seconds) / statistics.median(references)
            figures = (
                f"{min(seconds):8.2f} s {ratio:6.1f}x (median {middle:.1f}x) {max(run[1] for run in runs):6.2f} GB"
            )
            print(f"{shown(words):62s} {figures}", flush=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9
    print(f"largest resident memory of all: {peak:.2f} GB")


if __name__ == "__main__":
    main()
