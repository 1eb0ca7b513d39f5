"""The program ``rlsim``: its commands, and how it ends."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from rlsim.cli import calibrate, guidance, planning, project, readers, validate
from rlsim.cli.output import Commands
from rlsim.errors import MESSAGE_CHARACTERS, RlsimError, shortened
from rlsim.files.reading import shown_path

BAD_INPUT = 2
"""Exit code of bad input and of infeasible configurations; 0 is done, 1 a bug."""
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises for words that it cannot take; the class itself has no public name."""

EXAMPLES = """Performance simulator and capacity planner for RL post-training of LLMs.

Projects a whole RL step (rollout, log-probs, training, weight transfer) on a GPU cluster from measured operator
tables, and says what speculative decoding and asynchronous execution would change, why, and how far to trust it.

\b
Examples:
  rlsim project quickstart                           a scenario that comes with rlsim, by name
  rlsim project my.yaml --out results                also writes projection.json, pictures, timeline
  rlsim project qwen235b_512 engine.tensor_parallel=4 speculation.draft_length=5 speculation.acceptance_length=3.6
  rlsim project quickstart --set speculation.method=none --json    --set says the same as a word KEY=VALUE
  rlsim run qwen235b_2048 --steps 1000 --out results a whole run: time, cost, energy, what it loses
  rlsim report results                               one HTML page of what a folder of results holds
  rlsim models show qwen3-8b;  rlsim hardware show gb200_nvl72

\b
Exit codes: 0 done, 2 bad input or a configuration that cannot run (one message on stderr), 1 a bug.
"""

app = Commands(help=EXAMPLES, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
for command in (
    project.project,
    project.run,
    project.schema,
    planning.sweep,
    planning.plan,
    planning.sensitivity,
    planning.techniques,
    planning.compare,
    project.blame,
    readers.export,
    project.report,
    project.plot,
    guidance.new,
    guidance.size,
    guidance.explain,
    guidance.support,
    readers.traces,
    readers.log,
    guidance.check,
    guidance.headroom,
    project.explore,
):
    app.command()(command)
app.command("import")(readers.import_config)
app.add_typer(validate.app, name="validate")
app.add_typer(calibrate.app, name="calibrate")
app.add_typer(project.models, name="models")
app.add_typer(project.hardware, name="hardware")


def _print_version(wanted: bool) -> None:
    if wanted:
        from rlsim import __version__

        typer.echo(f"rlsim {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Options of rlsim itself."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code: 0 done, 2 bad input or infeasible, 1 a bug.

    argv: arguments without the program's name; default those of the process.
    """
    # A command imports much and throws little away: looking for cycles so often would cost a tenth of its start.
    gc.set_threshold(10_000_000, 50, 50)
    try:
        code = app(args=argv, prog_name="rlsim", standalone_mode=False)
    except RlsimError as error:
        _fail(str(error))
    except USAGE_ERROR as error:
        _fail(_usage(error))
    except OSError as error:
        _fail(f"{shown_path(Path(error.filename))}: {error.strerror}" if error.filename else str(error))
    sys.exit(code)


def program() -> None:
    """:func:`main` as a process of its own, which ends without taking apart what ends with it: a tenth of its time."""
    try:
        main()
    except SystemExit as end:
        if not _owns_process() or "joblib" in sys.modules or not isinstance(end.code, int | None):
            raise  # worker processes are ended by the handlers of an ordinary exit
        with suppress(OSError):  # nobody reads on
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(end.code or 0)


def _owns_process() -> bool:
    """Whether the process is ``rlsim`` or ``python -m rlsim``, not a program that calls this one's entry point."""
    started = sys.modules["__main__"]
    spec = getattr(started, "__spec__", None)
    return getattr(spec, "name", "") == "rlsim.__main__" or Path(getattr(started, "__file__", "")).stem == "rlsim"


REMOVED = {
    "--near-evidence": "plan looks at all layouts; rlsim project names the nearest measured runs of each",
    "--confidence": "constraints of a plan hold with 90 %; rlsim.Objective(confidence=...) says else",
    "--memory-headroom": "a plan leaves 10 % of memory free; rlsim.SearchLimits(memory_headroom=...) says else",
    "--any-domain": "tensor and expert parallelism of a plan stay within one NVLink domain",
    "--drafter": "plan varies the scenario's own drafter; set speculation.* for another one",
    "--target-step-s": "write --objective gpus=SECONDS",
    "--dask": "only sweep runs on a Dask scheduler; other commands take --jobs",
}
"""Options that commands had once, and what to do instead."""


def _usage(error: Any) -> str:
    """What is wrong with the words on the command line; the whole help where there are none."""
    if hint := REMOVED.get(getattr(error, "option_name", "")):
        return f"{error.option_name}: {hint}"
    if error.ctx is None:
        return str(error.format_message())
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
    return f"{shortened(error.format_message(), 400)} (see {error.ctx.command_path} --help)"


def _fail(message: str) -> NoReturn:
    print(f"rlsim: {shortened(message, MESSAGE_CHARACTERS)}", file=sys.stderr)
    sys.exit(BAD_INPUT)
