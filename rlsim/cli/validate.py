"""``rlsim validate``: predicted beside measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rlsim.cli import options as o
from rlsim.cli.output import print_answer, terminal_style
from rlsim.errors import InputError
from rlsim.files.progress import ProgressLine
from rlsim.files.writing import staged_folder

if TYPE_CHECKING:
    from rlsim.validation.measured import MeasuredTable
    from rlsim.validation.published import Published
    from rlsim.validation.validate import Validation


def validate(
    table: o.TableArgument = None,
    kind: o.KindOption = None,
    published: o.PublishedOption = False,
    sweep: o.SweepFilesOption = None,
    iterations: o.IterationsOption = None,
    training: o.TrainingTablesOption = None,
    transfers: o.TransferTablesOption = None,
    phases: o.PhaseTablesOption = None,
    cross: o.CrossOption = False,
    as_json: o.JsonOption = False,
    out: o.FilesOption = None,
    write_accuracy: o.AccuracyOption = None,
    seed: o.DrawSeedOption = 0,
    replications: o.RowReplicationsOption = 4,
    date: o.DateOption = None,
) -> None:
    """Predicted beside measured, row by row.

    TABLE.csv is recognised by its columns. Steps: id, model, gpu, num_gpus, on_off_policy, prompts_per_step,
    generations_per_prompt, max_seq_len, avg_seq_len, total_step_time_s and the parallel sizes (gen_tp, train_tp,
    train_pp...). Engine iterations, training steps, weight transfers, phases and curves: columns in docs/contracts.md.
    Only the half that was measured is simulated. Rows that cannot be are told with the reason. --out DIR writes
    validation.json, rows.csv and pictures. --cross leaves whole releases, devices, models and frameworks out of the
    joint fit, predicts them, and tells whether 90 % intervals hold 90 %.
    """
    if sum([table is not None, published, cross and not published, bool(sweep) and not published]) != 1:
        raise InputError(
            "validate needs one of: TABLE.csv, --published, --cross, --sweep FILE (see rlsim validate --help)"
        )
    halves = {"training": training or [], "transfers": transfers or [], "phases": phases or []}
    if not published and (any(halves.values()) or any(one is not None for one in (iterations, write_accuracy, date))):
        options = "--iterations, --training, --transfers, --phases, --write-accuracy and --date"
        raise InputError(f"{options} belong to --published")
    if kind is not None and table is None:
        raise InputError("--kind belongs to TABLE.csv")
    if table is not None:
        print_answer(_table(table, kind, as_json, out, seed, replications))
    elif published:
        print_answer(
            _published(as_json, out, write_accuracy, seed, replications, date, sweep or [], iterations, halves, cross)
        )
    elif cross:
        print_answer(_cross(as_json, out))
    else:
        print_answer(_sweeps(sweep or [], as_json))


def _table(table: Path, kind: str | None, as_json: bool, out: Path | None, seed: int, replications: int) -> str:
    from rlsim.validation.kinds import validate_table
    from rlsim.validation.measured import MeasuredTable
    from rlsim.validation.measured_text import render_measured
    from rlsim.validation.text import render

    with ProgressLine("rows") as progress:
        result = validate_table(table, kind, progress.reach, seed, replications)
    if out is not None:
        with staged_folder(out) as folder:
            if isinstance(result, MeasuredTable):
                write_measured(result, folder)
            else:
                write_files(result, folder)
    if as_json:
        return result.to_json()
    style = terminal_style()
    return render_measured(result, style) if isinstance(result, MeasuredTable) else render(result, style)


def _published(
    as_json: bool,
    out: Path | None,
    accuracy: Path | None,
    seed: int,
    replications: int,
    date: str | None,
    sweeps: list[Path],
    iterations: Path | None,
    halves: Mapping[str, list[Path]],
    cross: bool,
) -> str:
    from rlsim.validation.accuracy import accuracy_document, checked_date, today
    from rlsim.validation.kind import Kind
    from rlsim.validation.published import run_published

    day = checked_date(date) if date is not None else today()
    with ProgressLine("rows and cells") as progress:
        answer = run_published(
            seed,
            replications,
            progress.reach,
            sweeps,
            iterations,
            {Kind(kind): paths for kind, paths in halves.items()},
            cross,
        )
    document = accuracy_document(answer, day)
    if out is not None:
        with staged_folder(out) as folder:
            write_files(answer.steps, folder)
            (folder / "published.json").write_text(answer.to_json(), encoding="utf-8")
            (folder / "ACCURACY.md").write_text(document, encoding="utf-8")
            _write_pictures(answer, folder)
    if accuracy is not None:
        with staged_folder(accuracy.parent) as folder:
            (folder / accuracy.name).write_text(document, encoding="utf-8")
            _write_pictures(answer, folder)
    return answer.to_json() if as_json else answer.text(terminal_style())


def _write_pictures(answer: Published, folder: Path) -> None:
    """Write the pictures that the accuracy document names beside it."""
    from rlsim.validation.accuracy_halves import write_half_pictures
    from rlsim.validation.accuracy_iterations import write_picture
    from rlsim.validation.cross_text import PICTURE, draw_reliability

    write_picture(answer.iterations, folder)
    if answer.cross is not None:
        draw_reliability(answer.cross, folder / PICTURE)
    write_half_pictures(answer.halves, folder)


def _cross(as_json: bool, out: Path | None) -> str:
    from rlsim.validation.cross import validate_cross
    from rlsim.validation.cross_text import PICTURE, cross_text, draw_reliability

    with ProgressLine("groupings") as progress:
        found = validate_cross(progress=progress.reach)
    if out is not None:
        with staged_folder(out) as folder:
            (folder / "cross.json").write_text(found.to_json(), encoding="utf-8")
            draw_reliability(found, folder / PICTURE)
    return found.to_json() if as_json else cross_text(found, terminal_style())


def _sweeps(files: list[Path], as_json: bool) -> str:
    import json

    from rlsim.validation.iteration_sweeps import iteration_sweep

    results = [iteration_sweep(path) for path in files]
    if as_json:
        return json.dumps({"sweeps": [result.as_dict() for result in results]}, indent=2, allow_nan=False) + "\n"
    return "\n\n".join(result.text(terminal_style()) for result in results)


def write_files(result: Validation, folder: Path) -> list[Path]:
    """Write validation.json, rows.csv, scatter.png and waterfall.png into the existing ``folder``."""
    from rlsim.validation.plots import scatter, waterfall

    (folder / "validation.json").write_text(result.to_json(), encoding="utf-8")
    (folder / "rows.csv").write_text(result.to_csv(), encoding="utf-8")
    scatter(result, folder / "scatter.png")
    waterfall(result, folder / "waterfall.png")
    return [folder / name for name in ("validation.json", "rows.csv", "scatter.png", "waterfall.png")]


def write_measured(result: MeasuredTable, folder: Path) -> list[Path]:
    """Write validation.json, rows.csv, scatter.png and the picture of the table's kind into the existing ``folder``.

    That is by_batch.png of iterations, by_release.png of training steps, by_group.png of transfers and phases; none
    where no row was simulated.
    """
    from rlsim.validation.accuracy_halves import HALVES, draw_half
    from rlsim.validation.kind import Kind
    from rlsim.validation.measured_plots import by_batch, measured_scatter

    (folder / "validation.json").write_text(result.to_json(), encoding="utf-8")
    (folder / "rows.csv").write_text(result.to_csv(), encoding="utf-8")
    measured_scatter(result, folder / "scatter.png")
    written = ["validation.json", "rows.csv", "scatter.png"]
    if result.kind == "iterations" and result.scored:
        by_batch(result, folder / "by_batch.png")
        written.append("by_batch.png")
    elif result.kind in HALVES and result.scored:
        written.append("by_release.png" if result.kind == Kind.TRAINING else "by_group.png")
        draw_half(result, folder / written[-1])
    return [folder / name for name in written]
