"""Performance simulator and capacity planner for RL post-training of large language models.

Library use: ``print(rlsim.project(rlsim.load_scenario("quickstart", {"k": 2})))``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlsim.attribution.check import check as check
    from rlsim.errors import Infeasible as Infeasible
    from rlsim.errors import InputError as InputError
    from rlsim.errors import RlsimError as RlsimError
    from rlsim.explore.live import live as live
    from rlsim.loading.scenario import load_scenario as load_scenario
    from rlsim.loading.scenario import vary as vary
    from rlsim.planning.cliffs import cliffs as cliffs
    from rlsim.planning.compare import compare as compare
    from rlsim.planning.draft_lengths import draft_lengths as draft_lengths
    from rlsim.planning.fitting import enough_places as enough_places
    from rlsim.planning.fitting import largest_that_fit as largest_that_fit
    from rlsim.planning.fitting import preflight as preflight
    from rlsim.planning.improve import improve as improve
    from rlsim.planning.new import Answers as Answers
    from rlsim.planning.objective import Objective as Objective
    from rlsim.planning.plan import plan as plan
    from rlsim.planning.size import Wanted as Wanted
    from rlsim.planning.size import size as size
    from rlsim.planning.space import SearchLimits as SearchLimits
    from rlsim.planning.sweep import sweep as sweep
    from rlsim.projection.project import project as project
    from rlsim.readers.logs.reporting import live_report as live_report
    from rlsim.readers.logs.reporting import trainer_callback as trainer_callback
    from rlsim.runs.run import run as run
    from rlsim.schema.scenario import Scenario as Scenario

_HOMES = {
    "Answers": "rlsim.planning.new",
    "Infeasible": "rlsim.errors",
    "InputError": "rlsim.errors",
    "Objective": "rlsim.planning.objective",
    "RlsimError": "rlsim.errors",
    "Scenario": "rlsim.schema.scenario",
    "SearchLimits": "rlsim.planning.space",
    "Wanted": "rlsim.planning.size",
    "check": "rlsim.attribution.check",
    "cliffs": "rlsim.planning.cliffs",
    "compare": "rlsim.planning.compare",
    "draft_lengths": "rlsim.planning.draft_lengths",
    "enough_places": "rlsim.planning.fitting",
    "improve": "rlsim.planning.improve",
    "largest_that_fit": "rlsim.planning.fitting",
    "live": "rlsim.explore.live",
    "live_report": "rlsim.readers.logs.reporting",
    "load_scenario": "rlsim.loading.scenario",
    "plan": "rlsim.planning.plan",
    "preflight": "rlsim.planning.fitting",
    "project": "rlsim.projection.project",
    "run": "rlsim.runs.run",
    "size": "rlsim.planning.size",
    "sweep": "rlsim.planning.sweep",
    "trainer_callback": "rlsim.readers.logs.reporting",
    "vary": "rlsim.loading.scenario",
}
"""Public names and the modules that they are of."""
_IN_TRAINING = ("live_report", "trainer_callback")
"""Names that training jobs import: no answer is shown there, and pydantic, numpy and the like stay out."""
__all__ = [*_HOMES]
__version__: str


def __getattr__(name: str) -> Any:
    """Public names load on first use, so that ``import rlsim`` costs nothing (PEP 562)."""
    if name == "__version__":
        from rlsim.files.reading import installed_version

        value = installed_version()
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        if name not in _IN_TRAINING:
            _show_answers()
    else:
        raise AttributeError(f"module 'rlsim' has no attribute '{name}'")
    globals()[name] = value
    return value


def _show_answers() -> None:
    """Let answers print as the command line shows them; reports are imported when the first one is printed."""
    from rlsim.results import answer

    def render(shown: answer.Answer, style: Any) -> str:
        from rlsim.report.text import render as text_of

        return text_of(shown, style)

    answer.rendered_by(render)


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
