"""What drafts of every length are worth to an engine that chooses among them."""

from __future__ import annotations

import numpy as np

from rlsim.schema.speculation import Speculation
from rlsim.schema.workload import Workload
from rlsim.units import FloatArray, IntArray
from rlsim.workload.acceptance import DraftPlan, moved_rates
from rlsim.workload.acceptance_steps import acceptance_at
from rlsim.workload.batches import expected_response_tokens, likely_lengths, likely_moves
from rlsim.workload.variation import SCORE_WEIGHTS, SCORES, spread_of

Kinds = tuple[tuple[float, tuple[float, ...]], ...]
LEAST_WEIGHT = 1e-6
"""Of a kind of requests; rarer ones are left out."""


def draft_outlook(speculation: Speculation, workload: Workload, step: int) -> tuple[tuple[float, ...], Kinds]:
    """Tokens of a verification of 0..k drafted tokens in training step ``step``, and kinds of requests.

    A kind is (share of verifications of k tokens, P_1..P_k), in the middle of a response of mean length. Means are over
    verifications: as many tokens of every kind over all their verifications.
    """
    acceptance, variation = acceptance_at(speculation, step), speculation.variation
    rates, weights = acceptance.position_rates[None, :], np.ones(1)
    if variation is not None:
        kept = SCORE_WEIGHTS / SCORE_WEIGHTS.sum() > LEAST_WEIGHT
        moves = likely_moves(workload, variation, acceptance)
        middle = moves.per_token * 0.5 * expected_response_tokens(workload)
        rates = moved_rates(acceptance, moves.start + middle + spread_of(variation) * SCORES[kept])
        weights = SCORE_WEIGHTS[kept] / SCORE_WEIGHTS[kept].sum()
    tokens = 1.0 + np.concatenate((np.zeros((len(rates), 1)), np.cumsum(rates, axis=1)), axis=1)
    lengths: FloatArray = 1.0 / (weights @ (1.0 / tokens))
    shares = weights / tokens[:, -1] * lengths[-1]
    kinds = tuple((float(share), tuple(rate.tolist())) for share, rate in zip(shares, rates, strict=True))
    return tuple(lengths.tolist()), kinds


def draft_plan(
    workload: Workload, lengths: tuple[float, ...], drafted_at: IntArray, sequences: float, draining: bool
) -> DraftPlan:
    """What the places of a response meet when live sequences n draft ``drafted_at[n]`` tokens.

    sequences: that a replica is given at once. draining: whether they start together, so that at token x those with
    longer responses are left; else that many run at any time. Sequences that queue count as running.
    """
    if not draining:
        live = min(round(sequences), len(drafted_at) - 1)
        return DraftPlan((0.0,), (int(drafted_at[live]),), lengths)
    tokens = np.sort(likely_lengths(workload))
    left = np.clip(np.rint(sequences * (1.0 - np.arange(tokens.size) / tokens.size)), 1, len(drafted_at) - 1)
    drafted = drafted_at[left.astype(np.int64)]
    return DraftPlan(tuple(tokens.tolist()), tuple(drafted.tolist()), lengths)
