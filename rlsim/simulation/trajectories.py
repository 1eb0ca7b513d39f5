"""Trajectories of several turns as the simulation takes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rlsim.errors import Infeasible
from rlsim.simulation.iteration_times import IterationTimes
from rlsim.simulation.requests import TOO_LONG, Request
from rlsim.units import FloatArray, IntArray
from rlsim.workload.batches import Generated


@dataclass(frozen=True, eq=False)
class Trajectories:
    """All trajectories of a run with their turns, numbered through; arrays as in workload.agents.Turns.

    prompt_tokens, group: of each trajectory. iterations: decode iterations of each turn.
    """

    prompt_tokens: IntArray
    group: IntArray
    first: IntArray
    history_tokens: IntArray
    response_tokens: IntArray
    iterations: IntArray
    environment_s: FloatArray
    judge_s: FloatArray

    @classmethod
    def of(cls, rollouts: Iterable[tuple[Generated, IntArray]], groups: int) -> Trajectories:
        """Those of several rollouts one after the other. groups: prompts of each."""
        drawn = [(one.batch, one.turns, iterations) for one, iterations in rollouts if one.turns is not None]
        offsets = np.cumsum([0, *(turns.count for _, turns, _ in drawn)])
        firsts = [turns.first[:-1] + offset for (_, turns, _), offset in zip(drawn, offsets, strict=False)]
        return cls(
            np.concatenate([batch.prompt_tokens for batch, _, _ in drawn]),
            np.concatenate([batch.group + number * groups for number, (batch, _, _) in enumerate(drawn)]),
            np.concatenate([*firsts, offsets[-1:]]),
            np.concatenate([turns.history_tokens for _, turns, _ in drawn]),
            np.concatenate([turns.response_tokens for _, turns, _ in drawn]),
            np.concatenate([iterations for _, _, iterations in drawn]),
            np.concatenate([turns.environment_s for _, turns, _ in drawn]),
            np.concatenate([turns.judge_s for _, turns, _ in drawn]),
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
