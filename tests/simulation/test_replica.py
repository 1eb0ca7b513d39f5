"""One replica against a token-by-token reference written apart from it, and against arithmetic."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from reference_rollout import ReferenceReplica
from rollout_cases import cost_table, sample_lists, tables

from rlsim.costs.interface import IterationTable
from rlsim.errors import Infeasible
from rlsim.simulation.pool import Fleet
from rlsim.simulation.replica import Replica
from rlsim.simulation.requests import Request
from rlsim.simulation.rollout import rollout
from tests.simulation.fixed_costs import PROMPT, FixedCosts
from tests.simulation.rollout_cases import make_batch
from tests.simulation.test_agents import OBSERVATION, TURN, ran, some, trajectories

Interrupt = tuple[float, float, bool]


def run_both(
    table: IterationTable,
    samples: list[Request],
    arrivals: list[float],
    interrupts: list[Interrupt],
    prefix_caching: bool,
) -> tuple[Replica, dict[int, float], ReferenceReplica]:
    """Drive the fast replica event by event and run the reference on the same submissions."""
    fast, slow = Replica(table, prefix_caching), ReferenceReplica(table, prefix_caching)
    slow.interrupts = sorted(interrupts)
    done: list[tuple[float, int]] = []
    times = sorted({*arrivals, *(time for time, _, _ in interrupts)})
    for time in [*times, math.inf]:
        while fast.next_event_time() < time:
            done += fast.advance_to(fast.next_event_time())
        arriving = [sample for sample, at in zip(samples, arrivals, strict=True) if at == time]
        if arriving:
            fast.submit(time, arriving)
            slow.submit(time, arriving)
        for _, pause_s, recompute in (i for i in slow.interrupts if i[0] == time):
            fast.pause(time, pause_s, "recompute" if recompute else "keep")
    slow.run()
    assert done == sorted(done, key=lambda event: event[0])
    return fast, {sample: time for time, sample in done}, slow


@given(data=st.data())
def test_agrees_with_the_token_by_token_reference(data: st.DataObject) -> None:
    """Queueing, chunks, eviction, shared prompts, speculation, arrivals and pauses; the requirement is 0.1 %."""
    table = data.draw(tables())
    samples = data.draw(sample_lists(table.tokens_per_sequence))
    moments = st.sampled_from([0.0, 0.0, 0.0, 0.013, 0.1, 0.1, 0.31])
    arrivals = sorted(data.draw(st.lists(moments, min_size=len(samples), max_size=len(samples))))
    interrupts = data.draw(
        st.lists(st.tuples(st.floats(0.001, 0.6), st.floats(0, 0.1), st.booleans()), max_size=3,
                 unique_by=lambda i: i[0]),
    )  # fmt: skip
    fast, finish, slow = run_both(table, samples, arrivals, interrupts, data.draw(st.booleans()))
    assert finish == pytest.approx(slow.finish, rel=1e-5)
    assert fast.counters.preemptions == slow.preemptions
    assert fast.counters.prefill_tokens == slow.prefilled
    assert fast.peak_kv_tokens == pytest.approx(slow.peak_kv)
    assert fast.outstanding == 0


def test_shared_prompts_prefill_and_hold_once_and_a_sequence_must_fit() -> None:
    samples = [Request(i, 0, 1000, 11, 10) for i in range(8)]
    replica = Replica(cost_table())
    replica.submit(0.0, samples)
    replica.advance_to(math.inf)
    assert replica.counters.prefill_tokens == 1000 + 7
    assert replica.peak_kv_tokens == 1000 + 8 * (9 + 1)
    replica = Replica(cost_table(kv_capacity_tokens=99.0))
    with pytest.raises(Infeasible, match="KV cache") as error:
        replica.submit(0.0, [Request(0, 0, 60, 40, 39)])
    assert (error.value.needed, error.value.available) == (100, 99)


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


def test_what_an_update_recomputes_and_what_was_preempted_are_priced_at_their_own_lengths(both):
    again = Replica(COSTS.iteration)
    again.submit(0.0, [Request(0, 0, 50, 400, 399), Request(1, 0, 50, 400, 399)])
    again.pause(PAIR_S * (pairs(0, 50) + pairs(49, 50)) + 100 * 0.25, 0.0, "recompute")
    again.advance_to(np.inf)
    first_s = PAIR_S * (pairs(0, 50) + pairs(49, 50))
    # The prompt is there once; both have 101 tokens of their own behind it, the last of which was never in the cache.
    assert again.counters.prefill_s == pytest.approx(first_s + PAIR_S * (pairs(0, 151) + pairs(50, 151)), rel=1e-12)
    # Two sequences outgrow the cache: the newer one leaves and prefills what it had once the older one is done.
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
