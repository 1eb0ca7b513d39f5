"""The files of ``--out``."""

from __future__ import annotations

from pathlib import Path

from rlsim.report.perfetto import timeline_json
from rlsim.results import Projection


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
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8", newline="\n")
    phases_figure(projection, out / "phases.png")
    return [out / name for name in ("projection.json", "phases.png", "timeline.json", "scenario.yaml")]
