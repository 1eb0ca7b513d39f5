"""What published tables call models, devices, precisions and releases, by rlsim's names."""

from __future__ import annotations

import re

from rlsim.evidence.tables import SkippedRow
from rlsim.files.yaml import lists_beside
from rlsim.loading.models import card_of_published
from rlsim.tables.profile import profile_called

_RELEASE = re.compile(r"v?(\d+(?:\.\d+){1,3})((?:rc|\.post|\.dev)\d+)?(?:[-+.].*)?$")
_CONTAINER_BELOW = (0, 9)
"""TensorRT-LLM's releases of 2025 and later are 0.15 and newer; what tables call 0.5 to 0.8 is a Dynamo container."""


def model_card_name(name: str, listed: bool = False) -> str:
    """Model card of a model as a table calls it; SkippedRow, saying how to list all if ``listed``."""
    found = card_of_published(name)
    if found is None:
        raise SkippedRow(f"no model card for {name[:60]!r}{'; rlsim models list names all' if listed else ''}")
    return found


def device_profile_name(gpu: str, listed: bool = False) -> str:
    """Hardware profile of a GPU as a table calls it (H100, GB300 NVL72); SkippedRow as :func:`model_card_name`.

    A name with another memory in brackets is another variant of the GPU, and none of the profiles.
    """
    found = None if re.search(r"\(.*\d\s*gb", gpu.lower()) else profile_called(gpu)
    if found is not None:
        return found
    shown = f"no hardware profile for {gpu[:60]!r}" if gpu else "gpu is not given"
    raise SkippedRow(shown + ("; rlsim hardware list names all" if listed else ""))


BLOCK_SCALED: tuple[str, ...] = tuple(lists_beside(__file__)["block_scaled"])
MXFP4: tuple[str, ...] = tuple(lists_beside(__file__)["mxfp4"])


def by_modelopt(name: str) -> bool:
    """Whether a quantised checkpoint of this name is NVIDIA's own: one scale a tensor in FP8, and the cache in FP8."""
    return name.strip().lower().startswith("nvidia/")


def weight_precision(text: str, card: str, name: str = "") -> str:
    """Weight format of an engine that serves the model of ``card``. SkippedRow where it is not given or not known.

    name: of the checkpoint, where the table gives it; NVIDIA's own are scaled by the tensor whoever else publishes one.
    """
    given = text.strip().lower()
    if not given:
        raise SkippedRow("precision is not given")
    if given in ("bf16", "bfloat16", "fp16"):
        return "bf16"
    if given.startswith(("fp8", "w8a8", "mxfp8", "float8")):
        return "fp8_block" if card in BLOCK_SCALED and not by_modelopt(name) else "fp8"
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
