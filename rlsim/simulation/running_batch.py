"""What a replica holds: the requests that wait and run on it, their context and KV cache, and how they leave.

Time does not pass here; :mod:`rlsim.simulation.replica` has the rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from rlsim.costs.interface import EngineCounters
from rlsim.simulation.absence import PrefixCache
from rlsim.simulation.iteration_times import IterationTimes
from rlsim.simulation.requests import RunningRequest


@dataclass
class EmittedTokens:
    """Response tokens that a replica has emitted, and what of them was lost: emitted again, or cancelled in flight."""

    generated_tokens: float = 0.0
    regenerated_tokens: float = 0.0
    discarded_tokens: float = 0.0


class RunningBatch:
    """Requests of one replica; KV cache in tokens.

    cancelled: samples to be aborted, shared by the replicas of a pool; on_cancelled: called for each that is.
    """

    def __init__(self, timing: IterationTimes, sharing: bool, counters: EngineCounters) -> None:
        self._timing = timing
        self._sharing = sharing
        self.counters = counters
        self.outstanding = 0
        self.cache = PrefixCache()
        self.emitted = EmittedTokens()
        self.cancelled: set[int] = set()
        self.on_cancelled: Callable[[], object] = lambda: None
        self._waiting: deque[RunningRequest] = deque()
        self._waiting_prompts = 0
        self._running: dict[RunningRequest, None] = {}
        self._prefilling: deque[RunningRequest] = deque()
        self._prefilled: list[RunningRequest] = []
        self._heap: list[tuple[int, int, RunningRequest]] = []
        self._residents: dict[Hashable, int] = {}
        self._iteration = 0
        # Each entry of the heap has a key; a sequence that is evicted forgets its own, which leaves a stale entry to be
        # skipped at the top: cheaper than finding it inside.
        self._heap_keys = 0
        # Contexts are extrapolated back to iteration 0, so that two sums tell the context of all sequences at any
        # iteration and only a change of membership touches them, however many iterations lie between.
        self._context_at_zero = 0.0
        self._tokens_per_iteration = 0.0
        self._held = 0.0

    @property
    def in_progress_tokens(self) -> float:
        """Response tokens that unfinished samples have so far."""
        tokens = sum(sequence.emitted_tokens() for sequence in self._waiting)
        for sequence in self._running:
            since = sequence.total - (sequence.last_iteration - self._iteration) - sequence.done
            tokens += sequence.emitted_tokens(since if sequence.heap_key >= 0 else 0)
        return tokens

    def _kv_tokens(self) -> float:
        context = self._context_at_zero + self._iteration * self._tokens_per_iteration
        return context + self._held + len(self._running) * self._timing.tokens_per_sequence

    def _kv_of(self, sequence: RunningRequest) -> float:
        """KV tokens that admission of ``sequence`` adds."""
        own = sequence.own_tokens() + self._timing.tokens_per_sequence
        return own if self._sharing and sequence.group in self._residents else own + sequence.prompt

    def _leave_decoding(self, sequence: RunningRequest) -> None:
        """Take a decoding sequence out of the sums; it holds only its prompt afterwards."""
        sequence.heap_key = -1
        self._context_at_zero -= sequence.context_at_zero
        self._tokens_per_iteration -= sequence.tokens_per_iteration
        self._held += sequence.prompt

    def _remove(self, sequence: RunningRequest, completed: bool = True) -> None:
        del self._running[sequence]
        self.outstanding -= completed
        if self._sharing:
            others = self._residents[sequence.group] - 1
            if others:
                self._residents[sequence.group] = others
                return
            del self._residents[sequence.group]
        self._held -= sequence.prompt
        if not self._running:
            self._context_at_zero = self._tokens_per_iteration = self._held = 0.0

    def _evict(self, kv: float) -> float:
        """Send the newest running sequences back to the head of the queue until the rest fits; KV tokens left."""
        while kv > self._timing.kv_capacity_tokens and len(self._running) > 1:
            sequence = next(reversed(self._running))
            self._stop(sequence)
            self._remove(sequence, completed=False)
            self._waiting.appendleft(sequence)
            self._waiting_prompts += sequence.prompt + sequence.history
            self.counters.preemptions += 1
            kv = self._kv_tokens()
        return kv

    def _stop(self, sequence: RunningRequest) -> None:
        """Leave decoding or prefill with nothing but the prompt held."""
        if sequence.heap_key < 0:
            self._prefilling.remove(sequence)
            self._held -= sequence.own_tokens()
        else:
            sequence.done = sequence.total - (sequence.last_iteration - self._iteration)
            self._leave_decoding(sequence)

    def _cancel(self) -> None:
        """Samples that are cancelled leave, whether they run or wait."""
        for sequence in [one for one in self._running if one.id in self.cancelled]:
            self._stop(sequence)
            self._remove(sequence)
            self._discard(sequence)
        for sequence in [one for one in self._waiting if one.id in self.cancelled]:
            self._waiting.remove(sequence)
            self._waiting_prompts -= sequence.prompt + sequence.history
            self.outstanding -= 1
            self._discard(sequence)

    def _discard(self, sequence: RunningRequest) -> None:
        self.emitted.discarded_tokens += sequence.emitted_tokens()
        self.cancelled.remove(sequence.id)
        self.on_cancelled()

    def _forget(self) -> None:
        """Samples that have begun start again from their prompts: running ones in place, others when they are next."""
        for sequence in self._running:
            self._stop(sequence)
            self.emitted.regenerated_tokens += sequence.emitted_tokens()
            sequence.done, sequence.resumed = 0, False
            self._held += sequence.own_tokens()
            self._prefilling.append(sequence)
        for sequence in self._waiting:
            self.emitted.regenerated_tokens += sequence.emitted_tokens()
            sequence.done, sequence.resumed = 0, False

    def _prefill_again(self) -> None:
        """All resident sequences prefill their context again, in the order of their admission."""
        seen: set[Hashable] = set()
        for sequence in self._running:
            self._stop(sequence)
            self._held += sequence.own_tokens()
            generated = sequence.history + sequence.generated()
            known = self._sharing and sequence.group in seen
            seen.add(sequence.group)
            sequence.prefill_end = sequence.prompt + generated
            sequence.prefill_left = max(1, generated) if known else sequence.prefill_end
            self._prefilling.append(sequence)
