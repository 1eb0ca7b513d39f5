"""Which iterations an engine replays from captured CUDA graphs, by engine and release."""

from __future__ import annotations

import numpy as np

from rlsim.schema.engine import Engine
from rlsim.schema.engine_parameters import version_order
from rlsim.schema.hardware import HardwareProfile
from rlsim.units import FloatArray

VLLM_TOKENS, VLLM_BLACKWELL_TOKENS = 512, 1024
"""Largest sizes of vLLM in tokens (config/vllm.py); on Blackwell since PR 49390 of July 2026, release 0.26."""
VLLM_COUNTS_DRAFTS, VLLM_KNOWS_BLACKWELL = (0, 14), (0, 26)
"""Releases from which vLLM's ceiling is min(2 S (1 + k), ...) instead of min(2 S, ...) (PR 30330), and from which it is
larger on Blackwell; S is max_num_seqs, k the draft length."""
SGLANG_SEQUENCES, SGLANG_FEW_GPUS, SGLANG_SEQUENCES_FEW_GPUS = 512, 4, 256
"""Sequences that SGLang captures by default on GPUs of 80 GB and more (server_args.py, cuda_graph_max_bs), on fewer
than four of them less."""
TRTLLM_SEQUENCES = 128
"""Sequences that TensorRT-LLM's PyTorch backend captures by default (CudaGraphConfig.max_batch_size)."""


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
    most = engine.max_running_sequences
    if engine.name == "sglang":
        few = engine.gpus_per_replica < SGLANG_FEW_GPUS
        return min(most, SGLANG_SEQUENCES_FEW_GPUS if few else SGLANG_SEQUENCES) * per_sequence
    if engine.name == "trtllm":
        return min(most, TRTLLM_SEQUENCES) * per_sequence
    version = None if engine.version is None else version_order(engine.version)
    newest = version is None or version >= VLLM_KNOWS_BLACKWELL
    ceiling = VLLM_BLACKWELL_TOKENS if newest and profile.nvfp4_flops is not None else VLLM_TOKENS
    counted = per_sequence if version is None or version >= VLLM_COUNTS_DRAFTS else 1
    return min(2 * most * counted, ceiling, max(engine.max_batched_tokens, 1))
