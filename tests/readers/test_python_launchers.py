"""Python launchers are followed for what they hand to a framework; nothing of them is executed."""

import json
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
        return f"/models/{self.model_name}{'-FP8' if self.fp8 else ''}"

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
    with pytest.raises(
        InputError, match=r"run.py: the launcher itself refuses: line \d+ of it stops with NotImplementedError"
    ):
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
        "x = 1if True else 2",
    ],
)
def test_a_hostile_script_is_answered_at_once(tmp_path: Path, text: str) -> None:
    start = time.process_time()
    with pytest.raises(InputError):
        launched(tmp_path, text)
    assert time.process_time() - start < 5


def test_a_script_reads_no_module_outside_its_repository(tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text("GPUS = 4\n")
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "outside.py").symlink_to(tmp_path / "outside.py")
    text = LAUNCHER.replace("import tools.launch as U", "import tools.launch as U\nimport outside")
    with pytest.raises(InputError, match="actor_num_gpus_per_node"):
        launched(inner, text.replace("{args.gpus}", "{outside.GPUS}"))


TRL = """
import argparse
from trl import GRPOConfig, GRPOTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--model-id", default="Qwen/Qwen2.5-7B-Instruct")
parser.add_argument("--samples", type=int, default=2)
args = parser.parse_args()
config = GRPOConfig(per_device_train_batch_size=1, num_generations=args.samples, max_completion_length=512,
                    gradient_accumulation_steps=4, steps_per_generation=4)
GRPOTrainer(model=args.model_id, args=config, reward_funcs=[len]).train()
"""
UNSLOTH = """
from unsloth import FastLanguageModel
if True:
    !pip install unsloth
model, tokenizer = FastLanguageModel.from_pretrained(model_name="unsloth/Qwen3-4B-Base", max_seq_length=2048,
    load_in_4bit=True, fast_inference=True, gpu_memory_utilization=0.6)
model = FastLanguageModel.get_peft_model(model, r=32, lora_alpha=64)
config = GRPOConfig(per_device_train_batch_size=4, num_generations=4, max_prompt_length=256,
                    max_completion_length=2048 - 256)
GRPOTrainer(model=model, processing_class=tokenizer, reward_funcs=[], args=config).train()
"""


def test_trl_as_python_says_what_its_words_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = launched(tmp_path, TRL, framework="trl").scenario
    assert (plain.model.name, plain.workload.generations_per_prompt, plain.cluster.num_gpus) == ("Qwen2.5-7B", 2, 8)
    assert launched(tmp_path, TRL, "--samples", "4", framework="trl").scenario.workload.generations_per_prompt == 4
    monkeypatch.chdir(tmp_path)
    words = "launch --num_processes 4 grpo.py --model_name_or_path Qwen/Qwen2.5-7B-Instruct --num_generations 2 "
    words += "--per_device_train_batch_size 1 --max_completion_length 512 --gradient_accumulation_steps 4"
    stated = import_config("trl", Path("accelerate"), words.split()).scenario
    beside = import_config("trl", Path("accelerate"), ("launch", "--num_processes", "4", "run.py")).scenario
    assert beside == stated


def test_a_launcher_that_shares_nothing_is_plain_data_parallel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.py").write_text(TRL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zero2.yaml").write_text(
        "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}\nnum_processes: 4\n"
    )

    def shared(*words: str) -> tuple[int | None, int]:
        found = import_config("trl", Path("accelerate"), ("launch", *words, "run.py")).scenario
        return found.trainer.zero_stage, found.cluster.num_gpus

    assert shared("--multi_gpu", "--num_processes", "4") == (0, 4)
    assert shared("--config_file", "zero2.yaml") == (2, 4)
    assert shared("--config_file=zero2.yaml", "--num_processes=8") == (2, 8)
    assert shared("--use_fsdp", "--num_processes", "4") == (3, 4)
    # A switch takes no value: what stands behind it is the program.
    words = (
        "launch",
        "--num_processes",
        "4",
        "--use_fsdp",
        "grpo.py",
        "--model_name_or_path",
        "Qwen/Qwen2.5-7B-Instruct",
    )
    assert import_config("trl", Path("accelerate"), words).scenario.trainer.zero_stage == 3
    with pytest.raises(InputError, match=r"--config_file nothere\.yaml is not there"):
        shared("--config_file", "nothere.yaml")


def test_unsloth_in_a_notebook_is_trl_on_one_gpu(tmp_path: Path) -> None:
    notebook = tmp_path / "grpo.ipynb"
    cells = [
        {"cell_type": "code", "source": UNSLOTH.splitlines(keepends=True)},
        {"cell_type": "markdown", "source": []},
    ]
    notebook.write_text(json.dumps({"cells": cells}))
    found = import_config("trl", notebook)
    scenario = found.scenario
    assert (scenario.model.name, scenario.cluster.num_gpus, scenario.trainer.lora_rank) == ("Qwen3-4B", 1, 32)
    assert (scenario.engine.gpu_memory_utilization, scenario.workload.max_sequence_tokens) == (0.6, 2048)
    assert any("4-bit base weights" in text for text in scenario.missing_parts)
