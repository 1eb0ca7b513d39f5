"""All commands of ``rlsim``, as typer takes them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Annotated, Any

import typer

from rlsim.cli import calibrate, catalogue, guidance, planning, project, readers, validate
from rlsim.cli.groups import FORMER, Commands, listed
from rlsim.cli.main import BAD_INPUT
from rlsim.errors import InputError, shortened

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises for words that it cannot take; the class itself has no public name."""

EXAMPLES = """Performance simulator and capacity planner for RL post-training of LLMs.

Projects a whole RL step (rollout, log-probs, training, weight transfer) on a GPU cluster from measured operator
tables, and says what speculative decoding and asynchronous execution would change, why, and how far to trust it.

\b
Examples:
  rlsim project quickstart                            a scenario that comes with rlsim, by name
  rlsim project my.yaml --out results                 also writes projection.json, pictures, timeline
  rlsim project qwen235b_512 trainer.tensor_parallel=4 speculation.draft_length=5 speculation.acceptance_length=3.6
  rlsim project quickstart --set speculation.method=none --json     --set says the same as a word KEY=VALUE
  rlsim run qwen235b_2048 --steps 1000 --out results  a whole run: time, cost, energy, what it loses
  rlsim report results                                one HTML page of what a folder of results holds
  rlsim models show qwen3-8b;  rlsim hardware show gb200_nvl72

\b
Exit codes: 0 done, 2 bad input or a configuration that cannot run (one message on stderr), 1 a bug.
"""

SINGLE = (
    project.project, project.run, project.schema, planning.sweep, planning.plan, planning.sensitivity,
    planning.techniques, planning.compare, project.blame, readers.export, project.report, project.plot, guidance.new,
    guidance.size, guidance.explain, guidance.support, readers.traces, readers.log, guidance.check, guidance.headroom,
    project.explore, readers.import_config,
)  # fmt: skip
"""Commands that belong to no group, in the order of the help."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from rlsim import __version__

        typer.echo(f"rlsim {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Options of rlsim itself."""


def app_of(words: Collection[str] | None = None) -> Commands:
    """The program; of commands that are not among ``words`` with name and help alone, which takes a third of it off."""
    app = Commands(help=EXAMPLES, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback()(_root)
    for function in SINGLE:
        name = function.__name__.removesuffix("_config")
        app.command(name)(function if words is None or name in words else listed(function))
    app.add_typer(validate.app, name="validate")
    app.add_typer(calibrate.app, name="calibrate")
    app.add_typer(catalogue.models, name="models")
    app.add_typer(catalogue.hardware, name="hardware")
    return app


def run(words: Sequence[str]) -> object:
    """What the command in ``words`` returns. Raises InputError where they are none."""
    try:
        return app_of(words)(args=words, prog_name="rlsim", standalone_mode=False)
    except USAGE_ERROR as error:
        raise InputError(_wrong_words(error)) from error


def _wrong_words(error: Any) -> str:
    """What is wrong with the words on the command line; the whole help where there are none."""
    if hint := FORMER["removed"].get(getattr(error, "option_name", "")):
        return f"{error.option_name}: {hint}"
    message = " ".join(str(error.format_message()).splitlines()).replace("\t", "")  # typer lists one choice a line
    if error.ctx is None:
        return message
    if error.message == error.ctx.get_help():
        print(error.message, file=sys.stderr)
        sys.exit(BAD_INPUT)
    wrong, param = error.__cause__, getattr(error, "param", None)
    if wrong is not None and param is not None:
        from pydantic import BaseModel, ValidationError

        from rlsim.schema.messages import as_input_error

        if isinstance(wrong, ValidationError):
            name = param.opts[-1] if param.opts[-1].startswith("-") else param.metavar
            return str(as_input_error(wrong, name, BaseModel))
    return f"{shortened(message, 400)} (see {error.ctx.command_path} --help)"
