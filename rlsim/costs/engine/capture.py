"""Which iterations an engine replays from captured CUDA graphs, by engine and release, and the memory it takes by
default."""

from functools import lru_cache

import numpy as np

from rlsim.schema.engine import Engine
from rlsim.schema.engine_parameters import version_order
from rlsim.schema.hardware import HardwareProfile
from rlsim.schema.scenario import Scenario
from rlsim.schema.speculation import LOOKUP_METHODS
from rlsim.units import GIB, FloatArray

VLLM_TOKENS, VLLM_BLACKWELL_TOKENS = 512, 1024
"""Largest sizes of vLLM in tokens (config/vllm.py); on Blackwell since PR 49390 of July 2026, release 0.26."""
VLLM_COUNTS_DRAFTS, VLLM_KNOWS_BLACKWELL = (0, 14), (0, 26)
"""Releases from which vLLM's ceiling is min(2 S (1 + k), ...) instead of min(2 S, ...) (PR 30330), and from which it is
larger on Blackwell; S is max_num_seqs, k the draft length."""
SGLANG_FEW_GPUS = 4
SGLANG_SEQUENCES = {
    (0, 5, 3): ((160.0, 512, 512), (60.0, 256, 512), (35.0, 32, 160), (0.0, 16, 80)),
    (0, 4, 10): ((156.25, 512, 512), (90.0, 256, 256), (0.0, 160, 160)),
    (0, 4, 6): ((96.0, 256, 256), (0.0, 160, 160)),
    (): ((0.0, 160, 160),),
}
"""Sequences that SGLang captures by default, by release and by what a GPU has more than, GiB: on fewer than four GPUs,
on more. From server_args.py and cuda_graph_runner.py of 0.4.0.post2, 0.4.6.post4, 0.4.10.post2, 0.5.1, 0.5.2, 0.5.3."""
TRTLLM_SEQUENCES = 128
"""Sequences that TensorRT-LLM's PyTorch backend captures by default (CudaGraphConfig.max_batch_size)."""

DEFAULT_SHARE = 0.9
"""Share of a GPU's memory that engines other than SGLang take by default."""
SGLANG_CHUNKS = ((160.0, 16384), (60.0, 8192), (35.0, 4096), (0.0, 2048))
"""Tokens that SGLang prefills at once by default, by what a GPU has more than, GiB."""
SGLANG_KEPT, SGLANG_LEAST, SGLANG_LEAST_ABOVE_GIB = 512.0, 10 * 1024.0, 60.0
SGLANG_CHUNK_TOKEN, SGLANG_LEAST_CHUNK, SGLANG_GRAPH, SGLANG_GPU = 1.5, 2048, 2.0, 128.0
SGLANG_COPY, SGLANG_COPY_OF_MANY, SGLANG_MANY = 3.0, 1.5, 300
SGLANG_HEAD, SGLANG_DRAFT_MODEL = 2 * 1024.0, 6 * 1024.0
"""MiB of a GPU that SGLang's default share leaves beside weights and cache: always, and at least, of GPUs with more GiB
than the third; for a token of a chunk, of so many at least, for a captured sequence and for a GPU of the replica; for a
captured sequence and copy of the attention, and more of it beyond so many sequences; for a drafter's head and model.
From srt/server_args.py, _handle_gpu_memory_settings, of 0.5.8; what it weighs besides, images and piecewise graphs of
prefill, is left out, and older releases count as it does."""


@lru_cache
def captured_sizes(largest: int) -> FloatArray:
    """Batch sizes in tokens that engines capture by default: 1, 2, 4, then every 8 to 256, then every 16."""
    sizes = np.concatenate([[1, 2, 4], np.arange(8, 256, 8), np.arange(256, max(largest, 256), 16)])
    return np.append(sizes[sizes < largest], largest).astype(np.float64)


def largest_captured_tokens(engine: Engine, per_sequence: int, profile: HardwareProfile) -> int:
    """Largest captured batch in tokens: what the scenario states, or the default of the engine and its release.

    per_sequence: positions that a sequence has in an iteration. A release that is not stated counts as the newest.
    """
    if engine.max_captured_tokens is not None:
        return engine.max_captured_tokens
    most = engine.most_running
    version = None if engine.version is None else version_order(engine.version)
    if engine.name == "sglang":
        return min(most, _sglang_sequences(version, engine.gpus_per_replica, profile)) * per_sequence
    if engine.name == "trtllm":
        return min(most, TRTLLM_SEQUENCES) * per_sequence
    newest = version is None or version >= VLLM_KNOWS_BLACKWELL
    ceiling = VLLM_BLACKWELL_TOKENS if newest and profile.nvfp4_flops is not None else VLLM_TOKENS
    counted = per_sequence if version is None or version >= VLLM_COUNTS_DRAFTS else 1
    return min(2 * most * counted, ceiling, max(engine.budget_tokens, 1))


def _sglang_sequences(version: tuple[int, ...] | None, gpus: int, profile: HardwareProfile) -> int:
    """Sequences of SGLang's largest graph."""
    rows = next(rows for since, rows in SGLANG_SEQUENCES.items() if version is None or version >= since)
    memory_gib = profile.memory_bytes.value / GIB
    few, many = next((few, many) for more_than_gib, few, many in rows if memory_gib > more_than_gib)
    return few if gpus < SGLANG_FEW_GPUS else many


def memory_share(scenario: Scenario) -> float:
    """Share of a GPU's memory that the engine of ``scenario`` may take: as stated, else the engine's own default."""
    engine, profile = scenario.engine, scenario.hardware
    if engine.gpu_memory_utilization is not None:
        return engine.gpu_memory_utilization
    if engine.name != "sglang":
        return DEFAULT_SHARE
    memory_gib = profile.memory_bytes.value / GIB
    chunk = engine.max_batched_tokens or next(tokens for more, tokens in SGLANG_CHUNKS if memory_gib > more)
    version = None if scenario.engine_version is None else version_order(scenario.engine_version)
    graphs = engine.max_captured_tokens or _sglang_sequences(version, engine.gpus_per_replica, profile)
    reserved = SGLANG_KEPT + SGLANG_CHUNK_TOKEN * max(chunk, SGLANG_LEAST_CHUNK) + SGLANG_GRAPH * graphs
    reserved += SGLANG_GPU * engine.gpus_per_replica
    if (copies := engine.attention_data_parallel) > 1:
        reserved += (SGLANG_COPY + (SGLANG_COPY_OF_MANY if graphs > SGLANG_MANY else 0.0)) * graphs * copies
    if memory_gib > SGLANG_LEAST_ABOVE_GIB:
        reserved = max(reserved, SGLANG_LEAST)
    method = scenario.speculation.method if scenario.speculation.active else "none"
    if method not in ("none", *LOOKUP_METHODS):
        reserved += SGLANG_DRAFT_MODEL if method == "draft_model" else SGLANG_HEAD
    total = 1024 * memory_gib
    # A share has three digits and is above 0; in the least of them nothing fits, which a refusal then says.
    return max(0.001, round((total - reserved) / total, 3))
