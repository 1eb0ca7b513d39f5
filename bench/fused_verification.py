"""Exact lossless verification of drafted tokens straight from logits, in three Triton kernels.

What bench/rejection.py does with torch in about thirty kernels that write several [B, k+1, V] tensors. Here the logits
are read once for the softmax's statistics, and of each sequence one row again for the draw. Importing this module
needs no triton.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.rejection import Draft

KERNELS = ("triton", "torch")
_WARPS_PER_MULTIPROCESSOR = 32
"""Warps that are to be there for each multiprocessor, by splitting rows where they are few: half of what fits."""
_MOST_SPLITS, MOST_DRAFTED = 128, 7
_STATISTICS_BLOCK, _RACE_BLOCK = 4096, 2048
"""Tokens that a program takes at a time; splits begin at multiples of them."""
_STATISTICS_WARPS, _RACE_WARPS = 8, 4
_MULTIPROCESSORS_OF_INTERPRETER = 4


def missing_for(device: torch.device) -> str:
    """Why the kernels cannot run on ``device``; empty where they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if device.type != "cuda" and not _interpreted():
        return "Triton kernels need a GPU (or TRITON_INTERPRET=1)"
    return ""


def random_state(seed: int, device: torch.device) -> Tensor:
    """Seed, and how many calls there were: kernels count on the device, so that a replayed graph draws anew."""
    return torch.tensor([seed, 0], dtype=torch.int64, device=device)


def draft_indices(to_target: Tensor, vocabulary: int) -> Tensor:
    """[V] target id -> draft id, -1 where the draft has no such token; the inverse of ``Draft.to_target``.

    The kernel looks the draft's probability of each target token up, since it cannot add to single tokens of a row that
    many programs share.
    """
    indices = torch.full((vocabulary,), -1, dtype=torch.int32, device=to_target.device)
    indices[to_target] = torch.arange(to_target.numel(), dtype=torch.int32, device=to_target.device)
    return indices


def fused_verify(
    logits: Tensor, temperature: float, draft: Draft, state: Tensor, to_draft: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """``rejection.verify`` of ``sampling_probabilities(logits, temperature)``, without those probabilities in memory.

    logits: [B, k+1, V], bf16 or fp32, contiguous. ``draft.probabilities``: [B, k, Vq] fp32, contiguous, over the
    vocabulary of ``to_draft`` (see :func:`draft_indices`), or over the target's without. state: of
    :func:`random_state`; each call advances it. Temperature 0 is greedy, for a deterministic draft and any other:
    a drafted token is accepted where it is the first maximum. Returns tokens [B, k+1] and count [B] as ``verify`` does.
    """
    batch, rows_each = logits.shape[:2]
    k = rows_each - 1
    if not logits.is_contiguous() or draft.tokens.shape != (batch, k) or k > MOST_DRAFTED:
        raise ValueError(f"logits must be contiguous [B, k+1, V] with drafted tokens [B, k], k at most {MOST_DRAFTED}")
    if draft.probabilities is not None and not draft.probabilities.is_contiguous():
        raise ValueError("the draft's probabilities must be contiguous")
    drafted = draft.tokens.contiguous()
    tokens = torch.empty(batch, k + 1, dtype=torch.int64, device=logits.device)
    count = torch.empty(batch, dtype=torch.int64, device=logits.device)
    if temperature == 0.0:
        _greedy(logits, drafted, tokens, count)
    else:
        _sampled(logits, temperature, drafted, draft.probabilities, to_draft, state, tokens, count)
    return tokens, count


def _greedy(logits: Tensor, drafted: Tensor, tokens: Tensor, count: Tensor) -> None:
    from bench import verification_kernels as kernels

    batch, rows_each, vocabulary = logits.shape
    splits, span = _splits(batch * rows_each, vocabulary, _STATISTICS_BLOCK, _STATISTICS_WARPS, logits.device)
    top = _scratch(logits, batch * rows_each * splits)
    place = torch.empty(batch * rows_each * splits, dtype=torch.int32, device=logits.device)
    _launch(kernels.row_maxima, (batch * rows_each, splits), _STATISTICS_WARPS)(
        logits, top, place, vocabulary, span, splits
    )
    _launch(kernels.greedy_decision, (batch,), 1)(top, place, drafted, tokens, count, rows_each - 1, splits)


def _sampled(
    logits: Tensor,
    temperature: float,
    drafted: Tensor,
    probabilities: Tensor | None,
    to_draft: Tensor | None,
    state: Tensor,
    tokens: Tensor,
    count: Tensor,
) -> None:
    from bench import verification_kernels as kernels

    batch, rows_each, vocabulary = logits.shape
    k = rows_each - 1
    splits, span = _splits(batch * rows_each, vocabulary, _STATISTICS_BLOCK, _STATISTICS_WARPS, logits.device)
    races, race_span = _splits(batch, vocabulary, _RACE_BLOCK, _RACE_WARPS, logits.device)
    top, total = (_scratch(logits, batch * rows_each * splits) for _ in range(2))
    row_max, row_sum, best = (_scratch(logits, batch * each) for each in (1, 1, races))
    winner = torch.empty(batch * races, dtype=torch.int32, device=logits.device)
    if k == 0:
        kind = kernels.NO_DRAFT
    elif probabilities is None:
        kind = kernels.ONE_HOT
    else:
        kind = kernels.SAME if to_draft is None else kernels.MAPPED
    # Pointers that the kind of draft leaves unused need some tensor all the same.
    draft, indices = (logits if one is None else one for one in (probabilities, to_draft))
    width = 1 if probabilities is None else probabilities.shape[-1]
    _launch(kernels.row_statistics, (batch * rows_each, splits), _STATISTICS_WARPS)(
        logits, top, total, state, temperature, vocabulary, span, splits
    )
    _launch(kernels.decide_and_race, (batch, races), _RACE_WARPS)(
        logits, top, total, drafted, draft, indices, state, row_max, row_sum, best, winner, tokens, count, temperature,
        vocabulary, width, race_span, k, splits, races, DRAFT=kind.value,
    )  # fmt: skip
    _launch(kernels.finish, (batch,), _RACE_WARPS)(
        logits, state, row_max, row_sum, best, winner, tokens, count, temperature, vocabulary, k, races
    )


def _launch(kernel: Any, grid: tuple[int, ...], warps: int) -> Callable[..., object]:
    """``kernel`` on ``grid``; its arguments follow."""

    def run(*tensors: object, **constants: object) -> object:
        return kernel[grid](*tensors, **constants, num_warps=warps)

    return run


def _splits(rows: int, vocabulary: int, block: int, warps: int, device: torch.device) -> tuple[int, int]:
    """Programs that share a row, and the tokens of each."""
    multiprocessors = _MULTIPROCESSORS_OF_INTERPRETER
    if device.type == "cuda":
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    blocks = -(-vocabulary // block)
    wanted = min(_MOST_SPLITS, blocks, -(-_WARPS_PER_MULTIPROCESSOR * multiprocessors // (warps * rows)))
    each = -(-blocks // wanted)
    return -(-blocks // each), each * block


def _scratch(like: Tensor, values: int) -> Tensor:
    return torch.empty(values, dtype=torch.float32, device=like.device)


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"
