"""The files of ``--out``: each answer's JSON, its picture, and the scenario that gives it again; pictures anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlsim.errors import InputError
from rlsim.files.reading import TABLE_BYTES, shown_path
from rlsim.files.writing import staged_folder
from rlsim.report.timeline import timeline_json
from rlsim.results import Projection
from rlsim.results.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ELSEWHERE = {
    "projection.json": "projection.json lacks the curves that phases.png shows; rlsim project {folder}/scenario.yaml "
    "--out {folder} draws the same picture again",
    "published.json": "the pictures need every row's scenario; rlsim validate published --out {folder} draws them",
    "validation.json": "the pictures need every row's scenario; rlsim validate TABLE.csv --out {folder} draws them",
    "log.json": "phases.png needs the log itself; rlsim log LOG SCENARIO --out {folder} draws it",
    "cross.json": "reliability.png needs every row; rlsim validate cross --out {folder} draws it",
}
"""Results whose pictures need more than the files hold, and what draws them."""


def write(projection: Projection, out: Path) -> list[Path]:
    """Paths of projection.json, phases.png, timeline.json and scenario.yaml, written into the existing folder ``out``.

    scenario.yaml is the resolved scenario and projects again to the same answer. OSError passes through.
    """
    from rlsim.report.figures.phases import phases_figure
    from rlsim.report.figures.style import save_picture

    texts = {
        "projection.json": projection.to_json(),
        "timeline.json": timeline_json(projection),
        "scenario.yaml": projection.resolved_scenario,
    }
    picture = save_picture(phases_figure(projection), out / "phases.png")
    return [*_written(texts, out), picture]


def write_run(run: Run, out: Path) -> list[Path]:
    """Paths of run.json, steps.csv, run.png and scenario.yaml, written into the existing folder ``out``."""
    from rlsim.report.figures.run import run_figure
    from rlsim.report.figures.style import save_picture

    texts = {"run.json": run.to_json(), "steps.csv": run.to_csv(), "scenario.yaml": run.resolved_scenario}
    picture = save_picture(run_figure(run), out / "run.png")
    return [*_written(texts, out), picture]


def _written(texts: Mapping[str, str], out: Path) -> list[Path]:
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8", newline="\n")
    return [out / name for name in texts]


def replot(folder: Path, out: Path | None = None) -> list[Path]:
    """Paths of every picture that the files of ``folder`` hold all of, drawn into ``out`` (default the same folder).

    Raises InputError where the folder holds no results, or only those whose pictures need more than they hold, with the
    command that draws them.
    """
    from rlsim.report.figures.style import save_picture

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
                for picture, figure in DRAWN[name](folder).items():
                    save_picture(figure, stage / f"{picture}.png")
        return [target / path.name for path in sorted(stage.iterdir())]


@contextmanager
def drawable(path: Path) -> Iterator[None]:
    """Numbers of a file that no picture can show raise InputError naming the file."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, StopIteration) as error:
        reason = f"{type(error).__name__}: {str(error)[:80]}"
        raise InputError(f"{shown_path(path)}: is no result of this rlsim ({reason})") from error


def _blame(folder: Path) -> dict[str, Figure]:
    from rlsim.report.figures.bars import waterfall_figure
    from rlsim.results.blame import Blame

    return {"waterfall": waterfall_figure(Blame.read(folder / "blame.json"))}


def _run(folder: Path) -> dict[str, Figure]:
    from rlsim.report.figures.run import run_figure
    from rlsim.report.folder import read_run

    return {"run": run_figure(read_run(folder, []))}


def _plan(folder: Path) -> dict[str, Figure]:
    from rlsim.report.figures.grids import plan_figure
    from rlsim.results.plan import Plan

    return {"pareto": plan_figure(Plan.read(folder / "plan.json", TABLE_BYTES))}


def _sweep(folder: Path) -> dict[str, Figure]:
    from rlsim.report.figures.grids import sweep_figures
    from rlsim.report.folder import read_sweep

    return sweep_figures(read_sweep(folder))


DRAWN: Mapping[str, Callable[[Path], dict[str, Figure]]] = {
    "run.json": _run,
    "results.csv": _sweep,
    "plan.json": _plan,
    "blame.json": _blame,
}
"""Files that hold all that their pictures show."""
