"""docs/ACCURACY.md: what the predictions are worth, row by row, written by the machine."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlsim import __version__
from rlsim.errors import InputError, shortened
from rlsim.files.reading import data_folder
from rlsim.files.yaml import read_yaml
from rlsim.report.format import percent
from rlsim.validation.accuracy_halves import halves_sections
from rlsim.validation.accuracy_iterations import iterations_section
from rlsim.validation.cross_text import cross_section
from rlsim.validation.iteration_sweeps import IterationSweep
from rlsim.validation.markdown import per_cent, section, signed
from rlsim.validation.published import Published, group_errors
from rlsim.validation.study import PublishedFigure, published_table
from rlsim.validation.text import SHOWN_PHASES, published_phases
from rlsim.validation.validate import RowResult, Validation, quantile_abs

EXPLAINED_PCT = 20.0
"""Rows that are off by more need an explanation."""
_HEAD = """# Accuracy

Written by `rlsim validate --published`; do not edit. Date {date}, rlsim {version}, published tables {digest}.

Every figure below compares a published measurement with what rlsim predicts from the run's configuration. The tables
with their sources are in [calibration/published](../calibration/published). Error = predicted / measured - 1. Rows that
disagree stay in the score.
"""
_SWEEP_NOTE = """Decode and verification steps of one engine. Files of such sweeps are not part of rlsim. Compare one
with `rlsim validate --sweep FILE`; columns model, batch, seq, gamma, mode (target_decode or target_verify), median_ms.
"""


def accuracy_document(answer: Published, date: str) -> str:
    """The Markdown text; the same for the same answer, date, explanations and fit.

    date: YYYY-MM-DD. Raises InputError for another form.
    """
    head = _HEAD.format(date=checked_date(date), version=__version__, digest=answer.digest)
    parts = [head, _score(answer), _fit(), _steps(answer.steps), _explained(answer.steps), _phases(answer.steps)]
    parts += [_skipped(answer), _compared("Speculative decoding in RL (arXiv 2604.26779)", answer.study)]
    parts += [
        _compared("Speculative decoding at fixed batch", answer.speculation),
        _compared("Weight transfers", answer.refits),
    ]
    parts += [iterations_section(answer.iterations), halves_sections(answer.halves, explanations())]
    parts += [cross_section(answer.cross), _sweeps(answer.sweeps)]
    return "\n".join(part.strip() + "\n" for part in parts if part.strip())


def checked_date(date: str) -> str:
    """``date`` where it is a day as YYYY-MM-DD, else InputError."""
    try:
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
            return datetime.date.fromisoformat(date).isoformat()
    except ValueError:
        pass
    raise InputError(f"--date must be a day as YYYY-MM-DD; got {shortened(date, 30)!r}")


def today() -> str:
    """Today's date in UTC as YYYY-MM-DD."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def explanations() -> Mapping[str, str]:
    """Our short reasons by row id (calibration/published/explanations.yaml)."""
    return {str(key): str(text) for key, text in read_yaml(published_table("explanations.yaml")).items()}


def _score(answer: Published) -> str:
    steps = answer.steps
    rows = []
    for name, members in {"RL step time": list(steps.scored), **_by(steps.scored)}.items():
        errors = [row.error_pct for row in members]
        if errors:
            rows.append([name, str(len(errors)), *(per_cent(quantile_abs(errors, q)) for q in (0.5, 0.9))])
    others = group_errors(answer.compared())
    rows += [[group, str(n), per_cent(median), per_cent(worst)] for group, n, median, worst in others]
    coverage = (
        f"{percent(steps.interval_coverage or 0.0)} of the measured step times lie inside the 90 % interval, which "
        f"reaches a factor of {steps.score.half_width or 1.0:.2f} either way in the median."
    )
    head = ("what", "figures", "median error", "p90 of steps, largest of others")
    return section("Score", head, rows, coverage if steps.scored else "")


def _by(rows: Sequence[RowResult]) -> dict[str, list[RowResult]]:
    """Rows by model, by device and by mode."""
    out: dict[str, list[RowResult]] = {}
    for row in rows:
        out.setdefault("steps of " + row.model.split("/")[-1], []).append(row)
    for row in rows:
        out.setdefault("steps on " + row.device.upper(), []).append(row)
    for row in rows:
        out.setdefault("asynchronous steps" if row.mode.startswith("async") else "synchronous steps", []).append(row)
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
            f"{row.measured_s:.1f}",
            f"{row.predicted_s:.1f}",
            signed(row.error_pct),
            f"{row.low_s:.1f} - {row.high_s:.1f}",
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
    left += [[f"refit {name}", reason] for name, reason in answer.refits_left_out]
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
    told = (f"```\n{sweep.text()}\n```" for sweep in sweeps)
    return "\n\n".join(["## Sweeps over batch and context", _SWEEP_NOTE.strip(), *told])
