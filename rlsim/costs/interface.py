"""The one seam between physics and simulation: what the simulation may ask for.

The simulation sees prepared tables and durations, never hardware. Tests put fixed costs behind the same types.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class IterationTable:
    """Seconds of one engine iteration of one replica, prepared for fast look-up.

    An iteration with ``n`` decoding sequences of mean context ``c`` tokens and ``q`` prefill tokens takes
    ``step_s[n] + attention_s(n, c)`` when q is 0, and ``mixed_s(n, c, q)`` otherwise.

    step_s: shape (N + 1,), everything that does not depend on cached context; step_s[0] is 0.
    attention_s: shape (N + 1, C), attention over cached context at contexts 0, context_step_tokens, twice that...;
        linear in between and beyond the last.
    prefill_grid_tokens, prefill_s: shapes (P,) and (N_p, P): seconds *added* to the iteration by q prefill tokens when
        prefill_sequences[i] sequences decode; piecewise linear in both, clamped in n, linear beyond the last q.
    tokens_per_sequence: drafted + 1 tokens each decoding sequence puts into an iteration (k + 1, or 1).
    max_batched_tokens: token budget of an iteration; the prefill chunk is what decoding leaves of it.
    """

    step_s: FloatArray
    context_step_tokens: float
    attention_s: FloatArray
    prefill_grid_tokens: FloatArray
    prefill_sequences: FloatArray
    prefill_s: FloatArray
    tokens_per_sequence: int
    max_batched_tokens: int
    max_running_sequences: int
    kv_capacity_tokens: float
    chunked_prefill: bool = True


@dataclass(frozen=True)
class Part:
    """One named share of a duration, with the root of its number.

    bound: what limits it (compute, memory, network, host, launch). root: measured, modelled or assumed.
    """

    name: str
    seconds: float
    bound: str
    root: str


@dataclass(frozen=True)
class PhaseCost:
    """Duration of a phase and what it consists of; ``seconds`` is the sum of its serial parts."""

    seconds: float
    parts: tuple[Part, ...] = field(default=())

    @classmethod
    def of(cls, parts: Iterable[Part]) -> PhaseCost:
        """The parts that take any time, one after the other."""
        kept = tuple(part for part in parts if part.seconds > 0)
        return cls(sum(part.seconds for part in kept), kept)

    def repeated(self, times: int) -> PhaseCost:
        """The same ``times`` times over."""
        return PhaseCost.of(replace(part, seconds=times * part.seconds) for part in self.parts)


class CostModel(Protocol):
    """What the RL loop asks of the physics. Lengths are arrays of one entry per sample, in tokens."""

    @property
    def iteration(self) -> IterationTable:
        """Engine iterations of one replica."""

    def data(self, samples: int) -> PhaseCost:
        """Driver work on one step's batch."""

    def prepare(self) -> PhaseCost:
        """Colocated: weights to the engine and everything around it, before generation."""

    def wake(self) -> PhaseCost:
        """Between two rollouts of a step: a colocated engine's weights to the host and back, nothing elsewhere."""

    def refit(self) -> PhaseCost:
        """The weight transfer alone (part of ``prepare`` where colocated)."""

    def logprob(self, total_tokens: FloatArray) -> PhaseCost:
        """Log-prob passes over samples of prompt + response lengths ``total_tokens``."""

    def train(self, total_tokens: FloatArray) -> PhaseCost:
        """Forward, backward and optimizer over all optimizer steps of one RL step."""
