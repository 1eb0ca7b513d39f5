"""docs/ACCURACY.md: what the predictions are worth, row by row, written by the machine.

``python -m research.accuracy [--iterations TABLE.csv] [--training TABLE.csv] [--transfers TABLE.csv] [--phases
TABLE.csv] [--sweep FILE] [--cross] [--date YYYY-MM-DD] FILE`` writes the document and its pictures beside it.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research.accuracy_tables import PICTURES, iterations_section, table_sections
from research.markdown import per_cent, section, signed
from research.markdown import table as markdown_table
from research.sweeps import IterationSweep, iteration_sweep
from rlsim import __version__
from rlsim.errors import InputError, RlsimError, shortened
from rlsim.evidence.published import published_table, run_published
from rlsim.evidence.tables import Kind
from rlsim.files.reading import data_folder
from rlsim.files.writing import staged_folder
from rlsim.files.yaml import read_yaml
from rlsim.report.figures.style import save_picture
from rlsim.report.figures.validation import ratios, reliability
from rlsim.report.format import NAMES, percent
from rlsim.report.text.validation import (
    SHOWN_PHASES,
    cross_cells,
    given_back_lines,
    group_errors,
    published_phases,
)
from rlsim.results.validation import ComparedRow, CrossValidation, Published, PublishedFigure, Score, Validation

EXPLAINED_PCT = 20.0
"""Rows that are off by more need an explanation."""
_HEAD = """# Accuracy

Written by `python -m research.accuracy`; do not edit. Date {date}, rlsim {version}, published tables {digest}.

Every figure below compares a published measurement with what rlsim predicts from the run's configuration. The tables
with their sources are in [calibration/published](../calibration/published). Error = predicted / measured - 1. Rows that
disagree stay in the score.
"""
_SWEEP_NOTE = """Decode and verification steps of one engine. Files of such sweeps are not part of rlsim. Compare one
with `python -m research.sweeps FILE`; columns model, batch, seq, gamma, mode (target_decode or target_verify),
median_ms.
"""
PICTURE = "reliability.png"
_HOW = """Whole groups of measurements are left out of the joint fit and predicted by the rest
([uncertainty.md](uncertainty.md)). An interval of 90 % is right where it holds 90 % of the rows; CRPS and the interval
score of the 90 % interval (in logarithms, smaller is better; Gneiting and Raftery 2007, doi:10.1198/016214506000001437)
tell whether it is also narrow. Beside it what one log-normal factor for all rows of a half would have scored around
the same predictions. A training step whose layout another release published too keeps what is known of that layout;
how well terms alone do on releases, devices and models that were left out stands with the fit of training. Written by
`rlsim validate cross`."""


def accuracy_document(answer: Published, date: str, sweeps: Sequence[IterationSweep] = ()) -> str:
    """The Markdown text; the same for the same answer, date, explanations and fit.

    date: YYYY-MM-DD. Raises InputError for another form.
    """
    head = _HEAD.format(date=checked_date(date), version=__version__, digest=answer.digest)
    groups = [figure.group for figure in answer.compared]
    refits = [figure for figure in answer.compared if figure.group.startswith("refit, ")]
    fixed = [f for f in answer.compared if f.group in ("speedup at fixed batch", "autoregressive iteration")]
    study = answer.compared[: len(groups) - len(refits) - len(fixed)]
    parts = [head, _score(answer), _fit(), _steps(answer.steps), _explained(answer.steps), _phases(answer.steps)]
    parts += [_skipped(answer), _compared("Speculative decoding in RL (arXiv 2604.26779)", study)]
    parts += [_compared("Speculative decoding at fixed batch", fixed), _compared("Weight transfers", refits)]
    parts += [iterations_section(answer.iterations), table_sections(answer, explanations())]
    parts += [_cross(answer.cross), _sweeps(sweeps)]
    return "\n".join(part.strip() + "\n" for part in parts if part.strip())


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


def _score(answer: Published) -> str:
    steps = answer.steps
    rows = []
    for name, members in {"RL step time": list(steps.scored), **_by(steps.scored)}.items():
        score = Score.of(members)
        if score.n:
            errors = (score.median_abs_error, score.p90_abs_error)
            rows.append([name, str(score.n), *(per_cent(100 * (error or 0.0)) for error in errors)])
    others = group_errors(answer.compared)
    rows += [[group, str(n), per_cent(median), per_cent(worst)] for group, n, median, worst in others]
    coverage = (
        f"{percent(steps.score.coverage or 0.0)} of the measured step times lie inside the 90 % interval, which "
        f"reaches a factor of {steps.score.half_width or 1.0:.2f} either way in the median."
    )
    head = ("what", "figures", "median error", "p90 of steps, largest of others")
    return section("Score", head, rows, coverage if steps.scored else "")


def _by(rows: Sequence[ComparedRow]) -> dict[str, list[ComparedRow]]:
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


def _fit() -> str:
    """What was fitted and how it does on groups left out, from the committed fit."""
    folder = data_folder("calibration") / "parameters"
    paragraphs = []
    for path in sorted(folder.glob("*.yaml")) if folder.is_dir() else []:
        fit = read_yaml(path).get("fit")
        if isinstance(fit, Mapping):
            paragraphs.append(_fit_paragraph(path.name, fit))
    return "\n\n".join(["## Fit, and groups left out of it", *paragraphs]) if paragraphs else ""


def _fit_paragraph(name: str, fit: Mapping[str, Any]) -> str:
    held = fit.get("held_out_median_error")
    left_out = ", ".join(f"{k} {100 * float(v):.1f} %" for k, v in held.items()) if isinstance(held, Mapping) else ""
    median, p90 = (f"{100 * float(fit.get(key, 0.0)):.1f} %" for key in ("median_error", "p90_error"))
    score = f"median error {median}, p90 {p90} on {fit.get('rows')} rows."
    if fit.get("command") == "none":
        return f"`calibration/parameters/{name}`: values before any fit; {score}"
    groups = f" With one group left out of the fit at a time, median error on its rows: {left_out}." if left_out else ""
    return f"`calibration/parameters/{name}`: fitted by `{fit.get('command')}`; {score}{groups}"


def _steps(steps: Validation) -> str:
    rows = [
        [
            row.id,
            f"{row.measured:.1f}",
            f"{row.predicted:.1f}",
            signed(row.error_pct),
            f"{row.low:.1f} - {row.high:.1f}",
            "inside" if row.covered else "outside",
        ]
        for row in steps.scored
    ]
    return section("Step times", ("row", "measured s", "predicted s", "error", "90 % interval", "measured lies"), rows)


def _explained(steps: Validation) -> str:
    known = explanations()
    far = [row for row in steps.scored if abs(row.error_pct or 0.0) > EXPLAINED_PCT]
    far.sort(key=lambda row: -abs(row.error_pct or 0.0))
    rows = [[row.id, signed(row.error_pct), known.get(row.id, "not explained yet")] for row in far]
    title = f"Rows off by more than {EXPLAINED_PCT:.0f} %"
    return section(title, ("row", "error", "why"), rows) or f"## {title}\n\nNone."


def _phases(steps: Validation) -> str:
    rows = [
        [row.id, SHOWN_PHASES.get(phase, phase), f"{measured:.1f}", f"{predicted:.1f}", signed(error)]
        for row in steps.scored
        for phase, (predicted, measured, error) in published_phases(row).items()
    ]
    return section("Published phases", ("row", "phase", "measured s", "predicted s", "error"), rows)


def _skipped(answer: Published) -> str:
    left = [[row.id, row.skipped or ""] for row in answer.steps.rows if row.skipped]
    left += [[f"refit {name}", reason] for name, reason in answer.refits_left_out.items()]
    return section("Not simulated", ("row", "reason"), left)


def _compared(title: str, cells: Sequence[PublishedFigure]) -> str:
    rows = [
        [c.group, c.label, _number(c.measured, c.unit), _number(c.predicted.mean, c.unit), signed(c.error_pct)]
        for c in cells
    ]
    return section(title, ("table", "figure", "measured", "predicted", "error"), rows)


def _number(value: float, unit: str) -> str:
    if unit == "x":
        return f"{value:.2f}x"
    return f"{value * 1e3:.2f} ms" if value < 0.1 else f"{value:.1f} s"


def _sweeps(sweeps: Sequence[IterationSweep]) -> str:
    texts = (f"```\n{sweep.text()}\n```" for sweep in sweeps)
    return "\n\n".join(["## Sweeps over batch and context", _SWEEP_NOTE.strip(), *texts])


def _cross(found: CrossValidation | None) -> str:
    if found is None:
        return "## Left-out groups\n\nLeft out of this document; `python -m research.accuracy --cross` writes them."
    picture = f"![Reliability of the intervals]({PICTURE})\n\nShare of left-out times below each quantile of its"
    picture += " prediction: on the diagonal where the intervals are what they say."
    rows = markdown_table(NAMES["cross"], [cross_cells(score) for score in found.scores])
    lines = "\n".join(f"- {line}." for line in given_back_lines(found))
    return "\n\n".join(["## Left-out groups", _HOW, rows, lines, picture])


def write_document(answer: Published, text: str, path: Path) -> None:
    """Write the document to ``path`` and the pictures that it names beside it."""
    with staged_folder(path.parent) as folder:
        (folder / path.name).write_text(text, encoding="utf-8")
        for kind, (name, detail) in PICTURES.items():
            found = getattr(answer, kind)
            if found is not None and found.scored:
                save_picture(ratios(found, detail), folder / name)
        if answer.cross is not None:
            save_picture(reliability(answer.cross), folder / PICTURE)


def main() -> int:
    """Predict all published tables and those given, and write the document. Exit status 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m research.accuracy", description="Write docs/ACCURACY.md.")
    parser.add_argument("file", type=Path, nargs="?", default=Path("docs/ACCURACY.md"))
    for kind in PICTURES:
        parser.add_argument(f"--{kind}", type=Path, action="append", default=[], metavar="TABLE.csv")
    parser.add_argument("--sweep", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--cross", action="store_true", help="leave out whole groups of measurements as well")
    parser.add_argument("--date", default=datetime.datetime.now(datetime.UTC).date().isoformat(), help="YYYY-MM-DD")
    given = parser.parse_args()
    try:
        date, sweeps = checked_date(given.date), [iteration_sweep(path) for path in given.sweep]
        tables = {Kind(kind): getattr(given, kind) for kind in PICTURES}
        answer = run_published(tables=tables, cross=given.cross)
        write_document(answer, accuracy_document(answer, date, sweeps), given.file)
    except RlsimError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
