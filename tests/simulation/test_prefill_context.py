"""Prefill behind a context takes the pairs of query and key that it makes, in the kernel and in the reference alike."""

from dataclasses import replace

import numpy as np
import pytest

from rlsim.costs.interface import EngineCounters, IterationTable
from rlsim.simulation.iteration_times import IterationTimes
from rlsim.simulation.kernel.library import library as kernel_library
from rlsim.simulation.kernel.pool import KernelPool
from rlsim.simulation.pool import Fleet
from rlsim.simulation.replica import Replica
from rlsim.simulation.requests import Request
from rlsim.simulation.rollout import rollout
from tests.simulation.fixed_costs import PROMPT, FixedCosts
from tests.simulation.rollout_cases import make_batch
from tests.simulation.test_agents import OBSERVATION, TURN, ran, some, trajectories

PAIR_S = 2.0**-10
COSTS = FixedCosts(prefill_pair_s=PAIR_S)


def pairs(start: int, end: int) -> float:
    """Pairs of the tokens from ``start`` to ``end`` of a sequence with those before them and half of themselves."""
    return (end**2 - start**2) / 2


def table_of(**keys: object) -> IterationTable:
    return replace(COSTS.iteration, **keys)  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [1, 7, 64, 1000, 100_000])
def test_chunks_of_a_prompt_add_up_to_the_whole(both, budget):
    prompts = [1000, 30, 517]
    batch = make_batch(prompts, [200] * 3)
    table = table_of(max_batched_tokens=budget)
    found = both(lambda: rollout(batch, batch.response_tokens - 1, Fleet(1, "static", table)).counters)
    whole_s = PAIR_S * sum(pairs(0, prompt) for prompt in prompts)
    for counters in found:
        assert counters.prefill_tokens == sum(prompts)
        assert counters.prefill_s == pytest.approx(whole_s, rel=1e-12)


@pytest.mark.parametrize("keep", [True, False])
def test_turns_of_an_agent_attend_to_their_history(both, keep):
    turns = 5
    found = both(lambda: ran(trajectories(1, turns, 3.0), some(keep_prefix=keep), COSTS).result)
    ends = [PROMPT + turn * (TURN + OBSERVATION) for turn in range(turns)]
    starts = [0, *(end - OBSERVATION - 1 for end in ends[1:])] if keep else [0] * turns
    added_s = PAIR_S * sum(pairs(start, end) for start, end in zip(starts, ends, strict=True))
    for result in found:
        assert result.counters.prefill_s == pytest.approx(added_s, rel=1e-12)
        assert result.seconds == pytest.approx(added_s + turns * (TURN - 1) * 0.25 + (turns - 1) * 3.0, rel=1e-12)


def test_what_an_update_recomputes_is_priced_at_its_own_length():
    again = Replica(COSTS.iteration)
    again.submit(0.0, [Request(0, 0, 50, 400, 399), Request(1, 0, 50, 400, 399)])
    again.pause(PAIR_S * (pairs(0, 50) + pairs(49, 50)) + 100 * 0.25, 0.0, "recompute")
    again.advance_to(np.inf)
    first_s = PAIR_S * (pairs(0, 50) + pairs(49, 50))
    # The prompt is there once; both have 101 tokens of their own behind it, the last of which was never in the cache.
    assert again.counters.prefill_s == pytest.approx(first_s + PAIR_S * (pairs(0, 151) + pairs(50, 151)), rel=1e-12)


def test_what_was_preempted_is_priced_at_its_own_length(both):
    """Two sequences outgrow the cache: the newer one leaves and prefills what it had once the older one is done."""
    batch = make_batch([50, 50], [200, 200])
    table = table_of(kv_capacity_tokens=301.5)
    found = both(lambda: rollout(batch, batch.response_tokens - 1, Fleet(1, "static", table, False)).counters)
    for counters in found:
        assert counters.preemptions == 1
        again = counters.prefill_tokens - 100
        assert 140 < again < 160
        assert counters.prefill_s == pytest.approx(PAIR_S * (2 * pairs(0, 50) + pairs(0, again)), rel=1e-12)


def test_a_table_with_times_that_are_no_times_is_refused():
    for name, value in (
        ("step_s", np.nan),
        ("attention_s", -1.0),
        ("prefill_s", np.inf),
        ("prefill_context_s", np.nan),
    ):
        with pytest.raises(ValueError, match=f"{name} of an iteration table"):
            table_of(**{name: np.full_like(getattr(COSTS.iteration, name), value)})


def test_rows_of_replicas_that_are_not_there_are_refused(kernel):
    library = kernel_library()
    timing, columns = IterationTimes(COSTS.iteration), tuple(np.ones(2, dtype=np.int64) for _ in range(4))
    counters, refused = EngineCounters(timing.max_sequences), pytest.raises(IndexError, match="numbered from 0 to 0")
    with KernelPool(library, columns, Fleet(1, "static", COSTS.iteration), counters) as pool, refused:
        pool.run_rows(np.array([1]), np.array([[0, 1]]))
