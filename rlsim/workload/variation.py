"""Acceptance that differs between samples and along a response, with the stated mean over verifications.

Of a sample with normal score z, token x of its response is accepted with the logit of every conditional acceptance
moved by m + s z + b x. The common move m is the one at which all tokens over all verifications, in expectation over
scores and lengths, give the stated acceptance length:

    E[L] / E[integral of dx / mu(m + s z + b x) over 0..L] = acceptance length.

Scores are independent of lengths.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from rlsim.errors import InputError
from rlsim.schema.acceptance import Variation
from rlsim.units import FloatArray
from rlsim.workload.acceptance import LOGIT_GRID, PLACE_WEIGHTS, PLACES, Acceptance, SampleMoves, moments_by_logit

SCORES, SCORE_WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
"""Normal scores at which samples stand for all, and their weights (Gauss and Hermite)."""
CALIBRATED_KEPT = 4096


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
    means, _, _ = moments_by_logit(acceptance)
    tokens = np.asarray(lengths)
    along = per_token * np.outer(tokens, 0.5 * (1.0 + PLACES)) if per_token else np.zeros((tokens.size, PLACES.size))
    moves = spread * SCORES[:, None, None] + along[None, :, :]
    score_weights = SCORE_WEIGHTS / SCORE_WEIGHTS.sum()
    weights = score_weights[:, None, None] * (tokens / tokens.sum())[None, :, None] * (0.5 * PLACE_WEIGHTS)

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
