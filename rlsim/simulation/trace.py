"""What happened when: spans and step records written by the loops; every statistic is reckoned from them afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rlsim.results import Curve, Span
from rlsim.simulation.tally import Tally

CURVE_POINTS = 2000
"""Points of a counter in the timeline; more than a screen has columns."""


@dataclass(frozen=True)
class StepRecord:
    """One finished RL step.

    phases: seconds by contract name (PHASES of rlsim.results). staleness: consumed samples by age in steps.
    generated_tokens and total_tokens: of the batch trained on, without and with prompts.
    facts: engine statistics of the step (means over replicas).
    """

    step: int
    start_s: float
    end_s: float
    phases: dict[str, float]
    samples: int
    generated_tokens: float
    total_tokens: float
    staleness: dict[int, int]
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Duration of the step."""
        return self.end_s - self.start_s


@dataclass
class Trace:
    """Everything one replication recorded. Spans and curves are kept only where ``detailed``.

    tally: what the engines did in the measured steps.
    """

    detailed: bool = False
    steps: list[StepRecord] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    tally: Tally = field(default_factory=lambda: Tally(0))

    def span(self, actor: str, phase: str, step: int, start_s: float, end_s: float, detail: str = "") -> None:
        """Record what ``actor`` did; spans of no duration are dropped."""
        if self.detailed and end_s > start_s:
            self.spans.append(Span(actor, phase, step, start_s, end_s, detail))

    def curve(self, name: str, times_s: Sequence[float], values: Sequence[float]) -> None:
        """Record a counter, thinned to at most CURVE_POINTS evenly spaced points with the first and the last."""
        if self.detailed and times_s:
            kept = range(len(times_s))
            if len(times_s) > CURVE_POINTS:
                kept = np.linspace(0, len(times_s) - 1, CURVE_POINTS).round().astype(int).tolist()
            self.curves.append(Curve(name, tuple(times_s[i] for i in kept), tuple(values[i] for i in kept)))

    def iterations(self, tally: Tally, before: Tally | None = None) -> None:
        """Add what the engines of one rollout did, less what they had done ``before``."""
        self.tally.add(tally)
        if before is not None:
            self.tally.add(before, -1)
