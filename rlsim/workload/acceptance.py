"""The acceptance process: how many tokens a verification emits, and how many verifications a response takes.

A chain of k drafted tokens is verified at once. Position i survives in a share P_i of the verifications (cumulative,
P_1 >= ... >= P_k), so a verification emits X = 1 + #accepted tokens with P(X > i) = P_i: the accepted ones and the
bonus or recovered token. Verifications are independent given the sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.errors import InputError
from rlsim.schema.speculation import LOOKUP_METHODS, Speculation, Variation
from rlsim.units import FloatArray, IntArray, distinct

EXACT_BELOW_ITERATIONS = 128
"""Expected verifications up to which :func:`iterations_needed` samples each one; above, the renewal limit is used."""

PROCESSES_KEPT = 256
"""Acceptance processes cached per process; all steps and replications of a scenario ask for the same."""


class Acceptance(Struct, frozen=True, eq=False):
    """Distribution of the tokens of one verification.

    position_rates: P_1..P_k, shape (k,), non-increasing in 0..1; empty without speculation.
    """

    position_rates: FloatArray

    @property
    def draft_length(self) -> int:
        """k, drafted tokens per verification."""
        return int(self.position_rates.size)

    @property
    def mean(self) -> float:
        """Acceptance length: mean tokens per verification with the bonus token, 1 + sum of P_i."""
        return float(1.0 + self.position_rates.sum())

    @property
    def second_moment(self) -> float:
        """E[X^2] = 1 + sum of (2 i + 1) P_i."""
        i = np.arange(1, self.draft_length + 1)
        return float(1.0 + ((2 * i + 1) * self.position_rates).sum())

    @property
    def third_moment(self) -> float:
        """E[X^3] = 1 + sum of (3 i^2 + 3 i + 1) P_i."""
        i = np.arange(1, self.draft_length + 1)
        return 1.0 + float(((3 * i * i + 3 * i + 1) * self.position_rates).sum())

    @property
    def variance(self) -> float:
        """Variance of the tokens of one verification."""
        return max(0.0, self.second_moment - self.mean**2)

    @property
    def conditional(self) -> FloatArray:
        """a_i = P_i / P_(i-1), shape (k,); 0 where nothing was left to accept."""
        before = np.concatenate(([1.0], self.position_rates[:-1]))
        rates: FloatArray = np.divide(self.position_rates, before, out=np.zeros(self.draft_length), where=before > 0)
        return rates

    def moved(self, logits: float) -> Acceptance:
        """The process with the logit of every conditional acceptance moved; rates of 0 and 1 stay."""
        return self if logits == 0.0 else Acceptance(moved_rates(self, np.array([logits]))[0])

    def drafting(self, draft_length: int) -> Acceptance:
        """The process with the first ``draft_length`` positions alone."""
        return Acceptance(self.position_rates[:draft_length])


def moved_rates(acceptance: Acceptance, logits: FloatArray) -> FloatArray:
    """P_1..P_k with the logit of each conditional acceptance moved, for every one of ``logits``; shape (n, k)."""
    rates = np.clip(acceptance.conditional, 0.0, 1.0)
    odds = np.exp(logits)[:, None] * rates
    return np.cumprod(odds / (odds + (1.0 - rates)), axis=1, dtype=np.float64)


class DraftPlan(Struct, frozen=True):
    """Draft lengths that follow the live batch, as the places of a response meet them.

    until_tokens: ends of stretches of a response, rising; drafted: tokens drafted within each. lengths: tokens of a
    verification of 0..k drafted tokens, mean over all samples. Counts stay those of verifications of k tokens, of which
    lengths[k] / lengths[j] stand for one of j; a plan says how samples differ from each other in them.
    """

    until_tokens: tuple[float, ...]
    drafted: tuple[int, ...]
    lengths: tuple[float, ...]


class SampleMoves(Struct, frozen=True, eq=False):
    """Where each sample's acceptance lies, in the logit: ``start`` at its first token, ``per_token`` more at each.

    plan: what is drafted at each place; None for all tokens everywhere. by_done: more by the number of samples of the
    same ``group`` that are shorter than a place, and so done where all start together and go at one pace.
    """

    start: FloatArray
    per_token: float = 0.0
    plan: DraftPlan | None = None
    group: IntArray | None = None
    by_done: FloatArray | None = None

    def at(self, lengths: IntArray, places: FloatArray) -> FloatArray:
        """Moves of samples of ``lengths`` at tokens of their responses; shape of ``places``, a row for each."""
        logits: FloatArray = self.start[:, None] + self.per_token * places
        if self.group is None or self.by_done is None:
            return logits
        stride = int(lengths.max(initial=0)) + 2
        first, keys = self.group * stride, np.sort(self.group * stride + lengths)
        done = np.searchsorted(keys, first[:, None] + places) - np.searchsorted(keys, first)[:, None]
        logits += self.by_done[np.minimum(done, self.by_done.size - 1)]
        return logits


def two_parameter_rates(first: float, decay: float, draft_length: int) -> FloatArray:
    """Cumulative rates of conditional acceptances a_i = first * decay^(i-1), shape (draft_length,).

    The form reproduces published series of acceptance lengths over k within 0.02 (vLLM pull request 20780,
    NVIDIA arXiv:2604.26779); a constant acceptance (decay 1, Leviathan et al. arXiv:2211.17192) does not.

    >>> [round(1 + float(two_parameter_rates(0.886, 0.985, k).sum()), 2) for k in (3, 5, 7)]
    [3.32, 4.36, 5.05]
    """
    return np.cumprod(first * np.power(decay, np.arange(draft_length)), dtype=np.float64)


def solve_rates(acceptance_length: float, decay: float, draft_length: int) -> FloatArray:
    """Rates of the two-parameter form whose acceptance length is the given one.

    The first acceptance is solved for. Where even 1 is too little with this decay, it stays 1 and the decay moves
    towards 1; acceptance_length = k + 1 gives ones. Range 1 <= acceptance_length <= k + 1, else InputError.
    """
    k = draft_length
    if not 1 <= acceptance_length <= k + 1 + 1e-9:
        raise InputError(
            f"speculation.acceptance_length must lie between 1 and draft_length + 1 = {k + 1}; "
            f"got {acceptance_length:g}"
        )
    target = acceptance_length - 1
    if two_parameter_rates(1.0, decay, k).sum() >= target:
        return two_parameter_rates(_bisect(lambda a: two_parameter_rates(a, decay, k).sum() - target), decay, k)
    return two_parameter_rates(1.0, _bisect(lambda d: two_parameter_rates(1.0, d, k).sum() - target), k)


@lru_cache(maxsize=PROCESSES_KEPT)
def acceptance_of(speculation: Speculation) -> Acceptance:
    """Acceptance process of a schema section; one token per iteration where nothing is drafted.

    n-gram and suffix drafting propose in a share m = match_probability of the iterations and emit one token in the
    others. Their acceptance_length is the mean over *all* iterations; position_acceptance and first_acceptance hold
    for the iterations with a proposal, as engines count them, and are scaled by m. Raises InputError where matched
    iterations would have to emit more than k + 1 tokens.
    """
    k, decay = speculation.draft_length, speculation.acceptance_decay
    if not speculation.active:
        return Acceptance(np.zeros(0))
    match = speculation.match_probability if speculation.method in LOOKUP_METHODS else 1.0
    if speculation.position_acceptance is not None:
        given = np.asarray(speculation.position_acceptance, dtype=np.float64)
        return Acceptance(match * _continued(given, k, decay))
    if speculation.first_acceptance is not None:
        return Acceptance(match * two_parameter_rates(speculation.first_acceptance, decay, k))
    length, stated_k = speculation.acceptance_length or 1.0, speculation.acceptance_draft_length
    if length - 1 > match * stated_k * (1 + 1e-12):
        raise InputError(
            f"speculation.acceptance_length {length:g} over all iterations is out of reach: with match_probability "
            f"{match:g} and draft_length {stated_k} it can be at most {1 + match * stated_k:g}"
        )
    matched = 1 + (length - 1) / match if match else 1.0
    rates = solve_rates(min(matched, stated_k + 1.0), decay, stated_k)
    if k > stated_k > 1 and rates[0] > 0:
        last = Acceptance(rates).conditional[-2:]
        decay = float(last[1] / last[0]) if last[0] > 0 else decay
    return Acceptance(match * _continued(rates, k, decay))


def _continued(rates: FloatArray, draft_length: int, decay: float) -> FloatArray:
    """Cumulative rates of the first ``draft_length`` positions; beyond ``rates`` with a_(i+1) = a_i decay."""
    if draft_length <= rates.size:
        return rates[:draft_length]
    conditional = Acceptance(rates).conditional[-1] * decay ** np.arange(1, draft_length - rates.size + 1)
    return np.concatenate([rates, rates[-1] * np.cumprod(conditional)])


def iterations_needed(
    lengths: IntArray, acceptance: Acceptance, rng: np.random.Generator, moves: SampleMoves | None = None
) -> IntArray:
    """Verifications until at least ``lengths`` tokens are out, per sequence; shape of ``lengths``.

    Up to EXACT_BELOW_ITERATIONS expected verifications every one is sampled. Above, the count is normal with the mean
    (L + E[overshoot]) / mu of Wald's identity and the variance (sigma^2 E[N] + Var[overshoot]) / mu^2, both of which
    differ from the exact ones by O(1); by Berry and Esseen the distribution differs by less than
    0.48 rho / (sigma^3 sqrt(N)). Without drafting the count is L itself.

    moves: of samples whose acceptance differs. Along a response 1 / mu is then a mean over its places; of those short
    enough to be sampled one by one, every verification has the acceptance of the middle.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    rates = acceptance.position_rates
    if not rates.size or rates[0] == 0.0:
        return lengths.copy()
    normals = rng.standard_normal(lengths.size)
    if acceptance.variance < 1e-12:
        return -(-lengths // round(acceptance.mean))  # every verification gives as many; the last may be cut
    if moves is None:
        first, second = 1.0 + (acceptance.mean - 1.0), 1.0 + (acceptance.second_moment - 1.0)
        along = _Renewal(first, second, acceptance.third_moment)
    else:
        along = _along(lengths, acceptance, moves)
        if moves.plan is not None:
            along = _planned(lengths, acceptance, moves, moves.plan, along)
            return np.maximum(_renewal_limit(lengths, along, lengths.max(initial=1), normals), lengths > 0)
    counts = _renewal_limit(lengths, along, acceptance.draft_length, normals)
    short = np.flatnonzero(lengths <= EXACT_BELOW_ITERATIONS * along.mean)
    if moves is not None:
        rates = moved_rates(acceptance, moves.at(lengths, 0.5 * lengths[:, None].astype(np.float64))[short, 0])
    counts[short] = _sampled(lengths[short], rates, rng)
    return counts


class _Renewal(Struct, frozen=True, eq=False):
    """Tokens of a verification, of all samples or of each: mean, E[X^2], E[X^3] (at the end of its response), and over
    the response verifications per token and their variance per token, where these do not follow from the mean."""

    mean: FloatArray | float
    second: FloatArray | float
    third: FloatArray | float
    per_token: FloatArray | None = None
    variance_per_token: FloatArray | None = None


@cache
def places_of_response() -> tuple[FloatArray, FloatArray]:
    """Places of a response in 0..1 at which its acceptance is taken, and their weights (Gauss and Legendre)."""
    places, weights = np.polynomial.legendre.leggauss(4)
    return 0.5 * (1.0 + places), 0.5 * weights


LOGIT_GRID = np.linspace(-12.0, 12.0, 385)
"""Moves of the logit at which moments are prepared; linear in between, off by less than 1e-3 tokens at k = 8."""


def moments_by_logit(acceptance: Acceptance) -> tuple[FloatArray, FloatArray, FloatArray]:
    """E[X], E[X^2] and E[X^3] of a verification at every move of LOGIT_GRID."""
    rates, i = moved_rates(acceptance, LOGIT_GRID), np.arange(1, acceptance.draft_length + 1)
    return 1.0 + rates.sum(axis=1), 1.0 + rates @ (2 * i + 1), 1.0 + rates @ (3 * i * i + 3 * i + 1)


def _along(lengths: IntArray, acceptance: Acceptance, moves: SampleMoves) -> _Renewal:
    mean, second, third = moments_by_logit(acceptance)
    variance = second - mean**2
    end = moves.at(lengths, lengths[:, None].astype(np.float64))[:, 0]
    if moves.by_done is not None:
        places = moves.at(lengths, np.outer(lengths, PLANNED_PLACES))
        weights = np.full(PLANNED_PLACES.size, 1.0 / PLANNED_PLACES.size)
    elif moves.per_token == 0.0:
        places, weights = end[:, None], np.ones(1)
    else:
        parts, weights = places_of_response()
        places = moves.at(lengths, np.outer(lengths, parts))
    at, spread = (np.interp(places, LOGIT_GRID, values) for values in (mean, variance))
    mean, second, third = (np.interp(end, LOGIT_GRID, values) for values in (mean, second, third))
    return _Renewal(mean, second, third, (1.0 / at) @ weights, (spread / at**3) @ weights)


PLANNED_PLACES = (np.arange(32) + 0.5) / 32
"""Places of a response at which a plan, or what of its group is done, is looked up."""


def _planned(
    lengths: IntArray, acceptance: Acceptance, moves: SampleMoves, plan: DraftPlan, along: _Renewal
) -> _Renewal:
    """:func:`_along` where what is drafted changes along a response; ends of responses as without a plan."""
    places = np.outer(lengths, PLANNED_PLACES)
    logits = moves.at(lengths, places)
    stretch = np.minimum(np.searchsorted(plan.until_tokens, places), len(plan.drafted) - 1)
    drafted = np.asarray(plan.drafted)[stretch]
    per_token, variance = np.empty(places.shape), np.empty(places.shape)
    for length in distinct(drafted).tolist():
        here = drafted == length
        mean, second, _ = moments_by_logit(acceptance.drafting(length))
        own = np.interp(logits[here], LOGIT_GRID, mean)
        worth = plan.lengths[length] / plan.lengths[-1]
        per_token[here] = worth / own
        variance[here] = worth**2 * np.interp(logits[here], LOGIT_GRID, second - mean**2) / own**3
    return replace(along, per_token=per_token.mean(axis=1), variance_per_token=variance.mean(axis=1))


def _renewal_limit(lengths: IntArray, renewal: _Renewal, draft_length: int, normals: FloatArray) -> IntArray:
    mean, second, third = renewal.mean, renewal.second, renewal.third
    overshoot = (second - mean) / (2 * mean)
    overshoot_square = (2 * third - 3 * second + mean) / (6 * mean)
    if renewal.per_token is None or renewal.variance_per_token is None:
        expected = (lengths + overshoot) / mean
        variance = ((second - mean**2) * expected + overshoot_square - overshoot**2) / mean**2
    else:
        expected = lengths * renewal.per_token + overshoot / mean
        own = (second - mean**2) * overshoot / mean + overshoot_square - overshoot**2
        variance = lengths * renewal.variance_per_token + own / mean**2
    counts = np.rint(expected + np.sqrt(np.maximum(variance, 0.0)) * normals)
    fewest = -(-lengths // (draft_length + 1))  # the normal tail must not promise more than k + 1 tokens each
    return np.clip(counts, fewest, lengths).astype(np.int64)


def _sampled(lengths: IntArray, rates: FloatArray, rng: np.random.Generator) -> IntArray:
    """Verifications one by one; rates of shape (k,), or (samples, k) where they differ."""
    counts = np.zeros(lengths.size, dtype=np.int64)
    remaining = lengths.astype(np.int32)
    active = np.flatnonzero(remaining > 0)
    mean = 1.0 + float(rates.sum(axis=-1).mean()) if lengths.size else 1.0
    while active.size:
        chunk = max(4, int(np.max(remaining[active]) / mean) + 1)  # 4: few rounds for few stragglers
        uniform = rng.random((active.size, chunk))
        emitted = np.ones(uniform.shape, dtype=np.int16)
        own = rates if rates.ndim == 1 else rates[active].T[:, :, None]
        for rate in own:
            emitted += uniform < rate
        total = np.cumsum(emitted, axis=1, dtype=np.int32)
        reached = total >= remaining[active, None]
        counts[active] += np.where(reached[:, -1], reached.argmax(axis=1) + 1, chunk)
        remaining[active] -= total[:, -1]
        active = active[remaining[active] > 0]
    return counts


def _bisect(function: Callable[[float], float]) -> float:
    """Root in 0..1 of an increasing function, to the last bit but a few."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return high


CALIBRATED_KEPT = 4096


@cache
def standing_scores() -> tuple[FloatArray, FloatArray]:
    """Normal scores at which samples stand for all, and their weights (Gauss and Hermite)."""
    return np.polynomial.hermite_e.hermegauss(24)


def spread_of(variation: Variation) -> float:
    """Standard deviation of the logit over samples."""
    return math.hypot(variation.prompt_spread, variation.sample_spread)


def moves_of(
    variation: Variation, acceptance: Acceptance, prompt_scores: FloatArray, own_scores: FloatArray, lengths: FloatArray
) -> SampleMoves:
    """Moves of samples by their normal scores; lengths: of responses that are equally likely, in tokens."""
    per_token = variation.trend_per_1k_tokens / 1000.0
    rates = tuple(acceptance.position_rates.tolist())
    reach = tuple(lengths.tolist()) if per_token else (1.0,)
    common = common_move(rates, spread_of(variation), per_token, reach)
    start = common + variation.prompt_spread * prompt_scores + variation.sample_spread * own_scores
    return SampleMoves(start, per_token)


@lru_cache(maxsize=CALIBRATED_KEPT)
def common_move(rates: tuple[float, ...], spread: float, per_token: float, lengths: tuple[float, ...]) -> float:
    """The move m above. rates: P_1..P_k as stated. 0 where no rate can move, as all are 0 or 1."""
    acceptance = Acceptance(np.asarray(rates))
    conditional = acceptance.conditional
    if not ((conditional > 0) & (conditional < 1)).any():
        return 0.0
    means, tokens = moments_by_logit(acceptance)[0], np.asarray(lengths)
    (places, place_weights), (scores, score_weights) = places_of_response(), standing_scores()
    along = per_token * np.outer(tokens, places) if per_token else np.zeros((tokens.size, places.size))
    moves = spread * scores[:, None, None] + along[None, :, :]
    of_scores, of_tokens = score_weights / score_weights.sum(), tokens / tokens.sum()
    weights = of_scores[:, None, None] * of_tokens[None, :, None] * place_weights

    from scipy.optimize import brentq  # a third of a second of import, which scenarios without a spread are spared

    def too_many(common: float) -> float:
        return float((weights / np.interp(common + moves, LOGIT_GRID, means)).sum()) - 1.0 / acceptance.mean

    low, high = float(LOGIT_GRID[0]), float(LOGIT_GRID[-1])
    if too_many(low) <= 0.0 or too_many(high) >= 0.0:
        raise InputError(
            "speculation.variation spreads acceptance so far that no mean gives the stated one; lower prompt_spread, "
            "sample_spread or trend_per_1k_tokens"
        )
    return float(brentq(too_many, low, high, xtol=1e-9))
