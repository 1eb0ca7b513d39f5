"""A validation as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rlsim.errors import shortened
from rlsim.validation.validate import RowResult, Validation

SHOWN_PHASES = {
    "generation_s": "generation",
    "exposed_generation_s": "exposed",
    "logprob_s": "log-prob",
    "train_s": "train",
    "prepare_s": "prepare",
    "refit_s": "refit",
}
_NAME_WIDTH = 52


def render(validation: Validation, widest_rows: int = 2000) -> str:
    """Rows, published phases, skipped rows with their reasons, and the summary last.

    widest_rows: rows printed at most; the files of ``--out`` and ``--json`` always hold all of them.
    """
    parts = [_rows(validation.scored[:widest_rows])] if validation.scored else []
    if any(published_phases(row) for row in validation.scored):
        parts.append("Phases with a published time\n" + _phases(validation.scored[:widest_rows]))
    left_out = [row for row in validation.rows if row.skipped]
    if left_out:
        parts.append("Skipped\n" + _skipped(left_out[:widest_rows]))
    if len(validation.rows) > widest_rows:
        parts.append(f"Tables are cut after {widest_rows:,} rows here; --out and --json hold all.")
    parts += [f"Note: {remark}" for remark in validation.remarks]
    return "\n\n".join([*parts, summary(validation)])


def summary(validation: Validation) -> str:
    """Number of rows, median and p90 of the absolute error, coverage of the intervals."""
    count = len(validation.rows)
    if not validation.scored:
        return f"{count} rows, none of which can be simulated."
    return (
        f"{count} rows, {len(validation.scored)} simulated, {validation.skipped} skipped\n"
        f"step time: median error {validation.median_abs_error_pct:.1f} %, p90 {validation.p90_abs_error_pct:.1f} %; "
        f"{validation.interval_coverage:.0%} of the measured steps inside the 90 % interval"
    )


def _rows(rows: Sequence[RowResult]) -> str:
    head = ["", "measured", "predicted", "error", "90 % interval", "", *SHOWN_PHASES.values()]
    body = []
    for row in rows:
        phases = row.phases or {}
        body.append(
            [
                shortened(row.id, _NAME_WIDTH),
                _seconds(row.measured_s),
                _seconds(row.predicted_s),
                _percent(row.error_pct),
                f"{_seconds(row.low_s)} - {_seconds(row.high_s)}",
                "in" if row.covered else "out",
                *(_seconds(phases[name].predicted_s if name in phases else None) for name in SHOWN_PHASES),
            ]
        )
    return columns(head, body)


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


def _phases(rows: Sequence[RowResult]) -> str:
    body = [
        [
            shortened(row.id, _NAME_WIDTH),
            SHOWN_PHASES.get(name, name),
            _seconds(measured),
            _seconds(predicted),
            _percent(error),
        ]
        for row in rows
        for name, (predicted, measured, error) in published_phases(row).items()
    ]
    return columns(["", "phase", "measured", "predicted", "error"], body)


def _skipped(rows: Sequence[RowResult]) -> str:
    return "\n".join(f"  {shortened(row.id, _NAME_WIDTH)}: {shortened(row.skipped or '', 200)}" for row in rows)


def columns(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first one left, the others right."""
    lines = [list(head), *map(list, body)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        (
            "  "
            + line[0].ljust(widths[0])
            + "".join("  " + cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))
        ).rstrip()
        for line in lines
    )


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f} %"
