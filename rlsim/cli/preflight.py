"""``rlsim preflight``: what a launcher asks before a job starts."""

from typing import Annotated

import typer

from rlsim.cli.logged import run_scenario
from rlsim.cli.options import AsJson, Overrides, Risk, Words, at_risk
from rlsim.cli.output import print_result

CANNOT_RUN = 3
"""Exit code of a configuration that cannot run, so that a launcher can tell it from a word that rlsim does not know."""


def preflight(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A framework's configuration or launch script, or a scenario.")
    ],
    words: Words = None,
    overrides: Overrides = None,
    no_layout: Annotated[bool, typer.Option("--no-layout", help="Look for no faster layout: a second.")] = False,
    risk: Risk = None,
    as_json: AsJson = False,
) -> None:
    """Say before a job starts what a step should take, whether it fits, its price, and one faster layout.

    For launchers: exit code 0 where it can run, 3 where it cannot (with the settings each of which alone would make it
    fit), 2 where it cannot be read. --risk 0.1 asks that it fits with 90 % (else an even chance will do, and
    its probability is printed). The layout has the same GPUs, lag and batch, and fits with 95 %.
    """
    from rlsim.planning.fitting import preflight as run

    answer = run(run_scenario(config, [*(words or ()), *at_risk(risk)], overrides)[0], not no_layout)
    print_result(answer, as_json)
    if not answer.runs:
        raise typer.Exit(CANNOT_RUN)
