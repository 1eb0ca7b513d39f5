"""The files of ``--out``: each answer's JSON, its picture, and the scenario that gives it again; pictures anew."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlsim.errors import InputError
from rlsim.files.reading import TABLE_BYTES, shown_path
from rlsim.files.writing import staged_folder
from rlsim.report.timeline import timeline_json
from rlsim.results import Projection
from rlsim.results.blame import Blame
from rlsim.results.plan import Plan
from rlsim.results.run import Run
from rlsim.results.validation import CrossValidation, Published, Validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Content = str | bytes | Figure

Answer = Projection | Run | Blame | Validation | CrossValidation | Published
DRAWN = ("run.json", "results.csv", "plan.json", "blame.json")
"""Files that hold all that their pictures show."""
ELSEWHERE = {
    "projection.json": "projection.json lacks the curves that phases.png shows; rlsim project {folder}/scenario.yaml "
    "--out {folder} draws the same picture again",
    "published.json": "the pictures need every row's scenario; rlsim validate published --out {folder} draws them",
    "validation.json": "the pictures need every row's scenario; rlsim validate TABLE.csv --out {folder} draws them",
    "log.json": "phases.png needs the log itself; rlsim log LOG SCENARIO --out {folder} draws it",
    "cross.json": "reliability.png needs every row; rlsim validate cross --out {folder} draws it",
}
"""Results whose pictures need more than the files hold, and what draws them."""


def write_out(answer: Answer, out: Path | None) -> None:
    """Write the files of an answer into the folder ``out``, where one is given, all of them or none."""
    if out is not None:
        write_files(_contents(answer), out)


def write_files(contents: Mapping[str, Content], out: Path) -> None:
    """Write texts, bytes and figures under their names into the folder ``out``, all of them or none."""
    with staged_folder(out) as stage:
        for name, content in contents.items():
            _written(stage / name, content)


def write(answer: Answer, folder: Path) -> list[Path]:
    """Paths of the files of an answer, written into the existing ``folder``: its JSON, its pictures, what else it has.

    scenario.yaml is the resolved scenario and projects or runs again to the same answer. OSError passes through.
    """
    return [_written(folder / name, content) for name, content in _contents(answer).items()]


def _contents(answer: Answer) -> Mapping[str, Content]:
    """Text or figure of each file; matplotlib is imported where one is drawn."""
    from rlsim.report.figures.bars import waterfall_figure
    from rlsim.report.figures.phases import phases_figure
    from rlsim.report.figures.run import run_figure
    from rlsim.report.figures.validation import ratios, reliability, scatter
    from rlsim.report.text.validation import rows_csv

    if isinstance(answer, Projection):
        return {
            "projection.json": answer.to_json(),
            "phases.png": phases_figure(answer),
            "timeline.json": timeline_json(answer),
            "scenario.yaml": answer.resolved_scenario,
        }
    if isinstance(answer, Run):
        texts = {"run.json": answer.to_json(), "steps.csv": answer.to_csv(), "scenario.yaml": answer.resolved_scenario}
        return {**texts, "run.png": run_figure(answer)}
    if isinstance(answer, Blame):
        text = json.dumps(answer.as_dict(), indent=1) + "\n"
        return {"blame.json": text, "waterfall.png": waterfall_figure(answer)}
    if isinstance(answer, CrossValidation):
        return {"cross.json": answer.to_json(), "reliability.png": reliability(answer)}
    if isinstance(answer, Published):
        cross = {} if answer.cross is None else _contents(answer.cross)
        return {**_contents(answer.steps), "published.json": answer.to_json(), **cross}
    pictures = {"scatter.png": scatter(answer), "ratios.png": ratios(answer)}
    return {"validation.json": answer.to_json(), "rows.csv": rows_csv(answer), **pictures}


def _written(path: Path, content: Content) -> Path:
    if isinstance(content, str | bytes):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path
    from rlsim.report.figures.style import save_picture

    return save_picture(content, path)


def replot(folder: Path, out: Path | None = None) -> list[Path]:
    """Paths of every picture that the files of ``folder`` hold all of, drawn into ``out`` (default the same folder).

    Raises InputError where the folder holds no results, or only those whose pictures need more than they hold, with the
    command that draws them.
    """
    if not folder.is_dir():
        raise InputError(f"{shown_path(folder)}: no such folder of results")
    drawn = [name for name in DRAWN if (folder / name).is_file()]
    if not drawn:
        found = next((name for name in ELSEWHERE if (folder / name).is_file()), None)
        if found is not None:
            raise InputError(f"{shown_path(folder)}: {ELSEWHERE[found].format(folder=shown_path(folder))}")
        raise InputError(f"{shown_path(folder)}: holds none of {', '.join((*DRAWN, *ELSEWHERE))}")
    target = out or folder
    with staged_folder(target) as stage:
        for name in drawn:
            with drawable(folder / name):
                for picture, figure in _pictures(name, folder).items():
                    _written(stage / f"{picture}.png", figure)
        return [target / path.name for path in sorted(stage.iterdir())]


@contextmanager
def drawable(path: Path) -> Iterator[None]:
    """Numbers of a file that no picture can show raise InputError naming the file."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, StopIteration) as error:
        reason = f"{type(error).__name__}: {str(error)[:80]}"
        raise InputError(f"{shown_path(path)}: is no result of this rlsim ({reason})") from error


def _pictures(name: str, folder: Path) -> dict[str, Figure]:
    """Pictures of what a file of the folder holds, by their names."""
    from rlsim.report.figures.bars import waterfall_figure
    from rlsim.report.figures.grids import plan_figure, sweep_figures
    from rlsim.report.figures.run import run_figure
    from rlsim.report.folder import read_run, read_sweep

    if name == "run.json":
        return {"run": run_figure(read_run(folder, []))}
    if name == "results.csv":
        return sweep_figures(read_sweep(folder))
    if name == "plan.json":
        return {"pareto": plan_figure(Plan.read(folder / name, TABLE_BYTES))}
    return {"waterfall": waterfall_figure(Blame.read(folder / name))}
