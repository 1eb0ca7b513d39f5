"""Fit exchanges of experts over AWS EFA: ``python -m research.exchange_over_efa``.

Two terms for the rows of calibration/published/training_users.csv that ran over it (Megatron-Bridge, MoE): latency of
NCCL's all-to-all, and of DeepEP for each further node. Least mean absolute error of logarithms; then every model is
left out in turn. The spread is the least one of SPREADS whose 90 % intervals hold nine in ten of the left-out steps.
What it prints stands in rlsim/schema/fabrics.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from scipy.optimize import minimize

from rlsim.costs.operators.collectives import Network
from rlsim.evidence.published import published_table
from rlsim.evidence.tables import Row, read_table
from rlsim.evidence.training import TrainerRow, trainer_row
from rlsim.parameters.sets import shipped
from rlsim.results.record import P90_DEVIATIONS
from rlsim.units import FloatArray

START = (2e-3, 2e-3)
"""Seconds."""
SPREADS = tuple(tenth / 10 for tenth in range(1, 16))


def rows() -> list[Row]:
    """Rows over EFA."""
    found = read_table(published_table("training_users.csv"), ("model", "step_time_s"))
    return [record.cells for record in found if record.cells["fabric"]]


def deviations(cells: Sequence[Row], terms: FloatArray, slower: float = 1.0) -> FloatArray:
    """Logarithms of predicted over measured under (alltoall_s, tokens_s)."""
    fitted, out = shipped(), []
    for row in cells:
        trained = trainer_row(row)
        seconds = trained.seconds(fitted, _network(trained, terms, slower))
        out.append(math.log(seconds / float(row["step_time_s"])))
    return np.array(out)


def _network(trained: TrainerRow, terms: FloatArray, slower: float) -> Network:
    alltoall_s, tokens_s = (float(term) * slower for term in terms)
    return replace(trained.network(), alltoall_s=alltoall_s, tokens_s=tokens_s)


def fit(cells: Sequence[Row]) -> FloatArray:
    """Terms of least mean absolute deviation."""
    found = minimize(
        lambda x: float(np.mean(np.abs(deviations(cells, np.exp(x))))), np.log(START), method="Nelder-Mead",
        options={"maxfev": 80, "xatol": 0.05, "fatol": 0.002},
    )  # fmt: skip
    return np.exp(found.x)


def main() -> None:
    """Print the terms, their residual and what left-out models say."""
    cells = rows()
    terms = fit(cells)
    own, left, others = deviations(cells, terms), list[Row](), list[FloatArray]()
    print(f"terms {terms}; median {np.median(np.abs(np.expm1(own))):.3f}, bias {np.median(np.expm1(own)):+.3f}")
    for model in sorted({row["model"] for row in cells}):
        its = [row for row in cells if row["model"] == model]
        others += [fit([row for row in cells if row["model"] != model])] * len(its)
        left += its
        median = np.median(np.abs(np.expm1(deviations(its, others[-1]))))
        print(f"without {model}: {others[-1]}, median {median:.3f}")
    found = np.array([deviations([row], known)[0] for row, known in zip(left, others, strict=True)])
    for spread in SPREADS:
        slower = np.array(
            [deviations([row], known, math.exp(spread))[0] for row, known in zip(left, others, strict=True)]
        )
        held = np.abs(found) <= P90_DEVIATIONS * np.hypot(slower - found, shipped().training.error)
        print(f"spread {spread}: {np.mean(held):.0%} of left-out steps inside")
        if np.mean(held) >= 0.9:
            break


if __name__ == "__main__":
    main()
