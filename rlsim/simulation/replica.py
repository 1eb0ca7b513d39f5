"""One data-parallel replica of a rollout engine, advanced from one change of batch membership to the next.

Rules, after the scheduler of vLLM V1 (``vllm/v1/core/sched/scheduler.py``):

- An iteration decodes every decoding sequence once and prefills with the token budget that is left: first sequences in
  prefill, then waiting ones in the order of their submission, while slots and KV cache last. Without chunked prefill an
  iteration that can admit whole prompts does so and decodes nothing.
- The iteration that finishes a prefill emits the first token; the sequence decodes from the next one. Its remaining
  tokens take ``iterations`` decode iterations and its cached context grows evenly over them.
- With prefix caching the prompt of a group is held once while one of its samples is resident, and further samples
  prefill one token of it.
- A sequence holds, from its admission on, the context it has or is prefilling and the tokens that it puts into one
  iteration. Where that exceeds the capacity, the newest running sequence is evicted to the head of the queue, where it
  cannot fit again before another one leaves. It prefills all its tokens again, which emits one more and counts as one
  decode iteration.
- What a sample that will come back leaves in the prefix cache may be reclaimed, the oldest first, where running
  sequences need its room; when it is admitted again it prefills what is no longer there. What a tier below has of that
  it loads instead where this is faster, as it would be if nothing else ran, one load after the other: while others
  decode and prefill (vLLM's ``WAITING_FOR_REMOTE_KVS``), or, without chunked prefill, layer by layer within the
  iteration that prefills the rest, which takes the longer of both (SGLang's HiCache).
- Where others prefill (prefills.py), a sample arrives with its context, of which one token is left to prefill; what is
  evicted or met by new weights it prefills itself.
- A sample counts as arrived at the first iteration that starts at or after its submission. A pause starts when the
  iteration in progress ends.

Ties are FIFO and nothing is drawn at random, so equal input gives equal bits.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Literal

from rlsim.costs.interface import EngineCounters, IterationTable
from rlsim.errors import Infeasible
from rlsim.simulation.iteration_times import prepare
from rlsim.simulation.requests import TOO_LONG, Absence, Request, RunningBatch, RunningRequest

_INFINITY = math.inf
Action = Literal["keep", "recompute", "restart", "cancel", "give"]
"""What a pause does to requests: nothing; they prefill what they have again; start from their prompts; those that are
cancelled leave; or half of them, for another replica."""


class Replica(RunningBatch):
    """State of one replica; times in seconds, KV cache in tokens.

    table: its iteration costs and limits. counters: shared by the replicas of a rollout.
    """

    def __init__(
        self, table: IterationTable, prefix_caching: bool = True, counters: EngineCounters | None = None
    ) -> None:
        timing = prepare(table)
        super().__init__(timing, prefix_caching, counters or EngineCounters(timing.max_sequences))
        self.now_s = 0.0
        self.peak_kv_tokens = 0.0
        self.absence, self.decodes_alone = Absence(), False
        self.on_give: Callable[[float], object] = lambda time_s: None
        self._interrupts: deque[tuple[float, float, Action]] = deque()
        self._end_s: float | None = None
        self._segment_iterations = self._decoded = 0

    def submit(self, time_s: float, samples: Iterable[Request]) -> None:
        """Queue samples at a time not before earlier submissions.

        Raises Infeasible for a sample that could not fit the KV cache even alone.
        """
        spare = self._timing.kv_capacity_tokens - self._timing.tokens_per_sequence + 1
        waiting = self._waiting
        first = not waiting
        if self.absence.idle:
            self.absence.ends(time_s)
        for sample in samples:
            if sample[2] + sample[5] + sample[3] > spare:
                tokens = sample[2] + sample[5] + sample[3] + self._timing.tokens_per_sequence - 1
                raise Infeasible(TOO_LONG, tokens, self._timing.kv_capacity_tokens, "tokens")
            waiting.append(RunningRequest(sample, time_s))
            self._waiting_prompts += sample[2] + sample[5]
            self.outstanding += 1
        # Only the head of the queue can be admitted, and only where a slot is free: else nothing changes before.
        if first and len(self._running) < self._timing.max_sequences:
            self._end_early(time_s)

    def leave(self, time_s: float, sample: int, tokens: int) -> None:
        """A sample that just finished will come back; ``tokens`` of its context stay in the prefix cache."""
        self.absence.environment(time_s, 1)
        self.cache.goes_away(time_s, sample)
        if self._sharing:
            self.cache.keep(sample, tokens)
            self.cache.reclaim(self._timing.kv_capacity_tokens - self._kv_tokens())

    def has_room(self, sample: Request) -> bool:
        """Whether a slot and KV cache for the prompt are free behind all that wait."""
        waiting = self._waiting_prompts + (len(self._waiting) + 1) * self._timing.tokens_per_sequence
        return (
            self.outstanding < self._timing.max_sequences
            and self._kv_tokens() + waiting + sample.prompt_tokens <= self._timing.kv_capacity_tokens
        )

    def pause(self, time_s: float, duration_s: float, action: Action = "keep") -> None:
        """Stop for ``duration_s`` once the iteration in progress has ended, and then do as ``action`` says."""
        self._interrupts.append((time_s, duration_s, action))
        self._end_early(time_s)

    def next_event_time(self) -> float:
        """End of the current segment, infinite when idle.

        A segment is a pause, one iteration with prefill, or a segment of decoding up to a completion, a lack of KV
        cache, an arrival or a pause. Nothing completes before it ends. Later submissions and pauses shorten a segment;
        an iteration with prefill starts with this call, so submit what arrives now before asking.
        """
        if self._end_s is None:
            self._begin()
        end_s = self._end_s
        return _INFINITY if end_s is None else end_s

    def advance_to(self, time_s: float) -> list[tuple[float, int]]:
        """Complete all segments that end by ``time_s``; (finish time, sample id) in order of time.

        What starts at ``time_s`` itself is left for later, so that samples submitted then still take part in it.
        """
        done: list[tuple[float, int]] = []
        end_s = self._end_s
        while True:
            if end_s is None:
                if self.now_s >= time_s:
                    return done
                self._begin()
                end_s = self._end_s
            if end_s is None or end_s > time_s:
                return done
            self._finish(end_s, done)
            end_s = None

    def _begin(self) -> None:
        """Settle what the next segment is and when it ends."""
        self._segment_iterations = self._decoded = 0
        if self._interrupts and self._begin_pause():
            return
        waiting, running = self._waiting, self._running
        if not running:
            if not waiting:
                return
            if waiting[0].arrival_s > self.now_s:
                self.now_s = waiting[0].arrival_s
        timing = self._timing
        context = self._context_at_zero + self._iteration * self._tokens_per_iteration
        kv = context + self._held + len(running) * timing.tokens_per_sequence
        if kv > timing.kv_capacity_tokens:
            kv = self._evict(kv)
        while self._loading and (loaded_s := self._loading[0].loaded_s) is not None and loaded_s <= self.now_s:
            self._loading[0].loaded_s = None
            self._prefilling.append(self._loading.popleft())
        # As in vLLM V1 a waiting prompt that fits joins the next iteration: no segment of decoding runs past it.
        if self._prefilling or (
            waiting
            and waiting[0].arrival_s <= self.now_s
            and len(running) < timing.max_sequences
            and kv + self._kv_of(waiting[0]) <= timing.kv_capacity_tokens
        ):
            self._begin_prefill(kv)
        else:
            self._begin_segment(kv)

    def _begin_prefill(self, kv: float) -> None:
        """Start one iteration that prefills within the token budget."""
        timing = self._timing
        waiting = len(self._prefilling) + len(self._loading)
        decoding = len(self._running) - waiting if timing.chunked_prefill else 0
        budget = timing.max_batched_tokens - decoding * timing.tokens_per_sequence
        tokens, behind_s = 0, 0.0
        for sequence in self._prefilling:
            chunk = timing.chunk(sequence.prefill_left, tokens, budget)
            if not chunk:
                break
            start = sequence.prefill_end - sequence.prefill_left
            behind_s += timing.behind(start + chunk) - timing.behind(start)
            self.counters.prefill_squares += (2 * start + chunk) * chunk
            sequence.prefill_left -= chunk
            tokens += chunk
            if not sequence.prefill_left:
                self._prefilled.append(sequence)
        # New ones are admitted only behind prompts that are through: admission is in the order of submission.
        if len(self._prefilled) == len(self._prefilling):
            tokens, kv, behind_s = self._admit(tokens, budget, kv, behind_s)
        if kv > self.peak_kv_tokens:
            self.peak_kv_tokens = kv
        if not tokens:  # whoever was admitted loads
            self._begin_segment(kv)
            return
        # behind_s is negative for the first tokens of long prompts; no prefill gives time back.
        added_s = seconds = max(0.0, timing.prefill(decoding, tokens) + behind_s)
        if not timing.chunked_prefill:
            added_s = seconds = max(added_s, self.cache.link_free_s - self.now_s)
        if decoding:
            context = (self._context_at_zero + self._iteration * self._tokens_per_iteration) / decoding
            seconds += timing.decode(decoding, context)
            self.counters.count(decoding, 1, context)
            self._decoded = 1
        self.counters.prefill(tokens, added_s)
        self._end_s = self.now_s + seconds

    def _admit(self, tokens: int, budget: int, kv: float, behind_s: float) -> tuple[int, float, float]:
        """Admit waiting sequences in order while budget, slots and KV cache last; tokens, KV tokens and seconds behind
        contexts so far."""
        waiting, running, residents, timing = self._waiting, self._running, self._residents, self._timing
        capacity, per_sequence, cache = timing.kv_capacity_tokens, timing.tokens_per_sequence, self.cache
        while waiting and len(running) < timing.max_sequences and waiting[0].arrival_s <= self.now_s:
            sequence = waiting[0]
            others = residents.get(sequence.group, 0) if self._sharing else 0
            need = 0 if others else sequence.prompt
            held = need + (sequence.history + (sequence.done + sequence.resumed) * sequence.tokens_per_iteration)
            need += (own := sequence.history + (sequence.generated() if sequence.resumed else 0))
            resident = sequence.prompt if others else 0
            if cache.tokens:
                need -= cache.found(sequence.id, resident)
            if self.decodes_alone and not sequence.resumed:
                need = 1  # what it begins with was prefilled elsewhere
            sequence.prefill_end = end = sequence.prompt + own
            loaded = self._worth_loading(sequence, resident, need) if cache.below.tokens else 0
            apart = loaded and timing.chunked_prefill and not self._is_here(sequence.id, loaded)
            chunk = 0 if apart else timing.chunk(need - loaded or 1, tokens, budget)
            # The first that does not fit blocks all behind it, as in vLLM: nobody overtakes.
            if not (chunk or apart) or kv + held + per_sequence > capacity:
                break
            kv += held + per_sequence
            tokens += chunk
            waiting.popleft()
            self._held += held
            self._waiting_prompts -= sequence.prompt + sequence.history
            if cache.tokens or cache.below.tokens:
                cache.take(sequence.id, self.now_s, resident, loaded)
                cache.reclaim(capacity - kv)
            running[sequence] = None
            if self._sharing:
                residents[sequence.group] = others + 1
            need = need - loaded or 1
            sequence.prefill_left = need - chunk
            if apart:
                sequence.loaded_s = cache.link_free_s
                self._loading.append(sequence)
                continue
            start = end - need
            behind_s += timing.behind(start + chunk) - timing.behind(start)
            self.counters.prefill_squares += (2 * start + chunk) * chunk
            self._prefilling.append(sequence)
            if not sequence.prefill_left:
                self._prefilled.append(sequence)
        return tokens, kv, behind_s

    def _worth_loading(self, sequence: RunningRequest, resident: int, need: int) -> int:
        """Tokens of ``need`` that the tier below has, where it brings them sooner than they are prefilled alone."""
        timing, tokens = self._timing, self.cache.found_below(sequence.id, resident)
        if not tokens:
            return 0
        start, rest = sequence.prefill_end - need, need - tokens
        again_s = timing.prefill(0, need) - timing.prefill(0, rest) + timing.behind(start + tokens)
        again_s -= timing.behind(start)
        return tokens if self.cache.loaded_s(sequence.id, self.now_s, tokens) - self.now_s < again_s else 0

    def _is_here(self, sample: int, tokens: int) -> bool:
        """Whether so many tokens were fetched while the environment worked."""
        return self.cache.prefetches and self.cache.loaded_s(sample, self.now_s, tokens) <= self.now_s

    def _begin_segment(self, kv: float) -> None:
        """Find how many iterations pass before the membership changes, and when the last of them ends."""
        timing = self._timing
        decoding = len(self._running) - len(self._loading)
        loaded_s = self._loading[0].loaded_s if self._loading else None
        if loaded_s is not None and (not decoding or loaded_s <= self.now_s):
            self._end_s = loaded_s
            return
        heap, growth, iteration = self._heap, self._tokens_per_iteration, self._iteration
        while heap[0][2].heap_key != heap[0][1]:
            heappop(heap)
        # Nothing changes before the next completion, unless the cache is full first.
        count = heap[0][0] - iteration
        spare = timing.kv_capacity_tokens - kv
        if count * growth > spare:
            # One iteration more than fits: it is the one that finds the cache full and evicts.
            count = min(count, int(spare / growth) + 1)
        context = (self._context_at_zero + iteration * growth) / decoding
        seconds = timing.segment(decoding, context, growth / decoding, count)
        self._segment_iterations = self._decoded = count
        self._end_s = self.now_s + seconds
        if self._interrupts:
            self._end_early(self._interrupts[0][0])
        if loaded_s is not None:
            self._end_early(loaded_s)
        waiting = self._waiting
        if waiting and waiting[0].arrival_s > self.now_s and len(self._running) < timing.max_sequences:
            self._end_early(waiting[0].arrival_s)

    def _end_early(self, time_s: float) -> None:
        """End a segment of decoding with the iteration that is in progress at ``time_s``."""
        end_s = self._end_s
        if not self._segment_iterations or end_s is None or time_s >= end_s:
            return
        # Nothing has begun yet: the segment is settled again, with whoever came meanwhile.
        if time_s <= self.now_s:
            self._end_s = None
            return
        decoding = len(self._running) - len(self._loading)
        context = (self._context_at_zero + self._iteration * self._tokens_per_iteration) / decoding
        count, seconds = self._timing.iterations_until(
            time_s - self.now_s,
            decoding,
            context,
            self._tokens_per_iteration / decoding,
            (self._segment_iterations, end_s - self.now_s),
        )
        self._segment_iterations = self._decoded = count
        self._end_s = self.now_s + seconds

    def _finish(self, end_s: float, done: list[tuple[float, int]]) -> None:
        """Book the segment that ends at ``end_s``."""
        count = self._segment_iterations
        if count:
            growth, decoding = self._tokens_per_iteration, len(self._running) - len(self._loading)
            # The cache is fullest at the last iteration of a segment; the mean context lies half of the growth before.
            last = self._context_at_zero + (self._iteration + count - 1) * growth
            kv = last + self._held + len(self._running) * self._timing.tokens_per_sequence
            if kv > self.peak_kv_tokens:
                self.peak_kv_tokens = kv
            counters = self.counters
            counters.iterations_at[decoding] += count
            counters.context_at[decoding] += count * (last - 0.5 * (count - 1) * growth) / decoding
            if self.cache.tokens:
                self.cache.reclaim(self._timing.kv_capacity_tokens - kv)
        self.emitted.generated_tokens += self._decoded * self._tokens_per_iteration
        self._iteration += self._decoded
        self.now_s = end_s
        self._end_s = None
        self._segment_iterations = 0
        heap, iteration = self._heap, self._iteration
        while heap and heap[0][0] <= iteration:
            _, ticket, sequence = heappop(heap)
            if sequence.heap_key == ticket:
                self._leave_decoding(sequence)
                self._remove(sequence)
                done.append((end_s, sequence.id))
        if self._prefilled:
            self._start_decoding(end_s, done)

    def _start_decoding(self, end_s: float, done: list[tuple[float, int]]) -> None:
        iteration = self._iteration
        for sequence in self._prefilled:
            self._prefilling.popleft()
            self._held -= sequence.history + (sequence.done + sequence.resumed) * sequence.tokens_per_iteration
            # Prefill emits the first token of a response; of an evicted one it stands for one decode iteration.
            self.emitted.generated_tokens += sequence.tokens_per_iteration if sequence.resumed else 1.0
            sequence.done += sequence.resumed
            sequence.resumed = True
            if sequence.done >= sequence.total:
                self._remove(sequence)
                done.append((end_s, sequence.id))
                continue
            # Extrapolated back to iteration 0, so that contexts of all sequences grow in one sum with the iteration.
            base = sequence.prompt + sequence.history + (sequence.done - iteration) * sequence.tokens_per_iteration
            sequence.context_at_zero = base
            self._context_at_zero += base
            self._tokens_per_iteration += sequence.tokens_per_iteration
            self._held -= sequence.prompt
            self._heap_keys += 1
            sequence.heap_key = self._heap_keys
            sequence.last_iteration = iteration + sequence.total - sequence.done
            heappush(self._heap, (sequence.last_iteration, self._heap_keys, sequence))
        self._prefilled.clear()

    def _begin_pause(self) -> bool:
        """Start a pause that is due, if any; an idle replica first serves those due before its next arrival."""
        time_s, duration_s, action = self._interrupts[0]
        due_s = self.now_s
        if not self._running:
            if not self._waiting:
                return False
            due_s = max(due_s, self._waiting[0].arrival_s)  # an idle replica begins with it
        if time_s > due_s:
            return False
        self._interrupts.popleft()
        if action == "cancel":
            self._cancel()
        elif action == "give":
            self.on_give(due_s)
        elif action != "keep":
            # New weights: what is cached was computed with the old ones.
            self.cache.clear()
            if action == "restart":
                self._forget()
            self._prefill_again()
        waits = action == "keep" or bool(self._running)  # nobody is late for having been aborted where nobody was
        self._end_s = max(self.now_s, time_s) + (duration_s if waits else 0.0)
        return True
