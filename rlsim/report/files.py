"""The files of ``--out``: each answer's JSON, its picture, and the scenario that gives it again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rlsim.report.perfetto import timeline_json
from rlsim.results import Projection
from rlsim.results.run import Run


def write(projection: Projection, out: Path) -> list[Path]:
    """Write projection.json, phases.png, timeline.json and scenario.yaml into the existing folder ``out``.

    scenario.yaml is the resolved scenario and projects again to the same answer. OSError passes through.
    """
    from rlsim.report.phases_plot import phases_figure

    texts = {
        "projection.json": projection.to_json(),
        "timeline.json": timeline_json(projection),
        "scenario.yaml": projection.resolved_scenario,
    }
    phases_figure(projection, out / "phases.png")
    return [*_written(texts, out), out / "phases.png"]


def write_run(run: Run, out: Path) -> list[Path]:
    """Write run.json, steps.csv, run.png and scenario.yaml into the existing folder ``out``. OSError passes through."""
    from rlsim.report.run_plot import run_figure

    texts = {"run.json": run.to_json(), "steps.csv": run.to_csv(), "scenario.yaml": run.resolved_scenario}
    run_figure(run, out / "run.png")
    return [*_written(texts, out), out / "run.png"]


def _written(texts: Mapping[str, str], out: Path) -> list[Path]:
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8", newline="\n")
    return [out / name for name in texts]
