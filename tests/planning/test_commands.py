"""The planning commands: what they print and how they end."""

import ast
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

import rlsim
import rlsim.planning as planning
from rlsim.loading.scenario import dump_scenario, vary
from rlsim.schema.scenario import Scenario

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def file(tiny: Scenario, tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(dump_scenario(tiny))
    return str(path)


def test_sweep_prints_a_table_or_json(run: Run, file: str, tmp_path: Path) -> None:
    axes = ["--vary", "speculation.draft_length=1:3", "--vary", "speculation.acceptance_length=1.5,2", "--jobs", "1"]
    code, out, err = run("sweep", file, *axes, "--out", str(tmp_path / "o"))
    assert (code, err) == (0, "")
    assert "6 cells, 6 can run" in out and "end to end" in out
    # Beside itself a cell without drafts is no gain to show.
    assert "end to end" not in run("sweep", file, "k=0", "--vary", "engine.tensor_parallel=1,2", "--jobs", "1")[1]
    assert "USD at 3.00 per GPU and hour (hardware.price_per_gpu_hour_usd)" in out
    assert len((tmp_path / "o" / "results.csv").read_text().splitlines()) == 7
    code, out, err = run("sweep", file, *axes, "--json")
    assert (code, err) == (0, "")
    again = run("sweep", file, "--vary", "k=1", "--out", str(tmp_path / "o"))
    assert again[0] == 2 and "--overwrite" in again[2]
    assert run("sweep", file, "--vary", "k=1", "--jobs", "1", "--out", str(tmp_path / "o"), "--overwrite")[0] == 0
    assert [row["speculation.draft_length"] for row in json.loads(out)["rows"]] == [1, 1, 2, 2, 3, 3]


def test_plan_prints_what_to_set(run: Run, file: str, tmp_path: Path) -> None:
    options = ["--max-staleness", "0", "--jobs", "1", "--steps", "100"]
    code, out, err = run("plan", file, *options, "--out", str(tmp_path / "o"))
    assert (code, err) == (0, "")
    for part in ("Best by step time", "Take ", "Candidates", "first beats it", "the risk that it gains", "100 steps:"):
        assert part in out
    code, out, _ = run("plan", file, *options, "--json")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "o" / "plan.json").read_text())
    told = json.loads(out)
    assert told["statistic"] == "p90"
    memory = next(one for one in told["constraints"] if one["constraint"] == "memory")
    assert memory["limit"] == 1.0 and memory["probability"] >= told["fit_probability"] == 0.95
    code, out, _ = run("project", str(tmp_path / "o" / "best.yaml"), "--json")
    assert code == 0
    step = json.loads(out)["candidate"]["step_s"]
    assert [told["best"][name] for name in ("step_s", "step_low_s", "step_high_s")] == pytest.approx(
        [step[name] for name in ("mean", "low", "high")], rel=1e-8
    )


def test_a_plan_of_the_library_is_that_of_the_command(run: Run, tiny: Scenario, file: str) -> None:
    bare = vary(tiny, "speculation.method=none", "speculation.draft_length=0")
    words = ("speculation.method=none", "speculation.draft_length=0", "--jobs", "1", "--json")
    assert json.loads(run("plan", file, *words)[1]) == json.loads(rlsim.plan(bare, rest=False).to_json())


def test_improve_and_compare_print_their_answers(run: Run, tiny: Scenario, file: str, tmp_path: Path) -> None:
    code, out, _ = run("improve", file, "--only", "inputs", "--json")
    assert code == 0
    told = json.loads(out)["inputs"]
    assert told["sources"]
    assert told["step_s"] == json.loads(run("project", file, "--json")[1])["candidate"]["step_s"]
    other = tmp_path / "other.yaml"
    other.write_text(dump_scenario(vary(tiny, "engine.tensor_parallel=2", "name=other")))
    code, out, _ = run("compare", file, str(other))
    assert code == 0
    assert "engine.tensor_parallel" in out
    sides = ["--set-a", "loop.refit_fixed_s=1", "--set-b", "loop.refit_fixed_s=2", "--set", "engine.tensor_parallel=1"]
    told = json.loads(run("compare", file, str(other), *sides, "--json")[1])
    assert told["differences"] == {"loop.refit_fixed_s": [1, 2]}


FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LONGEST_CELL_S = 120


QUICK = "choose_k"
"""The story that runs with every change; the others do each night."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_story_holds_no_outputs_and_uses_public_names(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    assert f"notebooks/{path.name}" in notebook.cells[0].source  # where Colab opens it
    tree = ast.parse("\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code"))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert imported == {"sys", "matplotlib.pyplot", "rlsim"}
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    assert {node.attr for node in attributes if ast.unparse(node.value) == "rlsim"} <= set(rlsim.__all__)
    assert not [node.attr for node in attributes if node.attr.startswith("_")]


@pytest.mark.parametrize(
    "name", [pytest.param(one.stem, marks=() if one.stem == QUICK else pytest.mark.nightly) for one in NOTEBOOKS]
)
def test_a_story_runs_and_ends_with_a_picture(name: str) -> None:
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from nbclient import NotebookClient

        NotebookClient(notebook, timeout=LONGEST_CELL_S, kernel_name="python3").execute()
    assert any("image/png" in output.get("data", {}) for output in notebook.cells[-1].outputs)


def test_five_stories_are_told_and_listed() -> None:
    listed = (FOLDER.parent / "README.md").read_text()
    assert len(NOTEBOOKS) == 5 and all(f"notebooks/{path.name}" in listed for path in NOTEBOOKS)


@pytest.mark.parametrize("name", ["compare", "improve", "plan", "sweep"])
def test_functions_are_functions_whatever_is_imported_first(name: str) -> None:
    """A module of the same name never hides one."""
    code = f"import rlsim.planning.{name}; from rlsim.planning import {name}; {name}.__kwdefaults__"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert getattr(rlsim, name) is getattr(planning, name)


FRONT_DOOR: dict[str, Callable[[Scenario | Path | str], object]] = {
    "check": lambda one: rlsim.check(one, {"step": 1.0}),
    "cliffs": lambda one: rlsim.cliffs(one, "engine.max_running_sequences"),
    "compare": lambda one: rlsim.compare(one, one),
    "draft_lengths": lambda one: rlsim.draft_lengths(one, 1),
    "improve": lambda one: rlsim.improve(one, "headroom"),
    "largest_that_fit": lambda one: rlsim.largest_that_fit(one, ["engine.max_running_sequences"]),
    "preflight": lambda one: rlsim.preflight(one, layout=False),
    "project": rlsim.project,
    "run": lambda one: rlsim.run(one, steps=2),
    "sweep": lambda one: rlsim.sweep(one, {"k": [0, 1]}),
}
"""Functions of the library that ask something of a scenario."""


@pytest.mark.parametrize("name", FRONT_DOOR)
def test_the_library_takes_a_path_as_the_command_line_does(name: str, file: str) -> None:
    ask = FRONT_DOOR[name]
    assert ask(file) == ask(Path(file)) == ask(rlsim.load_scenario(file))
    with pytest.raises(rlsim.InputError, match="nowhere"):
        ask("nowhere.yaml")
