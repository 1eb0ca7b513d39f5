"""``rlsim validate``: predicted beside measured."""

from __future__ import annotations

from pathlib import Path

from rlsim.cli.groups import Commands, FormerWords
from rlsim.cli.output import print_result
from rlsim.evidence.tables import Kind
from rlsim.files.progress import ProgressLine

app = Commands(cls=FormerWords, no_args_is_help=True, rich_markup_mode=None, help=__doc__)


@app.command("table")
def table(
    path: Path,
    kind: Kind | None = None,
    as_json: bool = False,
    out: Path | None = None,
    seed: int = 0,
    replications: int = 4,
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
    iterations: list[Path] | None = None,
    training: list[Path] | None = None,
    transfers: list[Path] | None = None,
    phases: list[Path] | None = None,
    cross: bool = False,
    as_json: bool = False,
    out: Path | None = None,
    seed: int = 0,
    replications: int = 4,
) -> None:
    """All published tables that come with rlsim beside their predictions, and further tables of any kind."""
    from rlsim.evidence.published import run_published

    given = {"iterations": iterations, "training": training, "transfers": transfers, "phases": phases}
    tables = {Kind(kind): paths for kind, paths in given.items() if paths}
    with ProgressLine("rows") as progress:
        found = run_published(seed, replications, progress.reach, tables, cross)
    print_result(found, as_json, out=out)


@app.command("cross")
def cross(as_json: bool = False, out: Path | None = None) -> None:
    """Do 90 % intervals hold 90 %? Leaves whole releases, devices, models... out of the joint fit and predicts them."""
    from rlsim.evidence.cross import validate_cross

    with ProgressLine("groupings") as progress:
        found = validate_cross(progress=progress.reach)
    print_result(found, as_json, out=out)
