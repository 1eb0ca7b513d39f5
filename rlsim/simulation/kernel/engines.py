"""The engines of an asynchronous loop in the kernel."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import asdict

from rlsim.costs.interface import EngineCounters, Prices
from rlsim.schema.scenario import Scenario
from rlsim.simulation.engines import NOBODY, Awaited, Engines, Groups, PythonEngines, trajectories_of
from rlsim.simulation.intake import groups_per_step
from rlsim.simulation.iteration_times import prepare
from rlsim.simulation.kernel.agents import KernelAgents, first_turns
from rlsim.simulation.kernel.library import GROUP_ARRAYS, GroupsStruct, address, library
from rlsim.simulation.kernel.pool import KernelPool
from rlsim.simulation.pool import fleet_of
from rlsim.simulation.replica import Action
from rlsim.simulation.requests import EmittedTokens, SampleTokens
from rlsim.simulation.trace import Trace
from rlsim.simulation.trajectories import AgentCounters
from rlsim.units import IntArray
from rlsim.workload.draw import DrawnWorkload

_ACTIONS: tuple[Action, ...] = ("keep", "recompute", "restart", "cancel")
"""In the order of ``Action`` in pool.h."""
PAUSES_PER_STEP = 3
"""A trainer pauses the engines at most for its transfer, its cancellations and what it recomputes; groups that
race are cancelled besides, each at most once."""


class KernelEngines(Engines):
    """:class:`~rlsim.simulation.engines.Engines` in C. prompts: of a step."""

    def __init__(
        self,
        kernel: ctypes.CDLL,
        scenario: Scenario,
        workload: DrawnWorkload,
        prices: Prices,
        groups: Groups,
        prompts: int,
        detailed: bool,
    ) -> None:
        engine, agent, timing = scenario.engine, scenario.workload.agent, prepare(prices.iteration)
        trajectories = trajectories_of(scenario, workload, prompts)
        columns = _columns(workload, prompts) if trajectories is None else first_turns(trajectories)
        self._pauses_left = PAUSES_PER_STEP * len(workload.steps) + columns[0].size // groups.group_size
        self._kernel, self._counters = kernel, EngineCounters(timing.max_sequences)
        self._pool = KernelPool(
            kernel,
            columns,
            fleet_of(scenario, prices),
            self._counters,
            max_pauses=self._pauses_left,
            completions=None if trajectories is None else trajectories.response_tokens.size,
        )
        self._agents: KernelAgents | None = None
        if trajectories is not None and agent is not None:
            trajectories.check_fit(timing)
            self._agents = KernelAgents(kernel, self._pool, agent, trajectories, engine.prefix_caching, detailed)
        super().__init__(groups, columns[0].size)
        counted = (self.unfinished, self.ended, self.starts, self.ended_s, self.starts_s, self.finish_s)
        agents_handle = None if self._agents is None else self._agents.handle
        struct = GroupsStruct(self._pool.handle, agents_handle, **asdict(groups))
        for name, array in zip(GROUP_ARRAYS, counted, strict=True):
            setattr(struct, name, address(array))
        self.groups: Any = struct  # what the kernel counts, by the same names

    def start(self, time_s: float) -> None:
        """Start the groups that may."""
        self._kernel.groups_start(self.groups, time_s)
        self._pool.check()

    def run(self, until_s: float, awaited: Awaited = NOBODY) -> list[int]:
        """Run until a time, or until those are done that somebody waits for; the groups that are done with it."""
        before = self.groups.num_done
        self._kernel.groups_run(self.groups, until_s, *awaited)
        self._pool.check()
        return self._done_since(before)

    def settle(self, time_s: float) -> None:
        """Let the engines begin what they begin at a time; nothing is done by it."""
        self._kernel.groups_settle(self.groups, time_s)

    def pause(self, time_s: float, duration_s: float, action: Action = "keep") -> None:
        """Stop every replica after its iteration in progress for ``duration_s``, and do to its requests as said.

        Raises ValueError for more pauses than the kernel has room for.
        """
        if not self._pauses_left:
            raise ValueError("more pauses than steps")
        self._pauses_left -= 1
        self._kernel.groups_pause(self.groups, time_s, duration_s, _ACTIONS.index(action))

    def cancel(self, time_s: float, groups: Sequence[int]) -> list[int]:
        """Abort running groups; the samples that each had left."""
        left = [int(self._kernel.groups_cancel(self.groups, group)) for group in groups]
        self.pause(time_s, 0.0, "cancel")
        return left

    @property
    def counters(self) -> EngineCounters:
        """Counters of the engines so far."""
        self._pool.book()
        return self._counters

    @property
    def agent_counters(self) -> AgentCounters | None:
        """What trajectories did so far besides generating, where there are any."""
        return None if self._agents is None else self._agents.counters

    @property
    def peak_kv_tokens(self) -> float:
        """Most KV cache that any replica had in use, in tokens."""
        self._pool.book()
        return float(self._pool.peak_kv_tokens.max())

    def emitted(self) -> EmittedTokens:
        """Response tokens that the engines emitted so far."""
        return self._pool.emitted()

    def in_progress(self, at_most: int) -> SampleTokens:
        """Unfinished samples and the response tokens that each has so far. at_most: how many can be."""
        return self._pool.in_progress(at_most)

    def show(self, trace: Trace) -> None:
        """Record what only engines know of the timeline."""
        if self._agents is not None:
            trace.agents_shown(self._agents.timeline)


def engines_of(
    scenario: Scenario, workload: DrawnWorkload, prices: Prices, groups: Groups, detailed: bool = False
) -> PythonEngines | KernelEngines:
    """The kernel's engines, or those in Python where it is not there; see :class:`KernelEngines`."""
    kernel, prompts = library(), groups_per_step(scenario)
    if kernel is None:
        return PythonEngines(scenario, workload, prices, groups, prompts)
    return KernelEngines(kernel, scenario, workload, prices, groups, prompts, detailed)


def _columns(workload: DrawnWorkload, prompts: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Prompt, response and prompt's number of the samples of all steps one after the other, and their iterations."""
    batches = tuple(step.rollouts[0].batch for step in workload.steps)
    numbered = [(batch.group + target * prompts).astype(np.int32) for target, batch in enumerate(batches)]
    return (
        np.concatenate([batch.prompt_tokens for batch in batches], dtype=np.int32),
        np.concatenate([batch.response_tokens for batch in batches], dtype=np.int32),
        np.concatenate([step.iterations[0] for step in workload.steps], dtype=np.int32),
        np.concatenate(numbered),
    )
