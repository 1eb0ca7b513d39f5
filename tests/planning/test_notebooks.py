"""The notebooks run from top to bottom, use the public API only and carry no outputs."""

import ast
import warnings
from pathlib import Path

import nbformat
import pytest

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
