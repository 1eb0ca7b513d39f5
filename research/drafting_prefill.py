"""What a prefill's host time is multiplied by where SGLang speculates: ``python -m research.drafting_prefill TABLE``.

TABLE: measured iterations with speculating rows of SGLang (decode_iterations.csv). Prints, for each factor, the robust
squares of the logarithms of predicted over measured iterations, their median error and that of first tokens; the
factor of least squares is DRAFTING_PREFILL of rlsim/costs/engine/releases.py.
"""

from __future__ import annotations

import math
import statistics
import sys
from pathlib import Path

from rlsim.costs.engine import releases
from rlsim.evidence.compare import validate_table
from rlsim.results.validation import ComparedRow

FACTORS = (1.0, 1.5, 1.8, 2.0, 2.2, 2.5, 3.0)
ROBUST = 0.15
"""Error of a logarithm from which on it counts by its size and not by its square."""


def squares(errors: list[float]) -> float:
    """Huber's mean loss of errors."""
    losses = (e * e / 2 if abs(e) < ROBUST else ROBUST * (abs(e) - ROBUST / 2) for e in errors)
    return statistics.mean(losses)


def first_token_error(row: ComparedRow) -> float | None:
    """Logarithm of predicted over measured time to the first token; None where it was not measured."""
    predicted, measured = (row.details.get(f"ttft_{name}_ms") for name in ("predicted", "measured"))
    return math.log(predicted / measured) if predicted and measured else None


def main(path: Path) -> None:
    """Print the table of factors."""
    print("factor   squares   iterations   first tokens")
    for factor in FACTORS:
        releases.DRAFTING_PREFILL = factor
        found = [row for row in validate_table(path).rows if row.predicted and row.measured]
        rows = [row for row in found if row.details["engine"] == "sglang" and row.details["speculative"]]
        errors = [math.log(row.predicted / row.measured) for row in rows if row.predicted and row.measured]
        firsts = [abs(error) for row in rows if (error := first_token_error(row)) is not None]
        told = statistics.median(map(abs, errors)), statistics.median(firsts)
        print(f"{factor:6.1f}  {squares(errors):8.4f}  {told[0]:10.1%}  {told[1]:12.1%}   ({len(errors)} rows)")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
