"""The site of sizes and accuracy: two pages and their data, from answers alone."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from rlsim.report.page.parts import Block, Text, counted
from rlsim.report.page.report import environment, inlined
from rlsim.report.table import Table
from rlsim.report.text.validation import TITLES, errors_of, rows_table, scores_table
from rlsim.results.record import Interval
from rlsim.results.site import Anchor, GridCell, PastScore
from rlsim.results.validation import ComparedRow, Score, Validation

DIGITS = 4
"""Significant digits of the numbers in the pages' data."""
ROWS_OF = ("steps", "wild")
"""Kinds of which every row is shown: measured steps and their phases."""


def site_files(
    task: str,
    question: str,
    cells: Sequence[GridCell],
    anchors: Sequence[Anchor],
    tables: Mapping[str, Validation],
    past: Sequence[PastScore],
    version: str,
    documentation: bool,
    bare: Sequence[str] = (),
) -> dict[str, str]:
    """The files of the site by name: index.html, accuracy.html, and site.json, which index.html holds too, since a
    page from a folder may read no other file.

    task: the scenario whose words the cells hold. documentation: whether docs/index.html lies beside them. bare:
    devices of which no operators were measured.
    """  # fmt: skip
    data = json.dumps(_rounded(site_data(task, cells, anchors)), separators=(",", ":"), sort_keys=True)
    sheets = {name: inlined(f"{name}.css") for name in ("style", "site")}
    script, script_digest = inlined("site.js")
    shared = {
        "styles": [text for text, _ in sheets.values()],
        "style_digests": [digest for _, digest in sheets.values()],
        "version": version, "documentation": documentation,
    }  # fmt: skip
    pages = environment()
    return {
        "index.html": pages.get_template("site.html.j2").render(
            **shared, question=question, script=script, script_digest=script_digest, sections={},
            # Within a script element nothing but its end could end it.
            data=Markup(data.replace("<", "\\u003c")), steps=len(anchors), bare=list(bare),
        ),
        "accuracy.html": pages.get_template("site.html.j2").render(
            **shared, question="", script="", script_digest="", data="", bare=[],
            sections=accuracy_sections(tables, past),
        ),
        "site.json": f"{data}\n",
    }  # fmt: skip


def site_data(task: str, cells: Sequence[GridCell], anchors: Sequence[Anchor]) -> dict[str, Any]:
    """What the script reads: axes of the matrix in their order, cells with the words that repeat them, anchors."""
    axes = {
        name: list(dict.fromkeys(getattr(cell, name) for cell in cells))
        for name in ("model", "device", "gpus", "framework", "mode")
    }
    return {
        "axes": axes,
        "reproduce": f"rlsim project {task}",
        "cells": [_cell(cell) for cell in cells],
        "anchors": [one.model_dump() for one in anchors if one.model in axes["model"]],
    }


def _cell(cell: GridCell) -> dict[str, Any]:
    found = cell.model_dump(exclude={"step_s", "words"}, exclude_none=True, exclude_defaults=True)
    if isinstance(cell.step_s, Interval):
        found |= {"step_s": [cell.step_s.mean, cell.step_s.low, cell.step_s.high], "words": " ".join(cell.words)}
    return found


def _rounded(value: Any) -> Any:
    """Numbers of a document with DIGITS digits: a third of its size."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def accuracy_sections(tables: Mapping[str, Validation], past: Sequence[PastScore]) -> dict[str, list[Block]]:
    """Blocks of the page of accuracy by section."""
    scores = {TITLES[kind]: found.score for kind, found in tables.items()}
    sections: dict[str, list[Block]] = {
        "By kind": [scores_table("Published tables beside their predictions", scores)],
        "By release of rlsim": [_trend(tables, past)],
    }
    if "steps" in tables:
        releases: dict[str, list[ComparedRow]] = {}
        for row in tables["steps"].scored:
            releases.setdefault(str(row.details.get("release") or "none stated"), []).append(row)
        by_release = {name: Score.of(releases[name]) for name in sorted(releases)}
        sections["By release of the framework"] = [scores_table("RL steps", by_release)]
    for kind in (kind for kind in ROWS_OF if kind in tables):
        rows = rows_table("Every measured value with its prediction", tables[kind].scored, full_names=True)
        skipped = counted((row.skipped for row in tables[kind].rows if row.skipped), "row")
        sections[TITLES[kind]] = [Text("Reproduce:", _command(kind, tables[kind].table)), rows, *skipped]
    return sections


def _command(kind: str, table: str) -> str:
    folder = "calibration/published/wild" if kind == "wild" else "calibration/published"
    return f"rlsim validate table {folder}/{table} --kind {kind} --replications 4"


def _trend(tables: Mapping[str, Validation], past: Sequence[PastScore]) -> Table:
    """Errors of each kind by release, this one last, and how the median moved."""
    rows = []
    for kind, found in tables.items():
        before = [one for one in past if one.kind == kind]
        for one in before:
            errors = (f"{one.median_error_pct:.1f} %", f"{one.p90_error_pct:.1f} %", f"{one.inside_pct:.0f} %", "")
            rows.append((TITLES[kind], one.release, one.date, f"{one.rows:,}", *errors))
        if found.score.n:
            _, median, p90 = errors_of(found.score)
            moved = ""
            # Of another set of rows the error is another question.
            if before and before[-1].rows == found.score.n:
                moved = f"{100 * (found.score.median_abs_error or 0.0) - before[-1].median_error_pct:+.1f}"
            inside = f"{100 * (found.score.coverage or 0.0):.0f} %"
            rows.append((TITLES[kind], "this build", "", f"{found.score.n:,}", median, p90, inside, moved))
    heads = ("", "release", "date", "rows", "median error", "p90", "inside 90 %", "median moved, points")
    return Table(
        "Errors by release", "what its accuracy page said; rows differ where tables grew", heads, rows, "<<<>>>>>"
    )
