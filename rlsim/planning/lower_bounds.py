"""Least time a configuration can take, in closed form from its iteration table: what it need not be simulated for.

With R replicas, W sequence-iterations to run, s(n) the context-free time of an iteration of n sequences and
a(n, c) >= alpha n c its attention over mean context c,

    T >= (W min_n s(n)/n + alpha C) / R,     C = sum over sequences of iterations x mean context,

since every iteration of n sequences does n of the W. A single sequence needs T >= I min_n s(n) + alpha I c. With at
most N sequences in flight at once, no instant is faster than R g(N / R), g the concave majorant of n / s(n).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlsim.costs.interface import IterationTable
from rlsim.costs.prices import PriceInputs
from rlsim.schema.asynchrony import Asynchrony
from rlsim.schema.scenario import Scenario
from rlsim.units import FloatArray
from rlsim.workload.agents import Turns
from rlsim.workload.batches import Batch
from rlsim.workload.draw import draw_step

FIRST_DONE_MARGIN = 0.95
"""Share of the bound that steps need which train on what is done first: those of a few steps are not the samples drawn
for them, and shorter ones come first (seen: 2.3 % below the bound over twelve steps)."""
POOL_MARGIN = 0.9
"""Share of the drawn work that the measured steps of a lagged loop are taken to hold: the pool may have done some of it
in the warm-up, and some of what it does is of later steps. In steady state both are equal; of 192 loops with 16 or 64
samples a step and long tails one was below the whole, by 8 % (two measured steps of 16 samples)."""


@dataclass(frozen=True)
class RolloutWork:
    """One drawn batch in sequence-iterations: total, weighted by context, and of the sequence with most."""

    iterations: float
    context_iterations: float
    longest_iterations: float
    longest_context: float
    samples: int


def rollout_works(scenario: Scenario, step: int, replication: int = 0) -> tuple[RolloutWork, ...]:
    """The rollouts that a simulation of ``scenario`` draws for ``step``: one, more under dynamic sampling."""
    works, plan = [], PriceInputs(scenario).draft_plan if scenario.speculation.variation is not None else None
    drawn = draw_step(scenario, step, replication, plan)
    for one, counts in zip(drawn.rollouts, drawn.iterations, strict=True):
        iterations = counts.astype(np.float64)
        if one.turns is None:
            works.append(_work(one.batch, iterations))
        else:
            works.append(_agent_work(one.batch, one.turns, iterations, _may_end_early(scenario)))
    return tuple(works)


def _may_end_early(scenario: Scenario) -> bool:
    agent = scenario.workload.agent
    return agent is not None and agent.trajectory_timeout_s is not None


def _agent_work(batch: Batch, turns: Turns, iterations: FloatArray, first_alone: bool) -> RolloutWork:
    """The work of trajectories, whose turns follow each other; first_alone: only their first turns are certain."""
    context = turns.history_tokens + 0.5 * np.maximum(
        turns.response_tokens - turns.response_tokens / np.maximum(iterations, 1), 0
    )
    weighted = iterations * (np.repeat(batch.prompt_tokens, np.diff(turns.first)) + context)
    first = turns.first[:-1]
    if first_alone:
        own, own_weighted = iterations[first], weighted[first]
    else:
        own, own_weighted = np.add.reduceat(iterations, first), np.add.reduceat(weighted, first)
    longest = int(np.argmax(own))
    return RolloutWork(
        float(own.sum()),
        float(own_weighted.sum()),
        float(own[longest]),
        float(own_weighted[longest] / max(own[longest], 1.0)),
        batch.samples,
    )


def _work(batch: Batch, iterations: FloatArray) -> RolloutWork:
    context = batch.prompt_tokens + 0.5 * np.maximum(
        batch.response_tokens - batch.response_tokens / np.maximum(iterations, 1), 0
    )
    longest = int(np.argmax(iterations))
    return RolloutWork(
        float(iterations.sum()),
        float((iterations * context).sum()),
        float(iterations[longest]),
        float(context[longest]),
        batch.samples,
    )


@dataclass(frozen=True)
class EngineRates:
    """What bounds need of an iteration table. sequence_s: min s(n)/n; iteration_s: min s(n); attention_s: alpha."""

    sequence_s: float
    iteration_s: float
    attention_s: float
    batch: FloatArray
    rate: FloatArray

    def rate_at(self, sequences: float) -> float:
        """Concave majorant of n / s(n), sequence-iterations per second."""
        return float(np.interp(sequences, self.batch, self.rate))


def engine_rates(table: IterationTable) -> EngineRates:
    """Rates of one replica; only batch sizes that fit its slots count."""
    most = min(
        len(table.step_s) - 1, table.max_running_sequences, table.max_batched_tokens // table.tokens_per_sequence
    )
    n = np.arange(1, max(1, most) + 1, dtype=np.float64)
    step_s = table.step_s[1 : len(n) + 1]
    contexts = np.arange(1, table.attention_s.shape[1]) * table.context_step_tokens
    if contexts.size:
        alpha = float(np.min(table.attention_s[1 : len(n) + 1, 1:] / (n[:, None] * contexts[None, :])))
    else:
        alpha = 0.0
    batch, rate = _majorant(np.concatenate([[0.0], n]), np.concatenate([[0.0], n / step_s]))
    return EngineRates(float(np.min(step_s / n)), float(np.min(step_s)), alpha, batch, rate)


def _majorant(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Upper concave hull of points with increasing x, from 0 to its highest point, level beyond."""
    top = int(np.argmax(y))
    hull: list[int] = []
    for i in range(top + 1):
        while len(hull) > 1 and _below(x, y, hull[-2], hull[-1], i):
            hull.pop()
        hull.append(i)
    return x[hull], y[hull]


def _below(x: FloatArray, y: FloatArray, a: int, b: int, c: int) -> bool:
    """Whether b lies on or under the line from a to c."""
    return bool((y[b] - y[a]) * (x[c] - x[a]) <= (y[c] - y[a]) * (x[b] - x[a]))


def straggler_bound_s(rates: EngineRates, work: RolloutWork) -> float:
    """Least seconds of the sequence with most iterations, alone."""
    return work.longest_iterations * (rates.iteration_s + rates.attention_s * work.longest_context)


def spread_bound_s(rates: EngineRates, work: RolloutWork, replicas: int) -> float:
    """Least seconds of a batch spread evenly over replicas that are always at their best batch size."""
    return (work.iterations * rates.sequence_s + work.context_iterations * rates.attention_s) / replicas


def rollout_bound_s(rates: EngineRates, work: RolloutWork, replicas: int) -> float:
    """Least seconds from submission of a batch to its last token."""
    return max(spread_bound_s(rates, work, replicas), straggler_bound_s(rates, work))


def lagged_bound_s(
    rates: EngineRates, works: Sequence[RolloutWork], replicas: int, rules: Asynchrony, trainer_s: float
) -> float:
    """Least mean seconds of the measured steps of a lagged loop, ``works`` drawn for each, beside a trainer of
    ``trainer_s`` a step.

    The trainer; the pool, with no more batches in flight than ``rules`` let start; and, where a step waits for its
    slowest sequence, the chains of those. Aborted and dropped work, pauses and drains only add to it. The pool's share
    is that of the steady state, whatever it had done when the first step began, less POOL_MARGIN.
    """
    batches = rules.pace if rules.max_in_flight is None else rules.max_in_flight
    spread_s = crowd_s = 0.0
    for work in works:
        spread_s += spread_bound_s(rates, work, replicas) / len(works)
        crowd_s += work.iterations / (replicas * rates.rate_at(work.samples * batches / replicas)) / len(works)
    pool_s = POOL_MARGIN * max(spread_s, crowd_s)
    if rules.membership == "first_done":
        return FIRST_DONE_MARGIN * max(trainer_s, pool_s)
    return max(trainer_s, pool_s, _chained_s(rates, works, rules, trainer_s))


def _chained_s(rates: EngineRates, works: Sequence[RolloutWork], rules: Asynchrony, trainer_s: float) -> float:
    """Least mean seconds of steps that wait for their slowest sequences.

    From the publication that starts such a sequence to the end of its batch's training ``rules.pace`` steps pass (one
    more where batches start when one is taken), and no time of it lies before the window where all of these steps do
    not. Chains that share no step add up; steps in none take the trainer's time.
    """
    span = math.ceil(rules.pace) + int(rules.at_take)
    least_s = [0.0]
    for number, work in enumerate(works, start=1):
        plain_s = least_s[number - 1] + trainer_s
        chain_s = least_s[number - span] + straggler_bound_s(rates, work) + trainer_s if number >= span else 0.0
        least_s.append(max(plain_s, chain_s))
    return least_s[-1] / len(works)
