"""Terms of training steps, fitted to measured ones: nonlinear, on the predictions themselves, within physical bounds.

The logarithm of every term has a normal prior around where the fit starts (``start``) and bounds that physics gives it
(``rlsim/parameters/spreads.yaml``); a framework's speed and host time are drawn towards 1. Nothing is of one release,
device or model. Errors beyond a soft bound count less, and the rows of one layout, which releases publish again, count
as one. What is left out is predicted by terms that are linear around the solution.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.optimize import lsq_linear

from rlsim.errors import InputError, RlsimError
from rlsim.evidence import Kind
from rlsim.evidence.rows import named
from rlsim.evidence.tables import SkippedRow, Table, kind_of, measured_value
from rlsim.evidence.training import MEASURED, TrainerRow, trainer_row
from rlsim.parameters.sets import Fitted, load_training_parameters, shipped
from rlsim.parameters.terms import (
    FRAMEWORK_SPREAD,
    MODEL_FRAMEWORK,
    START,
    TRAINING_BOUNDS,
    TRAINING_SPREAD,
    value_of,
)
from rlsim.schema.base import replaced
from rlsim.schema.parameters import ErrorSizes, TrainingFit, TrainingParameters
from rlsim.units import FloatArray

SOFT = 0.08
"""Relative errors beyond this count less and less."""
FEWEST_ROWS = 4
"""Rows that a framework needs for values of its own."""
WIDEST = 2.0
"""Logarithm that factors of a framework may reach either way."""
STEP = 0.02
"""Step of the finite differences in a logarithm."""
ROUNDS, ENOUGH = 12, 1e-3
"""Steps at most, and the share of the loss that the last one gains."""
HELD_OUT_ROUNDS = 6
P90_OF_NORMAL = 1.645
"""90th percentile of a standard normal variable's size."""
GROUPINGS: Mapping[str, Callable[[TrainerRow], str]] = {
    "model on device": lambda row: f"{row.scenario.model.name}, {row.scenario.hardware.name}",
    "model": lambda row: row.scenario.model.name,
    "device": lambda row: row.scenario.hardware.name,
    "release": lambda row: f"{row.framework} {'.'.join((row.release or '').split('.')[:2])}",
    "framework": lambda row: row.framework,
}
"""What is left out as a whole when the fit is scored."""
IN_FIT = "in the fit"


@dataclass(frozen=True)
class _Value:
    """One fitted logarithm: a term, or a factor of a framework."""

    name: str
    framework: str
    spread: float
    start: float
    low: float
    high: float


@dataclass(frozen=True)
class TermFit:
    """Measured steps and the terms to be fitted to them."""

    rows: Sequence[TrainerRow]
    measured_s: FloatArray
    start: TrainingParameters

    @cached_property
    def values(self) -> tuple[_Value, ...]:
        """Terms of all frameworks, then factors of those with enough rows."""
        counts = Counter(row.framework for row in self.rows)
        terms = [
            _Value(name, "", spread, np.log(value_of(self.start, name)), *np.log(TRAINING_BOUNDS[name]))
            for name, spread in TRAINING_SPREAD.items()
        ]
        # Factors are relative to MODEL_FRAMEWORK, whose own are 1: fitting them too would leave the terms undetermined.
        fitted_frameworks = [name for name, rows in counts.items() if rows >= FEWEST_ROWS and name != MODEL_FRAMEWORK]
        factors = [
            _Value(name, framework, spread, 0.0, -WIDEST, WIDEST)
            for framework in fitted_frameworks
            for name, spread in FRAMEWORK_SPREAD.items()
        ]
        return (*terms, *factors)

    @cached_property
    def weights(self) -> FloatArray:
        """Weight of every row: one over the number of rows of its layout."""
        layouts = [_layout(row) for row in self.rows]
        counts = Counter(layouts)
        return np.array([1.0 / counts[layout] for layout in layouts])

    def _column(self, name: str) -> FloatArray:
        return np.array([getattr(value, name) for value in self.values], dtype=np.float64)

    def parameters(self, x: FloatArray) -> TrainingParameters:
        """The set that the logarithms ``x`` stand for, with four digits."""
        fields: dict[str, object] = {"host_cpu_factors": dict(self.start.host_cpu_factors)}
        factors: dict[str, dict[str, float]] = {one.framework: {} for one in self.start.frameworks}
        for value, at in zip(self.values, np.exp(x).tolist(), strict=True):
            name, _, key = value.name.partition(".")
            if value.framework:
                factors[value.framework][name] = _rounded(at)
            elif key:
                fields[name] = {**dict(fields[name]), key: _rounded(at)}  # type: ignore[call-overload]
            else:
                fields[name] = _rounded(at)
        counts = Counter(row.framework for row in self.rows)
        fields["frameworks"] = tuple(
            replaced(one, {**factors[one.framework], "rows": counts[one.framework]}) for one in self.start.frameworks
        )
        return replaced(self.start, fields)

    def errors(self, x: FloatArray, framework: str = "") -> FloatArray:
        """ln(predicted / measured) of every row under ``x``; NaN for those of other frameworks than ``framework``."""
        fitted = shipped(self.parameters(x))
        chosen = [not framework or row.framework == framework for row in self.rows]
        return np.array(
            [
                np.log(row.seconds(fitted) / measured) if used else np.nan
                for row, measured, used in zip(self.rows, self.measured_s, chosen, strict=True)
            ]
        )

    def slopes(self, x: FloatArray, errors: FloatArray) -> FloatArray:
        """Derivatives of the errors, shape (rows, values)."""
        out, low = np.zeros((len(errors), len(x))), self._column("low")
        for column, value in enumerate(self.values):
            # Backward, but forward at the lower bound: no term is priced outside its bounds.
            step = STEP if x[column] - STEP < low[column] else -STEP
            moved = x.copy()
            moved[column] += step
            # A framework's factor moves its own rows alone; NaN marks those not priced again.
            change = self.errors(moved, value.framework) - errors
            out[:, column] = np.where(np.isnan(change), 0.0, change) / step
        return out

    def loss(self, x: FloatArray, errors: FloatArray) -> float:
        """Soft L1 loss of the errors, and the prior's."""
        prior = (x - self._column("start")) / self._column("spread")
        # Squares that grow as the soft L1 loss, in units of SOFT: linear beyond it.
        softened = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + (errors / SOFT) ** 2) - 1))
        return float(self.weights @ softened**2 + prior @ prior)

    def solve(self, tell: Callable[[str], object] = lambda line: None) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Values that fit all rows best, their errors and slopes: Levenberg and Marquardt within the bounds."""
        x = np.clip(self._column("start"), self._column("low"), self._column("high"))
        errors, damping = self.errors(x), 1e-2
        slopes = self.slopes(x, errors)
        for number in range(ROUNDS):
            trial = self.improved(x, errors, slopes, damping=damping)
            after = self.errors(trial)
            gain = 1.0 - self.loss(trial, after) / self.loss(x, errors)
            tell(f"round {number + 1}: median error {100 * np.median(np.abs(np.expm1(after))):.2f} %")
            # After a gain nearer to the Gauss-Newton step, after a loss a shorter one.
            damping = damping / 8 if gain > 0 else damping * 8
            if gain > 0:
                x, errors = trial, after
                slopes = self.slopes(x, errors)
            # A loss does not end the fit: the next, more damped step may gain.
            if 0 <= gain < ENOUGH or damping > 1e3:
                break
        return x, errors, slopes

    def improved(
        self,
        x: FloatArray,
        errors: FloatArray,
        slopes: FloatArray,
        used: FloatArray | None = None,
        damping: float = 0.0,
    ) -> FloatArray:
        """Best values of the problem that is linear around ``x``, with the rows' present weights.

        used: share of each row that counts; damping: weight of staying where ``x`` is, in terms of the prior's.
        """
        start, spread = self._column("start"), self._column("spread")
        # Roots of the weights under which least squares have the soft loss's slope.
        soft = (1 + (errors / SOFT) ** 2) ** -0.25 / SOFT
        weights = np.sqrt(self.weights * (1.0 if used is None else used)) * soft
        matrix = np.vstack([slopes * weights[:, None], np.diag(1 / spread), np.diag(np.sqrt(damping) / spread)])
        wanted = np.concatenate([-errors * weights, (start - x) / spread, np.zeros(len(x))])
        low, high = self._column("low") - x, self._column("high") - x
        # lsq_linear wants room on both sides of a start at a bound; the clip below takes the 1e-9 back.
        found = lsq_linear(matrix, wanted, bounds=(np.minimum(low, -1e-9), np.maximum(high, 1e-9)))
        return np.asarray(np.clip(x + found.x, low + x, high + x))

    def held_out(self, found: tuple[FloatArray, FloatArray, FloatArray], groups: Sequence[str]) -> FloatArray:
        """Errors of every row under values fitted without its group, linear around those that were ``found``."""
        x, errors, slopes = found
        names, out = np.array(groups), np.zeros_like(errors)
        for name in dict.fromkeys(groups):
            used, moved = (names != name).astype(np.float64), x
            for _ in range(HELD_OUT_ROUNDS):
                # Weights of the rows follow the errors that the moved values leave.
                now = errors + slopes @ (moved - x)
                moved = self.improved(moved, now, slopes, used)
            out[names == name] = (errors + slopes @ (moved - x))[names == name]
        return out


def _layout(row: TrainerRow) -> tuple[object, ...]:
    trainer, scenario = row.scenario.trainer, row.scenario
    sizes = trainer.tensor_parallel, trainer.pipeline_parallel, trainer.virtual_stages, trainer.context_parallel
    named = row.framework, scenario.model.name, scenario.hardware.name, scenario.cluster.num_gpus
    more = trainer.expert_parallel, trainer.micro_batch_samples, trainer.precision, trainer.lora_rank
    return (*named, *sizes, *more, scenario.workload.max_sequence_tokens)


def fit_terms(
    paths: Sequence[Path], name: str | None = None, tell: Callable[[str], object] = lambda line: None
) -> TrainingParameters:
    """Terms fitted to the tables of training steps at ``paths``; rows with an objection are left out.

    Raises InputError where a table is none of training steps or too few rows can be priced.
    """
    tables = [Table.read(path) for path in paths]
    for path in paths:
        if kind_of(path) is not Kind.TRAINING:
            raise InputError(f"{path.name}: no table of training steps")
    start = load_training_parameters(START)
    # Rows are chosen once, at the start, so that every round fits the same ones.
    rows, measured = usable_rows(tables, shipped(start))
    if len(rows) < FEWEST_ROWS:
        raise InputError(f"{paths[0].name}: only {len(rows)} rows can be priced; a fit needs at least {FEWEST_ROWS}")
    fit = TermFit(rows, np.array(measured), start)
    tell(f"{len(rows)} rows, {len(fit.values)} values")
    found = fit.solve(tell)
    held = {way: fit.held_out(found, [of(row) for row in rows]) for way, of in GROUPINGS.items()}
    record = TrainingFit(
        command=f"rlsim calibrate training {' '.join(path.name for path in paths)}",
        rows=len(rows),
        data_digest=" ".join(table.digest for table in tables),
        median_error=_sizes(found[1]).median,
        p90_error=_sizes(found[1]).p90,
        families=_families(rows, {IN_FIT: found[1], **held}),
    )
    description = f"Fitted to measured training steps of {', '.join(path.name for path in paths)}, starting from start."
    tuned = np.abs(held["model"])[[row.framework == MODEL_FRAMEWORK for row in rows]]
    spread = _rounded(float(np.quantile(tuned if len(tuned) else np.abs(held["model"]), 0.9)) / P90_OF_NORMAL)
    about = {"name": name or "pretraining", "description": description, "fit": record, "error": spread}
    return replaced(fit.parameters(found[0]), about)


def usable_rows(tables: Sequence[Table], fitted: Fitted) -> tuple[list[TrainerRow], list[float]]:
    """Trainers and measured seconds of the rows of ``tables`` that can be priced and that nothing objects to."""
    rows, measured = [], []
    for table in tables:
        for (_, problem), record in zip(named(table), table.rows, strict=True):
            seconds = measured_value(record.cells, *MEASURED)
            if problem or not seconds:
                continue
            try:
                row = trainer_row(record.cells)
                row.seconds(fitted)
            except (SkippedRow, RlsimError):
                continue
            rows.append(row)
            measured.append(seconds)
    return rows, measured


def _families(rows: Sequence[TrainerRow], errors: Mapping[str, FloatArray]) -> dict[str, dict[str, ErrorSizes]]:
    """Errors of families of models, by what was left out."""
    experts = np.array([row.scenario.model.moe is not None for row in rows])
    tuned = np.array([row.framework == MODEL_FRAMEWORK for row in rows])
    chosen = {
        "all rows": tuned | ~tuned,
        "mixtures of experts, tuned recipes": experts & tuned,
        "dense, tuned recipes": ~experts & tuned,
        "other frameworks": ~tuned,
    }
    return {
        family: {way: _sizes(of[members]) for way, of in errors.items()}
        for family, members in chosen.items()
        if members.any()
    }


def _sizes(errors: FloatArray) -> ErrorSizes:
    sizes = np.abs(np.expm1(errors))
    return ErrorSizes(median=_rounded(float(np.median(sizes))), p90=_rounded(float(np.quantile(sizes, 0.9))))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
