"""Pictures of finished results, drawn anew from the files that a command left."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlsim.errors import InputError
from rlsim.files.reading import TABLE_BYTES, read_bytes, shown_path
from rlsim.files.writing import staged_folder


def replot(folder: Path, out: Path | None = None) -> list[Path]:
    """Draw every picture that the files of ``folder`` hold all of, into ``out`` (default the same folder).

    Returns the pictures' paths. Raises InputError where the folder holds no results, or only those whose pictures need
    more than they hold, with the command that draws them.
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
            try:
                DRAWN[name](folder, stage)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                reason = f"{type(error).__name__}: {str(error)[:80]}"
                raise InputError(f"{shown_path(folder / name)}: is no result of this rlsim ({reason})") from error
        return [target / path.name for path in sorted(stage.iterdir())]


def _blame(folder: Path, out: Path) -> None:
    from rlsim.attribution.picture import draw_waterfall
    from rlsim.results.blame import Blame

    draw_waterfall(Blame.read(folder / "blame.json"), out / "waterfall.png")


def _run(folder: Path, out: Path) -> None:
    """The mode, which run.json does not hold, is in the scenario beside it."""
    from rlsim.loading.scenario import load_scenario
    from rlsim.report.run_plot import run_figure
    from rlsim.results.run import Run

    mode = load_scenario(folder / "scenario.yaml").loop.mode
    answer = Run.read(folder / "run.json", TABLE_BYTES)
    run_figure(answer.model_copy(update={"mode": mode}), out / "run.png")


def _plan(folder: Path, out: Path) -> None:
    from rlsim.planning.pictures import draw_plan
    from rlsim.results.plan import Plan

    draw_plan(Plan.read(folder / "plan.json", TABLE_BYTES), out)


def _sweep(folder: Path, out: Path) -> None:
    """Axes are the columns before the status; those that always agree are one axis."""
    from io import BytesIO

    from pandas import read_parquet

    from rlsim.planning.pictures import draw_sweep
    from rlsim.results.sweep import SweepResult

    frame = read_parquet(BytesIO(read_bytes(folder / "results.parquet", TABLE_BYTES)))
    rows = tuple(
        {str(name): value for name, value in row.items() if not _missing(value)} for row in frame.to_dict("records")
    )
    axes: dict[tuple[Any, ...], list[str]] = {}
    for name in frame.columns[: list(frame.columns).index("status")]:
        axes.setdefault(tuple(frame[name]), []).append(str(name))
    written = {",".join(names): tuple(dict.fromkeys(map(str, values))) for values, names in axes.items()}
    name = str(frame.attrs.get("scenario", folder.name))
    draw_sweep(SweepResult(scenario=name, axes=written, replications=1, rows=rows), out)


def _missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


DRAWN: Mapping[str, Callable[[Path, Path], None]] = {
    "run.json": _run,
    "results.parquet": _sweep,
    "plan.json": _plan,
    "blame.json": _blame,
}
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
