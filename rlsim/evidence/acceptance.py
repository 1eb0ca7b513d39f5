"""Fit of the acceptance process to measured curves: over draft length, over position, and over training steps.

Over draft length and position a series gives the first acceptance and its decay. Over training steps it gives the trend
of ``speculation.drift``: a broken line in the logit of conditional acceptance with as many knots as leave-one-out
errors bear.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from rlsim.datafiles import shown_path
from rlsim.errors import InputError
from rlsim.evidence.curves import ACCEPTANCE_BY_K, MOST_DRAFTED, acceptance_length, fitted_process
from rlsim.evidence.tables import SkippedRow, TableRow, number, read_table, table_digest
from rlsim.schema.acceptance import MAX_LOGIT, Drift
from rlsim.schema.speculation import Speculation
from rlsim.workload.acceptance import Acceptance, acceptance_of, moved_rates
from rlsim.workload.acceptance_steps import acceptance_at

FloatArray = NDArray[np.float64]
MOST_TREND_KNOTS = 12
ROUNDS = 4
"""Fits in turn with the acceptance of the first step, on which the moves of all others rest."""
SLACK = 1e-9
MOVES = np.linspace(-MAX_LOGIT, MAX_LOGIT, 8001)
"""Moves of the logit between which lengths are inverted: a step of 0.0025 leaves less than 1e-6 tokens."""
NO_BETTER = 0.01
"""Share by which a leave-one-out error must fall for a further knot."""
MARGIN = 1e-4
"""Tokens by which the line keeps off the tolerance, so that rounding does not carry it beyond."""
BY_POSITION, DRIFT, LENGTH = "acceptance_by_position", "draft_drift", "mean_acceptance_length"
NEEDED = ("curve_kind", "series", "x", "y_name", "y")
Points = list[tuple[float, float]]
Lengths = list[tuple[int, float]]
"""Acceptance lengths by drafted tokens."""


@dataclass(frozen=True)
class ProcessFit:
    """First acceptance and decay of a series, and how far its acceptance lengths lie from them in tokens."""

    first: float
    decay: float
    points: int
    rms_tokens: float
    worst_tokens: float

    def as_dict(self) -> dict[str, object]:
        """For a YAML file."""
        return {
            "speculation": {"first_acceptance": self.first, "acceptance_decay": self.decay},
            "points": self.points,
            "rms_tokens": self.rms_tokens,
            "worst_tokens": self.worst_tokens,
        }


@dataclass(frozen=True)
class DriftFit:
    """``speculation`` of a fitted course, and its deviation from every point in tokens.

    steps, logit_shift: knots. error_tokens: leave-one-out root mean square of a trend; None of a line that was made to
    stay within a tolerance.
    """

    draft_length: int
    acceptance_length: float
    steps: tuple[float, ...]
    logit_shift: tuple[float, ...]
    off_tokens: tuple[float, ...]
    error_tokens: float | None = None

    @property
    def points(self) -> int:
        """Number of points of the course."""
        return len(self.off_tokens)

    @property
    def speculation(self) -> Speculation:
        """The fitted course as a scenario states it."""
        return _speculation(self.draft_length, self.acceptance_length, self.steps, self.logit_shift)

    @property
    def worst_tokens(self) -> float:
        """Largest deviation."""
        return max(map(abs, self.off_tokens))

    @property
    def rms_tokens(self) -> float:
        """Root mean square of the deviations."""
        return math.sqrt(sum(off * off for off in self.off_tokens) / len(self.off_tokens))

    def as_dict(self) -> dict[str, object]:
        """For a YAML file."""
        drift = {"steps": list(self.steps), "logit_shift": list(self.logit_shift)}
        out: dict[str, object] = {
            "speculation": {
                "draft_length": self.draft_length,
                "acceptance_length": self.acceptance_length,
                **({"drift": drift} if self.steps else {}),
            },
            "parameters": 1 + max(0, len(self.steps) - 1),
            "points": self.points,
            "rms_tokens": round(self.rms_tokens, 4),
            "worst_tokens": round(self.worst_tokens, 4),
        }
        return out if self.error_tokens is None else {**out, "left_out_rms_tokens": round(self.error_tokens, 4)}


@dataclass(frozen=True)
class FittedCurves:
    """Everything that was fitted to a table, by series. drift: trends over training steps."""

    table: str
    digest: str
    draft_length: int
    processes: Mapping[str, ProcessFit]
    drift: Mapping[str, DriftFit]

    def to_yaml(self) -> str:
        """The fits with their residuals; each ``speculation`` stands as in a scenario."""
        document: dict[str, object] = {
            "table": self.table,
            "data_digest": self.digest,
            "command": f"rlsim calibrate curves {self.table} --draft-length {self.draft_length}",
            "acceptance": {name: fit.as_dict() for name, fit in self.processes.items()},
            "drift": {name: {"trend": fit.as_dict()} for name, fit in self.drift.items()},
        }
        return yaml.safe_dump(document, sort_keys=False, width=120, default_flow_style=None)


def fit_curves(path: Path, draft_length: int = 3) -> FittedCurves:
    """Fit every curve of a table that says something of acceptance; rows of other kinds are left alone.

    draft_length: drafted tokens of the runs whose acceptance is given over training steps. Raises InputError with file
    and line where a row cannot be, or nothing can be fitted.
    """
    records = read_table(path, NEEDED)
    lengths, drifts = read_curves(path, records)
    for name, points in drifts.items():
        _check_reach(path, name, points, draft_length)
    processes = {name: _process(points, *fitted_process(points)[0]) for name, points in lengths.items()}
    trends = {name: fit_trend(points, draft_length) for name, points in drifts.items()}
    return FittedCurves(shown_path(path), table_digest(records), draft_length, processes, trends)


def read_curves(path: Path, records: Sequence[TableRow]) -> tuple[dict[str, Lengths], dict[str, Points]]:
    """By series: acceptance lengths over drafted tokens, and over training steps. InputError where there are none."""
    by_k, positions, drifts = (_series(path, records, kind) for kind in (ACCEPTANCE_BY_K, BY_POSITION, DRIFT))
    lengths = {name: [(int(k), length) for k, length in points] for name, points in by_k.items()}
    lengths |= {name: _lengths_of(path, name, points) for name, points in positions.items()}
    lengths = {name: points for name, points in lengths.items() if len({k for k, _ in points}) >= 2}
    if not lengths and not drifts:
        raise InputError(
            f"{shown_path(path)}: holds no curve of acceptance; curve_kind {ACCEPTANCE_BY_K} or {BY_POSITION} with two "
            f"or more points, or {DRIFT} with y_name {LENGTH}, is needed"
        )
    return lengths, drifts


def _series(path: Path, records: Sequence[TableRow], kind: str) -> dict[str, Points]:
    """Points of the series of one kind, in the order of their x."""
    out: dict[str, Points] = {}
    for record in records:
        cells = record.cells
        if cells.get("curve_kind") != kind or (kind == DRIFT and cells.get("y_name") != LENGTH):
            continue
        try:
            if record.problem:
                raise SkippedRow(record.problem)
            if not cells["series"]:
                raise SkippedRow("series is not given")
            x, y = number(cells, "x"), number(cells, "y")
            _check_point(kind, x, y)
        except SkippedRow as reason:
            wrong = str(reason).removeprefix(f"line {record.line} ")
            raise InputError(f"{shown_path(path)}: line {record.line}: {wrong}") from None
        out.setdefault(cells["series"], []).append((x, y))
    return {name: sorted(points) for name, points in out.items()}


def _check_point(kind: str, x: float, y: float) -> None:
    if kind != DRIFT and (x % 1 or not 1 <= x <= MOST_DRAFTED):
        raise SkippedRow(f"x must be a whole number of drafted tokens or a position, 1 to {MOST_DRAFTED}; got {x:g}")
    if kind == ACCEPTANCE_BY_K and not 1 <= y <= x + 1:
        raise SkippedRow(f"y must be an acceptance length from 1 to x + 1 = {x + 1:g}; got {y:g}")
    if kind == BY_POSITION and y > 1:
        raise SkippedRow(f"y must be a cumulative acceptance rate from 0 to 1; got {y:g}")
    if kind == DRIFT and y < 1:
        raise SkippedRow(f"y must be an acceptance length of at least 1; got {y:g}")


def _check_reach(path: Path, name: str, points: Points, draft_length: int) -> None:
    most = max(y for _, y in points)
    if most > draft_length + 1:
        raise InputError(
            f"{shown_path(path)}: series {name[:60]} reaches an acceptance length of {most:g}, more than "
            f"--draft-length {draft_length} allows ({draft_length + 1}); give the run's --draft-length"
        )


def _lengths_of(path: Path, name: str, points: Points) -> Lengths:
    """Acceptance lengths over draft length from cumulative rates of positions 1, 2, ..."""
    if [position for position, _ in points] != list(range(1, len(points) + 1)):
        raise InputError(f"{shown_path(path)}: series {name[:60]} needs every position from 1 on, each once")
    sums = 1.0 + np.cumsum([rate for _, rate in points])
    return [(k, float(length)) for k, length in enumerate(sums, start=1)]


def _process(points: Lengths, first: float, decay: float) -> ProcessFit:
    off = [acceptance_length(first, decay, k) - length for k, length in points]
    return ProcessFit(
        round(first, 4), round(decay, 4), len(points), _rounded(math.sqrt(float(np.mean(np.square(off))))),
        _rounded(max(map(abs, off))),
    )  # fmt: skip


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def fit_trend(points: Points, draft_length: int) -> DriftFit:
    """Least squares in the logit with 1 to MOST_TREND_KNOTS equally spaced knots, as many as have the least
    leave-one-out error; a knot needs three points."""
    steps, lengths = columns_of(points)
    counts = range(1, max(1, min(MOST_TREND_KNOTS, np.unique(steps).size // 3)) + 1)
    fits = [_trend(steps, lengths, draft_length, count) for count in counts]
    least = min(fit.error_tokens or 0.0 for fit in fits)
    return next(fit for fit in fits if (fit.error_tokens or 0.0) <= least * (1 + NO_BETTER) + MARGIN)


def _trend(steps: FloatArray, lengths: FloatArray, draft_length: int, count: int) -> DriftFit:
    knots = np.linspace(steps[0], steps[-1], count) if count > 1 else steps[:1]
    start, points = float(lengths.mean()), list(zip(steps.tolist(), lengths.tolist(), strict=True))
    fit, error = None, 0.0
    for _ in range(ROUNDS):
        base = base_acceptance(start, draft_length)
        basis, moves = basis_of(steps, knots), moves_of(base, lengths)
        hat = basis @ np.linalg.pinv(basis)
        off = (moves - hat @ moves) / np.maximum(1.0 - np.diag(hat), SLACK)
        slope = (base.moved(0.01).mean - base.moved(-0.01).mean) / 0.02
        error = slope * float(np.sqrt(np.mean(off**2)))
        fit = emitted(points, draft_length, base, knots, np.linalg.pinv(basis) @ moves, error)
        start = fit.acceptance_length
    assert fit is not None
    return fit


def columns_of(points: Points) -> tuple[FloatArray, FloatArray]:
    steps, lengths = np.array(sorted(points), dtype=np.float64).T
    return steps, lengths


def base_acceptance(acceptance_length: float, draft_length: int) -> Acceptance:
    return acceptance_of(_speculation(draft_length, acceptance_length))


def _speculation(
    draft_length: int, acceptance_length: float, steps: tuple[float, ...] = (), shifts: tuple[float, ...] = ()
) -> Speculation:
    drift = Drift(steps=steps, logit_shift=shifts) if steps else None
    return Speculation(method="eagle3", draft_length=draft_length, acceptance_length=acceptance_length, drift=drift)


def moves_of(base: Acceptance, lengths: FloatArray) -> FloatArray:
    """Moves of the logit that give these acceptance lengths, or come nearest to them."""
    return np.interp(lengths, 1.0 + moved_rates(base, MOVES).sum(axis=1), MOVES)


def basis_of(steps: FloatArray, knots: FloatArray) -> FloatArray:
    """Values of a broken line at ``steps`` from those at its knots, shape (steps, knots)."""
    return np.column_stack([np.interp(steps, knots, one) for one in np.eye(len(knots))])


def emitted(
    points: Points,
    draft_length: int,
    base: Acceptance,
    knots: FloatArray,
    values: FloatArray,
    error_tokens: float | None = None,
) -> DriftFit:
    """The fit as it is written, rounded, with the deviations of exactly that."""
    length = round(base.moved(float(values[0])).mean, 4)
    steps: tuple[float, ...] = ()
    shifts: tuple[float, ...] = ()
    if len(knots) > 1:
        steps = tuple(round(float(step), 2) for step in knots)
        shifts = tuple(round(float(value - values[0]), 4) for value in values)
    found = _speculation(draft_length, length, steps, shifts)
    off = tuple(_at(found, step) - measured for step, measured in sorted(points))
    return DriftFit(draft_length, length, steps, shifts, off, error_tokens)


def _at(speculation: Speculation, step: float) -> float:
    """Acceptance length at a step, between whole ones interpolated."""
    whole = math.floor(step)
    below, above = (acceptance_at(speculation, number).mean for number in (whole, math.ceil(step)))
    return below + (step - whole) * (above - below)
