"""The command line: parse, one library call, print. Whatever is heavy is imported inside the commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from rlsim.cli_calibrate import register as register_calibrate
from rlsim.datafiles import shown_path
from rlsim.errors import MESSAGE_CHARACTERS, InputError, RlsimError, shortened
from rlsim.outputs import staged_folder
from rlsim.planning.commands import register as register_planning
from rlsim.progress import ProgressLine
from rlsim.validation.commands import register as register_validate

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
  rlsim project qwen235b_512 --set engine.tensor_parallel=4 --set speculation.draft_length=5 \\
                             --set speculation.acceptance_length=3.6
  rlsim project quickstart --set speculation.method=none --json
  rlsim models show qwen3-8b;  rlsim hardware show gb200_nvl72

\b
Exit codes: 0 done, 2 bad input or a configuration that cannot run (one message on stderr), 1 a bug.
"""

app = typer.Typer(
    help=EXAMPLES, add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
)
models = typer.Typer(help="Model cards that come with rlsim.", no_args_is_help=True, rich_markup_mode=None)
hardware = typer.Typer(help="Hardware profiles that come with rlsim.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(models, name="models")
app.add_typer(hardware, name="hardware")

ScenarioArgument = Annotated[str, typer.Argument(metavar="SCENARIO", help="A scenario file, or a bundled one's name.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a scenario key, such as cluster.num_gpus=64. Repeatable."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Also write the results into this folder.")
]
SeedOption = Annotated[int | None, typer.Option("--seed", metavar="N", help="Seed of every draw (simulation.seed).")]
ReplicationsOption = Annotated[
    int | None,
    typer.Option("--replications", metavar="N", help="Repetitions behind the intervals (simulation.replications)."),
]
BriefOption = Annotated[bool, typer.Option("--brief", help="Print the verdict alone, in five lines.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A name from the list, or a path.")]


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


@app.command()
def project(
    scenario: ScenarioArgument,
    overrides: SetOption = None,
    as_json: JsonOption = False,
    out: OutOption = None,
    seed: SeedOption = None,
    replications: ReplicationsOption = None,
    brief: BriefOption = False,
) -> None:
    """Project one RL step of a scenario.

    The autoregressive baseline stands beside the candidate, both on the same drawn work. Prints the phases of both,
    rollout and end-to-end speedup with 90 % intervals, memory, what bounds each phase, and how much of the time rests
    on measured, modelled and assumed values. --out DIR writes projection.json, phases.png, timeline.json (opens in
    Perfetto) and scenario.yaml (resolved).
    """
    from rlsim.loading import load_scenario
    from rlsim.projection import project as run
    from rlsim.report import files
    from rlsim.report.projection import render, render_brief
    from rlsim.report.style import Style

    given = load_scenario(scenario, _with_simulation(overrides, seed, replications))
    with ProgressLine("replications") as progress:
        answer = run(given, progress.reach)
    if out is not None:
        with staged_folder(out) as folder:
            files.write(answer, folder)
    written = render_brief if brief else render
    _say(answer.to_json() if as_json else written(answer, Style.of(sys.stdout)))


def _with_simulation(overrides: list[str] | None, seed: int | None, replications: int | None) -> list[str]:
    given = {"simulation.seed": seed, "simulation.replications": replications}
    return [*(overrides or []), *(f"{key}={value}" for key, value in given.items() if value is not None)]


@app.command()
def schema() -> None:
    """Print the JSON Schema of scenarios.

    Editors use it to complete and check scenario files.
    """
    import json

    from rlsim.loading import scenario_json_schema

    _say(json.dumps(scenario_json_schema(), indent=2))


@models.command("list")
def list_models() -> None:
    """List the model cards."""
    from rlsim.hardware.cards import list_cards

    _say("\n".join(list_cards()))


@models.command("show")
def show_model(name: NameArgument) -> None:
    """Print a model card with its parameter counts; NAME may be a Hugging Face config.json."""
    from rlsim.hardware.cards import load_card
    from rlsim.loading import dump_yaml
    from rlsim.schema.model import parameter_counts

    card = load_card(name)
    counts = parameter_counts(card)
    _say(f"# {counts.total:,} parameters, {counts.active:,} active per token\n{dump_yaml(card)}")


@hardware.command("list")
def list_hardware() -> None:
    """List the hardware profiles."""
    from rlsim.hardware.profile import list_profiles

    _say("\n".join(list_profiles()))


@hardware.command("show")
def show_hardware(name: NameArgument) -> None:
    """Print a hardware profile, every value with its source."""
    from rlsim.hardware.profile import load_profile
    from rlsim.loading import dump_yaml

    _say(dump_yaml(load_profile(name)))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code: 0 done, 2 bad input or infeasible, 1 a bug.

    argv: arguments without the program's name; default those of the process.
    """
    try:
        code = app(args=argv, prog_name="rlsim", standalone_mode=False)
    except RlsimError as error:
        _fail(str(error))
    except USAGE_ERROR as error:
        _fail(_usage(error))
    except OSError as error:
        _fail(f"{shown_path(Path(error.filename))}: {error.strerror}" if error.filename else str(error))
    sys.exit(code)


def _usage(error: Any) -> str:
    """What is wrong with the words on the command line; the whole help where there are none."""
    if error.ctx is None:
        return str(error.format_message())
    if error.message == error.ctx.get_help():
        print(error.message, file=sys.stderr)
        sys.exit(BAD_INPUT)
    return f"{shortened(error.format_message(), 400)} (see {error.ctx.command_path} --help)"


def _fail(message: str) -> NoReturn:
    print(f"rlsim: {shortened(message, MESSAGE_CHARACTERS)}", file=sys.stderr)
    sys.exit(BAD_INPUT)


def _say(text: str) -> None:
    """Print ``text`` with one newline at its end; a reader that stopped listening (``| head``) is no error."""
    from rlsim.report.style import Style

    try:
        print(Style.of(sys.stdout).readable(text.rstrip("\n")), flush=True)
    except OSError as error:
        # What is still buffered must go somewhere, or the interpreter fails once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise InputError(f"standard output: {error.strerror}") from error


register_validate(app, _say)
register_planning(app, _say)
register_calibrate(app, _say)
