"""Trajectories of several turns: the C kernel against the Python reference, equal bits in whatever both tell."""

import math
from typing import Any

import numpy as np
import pytest
from fixed_costs import FixedCosts, World, world_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace
from rollout_cases import cost_table, services, told, traced

from rlsim.costs.interface import KvTier, PrefillService
from rlsim.schema.workload import Agent
from rlsim.simulation.pool import Fleet
from rlsim.simulation.rollout import AgentRollout, agent_rollout
from rlsim.workload.agents import Turns
from rlsim.workload.batches import Batch, Generated

RANDOM = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
LONG = 400
"""Tokens of the longest context."""
LIMITS = st.sampled_from([None, None, 1, 2, 5])
JUDGE = {"gpus": 1, "concurrency": 2, "trajectory_s": {"kind": "constant", "seconds": 1}}
JUDGES = st.sampled_from([None, None, JUDGE])
DISPATCH = st.sampled_from(["round_robin", "least_loaded", "shared_queue"])


MOSTLY = st.sampled_from([True, True, False])
ROUTING = st.sampled_from(["sticky", "least_loaded", "cache_aware"])


@st.composite
def tiers(draw: st.DrawFn) -> KvTier | None:
    if draw(st.sampled_from([False, False, True])):
        return None
    token_s, latency_s = draw(st.sampled_from([0.0, 1e-8, 1e-6])), draw(st.sampled_from([0.0, 0.0, 1e-6, 1e-4]))
    return KvTier(draw(st.sampled_from([0, 700, 10**9, 10**9])), token_s, latency_s, draw(st.booleans()),
                  draw(st.booleans()), draw(st.booleans()), draw(st.sampled_from([0.0, 0.0, 1e-7, 1e-5])))  # fmt: skip


@st.composite
def agents(draw: st.DrawFn) -> Agent:
    return Agent(
        max_environments=draw(LIMITS), max_trajectories=draw(LIMITS), keep_prefix=draw(MOSTLY),
        trajectory_timeout_s=draw(st.sampled_from([None, None, 0.3, 2.0, 8.0])), judge=draw(JUDGES),
        nodes=draw(st.sampled_from([None, None, {"count": 2, "places": 3}])),
        started_sandboxes=draw(st.sampled_from([0, 1, 4])), calls_per_s=draw(st.sampled_from([None, None, 0.7, 3.0])),
    )  # fmt: skip


@st.composite
def trajectories(draw: st.DrawFn) -> tuple[Generated, Any]:
    """Trajectories with failed attempts, environments that answer at once and others that take long."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size, groups = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    prompt, first, rows = rng.integers(1, 60, groups), [0], []
    for _ in range(size * groups):
        for attempt in reversed(range(int(rng.integers(1, 3)))):
            history, turns = 0, int(rng.integers(1, 7))
            for turn in range(turns):
                response = int(rng.integers(1, 40))
                wait_s = float(rng.choice([0.0, 0.0, 0.25, rng.exponential(1.5)]))
                rows.append((history, response, 0.0 if turn + 1 == turns and not attempt else wait_s))
                history += response + int(rng.integers(1, 12))
        first.append(len(rows))
    history, response, wait_s = (np.array(column) for column in zip(*rows, strict=True))
    samples = size * groups
    calls = draw(st.sampled_from([None, rng.integers(1, 4, wait_s.size)]))
    start_s = draw(st.sampled_from([None, rng.choice([0.0, 0.25, 1.5], samples)]))
    turns = Turns(np.array(first), history, response, wait_s, rng.exponential(1.0, samples), calls, start_s)
    group = np.arange(samples) // size
    last = np.array(first[1:]) - 1
    batch = Batch(prompt[group], history[last] + response[last], group)
    iterations = np.array([int(rng.integers(-(-(tokens - 1) // 2), tokens)) for tokens in response])
    return Generated(batch, np.ones(samples, dtype=np.bool_), turns), iterations


def all_told(found: AgentRollout) -> dict[str, Any]:
    """All that a rollout of agents tells, comparable with ==."""
    own = {"line": found.timeline, "made": found.result.generated_tokens}
    return {**told(found.result), **own, **asdict(found.counters)}


@RANDOM
@given(drawn=trajectories(), agent=agents(), dispatch=DISPATCH, replicas=st.integers(1, 4),
       prefix_caching=MOSTLY, slots=st.integers(1, 8), room=st.sampled_from([1, 40, 300, 1e6]),
       budget=st.sampled_from([16, 60, 8192]), chunked=st.booleans(), routing=ROUTING,
       below=st.one_of(tiers(), services()))  # fmt: skip
def test_rollouts_as_the_reference(
    both, drawn, agent, dispatch, replicas, prefix_caching, slots, room, budget, chunked, routing, below
):
    """Limits, nodes, start-up, calls that fail or queue for a service, time-outs, judges, failed attempts, reclaimed
    prefixes, tiers, engines that prefill alone, eviction, each dispatch that starts one by one and each routing.

    Besides: every turn is generated once, nobody is left anywhere, and every token of a context was prefilled, found or
    loaded.
    """
    one, iterations = drawn
    table = cost_table(
        max_running_sequences=slots, max_batched_tokens=budget, kv_capacity_tokens=LONG + room + 0.371717,
        chunked_prefill=chunked, tokens_per_sequence=2,
    )  # fmt: skip
    tier, prefill = (below, None) if isinstance(below, KvTier) else (None, below)
    dispatch = "least_loaded" if prefill is not None and dispatch == "shared_queue" else dispatch
    fleet = Fleet(replicas, dispatch, table, prefix_caching, routing=routing, tier=tier, prefill=prefill)
    fast, slow = both(lambda: all_told(agent_rollout(one, iterations, fleet, agent)))
    assert fast == slow
    assert min(slow["finish_s"]) > 0
    assert max(slow["peak_kv_tokens"]) <= LONG + room + 0.371717
    assert slow["made"] == one.turns.response_tokens.sum() - slow["skipped_tokens"]
    if slow["skipped_tokens"] == 0 and not slow["preemptions"]:
        assert slow["turns"] == one.turns.count
        assert sum(n * count for n, count in enumerate(slow["iterations_at"])) == iterations.sum()
        calls = np.ones(one.turns.count) if one.turns.calls is None else one.turns.calls
        assert slow["environment_s"] == pytest.approx((calls * one.turns.environment_s).sum())
        assert slow["calls"] == np.delete(calls, one.turns.first[1:] - 1).sum()
        if agent.calls_per_s and slow["calls"]:
            assert max(slow["finish_s"]) >= (slow["calls"] - 1) / agent.calls_per_s
        if one.batch.group[-1] + 1 == one.batch.samples and prefill is None:  # no prompt is another's
            contexts = (np.repeat(one.batch.prompt_tokens, np.diff(one.turns.first)) + one.turns.history_tokens).sum()
            assert slow["prefill_tokens"] + slow["reused_tokens"] + slow["loaded_tokens"] == contexts
    for presence in (slow["line"].environment, slow["line"].judge, sandboxes := slow["line"].sandbox):
        assert not presence.counts or presence.counts[-1] == 0
    contexts = slow["line"].context.counts
    assert not contexts or (min(contexts), contexts[-1]) == (0, 0)
    if sandboxes.counts:  # a trajectory is nowhere else between its start and its last turn
        assert max(sandboxes.counts) <= (agent.sandboxes or math.inf)
        assert slow["sandbox_s"] == pytest.approx(np.dot(np.diff(sandboxes.times_s), sandboxes.counts[:-1]))


LOOPS: dict[str, Any] = {
    "loop__poll_s": st.sampled_from([0, 0.5]), "loop__in_flight_updates": st.booleans(),
    "loop__recompute_kv": st.booleans(), "loop__start_unit": st.sampled_from(["group", "batch"]),
    "workload__environment_s": st.sampled_from([0, 2.5]), "workload__generated_batch_factor": st.sampled_from([1, 1.4]),
    "workload__agent__max_environments": st.sampled_from(["null", 1, 3]),
    "workload__agent__max_trajectories": st.sampled_from(["null", 2, 5]), "workload__agent__keep_prefix": st.booleans(),
    "workload__agent__trajectory_timeout_s": st.sampled_from(["null", 6.0]),
    "workload__agent__failure_share": st.sampled_from([0, 0.3]),
    "workload__agent__call_failure_share": st.sampled_from([0, 0, 0.3]),
    "workload__agent__start_s": st.sampled_from(["{kind: constant, seconds: 0}", "{kind: lognormal, mean_s: 3}"]),
    "workload__agent__started_sandboxes": st.sampled_from([0, 2]),
    "workload__agent__calls_per_s": st.sampled_from(["null", "null", 2.0]), "engine__dispatch": DISPATCH,
    "engine__session_routing": ROUTING,
    "simulation__seed": st.integers(0, 10_000),
}  # fmt: skip
AGENT = (
    "workload.agent={turns: {kind: lognormal, mean_turns: 3}, max_turns: 8, "
    "observation_tokens: {kind: lognormal, mean_tokens: 20}, environment_s: {kind: lognormal, mean_s: 2}, "
    "judge: {gpus: 2, concurrency: 3, trajectory_s: {kind: lognormal, mean_s: 1}}}"
)


def world(
    costs: FixedCosts, table: dict[str, Any], *overrides: str, below: KvTier | PrefillService | None = None, **keys: Any
) -> World:
    """Loops of trajectories on engines with few slots and a cache of one long context or more."""
    lengths = "workload.response_tokens={kind: lognormal, mean_tokens: 40, log_sigma: 0.8}"
    given_ = (lengths, AGENT, f"workload.max_sequence_tokens={LONG}", "simulation.steps=5", *overrides)
    made = world_of(costs, *given_, **keys)
    tier, prefill = (below, None) if isinstance(below, KvTier) else (None, below)
    prefill = None if made.scenario.engine.dispatch == "shared_queue" else prefill
    return replace(made, prices=replace(made.prices, iteration=cost_table(**table), tier=tier, prefill=prefill))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    overrides = [f"{name.replace('__', '.')}={str(draw(value)).lower()}" for name, value in LOOPS.items()]
    return world(
        FixedCosts(train_s=draw(st.sampled_from([0.0, 1.0, 30.0])), refit_s=draw(st.sampled_from([0.0, 0.7, 5.0]))),
        {"max_running_sequences": draw(st.integers(1, 8)), "max_batched_tokens": draw(st.sampled_from([16, 60, 8192])),
         "kv_capacity_tokens": LONG + draw(st.sampled_from([1, 40, 300, 1e6])) + 0.371717,
         "chunked_prefill": draw(st.booleans())},
        *overrides, lag=draw(st.integers(0, 3)), prompts=draw(st.integers(1, 5)), size=draw(st.integers(1, 4)),
        replicas=draw(st.integers(1, 4)), below=draw(st.one_of(tiers(), services())),
    )  # fmt: skip


@RANDOM
@given(world=worlds(), detailed=st.booleans())
def test_loops_are_those_of_the_reference(both, world, detailed):
    """Pauses, recomputed caches, draining, dropped groups, queues of environments and judges, resampled failures."""
    fast, slow = both(lambda: traced(world, detailed))
    assert fast == slow


@pytest.mark.parametrize("lag", [0, 1])
def test_the_loops_reach_eviction_and_time_outs(both, lag):
    """A guard for the test above: tight caches evict and reclaim, environments queue, trajectories run out of time."""
    table = {"max_running_sequences": 8, "max_batched_tokens": 60, "kv_capacity_tokens": LONG + 40.371717}
    keys = ("workload.agent.max_environments=2", "workload.agent.environment_s.mean_s=0.2",
            "workload.agent.trajectory_timeout_s=6", "workload.response_tokens.mean_tokens=90",
            "loop.recompute_kv=true", "engine.dispatch=round_robin")  # fmt: skip
    tight, roomy = (
        world(FixedCosts(), table, *keys, lag=lag, prompts=6, size=4, replicas=replicas) for replicas in (1, 4)
    )
    tier = KvTier(2000, 1e-6, shared=True, prefetch=True, store_token_s=1e-6)
    tiered = replace(tight, prices=replace(tight.prices, tier=tier))
    fast, slow = both(lambda: [traced(made, True) for made in (tight, roomy, tiered)])
    assert fast == slow
    assert slow[0]["counters"]["preemptions"] > 20
    assert min(slow[0]["agents"].timed_out, slow[0]["agents"].queued_s, slow[0]["agents"].judge_queued_s) > 0
    assert slow[1]["agents"].reused_tokens > 0
    assert slow[2]["agents"].loaded_tokens > 0
