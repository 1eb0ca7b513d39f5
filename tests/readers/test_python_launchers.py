"""Python launchers are followed for what they hand to a framework; nothing of them is executed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rlsim.errors import InputError
from rlsim.readers.frameworks.importing import Imported, import_config

BASE = """
import os
from dataclasses import dataclass, field
NUM_GPUS = {"H100": 8, "GB200": 4}
@dataclass
class Config:
    num_nodes: int = field(default_factory=lambda: int(os.environ.get("SLURM_JOB_NUM_NODES", "1")))
def execute_train(train_args, config=None, **rest):
    raise RuntimeError("is not followed")
"""
LAUNCHER = """
import subprocess
import typer
from dataclasses import dataclass
from typing import Literal
import tools.launch as U

subprocess.run("touch harm", shell=True)
open("harm", "w")

@dataclass
class Args(U.Config):
    mode: Literal["normal", "debug"] = "normal"
    model_name: str = "Qwen3-8B"
    gpus: int | None = None
    hardware: str = "H100"
    fp8: bool = False
    enable_eval: bool = True
    extra_args: str = ""

    def __post_init__(self):
        self.gpus = self.gpus or U.NUM_GPUS[self.hardware]
        if not self.model_name:
            raise NotImplementedError(f"{self.model_name}")

    @property
    def checkpoint(self):
        return f"/root/models/{self.model_name}{'-FP8' if self.fp8 else ''}"

def execute(args: Args):
    rollout = (
        f"--hf-checkpoint {args.checkpoint} --rollout-batch-size 32 --n-samples-per-prompt 8 "
        f"--rollout-max-response-len {100 if args.mode == 'debug' else 4 * 1024} --rollout-max-prompt-len 1024 "
    )
    if args.enable_eval and (args.mode != "debug"):
        rollout += "--eval-interval 20 "
    match (args.hardware, args.num_nodes):
        case ("H100" | "H200", 1):
            layout = ["--tensor-model-parallel-size 2", "--use-dynamic-batch-size", "--max-tokens-per-gpu 9216"]
        case ("GB200", nodes):
            layout = ["--tensor-model-parallel-size 1"]
        case _:
            raise NotImplementedError(f"no layout for {args.hardware}")
    U.execute_train(
        train_args=rollout + " ".join(layout) + f" --global-batch-size 128 {U.tracking(__file__)} --colocate "
        f"--actor-num-nodes {args.num_nodes} --actor-num-gpus-per-node {args.gpus} {args.extra_args}",
        config=args,
        train_script="train.py",
    )

@U.cli
def main(args: Args):
    execute(args)

if __name__ == "__main__":
    typer.run(main)
"""


def launched(folder: Path, text: str, *words: str, framework: str = "miles") -> Imported:
    (folder / "tools").mkdir(exist_ok=True)
    (folder / "tools" / "launch.py").write_text(BASE)
    (folder / ".git").mkdir(exist_ok=True)
    script = folder / "run.py"
    script.write_text(text)
    return import_config(framework, script, words)


def test_a_launcher_says_what_its_command_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = launched(tmp_path, LAUNCHER).scenario
    assert (plain.model.name, plain.hardware.name, plain.cluster.num_gpus) == ("Qwen3-8B", "h100_sxm", 8)
    assert (plain.workload.prompts_per_step, plain.workload.max_sequence_tokens) == (32, 5120)
    assert (plain.trainer.tensor_parallel, plain.trainer.global_batch_samples) == (2, 128)
    assert not (tmp_path / "harm").exists()


def test_options_and_variables_behind_a_launcher_count_as_the_launcher_takes_them(tmp_path: Path) -> None:
    other = launched(tmp_path, LAUNCHER, "--hardware", "GB200", "SLURM_JOB_NUM_NODES=2", "--fp8").scenario
    assert (other.cluster.num_gpus, other.hardware.name, other.trainer.tensor_parallel) == (8, "gb200_nvl72", 1)
    assert other.engine.weight_precision == "fp8_block"
    further = launched(tmp_path, LAUNCHER, "--mode", "debug", "--n-samples-per-prompt", "16").scenario
    assert (further.workload.max_sequence_tokens, further.workload.generations_per_prompt) == (1124, 16)
    words = ("--extra-args", "--n-samples-per-prompt 4")
    assert launched(tmp_path, LAUNCHER, *words).scenario.workload.generations_per_prompt == 4


def test_a_launcher_behind_python_is_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = launched(tmp_path, LAUNCHER, "--hardware", "GB200").scenario
    monkeypatch.chdir(tmp_path)
    assert import_config("miles", Path("python"), ("run.py", "--hardware", "GB200")).scenario == expected


def test_a_launcher_that_refuses_its_options_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run.py: line \d+ of it stops with NotImplementedError"):
        launched(tmp_path, LAUNCHER, "--num-nodes", "3")
    with pytest.raises(InputError, match="calls nothing that starts a training of miles"):
        launched(tmp_path, "x = 1\n")


def test_commands_of_typer_are_followed_until_one_trains(tmp_path: Path) -> None:
    entry = LAUNCHER.replace("@U.cli\ndef main(", "app = typer.Typer()\n@app.command()\n@U.cli\ndef full_train(")
    app = entry.replace("typer.run(main)", "app()").replace(
        "if __name__", "@app.command()\ndef prepare(args: Args):\n    U.download()\n\nif __name__"
    )
    assert launched(tmp_path, app).scenario.cluster.num_gpus == 8
    with pytest.raises(InputError, match="starts no training of miles"):
        launched(tmp_path, app, "prepare")


@pytest.mark.parametrize(
    "text",
    [
        "x = 10 ** 10 ** 10\n",
        "x = 'a' * 10 ** 12\n",
        "x = 'a'\nfor i in range(10 ** 9):\n    x = x + x\n",
        "x = 'ab'\nfor i in range(60):\n    x = x.replace('a', 'aaaaaaaa')\n",
        "x = []\nfor i in range(60):\n    x = [x, x]\ny = str(x)\nz = x == [x, x]\n",
        "def f(n):\n    return f(n + 1)\nf(0)\n",
        "x = f'{1:>999999999}'\n",
        "x = '%999999999d' % 3\n",
        "x = [i for i in range(10 ** 9)]\n",
        "import run\nfrom run import x\ny = x\n",
        "(" * 5000,
        "-" * 20000 + "1",
        "x = \x00",
    ],
)
def test_a_hostile_script_is_answered_at_once(tmp_path: Path, text: str) -> None:
    start = time.perf_counter()
    with pytest.raises(InputError):
        launched(tmp_path, text)
    assert time.perf_counter() - start < 5


def test_a_script_reads_no_module_outside_its_repository(tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text("GPUS = 4\n")
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "outside.py").symlink_to(tmp_path / "outside.py")
    text = LAUNCHER.replace("import tools.launch as U", "import tools.launch as U\nimport outside")
    with pytest.raises(InputError, match="actor_num_gpus_per_node"):
        launched(inner, text.replace("{args.gpus}", "{outside.GPUS}"))
