"""Kinds of tables of measured figures, recognised by their columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlsim.errors import InputError, shortened
from rlsim.files.reading import shown_path
from rlsim.validation.curve_rows import validate_curves
from rlsim.validation.drawn_bounds import with_drawn_bounds
from rlsim.validation.halves import TableRecords
from rlsim.validation.iterations import validate_iterations
from rlsim.validation.kind import Kind
from rlsim.validation.measured import MeasuredTable
from rlsim.validation.phase_rows import validate_phases
from rlsim.validation.rows import NEEDED
from rlsim.validation.table import read_columns, read_table, with_hint
from rlsim.validation.training_rows import validate_training
from rlsim.validation.transfer_rows import validate_transfers
from rlsim.validation.validate import Progress, Validation, table_digest, validate


@dataclass(frozen=True)
class _Columns:
    """Columns that make a table one of a kind: of each entry at least one must be there."""

    needed: tuple[tuple[str, ...], ...]

    def missing(self, columns: Sequence[str]) -> list[tuple[str, ...]]:
        """Entries of which the table has no column."""
        return [entry for entry in self.needed if not any(name in columns for name in entry)]


def _columns(*needed: str) -> _Columns:
    return _Columns(tuple(tuple(entry.split("|")) for entry in needed))


COLUMNS = {
    Kind.STEPS: _columns(*NEEDED),
    Kind.ITERATIONS: _columns(
        "id", "engine", "model", "precision", "gpu", "decode_gpus_per_engine", "isl", "osl",
        "est_decoding_reqs_per_engine|decode_batch_per_engine|concurrency", "tpot_ms|decode_step_ms_est", "spec_method",
    ),
    Kind.TRAINING: _columns(
        "id", "model", "gpu", "num_gpus", "precision", "gbs", "seq_len", "step_time_s|implied_step_time_s"
    ),
    Kind.TRANSFERS: _columns("id", "model", "gpu", "method", "train_gpus|gen_gpus|num_gpus", "refit_s|time_s"),
    Kind.PHASES: _columns(
        "id", "model", "gpu", "num_gpus", "prompts_per_step", "samples_per_prompt|generations_per_prompt",
        "total_step_s|train_step_time_s|total_step_time_s", "train_s|policy_training_time_s",
    ),
    Kind.CURVES: _columns("id", "curve_kind", "series", "x_name", "x", "y_name", "y"),
}  # fmt: skip
"""Columns of each kind, alternatives separated by |. The first kind whose columns are all there is the table's."""
_HALVES: dict[Kind, Callable[[TableRecords], MeasuredTable]] = {
    Kind.ITERATIONS: validate_iterations,
    Kind.TRAINING: validate_training,
    Kind.TRANSFERS: validate_transfers,
    Kind.PHASES: validate_phases,
    Kind.CURVES: validate_curves,
}


def kind_of(columns: Sequence[str], table: str = "table") -> Kind:
    """Kind of a table with these columns. Raises InputError naming the nearest kind and what it lacks."""
    for kind, expected in COLUMNS.items():
        if not expected.missing(columns):
            return kind
    nearest = max(COLUMNS, key=lambda kind: 1 - len(COLUMNS[kind].missing(columns)) / len(COLUMNS[kind].needed))
    lacking = _lacking(nearest, columns)
    if len(COLUMNS[nearest].missing(columns)) == len(COLUMNS[nearest].needed):
        known = ", ".join(COLUMNS)
        raise InputError(f"{table}: has no column of any kind of table ({known}); see rlsim validate --help")
    raise InputError(f"{table}: is of no kind that is known; for {nearest}, the nearest, {lacking}")


def _lacking(kind: Kind, columns: Sequence[str]) -> str:
    missing = COLUMNS[kind].missing(columns)
    named = [" or ".join(entry) if len(entry) > 1 else with_hint(entry[0], columns) for entry in missing]
    listed = shortened(", ".join(named), 300)
    return f"column {listed} is missing" if len(missing) == 1 else f"columns {listed} are missing"


def validate_table(
    table: Path, kind: str | None = None, progress: Progress | None = None, seed: int = 0, replications: int = 4
) -> Validation | MeasuredTable:
    """Predict every row of ``table``; only the half that it measured is simulated.

    kind: of the table (:class:`Kind`); by default the one that its columns tell. progress: called with (done, all)
    rows. seed: of every draw. replications: of every simulated step. Raises InputError where the file is no such table.
    """
    columns = read_columns(table)
    chosen = kind_of(columns, shown_path(table)) if kind is None else _stated(kind)
    if COLUMNS[chosen].missing(columns):
        raise InputError(f"{shown_path(table)}: is no table of {chosen}: {_lacking(chosen, columns)}")
    if chosen is Kind.STEPS:
        return validate(table, progress, seed, replications)
    records = read_table(table, ())
    if not records:
        raise InputError(f"{shown_path(table)}: has a header but no rows")
    found = _HALVES[chosen](TableRecords(table.name, table_digest(records), records, seed, progress))
    return with_drawn_bounds(found, chosen, records)


def _stated(kind: str) -> Kind:
    try:
        return Kind(kind)
    except ValueError:
        raise InputError(f"kind must be one of {', '.join(Kind)}; got {shortened(repr(kind), 40)}") from None
