"""A few cheap alternatives to a scenario as it is: what one would try next without buying anything."""

from __future__ import annotations

import json
from dataclasses import dataclass

from rlsim.errors import InputError
from rlsim.loading.scenario import vary
from rlsim.loading.variation import Overrides
from rlsim.planning.compare import differences
from rlsim.schema.scenario import Scenario

AS_IT_IS = "as it is"


@dataclass(frozen=True)
class Alternative:
    """A scenario to choose. changes: overrides that lead to it, as ``--set`` takes them."""

    name: str
    scenario: Scenario
    changes: tuple[str, ...] = ()


def alternatives(scenario: Scenario) -> tuple[Alternative, ...]:
    """The scenario as it is and its valid neighbours: without speculation, other draft lengths, engine tensor
    parallelism, and no lag."""
    out = [Alternative(AS_IT_IS, scenario)]
    for name, overrides in _wanted(scenario):
        try:
            other = vary(scenario, overrides)
        except InputError:
            continue
        if all(other != known.scenario for known in out):
            changed = differences(scenario, other)
            told = tuple(f"{key}={json.dumps(value)}" for key, (_, value) in changed.items())
            out.append(Alternative(name, other, told))
    return tuple(out)


def _wanted(scenario: Scenario) -> list[tuple[str, Overrides]]:
    out: list[tuple[str, Overrides]] = []
    k, tensor = scenario.speculation.draft_length, scenario.engine.tensor_parallel
    if scenario.speculation.active:
        out += [("no speculation", {"k": 0})]
        out += [(f"draft length {other}", {"k": other}) for other in (k - 1, k + 1) if other > 0]
    sizes = [size for size in (tensor // 2, tensor * 2) if size > 0]
    out += [(f"engine tensor parallel {size}", {"engine.tensor_parallel": size}) for size in sizes]
    if scenario.loop.mode == "async":
        out += [("no lag, on shared GPUs", {"lag": 0})]
    return out
