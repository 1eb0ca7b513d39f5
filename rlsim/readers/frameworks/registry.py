"""The frameworks by their names."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

from rlsim.readers.frameworks.framework import Framework, stem_of
from rlsim.readers.frameworks.tables import table_framework

FORKS = {"vime": "slime", "miles": "slime"}
"""Frameworks with the words of another one."""
ADAPTERS = Path(__file__).parent / "adapters"
"""Modules with the rules of a framework each; of a framework that has none they are formulas in its table."""


@cache
def framework_of(name: str) -> Framework:
    """The framework of a name, or the one whose words it has."""
    if name in FORKS:
        return replace(framework_of(FORKS[name]), name=name)
    if not (ADAPTERS / f"{stem_of(name)}.py").exists():
        return table_framework(name)
    found: Framework = import_module(f"rlsim.readers.frameworks.adapters.{stem_of(name)}").FRAMEWORK
    return found
