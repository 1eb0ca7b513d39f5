"""The notebooks run from top to bottom, use the public API only and carry no outputs."""

import ast
import warnings
from pathlib import Path
from typing import Any

import nbformat
import pytest

from rlsim.planning.compare import differences

FOLDER = Path(__file__).parents[2] / "notebooks"
NAMES = ("01_first_projection", "03_choose_k", "04_split_and_lag", "05_size_the_cluster")
NOTEBOOKS = [FOLDER / f"{name}.ipynb" for name in NAMES]
LONGEST_CELL_S = 120


def code_of(notebook: nbformat.NotebookNode) -> str:
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from nbclient import NotebookClient

        client = NotebookClient(notebook, timeout=LONGEST_CELL_S, kernel_name="python3")
        client.execute()
    printed = [cell for cell in notebook.cells if cell.get("outputs")]
    assert len(printed) >= 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_uses_public_names_only(path: Path) -> None:
    tree = ast.parse(code_of(nbformat.read(path, as_version=4)))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names] == ["rlsim"]
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not [name for name in attributes if name.startswith("_")]


def test_the_split_notebook_says_what_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    """Its batch is the scenario's own; only the cluster is smaller."""
    notebook = nbformat.read(FOLDER / "04_split_and_lag.ipynb", as_version=4)
    cells: dict[str, Any] = {}
    exec(next(cell.source for cell in notebook.cells if cell.cell_type == "code"), cells)
    changed = differences(cells["published"], cells["scenario"])
    assert {key.split(".")[0] for key in changed} == {"cluster"}
    assert cells["scenario"].cluster.num_gpus * 2 == cells["published"].cluster.num_gpus
    assert "16 prompts x 32 samples per step, as published,\non 32 of 64 GPUs" in capsys.readouterr().out
