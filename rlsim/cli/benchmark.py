"""``rlsim benchmark``: anybody's predictions of measured RL steps, scored."""

import json
from pathlib import Path
from typing import Annotated

import typer

from rlsim.cli.options import AsJson
from rlsim.cli.output import print_answer

app = typer.Typer(no_args_is_help=True, help="Score predictions of measured RL steps (docs/benchmark.md).")
Steps = Annotated[
    Path | None, typer.Option("--steps", metavar="TABLE.csv", help="Measured steps; default those of rlsim.")
]


def _steps(given: Path | None) -> Path:
    from rlsim.evidence.published import published_table

    return published_table("rl_steps.csv") if given is None else given


@app.command("score")
def score(
    predictions: Annotated[
        Path, typer.Argument(metavar="PREDICTIONS.csv", help="Columns id, predicted_s, low_s, high_s.")
    ],
    steps: Steps = None,
    as_json: AsJson = False,
) -> None:
    """Error, bias, coverage, CRPS and regret of predictions; the rows.csv of rlsim validate --out DIR is such a file.

    low_s and high_s are the ends of a 90 % interval, blank without.
    """
    from rlsim.evidence.shown.benchmark import score as run

    found = run(predictions, _steps(steps))
    print_answer(json.dumps(found.as_dict(), indent=2) if as_json else "\n".join(found.lines))


@app.command("baseline")
def baseline(
    name: Annotated[str, typer.Argument(metavar="NAME", help="by-hand: a roofline; operators: measured kernels.")],
    out: Annotated[Path, typer.Argument(metavar="FILE.csv", help="File to write.")],
    steps: Steps = None,
) -> None:
    """Write what a baseline predicts: a roofline by hand, or operator tables for decoding; training by a formula."""
    from rlsim.evidence.shown.benchmark import baseline as run
    from rlsim.report.folder import write_files

    text = run(name, _steps(steps))
    write_files({out.name: text}, out.parent)
    print_answer(f"{text.count(chr(10)) - 1} predictions: {out}")
