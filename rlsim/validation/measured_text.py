"""Measured halves beside their predictions as text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rlsim.errors import shortened
from rlsim.report.format import number, percent, signed_percent
from rlsim.report.style import DEFAULT_STYLE, Style
from rlsim.report.table import Cell, table
from rlsim.validation.measured import FLAGGED, MeasuredRow, MeasuredTable
from rlsim.validation.scores import Score

WORST_ROWS = 12
"""Rows with the largest errors that are printed; files and JSON hold all."""
MOST_GROUPS, MOST_REASONS = 80, 40
_NAME_CHARACTERS = 44
_TITLES = {
    "iterations": "Engine iterations",
    "training": "Training steps",
    "transfers": "Weight transfers",
    "phases": "Phases",
    "curves": "Curves",
}


def render_measured(found: MeasuredTable, style: Style = DEFAULT_STYLE) -> str:
    """Errors by group and by further sets of rows, the worst rows, reasons of skipped ones, and the summary last."""
    title = _TITLES.get(found.kind, found.kind)
    parts = []
    if found.groups:
        parts.append(score_table(f"{title} by group", found.groups, style))
    if found.cuts:
        parts.append(score_table("By set of rows", found.cuts, style))
    if found.scored:
        parts.append(_worst(found.scored, style))
    reasons = Counter(row.skipped for row in found.rows if row.skipped)
    flags = Counter({reason: count for reason, count in reasons.items() if reason.startswith(FLAGGED)})
    for name, counted in (("Skipped", reasons - flags), ("Objected to by their flag, not scored", flags)):
        if counted:
            parts.append(_reasons(name, counted, style))
    parts += [style.wrapped(remark, "Note: ") for remark in found.remarks]
    return "\n\n".join([*("\n".join(lines) for lines in parts), _summary(found, style)])


def score_table(title: str, scores: Mapping[str, Score], style: Style) -> list[str]:
    """One line for each score: rows, bias, median and p90 of the errors, coverage and half width of the intervals."""
    shown = list(scores.items())[:MOST_GROUPS]
    body = [
        (shortened(name, 70) or "-", str(score.n), *(_share(v) for v in (score.bias,)), *_errors(score))
        for name, score in shown
    ]
    lines = [
        style.bold(title) + style.dim("  errors as shares of what was measured"),
        *table(("", "rows", "bias", "median", "p90", "covered", "within"), body, style),
    ]
    if len(scores) > len(shown):
        lines.append(f"  and {len(scores) - len(shown)} smaller ones; --out and --json hold all")
    return lines


def _errors(score: Score) -> tuple[str, str, str, str]:
    median, p90 = score.median_abs_error, score.p90_abs_error
    covered = "-" if score.coverage is None else percent(score.coverage)
    within = "-" if score.half_width is None else f"{score.half_width:.2f}x"
    return (percent(median or 0.0, 1), percent(p90 or 0.0, 1), covered, within)


def _share(value: float | None) -> str:
    return "-" if value is None else signed_percent(value, 1)


def _worst(rows: Sequence[MeasuredRow], style: Style) -> list[str]:
    worst = sorted(rows, key=lambda row: (-abs(row.error or 0.0), row.id))[:WORST_ROWS]
    body = [
        (
            _name(row.id),
            shortened(row.group, 40),
            f"{number(row.measured or 0.0)} {row.unit}",
            _share(row.error),
            Cell(*(number(value or 0.0) for value in (row.predicted, row.low, row.high))),
        )
        for row in worst
    ]
    title = style.bold("Largest errors") + style.dim("  predicted mean [90 % interval]")
    return [title, *table(("", "", "measured", "error", "predicted"), body, style, "<<>")]


def _name(name: str) -> str:
    """Its id, where it is long without its middle: rows of a table often differ at the end."""
    whole, half = shortened(name, 200), _NAME_CHARACTERS // 2
    return whole if len(whole) <= _NAME_CHARACTERS else f"{whole[: half - 2]}..{whole[-half:]}"


def _reasons(title: str, reasons: Counter[str], style: Style) -> list[str]:
    shown = reasons.most_common(MOST_REASONS)
    body = [(shortened(reason, 160), str(count)) for reason, count in shown]
    lines = [style.bold(title), *table(("", "rows"), body, style)]
    if len(reasons) > len(shown):
        lines.append(f"  and {len(reasons) - len(shown)} further reasons; --out and --json hold all")
    return lines


def _summary(found: MeasuredTable, style: Style) -> str:
    count, score = len(found.rows), found.score
    if not score.n:
        return f"{count} rows of kind {found.kind}, none of which can be simulated."
    lines = [f"{count} rows of kind {found.kind}, {score.n} simulated, {found.skipped} skipped"]
    lines += style.wrapped(
        f"bias {_share(score.bias)}, median error {percent(score.median_abs_error or 0.0, 1)}, p90 "
        f"{percent(score.p90_abs_error or 0.0, 1)}; {percent(score.coverage or 0.0)} of the measured values inside the "
        f"90 % interval, which reaches a factor of {score.half_width or 1.0:.2f} either way in the median",
        "  ",
    )
    for note in found.notes:
        lines += style.wrapped(note, "  ", indent=4)
    return "\n".join(lines)
