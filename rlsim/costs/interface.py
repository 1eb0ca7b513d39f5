"""What passes between costs and simulation: seconds, all known in advance, and counters of what engines did.

The simulation sees these records and nothing behind them. Tests put fixed times into the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np
from msgspec import Struct, field

from rlsim.units import FloatArray

Bound = Literal[
    "compute", "memory", "network", "host", "host link", "launch", "schedule", "environment", "judge", "none"
]
"""What limits a time. host link: the link between a GPU and its host; schedule: waiting for others in turn;
environment, judge: waiting for those of agents."""


class IterationTable(Struct, frozen=True):
    """Seconds of one engine iteration of one replica, prepared for fast look-up.

    An iteration with ``n`` decoding sequences of mean context ``c`` tokens and ``q`` prefill tokens takes
    ``step_s[n] + attention_s(n, c)`` when q is 0, and ``mixed_s(n, c, q)`` otherwise.

    step_s: shape (N + 1,), everything that does not depend on cached context; step_s[0] is 0.
    attention_s: shape (N + 1, C), attention over cached context at contexts 0, context_step_tokens, twice that...;
        linear in between and beyond the last.
    prefill_grid_tokens, prefill_s: shapes (P,) and (N_p, P): seconds *added* to the iteration by q prefill tokens when
        prefill_sequences[i] sequences decode; piecewise linear in both, clamped in n, linear beyond the last q.
    prefill_context_s: shape (C,), seconds that one prefill token takes behind 0, context_step_tokens, twice that...
        tokens of its own sequence beyond what prefill_s holds for it; linear in between and beyond the last, negative
        where it takes less. By default none.
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
    prefill_context_s: FloatArray = field(default_factory=lambda: np.zeros(2))

    def __post_init__(self) -> None:
        for name in ("step_s", "attention_s", "prefill_s", "prefill_context_s"):
            seconds, signed = getattr(self, name), name == "prefill_context_s"
            if not np.all(np.isfinite(seconds) & (signed | (seconds >= 0))):
                raise ValueError(f"{name} of an iteration table must be finite{'' if signed else ' and not negative'}")


# not frozen: made by the hundred thousand, and a frozen one takes twice as long to make
class Part(Struct):
    """One named part of a duration in seconds, what limits it, and what it rests on.

    measured: share (0..1) of the seconds that a measurement backs; source: what the rest is.
    """

    name: str
    seconds: float
    bound: Bound
    source: Literal["modelled", "assumed"] = "modelled"
    measured: float = 0.0

    def lasting(self, seconds: float, measured: float) -> Part:
        """This part with other seconds and another measured share; plans ask for it a million times."""
        return Part(self.name, seconds, self.bound, self.source, measured)


def add_up(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The parts with those of equal names as one, in the order of first appearance; bound and source of the longest."""
    found: dict[str, Part] = {}
    for part in parts:
        if part.seconds <= 0:
            continue
        before = found.get(part.name)
        if before is None:
            found[part.name] = part
            continue
        seconds = before.seconds + part.seconds
        measured = (before.seconds * before.measured + part.seconds * part.measured) / seconds
        longer = before if before.seconds >= part.seconds else part
        found[part.name] = longer.lasting(seconds, measured)
    return tuple(found.values())


# not frozen: made by the hundred thousand, and a frozen one takes twice as long to make
class PhaseCost(Struct):
    """Duration of a phase and what it consists of; ``seconds`` is the sum of its serial parts."""

    seconds: float
    parts: tuple[Part, ...] = ()

    @classmethod
    def of(cls, parts: Iterable[Part]) -> PhaseCost:
        """The parts that take any time, one after the other; parts of equal names as one."""
        added = add_up(parts)
        return cls(sum(part.seconds for part in added), added)

    def repeated(self, times: float) -> PhaseCost:
        """These costs ``times`` times over."""
        if times == 1:
            return self
        return PhaseCost.of(part.lasting(times * part.seconds, part.measured) for part in self.parts)

    def deviating(self, factor: float, at_line_rate: PhaseCost | None = None, networks: bool = True) -> PhaseCost:
        """Times a fitted factor; what it adds to a measured time is modelled.

        at_line_rate: the same phase over links as fast as their datasheets; no part of it on a link takes less.
        networks: whether parts on a network deviate too.
        """
        if factor == 1.0 and at_line_rate is None:
            return self
        measured_share = min(1.0, 1.0 / factor)
        parts = () if at_line_rate is None else at_line_rate.parts
        least = {part.name: part.seconds for part in parts if part.bound in ("network", "host link")}
        return PhaseCost.of(
            part.lasting(max(factor * part.seconds, least.get(part.name, 0.0)), measured_share * part.measured)
            if networks or part.bound != "network"
            else part
            for part in self.parts
        )


class StepCost(Struct, frozen=True):
    """What the trainer does with the batch of one step.

    reference_s: a reference pool's pass. Where the trainer streams it runs beside the samples that are still generated;
    else log-probs hold what they wait for it.
    """

    data: PhaseCost
    logprob: PhaseCost
    train: PhaseCost
    reference_s: float = 0.0


class KvTier(Struct, frozen=True):
    """A store below the KV caches of engines. Of a replica: capacity_tokens, and latency_s + token_s for each token of
    a load, one load after the other. through: a context is written when its turn ends, and stays when it is loaded;
    else what a cache gives up is written, and leaves when its sample is back. shared: one store of all capacities.
    prefetch: a load may begin with the environment. store_token_s: a token of any replica out of a shared store, which
    sends one load after the other; 0: as fast as all ask.
    """

    capacity_tokens: int
    token_s: float
    latency_s: float = 0.0
    through: bool = True
    shared: bool = False
    prefetch: bool = False
    store_token_s: float = 0.0


class PrefillService(Struct, frozen=True):
    """Engines that prefill alone. table: iterations of one. token_s: of a full iteration, by its tokens. kv_token_s: a
    token of KV cache to an engine that decodes, after latency_s.
    """

    engines: int
    table: IterationTable
    token_s: float
    kv_token_s: float
    latency_s: float = 0.0


class Prices(Struct, frozen=True):
    """Everything that takes time in the steps of one run, in seconds and known before the first of them.

    iteration: engine iterations of one replica. prepare: weights to the engine and everything around it before a
    synchronous rollout; refit: the weight transfer alone, with all around it where a lagged loop shares its GPUs; wake:
    a colocated engine's sleep between two rollouts of a step. steps: the trainer's work by training step, where its
    batch is known beforehand. batch: the trainer's work on any batch, from the total tokens of its samples and how many
    samples were generated for it. kv_token_s: a token of KV cache from one replica to another. tier: below the caches.
    prefill: engines that prefill in place of the replicas, where there are any.
    """

    iteration: IterationTable
    replicas: int
    prepare: PhaseCost
    refit: PhaseCost
    wake: PhaseCost
    steps: tuple[StepCost, ...]
    batch: Callable[[FloatArray, int], StepCost]
    kv_token_s: float
    tier: KvTier | None
    prefill: PrefillService | None


class EngineCounters:
    """What engines did, by batch size, added up over the replicas of a rollout.

    iterations_at[n]: iterations that decoded n sequences. context_at[n]: sum of their mean contexts in tokens.
    prefill_iterations, prefill_tokens, prefill_s: iterations with prefill, the tokens they prefilled (evicted ones
    again) and the seconds that these added to their iterations. prefill_squares: twice the pairs of query and key of
    these tokens, as differences of squares (end^2 - start^2 of each chunk), whose sum over a prompt is its length
    squared however it is cut; whole numbers, so that no order of summation rounds them.
    """

    __slots__ = (
        "context_at", "iterations_at", "preemptions", "prefill_iterations", "prefill_s", "prefill_squares",
        "prefill_tokens",
    )  # fmt: skip

    def __init__(self, slots: int = 0) -> None:
        self.iterations_at: list[int] = [0] * (slots + 1)
        self.context_at: list[float] = [0.0] * (slots + 1)
        self.prefill_iterations = 0
        self.prefill_tokens = 0
        self.prefill_squares = 0
        self.prefill_s = 0.0
        self.preemptions = 0

    def count(self, decoding: int, iterations: int, mean_context: float) -> None:
        """Add ``iterations`` with ``decoding`` sequences at a mean context."""
        self.iterations_at[decoding] += iterations
        self.context_at[decoding] += iterations * mean_context

    def copy(self) -> EngineCounters:
        """A copy of the counters, which later counts do not change."""
        out = EngineCounters()
        out.add(self)
        return out

    def add(self, other: EngineCounters, times: int = 1) -> None:
        """Add what ``other`` counted, ``times`` times; -1 takes it away."""
        # The other engines may have had more slots.
        missing = len(other.iterations_at) - len(self.iterations_at)
        self.iterations_at.extend([0] * missing)
        self.context_at.extend([0.0] * missing)
        for n, count in enumerate(other.iterations_at):
            if count:  # of the batches up to all slots most never ran
                self.iterations_at[n] += times * count
                self.context_at[n] += times * other.context_at[n]
        self.prefill_iterations += times * other.prefill_iterations
        self.prefill_tokens += times * other.prefill_tokens
        self.prefill_squares += times * other.prefill_squares
        self.prefill_s += times * other.prefill_s
        self.preemptions += times * other.preemptions

    def prefill(self, tokens: int, seconds: float) -> None:
        """Add one iteration that prefilled ``tokens``, which took ``seconds`` of it."""
        self.prefill_iterations += 1
        self.prefill_tokens += tokens
        self.prefill_s += seconds

    @property
    def iterations(self) -> int:
        """Iterations that decoded anything, over all replicas."""
        return sum(self.iterations_at)

    @property
    def mean_batch(self) -> float:
        """Decoding sequences of an iteration, mean."""
        return sum(n * count for n, count in enumerate(self.iterations_at)) / max(1, self.iterations)

    @property
    def mean_context_tokens(self) -> float:
        """Context of a decoding sequence, mean over iterations."""
        return sum(self.context_at) / max(1, self.iterations)
