"""Answers as text for a terminal: one module for each answer."""

import importlib
from typing import Any

from rlsim.results.answer import Answer

RENDERERS = {
    "Projection": "projection:render_brief", "Run": "run:render", "SweepResult": "planning:render_sweep",
    "Plan": "plan:render_plan", "Comparison": "planning:render_comparison", "Blame": "attribution:render_blame",
    "Techniques": "attribution:render_techniques", "Sensitivity": "planning:render_sensitivity",
    "Check": "attribution:render_check", "Sizing": "run:render_size", "Headroom": "attribution:render_headroom",
    "Improvement": "improvement:render_improvement", "DraftCurve": "improvement:render_draft_curve",
    "Preflight": "fitting:render_preflight", "FreeKeys": "fitting:render_free",
    "Cliffs": "fitting:render_cliffs",
    "EnoughPlaces": "fitting:render_enough",
    "Validation": "validation:validation_text", "Published": "validation:published_text",
    "CrossValidation": "validation:cross_text",
}  # fmt: skip
"""Module and function by the answer that they show; each is imported when such an answer is."""


def render(answer: Answer, style: Any = None) -> str:
    """The text of any answer; style: of a terminal (``rlsim.report.style``), plain text without one."""
    module, _, function = RENDERERS[type(answer).__name__].partition(":")
    show = getattr(importlib.import_module(f"{__name__}.{module}"), function)
    return str(show(answer) if style is None else show(answer, style))
