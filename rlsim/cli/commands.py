"""All commands of ``rlsim``, as typer takes them."""

import importlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

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

Exit codes: 0 done, 2 bad input or a configuration that cannot run (one message on stderr), 1 a bug; of preflight 3:
it cannot run.
"""

ASK, DECIDE, UNDERSTAND = "Ask about a run", "Decide", "Understand an answer"
BRING, MEASURE, LOOK_UP = "Bring your own", "Measure", "Look up"
COMMANDS = {
    "project": ("project:project", ASK), "run": ("project:run", ASK), "check": ("guidance:check", ASK),
    "watch": ("watch:watch", ASK), "preflight": ("preflight:preflight", ASK), "new": ("guidance:new", ASK),
    "plan": ("planning:plan", DECIDE), "size": ("guidance:size", DECIDE), "sweep": ("planning:sweep", DECIDE),
    "improve": ("guidance:improve", DECIDE), "compare": ("planning:compare", DECIDE),
    "k": ("planning:draft_lengths", DECIDE), "explore": ("project:explore", UNDERSTAND),
    "report": ("project:report", UNDERSTAND), "site": ("site:site", LOOK_UP), "plot": ("project:plot", UNDERSTAND),
    "import": ("readers:import_config", BRING), "export": ("readers:export", BRING), "log": ("readers:log", BRING),
    "traces": ("readers:traces", BRING), "contribute": ("readers:contribute", BRING),
    "mcp": ("serving:mcp", BRING),
    "validate": ("validate:app", MEASURE), "benchmark": ("benchmark:app", MEASURE),
    "calibrate": ("calibrate:app", MEASURE),
    "explain": ("guidance:explain", LOOK_UP), "support": ("guidance:support", LOOK_UP),
    "models": ("catalogue:models", LOOK_UP), "hardware": ("catalogue:hardware", LOOK_UP),
    "schema": ("project:schema", LOOK_UP),
}  # fmt: skip
"""Module and function (or group) of each command, and what a person wants of it, which is how ``--help`` shows it."""
FORMER = {"techniques": "techniques", "blame": "idle", "headroom": "headroom", "sensitivity": "inputs"}
"""Commands until 0.3.0, and the parts of ``improve`` that give the same."""


def loaded(name: str) -> Any:
    """The command ``name`` as click takes it."""
    place, panel = COMMANDS[name]
    module, _, attribute = place.partition(":")
    found = getattr(importlib.import_module(f"rlsim.cli.{module}"), attribute)
    holder = typer.Typer(rich_markup_mode="markdown", add_completion=False)
    if isinstance(found, typer.Typer):
        holder.callback()(_root)  # a holder with a callback is a group, from which the group is taken
        holder.add_typer(found, name=name, rich_help_panel=panel)
        group: Any = typer.main.get_command(holder)
        return group.commands[name]
    holder.command(name, rich_help_panel=panel)(found)
    return typer.main.get_command(holder)


class Commands(TyperGroup):
    """All commands, each imported when it is asked for (click's documentation, "Lazily Loading Subcommands").

    Reading the signatures of all of them takes a tenth of ``rlsim project quickstart``.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; None where there is none."""
        if cmd_name in COMMANDS:
            return loaded(cmd_name)
        self.commands = {name: loaded(name) for name in COMMANDS}  # typer suggests names out of these
        return None


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
    made = typer.Typer(cls=Commands, help=HELP, no_args_is_help=True, rich_markup_mode="markdown")
    made.callback()(_root)
    return made


def run(words: Sequence[str]) -> object:
    """What the command in ``words`` returns. Raises InputError where they are none."""
    if words and words[0] in FORMER:
        raise InputError(f"No such command '{words[0]}'. Did you mean 'improve --only {FORMER[words[0]]}'?")
    try:
        # standalone_mode would print usage errors in another form than all others, and end the process.
        return app()(args=words, prog_name="rlsim", standalone_mode=False)
    except USAGE_ERROR as error:
        raise InputError(_wrong_words(error, words)) from error
    except InputError as error:
        if meant := _options_meant(words, str(error)):
            raise InputError(f"{error}; as options: {meant}") from error
        raise


def _options_meant(words: Sequence[str], message: str) -> str:
    """Of words that are no keys, as ``message`` says, but options of their command, how they are given."""
    known = {option for name in words[:1] if name in COMMANDS for each in loaded(name).params for option in each.opts}
    settings = [word.partition("=") for word in words[1:] if not word.startswith("-")]
    meant = [(f"--{key.replace('_', '-')}", value) for key, _, value in settings if f"unknown key '{key}'" in message]
    return " ".join(f"{option} {value}" for option, value in meant if option in known)


def _wrong_words(error: Any, words: Sequence[str]) -> str:
    """Message for ``words`` on the command line that typer cannot take; ends with the help where there are none."""
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
    unknown = str(getattr(error, "option_name", ""))
    if unknown in words[:-1]:  # with what was given to it, which says more of what was meant
        message = message.replace(unknown, f"{unknown} {words[words.index(unknown) + 1]}", 1)
    own = "; options of the framework's own go behind --" if unknown and error.ctx.info_name == "import" else ""
    # Room for the hint behind it within what a message may have (errors.MESSAGE_CHARACTERS).
    return f"{shortened(message, 400)} (see {error.ctx.command_path} --help{own})"
