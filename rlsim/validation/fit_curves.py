"""Fit of the acceptance process to measured curves: over draft length, over position, and over training steps.

Over draft length and position a series gives the first acceptance and its decay; series of one kind of drafter also
share a decay. Over training steps it gives ``speculation.drift`` twice: its trend, with as many knots as leave-one-out
errors bear, and a line through as few knots as a search finds that stays within a tolerance at every step, which
follows the noise of the run as far as that tolerance asks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from scipy.optimize import least_squares

from rlsim.errors import InputError
from rlsim.files.reading import shown_path
from rlsim.report.style import Style
from rlsim.report.table import table
from rlsim.validation.curve_rows import ACCEPTANCE_BY_K, MOST_DRAFTED, fitted_process
from rlsim.validation.drift_fit import DriftFit, fit_trend, fit_within
from rlsim.validation.rows import SkippedRow, number
from rlsim.validation.table import TableRow, read_table
from rlsim.validation.validate import table_digest
from rlsim.workload.acceptance import two_parameter_rates

BY_POSITION, DRIFT, LENGTH = "acceptance_by_position", "draft_drift", "mean_acceptance_length"
NEEDED = ("curve_kind", "series", "x", "y_name", "y")
FAMILIES = ("eagle3", "eagle", "mtp", "dspark", "suffix", "ngram")
"""Kinds of drafters by the word that names them in a series or its setting."""

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


@dataclass(frozen=True)
class FamilyFit:
    """One decay for all series of a kind of drafter, each with a first acceptance of its own."""

    decay: float
    series: Mapping[str, ProcessFit]


@dataclass(frozen=True)
class FittedCurves:
    """Everything that was fitted to a table. drift: by series its trend and the line within the tolerance."""

    table: str
    digest: str
    draft_length: int
    within_tokens: float
    processes: Mapping[str, ProcessFit]
    families: Mapping[str, FamilyFit]
    drift: Mapping[str, tuple[DriftFit, DriftFit]]

    def text(self, style: Style) -> str:
        """What was found, for a terminal."""
        blocks = []
        if self.processes:
            head = ("acceptance over draft length", "a_1", "decay", "points", "rms tokens", "worst")
            rows = [(name, *_shown(fit)) for name, fit in self.processes.items()]
            rows += [
                (f"{name}, one decay over {len(family.series)} series", *_shown(_pooled(family)))
                for name, family in self.families.items()
            ]
            blocks.append("\n".join(table(head, rows, style)))
        if self.drift:
            courses = [
                (f"{name}: {what}", f"{fit.acceptance_length:.3g}", *_drift_shown(fit, self.within_tokens))
                for name, fits in self.drift.items()
                for what, fit in zip(("trend", f"within {self.within_tokens:g} tokens"), fits, strict=True)
            ]
            beyond = f"steps beyond {self.within_tokens:g}"
            titles = ("acceptance over training steps", "at first", "knots", "points", "rms tokens", "worst", beyond)
            blocks.append("\n".join(table(titles, courses, style)))
        return "\n\n".join(blocks)

    def to_yaml(self) -> str:
        """The fits with their residuals; each ``speculation`` stands as in a scenario."""
        document: dict[str, object] = {
            "table": self.table,
            "data_digest": self.digest,
            "command": f"rlsim calibrate --from-curves {self.table} --draft-length {self.draft_length} "
            f"--within {self.within_tokens:g}",
            "acceptance": {name: _process_document(fit) for name, fit in self.processes.items()},
            "families": {
                name: {
                    "acceptance_decay": family.decay,
                    "series": len(family.series),
                    "rms_tokens": _pooled(family).rms_tokens,
                    "worst_tokens": _pooled(family).worst_tokens,
                }
                for name, family in self.families.items()
            },
            "drift": {
                name: {"trend": trend.as_dict(self.within_tokens), "within": within.as_dict(self.within_tokens)}
                for name, (trend, within) in self.drift.items()
            },
        }
        return yaml.safe_dump(document, sort_keys=False, width=120, default_flow_style=None)


def fit_curves(path: Path, draft_length: int = 3, within_tokens: float = 0.1) -> FittedCurves:
    """Fit every curve of a table that says something of acceptance; rows of other kinds are left alone.

    draft_length: drafted tokens of the runs whose acceptance is given over training steps. within_tokens: tolerance of
    the second fit to these. Raises InputError with file and line where a row cannot be, or nothing can be fitted.
    """
    records = read_table(path, NEEDED)
    by_k, positions, drifts = (_series(path, records, kind) for kind in (ACCEPTANCE_BY_K, BY_POSITION, DRIFT))
    lengths = {name: [(int(k), length) for k, length in points] for name, points in by_k.items()}
    lengths |= {name: _lengths_of(path, name, points) for name, points in positions.items()}
    lengths = {name: points for name, points in lengths.items() if len({k for k, _ in points}) >= 2}
    if not lengths and not drifts:
        raise InputError(
            f"{shown_path(path)}: holds no curve of acceptance; curve_kind {ACCEPTANCE_BY_K} or {BY_POSITION} with two "
            f"or more points, or {DRIFT} with y_name {LENGTH}, is needed"
        )
    for name, points in drifts.items():
        _check_reach(path, name, points, draft_length)
    return FittedCurves(
        shown_path(path),
        table_digest(records),
        draft_length,
        within_tokens,
        {name: _process(points, *fitted_process(points)[0]) for name, points in lengths.items()},
        _families(records, lengths),
        {
            name: (fit_trend(points, draft_length), fit_within(points, draft_length, within_tokens))
            for name, points in drifts.items()
        },
    )


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
            told = str(reason).removeprefix(f"line {record.line} ")
            raise InputError(f"{shown_path(path)}: line {record.line}: {told}") from None
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
    off = [1.0 + float(two_parameter_rates(first, decay, k).sum()) - length for k, length in points]
    return ProcessFit(
        round(first, 4), round(decay, 4), len(points), _rounded(math.sqrt(float(np.mean(np.square(off))))),
        _rounded(max(map(abs, off))),
    )  # fmt: skip


def _family(name: str, records: Sequence[TableRow]) -> str | None:
    """Kind of drafter that a series or its setting names."""
    told = [name, *(row.cells.get("setting", "") for row in records if row.cells.get("series") == name)]
    for text in told:
        plain = text.lower().replace("-", "").replace("_", "").replace(" ", "")
        found = next((family for family in FAMILIES if family in plain), None)
        if found:
            return found
    return None


def _families(records: Sequence[TableRow], lengths: Mapping[str, Lengths]) -> dict[str, FamilyFit]:
    """A decay for each kind of drafter with two series or more."""
    members: dict[str, list[str]] = {}
    for name in lengths:
        family = _family(name, records)
        if family is not None:
            members.setdefault(family, []).append(name)
    return {
        family: _fit_family({name: lengths[name] for name in names})
        for family, names in members.items()
        if len(names) > 1
    }


def _fit_family(series: Mapping[str, Lengths]) -> FamilyFit:
    def off(parameters: np.typing.NDArray[np.float64]) -> list[float]:
        return [
            math.log((1.0 + float(two_parameter_rates(first, parameters[0], k).sum())) / length)
            for first, points in zip(parameters[1:].tolist(), series.values(), strict=True)
            for k, length in points
        ]

    size = len(series)
    found = least_squares(off, [0.95] + [0.8] * size, bounds=([0.3] + [0.0] * size, [1.0] * (size + 1)))
    decay, *firsts = found.x.tolist()
    pairs = zip(firsts, series.items(), strict=True)
    return FamilyFit(round(decay, 4), {name: _process(points, first, decay) for first, (name, points) in pairs})


def _pooled(family: FamilyFit) -> ProcessFit:
    """All series of a family in one line; the first acceptance is their mean."""
    fits = list(family.series.values())
    points = sum(fit.points for fit in fits)
    square = sum(fit.points * fit.rms_tokens**2 for fit in fits) / points
    first = sum(fit.first for fit in fits) / len(fits)
    worst = max(fit.worst_tokens for fit in fits)
    return ProcessFit(round(first, 4), family.decay, points, _rounded(math.sqrt(square)), worst)


def _process_document(fit: ProcessFit) -> dict[str, object]:
    return {
        "speculation": {"first_acceptance": fit.first, "acceptance_decay": fit.decay},
        "points": fit.points,
        "rms_tokens": fit.rms_tokens,
        "worst_tokens": fit.worst_tokens,
    }


def _shown(fit: ProcessFit) -> tuple[str, ...]:
    return f"{fit.first:.3f}", f"{fit.decay:.3f}", str(fit.points), f"{fit.rms_tokens:.3f}", f"{fit.worst_tokens:.3f}"


def _drift_shown(fit: DriftFit, within_tokens: float) -> tuple[str, ...]:
    beyond = str(fit.beyond(within_tokens))
    return str(len(fit.steps)), str(len(fit.off_tokens)), f"{fit.rms_tokens:.3f}", f"{fit.worst_tokens:.3f}", beyond


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
