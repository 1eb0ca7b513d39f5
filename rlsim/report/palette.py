"""Colours of the pictures: Okabe and Ito's set, told apart by readers with any colour vision.

Source: M. Okabe, K. Ito, Color Universal Design (2008).
"""

from __future__ import annotations

from rlsim.report.words import phase_name
from rlsim.results import Span

INK = "#222222"
GREY = "#767676"
BACKGROUND = "#E6E6E6"
PHASE_COLORS = {
    "data": "#CC79A7",
    "prepare": "#F0E442",
    "refit": "#D55E00",
    "generation": "#0072B2",
    "exposed_generation": "#56B4E9",
    "logprob": "#E69F00",
    "train": "#009E73",
    "other": "#BBBBBB",
}
ARM_COLORS = {"baseline": GREY, "candidate": "#0072B2", "autoregressive": "#0072B2"}


def phase_color(phase: str) -> str:
    """Fill of a phase; unknown phases share the grey of ``other``."""
    return PHASE_COLORS.get(phase_name(phase), PHASE_COLORS["other"])


def span_color(span: Span) -> str:
    """Fill of a span; whatever a generator or a replica does under a name of its own is generation."""
    if phase_name(span.phase) not in PHASE_COLORS and span.actor.startswith(("generator", "replica")):
        return PHASE_COLORS["generation"]
    return phase_color(span.phase)


def text_color(fill: str) -> str:
    """Black or white, whichever reads better on ``fill`` (WCAG 2.1 relative luminance)."""
    channels = [int(fill[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "black"
