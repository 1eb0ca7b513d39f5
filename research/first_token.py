"""What a client's time to the first token holds besides the engine's, fitted to closed loops.

Run by hand: ``python -m research.first_token decode_iterations.csv``. Decode iterations and seconds of a prompt token
(CLIENT_ITERATIONS and CLIENT_TOKEN_S of :mod:`rlsim.evidence.iterations`) are added to what the simulation of each loop
gives, least squares of the logarithm with a loss that grows slowly for outliers; rows that queue, off by more than a
factor of MOST with the values of now, are left aside. Printed: the two, errors as fitted and with every engine, model,
device and source left out, and by what the engine's own time would be multiplied if it were free.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from rlsim.evidence import Kind
from rlsim.evidence.compare import validate_table
from rlsim.evidence.engines import load_of
from rlsim.evidence.iterations import CLIENT_ITERATIONS, CLIENT_TOKEN_S
from rlsim.evidence.tables import Row, Table
from rlsim.results.validation import ComparedRow
from rlsim.units import FloatArray

MOST = 5.0
NOISE = 0.02
"""Error in the logarithm from which on the loss grows slowly."""
LEFT_OUT = ("engine", "model", "gpu", "source")


def parts_of(row: ComparedRow, cells: Row) -> tuple[float, ...]:
    """Milliseconds measured and of the engine, of an iteration and of encoding all prompt tokens in 1 us each."""
    measured, predicted, step = (
        float(row.details[name] or 0.0) for name in ("ttft_measured_ms", "ttft_predicted_ms", "step_predicted_ms")
    )
    load = load_of(cells)
    encoded = 1e-3 * load.mean_share * load.prompt_tokens
    return measured, predicted - CLIENT_ITERATIONS * step - 1e6 * CLIENT_TOKEN_S * encoded, step, encoded


def fitted(parts: FloatArray, columns: tuple[int, ...] = (2, 3)) -> FloatArray:
    """Factors on ``columns`` of parts, which are added to the engine's time unless that is one of them."""

    def lost(factors: FloatArray) -> FloatArray:
        return np.asarray(np.arcsinh(_log_error(parts, columns, factors) / NOISE))

    return np.asarray(least_squares(lost, np.ones(len(columns)), bounds=(0.0, np.inf)).x)


def _log_error(parts: FloatArray, columns: tuple[int, ...], factors: FloatArray) -> FloatArray:
    engine = 0.0 if 1 in columns else parts[:, 1]
    return np.asarray(np.log(np.maximum(engine + parts[:, columns] @ factors, 1.0) / parts[:, 0]))


def _told(log_error: FloatArray) -> str:
    error = np.expm1(log_error)
    return f"{100 * np.median(np.abs(error)):.1f} % off in the median, bias {100 * np.median(error):+.1f} %"


def main(path: Path) -> None:
    """Print the fit to the closed loops of the table at ``path``."""
    table = Table.read(path, Kind.ITERATIONS)
    both = zip(validate_table(path, Kind.ITERATIONS).rows, table.rows, strict=True)
    served = [(row, one.cells) for row, one in both if row.predicted is not None and row.details["ttft_measured_ms"]]
    parts = np.array([parts_of(*one) for one in served])
    now = _log_error(parts, (2, 3), np.array([CLIENT_ITERATIONS, 1e6 * CLIENT_TOKEN_S]))
    kept = np.abs(now) < np.log(MOST)
    print(f"{len(parts)} loops, with the values of now {_told(now)}; {kept.sum()} of them are fitted")
    parts, cells = parts[kept], [one for (_, one), used in zip(served, kept, strict=True) if used]
    found = fitted(parts)
    print(f"{found[0]:.2f} iterations, {found[1]:.2f} us a prompt token: {_told(_log_error(parts, (2, 3), found))}")
    for name in LEFT_OUT:
        of, errors = np.array([one.get(name, "") for one in cells]), np.empty(len(parts))
        for group in set(of.tolist()):
            mine = of == group
            errors[mine] = _log_error(parts[mine], (2, 3), fitted(parts[~mine]))
        print(f"each {name} left out: {_told(errors)}")
    print(f"the engine's own time would count {fitted(parts, (1, 2, 3))[0]:.2f} times")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
