"""The files of ``rlsim run --out``."""

from __future__ import annotations

from pathlib import Path

from rlsim.results.run import Run


def write(run: Run, out: Path) -> list[Path]:
    """Write run.json, steps.csv, run.png and scenario.yaml into the existing folder ``out``. OSError passes through."""
    from rlsim.report.run_plot import run_figure

    texts = {"run.json": run.to_json(), "steps.csv": run.to_csv(), "scenario.yaml": run.resolved_scenario}
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8", newline="\n")
    run_figure(run, out / "run.png")
    return [out / name for name in (*texts, "run.png")]
