"""What happened when: spans and step records written by the loops; every statistic is computed from them afterwards."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field

from rlsim.costs.interface import EngineCounters, StepCost
from rlsim.results import Curve, Span, StepPhases, TokenLedger
from rlsim.results.projection import CAPACITY, CONTEXTS, IN_ENGINES, IN_SANDBOXES
from rlsim.simulation.trajectories import AgentCounters, AgentTimeline
from rlsim.units import FloatArray, distinct
from rlsim.workload.draw import DrawnStep

if TYPE_CHECKING:
    import simpy

Process = Generator["simpy.Event", Any, None]
CURVE_POINTS = 2000
"""Points of a counter in the timeline; more than a screen has columns."""


class StepRecord(Struct, frozen=True):
    """One finished RL step.

    staleness: consumed samples by age in versions of the weights. generated_tokens and total_tokens: of its batch, all
    response tokens and the trained samples with their prompts. cost: what the trainer did with it. overlapped_s: of
    that, beside the generation of the sample that it waited for last (streaming). token_ages: response tokens by the
    age of the weights that generated them; empty where that is not known (agents) and where all are of the newest.
    """

    step: int
    start_s: float
    end_s: float
    phases: StepPhases[float]
    samples: int
    generated_tokens: float
    total_tokens: float
    staleness: dict[int, int]
    tokens_per_verification: float
    rollouts: int
    cost: StepCost
    overlapped_s: float = 0.0
    token_ages: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        step: int,
        start_s: float,
        end_s: float,
        phases: StepPhases[float],
        staleness: dict[int, int],
        drawn: DrawnStep,
        cost: StepCost,
        total_tokens: FloatArray | None = None,
    ) -> StepRecord:
        """The record of a step on ``drawn`` work; total_tokens: of the samples that it trained on, where others."""
        trained = drawn.trained_tokens if total_tokens is None else total_tokens
        return cls(
            step,
            start_s,
            end_s,
            phases,
            len(trained),
            float(drawn.generated_tokens),
            float(trained.sum()),
            staleness,
            drawn.tokens_per_verification,
            len(drawn.rollouts),
            cost,
        )

    @property
    def seconds(self) -> float:
        """Duration of the step."""
        return self.end_s - self.start_s


class Trace(Struct):
    """Everything one replication recorded. Spans and curves are recorded only where ``detailed``.

    counters: what the engines did in the measured steps. peak_kv_tokens: most KV cache of a replica. imbalances: the
    slowest replica's time over the mean, for each measured synchronous rollout. agents: what trajectories of several
    turns did besides generating in the measured steps. ledger: where their response tokens went; None for agents. Of
    lagged loops ledger and ages of tokens are found only with ``tokens``, and one whose measured steps take longer than
    ``within_s`` in the mean, whatever is left of them, is given up. doubling: of one pool of many, the mean seconds
    that it adds to its halves', by phase and of the step (projection/scale.py). kv_capacity_tokens: of all replicas.
    """

    detailed: bool = False
    tokens: bool = True
    within_s: float = math.inf
    steps: list[StepRecord] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    counters: EngineCounters = field(default_factory=EngineCounters)
    peak_kv_tokens: float = 0.0
    imbalances: list[float] = field(default_factory=list)
    agents: AgentCounters = field(default_factory=AgentCounters)
    ledger: TokenLedger | None = None
    doubling: dict[str, float] = field(default_factory=dict)
    kv_capacity_tokens: float = 0.0

    def passed(self, actor: str, phase: str, step: int, begin_s: float, seconds: float) -> float:
        """Record that ``seconds`` passed for ``actor`` from ``begin_s`` on; when that ends."""
        self.span(actor, phase, step, (begin_s, begin_s + seconds))
        return begin_s + seconds

    def span(self, actor: str, phase: str, step: int, begin_and_end_s: tuple[float, float], detail: str = "") -> None:
        """Record what ``actor`` did; spans of no duration are dropped."""
        start_s, end_s = begin_and_end_s
        if self.detailed and end_s > start_s:
            self.spans.append(Span(actor, phase, step, start_s, end_s, detail))

    def curve(self, name: str, times_s: Sequence[float], values: Sequence[float]) -> None:
        """Record a counter, thinned to the first point and the last of each of fewer than CURVE_POINTS equal moments.

        Every n-th point instead may leave a burst half done until the next one, long after.
        """
        if self.detailed and times_s:
            shown: Sequence[int] = range(len(times_s))
            if len(times_s) > CURVE_POINTS:
                at_s = np.asarray(times_s)
                moments = np.floor((at_s - at_s[0]) / max(at_s[-1] - at_s[0], 1e-9) * (CURVE_POINTS - 2))
                shown = distinct(np.array([0, *np.flatnonzero(np.diff(moments, append=np.inf))])).tolist()
            self.curves.append(Curve(name, tuple(times_s[i] for i in shown), tuple(values[i] for i in shown)))

    def book(self, ledger: TokenLedger) -> None:
        """Add where tokens went."""
        self.ledger = ledger if self.ledger is None else self.ledger + ledger

    def count(self, counters: EngineCounters, peak_kv_tokens: float) -> None:
        """Add what engines did."""
        self.counters.add(counters)
        self.peak_kv_tokens = max(self.peak_kv_tokens, peak_kv_tokens)

    def agents_shown(self, timeline: AgentTimeline, offset_s: float = 0.0, step: int = 0) -> None:
        """Draw a lane and a curve for the environments and for the judge, where anybody was there."""
        if not self.detailed:
            return
        for lane, presence in (("environment", timeline.environment), ("judge", timeline.judge)):
            for begin_s, end_s in presence.spans():
                self.span(lane, f"{lane}_s", step, (offset_s + begin_s, offset_s + end_s))
            times_s = [offset_s + time_s for time_s in presence.times_s]
            self.curve(f"trajectories with the {lane}", times_s, presence.counts)
        if timeline.environment.times_s:  # single turns have no more to show than their running sequences
            contexts = timeline.context
            # A turn adds its context where it is submitted and takes it away at its end: the signs count turns.
            turns = np.cumsum(np.sign(np.diff(contexts.counts, prepend=0.0))).tolist()
            for name, presence, counts in (
                (IN_SANDBOXES, timeline.sandbox, timeline.sandbox.counts),
                (CONTEXTS, contexts, contexts.counts),
                (IN_ENGINES, contexts, turns),
            ):
                self.curve(name, [offset_s + time_s for time_s in presence.times_s], counts)
            ends_s = [offset_s + contexts.times_s[at] for at in (0, -1)]
            self.curve(CAPACITY, ends_s, [self.kv_capacity_tokens] * 2)
