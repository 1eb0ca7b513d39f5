"""The frameworks by their names."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module

from rlsim.readers.frameworks.framework import Framework, stem_of

FORKS = {"vime": "slime", "miles": "slime"}
"""Frameworks with the words of another one."""
SUPERVISED = {"verl": "verl-sft"}
"""Frameworks whose supervised fine-tuning has a configuration of its own."""


@cache
def framework_of(name: str) -> Framework:
    """The framework of a name, or the one whose words it has."""
    if name in FORKS:
        return replace(framework_of(FORKS[name]), name=name)
    found: Framework = import_module(f"rlsim.readers.frameworks.adapters.{stem_of(name)}").FRAMEWORK
    return found
