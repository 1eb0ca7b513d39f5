"""What launch scripts and configurations say, read without rlsim: for scripts/corpus_check.py alone.

Scripts are followed by bash itself, with every program replaced by one that writes down its words.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

TOOLS = "dirname basename date cat tr sed grep wc head tail cut seq realpath sort pwd env uname expr awk readlink"
_HOOK = r"""
command_not_found_handle() { case "$1" in nvidia-smi|npu-smi|rocm-smi|hostname) return 1;; esac; note "$@"; }
note() { printf '%s\0' "$@" > "$CORPUS_LOG/$EPOCHREALTIME.$BASHPID"; }
python3() { case "$1" in -c|-) return 1;; esac; note python3 "$@"; }; python() { python3 "$@"; }
bash() { case "$1" in *.sh) command bash "$@";; -c) eval "$2";; *) note bash "$@";; esac; }
sleep() { :; }; exec() { case "$1" in ""|*[0-9]*|">"*) :;; *) "$@";; esac; }
set() { case "$1" in --) builtin set "$@";; esac; return 0; }
exit() { case "${1:-0}" in 0) builtin exit 0;; esac; return 0; }
curl() { note curl "$@"; return 0; }
export -f set exit curl command_not_found_handle note python3 python bash sleep exec
"""


SLURM = {
    r"(?:--nodes[= ]|-N\s*)(\d+)": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    r"--gpus-per-node[= ](\d+)": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
}


def argvs(checkout: Path, script: Path) -> list[list[str]]:
    """Words of all programs that a script starts, as bash expands them."""
    with tempfile.TemporaryDirectory() as folder:
        tools, log = Path(folder) / "bin", Path(folder) / "log"
        tools.mkdir()
        for tool in [*TOOLS.split(), "bash"]:
            if found := shutil.which(tool):
                (tools / tool).symlink_to(found)
        hook = Path(folder) / "hook"
        hook.write_text(_HOOK)
        log.mkdir()  # a file for each program: those of a pipe write at the same time
        variables = {"PATH": str(tools), "HOME": "/home/user", "BASH_ENV": str(hook), "CORPUS_LOG": str(log)}
        text = script.read_text()
        for pattern, names in SLURM.items():
            if given := re.search(rf"^#SBATCH.*?{pattern}", text, re.MULTILINE):
                variables |= dict.fromkeys(names, given[1])
        try:
            subprocess.run([str(tools / "bash"), str(script)], cwd=checkout, env=variables, timeout=20, check=False,
                           stdin=subprocess.DEVNULL, capture_output=True)  # fmt: skip
        except subprocess.TimeoutExpired:
            return []
        started = [path.read_bytes().decode(errors="replace").split("\0")[:-1] for path in sorted(log.iterdir())]
        return [words for words in started if any(words)]


def launched(checkout: Path, path: Path, entry: str) -> tuple[str, list[str]] | None:
    """The program that matches ``entry`` and the words behind it."""
    for words in argvs(checkout, path):
        for at, word in enumerate(words):
            if re.search(entry, word):
                return word, words[at + 1 :]
    return None


def plain(text: str) -> Any:
    """A word's value; a text where it is no YAML."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def options(words: list[str]) -> dict[str, Any]:
    """Options in argparse's manner."""
    out: dict[str, Any] = {}
    name = ""
    for word in words:
        if re.match(r"--[a-zA-Z]", word):
            name, _, value = word[2:].partition("=")
            name = name.replace("-", "_")
            out[name] = plain(value) if value else True
        elif name and out[name] is True:
            out[name] = plain(word)
    return out


def dotted(words: list[str], below: Any) -> Any:
    """k=v words over a configuration."""
    config = below
    for word in words:
        found = re.match(r"^\+{0,2}([A-Za-z_][\w.\-]*)=(.*)$", word, re.DOTALL)
        if found:
            value = plain(re.sub(r"([{,]\s*\w+):(?=\S)", r"\1: ", found[2]))
            try:
                value = float(value) if isinstance(value, str) and re.fullmatch(r"[\d.]+e-?\d+", value) else value
                OmegaConf.update(config, found[1], value, merge=True, force_add=True)
            except Exception:
                continue
    return config


class View:
    """Values by dotted name, with a default where null or missing."""

    def __init__(self, config: Any) -> None:
        self.config = config if OmegaConf.is_config(config) else OmegaConf.create(config)

    def __call__(self, name: str, default: Any = None) -> Any:
        try:
            found = OmegaConf.select(self.config, name)
        except Exception:
            return default
        return default if found is None else found


def precision(words: Any) -> str:
    """Precision that a word for a quantisation or a checkpoint's name says."""
    text = str(words or "").lower()
    if re.search("fp8(?!.*int4)", text) and "nvfp4" not in text:
        return "fp8"
    four = re.search(r"int4|w4a16|awq|gptq|kimi-k2-thinking|kimi-k2\.[56]", text)
    return "int4" if four else "nvfp4" if "nvfp4" in text else "bf16"


def nemo_tree(path: Path) -> Any:
    """A NeMo-RL configuration with what it inherits."""
    own = yaml.safe_load(path.read_text()) or {}
    parents = own.pop("defaults", [])
    below: Any = {}
    for parent in [parents] if isinstance(parents, str) else parents or []:
        below = _laid(below, nemo_tree(path.parent / parent))
    return _laid(below, own)


def _laid(below: Any, above: Any) -> Any:
    out = dict(below)
    for key, value in above.items():
        if isinstance(value, dict):
            keep = out.get(key) if isinstance(out.get(key), dict) and not value.get("_override_") else {}
            out[key] = _laid(keep, {k: x for k, x in value.items() if k != "_override_"})
        else:
            out[key] = value
    return out
