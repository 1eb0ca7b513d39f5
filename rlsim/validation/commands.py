"""``rlsim validate``: parse, one library call, print."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlsim.errors import InputError
from rlsim.outputs import staged_folder
from rlsim.progress import ProgressLine

if TYPE_CHECKING:
    from rlsim.validation.validate import Validation

TableArgument = Annotated[
    Path | None, typer.Argument(metavar="TABLE.csv", help="Measured steps, one per row.", show_default=False)
]
PublishedOption = Annotated[
    bool, typer.Option("--published", help="All published tables that come with rlsim; writes docs/ACCURACY.md.")
]
SweepOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--sweep", metavar="FILE", help="Also compare a sweep of engine iterations (batch, seq, gamma). Repeatable."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Also write JSON, CSV and pictures into this folder.")
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Seed of every draw.")]
ReplicationsOption = Annotated[
    int, typer.Option("--replications", metavar="N", min=1, max=1000, help="Repetitions behind the intervals.")
]
DateOption = Annotated[
    str | None, typer.Option("--date", metavar="YYYY-MM-DD", help="Date printed in docs/ACCURACY.md; default today.")
]


def register(app: typer.Typer, say: Callable[[str], None] = print) -> None:
    """Add ``validate`` to ``app``; ``say`` prints an answer to stdout."""

    @app.command()
    def validate(
        table: TableArgument = None,
        published: PublishedOption = False,
        sweep: SweepOption = None,
        as_json: JsonOption = False,
        out: OutOption = None,
        seed: SeedOption = 0,
        replications: ReplicationsOption = 4,
        date: DateOption = None,
    ) -> None:
        """Predicted beside measured, row by row.

        TABLE.csv needs id, model, gpu, num_gpus, on_off_policy, prompts_per_step, generations_per_prompt, max_seq_len,
        avg_seq_len, total_step_time_s and the parallel sizes (gen_tp, train_tp, train_pp...). Rows that cannot be
        simulated are listed with the reason. --out DIR writes validation.json, rows.csv, scatter.png, waterfall.png.
        """
        if sum([table is not None, published, bool(sweep) and not published]) != 1:
            raise InputError("validate needs one of: TABLE.csv, --published, --sweep FILE (see rlsim validate --help)")
        if table is not None:
            say(_table(table, as_json, out, seed, replications))
        elif published:
            say(_published(as_json, out, seed, replications, date, sweep or []))
        else:
            say(_sweeps(sweep or [], as_json))


def _table(table: Path, as_json: bool, out: Path | None, seed: int, replications: int) -> str:
    from rlsim.validation.text import render
    from rlsim.validation.validate import validate

    with ProgressLine("rows") as progress:
        result = validate(table, progress.reach, seed, replications)
    if out is not None:
        with staged_folder(out) as folder:
            write_files(result, folder)
    return result.to_json() if as_json else render(result)


def _published(
    as_json: bool, out: Path | None, seed: int, replications: int, date: str | None, sweeps: list[Path]
) -> str:
    from rlsim.validation.accuracy import accuracy_document, checked_date, document_home, today
    from rlsim.validation.published import run_published

    day = checked_date(date) if date is not None else today()
    with ProgressLine("rows and cells") as progress:
        answer = run_published(seed, replications, progress.reach, sweeps)
    document = accuracy_document(answer, day)
    if out is not None:
        with staged_folder(out) as folder:
            write_files(answer.steps, folder)
            (folder / "published.json").write_text(answer.to_json(), encoding="utf-8")
            (folder / "ACCURACY.md").write_text(document, encoding="utf-8")
    home = document_home()
    if home is not None:
        home.write_text(document, encoding="utf-8")
        print(f"wrote {home}", file=sys.stderr)
    return answer.to_json() if as_json else answer.text()


def _sweeps(files: list[Path], as_json: bool) -> str:
    import json

    from rlsim.validation.sweeps import iteration_sweep

    results = [iteration_sweep(path) for path in files]
    if as_json:
        return json.dumps({"sweeps": [result.as_dict() for result in results]}, indent=2, allow_nan=False) + "\n"
    return "\n\n".join(result.text() for result in results)


def write_files(result: Validation, folder: Path) -> list[Path]:
    """Write validation.json, rows.csv, scatter.png and waterfall.png into the existing ``folder``."""
    from rlsim.validation.plots import scatter, waterfall

    (folder / "validation.json").write_text(result.to_json(), encoding="utf-8")
    (folder / "rows.csv").write_text(result.to_csv(), encoding="utf-8")
    scatter(result, folder / "scatter.png")
    waterfall(result, folder / "waterfall.png")
    return [folder / name for name in ("validation.json", "rows.csv", "scatter.png", "waterfall.png")]
