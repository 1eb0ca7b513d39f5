"""Trajectories of several turns as the simulation takes them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise

import numpy as np
from msgspec import Struct, field

from rlsim.errors import Infeasible
from rlsim.simulation.iteration_times import IterationTimes
from rlsim.simulation.requests import TOO_LONG, Request
from rlsim.units import FloatArray, IntArray
from rlsim.workload.batches import Generated


class Trajectories(Struct, frozen=True, eq=False, dict=True):
    """All trajectories of a run with their turns, numbered through; arrays as in workload.agents.Turns.

    prompt_tokens, group: of each trajectory. iterations: decode iterations of each turn. calls, start_s: None as there.
    """

    prompt_tokens: IntArray
    group: IntArray
    first: IntArray
    history_tokens: IntArray
    response_tokens: IntArray
    iterations: IntArray
    environment_s: FloatArray
    judge_s: FloatArray
    calls: IntArray | None = None
    start_s: FloatArray | None = None

    @classmethod
    def of(cls, rollouts: Iterable[tuple[Generated, IntArray]], groups: int) -> Trajectories:
        """Trajectories of several rollouts one after the other. groups: prompts of each."""
        drawn = [(one.batch, one.turns, iterations) for one, iterations in rollouts if one.turns is not None]
        offsets = np.cumsum([0, *(turns.count for _, turns, _ in drawn)])
        firsts = [turns.first[:-1] + offset for (_, turns, _), offset in zip(drawn, offsets, strict=False)]
        calls = [turns.calls for _, turns, _ in drawn if turns.calls is not None]
        start_s = [turns.start_s for _, turns, _ in drawn if turns.start_s is not None]
        return cls(
            np.concatenate([batch.prompt_tokens for batch, _, _ in drawn]),
            np.concatenate([batch.group + number * groups for number, (batch, _, _) in enumerate(drawn)]),
            np.concatenate([*firsts, offsets[-1:]]),
            np.concatenate([turns.history_tokens for _, turns, _ in drawn]),
            np.concatenate([turns.response_tokens for _, turns, _ in drawn]),
            np.concatenate([iterations for _, _, iterations in drawn]),
            np.concatenate([turns.environment_s for _, turns, _ in drawn]),
            np.concatenate([turns.judge_s for _, turns, _ in drawn]),
            np.concatenate(calls) if calls else None,
            np.concatenate(start_s) if start_s else None,
        )

    @cached_property
    def requests(self) -> list[Request]:
        """The request of every turn; its id is the number of the trajectory."""
        owner = np.repeat(np.arange(self.group.size), np.diff(self.first))
        columns = (
            owner,
            self.group[owner],
            self.prompt_tokens[owner],
            self.response_tokens,
            self.iterations,
            self.history_tokens,
        )
        return list(map(Request._make, zip(*(column.tolist() for column in columns), strict=True)))

    def first_request(self, trajectory: int) -> Request:
        """The request of its first turn."""
        return self.requests[int(self.first[trajectory])]

    def check_fit(self, timing: IterationTimes) -> None:
        """Raise Infeasible where a turn would exceed the KV cache of a replica even alone."""
        own = np.repeat(self.prompt_tokens, np.diff(self.first)) + self.history_tokens + self.response_tokens
        longest = float(own.max(initial=0)) + timing.tokens_per_sequence - 1
        if longest > timing.kv_capacity_tokens:
            raise Infeasible(TOO_LONG, longest, timing.kv_capacity_tokens, "tokens")


SHOWN_SPANS = 500
"""Spans of a lane; more of them are joined over the shortest gaps."""


class AgentCounters(Struct):
    """What trajectories did besides generating, sums over all of them.

    turns: ended ones. environment_s, judge_s: worked. queued_s, judge_queued_s: waited for a place there, or for the
    service that environments call. calls: made of environments, failed ones among them. start_s: waited for a sandbox
    to start; sandbox_s: from there to the end of the trajectory, of those that ended.
    environment_idle_s, judge_idle_s: replicas had nothing to do while trajectories of theirs were with their
    environments, or with the judge alone. reused_tokens: of contexts found in the prefix cache, loaded_tokens: from a
    tier below it. timed_out: trajectories out of time, skipped_tokens: what they would have generated still.
    """

    turns: float = 0.0
    environment_s: float = 0.0
    queued_s: float = 0.0
    judge_s: float = 0.0
    judge_queued_s: float = 0.0
    environment_idle_s: float = 0.0
    judge_idle_s: float = 0.0
    reused_tokens: float = 0.0
    loaded_tokens: float = 0.0
    timed_out: float = 0.0
    skipped_tokens: float = 0.0
    calls: float = 0.0
    start_s: float = 0.0
    sandbox_s: float = 0.0

    def add(self, other: AgentCounters, sign: int = 1) -> None:
        """Add what others did."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + sign * getattr(other, name))


class Presence(Struct):
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
        # So many gaps less one are longer: as many spans remain as are shown.
        least_s = gaps[-SHOWN_SPANS]
        joined = [out[0]]
        for span in out[1:]:
            if span[0] - joined[-1][1] > least_s:
                joined.append(span)
            else:
                joined[-1] = (joined[-1][0], span[1])
        return joined


class AgentTimeline(Struct):
    """Trajectories with their environments, at work or queueing, with the judge, and in sandboxes; and tokens of
    context with which turns that engines have were submitted."""

    environment: Presence = field(default_factory=Presence)
    judge: Presence = field(default_factory=Presence)
    sandbox: Presence = field(default_factory=Presence)
    context: Presence = field(default_factory=Presence)
