"""Rows of a table of measured halves (iterations, training, transfers...) beside their predictions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from rlsim.results import Interval
from rlsim.results.statistics import widened
from rlsim.validation.rows import SkippedRow, number
from rlsim.validation.scores import Score, half_width, scores_by_group, short
from rlsim.validation.table import TableRow, write_table

if TYPE_CHECKING:
    from pandas import DataFrame

Detail = str | float | int | bool | None
INFORMATION_FLAGS = ("parallelism_corrected",)
"""Flags of published tables that inform and object to nothing; a row with any other flag is skipped."""
FLAGGED = "flag "
"""Beginning of the reason of a row that was skipped because of its flag."""


@dataclass(frozen=True)
class MeasuredRow:
    """One measured value beside its prediction, both in ``unit``; or the reason why it was skipped.

    group: what it is scored together with. low, high: 90 % interval of the prediction. details: what else the row's
    kind tells of it, by name. cuts: further sets that it is scored in.
    """

    id: str
    group: str
    unit: str
    measured: float | None = None
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    skipped: str | None = None
    details: Mapping[str, Detail] = field(default_factory=dict)
    cuts: tuple[str, ...] = ()

    @property
    def error(self) -> float | None:
        """predicted / measured - 1; None for a skipped row."""
        return self.predicted / self.measured - 1 if self.predicted is not None and self.measured else None

    @property
    def covered(self) -> bool | None:
        """Whether the measured value lies inside the interval, None for a skipped row."""
        if self.measured is None or self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high

    @property
    def half_width(self) -> float | None:
        """Factor that the interval reaches either way."""
        return half_width(self.low, self.high)

    def predict(self, value: float, deviation: float, **details: Detail) -> MeasuredRow:
        """The row with its prediction; deviation: standard deviation of the logarithm of a prediction."""
        if not math.isfinite(value) or value <= 0:
            return self.skip("the prediction is not above 0")
        interval = widened(Interval(value, value, value), deviation)
        return replace(self, predicted=value, low=interval.low, high=interval.high, details={**self.details, **details})

    def skip(self, reason: object) -> MeasuredRow:
        """The row without a prediction, and the first line of the reason."""
        return replace(self, skipped=(str(reason).splitlines() or ["no reason given"])[0])

    def as_dict(self) -> dict[str, object]:
        """The contract's form."""
        return {
            "id": self.id,
            "group": self.group,
            "measured": short(self.measured),
            "predicted": short(self.predicted),
            "unit": self.unit,
            "low": short(self.low),
            "high": short(self.high),
            "covered": self.covered,
            "skipped": self.skipped,
            "reason": self.skipped,
            "details": {k: short(v) if isinstance(v, float) else v for k, v in self.details.items()},
        }


@dataclass(frozen=True)
class MeasuredTable:
    """All rows of a table in its order, and what they say together.

    kind: of the table (``iterations``, ``training``...). remarks: assumptions and what else holds for the whole table.
    further: more that its kind compares, by key of the JSON. notes: the same as lines of text.
    """

    kind: str
    table: str
    digest: str
    rows: tuple[MeasuredRow, ...]
    remarks: tuple[str, ...] = ()
    further: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @cached_property
    def scored(self) -> tuple[MeasuredRow, ...]:
        """Rows that were predicted."""
        return tuple(row for row in self.rows if row.error is not None)

    @property
    def skipped(self) -> int:
        """Number of rows that were not."""
        return len(self.rows) - len(self.scored)

    @cached_property
    def score(self) -> Score:
        """Of all scored rows."""
        return Score.of(self.scored)

    @cached_property
    def groups(self) -> dict[str, Score]:
        """The score of each group."""
        return scores_by_group(self.rows)

    @cached_property
    def cuts(self) -> dict[str, Score]:
        """The score of each further set of rows, in order of first appearance."""
        names = dict.fromkeys(name for row in self.scored for name in row.cuts)
        return {name: Score.of(row for row in self.scored if name in row.cuts) for name in sorted(names)}

    def as_dict(self) -> dict[str, object]:
        """The contract's form (docs/contracts.md, Validation)."""
        return {
            "kind": self.kind,
            "rows": [row.as_dict() for row in self.rows],
            "score": self.score.as_dict(),
            "groups": {name: score.as_dict() for name, score in self.groups.items()},
            "cuts": {name: score.as_dict() for name, score in self.cuts.items()},
            "skipped": self.skipped,
            "remarks": list(self.remarks),
            **self.further,
        }

    def to_json(self) -> str:
        """validation.json, the same bytes for the same table and code."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n"

    def to_frame(self) -> DataFrame:
        """One row of a pandas table per measured value; errors as shares, NaN where a row was skipped."""
        from pandas import DataFrame

        return DataFrame([dict(zip(self._columns, self._line(row), strict=True)) for row in self.rows])

    def to_csv(self) -> str:
        """rows.csv: one line per row; safe to open in a spreadsheet."""
        return write_table(self._columns, [self._line(row) for row in self.rows])

    @cached_property
    def _columns(self) -> tuple[str, ...]:
        told = ("id", "group", "measured", "predicted", "unit", "error", "low", "high", "covered", "skipped")
        return (*told, *dict.fromkeys(name for row in self.rows for name in row.details))

    def _line(self, row: MeasuredRow) -> list[Detail]:
        own: list[Detail] = [
            row.id, row.group, row.measured, row.predicted, row.unit, row.error, row.low, row.high, row.covered,
            row.skipped,
        ]  # fmt: skip
        return [*own, *(row.details.get(name) for name in self._columns[len(own) :])]


class Names:
    """Ids of the rows of a table, each of which may appear once."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}

    def of(self, record: TableRow) -> str:
        """The row's id, or the line that it stands in."""
        return record.cells.get("id", "") or f"line {record.line}"

    def check(self, record: TableRow) -> None:
        """Raise SkippedRow where the record cannot be read, is objected to by its flag, or repeats an id."""
        if record.problem:
            raise SkippedRow(record.problem)
        name = self.of(record)
        if name in self._lines:
            raise SkippedRow(f"the id appears before, in line {self._lines[name]}")
        self._lines[name] = record.line
        flag = record.cells.get("flag", "")
        if flag and flag not in INFORMATION_FLAGS:
            raise SkippedRow(f"{FLAGGED}{flag[:100]}")


def measured_value(cells: Mapping[str, str], columns: Sequence[str]) -> float | None:
    """The first of ``columns`` that holds a number above 0; None where none does."""
    for column in columns:
        try:
            value = number(cells, column, 0.0)
        except SkippedRow:
            continue
        if value > 0:
            return value
    return None
