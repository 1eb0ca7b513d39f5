"""``python -m bench run cases.json --out DIR``: measure a device with torch and numpy only.

Exit code 0: complete, or as far as ``--budget`` went. 2: something the user can mend, in one message; what was measured
is kept. After either the same command continues.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import BenchError
from bench.cases import CaseList, read_cases

_NO_TORCH = (
    "measuring needs torch and numpy, which are not both installed here; "
    "install them (pip install torch numpy) or run inside a training container"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of the measuring program; returns the exit code."""
    started = time.monotonic()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if any(word.partition("=")[0] == "--cases" for word in given):
        print("error: --cases is gone: python -m bench run cases.json --out DIR [--device DEVICE]", file=sys.stderr)
        return 2
    chosen = _parser().parse_args(given)
    try:
        wanted, resume = read_cases(chosen.cases), not chosen.restart
        print(measure(wanted, chosen.device, chosen.out, resume, budget_s=chosen.budget, started=started))
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept, run the same command again to continue", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure a device for rlsim.")
    run = parser.add_subparsers(required=True).add_parser("run", help="measure a list of cases")
    run.add_argument("cases", type=Path, help="what to measure; rlsim calibrate cases writes it")
    run.add_argument("--out", required=True, type=Path, help="folder of the journal and measurements.json")
    run.add_argument("--device", default="cuda", help="cpu, cuda or cuda:N; default: cuda")
    run.add_argument("--budget", type=_seconds, help="most seconds of this call; the next goes on")
    run.add_argument("--restart", action="store_true", help="forget what an interrupted run measured")
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and seconds > 0):
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got '{text[:40]}'")
    return seconds


def measure(
    wanted: CaseList,
    device: str,
    out: Path,
    resume: bool = True,
    progress: bool | None = None,
    budget_s: float | None = None,
    started: float | None = None,
) -> str:
    """Measure ``wanted`` on ``device`` into ``out`` and return the summary; see :func:`bench.run.run`."""
    if device == "cpu":
        # Threads that spin at a barrier make a shared CPU tens of times slower; OpenMP reads this as torch is loaded.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from bench import run
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy"):
            raise
        raise BenchError(_NO_TORCH) from error
    return run.report_text(run.run(wanted, device, out, resume, progress, budget_s, started))


if __name__ == "__main__":
    sys.exit(main())
