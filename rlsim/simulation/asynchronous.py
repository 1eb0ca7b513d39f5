"""Lagged RL: the trainer, which meets the generator where a batch is ready and where it publishes its weights."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlsim.costs.interface import Prices, StepCost
from rlsim.results import StepPhases, TokenLedger
from rlsim.schema.scenario import Scenario
from rlsim.simulation.clock import Clock
from rlsim.simulation.generation import Generation
from rlsim.simulation.intake import Removed
from rlsim.simulation.trace import Process, StepRecord, Trace
from rlsim.units import FloatArray, IntArray, distinct
from rlsim.workload.draw import DrawnWorkload

MOST_VERSIONS = 64
"""Publications of weights that are remembered; what was generated before counts as so old."""


class TokenAccount:
    """The ledger of a generator between :meth:`open` and :meth:`close`."""

    def __init__(self, workload: DrawnWorkload, generation: Generation) -> None:
        self._generation = generation
        self.response_tokens = np.concatenate([step.rollouts[0].batch.response_tokens for step in workload.steps])
        self._group_tokens = self.response_tokens.reshape(-1, generation.intake.size).sum(axis=1)
        self._opened = TokenLedger(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    def open(self) -> None:
        """Begin here."""
        self._opened = self.balance()

    def close(self) -> TokenLedger:
        """The ledger since :meth:`open`."""
        return self.balance() - self._opened

    def balance(self) -> TokenLedger:
        """Everything so far. ``generated`` is what engines counted; the rest is counted from samples and groups."""
        engines, intake = self._generation.engines, self._generation.intake
        emitted, (_, in_progress_tokens) = engines.emitted(), self._generation.in_progress()
        done_tokens = self.response_tokens * (engines.finish_s > 0.0)
        lost = float(sum(done_tokens[intake.samples(groups)].sum() for groups in intake.removed_groups["cancelled"]))
        consumed, stale, discarded = (self._tokens(kind) for kind in ("consumed", "stale", "discarded"))
        held = float(done_tokens.sum()) - lost - consumed - stale - discarded
        return TokenLedger(
            generated=emitted.generated_tokens,
            consumed=consumed,
            stale=stale + lost + emitted.discarded_tokens,
            discarded=discarded,
            regenerated=emitted.regenerated_tokens,
            in_flight=held + float(in_progress_tokens.sum()),
        )

    def _tokens(self, kind: Removed) -> float:
        return float(sum(self._group_tokens[groups].sum() for groups in self._generation.intake.removed_groups[kind]))


class TokenVersions:
    """Which versions of the weights generated the tokens that are trained on.

    At every publication of weights it keeps what unfinished samples have; none of it counts where they start again.
    """

    def __init__(self, account: TokenAccount, generation: Generation) -> None:
        self._generation = generation
        self._response_tokens = account.response_tokens
        self._past: deque[tuple[float, int, FloatArray]] = deque(maxlen=MOST_VERSIONS)

    def publish(self) -> None:
        """New weights are about to be published."""
        samples, tokens = self._generation.in_progress()
        if self._generation.intake.rules.at_update == "restart":
            tokens = np.zeros_like(tokens)
        # By number from before the first of them on, as samples in flight lie close together: none at both ends.
        first = int(samples.min(initial=self._response_tokens.size)) - 1
        held = np.zeros(int(samples.max(initial=first)) - first + 2)
        held[samples - first] = tokens
        self._past.append((self._generation.clock.now, first, held))

    def ages(self, groups: IntArray) -> dict[int, float]:
        """Response tokens of ``groups`` by the age of the weights that they were generated with, in versions."""
        samples = self._generation.intake.samples(groups)
        whole = self._response_tokens[samples].astype(np.float64)
        finish_s = self._generation.engines.finish_s[samples]
        left, out, last_s = whole, dict[int, float](), finish_s.max(initial=0.0)
        for age, (time_s, first, held) in enumerate(reversed(self._past)):
            if time_s >= last_s:
                continue  # all were done before these weights
            # A sample that was done before this publication has all of its tokens from older weights.
            known = np.where(finish_s <= time_s, whole, held.take(samples - first, mode="clip"))
            older = np.minimum(left, known)
            out[age] = float((left - older).sum())
            left = older
            if not left.any():
                break
        else:
            out[len(self._past)] = float(left.sum())
        return {age: tokens for age, tokens in out.items() if tokens > 0.0}


def run_asynchronous(scenario: Scenario, workload: DrawnWorkload, prices: Prices, trace: Trace) -> None:
    """Simulate all training steps into ``trace``; the first one waits for the first batch from an empty pool."""
    clock = Clock()
    generation = Generation(clock, scenario, workload, prices, trace)
    generating = generation.run()
    clock.process(generating)
    clock.run(until=clock.process(_Trainer.of(scenario, workload, prices, trace, generation).run()))
    generation.show()
    # A process that waits refers to itself in a circle; with it everything of this run would stay in memory.
    generating.close()


class _Trainer(Struct, frozen=True):
    """The trainer of a lagged loop. Times in seconds. account, versions: of response tokens; None of agents, and where
    nobody asks for tokens."""

    scenario: Scenario
    workload: DrawnWorkload
    prices: Prices
    trace: Trace
    generation: Generation
    account: TokenAccount | None
    versions: TokenVersions | None

    @classmethod
    def of(
        cls, scenario: Scenario, workload: DrawnWorkload, prices: Prices, trace: Trace, generation: Generation
    ) -> _Trainer:
        """The trainer beside ``generation``."""
        counted = trace.tokens and scenario.workload.agent is None
        account = TokenAccount(workload, generation) if counted else None
        versions = None if account is None else TokenVersions(account, generation)
        return cls(scenario, workload, prices, trace, generation, account, versions)

    def run(self) -> Process:
        """Train step by step, and count what the generator does in the measured ones."""
        generation, measured, account = self.generation, self.scenario.measured_steps, self.account
        for step in range(self.workload.trained):
            if step == measured.start:
                engines = generation.engines
                before = engines.counters.copy()
                agents = None if engines.agent_counters is None else replace(engines.agent_counters)
                if account is not None:
                    account.open()
            yield from self._step(step)
            if self._too_slow(step):
                break
        engines = generation.engines
        self.trace.count(engines.counters, engines.peak_kv_tokens)
        self.trace.counters.add(before, -1)
        if account is not None:
            self.trace.ledger = account.close()
        if agents is not None and engines.agent_counters is not None:
            self.trace.agents.add(engines.agent_counters)
            self.trace.agents.add(agents, -1)

    def _too_slow(self, step: int) -> bool:
        """Whether the measured steps take longer than is waited for, even if the trainer never waited from now on."""
        within_s, measured = self.trace.within_s, self.scenario.measured_steps
        if math.isinf(within_s) or step not in measured:
            return False
        took_s = sum(one.seconds for one in self.trace.steps[measured.start :])
        left = self.prices.steps[step + 1 : measured.stop]
        least_s = sum(one.data.seconds + one.logprob.seconds + one.train.seconds for one in left)
        return took_s + least_s > within_s * len(measured)

    def _step(self, step: int) -> Process:
        """Take the batch of a step, train on it and publish the weights where it is time to."""
        generation, clock, rules = self.generation, self.generation.clock, self.generation.intake.rules
        start_s, busy_s = clock.now, generation.busy_s
        updates = (step + 1) % rules.update_every == 0
        drains = updates and rules.at_update == "drain"
        yield from self._wait(step, generation.batch(step))
        if drains and not rules.overlap:
            yield from self._wait(step, generation.drain(), "drain")
        exposed_s, refit_s = clock.now - start_s, self.prices.refit.seconds if updates else 0.0
        groups = generation.take(step)
        staleness = generation.intake.ages(groups)
        token_ages = {} if self.versions is None else self.versions.ages(groups)
        total_tokens, cost = self._work(step, groups)
        phases = (("data_s", cost.data), ("logprob_s", cost.logprob), ("train_s", cost.train))
        if not rules.overlap:
            generation.pause(sum(phase.seconds for _, phase in phases) + refit_s)
        end_s = clock.now
        for name, phase in phases:  # nobody else acts on what happens between them
            end_s = self.trace.passed("trainer", name, step, end_s, phase.seconds)
        yield clock.at(end_s)
        if drains and rules.overlap:
            begin_s = clock.now
            yield from self._wait(step, generation.drain(), "drain")
            exposed_s += clock.now - begin_s
        if updates:
            if rules.overlap:
                generation.pause(refit_s)
            yield clock.at(self.trace.passed("trainer", "refit_s", step, clock.now, refit_s))
            if self.versions is not None:
                self.versions.publish()
            generation.publish_weights()
        elif not rules.overlap:
            generation.resume()
        generation.settle()
        phase_s = StepPhases(
            data_s=cost.data.seconds,
            prepare_s=0.0,
            generation_s=generation.busy_s - busy_s,
            logprob_s=cost.logprob.seconds,
            train_s=cost.train.seconds,
            refit_s=refit_s,
            exposed_generation_s=exposed_s,
        )
        drawn = self.workload.steps[step]
        record = StepRecord.of(step, start_s, clock.now, phase_s, staleness, drawn, cost, total_tokens)
        self.trace.steps.append(replace(record, token_ages=token_ages))

    def _wait(self, step: int, generated: Process, detail: str = "") -> Process:
        """Wait for the generator until a trainer that looks every now and then sees that it may go on."""
        clock, start_s = self.generation.clock, self.generation.clock.now
        yield from generated
        seen_s = _seen_at(start_s, clock.now, self.scenario.loop.poll_s)
        if seen_s > clock.now:
            yield clock.at(seen_s)
        self.trace.span("trainer", "exposed_generation_s", step, (start_s, clock.now), detail)

    def _work(self, step: int, groups: IntArray) -> tuple[FloatArray | None, StepCost]:
        """Total tokens of the samples of a batch that nobody knew beforehand, and what the trainer does with it."""
        if self.scenario.known_batches:
            return None, self.prices.steps[step]
        batch, number = np.divmod(groups, self.generation.intake.batch)
        size = self.generation.intake.size
        lengths = [
            self.workload.steps[one].rollouts[0].batch.total_tokens.reshape(-1, size)[number[batch == one]].ravel()
            for one in distinct(batch).tolist()
        ]
        total_tokens = np.concatenate(lengths).astype(np.float64)
        return total_tokens, self.prices.batch(total_tokens, self.workload.steps[step].generated_samples)


def _seen_at(start_s: float, time_s: float, poll_s: float) -> float:
    """When a trainer that looks every ``poll_s`` seconds from ``start_s`` on sees what happens at ``time_s``."""
    if not poll_s:
        return time_s
    # 1e-9: what is done exactly when the trainer looks is seen then, whatever the division rounds to.
    return max(time_s, start_s + math.ceil((time_s - start_s) / poll_s - 1e-9) * poll_s)
