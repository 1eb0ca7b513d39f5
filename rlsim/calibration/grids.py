"""Which cells a run measures: quick and full grids for a GPU, tiny ones for a CPU (standard library only)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rlsim.calibration import cases
from rlsim.calibration.cell import Cell
from rlsim.calibration.dims import ModelDims, model_dims

_MIB = 2**20


@dataclass(frozen=True)
class Grid:
    """Axes of a run. ``max_cached_tokens`` bounds batch x context, ``max_head_rows`` the rows of a vocabulary-wide
    product; ``peak_gemm`` is a product (m, n, k) that comes near the device's best rate.

    ``composites`` are (batch, draft length, context) of the self-check; budget_s is the time that the whole run aims
    at.
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


GPU_QUICK = Grid(
    models=("qwen3-8b", "qwen3-30b-a3b"),
    checked_model="qwen3-8b",
    checked_layers=4,
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
    budget_s=60.0,
)

GPU_FULL = Grid(
    models=("qwen3-8b", "qwen3-30b-a3b", "qwen3-32b", "llama-3.1-8b"),
    checked_model="qwen3-8b",
    checked_layers=4,
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
    composites=_composites((1, 3, 8, 24, 64, 128, 256), (0, 1, 3, 5, 7), (1000, 3000, 6000, 16000), 2**20),
    max_cached_tokens=2**20,
    max_head_rows=2048,
    peak_gemm=(8192, 8192, 8192),
    budget_s=400.0,
)

CPU_QUICK = Grid(
    models=("tiny",),
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
    budget_s=60.0,
)

CPU_FULL = Grid(
    models=("tiny",),
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
    budget_s=300.0,
)

_TINY_EXPERTS = {
    "hidden": 256,
    "heads": 8,
    "kv_heads": 2,
    "head_dim": 32,
    "width": 64,
    "vocabulary": 2048,
    "experts": 16,
    "top_k": 2,
}


def grid_for(device_type: str, quick: bool) -> Grid:
    """Grid of a run on ``cuda`` or ``cpu``."""
    if device_type == "cuda":
        return GPU_QUICK if quick else GPU_FULL
    return CPU_QUICK if quick else CPU_FULL


def cells_of(grid: Grid, on_gpu: bool, fp8: bool, ranks: int) -> list[Cell]:
    """All cells of a run without duplicates, cheap and fundamental ones first, composites last."""
    cells = [*cases.launches(), *cases.copies(grid.copy_bytes, on_gpu)]
    cells += [cases.gemm(*grid.peak_gemm, dtype) for dtype in (("bf16", "fp8") if fp8 else ("bf16",))]
    for name in grid.models:
        cells += _model_cells(grid, name, fp8)
    cells += _draft_cells(grid)
    cells += cases.host_work(grid.checked_model, grid.checked_layers)
    cells += [cases.optimizer_step(count) for count in grid.optimizer_parameters]
    if ranks > 1:
        cells += cases.collectives(grid.message_bytes, ranks)
    modes = ("graph", "eager") if on_gpu else ("eager",)
    cells += [
        cases.composite(grid.checked_model, grid.checked_layers, *point, mode)
        for mode in modes
        for point in grid.composites
    ]
    return list({cell.key: cell for cell in cells}.values())


def _model_cells(grid: Grid, name: str, fp8: bool) -> list[Cell]:
    dims = model_dims(name)
    cells: list[Cell] = []
    for ways in grid.tensor_parallel:
        cells += _gemms(_shard_shapes(dims, ways), grid, ("bf16", "fp8") if fp8 else ("bf16",))
    cells += _gemms([(dims.vocabulary, dims.hidden)], grid, ("bf16",))
    cells += _attention_cells(grid, dims)
    for rows in grid.rows:
        cells += cases.elementwise(rows, dims)
    cells += _sampling_cells(grid, dims)
    experts = dims if dims.experts else model_dims(_TINY_EXPERTS) if name == "tiny" else None
    if experts is not None:
        cells += [cases.moe(t, experts, d) for t in grid.moe_tokens for d in ("balanced", "skewed")]
    return cells + cases.training(grid.train_tokens, name, dims)


def _shard_shapes(dims: ModelDims, ways: int) -> list[tuple[int, int]]:
    """(n, k) of the layer's products with ``ways``-fold tensor parallelism."""
    if dims.heads % ways or dims.kv_heads % ways or dims.width % ways:
        return []
    shapes = [(dims.qkv_width // ways, dims.hidden), (dims.hidden, dims.heads * dims.head_dim // ways)]
    if not dims.experts:
        shapes += [(2 * dims.width // ways, dims.hidden), (dims.hidden, dims.width // ways)]
    return shapes


def _gemms(shapes: Iterable[tuple[int, int]], grid: Grid, dtypes: Iterable[str]) -> list[Cell]:
    wide = 64000
    return [
        cases.gemm(m, n, k, dtype)
        for dtype in dtypes
        for n, k in shapes
        for m in grid.rows
        if n < wide or m <= grid.max_head_rows
    ]


def _attention_cells(grid: Grid, dims: ModelDims) -> list[Cell]:
    points = [
        (b, q, c) for q in grid.queries for b in grid.batches for c in grid.contexts if b * c <= grid.max_cached_tokens
    ]
    cells = [cases.cached_attention(b, q, c, dims) for b, q, c in points]
    ends = (min(grid.contexts), max(grid.contexts))
    cells += [cases.attention_plan(b, q, c, dims) for b, q, c in points if c in ends]
    return cells + [cases.prefill_attention(b, t, dims) for b, t in grid.prompts]


def _sampling_cells(grid: Grid, dims: ModelDims) -> list[Cell]:
    draft_vocabulary = dims.draft_layer.vocabulary
    rows = [r for r in grid.rows if r <= grid.max_head_rows]
    cells = [cases.sampling_softmax(r, v) for v in (dims.vocabulary, draft_vocabulary) for r in rows]
    cells += [cases.sampling_draw(b, draft_vocabulary) for b in grid.batches]
    lengths = sorted({q - 1 for q in grid.queries})
    return cells + [cases.rejection(b, k, dims.vocabulary, draft_vocabulary) for k in lengths for b in grid.batches]


def _draft_cells(grid: Grid) -> list[Cell]:
    """Products of the EAGLE-3 head of the checked model; its other operators are those of a target layer."""
    dims = model_dims(grid.checked_model).draft_layer
    shapes = [
        (dims.hidden, 3 * dims.hidden),
        (dims.qkv_width, 2 * dims.hidden),
        *_shard_shapes(dims, 1),
        (dims.vocabulary, dims.hidden),
    ]
    cells = _gemms(shapes, grid, ("bf16",))
    for rows in grid.rows:
        cells += cases.elementwise(rows, dims)
    return cells
