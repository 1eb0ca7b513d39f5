"""docs/ACCURACY.md and docs/accuracy.csv: what the predictions are worth, in one table by kind and row by row.

``python -m research.accuracy [--iterations TABLE.csv] [--training TABLE.csv] [--transfers TABLE.csv] [--phases
TABLE.csv] [--cross] [--date YYYY-MM-DD] FILE`` writes the page, with its pictures and accuracy.csv beside it.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from research.markdown import SCORE_HEAD, per_cent, plain, score_cells, section, signed
from research.markdown import table as markdown_table
from rlsim import __version__
from rlsim.errors import InputError, RlsimError, shortened
from rlsim.evidence import Kind
from rlsim.evidence.published import published_table, run_published
from rlsim.files.writing import staged_folder
from rlsim.files.yaml import read_yaml
from rlsim.report.figures.style import save_picture
from rlsim.report.figures.validation import ratios, reliability
from rlsim.report.text.validation import cross_cells, notes, published_phases
from rlsim.results.validation import ComparedRow, CrossValidation, Published, Score, Validation

EXPLAINED_PCT = 20.0
"""Rows that are off by more need an explanation."""
PICTURES = {
    "iterations": ("iterations_by_group.png", "model", "Engine iterations by model, device and engine"),
    "training": ("training_by_release.png", "gpu", "Training steps by release, family, device and precision"),
    "transfers": ("transfers_by_method.png", "gpu", "Weight transfers by framework and method"),
    "phases": ("phases.png", "framework", "Phases of RL steps"),
}
"""Picture of predicted over measured of each kind of table, the detail that its colours tell, and its caption."""
RELIABILITY = "reliability.png"
ROWS = "accuracy.csv"
COLUMNS = ("kind", "row", "group", "measured", "predicted", "unit", "error_pct", "low", "high", "inside", "note")
"""Columns of accuracy.csv; rows that could not be compared are counted by their reason."""
_HEAD = f"""# Accuracy

Written by `python -m research.accuracy`; do not edit. Date {{date}}, rlsim {{version}}, published tables {{digest}}.

Measured times of others beside what rlsim predicts from their configurations. Every row, with its 90 % interval and
the reason where one is known, is in [{ROWS}]({ROWS}); the tables with their sources are in
[calibration/published](../calibration/published). Error = predicted / measured - 1; bias is its median. Rows that
disagree stay in the score. Most rows were in the fit ([how far to trust it](trust.md)); what follows last was left out.
"""
_HOW = """Whole groups of measurements are left out of the joint fit and predicted by the rest
([uncertainty](uncertainty.md)). An interval of 90 % is right where it holds 90 % of the rows. `rlsim validate cross`
prints the same with proper scores, and what two own rows of a left-out group give back."""
_CROSS_HEAD = ("left out", "rows of", "rows", "groups", "median error", "in 50 %", "in 90 %", "half width")
_CROSS_CELLS = (0, 1, 2, 3, 4, 5, 7, 8)


def accuracy_document(answer: Published, date: str) -> str:
    """The page as Markdown; the same for the same answer, date and explanations.

    date: YYYY-MM-DD. Raises InputError for another form.
    """
    parts = [_HEAD.format(date=checked_date(date), version=__version__, digest=answer.digest), _by_kind(answer)]
    parts += [_explained(answer.steps), *_pictures(answer), _cross(answer.cross)]
    return "\n".join(part.strip() + "\n" for part in parts if part.strip())


def accuracy_rows(answer: Published) -> str:
    """Every compared row as CSV (COLUMNS), in the order of its table."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_rows(answer))
    return text.getvalue()


def checked_date(date: str) -> str:
    """``date`` where it is a day as YYYY-MM-DD, else InputError."""
    try:
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
            return datetime.date.fromisoformat(date).isoformat()
    except ValueError:
        pass
    raise InputError(f"--date must be a day as YYYY-MM-DD; got {shortened(date, 30)!r}")


def explanations() -> Mapping[str, str]:
    """Our short reasons by row id (calibration/published/explanations.yaml)."""
    return {str(key): str(text) for key, text in read_yaml(published_table("explanations.yaml")).items()}


def group_explanations() -> Mapping[str, str]:
    """What is known of groups that are far off, by group (calibration/published/iteration_groups.yaml)."""
    return {str(key): str(text) for key, text in read_yaml(published_table("iteration_groups.yaml")).items()}


def _tables(answer: Published) -> dict[str, Validation]:
    return {kind: found for kind in PICTURES if (found := getattr(answer, kind)) is not None}


def _by_kind(answer: Published) -> str:
    """One table: RL steps and their parts, further tables, other published figures."""
    steps = answer.steps.scored
    rows = [[name, *score_cells(score)] for name, members in {"RL steps": list(steps), **_step_groups(steps)}.items()
            if (score := Score.of(members)).n]  # fmt: skip
    for kind, found in _tables(answer).items():
        groups = found.groups if kind == Kind.PHASES else _main_cuts(found)
        rows += [[name, *score_cells(score)] for name, score in {TITLES[kind]: found.score, **groups}.items()]
    figures: dict[str, list[float]] = {}
    for figure in answer.compared:
        figures.setdefault(figure.group, []).append((figure.error_pct or 0.0) / 100)
    rows += [[group, *_figure_cells(Score.of_errors(errors))] for group, errors in figures.items()]
    remarks = [f"- {plain(line)}" for found in _tables(answer).values() for line in notes(found)]
    missing = [TITLES[kind].lower() for kind in PICTURES if kind not in _tables(answer)]
    if missing:
        remarks.append(f"- No table was given of: {', '.join(missing)}.")
    return section("By kind", ("what", *SCORE_HEAD), rows, "\n".join(remarks))


TITLES = {
    "iterations": "Engine iterations",
    "training": "Training steps",
    "transfers": "Weight transfers",
    "phases": "Phases of RL steps",
}
"""Names of the tables that can be given."""
_MAIN_CUTS = re.compile(r"plain rows|speculative rows|(family|device|precision): ")


def _main_cuts(found: Validation) -> dict[str, Score]:
    return {name: score for name, score in found.cuts.items() if _MAIN_CUTS.match(name)}


def _figure_cells(errors: Score) -> list[str]:
    shares = (errors.median_abs_error, errors.p90_abs_error)
    return [f"{errors.n}", *(per_cent(100 * (e or 0.0)) for e in shares), signed(100 * (errors.bias or 0.0)), "-", "-"]


def _step_groups(rows: Sequence[ComparedRow]) -> dict[str, list[ComparedRow]]:
    """Rows by model, by device and by mode."""
    out: dict[str, list[ComparedRow]] = {}
    for row in rows:
        out.setdefault("steps of " + str(row.details["model"]).split("/")[-1], []).append(row)
    for row in rows:
        out.setdefault("steps on " + str(row.details["device"]).upper(), []).append(row)
    for row in rows:
        mode = "asynchronous" if str(row.details["mode"]).startswith("async") else "synchronous"
        out.setdefault(f"{mode} steps", []).append(row)
    return out


def _explained(steps: Validation) -> str:
    known = explanations()
    far = [row for row in steps.scored if abs(row.error_pct or 0.0) > EXPLAINED_PCT]
    far.sort(key=lambda row: -abs(row.error_pct or 0.0))
    rows = [[row.id, signed(row.error_pct), known.get(row.id, "not explained yet")] for row in far]
    title = f"RL steps off by more than {EXPLAINED_PCT:.0f} %"
    return section(title, ("row", "error", "why"), rows) or f"## {title}\n\nNone."


def _pictures(answer: Published) -> Iterator[str]:
    drawn = [kind for kind, found in _tables(answer).items() if found.scored]
    if drawn:
        yield (
            "## Predicted over measured\n\nThe bar is the median, the shade reaches from 0.8 to 1.2; what lies beyond "
            "an axis stands at its end."
        )
    for kind in drawn:
        name, _, caption = PICTURES[kind]
        yield f"\n![{caption}]({name})\n\n*{caption}.*"


def _cross(found: CrossValidation | None) -> str:
    if found is None:
        return "## Left-out groups\n\nLeft out of this document; `python -m research.accuracy --cross` writes them."
    rows = [[cells[place] for place in _CROSS_CELLS] for cells in map(cross_cells, found.scores)]
    picture = f"![Reliability of the intervals]({RELIABILITY})\n\nShare of left-out times below each quantile of its"
    picture += " prediction: on the diagonal where the intervals are what they say."
    return "\n\n".join(["## Left-out groups", _HOW, markdown_table(_CROSS_HEAD, rows), picture])


def _rows(answer: Published) -> Iterator[Sequence[str]]:
    known, groups = explanations(), group_explanations()
    for kind, found in {"steps": answer.steps, **_tables(answer)}.items():
        for row in found.scored:
            yield _row_cells(kind, row, known.get(row.id) or groups.get(row.group, ""))
            for phase, (predicted, measured, error) in published_phases(row).items() if kind == "steps" else ():
                values = (f"{measured:.4g}", f"{predicted:.4g}", "s", f"{error:+.1f}")
                yield ("phases of steps", row.id, phase, *values, "", "", "", known.get(f"{row.id}:{phase}", ""))
        for reason, count in Counter(row.skipped for row in found.rows if row.skipped).most_common():
            yield (kind, f"{count} not compared", *[""] * (len(COLUMNS) - 3), reason or "")
    for figure in answer.compared:
        values = (
            f"{figure.measured:.4g}",
            f"{figure.predicted.mean:.4g}",
            figure.unit,
            f"{figure.error_pct or 0:+.1f}",
        )
        yield ("figures", figure.label, figure.group, *values, *[""] * 4)
    for name, reason in answer.refits_left_out.items():
        yield ("figures", name, "not compared", *[""] * (len(COLUMNS) - 4), reason)


def _row_cells(kind: str, row: ComparedRow, note: str) -> Sequence[str]:
    values = [f"{value or 0:.4g}" for value in (row.measured, row.predicted)]
    spread = [f"{value:.4g}" if value else "" for value in (row.low, row.high)]
    inside = "" if row.covered is None else "yes" if row.covered else "no"
    return (kind, row.id, row.group, *values, row.unit, f"{100 * (row.error or 0):+.1f}", *spread, inside, note)


def write_document(answer: Published, text: str, path: Path) -> None:
    """Write the page to ``path``, and accuracy.csv and the pictures that it names beside it."""
    with staged_folder(path.parent) as folder:
        (folder / path.name).write_text(text, encoding="utf-8")
        (folder / ROWS).write_text(accuracy_rows(answer), encoding="utf-8")
        for kind, found in _tables(answer).items():
            if found.scored:
                name, detail, _ = PICTURES[kind]
                save_picture(ratios(found, detail), folder / name)
        if answer.cross is not None:
            save_picture(reliability(answer.cross), folder / RELIABILITY)


def main() -> int:
    """Predict all published tables and those given, and write the page. Exit status 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m research.accuracy", description="Write docs/ACCURACY.md.")
    parser.add_argument("file", type=Path, nargs="?", default=Path("docs/ACCURACY.md"))
    for kind in PICTURES:
        parser.add_argument(f"--{kind}", type=Path, action="append", default=[], metavar="TABLE.csv")
    parser.add_argument("--cross", action="store_true", help="leave out whole groups of measurements as well")
    parser.add_argument("--date", default=datetime.datetime.now(datetime.UTC).date().isoformat(), help="YYYY-MM-DD")
    given = parser.parse_args()
    try:
        date = checked_date(given.date)
        tables = {Kind(kind): getattr(given, kind) for kind in PICTURES}
        answer = run_published(tables=tables, cross=given.cross)
        write_document(answer, accuracy_document(answer, date), given.file)
    except RlsimError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
