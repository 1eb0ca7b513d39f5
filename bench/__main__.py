"""``python -m bench --cases cases.json --device cuda --out DIR``: measure a device with torch and numpy only.

Exit code 0: complete. 2: something the user can mend, in one message; what was measured is kept and the same command
continues.
"""

from __future__ import annotations

import argparse
import os
import sys
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
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure a device for rlsim.")
    parser.add_argument("--cases", required=True, type=Path, help="what to measure; rlsim calibrate --cases writes it")
    parser.add_argument("--device", required=True, help="cpu, cuda or cuda:N")
    parser.add_argument("--out", required=True, type=Path, help="folder of the journal and measurements.json")
    parser.add_argument("--restart", action="store_true", help="forget what an interrupted run measured")
    chosen = parser.parse_args(arguments)
    try:
        print(measure(read_cases(chosen.cases), chosen.device, chosen.out, resume=not chosen.restart))
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept, run the same command again to continue", file=sys.stderr)
        return 2
    return 0


def measure(wanted: CaseList, device: str, out: Path, resume: bool = True, progress: bool | None = None) -> str:
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
    return run.report_text(run.run(wanted, device, out, resume=resume, progress=progress))


if __name__ == "__main__":
    sys.exit(main())
