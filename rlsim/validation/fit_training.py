"""Fit of the terms of training steps to measured ones, by framework and release.

Values are fitted in their logarithm with a normal prior around where the fit starts; a framework's speed and host time
and a release's are drawn towards 1, so that few rows move them little. Errors beyond a soft bound count less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml
from scipy.optimize import least_squares

from rlsim.errors import InputError, RlsimError
from rlsim.parameters.sets import Fitted, load_training_parameters, shipped
from rlsim.parameters.terms import (
    FRAMEWORK_RELEASE_SPREAD,
    FRAMEWORK_SPREAD,
    MODEL_FRAMEWORK,
    SHARES,
    START,
    TRAINING_SPREAD,
)
from rlsim.report.format import percent
from rlsim.schema.engine_parameters import version_order
from rlsim.schema.training_parameters import TrainingFit, TrainingFramework, TrainingParameters, TrainingRelease
from rlsim.units import FloatArray
from rlsim.validation.halves import TableRecords
from rlsim.validation.measured import MeasuredTable, measured_value
from rlsim.validation.rows import SkippedRow
from rlsim.validation.scores import robust_deviation
from rlsim.validation.table import TableRow, read_table
from rlsim.validation.training_rows import MEASURED, TrainerSetup, predicted_s, trainer_setup, validate_training
from rlsim.validation.validate import table_digest

SOFT = 0.08
"""Relative errors beyond this count less and less."""
FEWEST_ROWS = 4
"""Rows that a framework or release needs for values of its own."""
STEP = 1e-3
"""Step of the finite differences in a logarithm."""
GROUPINGS = ("model", "release", "device", "framework")
"""What is left out as a whole when the fit is scored."""
HELD_OUT_ROUNDS = 6


@dataclass(frozen=True)
class TrainingFitResult:
    """Fitted parameters and how every row compares afterwards."""

    parameters: TrainingParameters
    table: MeasuredTable

    def held_out_text(self) -> str:
        """Median errors on groups left out of the fit, for a terminal."""
        held = self.parameters.fit.held_out_median_error
        return "\n".join(f"left out by {name}: median {percent(error, 1)}" for name, error in held.items())

    def to_yaml(self) -> str:
        """The file that ``simulation.training_parameters`` can name."""
        return yaml.safe_dump(self.parameters.model_dump(mode="json"), sort_keys=False, width=110)


@dataclass(frozen=True)
class _Value:
    """One fitted logarithm: a term, or a factor of a framework or of one of its releases."""

    name: str
    framework: str = ""
    release: str = ""
    spread: float = 1.0

    def concerns(self, setup: TrainerSetup) -> bool:
        if self.framework and self.framework != setup.framework:
            return False
        return not self.release or self.release == _series(setup.release)


class _Problem:
    def __init__(self, setups: Sequence[TrainerSetup], measured_s: FloatArray, start: TrainingParameters) -> None:
        self.setups, self.measured_s, self.start = setups, measured_s, start
        self.shipped = shipped(start)
        frameworks = Counter(setup.framework for setup in setups)
        self.frameworks = {name: rows for name, rows in frameworks.items() if rows >= FEWEST_ROWS}
        releases = Counter((s.framework, _series(s.release)) for s in setups if s.release)
        alone = Counter(framework for framework, _ in releases)
        known = [key for key, rows in releases.items() if rows >= FEWEST_ROWS and alone[key[0]] > 1]
        self.releases = {key: releases[key] for key in sorted(known, key=lambda key: (key[0], version_order(key[1])))}
        self.values = [_Value(name, spread=spread) for name, spread in TRAINING_SPREAD.items()]
        for framework in self.frameworks:
            if framework != MODEL_FRAMEWORK:
                self.values += [_Value(n, framework, spread=s) for n, s in FRAMEWORK_SPREAD.items()]
        for framework, release in self.releases:
            self.values += [_Value(n, framework, release, s) for n, s in FRAMEWORK_RELEASE_SPREAD.items()]
        self.x0 = np.array([np.log(getattr(start, v.name)) if not v.framework else 0.0 for v in self.values])
        shares = [v.name in SHARES for v in self.values]
        self.highest = np.where(shares, 0.0, np.inf)
        self.spread = np.array([value.spread for value in self.values])

    def parameters(self, x: FloatArray) -> TrainingParameters:
        """The set that ``x`` stands for."""
        found = {(v.name, v.framework, v.release): float(np.exp(at)) for v, at in zip(self.values, x, strict=True)}
        terms = {name: found[name, "", ""] for name in TRAINING_SPREAD}
        frameworks = []
        for one in self.start.frameworks:
            rows = sum(setup.framework == one.framework for setup in self.setups)
            releases = tuple(
                TrainingRelease(
                    version=release,
                    rows=count,
                    **{name: _rounded(found[name, framework, release]) for name in FRAMEWORK_RELEASE_SPREAD},
                )
                for (framework, release), count in self.releases.items()
                if framework == one.framework
            )
            own = {name: _rounded(found.get((name, one.framework, ""), 1.0)) for name in FRAMEWORK_SPREAD}
            frameworks.append(TrainingFramework(framework=one.framework, rows=rows, releases=releases, **own))
        rounded = {name: _rounded(value) for name, value in terms.items()}
        return self.start.model_copy(update={**rounded, "frameworks": tuple(frameworks)})

    def residuals(self, x: FloatArray, rows: Sequence[int] | None = None) -> FloatArray:
        """ln(predicted / measured) of ``rows``, by default of all."""
        fitted = replace(self.shipped, training=self.parameters(x))
        chosen = range(len(self.setups)) if rows is None else rows
        return np.array([np.log(predicted_s(self.setups[i], fitted) / self.measured_s[i]) for i in chosen])

    def slopes(self, x: FloatArray) -> FloatArray:
        """Derivatives of the residuals, shape (rows, values); a factor moves the rows of its group alone."""
        base, out = self.residuals(x), np.zeros((len(self.setups), len(x)))
        for column, value in enumerate(self.values):
            rows = [i for i, setup in enumerate(self.setups) if value.concerns(setup)]
            moved = x.copy()
            moved[column] -= STEP * 20
            out[rows, column] = (base[rows] - self.residuals(moved, rows)) / (STEP * 20)
        return out

    def solve(self, tell: Callable[[str], None]) -> FloatArray:
        """Values that fit all rows best."""

        def loss(x: FloatArray) -> FloatArray:
            found = self.residuals(x)
            tell(f"median error {100 * np.median(np.abs(np.expm1(found))):.1f} %")
            return np.concatenate([_softened(found), (x - self.x0) / self.spread])

        def jacobian(x: FloatArray) -> FloatArray:
            slope = _softened_slope(self.residuals(x))[:, None] * self.slopes(x)
            return np.vstack([slope, np.diag(1.0 / self.spread)])

        inside = np.minimum(self.x0, self.highest - 0.01)
        bounds = (np.full_like(inside, -np.inf), self.highest)
        return np.asarray(least_squares(loss, inside, jac=jacobian, bounds=bounds, xtol=1e-5, ftol=1e-5, max_nfev=30).x)

    def held_out(self, x: FloatArray, base: FloatArray, slope: FloatArray, groups: Sequence[str]) -> FloatArray:
        """Residuals of every row with values fitted without its group, taken as linear around ``x``."""
        names, out = np.array(groups), np.zeros_like(base)
        for name in dict.fromkeys(groups):
            used, moved = names != name, np.zeros_like(x)
            for _ in range(HELD_OUT_ROUNDS):
                now = base + slope @ moved
                weight = np.sqrt(_softened(now)[used] / np.where(now[used] == 0, 1.0, now[used]))
                rows = np.vstack([slope[used] * weight[:, None] ** 2, np.diag(1.0 / self.spread)])
                wanted = np.concatenate([-base[used] * weight**2, -(x - self.x0) / self.spread])
                moved = np.linalg.lstsq(rows, wanted, rcond=None)[0]
                moved = np.minimum(x + moved, self.highest) - x
            out[~used] = (base + slope @ moved)[~used]
        return out


def _softened(residuals: FloatArray) -> FloatArray:
    """Residuals whose squares grow as the soft L1 loss: linear beyond SOFT, in units of it."""
    return np.asarray(np.sign(residuals) * np.sqrt(2 * (np.sqrt(1 + (residuals / SOFT) ** 2) - 1)))


def _softened_slope(residuals: FloatArray) -> FloatArray:
    soft = np.abs(_softened(residuals))
    steep = np.abs(residuals) / SOFT**2 / np.sqrt(1 + (residuals / SOFT) ** 2)
    return np.where(soft > 1e-9, steep / np.maximum(soft, 1e-9), 1.0 / SOFT)


def fit_training(
    path: Path, name: str | None = None, tell: Callable[[str], None] = lambda line: None
) -> TrainingFitResult:
    """Fit training parameters to the table of steps at ``path`` and score them; flagged rows are not fitted.

    Raises InputError where the file is no such table or too few rows can be priced.
    """
    records = read_table(path, ("framework", "model", "gpu", "num_gpus", "precision", "gbs", "seq_len"))
    start = load_training_parameters(START)
    setups, measured = _usable(records, shipped(start))
    if len(setups) < FEWEST_ROWS:
        raise InputError(f"{path.name}: only {len(setups)} rows can be priced; a fit needs at least {FEWEST_ROWS}")
    problem = _Problem(setups, np.array(measured), start)
    tell(f"{len(setups)} rows, {len(problem.values)} values")
    x = problem.solve(tell)
    base, slope = problem.residuals(x), problem.slopes(x)
    held = {name: problem.held_out(x, base, slope, [_group(setup, name) for setup in setups]) for name in GROUPINGS}
    digest = table_digest(records)
    fitted = _recorded(problem, x, held, path.name, digest, name or "pretraining")
    return TrainingFitResult(fitted, validate_training(TableRecords(path.name, digest, records), shipped(fitted)))


def _usable(records: Sequence[TableRow], start: Fitted) -> tuple[list[TrainerSetup], list[float]]:
    setups, measured = [], []
    for record in records:
        value = measured_value(record.cells, MEASURED)
        if record.problem or record.cells.get("flag", "") or not value:
            continue
        try:
            setup = trainer_setup(record.cells)
            predicted_s(setup, start)
        except (SkippedRow, RlsimError):
            continue
        setups.append(setup)
        measured.append(value)
    return setups, measured


def _group(setup: TrainerSetup, grouping: str) -> str:
    if grouping == "release":
        return f"{setup.framework} {_series(setup.release)}"
    return str(getattr(setup, grouping))


def _series(release: str | None) -> str:
    """A release without its corrections: 26.02 of 26.02.01."""
    return "" if release is None else ".".join(release.split(".")[:2])


def _recorded(
    problem: _Problem, x: FloatArray, held: dict[str, FloatArray], table: str, digest: str, name: str
) -> TrainingParameters:
    errors = np.abs(np.expm1(problem.residuals(x)))
    record = TrainingFit(
        command=f"rlsim calibrate --from-training {table}",
        rows=len(errors),
        data_digest=digest,
        median_error=_rounded(float(np.median(errors))),
        p90_error=_rounded(float(np.quantile(errors, 0.9))),
        held_out_median_error={
            group: _rounded(float(np.median(np.abs(np.expm1(values))))) for group, values in held.items()
        },
    )
    update = {
        "name": name,
        "description": f"Fitted to measured training steps of {table}, starting from {problem.start.name}.",
        "fit": record,
        "error": _rounded(robust_deviation(held["model"])),
    }
    return problem.parameters(x).model_copy(update=update)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
