"""Axes along which a run measures: quick and full ones for a GPU, tiny ones for a CPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_MIB = 2**20


@dataclass(frozen=True)
class AssumptionAxes:
    """Axes of the cases that stand beside assumptions of the cost model (:mod:`rlsim.calibration.chain_cases`).

    depths: layers of the decode iterations that tell the time of a kernel; compiled_depths: of those by torch.compile.
    chain_elements: FP32 values of a kernel, by which it lasts longer. drafts: draft lengths; draft_batches: sequences.
    weight_tensors: how many tensors hold ``weight_bytes`` in all. replayed_tokens: of the training layers that are
    replayed as a graph, for the models ``trained``.
    """

    depths: tuple[int, ...]
    compiled_depths: tuple[int, ...]
    chain_elements: tuple[int, ...]
    drafts: tuple[int, ...]
    draft_batches: tuple[int, ...]
    weight_bytes: int
    weight_tensors: tuple[int, ...]
    trained: tuple[str, ...]
    replayed_tokens: tuple[int, ...]


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
    assumed: AssumptionAxes
    budget_s: float
    target_spread: float = 0.01
    ranks: tuple[int, ...] = (2, 4, 8)


def powers(low: int, high: int, step: int = 2) -> tuple[int, ...]:
    """low, low x step, ... up to high."""
    values = [low]
    while values[-1] * step <= high:
        values.append(values[-1] * step)
    return tuple(values)


def _composites(
    batches: Iterable[int], drafts: Iterable[int], contexts: Iterable[int], most: int
) -> tuple[tuple[int, int, int], ...]:
    drafts, contexts = tuple(drafts), tuple(contexts)
    return tuple((b, k, c) for b in batches for k in drafts for c in contexts if b * c <= most)


GPU_QUICK = CaseAxes(
    models=("qwen3-8b", "qwen3-30b-a3b"),
    checked_model="qwen3-8b",
    checked_layers=8,
    tensor_parallel=(1,),
    rows=(1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 8192),
    batches=(1, 4, 16, 64, 256),
    queries=(1, 4, 8),
    contexts=(1024, 4096, 16384),
    prompts=((1, 1024), (4, 1024), (1, 8192)),
    moe_tokens=powers(1, 4096, 4),
    train_tokens=(1024, 4096),
    copy_bytes=powers(_MIB, 1024 * _MIB, 32),
    message_bytes=powers(4096, 64 * _MIB, 128),
    optimizer_parameters=(2**26,),
    composites=_composites((1, 8, 32, 128), (0, 3), (2048, 8192), 2**19),
    max_cached_tokens=2**20,
    max_head_rows=2048,
    peak_gemm=(8192, 8192, 8192),
    assumed=AssumptionAxes(
        depths=(2, 8),
        compiled_depths=(2, 4),
        chain_elements=(1, 2**20, 2**24),
        drafts=(1, 5),
        draft_batches=(1,),
        weight_bytes=256 * _MIB,
        weight_tensors=(1, 256),
        trained=("qwen3-8b", "qwen3-30b-a3b"),
        replayed_tokens=(1024, 4096),
    ),
    budget_s=60.0,
    target_spread=0.03,
)

GPU_FULL = CaseAxes(
    models=("qwen3-8b", "qwen3-30b-a3b", "qwen3-32b", "llama-3.1-8b"),
    checked_model="qwen3-8b",
    checked_layers=8,
    tensor_parallel=(1, 2, 4),
    rows=tuple(sorted({*powers(1, 16384), *powers(24, 1536)})),
    batches=powers(1, 256),
    queries=(1, 2, 4, 6, 8),
    contexts=(512, 1024, 2048, 4096, 8192, 16384, 32768),
    prompts=tuple((b, t) for b in (1, 4, 16) for t in powers(256, 16384) if b * t <= 32768),
    moe_tokens=powers(1, 16384),
    train_tokens=powers(512, 16384),
    copy_bytes=powers(65536, 1024 * _MIB, 4),
    message_bytes=powers(1024, 512 * _MIB, 4),
    optimizer_parameters=(2**22, 2**26, 2**29),
    composites=_composites((1, 4, 8, 24, 64, 128, 256), (0, 1, 3, 5, 7), (1000, 3000, 6000, 16000), 2**20),
    max_cached_tokens=2**20,
    max_head_rows=2048,
    peak_gemm=(8192, 8192, 8192),
    assumed=AssumptionAxes(
        depths=(2, 4, 8, 16),
        compiled_depths=(2, 4, 8),
        chain_elements=(1, *(2**n for n in (16, 18, 20, 21, 22, 23, 24))),
        drafts=(1, 3, 5, 7),
        draft_batches=(1, 32),
        weight_bytes=256 * _MIB,
        weight_tensors=(1, 64, 512),
        trained=("qwen3-8b", "qwen3-30b-a3b"),
        replayed_tokens=(512, 4096, 8192, 16384),
    ),
    budget_s=400.0,
)

CPU_QUICK = CaseAxes(
    models=("tiny", "tiny-moe"),
    checked_model="tiny",
    checked_layers=4,
    tensor_parallel=(1,),
    rows=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    batches=(1, 4, 16),
    queries=(1, 2, 4, 8),
    contexts=(128, 512, 2048),
    prompts=((1, 128), (1, 512), (4, 256)),
    moe_tokens=(1, 8, 64),
    train_tokens=(128, 512),
    copy_bytes=powers(65536, 64 * _MIB, 32),
    message_bytes=(4096, 65536, _MIB),
    optimizer_parameters=(2**20,),
    composites=_composites((1, 3, 8, 16), (0, 2, 5), (200, 1000), 2**15),
    max_cached_tokens=2**15,
    max_head_rows=512,
    peak_gemm=(1024, 2048, 2048),
    assumed=AssumptionAxes(
        depths=(1, 2, 4),
        compiled_depths=(),
        chain_elements=(1, 2**12, 2**16, 2**18),
        drafts=(1, 2, 4),
        draft_batches=(1,),
        weight_bytes=8 * _MIB,
        weight_tensors=(1, 64),
        trained=("tiny", "tiny-moe"),
        replayed_tokens=(),
    ),
    budget_s=60.0,
    target_spread=0.03,
    ranks=(2,),
)

CPU_FULL = CaseAxes(
    models=("tiny", "tiny-moe"),
    checked_model="tiny",
    checked_layers=4,
    tensor_parallel=(1, 2),
    rows=tuple(sorted({*powers(1, 2048), *powers(3, 768)})),
    batches=powers(1, 32),
    queries=(1, 2, 4, 6, 8),
    contexts=powers(128, 4096),
    prompts=tuple((b, t) for b in (1, 4) for t in powers(64, 1024)),
    moe_tokens=powers(1, 512),
    train_tokens=powers(64, 1024),
    copy_bytes=powers(65536, 256 * _MIB, 4),
    message_bytes=powers(1024, 16 * _MIB, 4),
    optimizer_parameters=(2**18, 2**20, 2**22),
    composites=_composites((1, 3, 8, 24), (0, 1, 3, 5, 7), (200, 1000, 3000), 2**16),
    max_cached_tokens=2**16,
    max_head_rows=1024,
    peak_gemm=(1024, 2048, 2048),
    assumed=AssumptionAxes(
        depths=(1, 2, 4, 8),
        compiled_depths=(),
        chain_elements=(1, *powers(2**10, 2**20, 4)),
        drafts=(1, 2, 4, 6),
        draft_batches=(1, 8),
        weight_bytes=32 * _MIB,
        weight_tensors=(1, 16, 256),
        trained=("tiny", "tiny-moe"),
        replayed_tokens=(),
    ),
    budget_s=300.0,
    ranks=(2,),
)


def axes_for(device_type: str, quick: bool) -> CaseAxes:
    """Axes of a run on ``cuda`` or ``cpu``."""
    if device_type == "cuda":
        return GPU_QUICK if quick else GPU_FULL
    return CPU_QUICK if quick else CPU_FULL
