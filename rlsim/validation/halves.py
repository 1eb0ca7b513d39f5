"""What the halves of a simulation, validated apart, have in common: their records and their loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from rlsim.errors import RlsimError
from rlsim.schema.messages import as_input_error
from rlsim.schema.scenario import Scenario
from rlsim.validation.measured import MeasuredRow, Names
from rlsim.validation.rows import SkippedRow
from rlsim.validation.table import TableRow


@dataclass(frozen=True)
class TableRecords:
    """A table to compare. digest: of its cells. seed: of whatever is drawn. progress: called with (done, all) rows."""

    table: str
    digest: str
    rows: Sequence[TableRow]
    seed: int = 0
    progress: Callable[[int, int], None] | None = None

    def tell(self, done: int) -> None:
        """Report that ``done`` rows are compared."""
        if self.progress is not None:
            self.progress(done, len(self.rows))


def compare_each(
    records: TableRecords,
    describe: Callable[[str, Mapping[str, str]], MeasuredRow],
    predict: Callable[[MeasuredRow, Mapping[str, str]], MeasuredRow],
) -> tuple[MeasuredRow, ...]:
    """Every row on its own: described by its id and cells, then predicted, or skipped with what ``predict`` raised."""
    rows, names = [], Names()
    for done, record in enumerate(records.rows, start=1):
        row = describe(names.of(record), record.cells)
        try:
            names.check(record)
            rows.append(predict(row, record.cells))
        except (SkippedRow, RlsimError) as reason:
            rows.append(row.skip(reason))
        records.tell(done)
    return tuple(rows)


def row_scenario(document: Mapping[str, object]) -> Scenario:
    """The scenario that a row describes; SkippedRow with what is wrong with it."""
    try:
        return Scenario.model_validate(document)
    except ValidationError as error:
        raise SkippedRow(str(as_input_error(error, "row", Scenario)).removeprefix("row: ")) from None
