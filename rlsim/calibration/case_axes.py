"""Axes along which a run measures: quick and full ones for a GPU, tiny ones for a CPU."""

from __future__ import annotations

from itertools import product

from pydantic import TypeAdapter

from rlsim.files.records import dataclass
from rlsim.files.yaml import lists_beside


@dataclass(frozen=True)
class CaseAxes:
    """Axes of a run. ``max_cached_tokens`` bounds batch x context, ``max_head_rows`` the rows of a vocabulary-wide
    product; ``peak_gemm`` is a product (m, n, k) that comes near the device's best rate.

    ``composites`` are (batch, draft length, context) of the self-check's engine steps; ``ranks`` numbers of GPUs that
    collectives run over; budget_s is the time that the whole run aims
    at, target_spread the one at which a case is done.
    """

    models: tuple[str, ...]
    checked_model: str
    checked_layers: int
    tensor_parallel: tuple[int, ...]
    rows: tuple[int, ...]
    batches: tuple[int, ...]
    queries: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[tuple[int, int], ...]
    moe_tokens: tuple[int, ...]
    train_tokens: tuple[int, ...]
    copy_bytes: tuple[int, ...]
    message_bytes: tuple[int, ...]
    optimizer_parameters: tuple[int, ...]
    composites: tuple[tuple[int, int, int], ...]
    max_cached_tokens: int
    max_head_rows: int
    peak_gemm: tuple[int, int, int]
    budget_s: float
    target_spread: float = 0.01
    ranks: tuple[int, ...] = (2, 4, 8)


def _axes(name: str) -> CaseAxes:
    """The axes of that name in case_axes.yaml."""
    stated = dict(lists_beside(__file__, "case_axes.yaml")[name])
    points = stated["composites"]
    every = product(points["batches"], points["drafts"], points["contexts"])
    stated["composites"] = [point for point in every if point[0] * point[2] <= points["most"]]
    return TypeAdapter(CaseAxes).validate_python(stated)


GPU_QUICK, GPU_FULL, CPU_QUICK, CPU_FULL = map(_axes, ("gpu_quick", "gpu_full", "cpu_quick", "cpu_full"))


def axes_for(device_type: str, quick: bool) -> CaseAxes:
    """Axes of a run on ``cuda`` or ``cpu``."""
    if device_type == "cuda":
        return GPU_QUICK if quick else GPU_FULL
    return CPU_QUICK if quick else CPU_FULL
