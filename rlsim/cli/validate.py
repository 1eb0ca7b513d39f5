"""``rlsim validate``: predicted beside measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlsim.cli.former import FormerWords
from rlsim.cli.options import JsonOption
from rlsim.cli.output import print_answer, terminal_style
from rlsim.evidence.tables import Kind
from rlsim.files.progress import ProgressLine

app = typer.Typer(cls=FormerWords, no_args_is_help=True, rich_markup_mode=None, help=__doc__)

OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Also write JSON, CSV and pictures into this folder.")
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Seed of every draw.")]
ReplicationsOption = Annotated[
    int, typer.Option("--replications", metavar="N", min=1, max=800, help="Repetitions behind the intervals.")
]


@app.command("table")
def table(
    path: Annotated[Path, typer.Argument(metavar="TABLE.csv", help="Measured steps, iterations..., one per row.")],
    kind: Annotated[Kind | None, typer.Option(help="What TABLE.csv holds; default by its columns.")] = None,
    as_json: JsonOption = False,
    out: OutOption = None,
    seed: SeedOption = 0,
    replications: ReplicationsOption = 4,
) -> None:
    """Predicted beside measured, row by row; `rlsim validate TABLE.csv` is short for it.

    TABLE.csv is recognised by its columns. Steps: id, model, gpu, num_gpus, on_off_policy, prompts_per_step,
    generations_per_prompt, max_seq_len, avg_seq_len, total_step_time_s and the parallel sizes (gen_tp, train_tp,
    train_pp...). Engine iterations, rollouts, training steps, weight transfers, phases and curves: columns in
    docs/contracts.md.
    Only what was measured is simulated. Rows that cannot be are listed with the reason. --out DIR writes
    validation.json, rows.csv and pictures.
    """
    from rlsim.evidence.compare import validate_table
    from rlsim.report.files import write_out
    from rlsim.report.text.validation import validation_text

    with ProgressLine("rows") as progress:
        found = validate_table(path, kind, progress.reach, seed, replications)
    write_out(found, out)
    print_answer(found.to_json() if as_json else validation_text(found, terminal_style()))


def _tables(kind: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(metavar="TABLE.csv", help=f"Also a table of {kind}. Repeatable.")
    return option


@app.command("published")
def published(
    iterations: Annotated[list[Path] | None, _tables("engine iterations")] = None,
    training: Annotated[list[Path] | None, _tables("training steps")] = None,
    transfers: Annotated[list[Path] | None, _tables("weight transfers")] = None,
    phases: Annotated[list[Path] | None, _tables("phases of RL steps")] = None,
    cross: Annotated[bool, typer.Option("--cross", help="Also leave out groups of measurements.")] = False,
    as_json: JsonOption = False,
    out: OutOption = None,
    seed: SeedOption = 0,
    replications: ReplicationsOption = 4,
) -> None:
    """All published tables that come with rlsim beside their predictions, and further tables of any kind."""
    from rlsim.evidence.published import run_published
    from rlsim.report.files import write_out
    from rlsim.report.text.validation import published_text

    given = {"iterations": iterations, "training": training, "transfers": transfers, "phases": phases}
    tables = {Kind(kind): paths for kind, paths in given.items() if paths}
    with ProgressLine("rows") as progress:
        found = run_published(seed, replications, progress.reach, tables, cross)
    write_out(found, out)
    print_answer(found.to_json() if as_json else published_text(found, terminal_style()))


@app.command("cross")
def cross(as_json: JsonOption = False, out: OutOption = None) -> None:
    """Do 90 % intervals hold 90 %? Leaves whole releases, devices, models... out of the joint fit and predicts them."""
    from rlsim.evidence.cross import validate_cross
    from rlsim.report.files import write_out
    from rlsim.report.text.validation import cross_text

    with ProgressLine("groupings") as progress:
        found = validate_cross(progress=progress.reach)
    write_out(found, out)
    print_answer(found.to_json() if as_json else cross_text(found, terminal_style()))
