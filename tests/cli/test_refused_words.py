"""Words of every command that cannot be meant end in one message that names them, and nothing is written."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import complains

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
    (*STEPS, "run.turns_growth=[[0, 0.0]]"): "turns_growth needs factors",
    (*STEPS, "run.turns_growth=[[0, 2.0]]"): "give workload.agent, without replay",
    (*STEPS, "run.fault=1"): "run.faults",
    (*STEPS, "run.stalls={probability: 2, seconds: 1}"): "run.stalls.probability",
    (*STEPS, "engine.gpu_memory_utilization=0.01"): "infeasible",
    # sweep, plan, improve, compare
    ("sweep", "SMALL", "--out", "OUT", "--vary", "nonsense=1:3"): "unknown key 'nonsense'",
    ("sweep", "SMALL"): "at least one --vary",
    ("sweep", "SMALL", "--out", "OUT", "--vary", "cluster.num_gpus=abc", "--jobs", "1"): "none of the 1 cells can run",
    ("sweep", "SMALL", "--vary", "k=1", "--jobs", "0"): "--jobs must be at least 1",
    ("sweep", "SMALL", "--replications", "x"): "--replications: must be a whole number, got 'x'",
    ("plan", "SMALL", "--max-staleness", "-1"): "--max-staleness: must be at least 0, got '-1'",
    ("plan", "SMALL", "--objective", "mean,regret"): "regret is no statistic of a plan any more",
    ("plan", "SMALL", "--target-step-s", "3"): "No such option",
    ("calibrate", "--from-steps", "x.csv"): "No such option: --from-steps x.csv",
    ("import", "slime", "run.sh", "--rollout-batch-size", "8"): "options of the framework's own go behind --",
    ("plan", "SMALL", "--gpus", "0"): "at least 1 GPU",
    ("plan", "SMALL", "--steps", "9", "--deadline-hours", "1e-5", "--max-staleness", "0"): "no plan keeps to",
    ("improve", "SMALL", "--only", "inputs", "--uncertain", "x"): "is not KEY=LOW:HIGH",
    ("improve", "SMALL", "--only", "idle", "--uncertain", "k=1:2"): "which --only idle leaves out",
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


@pytest.mark.parametrize(("words", "code"), [(("--version",), 0), (("project", "nothing_like_it"), 2)])
def test_the_program_ends_with_the_code_of_its_command(words: tuple[str, ...], code: int) -> None:
    assert subprocess.run([sys.executable, "-m", "rlsim", *words], capture_output=True).returncode == code
