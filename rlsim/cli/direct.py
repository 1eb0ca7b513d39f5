"""Command lines read without typer: its import and set-up take a tenth of the time of a projection.

Whatever is not plain here is left to typer: other commands, help, and words that are wrong.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

OPTIONS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("options.json").read_text(encoding="utf-8"))
"""Keywords of typer's options, by ``command.parameter`` or ``parameter``; flags: where they are not the parameter's
name; argument: it stands without a name. JSON is read without loading a reader of YAML, and every start reads it."""
HOMES = {"project": "project", "run": "project", "sweep": "planning", "plan": "planning", "sensitivity": "planning"}
"""Commands that are asked most, by the module that has them."""


def said_of(command: str, parameter: str) -> dict[str, Any]:
    """Keywords of a command's parameter."""
    return OPTIONS.get(f"{command}.{parameter}") or OPTIONS[parameter]


def direct_call(words: Sequence[str]) -> Callable[[], object] | None:
    """The call that ``words`` ask for; None where typer has to look at them."""
    if not words or words[0] not in HOMES or not all(words):
        return None
    function = getattr(importlib.import_module(f"rlsim.cli.{HOMES[words[0]]}"), words[0])
    given = _values(words[0], words[1:], inspect.signature(function).parameters)
    return None if given is None else partial(function, **given)


def _values(
    command: str, words: Sequence[str], parameters: Mapping[str, inspect.Parameter]
) -> dict[str, object] | None:
    """Arguments by the name of their parameter."""
    said = {name: said_of(command, name) for name in parameters}
    flags = {
        flag: name for name in parameters for flag in said[name].get("flags", [f"--{name.replace('_', '-')}"])
        if not said[name].get("argument")
    }  # fmt: skip
    plain, given, rest = list[str](), dict[str, Any](), iter(words)
    for word in rest:
        flag, equals, text = word.partition("=")
        if not word.startswith("-"):
            plain.append(word)
            continue
        if flag not in flags:
            return None
        name = flags[flag]
        kind = parameters[name].annotation.removesuffix(" | None")
        if kind == "bool":
            value: object = None if equals else True
        else:
            value = _value(kind, text if equals else next(rest, ""), said[name])
        if value is None:
            return None
        given[name] = [*given.get(name, ()), value] if kind == "list[str]" else value
    places = [name for name in parameters if said[name].get("argument")]
    return given | dict(zip(places, (plain[0], plain[1:]), strict=True)) if plain else None


def _value(kind: str, text: str, said: Mapping[str, Any]) -> object:
    """The value of an option; nothing where it is wrong or not plain."""
    if text.startswith("-") or (kind == "int" and not (text.isdecimal() and len(text) < 10)):
        return None
    if kind == "int":
        return int(text) if int(text) >= said.get("min", 0) and "max" not in said else None
    return {"Path": Path, "str": str, "list[str]": str}.get(kind, lambda _: None)(text) if text else None
