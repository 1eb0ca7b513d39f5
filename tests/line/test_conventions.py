"""Conventions of the code and of the house (CONTRIBUTING.md), held by the machine."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import bench
import rlsim
from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.units import GIB, MICROSECOND

ROOT = Path(__file__).parents[2]
PACKAGES = [Path(package.__path__[0]) for package in (rlsim, bench)]
FILES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
MOST_MODULES, MOST_FLOORS = 20, 14

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def definitions(tree: ast.Module | ast.ClassDef) -> Iterator[Definition]:
    """Public classes and functions of a module, and the public methods of its public classes; of overloads the body."""
    for node in tree.body:
        overloads = [one for one in getattr(node, "decorator_list", ()) if getattr(one, "id", "") == "overload"]
        if isinstance(node, Definition) and not node.name.startswith("_") and not overloads:
            yield node
            if isinstance(node, ast.ClassDef):
                yield from definitions(node)


def test_files_and_functions_stay_small_and_public_names_are_documented() -> None:
    for path in FILES:
        text, name = path.read_text(), str(path.relative_to(PACKAGES[0].parent))
        tree = ast.parse(text)
        assert len(text.splitlines()) <= MAX_FILE_LINES, name
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        lines = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions}
        assert {one: count for one, count in lines.items() if count > MAX_FUNCTION_LINES} == {}, name
        assert [node.name for node in definitions(tree) if not ast.get_docstring(node)] == [], name
        assert not text.strip() or ast.get_docstring(tree), name


def test_projecting_imports_no_library_of_other_commands() -> None:
    wanted = "rlsim.cli, rlsim.projection.project, rlsim.report.folder, rlsim.report.text.projection"
    others = ("torch", "omegaconf", "matplotlib")
    code = f"import sys, {wanted}; sys.exit(' '.join(name for name in {others} if name in sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_map_of_rooms_is_what_the_import_contract_says() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "rooms", "--check"])
    assert done.returncode == 0, "run scripts/rooms"


def test_rooms_and_floors_stay_few(script) -> None:
    floors = script("scripts/rooms").floors()
    assert len(floors) <= MOST_FLOORS
    assert {path.stem for path in PACKAGES[0].glob("*.py")} == {"__init__", "__main__", "errors", "units"}
    folders = [folder for folder in PACKAGES[0].rglob("*") if (folder / "__init__.py").exists()]
    sizes = {str(folder): len([*folder.glob("*.py")]) - 1 for folder in folders}
    assert {folder: size for folder, size in sizes.items() if size > MOST_MODULES} == {}


def test_every_mutant_changes_a_line_that_is_there(script) -> None:
    module = script("scripts/mutants")
    found = list(module.all_mutants())
    assert {mutant.room for mutant in found} == set(module.ROOMS)
    for mutant in found:
        compile(mutant.text, mutant.module, "exec")
        assert mutant.text != (module.ROOT / "rlsim" / mutant.module).read_text(encoding="utf-8"), mutant


TEXT = (Path(__file__).parents[2] / "docs" / "model.md").read_text()
PHASES = (("generation_s",), ("data_s", "logprob_s", "train_s"), ("prepare_s", "refit_s"))
"""Phases of each table of parts, in the order of the page."""
STEP = ("simulation.replications=1", "simulation.steps=1")
SHORT = (*STEP, "workload.prompts_per_step=16", "trainer.global_batch_samples=null")
UNITS = {"": 1.0, "GiB": GIB, "MiB": 2.0**20, "us": MICROSECOND}


def tables(head: str) -> list[list[list[str]]]:
    """Cells of the tables whose first column is called ``head``, without header and ruler."""
    blocks = [block.splitlines() for block in TEXT.split("\n\n") if block.startswith(f"| {head} |")]
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]] for lines in blocks]


def parts() -> Iterator[tuple[str, str, str]]:
    """Phase, part and what it rests on."""
    for phases, rows in zip(PHASES, tables("part"), strict=True):
        for row in rows:
            yield from ((phase, name, row[2]) for phase in phases for name in row[0].split(", "))


@pytest.mark.parametrize(("name", "changes"), [
    ("quickstart", ()),
    ("quickstart", ("trainer.critic=true", "trainer.backend=fsdp", "engine.cuda_graphs=false")),
    ("qwen235b_512", ()),
    ("qwen8b_async_lag1", ()),
])  # fmt: skip
def test_every_part_of_an_answer_is_on_the_page_with_what_it_rests_on(name: str, changes: tuple[str, ...]) -> None:
    told = {(phase, part): root for phase, part, root in parts()}
    shown = project(load_scenario(name, [*SHORT, *changes])).candidate.parts
    assert {(part.phase, part.name) for part in shown} <= told.keys()
    for part in shown:
        root = told[part.phase, part.name]
        assert part.measured == 0.0 or "measured" in root, part
        assert part.measured == 1.0 or part.source in root, part


def test_the_page_gives_assumed_constants_their_values() -> None:
    (rows,) = tables("constant")
    for path, value, *_ in rows:
        module, _, constant = path.strip("`").rpartition(".")
        number, _, unit = value.partition(" ")
        assert getattr(import_module(module), constant) == pytest.approx(float(number) * UNITS[unit]), path
