"""How text looks: emphasis, encoding and width."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

ASCII_GLYPHS = str.maketrans({"█": "#", "▓": "+", "░": ".", "─": "-", "→": "->"})
NARROWEST, WIDEST = 40, 120
"""Columns of text, whatever a terminal says of itself."""


@dataclass(frozen=True)
class Style:
    """How text is written: columns to wrap at, whether ANSI bold and dim are shown, and the encoding it must fit."""

    width: int = 100
    color: bool = False
    encoding: str = "utf-8"

    @classmethod
    def of(cls, stream: TextIO) -> Style:
        """The style of ``stream``: its encoding; on a terminal its width, and colour unless NO_COLOR forbids it."""
        terminal = stream.isatty()
        color = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        known = terminal or "COLUMNS" in os.environ
        width = cls.width
        if known:
            # Inside: pipes need no size, and the module takes part of a cold start.
            import shutil

            width = shutil.get_terminal_size((cls.width, 24)).columns
        return cls(min(WIDEST, max(NARROWEST, width)), color, stream.encoding or cls.encoding)

    def bold(self, text: str) -> str:
        """``text`` in bold where colour is on. Emphasis comes after padding, so that it never shifts a column."""
        return f"\x1b[1m{text}\x1b[0m" if self.color and text.strip() else text

    def dim(self, text: str) -> str:
        """``text`` dimmed where colour is on."""
        return f"\x1b[2m{text}\x1b[0m" if self.color and text.strip() else text

    def readable(self, text: str) -> str:
        """``text`` as it is, or in ASCII glyphs and escapes where the encoding lacks a character of it."""
        try:
            text.encode(self.encoding)
        except UnicodeEncodeError:
            return text.translate(ASCII_GLYPHS).encode(self.encoding, "backslashreplace").decode(self.encoding)
        return text

    def wrapped(self, text: str, label: str = "", indent: int | None = None) -> list[str]:
        """Lines within the width that keep a number and its interval together.

        The first begins with ``label``, the others with ``indent`` blanks (default: as many as the label has).
        """
        # NUL stands for the blanks of "mean [low, high]": textwrap breaks at blanks only.
        glued = re.sub(r"\S+ \[[^\]]*\]", lambda found: found.group().replace(" ", "\0"), text)
        lines = textwrap.wrap(
            self.readable(glued),
            self.width,
            initial_indent=label,
            subsequent_indent=" " * (len(label) if indent is None else indent),
            break_on_hyphens=False,
        )
        return [line.replace("\0", " ") for line in lines]

    def paragraphs(self, texts: Iterable[str], label: str = "  ") -> list[str]:
        """Lines of all ``texts``, each :meth:`wrapped`."""
        return [line for text in texts for line in self.wrapped(text, label)]

    def opening(self, headline: str, *about: str) -> list[str]:
        """The first lines of an answer: what it says, and below it what was asked."""
        return [*map(self.bold, self.wrapped(headline)), *map(self.dim, self.paragraphs(about, ""))]

    def numbered(self, title: str, entries: Sequence[str]) -> list[str]:
        """A section of numbered sentences; nothing where there are none."""
        lines, digits = [self.bold(title)] if entries else [], len(str(len(entries)))
        for index, entry in enumerate(entries, start=1):
            lines += self.wrapped(entry, f"  {index:>{digits}}. ")
        return lines


def sections(*parts: Sequence[str]) -> str:
    """The text of an answer: lines of its parts with a blank line between them, parts without lines left out."""
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


DEFAULT_STYLE = Style()
"""Text for a file or a pipe: 100 columns of UTF-8."""
