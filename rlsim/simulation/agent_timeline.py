"""What a timeline shows of agents: trajectories with their environments and with the judge, and when there were any."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from rlsim.simulation.trace import Trace

SHOWN_SPANS = 500
"""Spans of a lane; more of them are joined over the shortest gaps."""


@dataclass
class Presence:
    """How many trajectories are somewhere: counts[i] from times_s[i] on."""

    times_s: list[float] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)

    def change(self, time_s: float, change: int) -> None:
        """So many more from now on."""
        self.times_s.append(time_s)
        self.counts.append((self.counts[-1] if self.counts else 0.0) + change)

    def spans(self) -> list[tuple[float, float]]:
        """When anybody was there."""
        out: list[tuple[float, float]] = []
        for (begin_s, count), (end_s, _) in pairwise(zip(self.times_s, self.counts, strict=True)):
            if count > 0 and out and out[-1][1] == begin_s:
                out[-1] = (out[-1][0], end_s)
            elif count > 0:
                out.append((begin_s, end_s))
        if len(out) <= SHOWN_SPANS:
            return out
        gaps = sorted(after[0] - before[1] for before, after in pairwise(out))
        least_s = gaps[-SHOWN_SPANS]
        joined = [out[0]]
        for span in out[1:]:
            if span[0] - joined[-1][1] > least_s:
                joined.append(span)
            else:
                joined[-1] = (joined[-1][0], span[1])
        return joined


@dataclass
class AgentTimeline:
    """Trajectories with their environments, at work or queueing, and with the judge."""

    environment: Presence = field(default_factory=Presence)
    judge: Presence = field(default_factory=Presence)


def show_agents(trace: Trace, timeline: AgentTimeline, offset_s: float = 0.0, step: int = 0) -> None:
    """Draw a lane and a curve for the environments and for the judge, where anybody was there."""
    if not trace.detailed:
        return
    for lane, presence in (("environment", timeline.environment), ("judge", timeline.judge)):
        for begin_s, end_s in presence.spans():
            trace.span(lane, f"{lane}_s", step, offset_s + begin_s, offset_s + end_s)
        trace.curve(
            f"trajectories with the {lane}", [offset_s + time_s for time_s in presence.times_s], presence.counts
        )
