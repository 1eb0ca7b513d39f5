"""Answers of the program itself, on small work: what the reports are tested on."""

import contextlib
import io
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from html_folders import COMMANDS, MEASURED, SCENARIO

from rlsim.cli import main
from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.results import Projection

SMALL = ("workload.prompts_per_step=8", "workload.generations_per_prompt=8", "trainer.global_batch_samples=null")
MTP = ("speculation.method=mtp", "speculation.draft_length=1", "speculation.acceptance_length=1.8")
CASES = {
    "sync": ("quickstart", *SMALL, "simulation.replications=2"),
    "plain": ("quickstart", *SMALL, "speculation.method=none"),
    "repeated": ("quickstart", *SMALL, "workload.usable_group_share=0.5", "workload.environment_s=3",
                 "simulation.seed=3"),
    "slower": ("quickstart", *SMALL, "speculation.method=ngram", "speculation.acceptance_length=1.02"),
    "async": ("qwen8b_async_lag1", *SMALL, "simulation.replications=2"),
    "moe": ("qwen235b_512", "simulation.replications=1"),
    "moe_async": ("qwen235b_2048", *SMALL, "workload.prompts_per_step=32", "simulation.replications=1"),
    "mla": ("qwen235b_512", "model=deepseek-v3", *MTP, "simulation.replications=1"),
}  # fmt: skip


@cache
def answer_to(case: str) -> Projection:
    """The projection of a case, made once."""
    name, *overrides = CASES[case]
    return project(load_scenario(name, overrides))


@pytest.fixture(params=CASES)
def projection(request: pytest.FixtureRequest) -> Projection:
    """Every case in turn."""
    return answer_to(request.param)


@pytest.fixture
def answer() -> Callable[[str], Projection]:
    """A case by its name."""
    return answer_to


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder that a command of COMMANDS wrote, made once; not to be changed."""
    root = tmp_path_factory.mktemp("results")
    (root / "small.yaml").write_text(SCENARIO, encoding="utf-8")
    (root / "measured.csv").write_text(MEASURED, encoding="utf-8")
    words = {"SCENARIO": str(root / "small.yaml"), "MEASURED": str(root / "measured.csv")}

    @cache
    def made(name: str) -> Path:
        argv = [words.get(word, word) for word in COMMANDS[name]]
        said = io.StringIO()  # progress too, which a slow machine shows
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), pytest.raises(SystemExit) as stop:
            main([*argv, "--out", str(root / name)])
        assert not stop.value.code
        return root / name

    return made


@pytest.fixture
def copied(results: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of such a folder, to spoil."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(results(name), tmp_path / name))

    return copy
