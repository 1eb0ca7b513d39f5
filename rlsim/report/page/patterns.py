"""Patterns that lie over the colours, so that areas differ in print and to every eye."""

from __future__ import annotations

from collections.abc import Mapping

from rlsim.report.page.markup import Markup, tag
from rlsim.report.page.palette import PATTERNS, TONE_PATTERNS

SIZE = 8
_PATHS = {
    "rising": "M-2,2 L2,-2 M0,8 L8,0 M6,10 L10,6",
    "falling": "M-2,6 L2,10 M0,0 L8,8 M6,-2 L10,2",
    "upright": "M4,0 V8",
    "level": "M0,4 H8",
    "cross": "M0,0 L8,8 M0,8 L8,0",
    "grid": "M4,0 V8 M0,4 H8",
}


def pattern_definitions() -> Markup:
    """The patterns of the whole page, once; a picture of no size."""
    made = []
    for name in PATTERNS[1:]:
        mark = (
            tag("circle", cx=4, cy=4, r=1.4, class_="mark dot")
            if name == "dots"
            else tag("path", d=_PATHS[name], class_="mark")
        )
        made.append(tag("pattern", mark, id=f"p-{name}", width=SIZE, height=SIZE, patternUnits="userSpaceOnUse"))
    return tag("svg", tag("defs", *made), class_="defs", aria_hidden="true", focusable="false")


def area(tone: str, title: str | None = None, **place: str | float) -> list[Markup]:
    """A rectangle in a tone and its pattern over it; ``place`` holds x, y, width, height. title: what it is."""
    told = tag("title", title) if title else None
    filled = tag("rect", told, class_=f"f-{tone} gap", **place)
    pattern = TONE_PATTERNS[tone]
    if pattern == "plain":
        return [filled]
    return [filled, tag("rect", fill=f"url(#p-{pattern})", pointer_events="none", **place)]


def legend(entries: Mapping[str, str]) -> Markup:
    """Swatches and what they mean: tone -> words."""
    return tag(
        "ul",
        *(
            tag(
                "li",
                tag("svg", *area(tone, x=0, y=0, width=22, height=14), width=22, height=14, aria_hidden="true"),
                words,
            )
            for tone, words in entries.items()
        ),
        class_="legend",
    )
