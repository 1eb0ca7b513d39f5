"""Words of every command that cannot be meant end in one message that names them, and nothing is written."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import complains

from rlsim.cli.commands import app_of
from rlsim.cli.direct import HOMES, direct_call

STEPS = ("run", "SMALL", "--out", "OUT", "--steps", "5")
SIZE = ("size", "qwen3-1.7b", "--device", "h100_sxm")
REFUSED = {
    ("import", "nemo", "x.yaml"): "FRAMEWORK: 'nemo' is not one of 'nemo-rl', 'verl'",
    ("export", "SMALL"): "Missing option '--to'. Choose from: nemo-rl, verl, skyrl,",
    # run
    ("run", "SMALL", "--out", "OUT"): "--steps N or --samples M",
    (*STEPS, "--samples", "5"): "--steps N or --samples M",
    ("run", "SMALL", "--steps", "0"): "1 to 100,000 steps",
    ("run", "SMALL", "--samples", "0"): "--samples must be at least 1",
    ("run", "SMALL", "--steps", "1000000"): "1 to 100,000 steps",
    ("run", "SMALL", "--steps", "60000", "--replications", "2"): "1 to 100,000 steps",
    (*STEPS, "run.faults.gpu_hours_between=1"): "faults need run.checkpoint",
    (*STEPS, "run.validation.every_steps=1"): "needs either seconds or samples",
    (*STEPS, "run.checkpoint={every_steps: 1}"): "needs either seconds or bytes_per_s",
    (*STEPS, "run.response_growth=[[0, 1], [0, 2]]"): "increase strictly",
    (*STEPS, "run.response_growth=[[0, 0.0]]"): "0.001..1000",
    (*STEPS, "run.fault=1"): "run.faults",
    (*STEPS, "run.stalls={probability: 2, seconds: 1}"): "run.stalls.probability",
    (*STEPS, "engine.gpu_memory_utilization=0.01"): "infeasible",
    # sweep, plan, sensitivity, compare
    ("sweep", "SMALL", "--out", "OUT", "--vary", "nonsense=1:3"): "unknown key 'nonsense'",
    ("sweep", "SMALL"): "at least one --vary",
    ("sweep", "SMALL", "--out", "OUT", "--vary", "cluster.num_gpus=abc", "--jobs", "1"): "none of the 1 cells can run",
    ("sweep", "SMALL", "--vary", "k=1", "--jobs", "0"): "--jobs must be at least 1",
    ("sweep", "SMALL", "--replications", "x"): "--replications: must be a whole number, got 'x'",
    ("plan", "SMALL", "--max-staleness", "-1"): "--max-staleness: must be at least 0, got '-1'",
    ("plan", "SMALL", "--objective", "mean,regret"): "regret is no statistic of a plan any more",
    ("plan", "SMALL", "--near-evidence"): "rlsim project names the nearest measured runs",
    ("plan", "SMALL", "--target-step-s", "3"): "write --objective gpus=SECONDS",
    ("plan", "SMALL", "--gpus", "0"): "at least 1 GPU",
    ("plan", "SMALL", "--steps", "9", "--deadline-hours", "1e-5", "--max-staleness", "0"): "no plan keeps to",
    ("sensitivity", "SMALL", "--uncertain", "x"): "is not KEY=LOW:HIGH",
    ("compare", "SMALL", "nowhere.yaml"): "nowhere.yaml",
    # validate, size, check, log
    ("validate", "absent.csv"): "absent.csv: no such file",
    ("validate", "absent.csv", "--replications", "0"): "--replications: must be at least 1, got '0'",
    ("size", "qwen3-1.7b", "--device", "h101"): "h101",
    ("size", "qwen3-1.7b", "--device", ","): "--device: name at least one",
    (*SIZE, "--deadline", "-3"): "--deadline must be above 0",
    (*SIZE, "--deadline", "3", "--budget", "1"): "give one of them",
    (*SIZE, "--batch", "64"): "must be PROMPTSxSAMPLES",
    (*SIZE, "--engine", "vlm"): "vlm",
    ("check", "SMALL", "--step", "abc"): "--step: must be a number, got 'abc'",
    ("check", "SMALL", "--figure", "mfu"): "--figure mfu: expected NAME=VALUE",
    ("check", "SMALL", "--steps", "1:2"): "--steps takes steps of a log",
    ("check", "SMALL", "--noise", "3"): "--noise: must be at most 1.0",
    ("check", "SMALL"): "no time of the run is given; give one of step, generation",
    ("log", "LOG", "SMALL", "--steps", "9:2"): "expected FIRST:LAST",
    ("log", "LOG", "SMALL", "--steps", "x"): "expected FIRST:LAST",
    ("log", "LOG", "SMALL", "--what-if", "cluster.gpus=4"): "cluster.gpus",
    ("log", "LOG", "SMALL", "--what-if", "nothing"): "nothing",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_words_that_cannot_be_meant_are_one_message(
    run: Callable[..., tuple[int, str, str]], small: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    log = tmp_path / "log.csv"
    log.write_text("step,timing/train/total_step_time\n" + "".join(f"{step},100\n" for step in range(1, 6)))
    meant = {"SMALL": small, "OUT": str(tmp_path / "out"), "LOG": str(log)}
    complains(run(*(meant.get(word, word) for word in words)), REFUSED[words])
    assert not (tmp_path / "out").exists()


PLAIN = [
    ["project", "quickstart"],
    ["project", "a.yaml", "k=5", "--set", "a.b=[1, 2]", "lag=1", "--set=c=d", "--json", "--out", "there", "--full"],
    ["project", "a.yaml", "--seed", "7", "--seed=8", "--replications", "800", "--brief"],
    ["run", "x", "--steps", "10", "--samples=5", "--no-baseline"],
    ["sweep", "x", "--vary", "k=1:3", "--vary", "lag=0,1", "--jobs", "1", "--overwrite"],
    ["plan", "x", "--max-staleness", "0", "--objective", "gpus=20", "--gpus", "8:64"],
    ["sensitivity", "x", "--uncertain", "a=1:2", "--full"],
]
LEFT = [
    [], ["--help"], ["models"], ["project"], ["project", "--help"], ["project", "x", "--sett", "a=1"],
    ["project", "x", "--seed", "one"], ["project", "x", "--seed"],
    ["run", "x", "--replications", "0"], ["project", "x", "--json=1"], ["project", "x", "--out", "--json"],
    ["project", ""], ["project", "--", "x"], ["plan", "x", "--deadline-hours", "2.5"],
]  # fmt: skip


@pytest.mark.parametrize("words", PLAIN, ids=" ".join)
def test_plain_words_mean_what_typer_makes_of_them(words: list[str]) -> None:
    command = typer.main.get_command(app_of()).commands[words[0]]  # type: ignore[attr-defined]
    taken = command.make_context(words[0], words[1:]).params
    direct: Any = direct_call(words)
    assert direct.func.__name__ == words[0]
    defaults = dict(zip(direct.func.__code__.co_varnames[1:], direct.func.__defaults__, strict=False))
    assert {name: value or None for name, value in {**defaults, **direct.keywords}.items()} == {
        name: value or None for name, value in taken.items()
    }


@pytest.mark.parametrize("words", LEFT, ids=" ".join)
def test_others_are_left_to_typer(words: list[str]) -> None:
    assert direct_call(words) is None


def test_the_entry_point_knows_commands_of_rlsim_alone_and_ends_with_their_codes():
    assert {*HOMES} <= {*typer.main.get_command(app_of()).commands}  # type: ignore[attr-defined]
    ran = subprocess.run([sys.executable, "-c", CALLED, "models"], capture_output=True, text=True, check=False)
    assert "went on after 2" in ran.stdout or "went on after 0" in ran.stdout
    for words, code in ((("--version",), 0), (("project", "nothing_like_it"), 2)):
        ran = subprocess.run([sys.executable, "-m", "rlsim", *words], capture_output=True, text=True, check=False)
        assert ran.returncode == code


CALLED = """
from rlsim.cli import program
try:
    program()
except SystemExit as end:
    print("went on after", end.code)
"""
