"""Rounds of tail batching (RollPacker, arXiv 2509.21009): races for a step's batch, and what they put off in one go.

A race starts all prompts and samples of a short round at once. A prompt is complete with as many finished samples as
are trained on, and its others are aborted then; the race ends with the last prompt that the step needs, and everything
else is aborted. Requests leave at the end of the iteration in progress, as in a lagged loop; the round does not wait
for that. Prompts that were not complete wait in a queue, and as soon as they fill a step the next round runs them from
their prompts to the last sample, with the lengths that were drawn for the first samples of each.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from rlsim.costs.interface import Prices
from rlsim.schema.scenario import Scenario
from rlsim.simulation.engines import Groups
from rlsim.simulation.kernel.engines import engines_of
from rlsim.simulation.pool import fleet_of
from rlsim.simulation.rollout import RolloutResult, rollout
from rlsim.units import BoolArray, FloatArray, IntArray, distinct
from rlsim.workload.batches import Batch, Generated, first_done
from rlsim.workload.draw import DrawnStep, DrawnWorkload


class Round(Struct, frozen=True, eq=False):
    """One round: the work that it had, with the samples that it is trained on, and what happened.

    generated_tokens: response tokens of all samples, aborted ones up to then.
    """

    drawn: DrawnStep
    result: RolloutResult
    generated_tokens: float


class Rounds:
    """The rounds of a run, one after the other; ``waiting`` prompts were put off and not run yet."""

    def __init__(self, scenario: Scenario, prices: Prices) -> None:
        self._scenario, self._prices = scenario, prices
        self._prompts = scenario.workload.prompts_per_step
        self._size = scenario.workload.generations_per_prompt
        self._queue = _Queue.empty()

    @property
    def waiting(self) -> int:
        """Prompts that were put off."""
        return self._queue.prompt_tokens.size // self._size

    def next(self, drawn: DrawnStep) -> Round:
        """A long round where enough prompts wait, else a race on ``drawn`` work."""
        return self._long(drawn) if self.waiting >= self._prompts else self._race(drawn)

    def _long(self, drawn: DrawnStep) -> Round:
        samples = self._prompts * self._size
        taken, self._queue = self._queue.split(samples)
        group = np.repeat(np.arange(self._prompts), self._size)
        batch = Batch(taken.prompt_tokens, taken.response_tokens, group)
        whole = Generated(batch, np.ones(samples, dtype=np.bool_))
        result = rollout(batch, taken.iterations, fleet_of(self._scenario, self._prices))
        return Round(DrawnStep((whole,), (taken.iterations,), drawn.acceptance), result, float(result.generated_tokens))

    def _race(self, drawn: DrawnStep) -> Round:
        (one,), (iterations,) = drawn.rollouts, drawn.iterations
        race = _Race(self._scenario, drawn, self._prices)
        trained = first_done(one.batch, race.finish_s, self._prompts, self._size)
        done = distinct(one.batch.group[trained])
        size = one.batch.samples // (int(one.batch.group[-1]) + 1)
        put_off = ~np.isin(one.batch.group, done) & (np.arange(one.batch.samples) % size < self._size)
        self._queue = self._queue.behind(one.batch, iterations, put_off)
        raced = DrawnStep((Generated(one.batch, trained),), drawn.iterations, drawn.acceptance)
        return Round(raced, race.result, race.generated_tokens)


class _Queue(Struct, frozen=True, eq=False):
    """Samples of prompts that were put off, group by group, each as it was drawn."""

    prompt_tokens: IntArray
    response_tokens: IntArray
    iterations: IntArray

    @classmethod
    def empty(cls) -> _Queue:
        nothing = np.zeros(0, dtype=np.int64)
        return cls(nothing, nothing, nothing)

    def behind(self, batch: Batch, iterations: IntArray, which: BoolArray) -> _Queue:
        """With the samples ``which`` of a round at the end."""
        return _Queue(
            np.concatenate([self.prompt_tokens, batch.prompt_tokens[which]]),
            np.concatenate([self.response_tokens, batch.response_tokens[which]]),
            np.concatenate([self.iterations, iterations[which]]),
        )

    def split(self, samples: int) -> tuple[_Queue, _Queue]:
        """The first ``samples``, and the others."""
        columns = self.prompt_tokens, self.response_tokens, self.iterations
        return _Queue(*(one[:samples] for one in columns)), _Queue(*(one[samples:] for one in columns))


class _Race:
    """A short round. finish_s: of each sample, infinite where it was aborted or finished when nobody needed it."""

    def __init__(self, scenario: Scenario, drawn: DrawnStep, prices: Prices) -> None:
        batch = drawn.rollouts[0].batch
        workload, self._group = scenario.workload, batch.group
        prompts = int(batch.group[-1]) + 1
        # Every sample is a group of its own to the engines, so that each has an end of its own.
        work, every = DrawnWorkload((drawn,), 1), Groups(1, released=batch.samples, max_in_flight=batch.samples)
        self._engines = engines_of(scenario, work, prices, every)
        self._left = [workload.generations_per_prompt] * prompts
        self.finish_s = self._end_s = np.full(batch.samples, math.inf)
        self._run(workload.prompts_per_step)
        self.generated_tokens = self._engines.emitted().generated_tokens
        self.result = self._result(prices.replicas)

    def _run(self, prompts: int) -> None:
        """Run until ``prompts`` are complete, and what is in progress then to the end of its iteration."""
        engines, left, group = self._engines, self._left, self._group.tolist()
        first = np.searchsorted(self._group, np.arange(len(left) + 1)).tolist()
        # Lists: most of what is done is one sample.
        running, finish_s, end_s = [True] * len(group), self.finish_s.tolist(), self._end_s.tolist()
        engines.start(0.0)
        while prompts > 0:
            complete = []
            done = engines.run(math.inf, (1, 0, len(group)))  # all at the same time
            now_s = engines.last_done_s
            for sample in done:
                running[sample], finish_s[sample], end_s[sample] = False, now_s, now_s
                left[group[sample]] -= 1
                if left[group[sample]] == 0:
                    complete.append(group[sample])
            prompts -= len(complete)
            if not complete:
                continue
            spans = [(first[one], first[one + 1]) for one in sorted(complete)] if prompts > 0 else [(0, len(group))]
            aborted = [sample for span in spans for sample in range(*span) if running[sample]]
            for sample in aborted:  # those in their last iteration may still finish, for nobody
                running[sample], end_s[sample] = False, now_s
            engines.cancel(now_s, aborted)
        engines.run(math.inf)
        self.finish_s, self._end_s = np.array(finish_s), np.array(end_s)

    def _result(self, replicas: int) -> RolloutResult:
        """The round as a rollout that holds every replica to its end; which one had a sample is not known."""
        end_s: FloatArray = np.full(replicas, self._end_s.max())
        peaks = np.full(replicas, self._engines.peak_kv_tokens)
        nowhere = np.full(self._end_s.size, -1)
        return RolloutResult(
            self._end_s, nowhere, end_s, peaks, self._engines.counters, round(self.generated_tokens)
        )  # fmt: skip
