"""Pieces of a Markdown document: tables whose cells hold no markup, and errors as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlsim.errors import shortened


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, nothing where there are no rows."""
    return "\n".join([_line(head), "|" + "---|" * len(head), *map(_line, rows)]) if rows else ""


def section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], after: str = "") -> str:
    """A titled table and a paragraph ``after`` it, nothing where there are no rows."""
    if not rows:
        return ""
    return "\n\n".join(part for part in (f"## {title}", table(head, rows), after) if part)


def code(text: str) -> str:
    """``text`` as a piece of code in a line."""
    return f"`{shortened(text, 200).replace('`', '')}`"


def plain(text: str) -> str:
    """``text`` in which nothing is markup."""
    return re.sub(r"([\\|`*_<>\[\]])", r"\\\1", shortened(text, 400))


def per_cent(value: float | None) -> str:
    """An error in per cent, without its sign."""
    return "-" if value is None else f"{value:.1f} %"


def signed(value: float | None) -> str:
    """An error in per cent, with its sign."""
    return "-" if value is None else f"{value:+.1f} %"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(plain, cells)) + " |"
