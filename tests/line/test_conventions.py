"""Conventions of the code (CONTRIBUTING.md), held by the machine."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bench
import rlsim

PACKAGES = [Path(package.__path__[0]) for package in (rlsim, bench)]
FILES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGES[0].parent))


def definitions(tree: ast.Module | ast.ClassDef) -> Iterator[Definition]:
    """Public classes and functions of a module, and the public methods of its public classes."""
    for node in tree.body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from definitions(node)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_and_functions_stay_small_and_public_names_are_documented(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert len(text.splitlines()) <= MAX_FILE_LINES
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lines = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions}
    assert {name: count for name, count in lines.items() if count > MAX_FUNCTION_LINES} == {}
    assert [node.name for node in definitions(tree) if not ast.get_docstring(node)] == []
    assert not text.strip() or ast.get_docstring(tree)


def test_projecting_never_imports_torch() -> None:
    code = "import sys, rlsim.projection.project, rlsim.report.folder; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
