"""Time and error of ``rlsim validate --published``; prints, never fails: ``python benchmarks/validate.py``."""

from __future__ import annotations

import time

from rlsim.report.style import Style
from rlsim.validation.published import group_table, run_published
from rlsim.validation.study import published_table
from rlsim.validation.text import summary
from rlsim.validation.validate import validate


def main() -> None:
    """Step times alone, then everything published."""
    start = time.perf_counter()
    steps = validate(published_table("rl_steps.csv"))
    seconds = time.perf_counter() - start
    print(f"published steps: {seconds:.1f} s for {len(steps.scored)} simulated rows")
    print(summary(steps))
    start = time.perf_counter()
    answer = run_published()
    print(f"\neverything published: {time.perf_counter() - start:.1f} s")
    print(group_table(answer.compared(), Style()))


if __name__ == "__main__":
    main()
