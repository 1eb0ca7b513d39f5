"""Which iterations an engine replays from captured CUDA graphs, by engine and release."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from rlsim.schema.engine import Engine
from rlsim.schema.engine_parameters import version_order
from rlsim.schema.hardware import HardwareProfile
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
