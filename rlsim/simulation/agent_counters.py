"""What trajectories of several turns do besides generating, counted."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass
class AgentCounters:
    """What trajectories did besides generating, sums over all of them.

    turns: ended ones. environment_s, judge_s: worked. queued_s, judge_queued_s: waited for a place there.
    environment_idle_s, judge_idle_s: replicas had nothing to do while trajectories of theirs were with their
    environments, or with the judge alone. reused_tokens: of contexts found in the prefix cache. timed_out: trajectories
    out of time, skipped_tokens: what they would have generated still.
    """

    turns: float = 0.0
    environment_s: float = 0.0
    queued_s: float = 0.0
    judge_s: float = 0.0
    judge_queued_s: float = 0.0
    environment_idle_s: float = 0.0
    judge_idle_s: float = 0.0
    reused_tokens: float = 0.0
    timed_out: float = 0.0
    skipped_tokens: float = 0.0

    def add(self, other: AgentCounters, sign: int = 1) -> None:
        """Add what others did."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + sign * getattr(other, item.name))
