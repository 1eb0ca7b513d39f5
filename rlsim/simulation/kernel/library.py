"""The compiled kernel: which one runs, its structures and its functions."""

import ctypes
from ctypes import POINTER, Structure, c_double, c_int64, c_void_p
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rlsim.costs.interface import EngineCounters
from rlsim.files.kernel import compiled
from rlsim.simulation.iteration_times import IterationTimes

_TABLES = ("step_s", "attention_s", "integral", "prefill_s", "grid_tokens", "context_s", "context_integral")


class EngineStruct(Structure):
    """``IterationTimes`` of iteration_times.h."""

    _fields_ = (
        *((name, c_void_p) for name in _TABLES),
        ("inverse_knot", c_double),
        ("kv_capacity_tokens", c_double),
        *(
            (name, c_int64)
            for name in (
                "knots",
                "grid",
                "tokens_per_sequence",
                "max_batched_tokens",
                "max_sequences",
                "chunked_prefill",
            )
        ),
    )


class CountersStruct(Structure):
    """``Counters`` of pool.h."""

    _fields_ = (
        ("iterations_at", c_void_p),
        ("context_at", c_void_p),
        ("prefill_iterations", c_int64),
        ("prefill_tokens", c_int64),
        ("prefill_squares", c_int64),
        ("preemptions", c_int64),
        ("prefill_s", c_double),
    )


class TierStruct(Structure):
    """``Tier`` of pool.h."""

    _fields_ = (
        ("capacity_tokens", c_int64),
        ("token_s", c_double),
        ("latency_s", c_double),
        ("through", c_int64),
        ("shared", c_int64),
        ("prefetch", c_int64),
        ("store_token_s", c_double),
    )


class PrefillStruct(Structure):
    """``Prefill`` of pool.h."""

    _fields_ = (
        ("timing", POINTER(EngineStruct)),
        ("engines", c_int64),
        ("token_s", c_double),
        ("kv_token_s", c_double),
        ("latency_s", c_double),
    )


class SamplesStruct(Structure):
    """``Samples`` of pool.h."""

    _fields_ = (
        ("samples", c_int64),
        ("groups", c_int64),
        ("completions", c_int64),
        *(
            (name, c_void_p)
            for name in ("prompt_tokens", "response_tokens", "iterations", "group", "finish_s", "replica")
        ),
    )


GROUP_ARRAYS = ("unfinished", "ended", "starts", "ended_s", "starts_s", "finish_s")


class GroupsStruct(Structure):
    """``Groups`` of groups.c."""

    _fields_ = (
        ("pool", c_void_p),
        ("agents", c_void_p),
        *(
            (name, c_int64)
            for name in (
                "group_size", "released", "max_in_flight", "max_done", "unit", "paused", "started", "in_flight",
                "running", "num_ended", "num_done", "num_starts",
            )
        ),
        *((name, c_double) for name in ("reward_s", "busy_s", "busy_since_s")),
        *((name, c_void_p) for name in GROUP_ARRAYS),
    )  # fmt: skip


class RulesStruct(Structure):
    """``Rules`` of agents.c."""

    _fields_ = (
        ("trajectories", c_int64),
        *((name, c_void_p) for name in ("first", "history", "response", "iterations", "environment_s", "judge_s")),
        *((name, c_int64) for name in ("max_trajectories", "max_environments", "judges", "keeps", "sandboxes")),
        *((name, c_double) for name in ("timeout_s", "interval_s")),
        *((name, c_void_p) for name in ("calls", "start_s", "times_s", "away", "judge_times_s", "judged")),
        *((name, c_void_p) for name in ("sandbox_times_s", "in_sandboxes", "context_times_s", "contexts")),
    )


_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "pool_new": (
        c_void_p,
        (
            POINTER(EngineStruct),
            POINTER(CountersStruct),
            POINTER(SamplesStruct),
            *(c_int64,) * 5,
            POINTER(TierStruct),
            POINTER(PrefillStruct),
        ),
    ),
    "pool_free": (None, (c_void_p,)),
    "pool_run_all": (None, (c_void_p,)),
    "pool_peaks": (None, (c_void_p, c_void_p)),
    "pool_infeasible": (c_int64, (c_void_p,)),
    "pool_emitted": (None, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "pool_in_progress": (c_int64, (c_void_p, c_void_p, c_void_p)),
    "agents_new": (c_void_p, (c_void_p, POINTER(RulesStruct))),
    "agents_free": (None, (c_void_p,)),
    "agents_run_all": (None, (c_void_p,)),
    "agents_told": (None, (c_void_p, c_void_p, c_void_p)),
    "groups_start": (None, (POINTER(GroupsStruct), c_double)),
    "groups_settle": (None, (POINTER(GroupsStruct), c_double)),
    "groups_run": (None, (POINTER(GroupsStruct), c_double, c_int64, c_int64, c_int64)),
    "groups_cancel": (c_int64, (POINTER(GroupsStruct), c_int64)),
    "groups_pause": (None, (POINTER(GroupsStruct), c_double, c_double, c_int64)),
}


def implementation() -> Literal["c", "python"]:
    """What simulates events: the C kernel or the Python reference. Raises InputError for an unknown RLSIM_KERNEL."""
    return "python" if library() is None else "c"


def library() -> ctypes.CDLL | None:
    """The kernel with the types of its functions, or None where the reference runs."""
    found = compiled()
    return None if found is None else _typed(found)


@cache
def _typed(loaded: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def address(array: NDArray[Any]) -> int:
    """Where a contiguous array lies."""
    return int(array.ctypes.data)


def engine_struct(timing: IterationTimes) -> EngineStruct:
    """Tables and limits of an engine; valid as long as ``timing`` lives, which keeps it."""
    view: EngineStruct | None = timing.kernel_view
    if view is None:
        view = timing.kernel_view = EngineStruct(
            address(timing.step_s),
            address(timing.attention),
            address(timing.integral),
            address(timing.prefill_table),
            address(timing.grid_tokens),
            address(timing.context),
            address(timing.context_integral),
            timing.inverse_knot,
            timing.kv_capacity_tokens,
            timing.attention.shape[1],
            timing.grid_tokens.size,
            timing.tokens_per_sequence,
            timing.max_batched_tokens,
            timing.max_sequences,
            timing.chunked_prefill,
        )
    return view


class CountersArrays:
    """EngineCounters as the kernel adds to them."""

    def __init__(self, counters: EngineCounters) -> None:
        # Most rollouts begin with nothing counted, and zeros are made ten times as fast as a list is converted.
        self._iterations_at = np.zeros(len(counters.iterations_at), dtype=np.int64)
        self._context_at = np.zeros(len(counters.context_at))
        if any(counters.iterations_at):
            self._iterations_at[:] = counters.iterations_at
            self._context_at[:] = counters.context_at
        self.struct = CountersStruct(
            address(self._iterations_at),
            address(self._context_at),
            counters.prefill_iterations,
            counters.prefill_tokens,
            counters.prefill_squares,
            counters.preemptions,
            counters.prefill_s,
        )

    def copy_to(self, counters: EngineCounters) -> None:
        """Set ``counters`` to what has been counted."""
        struct = self.struct
        counters.iterations_at, counters.context_at = self._iterations_at.tolist(), self._context_at.tolist()
        counters.prefill_iterations, counters.prefill_tokens = struct.prefill_iterations, struct.prefill_tokens
        counters.prefill_squares = struct.prefill_squares
        counters.preemptions, counters.prefill_s = struct.preemptions, struct.prefill_s
