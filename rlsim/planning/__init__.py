"""From one projection to a decision: sweeps, plans, comparisons, and what to measure next.

``sweep``, ``plan``, ``compare`` and ``what_to_measure`` are the library calls behind the commands sweep, plan, compare
and sensitivity; ``Goal`` and ``Limits`` say what a plan is for and where to look.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlsim.planning.comparing import compare
    from rlsim.planning.goals import Goal
    from rlsim.planning.planner import plan
    from rlsim.planning.sensitivity import what_to_measure
    from rlsim.planning.space import Limits
    from rlsim.planning.sweeping import sweep

__all__ = ["Goal", "Limits", "compare", "plan", "sweep", "what_to_measure"]

_HOMES = {
    "Goal": "goals",
    "Limits": "space",
    "compare": "comparing",
    "plan": "planner",
    "sweep": "sweeping",
    "what_to_measure": "sensitivity",
}


def __getattr__(name: str) -> Any:
    """Public names load on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rlsim.planning' has no attribute '{name}'")
    return getattr(importlib.import_module(f"rlsim.planning.{_HOMES[name]}"), name)
