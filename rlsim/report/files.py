"""The files of ``--out``: each answer's JSON, its picture, and the scenario that gives it again; pictures anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlsim.errors import InputError
from rlsim.files.reading import shown_path
from rlsim.files.writing import staged_folder
from rlsim.report.folder import KINDS, RECORDS, read_answer
from rlsim.report.format import NAMES
from rlsim.report.text.validation import rows_csv
from rlsim.report.timeline import timeline_json
from rlsim.results import Projection
from rlsim.results.check import Check
from rlsim.results.headroom import Headroom
from rlsim.results.planning import Blame, Techniques
from rlsim.results.projection import About
from rlsim.results.run import Run
from rlsim.results.size import Sizing
from rlsim.results.sweep import Plan, SweepResult
from rlsim.results.validation import CrossValidation, Published, Validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Content = str | bytes | Figure

Answer = Projection | Run | Blame | Check | Sizing | Headroom | Techniques | Validation | CrossValidation | Published
DRAWN = ("run", "sweep", "plan", "blame", "check", "size", "headroom", "techniques")
"""Kinds of results whose files hold all that their pictures show."""


def write_out(answer: Answer, out: Path | None) -> None:
    """Write the files of an answer into the folder ``out``, where one is given, all of them or none."""
    if out is not None:
        write_files(_contents(answer), out)


def write_files(contents: Mapping[str, Content], out: Path) -> None:
    """Write texts, bytes and figures under their names into the folder ``out``, all of them or none."""
    with staged_folder(out) as stage:
        for name, content in contents.items():
            if isinstance(content, str | bytes):
                (stage / name).write_bytes(content.encode() if isinstance(content, str) else content)
            else:
                from rlsim.report.figures.style import save_picture

                save_picture(content, stage / name)


def _contents(answer: Answer) -> Mapping[str, Content]:
    """Text or figure of each file; scenario.yaml is the resolved scenario, which gives the same answer again."""
    found: dict[str, Content] = dict(_pictures(answer))
    if isinstance(answer, Projection):
        found |= {"projection.json": answer.to_json(), "timeline.json": timeline_json(answer)}
    elif isinstance(answer, Run):
        found |= {"run.json": answer.to_json(), "steps.csv": answer.to_csv()}
    elif isinstance(answer, Blame | Check | Sizing | Headroom | Techniques):
        kind = next(kind for kind, (record, _) in RECORDS.items() if isinstance(answer, record))
        found[KINDS[kind][0]] = answer.to_json()
    elif isinstance(answer, CrossValidation):
        found["cross.json"] = answer.to_json()
    elif isinstance(answer, Published):
        cross = {} if answer.cross is None else _contents(answer.cross)
        found = {**_contents(answer.steps), "published.json": answer.to_json(), **cross}
    else:
        found |= {"validation.json": answer.to_json(), "rows.csv": rows_csv(answer)}
    return found | ({"scenario.yaml": answer.resolved_scenario} if isinstance(answer, About) else {})


def _pictures(answer: Answer | SweepResult | Plan) -> dict[str, Figure]:
    """Pictures of an answer by their files; matplotlib is imported where one is drawn."""
    from rlsim.report.figures.bars import ladder_figure, techniques_figure, waterfall_figure
    from rlsim.report.figures.grids import plan_figure, size_figure, sweep_figures
    from rlsim.report.figures.measured import checked_figure
    from rlsim.report.figures.phases import phases_figure
    from rlsim.report.figures.run import run_figure
    from rlsim.report.figures.validation import ratios, reliability, scatter

    match answer:
        case Projection():
            return {"phases.png": phases_figure(answer)}
        case Run():
            return {"run.png": run_figure(answer)}
        case Blame():
            return {"waterfall.png": waterfall_figure(answer)}
        case Check():
            return {"check.png": checked_figure(answer)}
        case Sizing():
            return {"size.png": size_figure(answer)}
        case Headroom():
            return {"headroom.png": ladder_figure(answer)}
        case Techniques():
            return {"techniques.png": techniques_figure(answer)}
        case Plan():
            return {"pareto.png": plan_figure(answer)}
        case SweepResult():
            return {f"{name}.png": figure for name, figure in sweep_figures(answer).items()}
        case CrossValidation():
            return {"reliability.png": reliability(answer)}
        case Validation():
            return {"scatter.png": scatter(answer), "ratios.png": ratios(answer)}
    return {}


def replot(folder: Path, out: Path | None = None) -> list[Path]:
    """Paths of every picture that the files of ``folder`` hold all of, drawn into ``out`` (default the same folder).

    Raises InputError where the folder holds no results, or only those whose pictures need more than they hold, with the
    command that draws them.
    """
    if not folder.is_dir():
        raise InputError(f"{shown_path(folder)}: no such folder of results")
    files, elsewhere = {kind: KINDS[kind][0] for kind in DRAWN}, NAMES["elsewhere"]
    drawn = [kind for kind, name in files.items() if (folder / name).is_file()]
    if not drawn:
        how = next((how for name, how in elsewhere.items() if (folder / name).is_file()), None)
        what = f"holds none of {', '.join((*files.values(), *elsewhere))}"
        raise InputError(f"{shown_path(folder)}: {what if how is None else how.format(folder=shown_path(folder))}")
    pictures: dict[str, Figure] = {}
    for kind in drawn:
        with drawable(folder / files[kind]):
            pictures |= _pictures(read_answer(kind, folder, []))
    target = out or folder
    write_files(pictures, target)
    return [target / name for name in sorted(pictures)]


@contextmanager
def drawable(path: Path) -> Iterator[None]:
    """Numbers of a file that no picture can show raise InputError naming the file."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, StopIteration) as error:
        reason = f"{type(error).__name__}: {str(error)[:80]}"
        raise InputError(f"{shown_path(path)}: is no result of this rlsim ({reason})") from error
