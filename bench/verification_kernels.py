"""Triton kernels of the fused verification; bench/fused_verification.py launches them. Needs triton.

Every random number is a word of Philox4x32-10 (Salmon et al. 2011) with the seed as its key. The counter is (index in
the row, sequence, call, purpose), so that no two numbers of 2^31 calls share a counter, whatever the size of the batch.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"

import triton
import triton.language as tl

STATISTICS_BLOCK = tl.constexpr(4096)
"""Logits of a row that one program reads at once: 16 for each of 256 threads."""
RACE_BLOCK = tl.constexpr(512)
"""Values that race at once; each call of Philox gives words for four such blocks."""
RACE_SPAN = tl.constexpr(4 * 512)
POSITIONS, PARTS = tl.constexpr(8), tl.constexpr(128)
"""Most rows of a sequence and most splits of a row; blocks have to be powers of two. True numbers of both are no
constants of the compiler, so that one compiled kernel serves all batches and draft lengths.
"""
LOWEST = tl.constexpr(-3.0e38)
"""Below every logit and finite: the difference of two of them is a number."""
FAR = tl.constexpr(2147483647)
"""Above every index."""
RACE, ACCEPTANCE = tl.constexpr(0), tl.constexpr(1)
"""Purposes of random numbers."""
ONE_HOT, SAME, MAPPED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""Draft: its token is certain; a distribution over the target's vocabulary; one over a vocabulary of its own."""
NO_DRAFT = tl.constexpr(3)


@triton.jit(do_not_specialize=["splits"])
def row_statistics(logits, partial_max, partial_sum, state, temperature, vocabulary, span, splits):
    """Maximum, and sum of exponentials below it, of the scaled logits in one split of one row; counts the call.

    Every lane has a maximum and a sum of its own, which are merged once at the end: a reduction over the block at every
    step would make all warps wait. One exponential a logit is enough, since the larger of the old maximum and the new
    value contributes exactly 1.
    """
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, STATISTICS_BLOCK)
    top = tl.full([STATISTICS_BLOCK], LOWEST, tl.float32)
    total = tl.zeros([STATISTICS_BLOCK], tl.float32)
    for start in range(split * span, tl.minimum(split * span + span, vocabulary), STATISTICS_BLOCK):
        at = start + lane
        value = tl.load(logits + row * vocabulary + at, mask=at < vocabulary, other=float("-inf"))
        value = value.to(tl.float32) / temperature
        other = tl.exp(tl.minimum(top, value) - tl.maximum(top, value))
        total = tl.where(value > top, total * other + 1.0, total + other)
        top = tl.maximum(top, value)
    highest = tl.max(top, 0)
    tl.store(partial_max + row * splits + split, highest)
    tl.store(partial_sum + row * splits + split, tl.sum(total * tl.exp(top - highest), 0))
    if (row == 0) & (split == 0):
        # Nobody reads the number of the call before the next kernel.
        tl.store(state + 1, tl.load(state + 1) + 1)


@triton.jit(do_not_specialize=["splits"])
def row_maxima(logits, partial_max, partial_token, vocabulary, span, splits):
    """First maximum of the logits in one split of one row, and where it is."""
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, STATISTICS_BLOCK)
    top = tl.full([STATISTICS_BLOCK], float("-inf"), tl.float32)
    place = tl.full([STATISTICS_BLOCK], FAR, tl.int32)
    for start in range(split * span, tl.minimum(split * span + span, vocabulary), STATISTICS_BLOCK):
        at = start + lane
        value = tl.load(logits + row * vocabulary + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32)
        place = tl.where(value > top, at, place)
        top = tl.maximum(top, value)
    highest = tl.max(top, 0)
    tl.store(partial_max + row * splits + split, highest)
    tl.store(partial_token + row * splits + split, tl.min(tl.where(top == highest, place, FAR), 0))


@triton.jit(do_not_specialize=["k", "splits"])
def greedy_decision(partial_max, partial_token, drafted, tokens, count, k, splits):
    """Accept drafted tokens as long as they are the target's first maxima, then emit the next maximum."""
    sequence = tl.program_id(0).to(tl.int64)
    position, split = tl.arange(0, POSITIONS), tl.arange(0, PARTS)
    at = (sequence * (k + 1) + position[:, None]) * splits + split[None, :]
    inside = (position < k + 1)[:, None] & (split < splits)[None, :]
    highest = tl.load(partial_max + at, mask=inside, other=float("-inf"))
    place = tl.load(partial_token + at, mask=inside, other=FAR)
    best = tl.min(tl.where(highest == tl.max(highest, 1)[:, None], place, FAR), 1)
    chosen = tl.load(drafted + sequence * k + position, mask=position < k, other=0)
    stopped = (position >= k) | (best.to(tl.int64) != chosen)
    accepted = tl.min(tl.where(stopped, position, k), 0)
    emitted = tl.where(position == accepted, best.to(tl.int64), chosen)
    tl.store(tokens + sequence * (k + 1) + position, emitted, mask=position < k + 1)
    tl.store(count + sequence, accepted.to(tl.int64) + 1)


@triton.jit
def _words(state, index, sequence, PURPOSE: tl.constexpr):  # noqa: N803
    """Four blocks of 32-bit words at the counters of ``index``."""
    seed, calls = tl.load(state), tl.load(state + 1)
    # Blocks of one shape: not every version of triton broadcasts the parts of a counter.
    zero = index.to(tl.uint32) * 0
    call = zero + (calls & 0xFFFFFFFF).to(tl.uint32)
    purpose = zero + (((calls >> 32) & 0x7FFFFFFF) * 2 + PURPOSE).to(tl.uint32)
    return tl.philox(seed, index.to(tl.uint32), zero + sequence.to(tl.uint32), call, purpose)


@triton.jit
def _exponential(word):
    """Standard exponential variable of a word: -log(1 - u), u the middle of one of 2^32 equal cells of (0, 1).

    Small values decide the race, so they need all 32 bits: 1 - u would round them to multiples of 6e-8, with ties where
    a vocabulary is large. A series serves there.
    """
    u = (word.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    series = u * (1.0 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5 + u * (1 / 6))))))
    # The last cells of (0, 1) round to 1.
    return tl.where(u < 0.0625, series, -tl.log(tl.maximum(1.0 - u, 5.9604645e-08)))


@triton.jit
def _runners(
    logit_row,
    draft_row,
    to_draft,
    at,
    vocabulary,
    temperature,
    highest,
    total,
    subtracted,
    drafted,
    DRAFT: tl.constexpr,  # noqa: N803
):
    """Weights of the tokens ``at``: max(p - q, 0) for tokens below ``subtracted``, else p."""
    inside = at < vocabulary
    value = tl.load(logit_row + at, mask=inside, other=float("-inf")).to(tl.float32) / temperature
    weight = tl.exp(value - highest) / total
    if DRAFT == ONE_HOT:
        weight = tl.where((at < subtracted) & (at == drafted), 0.0, weight)
    if DRAFT == SAME:
        weight = tl.maximum(weight - tl.load(draft_row + at, mask=at < subtracted, other=0.0), 0.0)
    if DRAFT == MAPPED:
        index = tl.load(to_draft + at, mask=at < subtracted, other=-1)
        weight = tl.maximum(weight - tl.load(draft_row + index, mask=index >= 0, other=0.0), 0.0)
    return weight


@triton.jit
def _race(
    logit_row,
    draft_row,
    to_draft,
    state,
    sequence,
    start,
    end,
    vocabulary,
    temperature,
    highest,
    total,
    subtracted,
    drafted,
    DRAFT: tl.constexpr,  # noqa: N803
):
    """Winner among the tokens from ``start`` to ``end``, and its weight over its exponential variable.

    The largest such quotient belongs to a token with probability proportional to the token's weight. Lanes have winners
    of their own until the end.
    """
    lane = tl.arange(0, RACE_BLOCK)
    best = tl.zeros([RACE_BLOCK], tl.float32)
    winner = tl.zeros([RACE_BLOCK], tl.int32)
    for base in range(start, end, RACE_SPAN):
        # Index of the counter: four tokens share one, a block apart.
        words = _words(state, base // 4 + lane, sequence, RACE)
        for part in tl.static_range(4):
            at = base + part * RACE_BLOCK + lane
            weight = _runners(
                logit_row, draft_row, to_draft, at, vocabulary, temperature, highest, total, subtracted, drafted, DRAFT
            )
            quotient = weight / _exponential(words[part])
            winner = tl.where(quotient > best, at, winner)
            best = tl.maximum(best, quotient)
    first = tl.max(best, 0)
    return first, tl.min(tl.where(best == first, winner, FAR), 0)


@triton.jit
def _rejected(
    logits, draft, to_draft, state, sequence, position, row, exists, chosen, top, total, temperature, vocabulary,
    draft_vocabulary, k, DRAFT: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Positions of one sequence whose drafted token is rejected; those that do not exist hold no numbers."""
    value = tl.load(logits + row * vocabulary + chosen, mask=exists, other=0.0).to(tl.float32) / temperature
    target_at = tl.exp(value - top) / total
    draft_at = tl.where(exists, 1.0, 0.0)
    draft_rows = (sequence * k + position) * draft_vocabulary
    if DRAFT == SAME:
        draft_at = tl.load(draft + draft_rows + chosen, mask=exists, other=1.0)
    if DRAFT == MAPPED:
        index = tl.load(to_draft + chosen, mask=exists, other=-1)
        draft_at = tl.load(draft + draft_rows + index, mask=exists & (index >= 0), other=0.0)
    word, _, _, _ = _words(state, position, sequence, ACCEPTANCE)
    # 24 bits: a value in [0, 1), whatever the rounding, so that p = q is always accepted.
    uniform = (word >> 8).to(tl.float32) * 5.9604644775390625e-08
    return uniform * draft_at >= target_at


@triton.jit(do_not_specialize=["k", "splits", "races", "draft_vocabulary"])
def decide_and_race(
    logits, partial_max, partial_sum, drafted, draft, to_draft, state, row_max, row_sum, best, winner, tokens, count,
    temperature, vocabulary, draft_vocabulary, span, k, splits, races, DRAFT: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Accepted prefix of one sequence, and the race of one of races splits of the row that follows it.

    Every split decides for itself, from the same numbers: a few loads cost less than another launch. The first writes
    the drafted tokens, the count and the statistics of the row, which the last kernel reads.
    """
    sequence, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position, part = tl.arange(0, POSITIONS), tl.arange(0, PARTS)
    row = sequence * (k + 1) + position
    present = position < k + 1
    at = row[:, None] * splits + part[None, :]
    inside = present[:, None] & (part < splits)[None, :]
    tops = tl.load(partial_max + at, mask=inside, other=LOWEST)
    top = tl.max(tops, 1)
    total = tl.sum(tl.load(partial_sum + at, mask=inside, other=0.0) * tl.exp(tops - top[:, None]), 1)
    exists = position < k
    chosen = tl.load(drafted + sequence * k + position, mask=exists, other=0)
    stopped = position >= k
    if DRAFT != NO_DRAFT:
        stopped = stopped | _rejected(
            logits, draft, to_draft, state, sequence, position, row, exists, chosen, top, total, temperature,
            vocabulary, draft_vocabulary, k, DRAFT,
        )  # fmt: skip
    accepted = tl.min(tl.where(stopped, position, k), 0)
    here = position == accepted
    highest, mass = tl.max(tl.where(here, top, LOWEST), 0), tl.sum(tl.where(here, total, 0.0), 0)
    rejected = tl.sum(tl.where(here, chosen, 0), 0)
    logit_row = logits + (sequence * (k + 1) + accepted) * vocabulary
    # After k acceptances there is no draft: nothing is subtracted, and no address behind the last row is read.
    subtracted = tl.where(accepted < k, vocabulary, 0)
    draft_row = draft + (sequence * k + tl.minimum(accepted, k - 1)) * draft_vocabulary
    start = split * span
    end = tl.minimum(start + span, vocabulary)
    first, token = _race(
        logit_row, draft_row, to_draft, state, sequence, start, end, vocabulary, temperature, highest, mass,
        subtracted, rejected, DRAFT,
    )  # fmt: skip
    tl.store(best + sequence * races + split, first)
    tl.store(winner + sequence * races + split, token)
    if split == 0:
        tl.store(tokens + row, chosen, mask=present & (position != accepted))
        tl.store(count + sequence, accepted.to(tl.int64) + 1)
        tl.store(row_max + sequence, highest)
        tl.store(row_sum + sequence, mass)


@triton.jit(do_not_specialize=["k", "races"])
def finish(
    logits,
    state,
    row_max,
    row_sum,
    best,
    winner,
    tokens,
    count,
    temperature,
    vocabulary,
    k,
    races,
):
    """Write the winner of all splits of one sequence.

    Where p and q differ by rounding alone no token has residual mass, and the row races again with p. It may use the
    same random numbers: that there is no mass does not depend on them.
    """
    sequence = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, PARTS)
    value = tl.load(best + sequence * races + split, mask=split < races, other=-1.0)
    place = tl.load(winner + sequence * races + split, mask=split < races, other=FAR)
    first = tl.max(value, 0)
    token = tl.min(tl.where(value == first, place, FAR), 0)
    last = tl.load(count + sequence) - 1
    if first <= 0.0:
        row = logits + (sequence * (k + 1) + last) * vocabulary
        _, token = _race(
            row, row, state, state, sequence, 0, vocabulary, vocabulary, temperature, tl.load(row_max + sequence),
            tl.load(row_sum + sequence), 0, 0, NO_DRAFT,
        )  # fmt: skip
    tl.store(tokens + sequence * (k + 1) + last, token.to(tl.int64))
