"""Where speculation neither wins nor loses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

ACCEPTANCE_KEY = "speculation.acceptance_length"
DRAFT_KEYS = ("speculation.draft_length", "k")


def break_even_lengths(rows: Sequence[dict[str, Any]], draft: str, column: str = "rollout_speedup") -> dict[Any, float]:
    """Acceptance length at which ``column`` crosses 1, by value of the ``draft`` axis; linear between cells.

    rows: cells that ran, with one acceptance length each. Drafts whose cells stay on one side of 1 have no entry.
    """
    out: dict[Any, float] = {}
    for k in sorted({row[draft] for row in rows}):
        points = sorted((row[ACCEPTANCE_KEY], row[column]) for row in rows if row[draft] == k)
        for (low, before), (high, after) in itertools.pairwise(points):
            if before <= 1.0 <= after and after > before:
                out[k] = low + (1.0 - before) / (after - before) * (high - low)
                break
    return out
