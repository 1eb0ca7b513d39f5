"""All commands of ``rlsim``, as typer takes them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from rlsim.cli import calibrate, catalogue, guidance, planning, project, readers, validate
from rlsim.errors import BAD_INPUT, InputError, shortened

USAGE_ERROR: type[Exception] = typer.BadParameter.__base__ or typer.BadParameter
"""Click's UsageError, which typer raises for words that it cannot take and exports as the base of this class alone."""

HELP = """Performance simulator and capacity planner for RL post-training of LLMs.

Projects a whole RL step (rollout, log-probs, training, weight transfer) on a GPU cluster from measured operator
tables, and says what speculative decoding and asynchronous execution would change, why, and how far to trust it.

- `rlsim project quickstart`: a scenario that comes with rlsim, by name
- `rlsim project my.yaml --out results`: also writes projection.json, pictures, timeline
- `rlsim project qwen235b_512 trainer.tensor_parallel=4 k=5`: any key can be varied
- `rlsim run qwen235b_2048 --steps 1000 --out results`: a whole run: time, cost, energy, what it loses
- `rlsim report results`: one HTML page of what a folder of results holds

Exit codes: 0 done, 2 bad input or a configuration that cannot run (one message on stderr), 1 a bug.
"""

ASK, DECIDE, UNDERSTAND = "Ask about a run", "Decide", "Understand an answer"
BRING, MEASURE, LOOK_UP = "Bring your own", "Measure", "Look up"
COMMANDS: dict[str, tuple[tuple[str, Callable[..., None]], ...]] = {
    ASK: (
        ("project", project.project), ("run", project.run), ("check", guidance.check), ("new", guidance.new),
    ),
    DECIDE: (
        ("plan", planning.plan), ("size", guidance.size), ("sweep", planning.sweep), ("compare", planning.compare),
        ("techniques", planning.techniques),
    ),
    UNDERSTAND: (
        ("blame", project.blame), ("headroom", guidance.headroom), ("sensitivity", planning.sensitivity),
        ("explore", project.explore), ("report", project.report), ("plot", project.plot),
    ),
    BRING: (
        ("import", readers.import_config), ("export", readers.export), ("log", readers.log),
        ("traces", readers.traces),
    ),
    LOOK_UP: (("explain", guidance.explain), ("support", guidance.support), ("schema", project.schema)),
}  # fmt: skip
"""Commands by what a person wants, which is how ``--help`` shows them."""
GROUPS = (
    ("validate", validate.app, MEASURE), ("calibrate", calibrate.app, MEASURE), ("models", catalogue.models, LOOK_UP),
    ("hardware", catalogue.hardware, LOOK_UP),
)  # fmt: skip


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


def app() -> typer.Typer:
    """The program with all its commands."""
    made = typer.Typer(help=HELP, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown")
    made.callback()(_root)
    for panel, commands in COMMANDS.items():
        for name, function in commands:
            made.command(name, rich_help_panel=panel)(function)
    for name, group, panel in GROUPS:
        made.add_typer(group, name=name, rich_help_panel=panel)
    return made


def run(words: Sequence[str]) -> object:
    """What the command in ``words`` returns. Raises InputError where they are none."""
    try:
        # standalone_mode would print usage errors in another form than all others, and end the process.
        return app()(args=words, prog_name="rlsim", standalone_mode=False)
    except USAGE_ERROR as error:
        raise InputError(_wrong_words(error)) from error


def _wrong_words(error: Any) -> str:
    """Message for words on the command line that typer cannot take; ends with the help where there are none."""
    message = " ".join(str(error.format_message()).splitlines()).replace("\t", "")  # typer lists one choice a line
    if error.ctx is None:
        return message
    if not message:  # nothing was asked for, and typer has printed the help
        sys.exit(BAD_INPUT)
    wrong, param = error.__cause__, getattr(error, "param", None)
    if wrong is not None and param is not None:
        from pydantic import BaseModel, ValidationError

        from rlsim.schema.messages import as_input_error

        if isinstance(wrong, ValidationError):
            name = param.opts[-1] if param.opts[-1].startswith("-") else param.metavar
            return str(as_input_error(wrong, name, BaseModel))
    return f"{shortened(message, 400)} (see {error.ctx.command_path} --help)"
