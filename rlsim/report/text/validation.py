"""Predicted beside measured, the real loop too, for a terminal and as CSV; and what fits to measured times say."""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlsim.errors import shortened
from rlsim.report.format import NAMES, PHASE_LABELS, number, percent, signed_percent
from rlsim.report.style import DEFAULT_STYLE, Style, sections
from rlsim.report.table import Cell, Table, table
from rlsim.results.loop_check import LoopCheck, LoopRow
from rlsim.results.projection import PHASES
from rlsim.results.validation import (
    ComparedRow,
    CrossScore,
    CrossValidation,
    Published,
    PublishedFigure,
    Score,
    Validation,
)

if TYPE_CHECKING:
    from rlsim.evidence.acceptance import FittedCurves
    from rlsim.evidence.compare import Learned
    from rlsim.evidence.joint import JointFit

WORST_ROWS, MOST_ROWS = 12, 80
"""Rows with the largest errors that are printed of a table with more than MOST_ROWS; files and JSON hold all."""
MOST_GROUPS, MOST_REASONS = 80, 40
_NAME_CHARACTERS = 44
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""First characters that spreadsheets take for a formula (OWASP, CSV injection)."""
FLAGGED = "flag "
TITLES: dict[str, str] = NAMES["tables"]
GROUPING_TITLES: dict[str, str] = NAMES["groupings"]
TIME_TITLES: dict[str, str] = NAMES["times"]
SHOWN_PHASES = {name: PHASE_LABELS[name] for name in PHASES[1:-1]} | {PHASES[-1]: "exposed"}
"""Phases of a step as tables call them; the time for data stands under its own name."""


def validation_text(found: Validation, style: Style = DEFAULT_STYLE) -> str:
    """Rows (of long tables those with the largest errors), errors by group and set of rows, reasons, a summary last."""
    # By those that were predicted: skipped rows are counted by reason.
    few = len(found.scored) <= MOST_ROWS
    shown = found.scored if few else largest_errors(found)[:WORST_ROWS]
    title = "Predicted beside measured" if few else "Largest errors"
    parts = [rows_table(title, shown).lines(style), _phases(found.scored).lines(style)]
    for title, scores in ((f"{TITLES[found.kind]} by group", found.groups), ("By set of rows", found.cuts)):
        shown_scores = dict(list(scores.items())[:MOST_GROUPS])
        parts.append(scores_table(title, shown_scores).lines(style))
        if len(scores) > MOST_GROUPS:
            parts[-1].append(f"  and {len(scores) - MOST_GROUPS} smaller ones; --out and --json hold all")
    reasons = Counter(row.skipped for row in found.rows if row.skipped)
    flags = Counter({reason: count for reason, count in reasons.items() if reason.startswith(FLAGGED)})
    parts.append(_reasons("Skipped", reasons - flags, style))
    parts.append(_reasons("Objected to by their flag, not scored", flags, style))
    parts += [style.wrapped(remark, "Note: ") for remark in found.remarks]
    return sections(*parts, summary(found, style)).removesuffix("\n")


def summary(found: Validation, style: Style = DEFAULT_STYLE) -> list[str]:
    """Number of rows, bias, median and p90 of the absolute error, coverage and half width of the intervals."""
    count, score = len(found.rows), found.score
    if not score.n:
        return [f"{count} rows of kind {found.kind}, none of which can be simulated."]
    bias, median, p90 = errors_of(score)
    inside = percent(score.coverage or 0.0)
    errors = (
        f"bias {bias}, median error {median}, p90 {p90}; {inside} of the measured values inside "
        f"the 90 % interval, which reaches a factor of {score.half_width or 1.0:.2f} either way in the median"
    )
    lines = [f"{count} rows of kind {found.kind}, {score.n} simulated, {found.skipped} skipped"]
    return lines + [line for note in (errors, *notes(found)) for line in style.wrapped(note, "  ", indent=4)]


def notes(found: Validation) -> list[str]:
    """Notes on engine iterations: errors of the speed-ups of speculation and of the time to the first token."""
    out, pairs, ttft = [], found.speculation_pairs, found.ttft
    if (lengths := found.draft_lengths) is not None and lengths.clear:
        out.append(
            f"sign right on {percent(lengths.right_sign_share or 0.0)} of {lengths.clear} speed-ups that are clear"
        )
    if lengths is not None and lengths.series:
        regret = f"{100 * (lengths.regret or 0.0):.1f} %"
        out.append(
            f"best draft length: {lengths.right} of {lengths.series} right, what is chosen {regret} slower in the mean"
        )
    if pairs is not None and pairs.n:
        share = pairs.right_sign_share
        sign = "" if share is None else f"; sign right on {percent(share)} of {pairs.clear} that are clear"
        bias, median = signed_percent(pairs.bias or 0.0), percent(pairs.median_abs_error or 0.0)
        out.append(f"speed-up of speculation: {pairs.n} pairs, bias {bias}, median error {median}{sign}")
    if ttft is not None and ttft.n:
        bias, median = signed_percent(ttft.bias or 0.0), f"{100 * (ttft.median_abs_error or 0.0):.0f} %"
        out.append(f"time to the first token, closed loops: {ttft.n} rows, bias {bias}, median error {median}")
    return out


def errors_of(score: Score) -> tuple[str, str, str]:
    """Bias, median and p90 of the errors of a score."""
    return _share(score.bias), percent(score.median_abs_error or 0.0, 1), percent(score.p90_abs_error or 0.0, 1)


def scores_table(title: str, scores: Mapping[str, Score]) -> Table:
    """One line for each score: rows, bias, median and p90 of the errors, coverage and half width of the intervals."""
    rows = [
        (
            *(shortened(name, 70) or "-", str(score.n), *errors_of(score)),
            "-" if score.coverage is None else percent(score.coverage),
            "-" if score.half_width is None else f"{score.half_width:.2f}x",
        )
        for name, score in scores.items()
    ]
    heads = ("", "rows", "bias", "median", "p90", "covered", "within")
    return Table(title, "errors as shares of what was measured", heads, rows)


def published_phases(row: ComparedRow) -> dict[str, tuple[float, float, float | None]]:
    """Published phases of a step: predicted, measured, error in per cent; a wait that equals generation stands once."""
    found = {
        name: (phase.predicted, phase.measured, phase.error_pct)
        for name, phase in (row.phases or {}).items()
        if phase.measured is not None
    }
    if str(row.details.get("mode", "")).startswith("sync"):
        # In a synchronous step it is generation itself, which has its own line.
        found.pop("exposed_generation_s", None)
    return found


def _share(value: float | None) -> str:
    return "-" if value is None else signed_percent(value, 1)


def largest_errors(found: Validation) -> list[ComparedRow]:
    """Rows that were predicted, the largest errors first."""
    # The id decides ties: the same table gives the same text.
    return sorted(found.scored, key=lambda row: (-abs(row.error or 0.0), row.id))


def rows_table(title: str, rows: Sequence[ComparedRow], full_names: bool = False) -> Table:
    """Each row with its group, what was measured, and its prediction; ``full_names``: uncut."""
    cells = [
        (
            row.id if full_names else _name(row.id),
            row.group if full_names else shortened(row.group, 40),
            f"{number(row.measured or 0.0)} {row.unit}",
            _share(row.error),
            Cell(*(number(value or 0.0) for value in (row.predicted, row.low, row.high))),
        )
        for row in rows
    ]
    return Table(title, "predicted mean [90 % interval]", ("", "", "measured", "error", "predicted"), cells, "<<>")


def _phases(rows: Sequence[ComparedRow]) -> Table:
    cells = [
        (_name(row.id), SHOWN_PHASES.get(name, name), number(measured), number(predicted), _share((error or 0.0) / 100))
        for row in rows
        for name, (predicted, measured, error) in published_phases(row).items()
    ]
    heads = ("", "phase", "measured", "predicted", "error")
    return Table("Phases with a published time", "seconds", heads, cells, "<<>")


def _name(name: str) -> str:
    """An id, a long one without its middle: rows of a table often differ at the end."""
    text, half = shortened(name, 200), _NAME_CHARACTERS // 2
    return text if len(text) <= _NAME_CHARACTERS else f"{text[: half - 2]}..{text[-half:]}"


def _reasons(title: str, reasons: Counter[str], style: Style) -> list[str]:
    rows = [(shortened(reason, 160), str(count)) for reason, count in reasons.most_common(MOST_REASONS)]
    lines = Table(title, "", ("", "rows"), rows).lines(style)
    if len(reasons) > len(rows):
        lines.append(f"  and {len(reasons) - len(rows)} further reasons; --out and --json hold all")
    return lines


def rows_csv(found: Validation) -> str:
    """rows.csv: one line per row, errors as shares (RL steps: per cent and phases); safe to open in a spreadsheet."""
    if found.kind == "steps":
        head = ["id", "measured_s", "predicted_s", "error_pct", "low_s", "high_s", "covered", "skipped"]
        more = [*PHASES, *(f"measured_{name}" for name in PHASES)]
    else:
        head = ["id", "group", "measured", "predicted", "unit", "error", "low", "high", "covered", "skipped"]
        more = list(dict.fromkeys(name for row in found.rows for name in row.details))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*head, *more])
    for row in found.rows:
        phases = [(row.phases or {}).get(name) for name in PHASES]
        times = [phase and getattr(phase, side) for side in ("predicted", "measured") for phase in phases]
        further = times if found.kind == "steps" else [row.details.get(name) for name in more]
        writer.writerow(map(_csv_cell, [*(getattr(row, name.removesuffix("_s")) for name in head), *further]))
    return out.getvalue()


def _csv_cell(value: object) -> str:
    """None is blank, numbers keep nine significant digits, an apostrophe stands before what looks like a formula."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # Spreadsheets skip leading blanks, but a tab or return is a start of its own.
        formula = value.lstrip().startswith(_FORMULA_STARTS) or value.startswith(_FORMULA_STARTS)
        return "'" + value if formula else value
    return f"{value:.9g}"


def group_errors(figures: Sequence[PublishedFigure]) -> list[tuple[str, int, float, float]]:
    """(group, number of figures, median absolute error, largest absolute error) in per cent."""
    groups: dict[str, list[float]] = defaultdict(list)
    for figure in figures:
        groups[figure.group].append(abs(figure.error_pct or 0.0))
    return [(group, len(errors), float(np.quantile(errors, 0.5)), max(errors)) for group, errors in groups.items()]


def published_text(found: Published, style: Style = DEFAULT_STYLE) -> str:
    """Published steps, a line for each group of other figures, further tables, and left-out groups."""
    body = [(name, str(n), f"{mid:.1f} %", f"{worst:.1f} %") for name, n, mid, worst in group_errors(found.compared)]
    others = Table("Other published figures", "", ["", "figures", "median error", "largest"], body)
    given = (found.iterations, found.training, found.transfers, found.phases)
    parts = [validation_text(found.steps, style), "\n".join(others.lines(style))]
    parts += [validation_text(part, style) for part in given if part is not None]
    return "\n\n".join([*parts, *([] if found.cross is None else [cross_text(found.cross, style)])])


def cross_text(found: CrossValidation, style: Style = DEFAULT_STYLE) -> str:
    """Scores of left-out groups, and what two rows of each are worth."""
    title = "Groups left out of the joint fit and predicted by the rest"
    scores = Table(title, "", NAMES["cross"], [cross_cells(score) for score in found.scores], "<<>")
    return "\n".join([*scores.lines(style), "", *given_back_lines(found)])


def given_back_lines(found: CrossValidation) -> list[str]:
    """A line for each kind of left-out group: errors before and after two of its rows are given back."""
    return [
        f"Two own rows after leaving out {GROUPING_TITLES[score.grouping]} ({TIME_TITLES[score.kind]}, "
        f"{score.groups} of them): median error on its other rows {percent(score.before, 1)} -> "
        f"{percent(score.after, 1)}"
        for score in found.own_rows
    ]


def cross_cells(score: CrossScore) -> tuple[str, ...]:
    """A score as cells of a table of groups left out."""
    return (
        GROUPING_TITLES[score.grouping], TIME_TITLES.get(score.kind, score.kind), str(score.n), str(score.groups),
        percent(score.median_error, 1), *(percent(share) for share in score.coverage), f"±{percent(score.width)}",
        f"{score.crps:.3f}", f"{score.interval_score:.2f}", percent(score.single_coverage), f"{score.single_crps:.3f}",
        f"{score.single_interval_score:.2f}",
    )  # fmt: skip


def learned_text(found: Learned, style: Style = DEFAULT_STYLE) -> str:
    """Each measured time of a user beside what was expected of it and what is expected now, in seconds."""
    rows = [
        (
            shortened(time.id, 40),
            time.kind,
            f"{time.measured_s:.4g}",
            *(f"{it.mean:.4g} [{it.low:.4g}, {it.high:.4g}]" for it in (time.expected, time.now)),
            time.remark,
        )
        for time in found.times
    ]
    before, after = (
        percent(float(np.median([abs(getattr(time, side).mean / time.measured_s - 1) for time in found.times])), 1)
        for side in ("expected", "now")
    )
    title = f"{found.table}: {len(rows)} measured times; median error {before} before them, {after} with them"
    heads = ("row", "time", "measured (s)", "expected [90 %]", "with all rows [90 %]", "")
    shown = len(heads) if any(row[-1] for row in rows) else len(heads) - 1
    body = table(heads[:shown], [row[:shown] for row in rows], style, "<<>>><"[:shown])
    lines = [*style.wrapped(title), "", *body]
    if found.skipped:
        reasons = [(shortened(name), shortened(reason, 200)) for name, reason in found.skipped.items()]
        lines += ["", f"{len(found.skipped)} rows not used:", *table(("", ""), reasons, style, "<<")]
    return "\n".join(lines)


def joint_text(found: JointFit, style: Style = DEFAULT_STYLE) -> str:
    """Scales of the deviations of all families of groups and terms, and of the errors of all kinds of time."""
    families = [(name, str(found.members[name]), percent(s, 1)) for name, s in sorted(found.spreads.families.items())]
    kinds = Counter(str(row.kind) for row in found.evidence.rows)
    errors = [(name, str(kinds[name]), percent(value, 1)) for name, value in sorted(found.spreads.errors.items())]
    lines = [f"{len(found.evidence.rows)} measured times, {found.posterior.terms} terms", ""]
    lines += [*table(("groups or terms of", "members", "scale of their deviations"), families, style, "<>>"), ""]
    return "\n".join([*lines, *table(("time", "rows", "scale of its own error"), errors, style, "<>>")])


def curves_text(found: FittedCurves, style: Style = DEFAULT_STYLE) -> str:
    """Fitted acceptance over draft length by series."""
    heads = ("acceptance over draft length", "a_1", "decay", "points", "rms tokens", "worst")
    rows = [
        (
            *(name, f"{fit.first:.3f}", f"{fit.decay:.3f}"),
            *(str(fit.points), f"{fit.rms_tokens:.3f}", f"{fit.worst_tokens:.3f}"),
        )
        for name, fit in found.processes.items()
    ]
    return "\n".join(table(heads, rows, style))


HEADS = (
    "configuration", "step s", "alone", "pace", "predicted", "interval", "error", "generation", "exposed", "speed-up",
)  # fmt: skip


def loop_check_text(found: LoopCheck, style: Style = DEFAULT_STYLE) -> str:
    """Steps, generation, exposed generation and speed-ups, measured / predicted; what missed and why; the scores."""
    lines = [f"the real loop on {found.device}: each step beside its prediction from parts measured before"]
    lines += table(HEADS, [_cells(row) for row in found.rows], style, "<>>>>>>>>>")
    lines += [f"  {row.name}: {row.why}" for row in found.rows if row.why]
    scores = found.scores
    texts = [f"median error {percent(scores.median_abs_error, 1)}, p90 {percent(scores.p90_abs_error, 1)}"]
    texts.append(f"{percent(scores.undisturbed_median_abs_error, 1)} without what other processes took")
    texts.append(f"{percent(scores.coverage)} of {scores.n} inside their intervals")
    if scores.speedup_median_abs_error is not None:
        texts.append(f"speed-up by k within {percent(scores.speedup_median_abs_error, 1)} in the median")
    if scores.exposed_median_abs_error is not None:
        texts.append(f"exposed generation within {percent(scores.exposed_median_abs_error, 1)}")
    lines.append("; ".join(texts))
    for drafter, (measured, predicted, loss) in scores.best.items():
        lines.append(f"best k of {drafter}: {measured}, predicted {predicted} ({percent(loss, 1)} slower)")
    return "\n".join(lines)


def _cells(row: LoopRow) -> tuple[str, ...]:
    generation, exposed = row.phases["generation_s"], row.phases["exposed_generation_s"]
    return (
        row.name, f"{row.measured_s:.3f}", f"{row.undisturbed_s:.3f}", f"{row.pace:.2f}", f"{row.predicted_s:.3f}",
        f"{row.interval[0]:.2f}-{row.interval[1]:.2f}",
        signed_percent(row.error, 1), f"{generation.measured_s:.2f} / {generation.predicted_s:.2f}",
        f"{exposed.measured_s:.2f} / {exposed.predicted_s:.2f}" if row.settings["placement"] == "split" else "",
        f"{row.speedup.measured:.2f} / {row.speedup.predicted:.2f}" if row.speedup else "",
    )  # fmt: skip
