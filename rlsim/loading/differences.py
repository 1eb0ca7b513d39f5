"""What differs between two scenarios, and the overrides that lead from one to the other."""

import json
from collections.abc import Mapping
from typing import Any

from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import ACCEPTANCE_AT, ACCEPTANCE_KEYS, Speculation

IGNORED = ("name", "question", "assumptions", "missing")
"""Keys that describe a scenario without changing its answer."""


def differences(first: Scenario, second: Scenario) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ, in the order of the schema; names, questions and assumptions do not count."""
    before, after = (flattened(scenario.model_dump(mode="json")) for scenario in (first, second))
    keys = [key for key in dict.fromkeys([*before, *after]) if key.split(".")[0] not in IGNORED]
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def changes(first: Scenario, second: Scenario) -> tuple[str, ...]:
    """Overrides that turn ``first`` into ``second``, as ``--set`` takes them."""
    document, out = second.model_dump(mode="json"), dict[str, Any]()
    for key in differences(first, second):
        place, value = _found(document, key)
        out[place] = value
    if second.speculation.active:
        out |= _acceptance(first.speculation, second.speculation)
    whole = tuple(f"{place}." for place, value in out.items() if isinstance(value, Mapping) or value is None)
    return tuple(f"{key}={json.dumps(value)}" for key, value in out.items() if not key.startswith(whole))


def _found(document: Mapping[str, Any], key: str) -> tuple[str, Any]:
    """A dotted key and its value; of one that ``document`` lacks the section around it, which is none or of another
    kind there."""
    parts, value = key.split("."), document
    for depth, part in enumerate(parts):
        if not isinstance(value, Mapping) or part not in value:
            return ".".join(parts[:depth]), value
        value = value[part]
    return key, value


def _acceptance(before: Speculation, after: Speculation) -> dict[str, Any]:
    """What states the acceptance of another drafter or length where it reads alike: left out, what was stated before
    would count for neither."""
    key = next((name for name in ACCEPTANCE_KEYS if getattr(after, name) is not None), None)
    at = (getattr(before, ACCEPTANCE_AT), getattr(after, ACCEPTANCE_AT))
    # Of another length alone ``vary`` keeps the one at which the acceptance was stated.
    another_length = after.draft_length != before.draft_length and at == (None, None) and key != "first_acceptance"
    another = before.active and (after.method != before.method or after.draft != before.draft)
    if key is None or not (another or another_length):
        return {}
    return {f"speculation.{name}": getattr(after, name) for name in (key, ACCEPTANCE_AT) if getattr(after, name)}


def flattened(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys of nested mappings."""
    out: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            out |= flattened(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out
