"""What differs between two scenarios, and the overrides that lead from one to the other."""

import json
from collections.abc import Mapping
from typing import Any

from rlsim.schema.scenario import Scenario

IGNORED = ("name", "question", "assumptions", "missing")
"""Keys that describe a scenario without changing its answer."""


def differences(first: Scenario, second: Scenario) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ, in the order of the schema; names, questions and assumptions do not count."""
    before, after = (flattened(scenario.model_dump(mode="json")) for scenario in (first, second))
    keys = [key for key in dict.fromkeys([*before, *after]) if key.split(".")[0] not in IGNORED]
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def changes(first: Scenario, second: Scenario) -> tuple[str, ...]:
    """Overrides that turn ``first`` into ``second``, as ``--set`` takes them."""
    return tuple(f"{key}={json.dumps(value)}" for key, (_, value) in differences(first, second).items())


def flattened(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys of nested mappings."""
    out: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            out |= flattened(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out
