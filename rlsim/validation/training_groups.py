"""What a measured training step is scored together with: framework and release, family, device and precision."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from rlsim.errors import RlsimError
from rlsim.loading.models import load_card
from rlsim.validation.measured import Detail
from rlsim.validation.names import model_card_name
from rlsim.validation.rows import SkippedRow

_RELEASE = re.compile(r"(\d+\.\d+)(\.\d+)*")
_UNTOLD = ("", "unknown")


def training_details(cells: Mapping[str, str]) -> dict[str, Detail]:
    """What a row says of its run, by name; series and family are read off its release and its model's card."""
    told: dict[str, Detail] = {column: cells.get(column, "") for column in ("model", "gpu", "precision", "release")}
    return {**told, "framework": _framework(cells), "series": _series(cells), "family": _family(cells)}


def training_group(cells: Mapping[str, str]) -> str:
    """Framework and release, family of the model, device and precision of a row; what it does not tell is left out."""
    parts = (_run(cells), _family(cells), _device(cells), _precision(cells))
    return ", ".join(part for part in parts if part)


def training_cuts(cells: Mapping[str, str]) -> tuple[str, ...]:
    """Further sets that a row is scored in: each part of its group alone, and release with family and interconnect."""
    family, device, precision = _family(cells), _device(cells), _precision(cells)
    alone = {"release": _run(cells), "family": family, "device": device, "precision": precision}
    cuts = [f"{name}: {value}" for name, value in alone.items() if value]
    place = "NVL72 racks" if device.startswith("GB") else "8-GPU nodes"
    return (*cuts, f"{family} on {place}, {_run(cells)}") if family and device and _run(cells) else tuple(cuts)


def _framework(cells: Mapping[str, str]) -> str:
    return re.sub(r"\s*\(.*\)$", "", cells.get("framework", "").strip())


def _series(cells: Mapping[str, str]) -> str:
    """A release without its corrections and container (26.02 of NeMo 26.02.01); other texts as they are."""
    given = cells.get("release", "").strip()
    found = _RELEASE.search(given)
    return found.group(1) if found else "" if given.lower() in _UNTOLD else given[:20]


def _run(cells: Mapping[str, str]) -> str:
    return " ".join(part for part in (_framework(cells), _series(cells)) if part)


def _family(cells: Mapping[str, str]) -> str:
    """Dense or MoE, by the model's card; empty where there is none."""
    return _card_family(cells.get("model", ""))


@lru_cache(maxsize=256)
def _card_family(model: str) -> str:
    try:
        return "dense" if load_card(model_card_name(model)).moe is None else "MoE"
    except (SkippedRow, RlsimError):
        return ""


def _device(cells: Mapping[str, str]) -> str:
    return cells.get("gpu", "").replace(" NVL72", "").strip()


def _precision(cells: Mapping[str, str]) -> str:
    """BF16, FP8 (one scale for a tensor, row or block of at least 128), MXFP8 or NVFP4; other formats as given."""
    given = cells.get("precision", "").strip().upper()
    if re.match(r"MXFP8|FP8[-_]MX", given):
        return "MXFP8"
    return next((name for name in ("BF16", "FP8", "NVFP4") if given.startswith(name)), given[:20])
