"""Fit of what weight transfers cost beyond their links to measured transfers, over all frameworks and by framework.

All values are positive: their logarithms are fitted, with a wide normal prior around where the fit starts and a
narrower one of each framework around the values over all of them, so that a framework with few rows stays near these.
A measurement that stands in several tables counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.optimize import least_squares

from rlsim.costs.transfer.methods import TransferJob, TransferTerms
from rlsim.errors import InputError
from rlsim.parameters.sets import load_transfer_parameters
from rlsim.parameters.terms import SHARES, START, TRANSFER_FAMILY_SPREAD, TRANSFER_SPREAD
from rlsim.schema.transfer_parameters import TransferFamily, TransferFit, TransferParameters, TransferValues
from rlsim.units import FloatArray
from rlsim.validation.halves import TableRecords
from rlsim.validation.measured import MeasuredTable
from rlsim.validation.scores import robust_deviation
from rlsim.validation.table import read_table
from rlsim.validation.transfer_rows import (
    framework_of,
    measured_s,
    priced_rows,
    transfer_job,
    transfer_s,
    validate_transfers,
)
from rlsim.validation.validate import table_digest

PRIOR_WEIGHT = 0.15
"""Error of a row (share of its time) against which a prior of one deviation counts as much as one row."""
SOFT = 0.3
"""Relative errors beyond this count less and less (soft L1)."""
ASSUMED = ("host_link_share", "pageable_in_bytes_per_s", "copy_s")
"""Values that no table tells apart from others; they stay where the fit starts."""
NEEDED = ("id", "model", "gpu", "method")


@dataclass(frozen=True)
class _Row:
    """One measured transfer that can be priced."""

    cells: Mapping[str, str]
    job: TransferJob
    framework: str
    measured_s: float


@dataclass(frozen=True)
class TransferFitResult:
    """Fitted parameters, the tables behind them compared afterwards, and errors with each framework left out."""

    parameters: TransferParameters
    tables: tuple[MeasuredTable, ...]
    held_out: Mapping[str, FloatArray]

    def held_out_text(self) -> str:
        """Median error and worst ratio of each framework's rows, predicted without them, one line each."""
        lines = ["Each framework predicted without its own rows:"]
        for framework, residuals in self.held_out.items():
            median, worst = np.median(np.abs(np.expm1(residuals))), np.exp(np.abs(residuals).max())
            told = f"{len(residuals)} rows, median error {median:.0%}, worst off by {worst:.1f} times"
            lines.append(f"  {framework}: {told}")
        return "\n".join(lines)

    def to_yaml(self) -> str:
        """The file that ``simulation.transfer_parameters`` can name."""
        return yaml.safe_dump(self.parameters.model_dump(mode="json"), sort_keys=False, width=110)


class _Problem:
    """Logarithms of the values, then of each framework's factors and fixed time."""

    def __init__(self, rows: Sequence[_Row], start: TransferParameters) -> None:
        self.rows, self.start = rows, start
        self.names = [name for name in TransferValues.model_fields if name not in ASSUMED]
        self.families = list(start.names)
        values = [getattr(start.values, name) for name in self.names]
        deviations = [0.0] * len(TRANSFER_FAMILY_SPREAD) * len(self.families)
        self.x0 = np.array([*np.log(values), *deviations])
        spreads = [TRANSFER_SPREAD] * len(values) + [*TRANSFER_FAMILY_SPREAD.values()] * len(self.families)
        self._prior = PRIOR_WEIGHT / np.array(spreads)
        # A share cannot exceed 1; everything else is free.
        self._high = np.array([0.0 if name in SHARES else np.inf for name in self.names] + [np.inf] * len(deviations))

    def parameters(self, x: FloatArray) -> TransferParameters:
        """The start with the values of ``x``."""
        numbers = dict(zip(self.names, np.exp(x[: len(self.names)]).tolist(), strict=True))
        values = self.start.values.model_copy(update=numbers)
        deviations = np.exp(x[len(self.names) :]).reshape(len(self.families), -1).tolist()
        families = tuple(
            family.model_copy(
                update={
                    "link_factor": link,
                    "gather_factor": gather,
                    "host_factor": host,
                    "fixed_s": fixed * values.fixed_s,
                }
            )
            for family, (link, gather, host, fixed) in zip(self.start.families, deviations, strict=True)
        )
        return self.start.model_copy(update={"values": values, "families": families})

    def residuals(self, x: FloatArray, rows: Sequence[_Row] | None = None) -> FloatArray:
        """ln(predicted / measured) of every row."""
        fitted = self.parameters(x)
        terms = {row.framework: TransferTerms.of(fitted, row.framework) for row in self.rows}
        chosen = self.rows if rows is None else rows
        seconds = [transfer_s(row.cells, row.job, terms[row.framework]) / row.measured_s for row in chosen]
        return np.asarray(np.log(seconds), dtype=np.float64)

    def solve(self, rows: Sequence[_Row]) -> tuple[FloatArray, float]:
        """Values that fit ``rows`` best, and how many numbers the rows determine: the trace of the hat matrix."""

        def loss(x: FloatArray) -> FloatArray:
            return np.concatenate([self.residuals(x, rows), self._prior * (x - self.x0)])

        bounds = (np.full(len(self.x0), -np.inf), self._high)
        inside = np.minimum(self.x0, self._high - 1e-6)
        found = least_squares(loss, inside, bounds=bounds, loss="soft_l1", f_scale=SOFT)
        slopes = found.jac[: len(rows)]
        normal = found.jac.T @ found.jac
        return np.asarray(found.x), float(np.trace(slopes @ np.linalg.solve(normal, slopes.T)))

    def held_out(self) -> dict[str, FloatArray]:
        """Residuals of each framework's rows with values fitted without them, by framework."""
        out = {}
        for framework in dict.fromkeys(row.framework for row in self.rows):
            mine = [row for row in self.rows if row.framework == framework]
            x, _ = self.solve([row for row in self.rows if row.framework != framework])
            out[framework] = self.residuals(x, mine)
        return out


def fit_transfers(
    paths: Sequence[Path], name: str | None = None, tell: Callable[[str], None] = lambda line: None
) -> TransferFitResult:
    """Fit transfer parameters to the tables at ``paths`` and score them.

    Raises InputError where a file is no such table or no row of them can be priced.
    """
    start = load_transfer_parameters(START)
    tables = [read_table(path, NEEDED) for path in paths]
    digests = [table_digest(records) for records in tables]
    named = [TableRecords(path.name, digest, rows) for path, digest, rows in zip(paths, digests, tables, strict=True)]
    rows = [
        _Row(record.cells, transfer_job(record.cells)[0], framework_of(record.cells), measured_s(record))
        for record in priced_rows(named, start)
    ]
    if not rows:
        raise InputError(f"{', '.join(path.name for path in paths)}: no row can be priced")
    problem = _Problem(rows, start)
    tell(f"{len(rows)} measured transfers, {len(problem.x0)} values")
    x, determined = problem.solve(rows)
    held = problem.held_out()
    fitted = _parameters(problem, x, held, determined, name or "measured", paths, digests)
    compared = tuple(validate_transfers(one, fitted) for one in named)
    return TransferFitResult(fitted, compared, held)


def _parameters(
    problem: _Problem,
    x: FloatArray,
    held: Mapping[str, FloatArray],
    determined: float,
    name: str,
    paths: Sequence[Path],
    digests: Sequence[str],
) -> TransferParameters:
    """The parameters, rounded to what they are worth, with the record of the fit."""
    found, residuals = problem.parameters(x), problem.residuals(x)
    error, frameworks = np.abs(np.expm1(residuals)), np.array([row.framework for row in problem.rows])
    counts, left_out = Counter(frameworks.tolist()), np.concatenate(list(held.values()))
    values = {key: _rounded(value) for key, value in found.values.model_dump().items()}
    files = " ".join(path.name for path in paths)
    return TransferParameters(
        name=name,
        description=f"Fitted to measured weight transfers of {files}, starting from {problem.start.name}.",
        fit=TransferFit(
            command=f"rlsim calibrate --from-transfers {' --from-transfers '.join(path.name for path in paths)}",
            rows=len(problem.rows),
            values=len(problem.x0),
            determined=_rounded(determined),
            data_digest=" ".join(digests),
            median_error=_rounded(float(np.median(error))),
            p90_error=_rounded(float(np.quantile(error, 0.9))),
            held_out_median_error=_rounded(float(np.median(np.abs(np.expm1(left_out))))),
            held_out_error=_rounded(float(robust_deviation(left_out))),
        ),
        values=TransferValues(**values),
        assumed=ASSUMED,
        families=tuple(
            _family(one, counts[one.framework], error[frameworks == one.framework]) for one in found.families
        ),
        error=min(1.0, _rounded(robust_deviation(residuals))),
    )


def _family(found: TransferFamily, rows: int, error: NDArray[np.float64]) -> TransferFamily:
    numbers = {key: _rounded(getattr(found, key)) for key in TRANSFER_FAMILY_SPREAD}
    median = _rounded(float(np.median(error))) if rows else found.median_error
    return found.model_copy(update={**numbers, "rows": rows, "median_error": median})


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
