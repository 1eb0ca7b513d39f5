"""Python launchers and training scripts as the commands that they stand for."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlsim.errors import InputError
from rlsim.files.reading import DOCUMENT_BYTES, read_text, shown_path
from rlsim.readers.python.script import Call, Options, calls_of
from rlsim.readers.python.values import CLOSE, OPEN, Record, plain

PYTHON = (".py", ".ipynb")
"""Endings of what is followed as Python."""
COMMANDS = ("run", "check_call", "system", "Popen", "call", "exec_command")
"""Functions that hand a text to a shell."""
UNSLOTH = {
    "load_in_4bit": "load_in_4bit",
    "fast_inference": "use_vllm",
    "gpu_memory_utilization": "vllm_gpu_memory_utilization",
}
"""Words of Unsloth's from_pretrained(...) by those of trl that they mean (unsloth/models/loader.py)."""
AGENT = {"tools", "environment_factory", "rollout_func"}
"""What makes an agent of what trl's trainers train."""
CONFIGURED = re.compile(r"\b(GRPO|RLOO|SFT|DPO)Config\(")
"""How a training script states the options of its trainer."""
TRAINERS = {f"{name}Trainer": f"{name}Config" for name in ("GRPO", "RLOO", "SFT", "DPO")}
"""trl's trainers that are read, with what holds their options."""
_OPEN_WORD = re.compile(f"{OPEN}[^{CLOSE}]*{CLOSE}")


def python_commands(
    path: Path, words: Sequence[str], environment: Mapping[str, str], held: Mapping[str, Any], root: Path
) -> tuple[list[list[str]], list[str]]:
    """The commands that a Python file stands for, and the words behind it that it does not take itself.

    held: ``words`` as options. Raises InputError naming the file where it cannot be followed.
    """
    commands = [word for word in words if re.fullmatch(r"[a-z][\w-]*", word)]
    options = Options(dict(held), commands, set())
    calls, stop = calls_of(path, options, environment, root)
    found = [*_trainings(calls, path), *_trainers(calls, path)]
    # A script that stops behind its launch or its trainer's options has said what is asked of it.
    if stop and not any(re.match("execute_train|(GRPO|RLOO|SFT|DPO)Config$", call.name) for call in calls):
        raise InputError(f"{shown_path(path)}: the launcher itself refuses: {stop}, before it states any options")
    rest, taking = list[str](), False
    for word in words:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        taking = name in options.read if re.match(r"--\S+$", word) else taking
        if not taking and word not in options.read:
            rest.append(word)
    return found, rest


def configured_words(path: Path, root: Path) -> list[str]:
    """What a training script of trl's states in its GRPOConfig(...), as words of a command line; none where it has
    none."""
    if path.suffix not in PYTHON or not CONFIGURED.search(read_text(path, DOCUMENT_BYTES)):
        return []
    calls, _ = calls_of(path, Options({}, []), {}, root)
    return next(
        (words[words.index(one) + 1 :] for words in _trainers(calls, path) for one in words if one[-3:] == ".py"), []
    )


def _trainings(calls: Sequence[Call], path: Path) -> Iterator[list[str]]:
    """miles' execute_train(train_args=..., train_script=..., config=...) (miles/utils/external_utils/command_utils.py
    at 31f1ca961); where nothing calls it, what is handed to a shell."""
    launches = [call for call in calls if call.name.startswith("execute_train")]
    for call in launches:
        config = call.named.get("config")
        device = config.held.get("hardware") if isinstance(config, Record) else None
        launcher = ["--hardware", device] if isinstance(device, str) else []
        variables = call.named.get("extra_env_vars")
        if isinstance(variables, dict):
            known = {str(name): value for name, value in variables.items() if isinstance(value, str) and plain(value)}
            launcher.append(f"--runtime-env-json={json.dumps({'env_vars': known})}")
        script = str(call.named.get("train_script", "train.py"))
        yield ["python3", *launcher, script, *_words(call.named.get("train_args"), call, path)]
    for call in [] if launches else [call for call in calls if call.name in COMMANDS and call.given]:
        handed = call.given[0]
        if isinstance(handed, str | list):
            # bash -c takes the whole command as one text.
            yield _words(handed[-1] if isinstance(handed, list) and handed[1:2] == ["-c"] else handed, call, path)


def _words(text: Any, call: Call, path: Path) -> list[str]:
    """Words of a command, as a shell splits them; one that is not known counts where it is the value of an option."""
    try:
        split = shlex.split(text) if isinstance(text, str) else [str(one) for one in text or () if plain(one)]
    except (TypeError, ValueError) as error:
        raise InputError(f"{shown_path(path)}: line {call.line}: cannot be split into words ({error})") from error
    return [
        word.replace(OPEN, "?").replace(CLOSE, "?")
        for before, word in zip(["", *split], split, strict=False)
        if not _OPEN_WORD.fullmatch(word) or before.startswith("--")
    ]


def _trainers(calls: Sequence[Call], path: Path) -> Iterator[list[str]]:
    """trl's GRPOConfig(...) and its like with the model and the adapter that the script builds beside them."""
    options: dict[str, Any] = {}
    entry = ""
    for call in calls:
        if call.name in TRAINERS and AGENT & {*call.named}:
            options["environment_factory"] = "its tools"
        if call.name in ("from_pretrained", *TRAINERS):
            named = [call.named.get(key) for key in ("model_name", "pretrained_model_name_or_path", "model")]
            model = next((one for one in (*named, *call.given[:1]) if isinstance(one, str)), None)
            # The first that is loaded is the policy; a tokenizer or a reward model may follow.
            options |= {} if model is None or "model_name_or_path" in options else {"model_name_or_path": model}
            options |= {key: call.named[name] for name, key in UNSLOTH.items() if name in call.named}
        elif call.name in ("LoraConfig", "get_peft_model") and ("r" in call.named or call.name == "LoraConfig"):
            options |= {"use_peft": True, "lora_r": call.named.get("r", 8)}  # peft's LoraConfig.r
        elif call.name in TRAINERS.values():
            entry = f"{call.name.removesuffix('Config').lower()}.py"
            options |= call.named
    if entry:
        stated = {name: value for name, value in options.items() if plain(value) and value is not None}
        alone = path.suffix == ".ipynb" or any("fast_inference" in call.named for call in calls)  # Unsloth has one GPU
        launcher = ["--num_processes", "1"] if alone else []
        words = [word for name, value in stated.items() for word in (f"--{name}", str(value))]
        yield ["python3", *launcher, entry, *words]
