"""Performance simulator and capacity planner for RL post-training of large language models.

Library use: ``print(rlsim.project(rlsim.load_scenario("quickstart", {"k": 2})))``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlsim.attribution.check import check
    from rlsim.attribution.headroom import blame, headroom
    from rlsim.errors import Infeasible, InputError, RlsimError
    from rlsim.explore.live import live
    from rlsim.loading.scenario import load_scenario, vary
    from rlsim.planning.compare import compare
    from rlsim.planning.new import Answers
    from rlsim.planning.objective import Objective
    from rlsim.planning.plan import plan
    from rlsim.planning.sensitivity import sensitivity
    from rlsim.planning.size import Wanted, size
    from rlsim.planning.space import SearchLimits
    from rlsim.planning.sweep import sweep
    from rlsim.projection.project import project
    from rlsim.runs.run import run
    from rlsim.schema.scenario import Scenario

__all__ = [
    "Answers",
    "Infeasible",
    "InputError",
    "Objective",
    "RlsimError",
    "Scenario",
    "SearchLimits",
    "Wanted",
    "blame",
    "check",
    "compare",
    "headroom",
    "live",
    "load_scenario",
    "plan",
    "project",
    "run",
    "sensitivity",
    "size",
    "sweep",
    "vary",
]

_HOMES = {
    "Answers": "rlsim.planning.new",
    "Infeasible": "rlsim.errors",
    "InputError": "rlsim.errors",
    "Objective": "rlsim.planning.objective",
    "RlsimError": "rlsim.errors",
    "Scenario": "rlsim.schema.scenario",
    "SearchLimits": "rlsim.planning.space",
    "Wanted": "rlsim.planning.size",
    "blame": "rlsim.attribution.headroom",
    "check": "rlsim.attribution.check",
    "compare": "rlsim.planning.compare",
    "headroom": "rlsim.attribution.headroom",
    "live": "rlsim.explore.live",
    "load_scenario": "rlsim.loading.scenario",
    "plan": "rlsim.planning.plan",
    "project": "rlsim.projection.project",
    "run": "rlsim.runs.run",
    "sensitivity": "rlsim.planning.sensitivity",
    "size": "rlsim.planning.size",
    "sweep": "rlsim.planning.sweep",
    "vary": "rlsim.loading.scenario",
}

__version__: str


def __getattr__(name: str) -> Any:
    """Public names load on first use, so that ``import rlsim`` costs nothing (PEP 562)."""
    if name == "__version__":
        from rlsim.files.reading import installed_version

        value = installed_version()
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'rlsim' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
