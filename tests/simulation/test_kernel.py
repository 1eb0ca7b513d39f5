"""The C kernel against the Python reference: equal bits in whatever both tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rollout_cases import cost_table, make_batch, sample_lists, tables

from rlsim.costs.interface import EngineCounters, IterationTable
from rlsim.errors import Infeasible, InputError
from rlsim.simulation.kernel import library as kernel_library
from rlsim.simulation.kernel.build import build
from rlsim.simulation.kernel.library import VARIABLE, implementation
from rlsim.simulation.requests import Request
from rlsim.simulation.rollout import RolloutResult, rollout
from rlsim.workload.batches import Batch

DISPATCH = st.sampled_from(["static", "round_robin", "least_loaded", "shared_queue"])
RANDOM = settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def kernel() -> None:
    """The kernel of these sources, compiled if need be; no test where there is no compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(VARIABLE, raising=False)
        if implementation() == "python":
            build()
            kernel_library._load.cache_clear()
        if implementation() == "python":
            pytest.skip("no C compiler")


@pytest.fixture
def both(kernel: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], Any]], tuple[Any, Any]]]:
    """What a function gives with the kernel and with the reference."""

    def run(function: Callable[[], Any]) -> tuple[Any, Any]:
        results = []
        for wanted in ("auto", "python"):
            monkeypatch.setenv(VARIABLE, wanted)
            assert implementation() == ("python" if wanted == "python" else "c")
            results.append(function())
        return results[0], results[1]

    yield run


def counted(counters: EngineCounters) -> dict[str, Any]:
    """All that the engines did."""
    return {name: getattr(counters, name) for name in EngineCounters.__slots__}


def told(result: RolloutResult) -> dict[str, Any]:
    """All that a rollout tells, comparable with ==."""
    arrays = ("finish_s", "replica", "replica_end_s", "peak_kv_tokens")
    return {**{name: getattr(result, name).tolist() for name in arrays}, **counted(result.counters)}


def batch_of(samples: list[Request]) -> tuple[Batch, Any]:
    """A batch whose groups may come in any order, and its iterations."""
    _, group, prompt, response, iterations = map(np.asarray, zip(*samples, strict=True))
    return Batch(prompt, response, group), iterations


@RANDOM
@given(data=st.data(), dispatch=DISPATCH, replicas=st.integers(1, 4), prefix_caching=st.booleans())
def test_rollouts_are_those_of_the_reference(both, data, dispatch, replicas, prefix_caching):
    """Slots, tight KV cache, eviction, chunked and unmixed prefill, shared prompts, speculation."""
    table = data.draw(tables())
    batch, iterations = batch_of(data.draw(sample_lists(table.tokens_per_sequence, most=60)))
    fast, slow = both(lambda: told(rollout(batch, iterations, replicas, dispatch, table, prefix_caching)))
    assert fast == slow


@pytest.mark.parametrize("dispatch", ["static", "shared_queue"])
@pytest.mark.parametrize("chunked", [True, False])
def test_many_evictions_are_those_of_the_reference(both, dispatch, chunked):
    """A heap full of entries of evicted sequences is cleared in between."""
    table = cost_table(
        max_running_sequences=24, max_batched_tokens=64, kv_capacity_tokens=900.371717, chunked_prefill=chunked
    )
    rng = np.random.default_rng(7)
    responses = rng.integers(1, 400, 300).tolist()
    batch = make_batch(rng.integers(1, 60, 300).tolist(), responses, group_size=5)
    iterations = np.maximum((batch.response_tokens - 1) // 2, 0)
    fast, slow = both(lambda: told(rollout(batch, iterations, 3, dispatch, table)))
    assert fast == slow
    assert slow["preemptions"] > 500


def test_a_sample_that_cannot_fit_is_infeasible_in_both(both):
    table: IterationTable = cost_table(max_running_sequences=2, kv_capacity_tokens=100.0)
    batch = make_batch([10] * 5, [20, 20, 95, 20, 20])

    def refused() -> str:
        with pytest.raises(Infeasible) as error:
            rollout(batch, batch.response_tokens - 1, 1, "shared_queue", table)
        return str(error.value)

    fast, slow = both(refused)
    assert fast == slow


def test_an_unknown_kernel_is_an_input_error(monkeypatch):
    monkeypatch.setenv(VARIABLE, "fortran")
    with pytest.raises(InputError, match="RLSIM_KERNEL"):
        implementation()


def test_a_library_of_other_sources_is_not_loaded(kernel, monkeypatch):
    monkeypatch.setattr(kernel_library, "sources_digest", lambda: "of other sources")
    assert kernel_library._load.__wrapped__() is None
