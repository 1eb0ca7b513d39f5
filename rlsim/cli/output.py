"""What commands share: overrides from the command line, answers on standard output, their arguments and options, and
former spellings of ``calibrate`` and ``validate``.

Arguments and options are what ``options.json`` says of each, by ``command.parameter`` or ``parameter``: JSON is read
without loading a reader of YAML, and every start of the program reads it.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from rlsim.errors import InputError, shortened
from rlsim.files.reading import shown_path
from rlsim.report.style import Style

if TYPE_CHECKING:
    from rlsim.results.answer import Answer
    from rlsim.schema.scenario import Scenario


def given_scenario(name: str, words: Sequence[str] | None, options: Sequence[str] | None, *more: str) -> Scenario:
    """The scenario with overrides given as words, by --set and by ``more``, in this order: later ones win."""
    from rlsim.loading.scenario import load_scenario

    try:
        return load_scenario(name, [*(words or ()), *(options or ()), *more])
    except InputError as error:
        from rlsim.readers.frameworks.launch import framework_of_file

        found = framework_of_file(Path(name)) if Path(name).suffix in (".yaml", ".yml", ".toml", ".sh") else None
        if found is None:
            raise
        raise InputError(
            f"{shown_path(Path(name))}: is {found}'s; rlsim import {found} {shown_path(Path(name))} -o scenario.yaml"
        ) from error


def terminal_style() -> Style:
    """What standard output can show."""
    return Style.of(sys.stdout)


def print_answer(text: str) -> None:
    """Print ``text`` with one newline at its end; a reader that stopped listening (``| head``) is no error.

    Characters that the stream's encoding lacks appear as their escapes.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(terminal_style().readable(text.rstrip("\n")), flush=True)
    except OSError as error:
        # What is still buffered must go somewhere, or the interpreter fails once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise InputError(f"standard output: {error.strerror}") from error


def print_result(answer: Answer, as_json: bool, full: bool = True) -> None:
    """Print an answer as JSON or as text, which is cut to a screen where it is not asked for in full."""
    print_answer(answer.to_json() if as_json else answer.text(terminal_style(), full))


def step_range(text: str) -> tuple[int, int]:
    """First and last step of FIRST:LAST. Raises InputError."""
    found = re.fullmatch(r"(\d{1,12}):(\d{1,12})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise InputError(f"--steps {shortened(text)}: expected FIRST:LAST, such as 5:20")
    return int(found[1]), int(found[2])


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


JOBS = {
    "--check-loop": "check-loop",
    "--cases": "cases",
    "--device": "device",
    "--from": "import",
    "--from-measurements": "measurements",
    "--from-steps": "own",
    "--from-curves": "curves",
    "--jointly": "fit",
    "--from-iterations": "fit",
    "--from-training": "fit",
    "--from-transfers": "fit",
    "--refit": "fit",
    "--published": "published",
    "--cross": "cross",
}
"""Sub-command of each former option; of several that are given the first here counts."""
SWITCHES = ("--check-loop", "--refit", "--published", "--cross")
GONE = {
    "--write-accuracy": "docs/ACCURACY.md is written by `python -m research.accuracy` in a checkout",
    "--date": "docs/ACCURACY.md is written by `python -m research.accuracy` in a checkout",
    "--sweep": "sweeps of engine iterations are compared by `python -m research.sweeps FILE` in a checkout",
}

COURSES = ("--within", "--draft-length")
"""Former options of curves over training steps, which `python -m research.acceptance` fits; left out."""


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
            for part in (word.split("=", 1) if word.split("=", 1)[0] in (*JOBS, *COURSES) else [word])
        ]
        for option, reason in GONE.items():
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
                taken = left[place : place + (1 if option in SWITCHES else 2)]
                del left[place : place + len(taken)]
                keeps_name = (job == "cases" and option == "--device") or (job == "published" and option == "--cross")
                out += taken if keeps_name else taken[1:]
        for option in COURSES if job == "curves" else ():
            while option in left:
                del left[left.index(option) : left.index(option) + 2]
        former = " ".join(known)
        print(f"rlsim: `{self.name} {former}` is now `rlsim {self.name} {job}`", file=sys.stderr)
        return [*out, *left]
