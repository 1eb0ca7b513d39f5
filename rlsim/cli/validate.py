"""``rlsim validate``: predicted beside measured."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rlsim.cli.options import AsJson, OutTables, RowReplications, TableReplications, TableSeed
from rlsim.cli.output import print_result
from rlsim.evidence import Kind
from rlsim.files.progress import ProgressLine


class WithTable(TyperGroup):
    """A group whose command ``table`` need not be named: ``rlsim validate TABLE.csv`` is short for it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Words as click takes them, with the name of the command where a table stands in its place."""
        # Without any word the help is shown, and options of help stay options.
        short = bool(args) and args[0] not in self.commands and args[0] not in ctx.help_option_names
        return list(super().parse_args(ctx, ["table", *args] if short else args))


app = typer.Typer(
    cls=WithTable,
    no_args_is_help=True,
    help="Predicted beside measured; `validate TABLE.csv` is short for `validate table TABLE.csv`.",
)


@app.command("table")
def table(
    path: Annotated[Path, typer.Argument(metavar="TABLE.csv", help="Measured steps, iterations..., one per row.")],
    kind: Annotated[Kind | None, typer.Option(help="What TABLE.csv holds; default by its columns.")] = None,
    as_json: AsJson = False,
    out: OutTables = None,
    seed: TableSeed = 0,
    replications: RowReplications = None,
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

    with ProgressLine("rows") as progress:
        found = validate_table(path, kind, progress.reach, seed, replications)
    print_result(found, as_json, out=out)


@app.command("published")
def published(
    iterations: Annotated[
        list[Path] | None, typer.Option(metavar="TABLE.csv", help="Also a table of engine iterations. Repeatable.")
    ] = None,
    training: Annotated[
        list[Path] | None, typer.Option(metavar="TABLE.csv", help="Also a table of training steps. Repeatable.")
    ] = None,
    transfers: Annotated[
        list[Path] | None, typer.Option(metavar="TABLE.csv", help="Also a table of weight transfers. Repeatable.")
    ] = None,
    phases: Annotated[
        list[Path] | None, typer.Option(metavar="TABLE.csv", help="Also a table of phases of RL steps. Repeatable.")
    ] = None,
    cross: Annotated[bool, typer.Option("--cross", help="Also leave out groups of measurements.")] = False,
    as_json: AsJson = False,
    out: OutTables = None,
    seed: TableSeed = 0,
    replications: TableReplications = 4,
) -> None:
    """All published tables that come with rlsim beside their predictions, and further tables of any kind."""
    from rlsim.evidence.published import run_published

    given = {"iterations": iterations, "training": training, "transfers": transfers, "phases": phases}
    tables = {Kind(kind): paths for kind, paths in given.items() if paths}
    with ProgressLine("rows") as progress:
        found = run_published(seed, replications, progress.reach, tables, cross)
    print_result(found, as_json, out=out)


@app.command("cross")
def cross(
    as_json: AsJson = False,
    out: OutTables = None,
) -> None:
    """Do 90 % intervals hold 90 %? Leaves whole releases, devices, models... out of the joint fit and predicts them."""
    from rlsim.evidence.cross import validate_cross

    with ProgressLine("groupings") as progress:
        found = validate_cross(progress=progress.reach)
    print_result(found, as_json, out=out)
