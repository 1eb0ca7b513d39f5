"""slime's YAML of engine groups (``--sglang-config``) in the words of its other options.

THUDM/slime 624b824a8, slime/backends/sglang_utils/sglang_config.py: models, each with groups of servers of a
``worker_type``, their GPUs, GPUs of an engine, and overrides of SGLang's arguments, which win over ``--sglang-*``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlsim.files.reading import DOCUMENT_BYTES, read_text, shown_path
from rlsim.files.yaml import parse_value

OPTION = "--sglang-config"
PREFILLING = "--sglang-prefill-overrides"
"""What engines that prefill set otherwise than those that decode: no option of slime's, named as not simulated."""


def spelled_out(words: Sequence[str], written: Mapping[str, str], find: Callable[[str], Path | None]) -> Sequence[str]:
    """Words of a launch with those that its engine groups stand for; as they are where no option says the same.

    written: documents that the script itself writes, by name. find: the file of a name; None where it is not there.
    """
    named = next((at for at, word in enumerate(words) if word == OPTION), None)
    if named is None or named + 1 >= len(words):
        return words
    where = words[named + 1]
    # A script may write the document just before the launch: no such file is there while it is read.
    if where in written:
        text = written[where]
    elif file := find(where):
        text, where = read_text(file, DOCUMENT_BYTES), shown_path(file)
    else:
        return words
    found = list(_words(parse_value(text, where), words))
    return [*words[:named], *words[named + 2 :], *found] if found else words


def _words(document: Any, words: Sequence[str]) -> Iterator[str]:
    """Options for one model's engines: one group that answers and at most one, of engines as large, that prefills."""
    models = document.get("sglang") if isinstance(document, dict) else None
    model = models[0] if isinstance(models, list) and len(models) == 1 and isinstance(models[0], dict) else {}
    groups = model.get("server_groups")
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups) or "model_path" in model:
        return
    by_type = {group.get("worker_type"): group for group in groups}
    answering = by_type.get("decode", by_type.get("regular"))
    prefilling = by_type.get("prefill", {})
    # Of two groups of one type by_type holds the last alone, and no single option says what they differ in.
    if answering is None or len(by_type) != len(groups) or len(groups) > (2 if prefilling else 1):
        return
    size = answering.get("num_gpus_per_engine") or model.get("num_gpus_per_engine") or _stated_size(words)
    gpus, own = prefilling.get("num_gpus", 0), prefilling.get("num_gpus_per_engine", size)
    # SglangConfig.from_prefill_num_servers has one size for both kinds: no option says another.
    if not all(isinstance(number, int) for number in (size, gpus)) or own != size or gpus % size:
        return
    yield from ("--rollout-num-gpus-per-engine", str(size))
    overrides, others = answering.get("overrides") or {}, prefilling.get("overrides") or {}
    for name, value in overrides.items():
        yield from (f"--sglang-{name.replace('_', '-')}", str(value))
    if prefilling:
        yield from ("--prefill-num-servers", str(gpus // size))
        differing = [f"{name}={value}" for name, value in others.items() if overrides.get(name) != value]
        if differing:
            yield from (PREFILLING, ", ".join(differing))


def _stated_size(words: Sequence[str]) -> int:
    at = [at for at, word in enumerate(words[:-1]) if word == "--rollout-num-gpus-per-engine"]
    # argparse takes the last of an option that stands twice.
    return int(words[at[-1] + 1]) if at and words[at[-1] + 1].isdigit() else 1
