"""Counters of a rollout, shared by its replicas."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Tally:
    """What the engine did, by batch size: the key to the share of graphs, eager launches and operators.

    iterations_at[n]: iterations that decoded n sequences. context_at[n]: sum of their mean contexts in tokens.
    prefill_iterations, prefill_tokens: iterations with prefill and the tokens they prefilled, evicted ones again.
    """

    __slots__ = ("context_at", "iterations_at", "preemptions", "prefill_iterations", "prefill_tokens")

    def __init__(self, slots: int) -> None:
        self.iterations_at: list[int] = [0] * (slots + 1)
        self.context_at: list[float] = [0.0] * (slots + 1)
        self.prefill_iterations = 0
        self.prefill_tokens = 0
        self.preemptions = 0

    def count(self, decoding: int, iterations: int, mean_context: float) -> None:
        """Add ``iterations`` with ``decoding`` sequences at a mean context."""
        self.iterations_at[decoding] += iterations
        self.context_at[decoding] += iterations * mean_context

    def count_all(
        self, decoding: NDArray[np.int64], iterations: NDArray[np.int64], mean_context: NDArray[np.float64]
    ) -> None:
        """:meth:`count` over arrays of equal shape; entries of 0 iterations count nothing."""
        n, times = decoding.ravel(), iterations.ravel()
        counted = np.bincount(n, times)
        contexts = np.bincount(n, times * mean_context.ravel())
        for size in np.flatnonzero(counted).tolist():
            self.iterations_at[size] += int(counted[size])
            self.context_at[size] += float(contexts[size])

    def add(self, other: Tally, times: int = 1) -> None:
        """Add what ``other`` counted, ``times`` times; -1 takes it away."""
        missing = len(other.iterations_at) - len(self.iterations_at)
        self.iterations_at.extend([0] * missing)
        self.context_at.extend([0.0] * missing)
        for n, count in enumerate(other.iterations_at):
            self.iterations_at[n] += times * count
            self.context_at[n] += times * other.context_at[n]
        self.prefill_iterations += times * other.prefill_iterations
        self.prefill_tokens += times * other.prefill_tokens
        self.preemptions += times * other.preemptions

    def prefill(self, tokens: int) -> None:
        """Add one iteration that prefilled ``tokens``."""
        self.prefill_iterations += 1
        self.prefill_tokens += tokens

    @property
    def iterations(self) -> int:
        """Iterations that decoded anything, over all replicas."""
        return sum(self.iterations_at)

    def facts(self) -> dict[str, float]:
        """The counters in a few numbers: batch size and context are means over decode iterations."""
        iterations = self.iterations
        sequences = sum(n * count for n, count in enumerate(self.iterations_at))
        return {
            "decode_iterations": float(iterations),
            "mean_batch": sequences / iterations if iterations else 0.0,
            "mean_context_tokens": sum(self.context_at) / iterations if iterations else 0.0,
            "prefill_iterations": float(self.prefill_iterations),
            "prefill_tokens": float(self.prefill_tokens),
            "preemptions": float(self.preemptions),
        }
