"""Contexts between turns: caches that hold a part of them, tiers below, and where a next turn goes."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from rollout_cases import cost_table

from rlsim.costs.interface import KvTier
from rlsim.schema.engine import Routing
from rlsim.schema.workload import Agent
from rlsim.simulation.pool import Dispatcher, Fleet
from rlsim.simulation.prefixes import PrefixCache
from rlsim.simulation.rollout import AgentRollout, agent_rollout
from rlsim.workload.agents import Turns
from rlsim.workload.batches import Batch, Generated

CONTEXT, TURNS, NEW = 600, 12, 3
"""Tokens of a prompt, turns, and tokens by which a context grows in a turn: so few that all stay alike."""


def trajectories(count: int, wait_s: Any = 0.0, turns: int = TURNS) -> Generated:
    """Long prompts, each of one trajectory, with turns of a token and short observations."""
    history = np.arange(turns) * NEW
    waits = np.broadcast_to(wait_s, (count, turns)).copy()
    waits[:, -1] = 0.0
    drawn = Turns(np.arange(count + 1) * turns, np.tile(history, count), np.ones(count * turns, dtype=np.int64),
                  waits.ravel(), np.zeros(count))  # fmt: skip
    batch = Batch(np.full(count, CONTEXT), np.full(count, history[-1] + 1), np.arange(count))
    return Generated(batch, np.ones(count, dtype=np.bool_), drawn)


def ran(
    one: Generated, contexts: float, replicas: int = 1, slots: int = 1, agent: Agent | None = None,
    chunked: bool = True, **fleet: Any,
) -> AgentRollout:  # fmt: skip
    """On engines whose caches hold so many contexts."""
    room = contexts * (CONTEXT + NEW * TURNS) + 0.371717
    table = cost_table(kv_capacity_tokens=room, max_running_sequences=slots, prefill_context_s=np.zeros(2),
                       chunked_prefill=chunked)  # fmt: skip
    return agent_rollout(one, one.turns.response_tokens - 1, Fleet(replicas, "round_robin", table, **fleet),
                         agent or Agent())  # fmt: skip


def returning(one: Generated) -> int:
    """Tokens of contexts that all turns but the first ones come back to."""
    return one.batch.samples * sum(CONTEXT + NEW * turn - NEW for turn in range(1, TURNS))


def balance(one: Generated, found: AgentRollout) -> float:
    """Tokens prefilled, found and loaded, less the contexts of all turns."""
    contexts = one.batch.samples * sum(CONTEXT + NEW * turn for turn in range(TURNS))
    return found.result.counters.prefill_tokens + found.counters.reused_tokens + found.counters.loaded_tokens - contexts


@pytest.mark.parametrize("contexts", [2, 5, 8])
def test_a_cache_in_turn_misses_all_unless_it_holds_all(contexts):
    """Least recently used over a cycle: who is next is who was given up, until the first ones end and leave room."""
    one = trajectories(10)
    found = ran(one, contexts)
    assert found.counters.reused_tokens < contexts * (CONTEXT + NEW * TURNS)
    assert balance(one, found) == 0
    assert ran(one, 10).counters.reused_tokens == returning(one)


@pytest.mark.parametrize("held", [0.25, 0.5, 0.8])
def test_a_cache_at_random_finds_the_share_that_it_holds(held):
    """Independent returns, all as likely: of Che's approximation the exact case, hit share = capacity / contexts."""
    count, turns, rng = 40, 60, np.random.default_rng(5)
    # Waits so long that engines are idle nearly always: each who is away is as likely to come back next. All are there
    # up to the end, since nobody's turns are over when the time is.
    one = trajectories(count, rng.exponential(400.0, (count, turns)), turns)
    found = ran(one, held * count, slots=8, agent=Agent(trajectory_timeout_s=400.0 * turns / 3))
    returned = found.result.counters.prefill_tokens + found.counters.reused_tokens - count * CONTEXT
    share, returns = found.counters.reused_tokens / returned, found.counters.turns - count
    assert returns > 10 * count
    # A context grows by a tenth meanwhile.
    assert share == pytest.approx(held, abs=0.1 * held + 3 * (held * (1 - held) / returns) ** 0.5)


SLOW_S = 1e9
TIERS = [KvTier(10**9, 1e-6), KvTier(10**9, 1e-6, 1e-4, through=False), KvTier(10**9, 1e-6, 1e-4, shared=True)]


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_gives_back_what_its_bandwidth_allows(tier, chunked):
    """With one slot loads and all else follow one another: the time without misses and that of the loads.

    Where prefill stops decoding the rest is prefilled meanwhile, in less time than the load takes.
    """
    one = trajectories(10)
    roomy, missing = (ran(one, contexts, chunked=chunked) for contexts in (20, 3))
    found = ran(one, 3, chunked=chunked, tier=tier)
    loaded, loads = found.counters.loaded_tokens, 10 * (TURNS - 1)  # but for two that find all in the last cycle
    assert loaded + found.counters.reused_tokens == returning(one)
    assert loaded > 0.98 * returning(one)
    each_s = tier.latency_s - (0.0 if chunked else 8e-6 * (NEW + 20))
    expected_s = roomy.result.seconds + loaded * tier.token_s + loads * each_s
    assert found.result.seconds == pytest.approx(expected_s, rel=1e-9, abs=2.01 * abs(each_s))
    assert found.result.seconds < missing.result.seconds
    assert balance(one, found) == 0


def test_a_tier_that_is_slower_than_prefill_or_never_needed_changes_nothing():
    one = trajectories(10)
    for contexts, tier in ((3, KvTier(10**9, 0.0, SLOW_S)), (3, KvTier(10**9, 1.0)), (20, TIERS[0]), (20, TIERS[1])):
        plain, found = ran(one, contexts, slots=4), ran(one, contexts, slots=4, tier=tier)
        assert found.result.finish_s.tolist() == plain.result.finish_s.tolist()
        assert found.counters == plain.counters


def test_faster_and_larger_tiers_take_no_longer_and_half_a_tier_misses_in_turn():
    """A tier is least recently used as well: it helps once it holds what the cache does not."""
    one = trajectories(10)
    size = CONTEXT + NEW * TURNS
    seconds = [ran(one, 3, tier=KvTier(10**9, token_s)).result.seconds for token_s in (8e-6, 4e-6, 1e-6, 0.0)]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > seconds[-1]
    for through, enough in ((True, 10), (False, 8)):  # a copy of all, or of what does not fit above
        half, whole = (
            ran(one, 3, tier=KvTier(int(contexts * size), 1e-6, through=through)) for contexts in (enough / 2, enough)
        )
        assert half.counters.loaded_tokens < 0.05 * returning(one) < 0.9 * whole.counters.loaded_tokens
        assert balance(one, half) == balance(one, whole) == 0


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("tier", TIERS)
def test_prefetching_costs_what_the_environment_does_not_cover(tier, chunked):
    """Nothing where all loads fit into it, to the bit of a cache that holds all; as without where it takes no time."""
    ahead, keys = replace(tier, prefetch=True), {"slots": 4, "chunked": chunked}
    waits, at_once = trajectories(10, 0.1), trajectories(10)
    missing, found = ran(waits, 5, tier=tier, **keys), ran(waits, 5, tier=ahead, **keys)
    assert found.result.finish_s.tolist() == ran(waits, 20, **keys).result.finish_s.tolist()
    assert found.result.seconds < missing.result.seconds
    assert found.counters.loaded_tokens > 0.2 * returning(waits)
    assert balance(waits, found) == 0
    plain, found = ran(at_once, 5, tier=tier, **keys), ran(at_once, 5, tier=ahead, **keys)
    assert found.result.finish_s.tolist() == plain.result.finish_s.tolist()
    assert found.counters == plain.counters
    cache, load_s = PrefixCache(), tier.latency_s + CONTEXT * tier.token_s
    cache.tier = ahead
    for away_s in (0.0, load_s / 4, load_s, 2 * load_s):
        cache.away_s[0] = away_s
        assert max(9.0, cache.loaded_s(0, 9.0, CONTEXT)) == pytest.approx(9.0 + max(0.0, load_s - away_s), rel=1e-12)


@pytest.mark.parametrize("prefetch", [True, False])
def test_a_shared_store_sends_no_more_than_its_rate(prefetch):
    """Tokens loaded by all replicas over its rate take no longer than the rollout, as they do with a link each. One
    replica sees the slower of its link and the store."""
    one = trajectories(40, 0.005)
    tier = KvTier(10**9, 2e-6, 1e-5, shared=True, prefetch=prefetch)
    keys: dict[str, Any] = {"replicas": 4, "slots": 2}
    free = ran(one, 3, tier=tier, **keys)
    assert free.counters.loaded_tokens * tier.token_s > free.result.seconds
    for token_s in (1e-6, 2e-6, 4e-6):
        found = ran(one, 3, tier=replace(tier, store_token_s=token_s), **keys)
        assert 0.4 * found.result.seconds < found.counters.loaded_tokens * token_s <= found.result.seconds
        assert found.result.seconds > free.result.seconds
        assert balance(one, found) == 0
    by_link, by_store = (
        ran(one, 3, slots=2, tier=replace(tier, latency_s=0.0, token_s=link_s, store_token_s=store_s)).result.finish_s
        for link_s, store_s in ((2e-6, 0.0), (1e-7, 2e-6))
    )
    assert by_link.tolist() == by_store.tolist()


def test_turns_elsewhere_lose_their_prefix_unless_a_store_is_shared():
    """Of R replicas chosen by load one in R is that of before; a shared store gives back what others are short of."""
    rng = np.random.default_rng(1)
    one = trajectories(60, rng.exponential(0.05, (60, TURNS)))
    keys: dict[str, Any] = {"replicas": 3, "slots": 4}
    sticky, lost = ran(one, 60, **keys), ran(one, 60, routing="least_loaded", **keys)
    assert sticky.counters.reused_tokens == returning(one)
    assert 0.1 < lost.counters.reused_tokens / returning(one) < 0.6
    shared = ran(one, 60, routing="least_loaded", tier=KvTier(10**9, 0.0, shared=True), **keys)
    assert shared.counters.reused_tokens + shared.counters.loaded_tokens == returning(one)
    own = ran(one, 60, routing="least_loaded", tier=KvTier(10**9, 0.0), **keys)
    assert own.counters.loaded_tokens == 0
    assert [balance(one, found) for found in (sticky, lost, shared, own)] == [0] * 4
    alone = [ran(one, 30, slots=4, routing=routing).result.finish_s.tolist()
             for routing in ("sticky", "least_loaded", "cache_aware")]  # fmt: skip
    assert alone[0] == alone[1] == alone[2]


@pytest.mark.parametrize(("loads", "goes_to"), [
    ((64, 0, 9), 0), ((65, 0, 9), 1), ((200, 134, 134), 0), ((201, 134, 134), 0), ((202, 134, 135), 1),
    ((10, 80, 3), 2),
])  # fmt: skip
def test_a_cache_aware_router_leaves_a_prefix_where_replicas_are_uneven_alone(loads, goes_to):
    """More than 64 between the most and the least loaded, and the one more than 1.5 times the other."""
    dispatcher = Dispatcher(3, "round_robin", "cache_aware")
    for number, load in enumerate(loads):
        for _ in range(load):
            dispatcher.taken(number)
    assert dispatcher.returned(0) == goes_to


def test_a_cache_aware_router_in_c_is_the_same(both):
    """Half of the trajectories come back at once, to one of two replicas, as blocks of neighbours have it."""
    waits = np.zeros((600, TURNS))
    waits[300:] = 1e3
    one, table = trajectories(600, waits), cost_table(max_running_sequences=8)

    def found(routing: Routing) -> AgentRollout:
        fleet = Fleet(2, "static", table, routing=routing)
        return agent_rollout(one, one.turns.response_tokens - 1, fleet, Agent())

    fast, slow = both(lambda: found("cache_aware"))
    assert fast.result.finish_s.tolist() == slow.result.finish_s.tolist()
    assert fast.counters == slow.counters
    assert 0 < slow.counters.reused_tokens < found("sticky").counters.reused_tokens
