"""Runs the fused verification under Triton's interpreter and writes what went in and came out: one npz file a class.

A program of its own, since triton has to be loaded with TRITON_INTERPRET=1.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bench.fused_verification import draft_indices, fused_verify, random_state
from bench.rejection import Draft

SEED, CALLS, TEMPERATURE = (7 << 33) + 5, 2, 0.8


@dataclass(frozen=True)
class Shape:
    """A class of inputs. width: of the draft's vocabulary, 0 for a deterministic draft; mass: of its probabilities."""

    batch: int
    k: int
    vocabulary: int
    width: int
    dtype: torch.dtype = torch.float32
    mass: float = 1.0


SHAPES = {
    "sampling alone": Shape(8, 0, 5000, 0, torch.bfloat16),
    "k=1, same vocabulary": Shape(10, 1, 300, 300),
    "k=3, reduced vocabulary, many blocks": Shape(6, 3, 9001, 700, torch.bfloat16),
    "k=3, reduced vocabulary": Shape(24, 3, 40, 24),
    "k=7, same vocabulary": Shape(24, 7, 24, 24),
    "k=7, reduced vocabulary": Shape(8, 7, 4097, 3000),
    "k=3, one-hot": Shape(16, 3, 12, 0, torch.bfloat16),
    "k=1, no residual mass": Shape(12, 1, 20, 20, mass=3.0),
}


def run(shape: Shape) -> dict[str, np.ndarray]:
    generator = torch.Generator().manual_seed(shape.k + shape.vocabulary)
    wanted = torch.randn(shape.batch, shape.k + 1, shape.vocabulary, generator=generator)
    logits = (2.0 * wanted).to(shape.dtype)
    # Where a draft is deterministic every position has a fair chance to be the last.
    tokens = logits[:, : shape.k].argmax(-1)
    draft, to_draft = Draft(tokens), None
    if shape.width:
        to_target = torch.randperm(shape.vocabulary, generator=generator)[: shape.width]
        same = shape.width == shape.vocabulary
        drafted = wanted[:, : shape.k] if same else wanted[:, : shape.k, to_target]
        if shape.mass == 1.0:
            drafted = 2.0 * drafted + torch.randn(drafted.shape, generator=generator)
            probabilities = drafted.softmax(-1)
        else:
            probabilities = shape.mass * (logits[:, : shape.k].float() / TEMPERATURE).softmax(-1)
        indices = torch.multinomial(probabilities.flatten(0, 1), 1, generator=generator).view(shape.batch, shape.k)
        draft = Draft(indices if same else to_target[indices], probabilities.contiguous())
        to_draft = None if same else draft_indices(to_target, shape.vocabulary)
    state = random_state(SEED, torch.device("cpu"))
    made = [fused_verify(logits, TEMPERATURE, draft, state, to_draft) for _ in range(CALLS)]
    # Ties: the first maximum counts.
    rounded = logits.round()
    first = rounded.argmax(-1)[:, : shape.k]
    followed = torch.where(torch.rand(first.shape, generator=generator) < 0.7, first, draft.tokens)
    greedy = fused_verify(rounded, 0.0, Draft(followed), state)
    empty = torch.empty(0)
    return {
        "logits": logits.float().numpy(), "drafted": draft.tokens.numpy(), "rounded": rounded.float().numpy(),
        "probabilities": (empty if draft.probabilities is None else draft.probabilities).numpy(),
        "to_draft": (empty if to_draft is None else to_draft).numpy(), "state": state.numpy(),
        "tokens": torch.stack([tokens for tokens, _ in made]).numpy(), "followed": followed.numpy(),
        "counts": torch.stack([count for _, count in made]).numpy(),
        "greedy_tokens": greedy[0].numpy(), "greedy_count": greedy[1].numpy(),
    }  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    for number, shape in enumerate(SHAPES.values()):
        np.savez(Path(sys.argv[1]) / f"{number}.npz", **run(shape))
