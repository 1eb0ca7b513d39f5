"""The frameworks by their names."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module

from rlsim.readers.frameworks.framework import Framework, stem_of

FORKS = {"vime": ("slime", "slime"), "miles": ("slime", "miles")}
"""Frameworks with the words of another one, and their stacks."""
SUPERVISED = {"verl": "verl-sft"}
"""Frameworks whose supervised fine-tuning has a configuration of its own."""


@cache
def framework_of(name: str) -> Framework:
    """The framework of a name, or the one whose words it has."""
    if name in FORKS:
        words, stack = FORKS[name]
        return replace(framework_of(words), name=name, stack=stack)
    found: Framework = import_module(f"rlsim.readers.frameworks.adapters.{stem_of(name)}").FRAMEWORK
    return found
