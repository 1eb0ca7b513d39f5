"""The acceptance of a training step: what the scenario states, moved by sampling and by the drift of its policy."""

from functools import lru_cache

import numpy as np

from rlsim.schema.speculation import MAX_LOGIT, Drift, Sampling, Speculation
from rlsim.schema.workload import Workload
from rlsim.units import FloatArray, IntArray
from rlsim.workload import acceptance as process
from rlsim.workload.acceptance import Acceptance, DraftPlan, acceptance_of, standing_scores
from rlsim.workload.batches import expected_response_tokens, likely_lengths

STEPS_KEPT = 4096


@lru_cache(maxsize=STEPS_KEPT)
def acceptance_at(speculation: Speculation, step: int) -> Acceptance:
    """Acceptance in training step ``step``, counted from 0; :func:`acceptance_of` where nothing moves it.

    Moves add up in the logit of the conditional acceptances. Raises InputError as acceptance_of does.
    """
    if speculation.sampling is None and speculation.drift is None:
        return acceptance_of(speculation)
    sampled = acceptance_of(speculation).moved(sampling_move(speculation.sampling))
    return sampled.moved(drift_move(speculation, step, sampled))


def sampling_move(sampling: Sampling | None) -> float:
    """Move of the logit from the way of sampling under which acceptance was stated to that of the rollout."""
    if sampling is None:
        return 0.0
    greedy = {"greedy": sampling.greedy_logit, "probabilistic": 0.0}
    own = (sampling.temperature_logit + greedy[sampling.draft]) * sampling.temperature
    stated = (sampling.temperature_logit + greedy[sampling.stated_draft]) * sampling.stated_temperature
    return own - stated


def drift_move(speculation: Speculation, step: int, start: Acceptance) -> float:
    """Move of the logit from step 0 to ``step``; start: the acceptance of step 0."""
    drift = speculation.drift
    if drift is None or not start.draft_length:
        return 0.0
    move = _interpolated(drift.steps, drift.logit_shift, step)
    nats = _interpolated(drift.steps, drift.entropy_change_nats, step)
    if nats != 0.0:
        # The acceptance length changes by entropy_slope for each nat, as far as 1 to k + 1 tokens allow.
        wanted = float(np.clip(start.mean + drift.entropy_slope * nats, 1.0, 1.0 + start.draft_length))
        move += move_to(start, wanted)
    move += drift.initial_deficit - mismatch_at(speculation, drift, step)
    # Moved by 10, an acceptance of 0.5 is 0.99995: further out nothing changes, and exp() of an extrapolated drift may
    # overflow.
    return float(np.clip(move, -MAX_LOGIT, MAX_LOGIT))


def mismatch_at(speculation: Speculation, drift: Drift, step: int) -> float:
    """Logit by which the draft lies below one trained in domain on the policy of ``step``.

    It grows by a hundredth of mismatch_per_100_steps with every step; each update of a draft that is trained online
    leaves 1 - online_recovery of it. With n updates of r after every m steps of growth g the rest is a geometric sum.
    """
    grown = drift.mismatch_per_100_steps / 100.0
    if not speculation.trained_online:
        return drift.initial_deficit + grown * step
    interval, remaining = speculation.online_interval_steps, 1.0 - drift.online_recovery
    updates, since = divmod(step, interval)
    left = remaining**updates
    # Without recovery the sum is the number of its terms, which the formula would divide by 0.
    summed = remaining * (1.0 - left) / (1.0 - remaining) if remaining < 1.0 else float(updates)
    return drift.initial_deficit * left + grown * interval * summed + grown * since


def _interpolated(steps: tuple[float, ...], values: tuple[float, ...], step: int) -> float:
    return float(np.interp(step, steps, values)) if values else 0.0


def move_to(acceptance: Acceptance, acceptance_length: float) -> float:
    """Move of the logit, at most MAX_LOGIT either way, that gives ``acceptance`` that acceptance length."""
    low, high = -MAX_LOGIT, MAX_LOGIT
    # 60 halvings of 20 logits leave 2e-17, less than the last bit.
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if acceptance.moved(middle).mean < acceptance_length else (low, middle)
    return 0.5 * (low + high)


Kinds = tuple[tuple[float, tuple[float, ...]], ...]
LEAST_WEIGHT = 1e-6
"""Least share of a kind of requests; rarer ones are left out."""


def draft_outlook(speculation: Speculation, workload: Workload, step: int) -> tuple[tuple[float, ...], Kinds]:
    """Tokens of a verification of 0..k drafted tokens in training step ``step``, and kinds of requests.

    A kind is (share of verifications of k tokens, P_1..P_k), in the middle of a response of mean length. Means are over
    verifications: as many tokens of every kind over all their verifications.
    """
    acceptance, variation = acceptance_at(speculation, step), speculation.variation
    rates, weights = acceptance.position_rates[None, :], np.ones(1)
    if variation is not None:
        scores, weights = standing_scores()
        likely = weights / weights.sum() > LEAST_WEIGHT
        nothing = np.zeros(1)
        moves = process.moves_of(variation, acceptance, nothing, nothing, likely_lengths(workload))
        middle = moves.per_token * 0.5 * expected_response_tokens(workload)
        rates = process.moved_rates(acceptance, moves.start + middle + process.spread_of(variation) * scores[likely])
        weights = weights[likely] / weights[likely].sum()
    tokens = 1.0 + np.concatenate((np.zeros((len(rates), 1)), np.cumsum(rates, axis=1)), axis=1)
    # A harmonic mean: the same number of tokens of each kind takes 1 / tokens verifications.
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
    # In steady state the live batch is the same at every place of a response: one stretch stands for all.
    if not draining:
        live = min(round(sequences), len(drafted_at) - 1)
        return DraftPlan((0.0,), (int(drafted_at[live]),), lengths)
    tokens = np.sort(likely_lengths(workload))
    left = np.clip(np.rint(sequences * (1.0 - np.arange(tokens.size) / tokens.size)), 1, len(drafted_at) - 1)
    drafted = drafted_at[left.astype(np.int64)]
    return DraftPlan(tuple(tokens.tolist()), tuple(drafted.tolist()), lengths)
