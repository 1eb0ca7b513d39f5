"""What commands share: overrides from the command line, and answers on standard output."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlsim.errors import Infeasible, InputError, printable, shortened
from rlsim.files.reading import shown_path
from rlsim.report.style import Style

if TYPE_CHECKING:
    from rlsim.results.answer import Answer
    from rlsim.schema.scenario import Scenario


def given_scenario(
    name: str, words: Sequence[str] | None, options: Sequence[str] | None, *more: str, warn: bool = True
) -> Scenario:
    """The scenario with overrides given as words, by --set and by ``more``, in this order: later ones win.

    warn: say on stderr what of the real run it does not hold, for answers that have no place for it.
    """
    from rlsim.loading.scenario import load_scenario

    try:
        scenario = load_scenario(name, [*(words or ()), *(options or ()), *more])
        for text in scenario.missing_parts if warn else ():
            say(text)
        return scenario
    except InputError as error:
        from rlsim.readers.frameworks.launch import framework_of_file

        # Looked into after the failure alone: a scenario that loads is no framework's.
        found = framework_of_file(Path(name)) if Path(name).suffix in (".yaml", ".yml", ".toml", ".sh") else None
        if found is None:
            raise
        raise InputError(
            f"{shown_path(Path(name))}: is {found}'s; rlsim import {found} {shown_path(Path(name))} -o scenario.yaml"
        ) from error


def say(text: str) -> None:
    """Print ``text`` beside an answer, on standard error."""
    print(printable(text), file=sys.stderr)


def terminal_style() -> Style:
    """What standard output can show."""
    return Style.of(sys.stdout)


def print_answer(text: str) -> None:
    """Print ``text`` with one newline at its end; a reader that stopped listening (``| head``) is no error.

    Characters that the stream's encoding lacks, and those that would steer a terminal, appear as their escapes.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(terminal_style().readable(printable(text.rstrip("\n"))), flush=True)
    except OSError as error:
        # What is still buffered must go somewhere, or the interpreter fails once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise InputError(f"standard output: {error.strerror}") from error


def print_result(answer: Answer, as_json: bool, full: bool = True, out: Path | None = None) -> None:
    """Write an answer into the folder ``out``, where one is given; print it as JSON or as text, which is cut to a
    screen where it is not asked for in full."""
    if out is not None:
        from rlsim.report.folder import write_out

        write_out(answer, out)
    from rlsim.report.text import render
    from rlsim.results.answer import rendered_by

    # Results know no report; whoever knows both connects them.
    rendered_by(render)
    print_answer(answer.to_json() if as_json else answer.text(terminal_style(), full))


def step_range(text: str) -> tuple[int, int]:
    """First and last step of FIRST:LAST. Raises InputError."""
    found = re.fullmatch(r"(\d{1,12}):(\d{1,12})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise InputError(f"--steps {shortened(text)}: expected FIRST:LAST, such as 5:20")
    return int(found[1]), int(found[2])


@contextmanager
def with_remedies(scenario: Scenario) -> Iterator[None]:
    """A scenario that does not fit into memory is refused with the settings each of which alone makes it fit."""
    try:
        yield
    except Infeasible as error:
        if error.unit != "bytes":
            raise
        from rlsim.planning.fitting import settings_that_fit

        found = ", ".join(settings_that_fit(scenario))
        if not found:
            raise
        raise Infeasible(f"{error.reason}; it fits with {found}", error.needed, error.available, error.unit) from None
