"""``python -m rlsim.calibration.measure --device cuda --out DIR``: measure a device with torch, numpy and the
standard library only.

Exit code 0: complete. 2: something the user can mend, in one message; what was measured is kept and the same command
continues.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rlsim.errors import InputError, RlsimError

_NO_TORCH = (
    "measuring needs torch and numpy, which are not both installed here; "
    "install them (pip install torch numpy) or run inside a training container"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of the measuring program; returns the exit code."""
    parser = argparse.ArgumentParser(prog="rlsim.calibration.measure", description="Measure a device for rlsim.")
    parser.add_argument("--device", required=True, help="cpu, cuda or cuda:N")
    parser.add_argument("--out", required=True, type=Path, help="folder of the journal and measurements.json")
    parser.add_argument("--quick", action="store_true", help="about a minute instead of about ten")
    parser.add_argument("--restart", action="store_true", help="forget what an interrupted run measured")
    chosen = parser.parse_args(arguments)
    try:
        print(measure_device(chosen.device, chosen.out, chosen.quick, resume=not chosen.restart))
    except RlsimError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept, run the same command again to continue", file=sys.stderr)
        return 2
    return 0


def measure_device(device: str, out: Path, quick: bool, resume: bool = True, progress: bool | None = None) -> str:
    """Measure ``device`` into ``out`` and return the summary; see :func:`rlsim.calibration.runner.run`."""
    if device == "cpu":
        _let_waiting_threads_sleep()
    try:
        from rlsim.calibration import runner
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy"):
            raise
        raise InputError(_NO_TORCH) from error
    from rlsim.calibration.selfcheck import check_file, check_text

    outcome = runner.run(device, out, quick, resume=resume, progress=progress)
    return f"{runner.outcome_text(outcome)}\n\n{check_text(check_file(outcome.path))}"


def _let_waiting_threads_sleep() -> None:
    """Threads that spin at a barrier make a shared CPU tens of times slower; OpenMP reads this when torch is loaded."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


if __name__ == "__main__":
    sys.exit(main())
