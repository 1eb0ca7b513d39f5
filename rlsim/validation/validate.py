"""validate(): every row of a table of measured steps beside its prediction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlsim.errors import InputError, RlsimError
from rlsim.projection.project import project
from rlsim.results import PHASES, Variant
from rlsim.schema.scenario import Scenario
from rlsim.validation.rows import NEEDED, SkippedRow, number, scenario_of
from rlsim.validation.scores import Score, half_width, scores_by_group, short
from rlsim.validation.table import TableRow, read_table, write_table

if TYPE_CHECKING:
    from pandas import DataFrame

Progress = Callable[[int, int], None]
PARALLEL_COLUMNS = ("gen_tp", "gen_pp", "gen_ep", "train_tp", "train_cp", "train_ep", "train_pp")
"""Parallel sizes; a table without such a column is taken to mean 1, and says so."""


@dataclass(frozen=True)
class PhaseError:
    """One phase of one row in seconds; ``measured_s`` is None where it was not published."""

    predicted_s: float
    measured_s: float | None = None

    @property
    def error_pct(self) -> float | None:
        """100 (predicted / measured - 1)."""
        return _error_pct(self.predicted_s, self.measured_s) if self.measured_s else None


@dataclass(frozen=True)
class RowResult:
    """A measured step beside its prediction, or the reason why it was skipped.

    low_s, high_s: 90 % interval of the prediction. model, device, release, mode: what the row ran, as its table says.
    phases: by contract name (``generation_s``...).
    """

    id: str
    model: str = ""
    device: str = ""
    release: str = ""
    mode: str = ""
    measured_s: float | None = None
    predicted_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    skipped: str | None = None
    phases: Mapping[str, PhaseError] | None = None

    @property
    def group(self) -> str:
        """What the row is scored together with: model, device and mode."""
        return ", ".join(name for name in (self.model.split("/")[-1], self.device, self.mode) if name)

    @property
    def predicted(self) -> float | None:
        """The predicted step in seconds."""
        return self.predicted_s

    @property
    def measured(self) -> float | None:
        """The measured step in seconds."""
        return self.measured_s

    @property
    def error_pct(self) -> float | None:
        """100 (predicted / measured - 1), None for a skipped row."""
        return _error_pct(self.predicted_s, self.measured_s) if self.predicted_s and self.measured_s else None

    @property
    def covered(self) -> bool | None:
        """Whether the measured step lies inside the interval, None for a skipped row."""
        if self.measured_s is None or self.low_s is None or self.high_s is None:
            return None
        return self.low_s <= self.measured_s <= self.high_s

    @property
    def half_width(self) -> float | None:
        """Factor that the interval reaches either way."""
        return half_width(self.low_s, self.high_s)

    def as_dict(self) -> dict[str, object]:
        """The contract's form."""
        phases = {
            name: {"predicted": short(p.predicted_s), "measured": p.measured_s, "error_pct": short(p.error_pct)}
            for name, p in (self.phases or {}).items()
        }
        return {
            "id": self.id,
            "group": self.group,
            "measured_s": short(self.measured_s),
            "predicted_s": short(self.predicted_s),
            "error_pct": short(self.error_pct),
            "low_s": short(self.low_s),
            "high_s": short(self.high_s),
            "measured": short(self.measured_s),
            "predicted": short(self.predicted_s),
            "unit": "s",
            "low": short(self.low_s),
            "high": short(self.high_s),
            "covered": self.covered,
            "skipped": self.skipped,
            "reason": self.skipped,
            "phases": phases,
        }


@dataclass(frozen=True)
class Validation:
    """All rows of a table in its order, and what they say together.

    digest: first 16 hex digits of the SHA-256 of all cells. remarks: what holds for the whole table, such as columns
    that were taken from defaults.
    """

    table: str
    digest: str
    rows: tuple[RowResult, ...]
    remarks: tuple[str, ...] = ()

    @property
    def scored(self) -> tuple[RowResult, ...]:
        """Rows that were predicted."""
        return tuple(row for row in self.rows if row.error_pct is not None)

    @property
    def skipped(self) -> int:
        """Number of rows that were not."""
        return len(self.rows) - len(self.scored)

    @property
    def median_abs_error_pct(self) -> float | None:
        """Median of the absolute errors in per cent; None where nothing was scored."""
        return quantile_abs([row.error_pct for row in self.scored], 0.5)

    @property
    def p90_abs_error_pct(self) -> float | None:
        """90 % quantile (linear between order statistics) of the absolute errors in per cent."""
        return quantile_abs([row.error_pct for row in self.scored], 0.9)

    @property
    def interval_coverage(self) -> float | None:
        """Share of scored rows whose measured step lies inside its interval, 0 to 1."""
        return sum(bool(row.covered) for row in self.scored) / len(self.scored) if self.scored else None

    @property
    def score(self) -> Score:
        """Of all scored rows, errors as shares."""
        return Score.of(self.scored)

    @property
    def groups(self) -> dict[str, Score]:
        """The score of each model, device and mode."""
        return scores_by_group(self.rows)

    def as_dict(self) -> dict[str, object]:
        """The contract's form (docs/contracts.md, Validation)."""
        return {
            "kind": "steps",
            "rows": [row.as_dict() for row in self.rows],
            "median_abs_error_pct": short(self.median_abs_error_pct),
            "p90_abs_error_pct": short(self.p90_abs_error_pct),
            "interval_coverage": short(self.interval_coverage),
            "skipped": self.skipped,
            "score": self.score.as_dict(),
            "groups": {name: score.as_dict() for name, score in self.groups.items()},
        }

    def to_frame(self) -> DataFrame:
        """One row of a pandas table per measured step; seconds, errors in per cent, NaN where a row was skipped."""
        from pandas import DataFrame

        told = ("id", "model", "device", "release", "mode", "measured_s", "predicted_s", "error_pct", "low_s", "high_s")
        return DataFrame([{name: getattr(row, name) for name in (*told, "covered", "skipped")} for row in self.rows])

    def to_json(self) -> str:
        """validation.json, the same bytes for the same table and code."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n"

    def to_csv(self) -> str:
        """rows.csv: one line per row, one column per phase; safe to open in a spreadsheet."""
        head = ["id", "measured_s", "predicted_s", "error_pct", "low_s", "high_s", "covered", "skipped"]
        measured = [f"measured_{name}" for name in PHASES]
        lines: list[list[str | float | int | bool | None]] = []
        for row in self.rows:
            phases = row.phases or {}
            own: list[str | float | int | bool | None] = [
                row.id, row.measured_s, row.predicted_s, row.error_pct, row.low_s, row.high_s, row.covered, row.skipped,
            ]  # fmt: skip
            own += [phases[name].predicted_s if name in phases else None for name in PHASES]
            own += [phases[name].measured_s if name in phases else None for name in PHASES]
            lines.append(own)
        return write_table([*head, *PHASES, *measured], lines)


def validate(table: Path, progress: Progress | None = None, seed: int = 0, replications: int = 4) -> Validation:
    """Predict every measured step of ``table`` (columns of the table of published steps).

    Rows that cannot be simulated carry their reason. progress: called with (done, all) rows. seed, replications: of
    every simulation. Raises InputError where the file is no such table.
    """
    records = read_table(table, NEEDED)
    if not records:
        raise InputError(f"{table}: has a header but no rows")
    seen: dict[str, int] = {}
    cache: dict[str, Variant] = {}
    results = []
    for done, record in enumerate(records, start=1):
        results.append(_validate_row(record, seen, cache, seed, replications))
        if progress is not None:
            progress(done, len(records))
    absent = [name for name in PARALLEL_COLUMNS if name not in records[0].cells]
    remarks = (f"not in the table and taken as 1: {', '.join(absent)}",) if absent else ()
    return Validation(table.name, table_digest(records), tuple(results), remarks)


def table_digest(records: Sequence[TableRow]) -> str:
    """First 16 hex digits of the SHA-256 of all cells in order."""
    content = json.dumps([sorted(record.cells.items()) for record in records], separators=(",", ":"))
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def quantile_abs(values: Sequence[float | None], level: float) -> float | None:
    """Quantile of absolute values, None of an empty list; None entries are left out."""
    known = [abs(value) for value in values if value is not None]
    return float(np.quantile(known, level)) if known else None


def _validate_row(
    record: TableRow,
    seen: dict[str, int],
    cache: dict[str, Variant],
    seed: int,
    replications: int,
) -> RowResult:
    """One row; whatever is wrong with it becomes its reason."""
    cells = record.cells
    name = cells.get("id", "") or f"line {record.line}"
    about = RowResult(
        name,
        cells.get("model", ""),
        cells.get("gpu", ""),
        cells.get("framework_version", ""),
        cells.get("on_off_policy", ""),
    )
    try:
        if record.problem:
            raise SkippedRow(record.problem)
        if name in seen:
            raise SkippedRow(f"the id appears before, in line {seen[name]}")
        seen[name] = record.line
        measured_s = number(cells, "total_step_time_s")
        if measured_s <= 0:
            raise SkippedRow("total_step_time_s must be above 0")
        scenario = scenario_of(cells, seed, replications)
        found = _predict(scenario, cache)
        phases = {name: PhaseError(time.mean, _measured(cells, name, scenario)) for name, time in found.phases.items()}
    except (SkippedRow, RlsimError) as reason:
        return RowResult(
            about.id,
            about.model,
            about.device,
            about.release,
            about.mode,
            _known(cells),
            skipped=str(reason).splitlines()[0],
        )
    return RowResult(
        about.id, about.model, about.device, about.release, about.mode,
        measured_s, found.step_s.mean, found.step_s.low, found.step_s.high, None, phases,
    )  # fmt: skip


def _known(cells: Mapping[str, str]) -> float | None:
    """The measured step of a skipped row, where it is a number."""
    try:
        return number(cells, "total_step_time_s") or None
    except SkippedRow:
        return None


def _predict(scenario: Scenario, cache: dict[str, Variant]) -> Variant:
    """The simulated run; rows that ask the same are simulated once."""
    key = hashlib.sha256(scenario.model_dump_json(exclude={"name", "question"}).encode()).hexdigest()
    if key not in cache:
        cache[key] = project(scenario).candidate
    return cache[key]


def _measured(cells: Mapping[str, str], phase: str, scenario: Scenario) -> float | None:
    """Measured seconds of a phase, where published.

    Column refit_s holds everything between the last optimizer step and the first token in synchronous runs, which is
    our ``prepare_s``; in asynchronous ones it is the pause at publication.
    """
    synchronous = scenario.loop.mode == "sync"
    if phase == "refit_s" and synchronous:
        return None
    column = "refit_s" if phase == "prepare_s" else phase
    if phase == "prepare_s" and not synchronous:
        return None
    if phase == "exposed_generation_s" and synchronous and not cells.get(column):
        column = "generation_s"
    return number(cells, column) if cells.get(column) else None


def _error_pct(predicted: float, measured: float | None) -> float | None:
    return 100 * (predicted / measured - 1) if measured else None
