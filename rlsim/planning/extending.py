"""A scenario as a short file: the one that it came from, and only the lines that differ.

Apart from :mod:`rlsim.planning.plan`, which knows nothing of files that scenarios came from.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rlsim.errors import InputError
from rlsim.files.lookup import catalogue
from rlsim.files.yaml import dump_document
from rlsim.loading.extends import EXTENDS
from rlsim.loading.models import load_card
from rlsim.loading.scenario import dump_scenario, find_scenario, load_scenario, scenario_of_text
from rlsim.planning.compare import differences
from rlsim.schema.base import replaced
from rlsim.schema.scenario import Scenario
from rlsim.tables.profile import load_profile

CATALOGUED = {"model": load_card, "hardware": load_profile, "training_hardware": load_profile}
"""Sections that a name stands for, where what it means is equal."""


def extending(scenario: Scenario, base: str | Path, folder: Path, beside: Path | None = None) -> str:
    """YAML of ``scenario`` as a file in ``folder``: ``extends: base`` and what differs; whole where that is not it.

    base: name of a bundled scenario, which stays a name, or a file, told relative to ``folder``. beside: a folder that
    exists at the same depth, from which paths are tried where ``folder`` is not there yet.
    """
    whole = dump_scenario(scenario)
    try:
        found = find_scenario(base)
        bundled = catalogue("scenarios").get(found.stem)
        here = bundled is not None and found.resolve() == bundled.resolve()
        reference = found.stem if here else os.path.relpath(found.resolve(), folder.resolve())
        document = _short(scenario, load_scenario(found), reference)
        text = dump_document(document)
        again = scenario_of_text(text, "best.yaml", folder if folder.is_dir() else beside)
    except (InputError, OSError, ValueError):
        return whole
    return text if _answers_alike(again, scenario) else whole


def _answers_alike(first: Scenario, second: Scenario) -> bool:
    """Whether both give the same answer: equal but for assumptions that are sentences alone and widen no interval.

    A plan that sets a key to the value that it had drops what was assumed of it; the short file keeps it.
    """
    guesses = [[one for one in each.assumptions if one.log_spread is not None] for each in (first, second)]
    return guesses[0] == guesses[1] and replaced(first, {"assumptions": ()}) == replaced(second, {"assumptions": ()})


def _short(scenario: Scenario, base: Scenario, reference: str) -> dict[str, Any]:
    """Name and question, the file extended, then the keys that differ, nested as in any scenario."""
    changed = {key: value for key, (_, value) in differences(base, scenario).items()}
    for section, load in CATALOGUED.items():
        record = getattr(scenario, section)
        if record is not None and any(key.startswith(f"{section}.") for key in changed) and _same(record, load):
            changed = {key: value for key, value in changed.items() if not key.startswith(f"{section}.")}
            changed[section] = record.name
    changed = dict(sorted(changed.items(), key=lambda pair: pair[0] not in CATALOGUED))
    document: dict[str, Any] = {EXTENDS: reference, "name": scenario.name, "question": scenario.question}
    for key, value in changed.items():
        *sections, leaf = key.split(".")
        holder = document
        for section in sections:
            holder = holder.setdefault(section, {})
        if key not in ("name", "question"):
            holder[leaf] = value
    return document


def _same(record: object, load: Any) -> bool:
    try:
        return bool(load(record.name) == record)  # type: ignore[attr-defined]
    except InputError:
        return False
