"""What is built elsewhere agrees with the package: the container file, the conda recipe, contributed rows."""

import csv
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA_NAMES = {"matplotlib": "matplotlib-base"}
"""Packages of PyPI that conda-forge divides or calls otherwise."""


def test_the_recipe_asks_what_the_package_asks() -> None:
    recipe = yaml.safe_load((ROOT / "conda-recipe" / "recipe.yaml").read_text())
    asked = {}
    for one in PROJECT["dependencies"]:
        name, bounds = re.fullmatch(r"([A-Za-z0-9_-]+)(.*)", one).groups()  # type: ignore[union-attr]
        asked[CONDA_NAMES.get(name, name).lower()] = bounds
    asked["python"] = PROJECT["requires-python"]
    assert dict(one.split(" ", 1) for one in recipe["requirements"]["run"]) == asked
    assert recipe["context"]["version"] == PROJECT["version"]
    assert recipe["build"]["python"]["entry_points"] == [f"rlsim = {PROJECT['scripts']['rlsim']}"]
    assert all((ROOT / name).is_file() for name in recipe["about"]["license_file"])


def test_the_container_runs_as_nobody_and_holds_no_compiler() -> None:
    lines = [line for line in (ROOT / "Containerfile").read_text().splitlines() if line and line[0] != "#"]
    last = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM ")) :]
    users = [line.split()[1] for line in last if line.startswith("USER ")]
    assert users and users[-1].isdigit() and int(users[-1]) > 0
    assert "-slim" in last[0] and not [line for line in last if "gcc" in line or "apt-get" in line]
    assert 'ENTRYPOINT ["rlsim"]' in last
    for line in last:
        if line.startswith("COPY "):
            assert "--from=build" in line


def git(root: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *identity, *words], cwd=root, check=True, capture_output=True)


def test_a_contributed_run_becomes_a_row_that_is_scored(script, tmp_path: Path) -> None:
    from rlsim.cli.commands import run as command
    from rlsim.evidence.compare import validate_table
    from rlsim.evidence.shown.site import anchors
    from rlsim.loading.scenario import load_scenario
    from tests.readers.test_contribution import log_of, small

    program = script("scripts/contributed_runs")
    run = small(tmp_path)
    log = log_of(load_scenario(run), tmp_path / "log.jsonl")
    assert not command(["contribute", str(log), str(run), "--out", str(tmp_path / "gift")])
    root = tmp_path / "checkout"
    (root / program.TABLE).parent.joinpath("scenarios").mkdir(parents=True)
    with (ROOT / program.TABLE).open() as file:
        columns = next(csv.reader(file))
    (root / program.TABLE).write_text(",".join(columns) + "\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "before")
    assert program.score("HEAD", root) == "No run was contributed."
    program.add(tmp_path / "gift", root)
    scored = program.score("HEAD", root).splitlines()[2:]
    assert len(scored) == 5 and all(line.endswith("|yes|") for line in scored)
    with pytest.raises(SystemExit, match="already"):
        program.add(tmp_path / "gift", root)
    # What the site's page of accuracy shows: the row, and its step beside the cells of its model and device.
    found = validate_table(root / program.TABLE, kind="wild")
    (step,) = anchors({"wild": found})
    assert (step.model, step.device) == ("llama-3.1-8b", "h100_sxm")
    row = dict(zip(columns, (root / program.TABLE).read_text().splitlines()[-1].split(","), strict=True))
    assert script("scripts/data_set").step_of(row).step_s == pytest.approx(step.measured_s)
