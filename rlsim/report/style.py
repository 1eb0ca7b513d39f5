"""How answers look: emphasis, encoding and width of text; colours, fonts and resolution of pictures.

Colours are Okabe and Ito's set, told apart by readers with any colour vision (Color Universal Design, 2008).
"""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#222222"
GREY = "#767676"
BACKGROUND = "#E6E6E6"
PHASE_COLORS = {
    "data_s": "#CC79A7",
    "prepare_s": "#F0E442",
    "refit_s": "#D55E00",
    "generation_s": "#0072B2",
    "exposed_generation_s": "#56B4E9",
    "logprob_s": "#E69F00",
    "train_s": "#009E73",
    "environment_s": "#8C564B",
    "judge_s": "#6A3D9A",
    "other": "#BBBBBB",
}
VARIANT_COLORS = {"baseline": GREY, "candidate": "#0072B2", "autoregressive": "#0072B2"}
LINE_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK)
"""Of lines and marks that only have to differ, in this order."""
DPI = 150
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
        """What ``stream`` can show: its encoding; on a terminal its width, and colour unless NO_COLOR forbids it."""
        terminal = stream.isatty()
        color = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        known = terminal or "COLUMNS" in os.environ
        width = shutil.get_terminal_size((cls.width, 24)).columns if known else cls.width
        return cls(min(WIDEST, max(NARROWEST, width)), color, stream.encoding or cls.encoding)

    def bold(self, text: str) -> str:
        """What to read first. Emphasis comes after padding, so that it never shifts a column."""
        return self._emphasised(text, "1")

    def dim(self, text: str) -> str:
        """What to read last."""
        return self._emphasised(text, "2")

    def _emphasised(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and text.strip() else text

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
        glued = re.sub(r"\S+ \[[^\]]*\]", lambda found: found.group().replace(" ", "\0"), text)
        lines = textwrap.wrap(
            self.readable(glued),
            self.width,
            initial_indent=label,
            subsequent_indent=" " * (len(label) if indent is None else indent),
            break_on_hyphens=False,
        )
        return [line.replace("\0", " ") for line in lines]

    def numbered(self, title: str, entries: Sequence[str]) -> list[str]:
        """A section of numbered sentences; nothing where there are none."""
        lines, digits = [self.bold(title)] if entries else [], len(str(len(entries)))
        for index, entry in enumerate(entries, start=1):
            lines += self.wrapped(entry, f"  {index:>{digits}}. ")
        return lines


DEFAULT_STYLE = Style()
"""Text for a file or a pipe: 100 columns of UTF-8."""


def luminance(color: str) -> float:
    """Relative luminance of ``#RRGGBB``, 0 to 1 (WCAG 2.1)."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.1)."""
    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def text_color(fill: str) -> str:
    """Black or white, whichever reads better on ``fill`` (WCAG 2.1 relative luminance)."""
    return "white" if contrast(fill, "#FFFFFF") > contrast(fill, "#000000") else "black"


@contextmanager
def picture_style() -> Iterator[None]:
    """Matplotlib's defaults whatever the user's matplotlibrc says, with our fonts and lines."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.size": 10.5,
                "axes.edgecolor": GREY,
                "axes.labelcolor": INK,
                "text.color": INK,
                "xtick.color": INK,
                "ytick.color": INK,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "text.parse_math": False,
            }
        )
        yield


def save_picture(figure: Figure, path: Path) -> Path:
    """Write a PNG without a date, the same bytes for the same content."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    figure.savefig(path, format="png", dpi=DPI, metadata={"Software": "rlsim"})
    return path
