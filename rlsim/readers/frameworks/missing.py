"""Parts of a run that its configuration starts and the scenario does not hold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.files.yaml import lists_beside
from rlsim.loading.models import same_layers
from rlsim.readers.frameworks.reader import Reader
from rlsim.readers.frameworks.trees import ConfigTree, leaves

STARTED: Mapping[str, Sequence[Mapping[str, Any]]] = lists_beside(__file__, "missing.yaml")
"""Parts by framework."""
ENVIRONMENT = "launcher.env_vars."
"""Section of the variables that a launcher gives a run (launch.py)."""
OFF = ("", "0", "none", "null", "false", "[]", "{}")
SHOWN_CHARACTERS = 80


def missing_parts(
    framework: str,
    tree: ConfigTree,
    reader: Reader,
    scenario: Mapping[str, Any],
    idle: Sequence[str],
    lenient: bool = False,
) -> list[dict[str, Any]]:
    """What the scenario with the dotted keys ``scenario`` lacks of a configuration, as records of its ``missing``.

    idle: sections of the configuration that are switched off. Raises InputError for a part that may be most of a step
    (``give``), unless ``lenient``.
    """
    off = tuple(f"{section}." for section in idle)
    stated = {key: value for key, value in leaves(tree.values) if key in tree.given or key.startswith(ENVIRONMENT)}
    active = {key: value for key, value in stated.items() if not f"{key}.".startswith(off)}
    found: dict[str, dict[str, Any]] = {}
    for entry in STARTED.get(framework, ()):
        keys = entry.get("keys", [])
        if any(f"{held}.".startswith(f"{key}.") for key in keys for held in scenario):
            continue
        for key, value in _held(entry, active if entry.get("switched", True) else stated, reader):
            part = entry["part"].format(value=shortened(value, SHOWN_CHARACTERS))
            if "give" in entry and not lenient:
                raise InputError(f"{tree.where}: {key}: {part} {entry['give']}; --lenient leaves it out")
            # Several entries may start one part by different keys: it is missing once.
            found.setdefault(part, {"part": part, "step": entry.get("step", "longer"), "keys": list(keys)})
            break
    return list(found.values())


def _held(entry: Mapping[str, Any], given: Mapping[str, Any], reader: Reader) -> Iterator[tuple[str, str]]:
    """Keys of an entry and what they hold, as text, where it is what the entry asks for."""
    for key, held in given.items():
        if fnmatchcase(key, entry["key"]) and _beside(key, entry.get("beside", {}), given):
            text = _text(key, held, reader)
            same = entry.get("other_than", "")
            if same in given and same_layers(_text(same, given[same], reader), text):
                continue
            if text.lower() not in OFF and re.search(entry.get("value", ""), text, re.IGNORECASE):
                yield key, text


def _beside(key: str, asked: Mapping[str, str], given: Mapping[str, Any]) -> bool:
    """Whether the section that ``key`` stands in, or one around it, holds what is asked; ``!`` before a value: holds
    another."""
    sections = [*(f"{key.rsplit('.', depth)[0]}." for depth in range(1, key.count(".") + 1)), ""]
    return all(
        any(str(given.get(f"{section}{name}")).lower() == value.lstrip("!") for section in sections)
        != value.startswith("!")
        for name, value in asked.items()
    )


def _text(key: str, held: Any, reader: Reader) -> str:
    if not isinstance(held, str) or "${" not in held:
        return str(held)
    try:
        return str(reader.value(key))
    except InputError:  # what nothing else reads may refer to what is not there
        return held
