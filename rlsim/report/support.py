"""What supports the answer, in a terminal: the grade, the nearest measured runs, what the interval leans on."""

from __future__ import annotations

import math

from rlsim.report import format as fmt
from rlsim.report.style import Style
from rlsim.report.table import table
from rlsim.results import HalfSupport, Leaning, Projection, Support

LABELS = {"step": "step", "iteration": "engine", "training": "trainer", "transfer": "transfer"}
LEAST_HALF_SHARE = 0.05
"""Halves below this share of the step are left out."""
MOST_LEANING, LEAST_LEANING, LEAST_ASSUMED = 3, 0.10, 0.05
"""Sources shown: the largest, none below the first share; those that nothing was measured of down to the second."""
MOST_DIFFERENCES = 2
LONGEST_ID = 24


def support_lines(projection: Projection, style: Style) -> list[str]:
    """The grade with its reason, a line for the nearest measured run of each half, and what the interval leans on."""
    support = projection.support
    if support is None:
        return []
    within, away = fmt.percent(support.half_width), _distance(support.distance)
    reason = (
        f"{support.meaning}; step within {within} either way (90 %), and measured runs that differ as much miss each "
        f"other by {away}"
    )
    shown = [half for half in support.halves if half.half == "step" or half.share >= LEAST_HALF_SHARE]
    rows = [_row(half) for half in sorted(shown, key=lambda half: -half.share)]
    heads = ("", "share", "nearest measured", "away", "which has")
    title = style.bold(f"Support: grade {support.grade}")
    return [title, *style.wrapped(reason, "  "), *table(heads, rows, style, "<><><"), *_leaning(support, style)]


def leanings(support: Support) -> list[Leaning]:
    """The sources worth telling."""
    largest = [one for one in support.leaning if one.share >= LEAST_LEANING][:MOST_LEANING]
    assumed = [one for one in support.leaning if one.assumed and one.share >= LEAST_ASSUMED]
    return [*largest, *(one for one in assumed if one not in largest)]


def _row(half: HalfSupport) -> tuple[str, ...]:
    """A half with its nearest run: what that has where it differs."""
    share = "" if half.half == "step" else fmt.percent(half.share)
    if not half.nearest:
        return LABELS[half.half], share, "nothing", "", ""
    row = half.nearest[0]
    told = [f"{one.feature} {one.measured}" for one in row.differences[:MOST_DIFFERENCES]]
    if len(row.differences) > MOST_DIFFERENCES:
        told.append(f"{len(row.differences) - MOST_DIFFERENCES} more")
    name = row.id if len(row.id) <= LONGEST_ID else f"{row.id[: LONGEST_ID - 3]}..."
    return LABELS[half.half], share, name, _distance(row.distance), ", ".join(told) or "the same"


def _leaning(support: Support, style: Style) -> list[str]:
    """What the interval leans on, and what settles most of it."""
    sources = leanings(support)
    if not sources:
        return []
    told = (f"{fmt.percent(one.share)} {one.source}{' (assumed)' if one.assumed else ''}" for one in sources)
    ways = dict.fromkeys((one.settle, one.command) for one in sources if one.assumed or one is sources[0])
    settled = " ".join(f"To settle it: {settle} ({command})." for settle, command in ways)
    return style.wrapped(f"Its variance leans on {'; '.join(told)}. {settled}", "  ")


def _distance(distance: float) -> str:
    return fmt.percent(math.expm1(distance)) if math.isfinite(distance) else "nobody knows how much"
