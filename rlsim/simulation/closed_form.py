"""Rollouts without a queue in closed form: all replicas at once, no loop over sequences or tokens.

Where every sequence of a replica fits at once, its membership after the prefill only shrinks. In iteration space
sequence i leaves with iteration J_i + N_i (J_i: the iteration that finished its prefill), so sorting these gives all
segments of equal membership, and suffix sums of contexts and growths give each segment's mean context.
"""

from __future__ import annotations

import numpy as np

from rlsim.costs.interface import EngineCounters
from rlsim.files.records import dataclass
from rlsim.simulation.iteration_times import IterationTimes
from rlsim.units import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class ReplicaBatches:
    """Samples of each replica in the order of submission; arrays of shape (replicas, most samples), padded.

    index: number of the sample, -1 for padding. Padding has prompt, growth and iterations 0.
    growth: response tokens per decode iteration. group: integer key of the prompt from 0, another one for padding.
    """

    index: IntArray
    prompt: FloatArray
    growth: FloatArray
    iterations: IntArray
    group: IntArray

    @property
    def real(self) -> BoolArray:
        """Where there is a sample."""
        return self.index >= 0


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """finish_s: shape of the batches. valid: replicas for which the closed form holds; others must be simulated.

    peak_kv_tokens: most KV cache in use on each replica.
    """

    finish_s: FloatArray
    valid: BoolArray
    peak_kv_tokens: FloatArray


@dataclass(frozen=True, eq=False)
class _Prefilled:
    """The prefill phase of all replicas.

    joined: iteration that finished each prefill, shape of the batches. last, end_s, prefill_s: each replica's last
    iteration with prefill, its end, and the seconds that prefill tokens added up to there. decoding, context, tokens:
    sequences, their mean context and prefill tokens of each iteration, shape (iterations, replicas).
    """

    joined: IntArray
    last: IntArray
    end_s: FloatArray
    prefill_s: FloatArray
    decoding: IntArray
    context: FloatArray
    tokens: IntArray


@dataclass(frozen=True, eq=False)
class _Segments:
    """Decoding from one completion to the next, in the order of completion; arrays of the shape of the batches.

    order: places in the batches, row by row. alive: sequences in the segment. iterations may be 0. context: mean at the
    start, growth: of that mean per iteration. peak_kv_tokens: per replica.
    """

    order: IntArray
    alive: IntArray
    iterations: IntArray
    context: FloatArray
    growth: FloatArray
    peak_kv_tokens: FloatArray


def closed_form(
    timing: IterationTimes, batches: ReplicaBatches, prefix_caching: bool, counters: EngineCounters
) -> ClosedForm:
    """Run every replica whose samples all fit, from submission at time 0 to its last token.

    Follows the rules of ``replica``. Not valid where samples must queue for a slot or for KV cache, where a sequence
    completes before the last prefill, and where unchunked prefill takes more than one iteration. Valid replicas are
    booked in ``counters``.
    """
    real = batches.real
    count = real.sum(axis=1)
    if count.min() > timing.max_sequences:
        return ClosedForm(np.zeros(real.shape), np.zeros(count.size, dtype=np.bool_), np.zeros(count.size))
    leaders = real & _first_of_group(batches) if prefix_caching else real
    need = np.where(leaders, batches.prompt, real).astype(np.int64)
    queue = np.cumsum(need, axis=1)
    fitting = (count > 0) & (count <= timing.max_sequences)
    if not timing.chunked_prefill:
        fitting &= queue[:, -1] <= timing.max_batched_tokens
    prefilled = _prefill(timing, batches, need, queue, fitting)
    last = np.where(real, prefilled.joined + batches.iterations, np.iinfo(np.int64).max)
    fitting &= last.min(axis=1) >= prefilled.last
    segments = _segments(timing, batches, prefilled, last, prefix_caching)
    in_prefill = np.where(leaders, batches.prompt, 0.0) + np.where(
        real, np.maximum(prefilled.last[:, None] - 1 - prefilled.joined, 0) * batches.growth, 0.0
    )
    peak = np.maximum(in_prefill.sum(axis=1) + count * timing.tokens_per_sequence, segments.peak_kv_tokens)
    valid = fitting & (peak <= timing.kv_capacity_tokens)
    _book(timing, counters, prefilled, segments, valid)
    return ClosedForm(_finish_times(timing, prefilled, segments, valid), valid, np.where(valid, peak, 0.0))


def _first_of_group(batches: ReplicaBatches) -> BoolArray:
    """Whether a sample is the first of its group on its replica."""
    return _last_places(_group_keys(batches)[:, ::-1])[:, ::-1]


def _group_keys(batches: ReplicaBatches) -> IntArray:
    """Keys of (replica, group), from 0 and few more than there are samples."""
    width, replicas = int(batches.group.max()) + 1, batches.group.shape[0]
    keys: IntArray = batches.group + width * np.arange(replicas)[:, None]
    if width * replicas <= 16 * keys.size:
        return keys
    return np.unique(keys, return_inverse=True)[1].reshape(keys.shape)


def _last_places(keys: IntArray) -> BoolArray:
    """Where the last of each key stands, in row order; of repeated indices NumPy assigns the last."""
    places = np.arange(keys.size)
    last = np.empty(int(keys.max()) + 1, dtype=np.int64)
    last[keys.ravel()] = places
    return np.asarray(last[keys.ravel()] == places).reshape(keys.shape)


class _Behind:
    """Seconds that prefill takes behind the contexts of its tokens, of each replica's first so many.

    starts: context before the first token to prefill of each sequence; need: its tokens; queue: their running sum.
    """

    def __init__(self, timing: IterationTimes, starts: IntArray, need: IntArray, queue: IntArray) -> None:
        self._known = timing.behind_all(int(starts.max() + need.max()))
        self._whole = np.zeros((len(need), need.shape[1] + 1))
        np.cumsum(self._known.take(starts + need) - self._known.take(starts), axis=1, out=self._whole[:, 1:])
        self._starts, self._need, self._queue = starts, need, queue

    def of(self, taken: IntArray, done: IntArray) -> FloatArray:
        """Seconds of the first ``taken`` tokens of each replica, which end the prefill of ``done`` sequences."""
        rows, at = np.arange(taken.size), np.minimum(done, self._starts.shape[1] - 1)
        start, before = self._starts[rows, at], self._queue[rows, at] - self._need[rows, at]
        begun = np.where(done > at, 0, taken - before)
        return np.asarray(self._whole[rows, done] + (self._known[start + begun] - self._known[start]))


def _prefill(
    timing: IterationTimes, batches: ReplicaBatches, need: IntArray, queue: IntArray, active: BoolArray
) -> _Prefilled:
    """Prefill iterations of all replicas side by side. need: tokens to prefill, the last of each prompt; queue: their
    running sum."""
    replicas = queue.shape[0]
    behind = _Behind(timing, batches.prompt.astype(np.int64) - need, need, queue)
    behind_s, waits = np.zeros(replicas), batches.real & active[:, None]
    joined = np.zeros(queue.shape, dtype=np.int64)
    last, taken, decoding = (np.zeros(replicas, dtype=np.int64) for _ in range(3))
    end_s, prefill_s, context, growth = (np.zeros(replicas) for _ in range(4))
    history: list[tuple[IntArray, FloatArray, IntArray]] = []
    total = np.where(active, queue[:, -1], 0)
    running = total > 0
    while running.any():
        last += running
        before, budget = decoding, timing.max_batched_tokens - timing.tokens_per_sequence * decoding
        tokens = np.where(running, np.minimum(budget, total - taken), 0)
        mean = context / np.maximum(decoding, 1)
        history.append((np.where(running, decoding, 0), mean, tokens))
        new = waits & (queue <= (taken + tokens)[:, None])
        waits ^= new
        decoding = decoding + new.sum(axis=1)
        done_s = behind.of(taken + tokens, decoding)
        added = np.where(running, np.maximum(timing.prefills(before, tokens) + (done_s - behind_s), 0.0), 0.0)
        behind_s = done_s
        prefill_s += added
        end_s += np.where(running, timing.decodes(before, mean), 0.0) + added
        joined += new * last[:, None]
        context += np.where(running, growth, 0.0) + (new * batches.prompt).sum(axis=1)
        growth += (new * batches.growth).sum(axis=1)
        taken = taken + tokens
        running = taken < total
    if not history:
        nothing = np.zeros((0, replicas), dtype=np.int64)
        return _Prefilled(joined, last, end_s, prefill_s, nothing, nothing.astype(np.float64), nothing)
    columns = tuple(np.stack(column) for column in zip(*history, strict=True))
    return _Prefilled(joined, last, end_s, prefill_s, *columns)


def _segments(
    timing: IterationTimes, batches: ReplicaBatches, prefilled: _Prefilled, last: IntArray, prefix_caching: bool
) -> _Segments:
    """Sort by the last iteration of each sequence and sum over those still alive."""
    real = batches.real
    order = np.argsort(last, axis=1, kind="stable") + np.arange(0, last.size, last.shape[1])[:, None]

    def ordered(values: FloatArray) -> FloatArray:
        return np.where(real, values, 0.0).take(order)

    leaves = np.where(real, last, 0).take(order)
    leaves = np.maximum.accumulate(np.maximum(leaves, prefilled.last[:, None]), axis=1)
    starts = np.concatenate((prefilled.last[:, None], leaves[:, :-1]), axis=1)
    alive = np.maximum(real.sum(axis=1)[:, None] - np.arange(last.shape[1]), 0)
    growth = _suffix_sum(ordered(batches.growth))
    lag = _suffix_sum(ordered(prefilled.joined * batches.growth))
    prompts = ordered(batches.prompt)
    prompt_sums = _suffix_sum(prompts)
    context = prompt_sums - lag + starts * growth
    if prefix_caching:
        prompt_sums = _suffix_sum(np.where(_last_places(_group_keys(batches).take(order)), prompts, 0.0))
    held = prompt_sums - lag + (leaves - 1) * growth + alive * timing.tokens_per_sequence
    iterations = np.where(alive > 0, leaves - starts, 0)
    divisor = np.maximum(alive, 1)
    return _Segments(
        order, alive, iterations, context / divisor, growth / divisor, np.where(iterations > 0, held, 0.0).max(axis=1)
    )


def _suffix_sum(values: FloatArray) -> FloatArray:
    return np.cumsum(values[:, ::-1], axis=1)[:, ::-1]


def _finish_times(timing: IterationTimes, prefilled: _Prefilled, segments: _Segments, valid: BoolArray) -> FloatArray:
    moving = (segments.iterations > 0) & valid[:, None]
    seconds = np.zeros(moving.shape)
    seconds[moving] = timing.segments(
        segments.alive[moving], segments.context[moving], segments.growth[moving], segments.iterations[moving]
    )
    times = prefilled.end_s[:, None] + np.cumsum(seconds, axis=1)
    finish_s = np.empty(times.shape)
    finish_s.put(segments.order, times)
    return finish_s


def _book(
    timing: IterationTimes, counters: EngineCounters, prefilled: _Prefilled, segments: _Segments, valid: BoolArray
) -> None:
    decoding, tokens = prefilled.decoding[:, valid], prefilled.tokens[:, valid]
    counters.count_all(decoding, (decoding > 0).astype(np.int64), prefilled.context[:, valid])
    counters.prefill_iterations += int((tokens > 0).sum())
    counters.prefill_tokens += int(tokens.sum())
    counters.prefill_s += float(prefilled.prefill_s[valid].sum())
    count = segments.iterations[valid]
    mean = segments.context[valid] + 0.5 * (count - 1) * segments.growth[valid]
    counters.count_all(segments.alive[valid], count, mean)
