"""Pieces of a Markdown document: tables whose cells hold no markup, and errors as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlsim.errors import shortened
from rlsim.report.format import percent
from rlsim.results.validation import Score

SCORE_HEAD = ("rows", "median error", "p90", "bias", "inside the 90 % interval", "half width")
"""Columns of :func:`score_cells`."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, nothing where there are no rows."""
    return "\n".join([_line(head), "|" + "---|" * len(head), *map(_line, rows)]) if rows else ""


def section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], after: str = "") -> str:
    """A titled table and a paragraph ``after`` it, nothing where there are no rows."""
    if not rows:
        return ""
    return "\n\n".join(part for part in (f"## {title}", table(head, rows), after) if part)


def plain(text: str) -> str:
    """``text`` in which nothing is markup."""
    return re.sub(r"([\\|`*_<>\[\]])", r"\\\1", shortened(text, 400))


def per_cent(value: float | None) -> str:
    """An error in per cent, without its sign."""
    return "-" if value is None else f"{value:.1f} %"


def signed(value: float | None) -> str:
    """An error in per cent, with its sign."""
    return "-" if value is None else f"{value:+.1f} %"


def score_cells(score: Score) -> list[str]:
    """A score as cells: rows, absolute errors, bias, and of the intervals coverage and half width."""
    errors = (score.median_abs_error, score.p90_abs_error)
    shares = [per_cent(None if e is None else 100 * e) for e in errors]
    bias = signed(None if score.bias is None else 100 * score.bias)
    width = "-" if score.half_width is None else f"{score.half_width:.2f}x"
    return [f"{score.n:,}", *shares, bias, "-" if score.coverage is None else percent(score.coverage), width]


def _line(cells: Sequence[str]) -> str:
    return "|" + "|".join(map(plain, cells)) + "|"
