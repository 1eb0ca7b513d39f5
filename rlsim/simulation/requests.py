"""A request, outside the engine and in it."""

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from copy import copy
from typing import NamedTuple

from msgspec import Struct

from rlsim.costs.interface import EngineCounters
from rlsim.schema.engine import Migration
from rlsim.simulation.iteration_times import IterationTimes
from rlsim.simulation.prefixes import PrefixCache
from rlsim.units import FloatArray, IntArray


class Absence:
    """Seconds in which a replica had nothing to do while samples of it were with their environments (environment_s) or
    with the judge alone (judge_s). idle: it has nothing to do now.
    """

    def __init__(self) -> None:
        self.environment_s = self.judge_s = 0.0
        self._away = self._judged = 0
        self.idle = False
        self._since_s = 0.0

    def turn_ended(self, time_s: float, idle: bool) -> None:
        """A sample has its last token; idle: no other is on the replica."""
        if idle and not self.idle:
            self.idle, self._since_s = True, time_s

    def environment(self, time_s: float, change: int) -> None:
        """So many samples more are with their environments."""
        self._book(time_s)
        self._away += change

    def judge(self, time_s: float, change: int) -> None:
        """So many samples more are with the judge."""
        self._book(time_s)
        self._judged += change

    def ends(self, time_s: float) -> None:
        """The replica has something to do."""
        self._book(time_s)
        self.idle = False

    def _book(self, time_s: float) -> None:
        if not self.idle:
            return
        # An idle second has one cause: the environment where both are waited for.
        if self._away:
            self.environment_s += time_s - self._since_s
        elif self._judged:
            self.judge_s += time_s - self._since_s
        self._since_s = time_s


TOO_LONG = "one sequence exceeds the KV cache of a replica"


class Request(NamedTuple):
    """One request: ``iterations`` decode iterations for all response tokens but the first, which the prefill emits.

    group: key of the prompt; samples of equal group share it. prompt_tokens and response_tokens are at least 1.
    history_tokens: context between the prompt and this response, of the request's own (earlier turns of an agent).
    """

    id: int
    group: Hashable
    prompt_tokens: int
    response_tokens: int
    iterations: int
    history_tokens: int = 0


class RunningRequest:
    """A request in the engine, with what its replica keeps about it.

    done of its total decode iterations; prefill_left: tokens left to prefill, prefill_end: its context after them;
    resumed: has emitted its first token; loaded_s: when its load ends, None where it loads nothing.
    While it decodes, heap_key is its key in the heap (else -1), context_at_zero its context extrapolated to decode
    iteration 0 of the replica, and last_iteration the decode iteration of the replica with which it completes.
    """

    __slots__ = (
        "arrival_s",
        "context_at_zero",
        "done",
        "group",
        "heap_key",
        "history",
        "id",
        "last_iteration",
        "loaded_s",
        "prefill_end",
        "prefill_left",
        "prompt",
        "resumed",
        "tokens_per_iteration",
        "total",
    )

    def __init__(self, sample: Request, arrival_s: float) -> None:
        self.id, self.group, self.prompt, response, self.total, self.history = sample
        # Evenly over the iterations: of a draft's luck only the number of verifications is drawn.
        self.tokens_per_iteration = (response - 1) / self.total if self.total else 0.0
        self.arrival_s = arrival_s
        self.context_at_zero = 0.0
        self.done = self.last_iteration = self.prefill_left = self.prefill_end = 0
        self.resumed = False
        self.heap_key = -1
        self.loaded_s: float | None = None

    def own_tokens(self) -> float:
        """Tokens beyond its prompt that it holds while it is not decoding."""
        return self.history + (self.done + self.resumed) * self.tokens_per_iteration

    def emitted_tokens(self, further: int = 0) -> float:
        """Response tokens so far, ``further`` decode iterations beyond those in ``done``."""
        return (self.done + further) * self.tokens_per_iteration + self.resumed

    def generated(self) -> int:
        """Tokens to prefill beyond the prompt: all emitted ones, the last of which was never in the KV cache."""
        return math.ceil(self.done * self.tokens_per_iteration) + 1 if self.resumed else 0


SampleTokens = tuple[IntArray, FloatArray]
"""Samples and the response tokens of each."""


class EmittedTokens(Struct):
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
        self._loading: deque[RunningRequest] = deque()
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

    def in_progress(self) -> Iterator[tuple[int, float]]:
        """Unfinished samples and the response tokens that each has so far."""
        for sequence in self._waiting:
            yield sequence.id, sequence.emitted_tokens()
        for sequence in self._running:
            since = sequence.total - (sequence.last_iteration - self._iteration) - sequence.done
            yield sequence.id, sequence.emitted_tokens(since if sequence.heap_key >= 0 else 0)

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
            # The prompt stays in the cache for as long as a sibling holds it.
            others = self._residents[sequence.group] - 1
            if others:
                self._residents[sequence.group] = others
                return
            del self._residents[sequence.group]
        self._held -= sequence.prompt
        # Sums of additions and subtractions keep rounding errors; an empty batch is where they are known to be 0.
        if not self._running:
            self._context_at_zero = self._tokens_per_iteration = self._held = 0.0

    def _evict(self, kv: float) -> float:
        """Send the newest running sequences back to the head of the queue until the rest fits; KV tokens left."""
        # One stays whatever it needs: submit() has refused what could not run alone.
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
            (self._prefilling if sequence.loaded_s is None else self._loading).remove(sequence)
            sequence.loaded_s = None
            self._held -= sequence.own_tokens()
        else:
            sequence.done = sequence.total - (sequence.last_iteration - self._iteration)
            self._leave_decoding(sequence)

    def give_half(self) -> list[RunningRequest]:
        """Half of the requests leave for another replica: those that wait, the last first, then the newest."""
        given = []
        for _ in range(self.outstanding // 2):
            if self._waiting:
                sequence = self._waiting.pop()
                self._waiting_prompts -= sequence.prompt + sequence.history
                self.outstanding -= 1
            else:
                sequence = next(reversed(self._running))
                self._stop(sequence)
                self._remove(sequence)
            given.append(copy(sequence))  # its stale entry in the heap stays behind
        return given

    def take(self, time_s: float, given: list[RunningRequest], migration: Migration, token_s: float) -> None:
        """Requests of another replica queue, one after the other once each has its KV cache, where that follows.

        token_s: seconds of a token of KV cache on its way.
        """
        for sequence in given:
            tokens = sequence.prompt + sequence.history + sequence.generated() - 1
            # Compared as if nothing else ran there: who decides does not know the other replica's batch.
            again_s = self._timing.prefill(0, tokens) + self._timing.behind(tokens)
            if sequence.resumed and (
                migration == "transfer" or (migration == "cheaper" and tokens * token_s < again_s)
            ):
                time_s += tokens * token_s
                self.cache.keep(sequence.id, tokens)
            sequence.arrival_s = time_s
            self._waiting.append(sequence)
            self._waiting_prompts += sequence.prompt + sequence.history
            self.outstanding += 1

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
