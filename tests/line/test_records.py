"""Records of the rooms: frozen, and compared by identity where they hold arrays, whose equality has no truth value."""

import re
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from pkgutil import walk_packages

import msgspec
import pytest

import rlsim

ROOMS = ("attribution", "projection", "readers", "runs")
GROWING = {"Entry", "Record", "_Checkpoints"}
"""Filled while a log is read or a run goes on."""
SELVES = {"EvidenceTable", "_Moves", "Level", "Record"}
"""Large ones without arrays, or such as may stand for the same twice."""


def records(of: type = msgspec.Struct) -> Iterator[type[msgspec.Struct]]:
    for one in of.__subclasses__():
        yield one
        yield from records(one)


@pytest.mark.parametrize("room", ROOMS)
def test_records_are_frozen_and_compared_where_that_has_a_meaning(room: str) -> None:
    for _, name, _ in walk_packages(import_module(f"rlsim.{room}").__path__, f"rlsim.{room}."):
        import_module(name)
    every = [one for one in records() if one.__module__.startswith(f"{rlsim.__name__}.")]
    alone = {one.__name__ for one in every if not one.__struct_config__.eq}
    found = [one for one in every if one.__module__.startswith(f"rlsim.{room}.")]
    assert found
    for one in found:
        form, name = one.__struct_config__, one.__name__
        kinds = " ".join(map(str, one.__annotations__.values()))
        holds = "array" in kinds.lower() or bool((alone - {name}) & set(re.findall(r"\w+", kinds)))
        assert form.frozen == (name not in GROWING), name
        assert form.eq == (name == "Tried" or not (holds or name in SELVES)), name
        assert form.dict == any(isinstance(value, cached_property) for value in vars(one).values()), name
