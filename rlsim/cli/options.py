"""Arguments and options of all commands: what ``options.json`` says of each, by ``command.parameter`` or ``parameter``.

JSON, which is read without loading a reader of YAML: every start of the program reads it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

OPTIONS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("options.json").read_text(encoding="utf-8"))
"""Keywords of typer's options; flags: where they are not the parameter's name; argument: it stands without a name."""
PLAN_HEADROOM = 0.1
"""Share of memory that a plan leaves free for fragmentation and what the memory model leaves out. Assumption."""


class Commands(typer.Typer):
    """Commands whose parameters are described in the table."""

    def command(self, *given: Any, **options: Any) -> Callable[[Any], Any]:
        """The function as a command."""
        register = super().command(*given, **options)
        return lambda function: register(described(function))


def described(function: Any) -> Any:
    """The function with the table's description at each of its parameters."""
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        said = OPTIONS.get(f"{function.__name__}.{name}") or OPTIONS[name]
        keywords = {key: value for key, value in said.items() if key not in ("flags", "argument")}
        make = typer.Argument if said.get("argument") else typer.Option
        flags = said.get("flags", [f"--{name.replace('_', '-')}"] if parameter.annotation is bool else [])
        function.__annotations__[name] = Annotated[parameter.annotation, make(*flags, **keywords)]
    return function
