"""What published tables call models, devices, precisions and releases, by rlsim's names."""

from __future__ import annotations

import re

from rlsim.evidence.tables import SkippedRow
from rlsim.files.yaml import lists_beside
from rlsim.loading.models import card_of_published, list_cards
from rlsim.tables.profile import list_profiles

_RELEASE = re.compile(r"v?(\d+(?:\.\d+){1,3})((?:rc|\.post|\.dev)\d+)?(?:[-+.].*)?$")
_CONTAINER_BELOW = (0, 9)
"""TensorRT-LLM's releases of 2025 and later are 0.15 and newer; what tables call 0.5 to 0.8 is a Dynamo container."""


def model_card_name(name: str) -> str:
    """Model card of a model as a table calls it; SkippedRow where there is none."""
    found = card_of_published(name)
    if found is None:
        raise SkippedRow(f"no model card for {name[:60]!r}")
    return found


def device_profile_name(gpu: str) -> str:
    """Hardware profile of a GPU as a table calls it (H100, GB300 NVL72); SkippedRow where there is none.

    A name with another memory in brackets is another variant of the GPU, and none of the profiles.
    """
    words = gpu.lower().split()
    if words and not re.search(r"\(.*\d\s*gb", gpu.lower()):
        for name in list_profiles():
            if name == words[0] or name.split("_")[0] == words[0]:
                return name
    raise SkippedRow(f"no hardware profile for {gpu[:60]!r}" if gpu else "gpu is not given")


BLOCK_SCALED: tuple[str, ...] = tuple(lists_beside(__file__)["block_scaled"])
MXFP4: tuple[str, ...] = tuple(lists_beside(__file__)["mxfp4"])


def weight_precision(text: str, card: str) -> str:
    """Weight format of an engine that serves the model of ``card``. SkippedRow where it is not given or not known."""
    given = text.strip().lower()
    if not given:
        raise SkippedRow("precision is not given")
    if given in ("bf16", "bfloat16", "fp16"):
        return "bf16"
    if given.startswith(("fp8", "w8a8", "mxfp8", "float8")):
        return "fp8_block" if card in BLOCK_SCALED else "fp8"
    if card in MXFP4 and given.startswith(("fp4", "mxfp4", "w4")):
        raise SkippedRow(f"precision {given[:40]!r} of {card} is MXFP4, which is not simulated")
    if given.startswith(("fp4", "nvfp4")):
        return "nvfp4"
    raise SkippedRow(f"precision {given[:40]!r} is not simulated")


def release(engine: str, text: str) -> str | None:
    """Release of an engine without what its build appends; None where the text names none (nightly builds)."""
    found = _RELEASE.match(text.strip().lower())
    if found is None:
        return None
    numbers = tuple(int(part) for part in found.group(1).split("."))
    if engine == "trtllm" and numbers < _CONTAINER_BELOW:
        return None
    return found.group(1) + (found.group(2) or "")


def card_name(name: str) -> str:
    """Model card of a model named as its publishers do; SkippedRow where there is none."""
    wanted = name.split("/")[-1].lower().replace("-instruct", "").replace("-base", "")
    known = {card.lower(): card for card in list_cards()}
    if wanted not in known:
        raise SkippedRow(f"no model card for {name!r}; there are {', '.join(sorted(known))}")
    return known[wanted]


def profile_name(gpu: str) -> str:
    """Hardware profile of a GPU by its name or the first part of it (h100, gb200); SkippedRow where there is none."""
    wanted = gpu.strip().lower()
    for name in list_profiles():
        if name == wanted or name.split("_")[0] == wanted:
            return name
    raise SkippedRow(f"no hardware profile for {gpu!r}; there are {', '.join(list_profiles())}")
