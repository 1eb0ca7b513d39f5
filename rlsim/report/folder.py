"""The files of ``--out`` and of a results folder: each answer's JSON, its picture, and the scenario that gives it
again; read back as validated records, whoever wrote them; pictures anew."""

from __future__ import annotations

import csv
import importlib
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import AliasPath, BaseModel, Field, ValidationError

from rlsim.errors import InputError, shortened
from rlsim.files.reading import DOCUMENT_BYTES, TABLE_BYTES, read_text, shown_path
from rlsim.files.writing import staged_folder
from rlsim.files.yaml import read_yaml
from rlsim.report.format import NAMES
from rlsim.report.text.findings import NOTABLE_SHARE, SYNC_PHASES
from rlsim.report.text.validation import rows_csv
from rlsim.report.timeline import read_timeline, timeline_json
from rlsim.results.answer import Answer
from rlsim.results.check import Check, Improvement
from rlsim.results.planning import DraftCurve, Sizing
from rlsim.results.projection import About, Projection
from rlsim.results.record import LARGEST, Record, what_is_wrong
from rlsim.results.run import Run
from rlsim.results.sweep import Plan, SweepResult, scenario_in
from rlsim.results.validation import Published, Validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Content = str | bytes | Figure

KINDS: dict[str, Sequence[str]] = NAMES["kinds"]
"""File that makes a folder one of a kind, and the command that writes it."""
RECORDS: dict[str, tuple[type[Record], int]] = {
    "projection": (Projection, DOCUMENT_BYTES),
    "run": (Run, TABLE_BYTES),
    "plan": (Plan, TABLE_BYTES),
    "validation": (Validation, TABLE_BYTES),
    "check": (Check, DOCUMENT_BYTES),
    "improvement": (Improvement, DOCUMENT_BYTES),
    "size": (Sizing, DOCUMENT_BYTES),
    "k": (DraftCurve, DOCUMENT_BYTES),
}
"""What the files hold, and how large they may be."""
SCENARIO_BYTES = 2**18
"""Largest scenario.yaml that is looked into; a resolved scenario has 18 KiB."""
FIELD_CHARACTERS, TEXT_CHARACTERS, NUMBER_CHARACTERS = 100_000, 300, 30
MOST_LINES = 100_000


class _Asked(BaseModel):
    """Keys of a scenario that its answer does not repeat."""

    question: str | None = None
    mode: str | None = Field(None, validation_alias=AliasPath("loop", "mode"))
    supervised: bool = Field(False, validation_alias=AliasPath("loop", "supervised"))
    rollouts_alone: bool = Field(False, validation_alias=AliasPath("loop", "rollouts_alone"))
    num_gpus: int | None = Field(None, validation_alias=AliasPath("cluster", "num_gpus"))
    model: str | None = Field(None, validation_alias=AliasPath("model", "name"))
    hardware: str | None = Field(None, validation_alias=AliasPath("hardware", "name"))


def kinds_in(folder: Path) -> list[str]:
    """Kinds of results in a folder, in the order of KINDS.

    Raises InputError where it is no folder, or says what is missing where it holds none.
    """
    if not folder.is_dir():
        what = "is a file; expected a folder of results" if folder.exists() else "no such folder"
        raise InputError(f"{shown_path(folder)}: {what}")
    found = [kind for kind, (name, _) in KINDS.items() if (folder / name).exists()]
    if not found:
        expected = ", ".join(f"{name} ({command})" for name, command in KINDS.values())
        raise InputError(f"{shown_path(folder)}: holds no results; expected one of {expected}")
    return found


def file_in(folder: Path, name: str) -> Path:
    """The path of a file of the folder, which may be missing.

    Raises InputError where it is a link that leads out of the folder: its content may be nobody's to publish.
    """
    path = folder / name
    # Both resolved: the folder itself may be reached by a link.
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{shown_path(path)}: is a link that leads out of the folder")
    return path


def read_answer(kind: str, folder: Path, left_out: list[str]) -> Any:
    """The answer of a kind in the folder, a projection or run with what scenario.yaml says of it.

    ``left_out`` takes what is wrong with files beside it. Raises InputError naming the file and the first wrong key.
    """
    path = file_in(folder, KINDS[kind][0])
    if kind == "sweep":
        return _sweep(path)
    record, most_bytes = RECORDS[kind]
    answer = record.read(path, most_bytes)
    if isinstance(answer, Run) and min(side.seconds.mean for side in answer.sides.values()) <= 0:
        raise InputError("run.json: 'seconds' must have a mean above 0")
    if isinstance(answer, Projection) and min(answer.baseline.step_s.mean, answer.candidate.step_s.mean) <= 0:
        raise InputError("projection.json: 'step_s' must have a mean above 0")
    if isinstance(answer, About):
        answer = answer.model_copy(update=_beside(folder, "scenario.yaml", _asked_in, left_out))
    return _with_timeline(answer, folder, left_out) if isinstance(answer, Projection) else answer


def _beside(folder: Path, name: str, read: Callable[[Path], dict[str, Any]], left_out: list[str]) -> dict[str, Any]:
    """What ``read`` finds in a file beside an answer, empty without it; ``left_out`` takes the error of a wrong one."""
    try:
        path = file_in(folder, name)
        return read(path) if path.exists() else {}
    except InputError as error:
        left_out.append(str(error))
    return {}


def _with_timeline(answer: Projection, folder: Path, left_out: list[str]) -> Projection:
    """The projection with its timeline and its mode.

    Where no scenario.yaml says the mode, phases that exceed their step do: generation then runs beside the trainer.
    """
    if not answer.mode:
        arm = answer.candidate
        rest_s = sum(arm.phases[name].mean for name in SYNC_PHASES) - arm.step_s.mean
        # Twice what counts as rounding: phases and step are rounded each.
        beside = abs(rest_s) > 2 * NOTABLE_SHARE * arm.step_s.mean
        answer = answer.model_copy(update={"mode": "async" if beside else "sync"})
    sides = _beside(folder, "timeline.json", read_timeline, left_out)
    return answer.model_copy(
        update={side: getattr(answer, side).model_copy(update=found) for side, found in sides.items()}
    )


def _asked_in(path: Path) -> dict[str, Any]:
    """Keys of a scenario.yaml that its answer does not repeat. Raises InputError."""
    if path.stat().st_size > SCENARIO_BYTES:
        raise InputError(f"{path.name}: is larger than {SCENARIO_BYTES // 2**10} KiB")
    try:
        asked = _Asked.model_validate(read_yaml(path), strict=True)
        alone = {"supervised": asked.supervised, "rollouts_alone": asked.rollouts_alone}
        mode = next((name for name, one in alone.items() if one), asked.mode)
        return asked.model_copy(update={"mode": mode}).model_dump(exclude_none=True, exclude=set(alone))
    except ValidationError as error:
        raise InputError(f"{path.name}: {what_is_wrong(error)}") from error


def _sweep(path: Path) -> SweepResult:
    """The sweep in a CSV file. Axes are the columns before the status; those that always agree are one axis."""
    heads, *lines = _csv_lines(path)
    if "status" not in heads or not {"step_s", "step_low_s", "step_high_s"} <= set(heads) or not heads.index("status"):
        raise InputError(f"{path.name}: is no sweep of rlsim: it needs columns of axes, then status, and step_s")
    columns = {name: _typed([line[i] for line in lines]) for i, name in enumerate(heads)}
    names = heads[: heads.index("status")]
    rows = tuple(
        {name: values[i] for name, values in columns.items() if values[i] is not None} for i in range(len(lines))
    )
    for row in rows:
        needed = names if row.get("status") != "ok" else [*names, "step_s"]
        if any(name not in row for name in needed) or isinstance(row.get("step_s", 1.0), str):
            raise InputError(f"{path.name}: a line lacks an axis or a step that is a number")
    axes: dict[tuple[Any, ...], list[str]] = {}
    for name in names:
        axes.setdefault(tuple(columns[name]), []).append(name)
    # Keys that a sweep joined take the same value in every row.
    written = {",".join(keys): tuple(dict.fromkeys(map(str, values))) for values, keys in axes.items()}
    name = scenario_in(path.with_name("results.parquet"))
    result = SweepResult(scenario=name, axes=written, replications=1, rows=rows)
    if not result.done:
        raise InputError(f"{path.name}: holds no cell that could run")
    return result


def _csv_lines(path: Path) -> list[list[str]]:
    """Lines of a CSV file, the heads first. Raises InputError naming file and line."""
    text, name = read_text(path, TABLE_BYTES), shown_path(path)
    # The limit is global to the process: it is put back.
    before = csv.field_size_limit(FIELD_CHARACTERS)
    try:
        lines = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise InputError(f"{name}: is no CSV ({error})") from error
    finally:
        csv.field_size_limit(before)
    if not lines or len(set(lines[0])) < len(lines[0]) or len(lines) > MOST_LINES:
        raise InputError(f"{name}: its first line must name every column once, before at most {MOST_LINES:,} others")
    wrong = next((number for number, line in enumerate(lines, start=1) if len(line) != len(lines[0])), None)
    if wrong is not None:
        raise InputError(f"{name}: line {wrong} has other columns than the first")
    return lines


def _typed(fields: Sequence[str]) -> list[Any]:
    """Values of a column: whole numbers, numbers or text; None where a field is empty."""
    given = [text for text in fields if text]
    # Whole numbers first: 4 GPUs must not come back as 4.0.
    for kind in (int, float):
        try:
            numbers = {text: kind(text) for text in given if len(text) < NUMBER_CHARACTERS}
        except ValueError:
            continue
        # All or none: a column of which some fields are no numbers is text.
        if len(numbers) == len(set(given)) and all(math.isfinite(v) and abs(v) <= LARGEST for v in numbers.values()):
            return [numbers.get(text) for text in fields]
    return [shortened(text, TEXT_CHARACTERS) or None for text in fields]


DRAWN = ("run", "sweep", "plan", "check", "improvement", "size", "k")
"""Kinds of results whose files hold all that their pictures show."""


def write_out(answer: Answer, out: Path | None) -> None:
    """Write the files of an answer into the folder ``out``, where one is given, all of them or none."""
    if out is not None:
        write_files(_contents(answer), out)


def write_files(contents: Mapping[str, Content], out: Path) -> None:
    """Write texts, bytes and figures under their names into the folder ``out``, all of them or none."""
    with staged_folder(out) as stage:
        for name, content in contents.items():
            # A name may lie in a folder of its own, such as scenarios/ID.yaml.
            (stage / name).parent.mkdir(exist_ok=True)
            if isinstance(content, str | bytes):
                (stage / name).write_bytes(content.encode() if isinstance(content, str) else content)
            else:
                from rlsim.report.figures.style import save_picture

                # Here alone, since texts and bytes need no matplotlib.
                save_picture(content, stage / name)


def _contents(answer: Answer) -> Mapping[str, Content]:
    """Text or figure of each file; scenario.yaml is the resolved scenario, which gives the same answer again."""
    kind = next((kind for kind, (record, _) in RECORDS.items() if isinstance(answer, record)), "")
    others = {"CrossValidation": "cross.json"}
    name = KINDS[kind][0] if kind else others.get(type(answer).__name__, "published.json")
    found: dict[str, Content] = {**_pictures(answer), name: answer.to_json()}
    if isinstance(answer, Projection):
        found["timeline.json"] = timeline_json(answer)
    elif isinstance(answer, Run):
        found["steps.csv"] = answer.to_csv()
    elif isinstance(answer, Validation):
        found["rows.csv"] = rows_csv(answer)
    elif isinstance(answer, Published):
        found |= {**_contents(answer.steps), **({} if answer.cross is None else _contents(answer.cross))}
    return found | ({"scenario.yaml": answer.resolved_scenario} if isinstance(answer, About) else {})


PICTURES: Mapping[str, Mapping[str, str]] = {
    "Projection": {"phases.png": "phases:phases_figure", "memory.png": "memory:memory_figure",
                   "occupancy.png": "occupancy:occupancy_figure"},
    "Run": {"run.png": "grids:run_figure"},
    "Check": {"check.png": "bars:checked_figure"}, "Sizing": {"size.png": "grids:size_figure"},
    "Improvement": {"improvement.png": "bars:improvement_figure"},
    "DraftCurve": {"k.png": "grids:draft_figure"},
    "Plan": {"pareto.png": "grids:plan_figure"}, "CrossValidation": {"reliability.png": "validation:reliability"},
    "Validation": {"scatter.png": "validation:scatter", "ratios.png": "validation:ratios"},
}  # fmt: skip
"""Files and functions of :mod:`rlsim.report.figures` by the answer that they show."""


def _pictures(answer: Answer) -> dict[str, Figure]:
    """Pictures of an answer by their files; matplotlib is imported where one is drawn."""
    if isinstance(answer, SweepResult):
        from rlsim.report.figures.grids import sweep_figures

        return {f"{name}.png": figure for name, figure in sweep_figures(answer).items()}
    places = {name: place.split(":") for name, place in PICTURES.get(type(answer).__name__, {}).items()}
    modules = {name: importlib.import_module(f"rlsim.report.figures.{module}") for name, (module, _) in places.items()}
    drawn = {name: getattr(modules[name], function)(answer) for name, (_, function) in places.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}  # agents alone occupy sandboxes


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
    if not pictures:
        raise InputError(f"{shown_path(folder)}: {', '.join(files[kind] for kind in drawn)} holds nothing to draw")
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
