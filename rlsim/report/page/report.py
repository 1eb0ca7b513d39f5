"""``report``: the page of a folder of results."""

import base64
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from rlsim.errors import InputError, readable
from rlsim.files.reading import shown_path
from rlsim.report.folder import KINDS, drawable, kinds_in, read_answer, write_files
from rlsim.report.page import answers
from rlsim.report.page.parts import WORDS, Part
from rlsim.report.page.projection import projection_part

PARTS: dict[str, Callable[[Any], Part]] = {
    "projection": projection_part,
    "run": answers.run_part,
    "plan": answers.plan_part,
    "sweep": answers.sweep_part,
    "validation": answers.validation_part,
    "check": answers.check_part,
    "improvement": answers.improvement_part,
    "size": answers.size_part,
    "k": answers.draft_part,
}
SUFFIXES = (".html", ".htm")
HERE = Path(__file__).parent


def report(folder: Path) -> str:
    """The page of all results in ``folder``; the same files give the same page.

    Every text passes through the template's escaping, and the page forbids itself scripts, network and foreign styles.
    Raises InputError naming file and key where a file cannot be used, and saying what is missing where the folder holds
    no results.
    """
    left_out: list[str] = []
    parts = []
    for kind in kinds_in(folder):
        with drawable(folder / KINDS[kind][0]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matplotlib says of odd numbers
            parts.append(PARTS[kind](read_answer(kind, folder, left_out)))
    style, digest = inlined("style.css")
    content = {"parts": parts, "titles": WORDS["sections"], "notes": list(dict.fromkeys(left_out)), "digest": digest}
    return environment().get_template("page.html.j2").render(**content, style=style)


def inlined(name: str) -> tuple[Markup, str]:
    """A style or script beside this module and its SHA-256 as a page's policy wants it: nothing else can run there."""
    text = (HERE / name).read_text(encoding="utf-8")
    return Markup(text), base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def environment() -> jinja2.Environment:
    """What renders the templates: every text is escaped, and rid of control characters, which files may hold."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined,
        finalize=lambda value: readable(value) if type(value) is str else value,
    )  # fmt: skip


def write_report(folder: Path, out: Path | None = None) -> Path:
    """The path of the page of ``folder``, written to ``out``, by default report.html in it, whole or not at all.

    Raises InputError as :func:`report`, where ``out`` is no name of a page, and where it cannot be written.
    """
    target = folder / "report.html" if out is None else out
    if target.suffix.lower() not in SUFFIXES or target.is_dir():
        raise InputError(f"{shown_path(target)}: the report needs a file name that ends in .html")
    text = report(folder)
    write_files({target.name: text}, target.parent)
    return target
