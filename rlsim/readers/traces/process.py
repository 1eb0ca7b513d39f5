"""The process of ``workload.agent`` that trajectories are draws of: distributions of turns, lengths and environment
times, what trajectories of a prompt and turns of a trajectory share of them, and how far draws of it are from them.

Every trajectory weighs as much, however many turns it has, since the process draws lengths alike for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from rlsim.readers.traces.requests import group_numbers
from rlsim.readers.traces.trajectories import Trajectory
from rlsim.readers.traces.workload import CLOSE, LEAST_SIGMA, MOST_SIGMA, TOLD, cap_of, quantile_table
from rlsim.schema.workload import Workload
from rlsim.units import BoolArray, FloatArray, IntArray
from rlsim.workload.batches import Generated, draw_rollouts
from rlsim.workload.lengths import Place
from rlsim.workload.lognormal import limited_lognormal_mean

ROUNDS = 40
"""Of expectation and maximisation of a censored lognormal."""
FINE = 20_000
"""Evenly spaced quantiles that stand for weighted samples."""
NARROW, KOLMOGOROV = 0.02, 0.886
"""A lognormal stands for numbers of turns where the distribution functions differ by no more than the first, or than
so much over the root of the trajectories, the 5 % point of a fitted normal (Lilliefors 1967)."""
REPLICATIONS, MOST_DRAWN = 99, 4096
"""Draws of the fitted process in its test, and trajectories of each at most."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Trajectories that did not fail. turns, prompt_tokens, total_tokens, cut, turn_limit, group: one entry each (group
    None where nothing names prompts). owner, response_tokens: of each turn. gap_owner, observation_tokens,
    environment_s (NaN where not given): of each turn but a trajectory's last."""

    turns: IntArray
    prompt_tokens: FloatArray
    total_tokens: FloatArray
    cut: BoolArray
    turn_limit: BoolArray
    group: IntArray | None
    owner: IntArray
    response_tokens: FloatArray
    gap_owner: IntArray
    observation_tokens: FloatArray
    environment_s: FloatArray

    @classmethod
    def of(cls, found: Sequence[Trajectory], group_size: int | None, where: str) -> Columns:
        """Columns of all that did not fail; raises InputError where group_size does not divide ``found``."""
        keys = [one.key for one in found]
        groups = group_numbers(None if None in keys else keys, len(found), group_size, where)
        good = [place for place, one in enumerate(found) if not one.failed]
        calls = [found[place].calls for place in good]
        gaps = [(owner, *pair) for owner, row in enumerate(calls) for pair in pairwise(row)]
        # A context that was compacted is shorter than the one before: below, an observation counts a token at least.
        observed = [now.context_tokens - old.context_tokens - old.response_tokens for _, old, now in gaps]
        waits = np.array([now.start_s - old.end_s for _, old, now in gaps])
        return cls(
            np.array([len(row) for row in calls]),
            np.array([max(1.0, row[0].context_tokens) for row in calls]),
            np.array([row[-1].context_tokens + row[-1].response_tokens for row in calls]),
            np.array([found[place].cut for place in good]),
            np.array([found[place].turn_limit for place in good]),
            None if groups is None else groups[good],
            np.repeat(np.arange(len(calls)), [len(row) for row in calls]),
            np.array([max(1.0, call.response_tokens) for row in calls for call in row]),
            np.array([owner for owner, *_ in gaps], dtype=np.int64),
            np.maximum(np.array(observed), 1.0),
            np.where(np.isfinite(waits), np.maximum(waits, 0.0), np.nan),
        )

    @classmethod
    def drawn(cls, one: Generated) -> Columns:
        """Columns of a rollout that was drawn, for its comparison with a measured one."""
        turns, batch = one.turns, one.batch
        if turns is None:
            raise ValueError("a rollout without agents has no turns")
        counts = np.diff(turns.first)
        owner = np.repeat(np.arange(counts.size), counts)
        inner = np.flatnonzero(owner[:-1] == owner[1:])
        history = turns.history_tokens.astype(np.float64)
        observed = history[inner + 1] - history[inner] - turns.response_tokens[inner]
        total = batch.total_tokens.astype(np.float64)
        # Drawn ones are compared by their sums (summaries), which ask for no cut.
        uncut = np.zeros(counts.size, dtype=np.bool_)
        return cls(
            counts, batch.prompt_tokens.astype(np.float64), total, uncut, uncut,
            batch.group, owner, turns.response_tokens.astype(np.float64), owner[inner], observed,
            turns.environment_s[inner],
        )  # fmt: skip

    @property
    def most_turns(self) -> int | None:
        """Turns at which trajectories are cut: of those of whom it is known, else the longest where many have it."""
        known = self.turns[self.turn_limit]
        most = float(known.max()) if known.size else cap_of(self.turns.astype(np.float64))
        return None if most is None else int(most)

    @property
    def cut_by_context(self) -> BoolArray:
        """Trajectories cut by something else than their turns."""
        return self.cut & ~self.turn_limit & (self.turns < (self.most_turns or np.inf))

    def summaries(self) -> dict[str, FloatArray]:
        """What of each trajectory decides the work and the wait of a step."""
        size = self.turns.size
        seconds = np.bincount(self.gap_owner, self.environment_s, size)
        found: dict[str, FloatArray] = {
            "turns": self.turns.astype(np.float64),
            "generated tokens": np.bincount(self.owner, self.response_tokens, size).astype(np.float64),
            "final context": self.total_tokens,
            "environment seconds": seconds.astype(np.float64),
        }
        return {name: values for name, values in found.items() if not np.isnan(values).any()}


@dataclass(frozen=True, eq=False)
class Marginal:
    """A fitted distribution. section: as a scenario writes it; values, weights: the sample; lognormal_miss: largest of
    the fitted over measured - 1 in mean and TOLD quantiles, of the lognormal whether it was taken or not."""

    name: str
    section: dict[str, Any]
    values: FloatArray
    weights: FloatArray
    lognormal_miss: float

    def quantile(self, levels: FloatArray) -> FloatArray:
        """Measured values at ``levels``, each by its weight (Hazen's positions)."""
        return _quantile(self.values, self.weights, levels)

    @property
    def mean(self) -> float:
        """Weighted mean."""
        return float(np.average(self.values, weights=self.weights))


def _quantile(values: FloatArray, weights: FloatArray, levels: FloatArray) -> FloatArray:
    order = np.argsort(values, kind="stable")
    upto = np.cumsum(weights[order])
    middle = (upto - weights[order] / 2) / upto[-1]
    return np.asarray(np.interp(levels, middle, values[order]))


def lognormal_of(values: FloatArray, weights: FloatArray, censored: BoolArray) -> tuple[float, float]:
    """Mean and standard deviation of the logarithms, ``censored`` ones at least as large as they are.

    Weighted maximum likelihood by expectation and maximisation (Dempster, Laird, Rubin 1977).
    """
    # Seconds may be 0, which has no logarithm.
    logs, share = np.log(np.maximum(values, 1e-9)), weights / weights.sum()
    mean, sigma = float(share @ logs), max(LEAST_SIGMA, math.sqrt(float(share @ (logs - share @ logs) ** 2)))
    for _ in range(ROUNDS if censored.any() else 0):
        z = (logs - mean) / sigma
        # Inverse Mills ratio: the mean of a standard normal above z.
        ratio = np.exp(-0.5 * z * z - 0.5 * math.log(2 * math.pi) - log_ndtr(-z))
        first = np.where(censored, mean + sigma * ratio, logs)
        spread = np.where(censored, sigma**2 * (1 + z * ratio - ratio**2), 0.0)
        mean = float(share @ first)
        sigma = max(LEAST_SIGMA, math.sqrt(float(share @ ((first - mean) ** 2 + spread))))
    return mean, min(sigma, MOST_SIGMA)


def marginal_of(
    name: str, unit: str, values: FloatArray, weights: FloatArray, censored: BoolArray | None = None, cap: float = 1e9
) -> Marginal:
    """A constant, the lognormal where it comes as near as so many samples can say, else quantiles. unit: tokens, s.

    cap: at which values are cut, so that the stated mean is the one after the cut.
    """
    censored = np.zeros(values.size, dtype=np.bool_) if censored is None else censored
    mean_key, key = ("mean_s", "seconds") if unit == "s" else ("mean_tokens", "tokens")
    low = float(values.min())
    if low == float(values.max()):
        constant = low if unit == "s" else max(1, round(low))
        return Marginal(name, {"kind": "constant", key: constant}, values, weights, 0.0)
    location, sigma = lognormal_of(values, weights, censored)
    mean = limited_lognormal_mean(location, sigma, cap)
    section: dict[str, Any] = {"kind": "lognormal", mean_key: float(f"{mean:.6g}"), "log_sigma": round(sigma, 4)}
    levels = np.array(TOLD)
    fitted = np.minimum(np.exp(location + sigma * ndtri(levels)), cap)
    misses = np.append(fitted / np.maximum(_quantile(values, weights, levels), 1e-9), mean / np.average(
        values, weights=weights)) - 1  # fmt: skip
    # Standard errors of the quantiles and of the mean of so many samples: two of them are no evidence against it.
    count = weights.sum() ** 2 / float((weights**2).sum())
    density = np.exp(-0.5 * ndtri(levels) ** 2) / math.sqrt(2 * math.pi)
    errors = np.append(sigma * np.sqrt(levels * (1 - levels)) / density, math.sqrt(math.expm1(min(sigma**2, 50.0))))
    lognormal = low > 0 and bool(np.all(np.abs(misses) <= np.maximum(CLOSE, 2 * errors / math.sqrt(count))))
    # What was cut below the cap has no quantiles of its own: a lognormal stands for it however far it is.
    if not lognormal and bool(np.all(values[censored] >= cap)):
        fine = _quantile(values, weights, (np.arange(FINE) + 0.5) / FINE)
        section = {"kind": "quantiles", **_table(*quantile_table(fine), key)}
    return Marginal(name, section, values, weights, float(misses[np.abs(misses).argmax()]))


def _table(levels: FloatArray, values: FloatArray, key: str) -> dict[str, Any]:
    return {"quantiles": [float(f"{one:.6g}") for one in levels], key: [float(f"{one:.6g}") for one in values]}


def turns_of(turns: IntArray, censored: BoolArray, most: int | None) -> Marginal:
    """Numbers of turns; ``censored`` ones would have gone on. most: at which trajectories are cut."""
    values, ones = turns.astype(np.float64), np.ones(turns.size)
    if values.min() == values.max():
        return Marginal("turns", {"kind": "constant", "turns": int(turns[0])}, values, ones, 0.0)
    numbers = np.unique(turns)
    ended = np.array([np.count_nonzero((turns == one) & ~censored) for one in numbers])
    # Kaplan and Meier 1958: of those that came so far, who ended there.
    upto = 1 - np.cumprod(1 - ended / np.array([np.count_nonzero(turns >= one) for one in numbers]))
    at_most = censored if most is None else censored | (turns >= most)
    location, sigma = lognormal_of(values, ones, at_most)
    inner = numbers < (numbers[-1] if most is None else most)
    # Turns are whole: of a lognormal all that lies below n + 0.5 is at most n.
    miss = np.abs(ndtr((np.log(numbers + 0.5) - location) / sigma) - upto)[inner].max(initial=0.0)
    if miss <= max(NARROW, KOLMOGOROV / math.sqrt(turns.size)):
        mean = limited_lognormal_mean(location, sigma, float(most or 1000))
        section: dict[str, Any] = {"kind": "lognormal", "mean_turns": round(max(mean, 1.0), 4)}
        return Marginal("turns", {**section, "log_sigma": round(sigma, 4)}, values, ones, float(miss))
    fine = (np.arange(FINE) + 0.5) / FINE
    drawn = numbers[np.minimum(np.searchsorted(upto, fine), numbers.size - 1)].astype(np.float64)
    # Each number takes two levels: 40 of them are the most that a table has (MOST_LEVELS).
    if numbers.size > 40:
        return Marginal("turns", {"kind": "quantiles", **_table(*quantile_table(drawn), "turns")}, values, ones, miss)
    # Levels at the steps: rounding gives every number its share.
    upto[-1] = 1.0
    levels = np.insert(np.repeat(upto, 2)[:-1], 0, 0.0)
    levels[2::2] = np.minimum(levels[2::2] + 1e-6, 1 - 1e-7)
    section = {"kind": "quantiles", **_table(levels, np.repeat(numbers, 2).astype(np.float64), "turns")}
    return Marginal("turns", section, values, ones, float(miss))


def scores_of(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Normal scores by weighted ranks, ties at their middle; weighted variance 1, as the process has it."""
    distinct, place = np.unique(values, return_inverse=True)
    mass = np.bincount(place, weights, distinct.size)
    scores = ndtri((np.cumsum(mass) - mass / 2) / mass.sum())[place]
    spread = math.sqrt(float(np.average((scores - np.average(scores, weights=weights)) ** 2, weights=weights)))
    return np.asarray(scores / spread if spread else scores)


def shared_by_turns(scores: FloatArray, owner: IntArray, size: int) -> float:
    """Mean product of two turns of a trajectory, over those that have two: what its turns share of the variance."""
    count, total, squares = (np.bincount(owner, part, size) for part in (np.ones(owner.size), scores, scores**2))
    some = count > 1
    pairs = (count * (count - 1))[some]
    return float(np.mean((total**2 - squares)[some] / pairs)) if some.any() else 0.0


def shared_by_prompt(first: FloatArray, second: FloatArray, group: IntArray) -> float:
    """Mean product of one trajectory's ``first`` and another's ``second``, over all pairs of a prompt."""
    size = int(group.max()) + 1
    parts = (np.ones(group.size), first, second, first * second)
    count, left, right, own = (np.bincount(group, part, size) for part in parts)
    pairs = (count * (count - 1)).sum()
    return float((left * right - own).sum() / pairs) if pairs else 0.0


@dataclass(frozen=True)
class Test:
    """A summary of trajectories beside that of drawn ones. distance: Kolmogorov and Smirnov's; p: share of the draws
    of the fitted process that are as far from all of them."""

    name: str
    measured: FloatArray
    drawn: FloatArray
    distance: float
    p: float


def tests_of(measured: Columns, workload: Workload) -> list[Test]:
    """The fitted process against the sample: draws of the same size say how far they are by chance."""
    size = 1 if measured.group is None else max(1, round(measured.turns.size / np.unique(measured.group).size))
    prompts = max(1, min(measured.turns.size, MOST_DRAWN) // size)
    changed = workload.model_dump() | {"prompts_per_step": prompts, "generations_per_prompt": size}
    same = Workload.model_validate(changed)
    draws = [Columns.drawn(draw_rollouts(same, Place(0, 0, number))[0]).summaries() for number in range(REPLICATIONS)]
    # Of a larger sample the first prompts: fewer draws would lie further off by chance.
    number = np.arange(measured.turns.size) if measured.group is None else measured.group
    first = np.unique(number, return_inverse=True)[1] < prompts
    out = []
    for name, values in measured.summaries().items():
        pooled = np.sort(np.concatenate([one[name] for one in draws]))
        far = [_distance(one[name], pooled) for one in draws]
        distance = _distance(values[first], pooled)
        # The sample counts as one of the draws: so few of them cannot make a p of 0.
        p = (1 + sum(one >= distance for one in far)) / (1 + len(far))
        out.append(Test(name, values, pooled, distance, p))
    return out


def _distance(values: FloatArray, reference: FloatArray) -> float:
    """Largest difference of two distribution functions; reference: in order."""
    ordered = np.sort(values)
    found = []
    # Both functions jump at a tie: they may be furthest apart just before it or at it.
    for side in ("left", "right"):
        own = np.searchsorted(ordered, ordered, side) / ordered.size
        found.append(np.abs(own - np.searchsorted(reference, ordered, side) / reference.size).max())
    return float(max(found))
