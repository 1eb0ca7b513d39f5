"""Pools of the kernel: rollouts of one batch, from time 0 to the last token."""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import Any

import numpy as np
from msgspec.structs import astuple

from rlsim.costs.interface import EngineCounters, PrefillService
from rlsim.errors import Infeasible
from rlsim.schema.engine import Routing
from rlsim.simulation.iteration_times import IterationTimes, prepare
from rlsim.simulation.kernel.library import (
    CountersArrays,
    PrefillStruct,
    SamplesStruct,
    TierStruct,
    address,
    engine_struct,
)
from rlsim.simulation.pool import Dispatch, Fleet
from rlsim.simulation.requests import TOO_LONG, EmittedTokens, SampleTokens
from rlsim.units import IntArray

_DISPATCH: tuple[Dispatch, ...] = ("static", "round_robin", "least_loaded", "shared_queue")
_ROUTING: tuple[Routing, ...] = ("sticky", "least_loaded", "cache_aware")
"""In the order of ``Dispatch`` and ``Routing`` in pool.h."""


def _prefill_struct(service: PrefillService, timing: IterationTimes) -> PrefillStruct:
    view = ctypes.pointer(engine_struct(timing))
    return PrefillStruct(view, service.engines, service.token_s, service.kv_token_s, service.latency_s)


class KernelPool:
    """Idle replicas and samples that nobody has submitted; a context that frees the kernel's memory.

    columns: prompt tokens, response tokens, iterations and group of each sample; groups are numbers from 0. finish_s:
    of each sample, once it has finished. counters: brought up to date by :meth:`book`. completions: how often
    samples finish, where some come back; default once each.
    """

    def __init__(
        self,
        kernel: ctypes.CDLL,
        columns: tuple[IntArray, IntArray, IntArray, IntArray],
        fleet: Fleet,
        counters: EngineCounters,
        max_pauses: int = 0,
        completions: int | None = None,
    ) -> None:
        timing = prepare(fleet.table)
        samples = columns[0].size
        self.kernel, self.counters = kernel, counters
        self.finish_s, self._replica = np.zeros(samples), np.zeros(samples, dtype=np.int32)
        self.peak_kv_tokens = np.zeros(fleet.count)
        self._timing, self._arrays = timing, CountersArrays(counters)
        # Held as long as the kernel reads it: few tables stay prepared.
        service = fleet.prefill
        self._prefill_timing = timing if service is None else prepare(service.table)
        self._columns = tuple(np.ascontiguousarray(column, dtype=np.int32) for column in columns)
        self._samples = SamplesStruct(
            samples,
            int(self._columns[3].max(initial=0)) + 1,
            samples if completions is None else completions,
            *map(address, self._columns),
            address(self.finish_s),
            address(self._replica),
        )
        self.handle: int | None = kernel.pool_new(
            engine_struct(timing),
            self._arrays.struct,
            self._samples,
            fleet.count,
            _DISPATCH.index(fleet.dispatch),
            fleet.prefix_caching,
            max_pauses,
            _ROUTING.index(fleet.routing),
            TierStruct(-1) if fleet.tier is None else TierStruct(*astuple(fleet.tier)),
            PrefillStruct() if service is None else _prefill_struct(service, self._prefill_timing),
        )
        if self.handle is None:
            raise MemoryError("no memory for the replicas of a rollout")

    def __enter__(self) -> KernelPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Free the kernel's memory; nothing else may be called afterwards."""
        handle, self.handle = getattr(self, "handle", None), None
        if handle is not None:
            self.kernel.pool_free(handle)

    def run_all(self) -> None:
        """Run all samples, submitted at time 0."""
        self.kernel.pool_run_all(self.handle)
        self.book()

    def book(self) -> None:
        """Bring counters and peaks up to date. Raises Infeasible where a sample exceeded a replica's KV cache."""
        self.check()
        self._arrays.copy_to(self.counters)
        self.kernel.pool_peaks(self.handle, address(self.peak_kv_tokens))

    def emitted(self) -> EmittedTokens:
        """Response tokens emitted so far."""
        emitted = np.zeros(3)
        self.kernel.pool_emitted(self.handle, *(address(emitted[number:]) for number in range(3)))
        return EmittedTokens(*emitted.tolist())

    def in_progress(self, at_most: int) -> SampleTokens:
        """Unfinished samples and the response tokens that each has so far. at_most: how many can be."""
        samples, tokens = np.zeros(at_most, dtype=np.int64), np.zeros(at_most)
        count = self.kernel.pool_in_progress(self.handle, address(samples), address(tokens))
        return samples[:count], tokens[:count]

    @property
    def replica(self) -> IntArray:
        """Replica of each sample that has finished."""
        return self._replica.astype(np.int64)

    def check(self) -> None:
        """Raise Infeasible where a submitted sample could not fit the KV cache of a replica even alone."""
        sample = self.kernel.pool_infeasible(self.handle)
        if sample >= 0:
            timing: Any = self._timing
            prompt, response = (int(column[sample]) for column in self._columns[:2])
            raise Infeasible(
                TOO_LONG,
                prompt + response + timing.tokens_per_sequence - 1,
                timing.kv_capacity_tokens,
                "tokens",
            )
