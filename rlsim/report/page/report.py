"""``report``: the page of a folder of results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlsim.errors import InputError
from rlsim.files.reading import shown_path
from rlsim.files.writing import staged_folder
from rlsim.report.page.blame_page import blame_part
from rlsim.report.page.folder import kinds_in
from rlsim.report.page.page import Part, page
from rlsim.report.page.plan_page import plan_part
from rlsim.report.page.projection_page import projection_part
from rlsim.report.page.run_page import run_part
from rlsim.report.page.sweep_page import sweep_part
from rlsim.report.page.validation_page import validation_part

PARTS: dict[str, Callable[[Path, list[str]], Part]] = {
    "projection": projection_part,
    "run": run_part,
    "plan": plan_part,
    "sweep": sweep_part,
    "validation": validation_part,
    "blame": blame_part,
}
SUFFIXES = (".html", ".htm")


def report(folder: Path) -> str:
    """The page of all results in ``folder``; the same files give the same page.

    Raises InputError naming file and key where a file cannot be used, and saying what is missing where the folder holds
    no results.
    """
    notes: list[str] = []
    parts = [PARTS[kind](folder, notes) for kind in kinds_in(folder)]
    return page(parts, list(dict.fromkeys(notes)))


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page of ``folder`` to ``out``, by default report.html in it, whole or not at all.

    Raises InputError as :func:`report`, where ``out`` is no name of a page, and where it cannot be written.
    """
    target = folder / "report.html" if out is None else out
    if target.suffix.lower() not in SUFFIXES or target.is_dir():
        raise InputError(f"{shown_path(target)}: the report needs a file name that ends in .html")
    text = report(folder)
    with staged_folder(target.parent) as stage:
        (stage / target.name).write_text(text, encoding="utf-8", newline="\n")
    return target
