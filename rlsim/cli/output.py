"""How answers reach the terminal: encoding, colour and width are decided once, and a failing stream is one message."""

from __future__ import annotations

import io
import os
import shutil
import sys
from dataclasses import dataclass

from rlsim.errors import InputError

GLYPHS = "█▓░─"
"""Characters that a terminal must be able to show before it gets any of them."""
DEFAULT_WIDTH, LEAST_WIDTH, MOST_WIDTH = 100, 60, 120
"""Columns of text without a terminal, and the least and most of one."""


@dataclass(frozen=True)
class Style:
    """What the output stream can show. width: columns; color: ANSI emphasis; unicode: block characters."""

    width: int
    color: bool
    unicode: bool


def style() -> Style:
    """The style of standard output. NO_COLOR and TERM=dumb (no-color.org) turn colour off."""
    terminal = sys.stdout.isatty()
    columns = shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return Style(max(LEAST_WIDTH, min(MOST_WIDTH, columns)), terminal and not plain, _shows(GLYPHS))


def _shows(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def print_answer(text: str) -> None:
    """Print ``text`` with one newline at its end; a reader that stopped listening (``| head``) is no error.

    Characters that the stream's encoding lacks appear as their escapes.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(text.rstrip("\n"), flush=True)
    except OSError as error:
        # What is still buffered must go somewhere, or the interpreter fails once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise InputError(f"standard output: {error.strerror}") from error
