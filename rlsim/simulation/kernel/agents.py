"""Trajectories of several turns in the kernel."""

import ctypes
import math

import numpy as np

from rlsim.schema.workload import Agent
from rlsim.simulation.kernel.library import RulesStruct, address
from rlsim.simulation.kernel.pool import KernelPool
from rlsim.simulation.trajectories import AgentCounters, AgentTimeline, Presence, Trajectories
from rlsim.units import IntArray


def first_turns(trajectories: Trajectories) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Columns of a :class:`KernelPool`: every trajectory with its first turn."""
    first = trajectories.first[:-1]
    return (
        trajectories.prompt_tokens,
        trajectories.response_tokens[first],
        trajectories.iterations[first],
        trajectories.group,
    )


class KernelAgents:
    """Trajectories on a pool of the kernel that was made of their :func:`first_turns`.

    detailed: with the timeline of environments and judge.
    """

    def __init__(
        self,
        kernel: ctypes.CDLL,
        pool: KernelPool,
        agent: Agent,
        trajectories: Trajectories,
        sharing: bool,
        detailed: bool,
    ) -> None:
        self._kernel, self._pool = kernel, pool
        turns, count = trajectories.response_tokens.size, trajectories.group.size
        whole = (trajectories.first, trajectories.history_tokens, trajectories.response_tokens, trajectories.iterations)
        self._whole = tuple(np.ascontiguousarray(column, dtype=np.int64) for column in whole)
        # A copy: calls that are made count down.
        self._calls = None if trajectories.calls is None else np.array(trajectories.calls, dtype=np.int64)
        self._start_s = None if trajectories.start_s is None else np.ascontiguousarray(trajectories.start_s, np.float64)
        self._seconds = tuple(
            np.ascontiguousarray(column, dtype=np.float64)
            for column in (trajectories.environment_s, trajectories.judge_s)
        )
        sizes = (*[2 * turns] * 2, *[2 * count] * 4, *[2 * turns] * 2) if detailed else (0,) * 8
        self._presence = tuple(np.zeros(size) for size in sizes)
        rules = RulesStruct(
            count,
            *map(address, self._whole),
            *map(address, self._seconds),
            *(-1 if most is None else most for most in (agent.sandboxes, agent.max_environments)),
            0 if agent.judge is None else agent.judge.concurrency,
            agent.keep_prefix and sharing,
            min(agent.started_sandboxes, count),
            math.inf if agent.trajectory_timeout_s is None else agent.trajectory_timeout_s,
            0.0 if agent.calls_per_s is None else 1.0 / agent.calls_per_s,
            *(None if column is None else address(column) for column in (self._calls, self._start_s)),
            *(map(address, self._presence) if detailed else (None,) * 8),
        )
        self.handle: int | None = kernel.agents_new(pool.handle, rules)
        if self.handle is None:
            raise MemoryError("no memory for the trajectories of a run")

    def __del__(self) -> None:
        handle, self.handle = getattr(self, "handle", None), None
        if handle is not None:
            self._kernel.agents_free(handle)

    def run_all(self) -> None:
        """Run all trajectories from time 0."""
        self._kernel.agents_run_all(self.handle)
        self._pool.book()

    @property
    def counters(self) -> AgentCounters:
        """Counters of trajectories so far, besides generation."""
        return AgentCounters(*self._read_counters()[0])

    @property
    def timeline(self) -> AgentTimeline:
        """Environments, judge, sandboxes and contexts so far, where ``detailed``."""
        _, changes = self._read_counters()
        arrays = [array.tolist() for array in self._presence]
        pairs = zip(arrays[::2], arrays[1::2], changes, strict=True)
        return AgentTimeline(*(Presence(times_s[:count], counts[:count]) for times_s, counts, count in pairs))

    def _read_counters(self) -> tuple[list[float], list[int]]:
        counters, changes = np.zeros(len(AgentCounters.__struct_fields__)), np.zeros(4, dtype=np.int64)
        self._kernel.agents_told(self.handle, address(counters), address(changes))
        return counters.tolist(), changes.tolist()
