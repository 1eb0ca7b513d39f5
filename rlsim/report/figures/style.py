"""How pictures look: colours, fonts and resolution, whatever the user's matplotlibrc says.

Colours are Okabe and Ito's set, told apart by readers with any colour vision (Color Universal Design, 2008).
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from rlsim.report.format import NAMES

INK = "#222222"
GREY = "#767676"
BACKGROUND = "#E6E6E6"
PHASE_COLORS: dict[str, str] = {phase: color for phase, (_, color) in NAMES["phases"].items()}
VARIANT_COLORS = {"baseline": GREY, "candidate": "#0072B2", "autoregressive": "#0072B2", "update": "#0072B2"}
LINE_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK)
"""Of lines and marks that only have to differ, in this order."""
DPI = 150


def text_color(fill: str) -> str:
    """Black or white, whichever has more contrast on ``fill``, ``#RRGGBB`` (WCAG 2.1, by relative luminance)."""
    channels = [int(fill[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "black"


def text_that_fits(
    axes: Axes, room: tuple[float, float, float], labels: Sequence[str], share: float, **style: Any
) -> None:
    """The first of ``labels`` that takes less than a ``share`` of the room, or none: from left to right, at y."""
    left, right, y = room
    for label in labels:
        text = axes.text((left + right) / 2, y, label, ha="center", va="center", **style)
        # Only the renderer knows how wide a text is, so that it is drawn and taken away again.
        if text.get_window_extent().transformed(axes.transData.inverted()).width < share * (right - left):
            return
        text.remove()


@contextmanager
def picture_style() -> Iterator[None]:
    """Matplotlib's defaults whatever the user's matplotlibrc says, with our fonts and lines."""
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
                # Names from files may hold a dollar sign, which would begin a formula.
                "text.parse_math": False,
            }
        )
        yield


def counts_axis(axes: Axes) -> None:
    """A logarithmic axis of counts from left to right: ticks at 1, 2 and 5 of each decade, as whole numbers."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    # Where ticks are few, matplotlib names those between as formulas, which picture_style prints as they are written.
    axes.xaxis.set_minor_formatter("")


def save_picture(figure: Figure, path: Path) -> Path:
    """The ``path`` of a PNG of ``figure`` without a date: the same bytes for the same content."""
    with picture_style():
        FigureCanvasAgg(figure)
        # Without a date and a version of matplotlib among the metadata.
        with warnings.catch_warnings():
            # A name in letters that the font lacks shows boxes; a warning with a line of this file helps nobody.
            warnings.filterwarnings("ignore", "Glyph .* missing from")
            figure.savefig(path, format="png", dpi=DPI, metadata={"Software": "rlsim"})
    return path


def heading(figure: Figure, title: str, subtitle: str) -> None:
    """Title and subtitle at the top left of a picture."""
    height = figure.get_size_inches()[1]
    figure.text(0.02, 1 - 0.20 / height, title, fontsize=13, fontweight="bold", va="top")
    figure.text(0.02, 1 - 0.50 / height, subtitle, fontsize=9.5, color=GREY, va="top")


def plain_axes(figure: Figure, place: tuple[int, int, int], title: str, x: str, y: str) -> Axes:
    """Axes with a light grid behind what they show."""
    axes = figure.add_subplot(*place)
    axes.set_title(title, fontsize=9, loc="left", color=INK)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(color=BACKGROUND, linewidth=0.6)
    axes.set_axisbelow(True)
    return axes
