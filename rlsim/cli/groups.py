"""Commands as typer takes them, and former spellings of ``calibrate`` and ``validate``."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rlsim.cli.direct import said_of
from rlsim.errors import InputError


class Commands(typer.Typer):
    """Commands whose parameters are described in the table."""

    def command(self, *given: Any, **options: Any) -> Callable[[Any], Any]:
        """The function as a command."""
        register = super().command(*given, **options)
        return lambda function: register(described(function))


def listed(function: Any) -> Any:
    """A function without parameters that has the name and the help of another."""

    def twin() -> None:
        pass

    twin.__name__, twin.__doc__ = function.__name__, function.__doc__
    return twin


def described(function: Any) -> Any:
    """A twin of the function with the table's description at each of its parameters."""
    told = dict[str, Any]()
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        said = said_of(function.__name__, name)
        keywords = {key: value for key, value in said.items() if key not in ("flags", "argument")}
        make = typer.Argument if said.get("argument") else typer.Option
        flags = said.get("flags", [f"--{name.replace('_', '-')}"] if parameter.annotation is bool else [])
        told[name] = Annotated[parameter.annotation, make(*flags, **keywords)]
    twin = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    twin.__doc__, twin.__annotations__ = function.__doc__, told
    return twin


FORMER: dict[str, Any] = json.loads(Path(__file__).with_name("former.json").read_text(encoding="utf-8"))
"""What options that commands had once are now: jobs by option, of several that are given the first counts. JSON as the
table of options, so that help needs no reader of YAML."""
JOBS: dict[str, str] = FORMER["jobs"]


class FormerWords(TyperGroup):
    """A group that takes the former words of its jobs for one release, and says on stderr what they are now."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The words that are left of ``args``, translated first."""
        return list(super().parse_args(ctx, self.translated(args)))

    def translated(self, args: Sequence[str]) -> list[str]:
        """``args`` as words of a sub-command; InputError for options that went to research/."""
        if not args or args[0] in ("--help", *self.commands):
            return list(args)
        words = [
            part
            for word in args
            for part in (word.split("=", 1) if word.split("=", 1)[0] in (*JOBS, *FORMER["curves"]) else [word])
        ]
        for option, reason in FORMER["gone"].items():
            if any(word.split("=", 1)[0] == option for word in words):
                raise InputError(f"{option}: {reason}")
        known = [option for option, job in JOBS.items() if option in words and job in self.commands]
        if not known:
            return ["table", *words] if "table" in self.commands else words
        job = "fit" if "--refit" in known else JOBS[known[0]]
        out, left = [job], list(words)
        for option in known:
            while option in left:
                place = left.index(option)
                taken = left[place : place + (1 if option in FORMER["switches"] else 2)]
                del left[place : place + len(taken)]
                keeps_name = (job == "cases" and option == "--device") or (job == "published" and option == "--cross")
                out += taken if keeps_name else taken[1:]
        for option in FORMER["curves"] if job == "curves" else ():
            while option in left:
                del left[left.index(option) : left.index(option) + 2]
        former = " ".join(known)
        print(f"rlsim: `{self.name} {former}` is now `rlsim {self.name} {job}`", file=sys.stderr)
        return [*out, *left]
