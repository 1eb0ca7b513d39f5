"""Whose a file is, by the keys or the programs that no other framework has: for messages about the wrong command.

Apart from the importer, which is told whose it is, and reached only where something failed.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

from rlsim.errors import InputError
from rlsim.files.reading import DOCUMENT_BYTES, read_text
from rlsim.files.yaml import parse_value
from rlsim.readers.frameworks.launch import SCRIPTS
from rlsim.readers.frameworks.trees import present

SIGNS = {
    "nemo-rl": ("policy.generation", "policy.megatron_cfg", "policy.dtensor_cfg", "grpo", "ppo.async_ppo"),
    "verl": ("actor_rollout_ref",),
    "skyrl": ("trainer.placement", "generator.inference_engine", "generator.n_samples_per_prompt"),
    "areal": ("gconfig", "rollout.max_head_offpolicyness"),
    "roll": ("actor_infer", "actor_train.strategy_args"),
    "prime-rl": ("orchestrator", "inference.vllm"),
}
"""Keys by which a configuration is known."""
PROGRAMS = {
    "nemo-rl": r"run_(grpo|vlm_grpo|ppo)\w*\.py",
    "verl": r"verl\.(trainer\.main_ppo|experimental\.)",
    "skyrl": r"skyrl\.train\.entrypoints|generator\.inference_engine\.",
    "slime": r"--rollout-batch-size",
    "openrlhf": r"openrlhf\.cli\.train_ppo_ray",
    "roll": r"start_(rlvr|agentic)\w*_pipeline\.py",
    "trl": r"--num_generations",
}
"""What a launch script is known by."""


def framework_of_file(path: Path) -> str | None:
    """Name of the framework that a configuration or a launch script is of; None where nothing says it."""
    try:
        text = read_text(path, DOCUMENT_BYTES)
        if path.suffix.lower() in SCRIPTS:
            return next((name for name, pattern in PROGRAMS.items() if re.search(pattern, text)), None)
        value = tomllib.loads(text) if path.suffix == ".toml" else parse_value(text, "", numbered=True)
    except (InputError, tomllib.TOMLDecodeError, yaml.YAMLError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return next((name for name, signs in SIGNS.items() if any(present(value, sign) for sign in signs)), None)
