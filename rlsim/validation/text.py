"""A validation as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rlsim.errors import shortened
from rlsim.report.format import percent, signed_percent
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import Cell, table
from rlsim.validation.measured_text import score_table
from rlsim.validation.validate import RowResult, Validation

SHOWN_PHASES = {
    "generation_s": "generation",
    "exposed_generation_s": "exposed",
    "logprob_s": "log-prob",
    "train_s": "train",
    "prepare_s": "prepare",
    "refit_s": "refit",
}
_NAME_CHARACTERS = 48
"""Of a row's id: with them every table fits into 100 columns."""


def render(validation: Validation, style: Style = DEFAULT_STYLE, widest_rows: int = 2000) -> str:
    """Rows, published phases, skipped rows with their reasons, and the summary last.

    widest_rows: rows printed at most; the files of ``--out`` and ``--json`` always hold all of them.
    """
    scored = validation.scored[:widest_rows]
    parts = [_rows(scored, style), _predicted_phases(scored, style)] if scored else []
    if any(published_phases(row) for row in scored):
        parts.append(_phases(scored, style))
    if len(validation.groups) > 1:
        parts.append(score_table("Steps by group", validation.groups, style))
    left_out = [(_name(row), shortened(row.skipped, 200)) for row in validation.rows if row.skipped]
    if left_out:
        parts.append([style.bold("Skipped"), *table(("", ""), left_out[:widest_rows], style, "<")])
    if len(validation.rows) > widest_rows:
        parts.append([f"Tables are cut after {widest_rows:,} rows here; --out and --json hold all."])
    parts += [style.wrapped(remark, "Note: ") for remark in validation.remarks]
    return "\n\n".join([*("\n".join(lines) for lines in parts), summary(validation, style)])


def summary(validation: Validation, style: Style = DEFAULT_STYLE) -> str:
    """Number of rows, median and p90 of the absolute error, coverage of the intervals."""
    count = len(validation.rows)
    if not validation.scored:
        return f"{count} rows, none of which can be simulated."
    errors = (
        f"step time: median error {validation.median_abs_error_pct:.1f} %, p90 {validation.p90_abs_error_pct:.1f} %; "
        f"{percent(validation.interval_coverage or 0.0)} of the measured steps inside the 90 % interval, "
        f"which reaches a factor of {validation.score.half_width or 1.0:.2f} either way in the median"
    )
    counted = f"{count} rows, {len(validation.scored)} simulated, {validation.skipped} skipped"
    return "\n".join([counted, *style.wrapped(errors, indent=2)])


def _name(row: RowResult) -> str:
    """Its id, where it is long without its middle: rows of a table often differ at the end."""
    name, half = shortened(row.id, 200), _NAME_CHARACTERS // 2
    return name if len(name) <= _NAME_CHARACTERS else f"{name[: half - 2]}..{name[-half:]}"


def _rows(rows: Sequence[RowResult], style: Style) -> list[str]:
    body = [
        (
            _name(row),
            _seconds(row.measured_s),
            _percent(row.error_pct),
            "in" if row.covered else "out",
            Cell(_seconds(row.predicted_s), _seconds(row.low_s), _seconds(row.high_s)),
        )
        for row in rows
    ]
    title = style.bold("Step time") + style.dim("  seconds, predicted mean [90 % interval]")
    return [title, *table(("", "measured", "error", "", "predicted"), body, style, "<>><>")]


def _predicted_phases(rows: Sequence[RowResult], style: Style) -> list[str]:
    body = []
    for row in rows:
        phases = row.phases or {}
        found = (phases[name].predicted_s if name in phases else None for name in SHOWN_PHASES)
        body.append((_name(row), *map(_seconds, found)))
    title = style.bold("Predicted phases") + style.dim("  seconds")
    return [title, *table(("", *SHOWN_PHASES.values()), body, style)]


def published_phases(row: RowResult) -> dict[str, tuple[float, float, float | None]]:
    """Published phases of a row: predicted, measured, error; a wait that equals generation is told once."""
    found = {
        name: (phase.predicted_s, phase.measured_s, phase.error_pct)
        for name, phase in (row.phases or {}).items()
        if phase.measured_s is not None
    }
    if row.mode.startswith("sync"):
        found.pop("exposed_generation_s", None)
    return found


def _phases(rows: Sequence[RowResult], style: Style) -> list[str]:
    body = [
        (_name(row), SHOWN_PHASES.get(name, name), _seconds(measured), _seconds(predicted), _percent(error))
        for row in rows
        for name, (predicted, measured, error) in published_phases(row).items()
    ]
    title = style.bold("Phases with a published time") + style.dim("  seconds")
    return [title, *table(("", "phase", "measured", "predicted", "error"), body, style, "<<>")]


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else signed_percent(value / 100, 1)
