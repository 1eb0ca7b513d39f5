"""Colours of the report in both themes, and the patterns that tell areas apart without them.

Tones are the colours of the pictures (rlsim/report/style.py), made darker or lighter until they stand out from the
page as WCAG 2.1 wants of graphical objects (success criterion 1.4.11).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlsim.report.figures.style import GREY, INK, LINE_COLORS, PHASE_COLORS, contrast

TEXT_CONTRAST, AREA_CONTRAST = 4.5, 3.0
"""Least contrast of text (level AA) and of graphical objects with what they stand on."""
STEPS = 100


@dataclass(frozen=True)
class Theme:
    """paper: the page; panel: tables and key figures; rule: hairlines; dim: secondary text; accent: links, marks."""

    paper: str
    panel: str
    ink: str
    dim: str
    rule: str
    accent: str
    bad: str


LIGHT = Theme("#FFFFFF", "#F5F6F7", INK, "#5C6166", "#D8DBDE", "#0072B2", "#A84300")
DARK = Theme("#15181B", "#1E2226", "#E9EAEB", "#A8AEB4", "#3A4046", "#56B4E9", "#F0915A")

PATTERNS = ("plain", "rising", "dots", "falling", "upright", "cross", "level", "grid")
"""Patterns in the order in which neighbours differ most."""

_PHASES = {name.removesuffix("_s"): color for name, color in PHASE_COLORS.items()}
SOURCES: Mapping[str, str] = {
    **_PHASES,
    "baseline": GREY,
    "candidate": LINE_COLORS[0],
    "measured": LINE_COLORS[2],
    "modelled": LINE_COLORS[0],
    "assumed": LINE_COLORS[4],
    **{f"series{i}": color for i, color in enumerate(LINE_COLORS[:-1])},
}
"""Colour of the pictures by tone."""
TONE_PATTERNS: Mapping[str, str] = {
    "generation": "plain",
    "exposed_generation": "rising",
    "train": "falling",
    "logprob": "dots",
    "refit": "cross",
    "prepare": "level",
    "data": "grid",
    "environment": "upright",
    "judge": "grid",
    "other": "level",
    "baseline": "rising",
    "candidate": "plain",
    "measured": "plain",
    "modelled": "rising",
    "assumed": "dots",
    **{f"series{i}": pattern for i, pattern in enumerate(PATTERNS[:6])},
}


def tones(theme: Theme) -> dict[str, str]:
    """Every tone in ``theme``, with AREA_CONTRAST to the page."""
    return {name: adapted(color, theme.paper, AREA_CONTRAST) for name, color in SOURCES.items()}


def adapted(color: str, paper: str, least: float) -> str:
    """``color`` mixed with as little black (on light paper) or white as gives it the contrast ``least``."""
    toward = "#000000" if contrast(paper, "#000000") > contrast(paper, "#FFFFFF") else "#FFFFFF"
    return next(
        mixed for step in range(STEPS + 1) if contrast(mixed := mix(color, toward, step / STEPS), paper) >= least
    )


def mix(first: str, second: str, share: float) -> str:
    """``share`` (0..1) of the second colour in the first, channel by channel."""
    pairs = ((int(first[i : i + 2], 16), int(second[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in pairs)


def heat(theme: Theme) -> list[str]:
    """Backgrounds of the cells of a heat map from worst to best, faint enough for the theme's text on all of them."""
    low, high = theme.bad, theme.accent
    sides = [mix(theme.paper, low, s) for s in HEAT_SHARES[::-1]], [mix(theme.paper, high, s) for s in HEAT_SHARES]
    return [*sides[0], theme.paper, *sides[1]]


HEAT_SHARES = (0.09, 0.18, 0.27, 0.36)
"""Shares of the full colour in the cells beside the middle one."""
