"""Engines that prefill alone: when a request reaches the one that decodes it, by hand."""

from typing import Any

import numpy as np
import pytest
from rollout_cases import cost_table, make_batch, told

from rlsim.costs.interface import EngineCounters, PrefillService
from rlsim.simulation.pool import Fleet
from rlsim.simulation.prefills import Prefills
from rlsim.simulation.requests import Request
from rlsim.simulation.rollout import rollout

PLAIN: dict[str, Any] = {"prefill_context_s": np.zeros(2)}
TOKEN_S = 8e-6
"""Of a prefill by cost_table, which takes 20 tokens more of an iteration of its own."""


def prefills(engines: int = 1, caching: bool = True, kv_token_s: float = 0.0, latency_s: float = 0.0) -> Prefills:
    service = PrefillService(engines, cost_table(**PLAIN), TOKEN_S, kv_token_s, latency_s)
    return Prefills(service, caching, EngineCounters())


def test_requests_wait_for_an_engine_share_its_iterations_and_send_what_they_computed() -> None:
    served = prefills(engines=2, kv_token_s=1e-6, latency_s=0.5)
    alone = (500 + 20) * TOKEN_S
    found = [served.arrives_s(0.0, Request(n, n, 500, 10, 9)) for n in range(4)]
    sent = 0.5 + 500e-6
    assert found == pytest.approx([alone + sent] * 2 + [alone + 500 * TOKEN_S + sent] * 2)
    # Idle again: alone.
    assert served.arrives_s(9.0, Request(9, 9, 500, 10, 9)) == pytest.approx(9.0 + alone + sent)


def test_prompts_of_a_group_and_contexts_of_turns_are_cached_until_new_weights_come() -> None:
    first, second = Request(0, 0, 500, 40, 39), Request(1, 0, 500, 40, 39)
    turn = Request(0, 0, 500, 40, 39, history_tokens=100)  # its response of 40 and 60 tokens of an answer
    served = prefills(kv_token_s=1e-6)
    cold = served.arrives_s(0.0, first)
    assert served.arrives_s(10.0, second) == pytest.approx(10.0 + 21 * TOKEN_S + 500e-6)
    assert served.arrives_s(20.0, turn) == pytest.approx(20.0 + 120 * TOKEN_S + 100e-6)
    served.forget()
    assert served.arrives_s(30.0, second) == pytest.approx(30.0 + cold)
    uncached = prefills(caching=False)
    assert [uncached.arrives_s(at, first) - at for at in (0.0, 10.0)] == pytest.approx([520 * TOKEN_S] * 2)


def test_where_prefill_and_transfer_are_free_it_is_the_mixed_engine_whose_prefill_is(both: Any) -> None:
    """Neither can be better: both decode the same batches, as all prompts fit the budget of one iteration."""
    free = cost_table(prefill_s=0.0, **PLAIN)
    rng = np.random.default_rng(3)
    batch = make_batch(rng.integers(1, 200, 60).tolist(), rng.integers(1, 300, 60).tolist(), group_size=4)
    apart = Fleet(2, "round_robin", free, prefill=PrefillService(1, free, 0.0, 0.0))
    mixed = Fleet(2, "round_robin", free)
    for one in both(lambda: [told(rollout(batch, batch.response_tokens - 1, fleet)) for fleet in (apart, mixed)]):
        assert one[0]["finish_s"] == one[1]["finish_s"]


@pytest.mark.parametrize("engines", [1, 3])
def test_too_few_engines_set_the_pace(engines: int) -> None:
    """A rollout of one token each takes as long as all prompts by tokens, but for the ends."""
    batch = make_batch([2000] * 90, [1] * 90)
    service = PrefillService(engines, cost_table(**PLAIN), TOKEN_S, 0.0)
    fast = cost_table(floor_s=1e-9, prefill_s=0.0, **PLAIN)
    found = rollout(batch, batch.response_tokens - 1, Fleet(2, "round_robin", fast, prefill=service))
    assert found.seconds == pytest.approx(90 * 2000 * TOKEN_S / engines, rel=0.01)
    assert found.counters.prefill_tokens == 90 * 2000 + 90
