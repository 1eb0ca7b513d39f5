"""The notebook about accuracy runs on a part of the published table."""

import json
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from rlsim.evidence import tables as module
from rlsim.evidence.tables import read_table

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "02_accuracy.ipynb"


def code_cells() -> list[str]:
    cells: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_every_cell_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    monkeypatch.setattr(module, "read_table", lambda *given: read_table(*given)[10:15])
    namespace: dict[str, Any] = {}
    for cell in code_cells():
        exec(cell, namespace)
    out = capsys.readouterr().out
    assert "5 rows of kind steps, 5 simulated" in out
    assert "worst: nemorl-v0.5.0-h100-dsv3-dapo-sync-512g" in out
