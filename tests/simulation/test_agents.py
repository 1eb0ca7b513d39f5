"""Trajectories of several turns against arithmetic: environments, limits, prefixes, time-outs, failures, judges."""

from typing import Any

import numpy as np
import pytest
from fixed_costs import PROMPT, FixedCosts, World, run, world_of
from msgspec.structs import replace
from rollout_cases import cost_table, counted

from rlsim.errors import Infeasible, InputError
from rlsim.schema.run import Nodes
from rlsim.schema.workload import Agent
from rlsim.simulation.pool import Fleet
from rlsim.simulation.rollout import AgentRollout, agent_rollout
from rlsim.workload.agents import Turns
from rlsim.workload.batches import Batch, Generated
from rlsim.workload.draw import draw

TURN, OBSERVATION = 21, 7
"""Tokens of a turn and of the environment's answer."""


def trajectories(count: int, turns: int, environment_s: float, judge_s: float = 0.0, size: int = 1) -> Generated:
    """Equal trajectories; ``size`` of them share a prompt."""
    history = np.arange(turns) * (TURN + OBSERVATION)
    group = np.arange(count) // size
    response = turns * TURN + (turns - 1) * OBSERVATION
    batch = Batch(np.full(count, PROMPT), np.full(count, response), group)
    waits = np.where(np.arange(turns) < turns - 1, environment_s, 0.0)
    drawn = Turns(np.arange(count + 1) * turns, np.tile(history, count), np.full(count * turns, TURN),
                  np.tile(waits, count), np.full(count, judge_s))  # fmt: skip
    return Generated(batch, np.ones(count, dtype=np.bool_), drawn)


def ran(one: Generated, agent: Agent, costs: FixedCosts | None = None, replicas: int = 1, **keys: Any) -> AgentRollout:
    """The rollout on engines whose iterations all take 0.25 s."""
    table = (costs or FixedCosts()).iteration
    iterations = one.turns.response_tokens - 1
    return agent_rollout(one, iterations, Fleet(replicas, keys.pop("dispatch", "round_robin"), table, **keys), agent)


def some(**keys: Any) -> Agent:
    """An agent whose turns are given; the keys matter that the simulation itself reads."""
    return Agent.model_validate(keys)


@pytest.mark.parametrize("turns", [1, 2, 5])
@pytest.mark.parametrize("keep", [True, False])
def test_one_trajectory_takes_its_turns_and_what_the_environment_takes_between_them(turns, keep):
    """T (prefill + L tpot) + (T - 1) e, with prefills of the whole context or of what is new since the last turn."""
    costs = FixedCosts(prefill_token_s=0.5)
    found = ran(trajectories(1, turns, environment_s=3.0), some(keep_prefix=keep), costs)
    new = [PROMPT + turn * (TURN + OBSERVATION) for turn in range(turns)]
    if keep:  # the last token of a turn was never in the cache
        new = [PROMPT, *[OBSERVATION + 1] * (turns - 1)]
    assert found.result.seconds == 0.5 * sum(new) + turns * (TURN - 1) * 0.25 + (turns - 1) * 3.0
    assert found.result.counters.prefill_tokens == sum(new)
    if turns > 1:
        assert found.counters.environment_s == 3.0 * (turns - 1) == found.counters.environment_idle_s
        assert found.counters.reused_tokens == (sum(PROMPT + t * 28 for t in range(turns)) - sum(new))


def test_more_trajectories_than_prefixes_fit_prefill_again_and_again():
    """8 of 64 trajectories fit with their whole contexts; what is not found of a context is prefilled once more."""
    one, turns = trajectories(64, 12, environment_s=0.3), 12
    contexts = 64 * sum(PROMPT + turn * (TURN + OBSERVATION) for turn in range(turns))
    new, found = 64 * (PROMPT + (turns - 1) * (OBSERVATION + 1)), {}
    for most in (1, 8, 24, 64):
        table = cost_table(kv_capacity_tokens=3000.0, prefill_s=2e-3)
        given = agent_rollout(one, one.turns.response_tokens - 1, Fleet(1, "round_robin", table),
                              some(max_trajectories=most))  # fmt: skip
        counters = given.result.counters
        assert counters.prefill_tokens + given.counters.reused_tokens >= contexts
        assert counters.preemptions or counters.prefill_tokens + given.counters.reused_tokens == contexts
        found[most] = (counters.prefill_tokens, given.counters.reused_tokens, given.result.seconds)
    assert found[1][0] == found[8][0] == new
    assert found[8][1] > 4 * found[24][1] > 16 * found[64][1]
    assert found[8][2] < found[24][2] < found[64][2] < found[1][2]


def test_limits_serialise_and_time_ends_in_progress():
    """Turns of equal length end together; with one place the k-th of them waits for k - 1 others."""
    found = ran(trajectories(4, 2, environment_s=10.0), some(max_environments=1))
    generation_s = (TURN - 1) * 0.25
    assert sorted(found.result.finish_s) == [2 * generation_s + 10.0 * k for k in (1, 2, 3, 4)]
    assert found.counters.queued_s == 10.0 * (1 + 2 + 3)
    unlimited = ran(trajectories(4, 2, environment_s=10.0), some())
    assert unlimited.result.seconds == 2 * generation_s + 10.0
    alone = ran(trajectories(1, 3, environment_s=2.0), some()).result.seconds
    found = ran(trajectories(5, 3, environment_s=2.0), some(max_trajectories=1))
    assert sorted(found.result.finish_s) == [alone * k for k in (1, 2, 3, 4, 5)]
    found = ran(trajectories(7, 4, environment_s=1.5), some(), replicas=3)
    assert found.result.replica.tolist() == [0, 1, 2, 0, 1, 2, 0]
    waiting = ran(trajectories(1, 4, environment_s=10.0), some(trajectory_timeout_s=generation_s + 4.0))
    assert waiting.result.seconds == generation_s + 4.0
    generating = ran(trajectories(1, 4, environment_s=10.0), some(trajectory_timeout_s=generation_s + 11.0))
    assert generating.result.seconds == 2 * generation_s + 10.0
    assert (waiting.counters.timed_out, waiting.counters.skipped_tokens) == (1, 3 * TURN)
    assert (generating.counters.timed_out, generating.counters.skipped_tokens) == (1, 2 * TURN)
    assert generating.result.generated_tokens == 2 * TURN
    judge = {"gpus": 1, "concurrency": 2, "trajectory_s": {"kind": "constant", "seconds": 6.0}}
    found = ran(trajectories(5, 1, 0.0, judge_s=6.0), some(judge=judge))
    assert sorted(found.result.finish_s) == [generation_s + wait for wait in (6.0, 6.0, 12.0, 12.0, 18.0)]
    assert (found.counters.judge_s, found.counters.judge_queued_s) == (30.0, 6.0 + 6.0 + 12.0)


def test_sandboxes_start_in_their_places_or_before_they_are_needed():
    """On one place k trajectories take k (s + own) with start-ups of s; one sandbox that is started beside hides what
    the trajectory before takes: all of it where that is longer, else two start at a time."""
    alone = ran(trajectories(1, 3, environment_s=2.0), some()).result.seconds
    for start_s in (alone / 4, alone / 2, 4 * alone):
        drawn = trajectories(5, 3, environment_s=2.0)
        starting = replace(drawn, turns=replace(drawn.turns, start_s=np.full(5, start_s)))
        found = ran(starting, some(nodes={"count": 1, "places": 1}))
        assert sorted(found.result.finish_s) == pytest.approx([(start_s + alone) * k for k in (1, 2, 3, 4, 5)])
        assert found.counters.start_s == pytest.approx(5 * start_s)
        assert found.counters.sandbox_s == pytest.approx(5 * (start_s + alone))
        ready = ran(starting, some(nodes={"count": 1, "places": 2}, started_sandboxes=1))
        waits = [0, 1, 1, 2, 2] if start_s > alone else [0] * 5
        ends = [wait * start_s + (k - wait) * alone for k, wait in enumerate(waits, 1)]
        assert sorted(ready.result.finish_s) == pytest.approx(ends)
        assert ready.counters.sandbox_s == pytest.approx(5 * alone + ready.counters.start_s)
        assert ran(starting, some(started_sandboxes=5)).result.seconds == ran(drawn, some()).result.seconds


def test_a_service_lets_so_many_calls_begin_and_failed_ones_are_made_again():
    """n calls at a rate take at least (n - 1) / rate, equal ones exactly so; calls of m attempts, each of which fails
    with share p, are (1 - p^m) / (1 - p) attempts in the mean."""
    generation_s = (TURN - 1) * 0.25
    found = ran(trajectories(6, 2, environment_s=1.0), some(calls_per_s=0.5), replicas=6)
    assert sorted(found.result.finish_s) == [2 * generation_s + 1.0 + 2.0 * k for k in range(6)]
    assert (found.counters.calls, found.counters.queued_s) == (6, 2.0 * (1 + 2 + 3 + 4 + 5))
    drawn = trajectories(1, 3, environment_s=2.0)
    failing = replace(drawn, turns=replace(drawn.turns, calls=np.array([3, 1, 1])))
    assert ran(failing, some()).result.seconds == ran(drawn, some()).result.seconds + 2 * 2.0
    # Attempts are calls of the service too: five at a rate of one in 4 s, each of 2 s, begin 4 s apart.
    assert ran(failing, some(calls_per_s=0.25)).counters.queued_s == 2.0 + 2.0
    share, attempts = 0.4, 3
    failing_keys = f"call_failure_share: {share}, call_attempts: {attempts}"
    keys = f"workload.agent={{turns: {{kind: constant, turns: 9}}, {failing_keys}}}"
    calls = draw(world_of(FixedCosts(), keys, tokens=TURN, prompts=400).scenario, 0).steps[0].rollouts[0].turns.calls
    mean = (1 - share**attempts) / (1 - share)
    assert (calls.min(), calls.max()) == (1, attempts)
    assert abs(calls.mean() - mean) < 4 * calls.std() / np.sqrt(calls.size)


def test_a_full_cache_reclaims_the_contexts_of_those_who_are_away_and_a_turn_must_fit():
    """Two long contexts do not fit at once: whoever comes back finds little and prefills the rest again."""
    one = trajectories(6, 6, environment_s=0.4)
    tokens = {}
    for capacity in (1e6, 260.37):
        table = cost_table(max_running_sequences=4, kv_capacity_tokens=capacity)
        found = agent_rollout(one, one.turns.response_tokens - 1, Fleet(1, "round_robin", table), some())
        tokens[capacity] = found.result.counters.prefill_tokens
        assert found.counters.turns == 36
        assert found.result.generated_tokens == 36 * TURN
        assert found.result.peak_kv_tokens[0] <= capacity
    assert tokens[260.37] > 1.3 * tokens[1e6]
    one = trajectories(2, 6, environment_s=0.4)
    with pytest.raises(Infeasible, match="exceeds the KV cache"):
        agent_rollout(one, one.turns.response_tokens - 1, Fleet(1, "round_robin", cost_table(kv_capacity_tokens=100.0)),
                      some())  # fmt: skip


AGENT = "workload.agent={turns: {kind: constant, turns: 3}, environment_s: {kind: constant, seconds: 8}}"


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_one_turn_gives_what_no_agent_gives(lag):
    """Whatever an environment would take that is never asked."""
    lengths = "workload.response_tokens={kind: lognormal, mean_tokens: 200, log_sigma: 0.8}"
    agent = "workload.agent={environment_s: {kind: constant, seconds: 50}, max_environments: 1, keep_prefix: false}"
    plain, single = (run(world_of(FixedCosts(), lengths, *keys, lag=lag)) for keys in ((), (agent,)))
    # Ages of tokens are not followed through trajectories.
    assert [replace(step, token_ages={}) for step in plain.steps] == single.steps
    assert counted(plain.counters) == counted(single.counters)
    assert (plain.spans, plain.curves) == (single.spans, single.curves)


def agent_world(lag: int, *overrides: str, **keys: Any) -> World:
    """Trajectories of three equal turns that wait 8 s for their environment after each of the first two."""
    return world_of(FixedCosts(), AGENT, *overrides, lag=lag, tokens=TURN, **keys)


def test_an_asynchronous_step_hides_what_the_environment_takes_behind_the_trainer():
    """A batch that takes less than the trainer's own work exposes nothing; one that takes longer sets the pace."""
    trace = run(agent_world(1))
    costs = FixedCosts()
    batch_s, chain_s = 3 * (TURN - 1) * 0.25 + 2 * 8.0, costs.trainer_s + costs.refit_s
    steady = trace.steps[4:]
    assert all(step.seconds == pytest.approx(max(batch_s + costs.refit_s, chain_s), abs=0.75) for step in steady)
    assert trace.agents.turns >= 12 * 8 * 3


def test_failed_trajectories_are_not_trained_on_and_lengths_end_where_the_context_is_full():
    def drawn(share: float) -> Any:
        keys = f"workload.agent={{turns: {{kind: constant, turns: 4}}, failure_share: {share}}}"
        return draw(world_of(FixedCosts(), keys, tokens=TURN, prompts=50).scenario, 0).steps[0]

    failing, sound = drawn(0.4), drawn(0.0)
    assert (failing.trained_tokens == sound.trained_tokens).all()
    turns = failing.rollouts[0].turns
    attempts = int((turns.history_tokens == 0).sum())
    assert 1.3 < attempts / 100 < 1.8  # 1 + 0.4 + 0.16
    assert sound.generated_tokens < failing.generated_tokens == turns.response_tokens.sum()
    world = agent_world(0, "workload.agent.turns.turns=500", "workload.max_sequence_tokens=300")
    step = draw(world.scenario, 0).steps[0]
    turns = step.rollouts[0].turns
    assert (PROMPT + turns.history_tokens + turns.response_tokens).max() <= 300
    assert step.trained_tokens.max() <= 300
    assert np.diff(turns.first).min() > 5


def test_draws_follow_the_seed_and_no_key_moves_anothers_draw():
    keys = ["environment_s: {kind: lognormal, mean_s: 5}", "turns: {kind: lognormal, mean_turns: 6}, max_turns: 9"]

    def drawn(*given: str, seed: int = 3) -> Turns:
        world = world_of(FixedCosts(), "workload.response_tokens={kind: lognormal, mean_tokens: 90}",
                         f"workload.agent={{{', '.join(given)}}}", f"simulation.seed={seed}")  # fmt: skip
        turns = draw(world.scenario, 0).steps[2].rollouts[0].turns
        return turns

    both, again, other = drawn(*keys), drawn(*keys), drawn(*keys, seed=4)
    for name in ("first", "history_tokens", "response_tokens", "environment_s", "judge_s"):
        assert getattr(both, name).tobytes() == getattr(again, name).tobytes()
    assert both.environment_s.tobytes() != other.environment_s.tobytes()
    longer = drawn(*keys, "observation_tokens: {kind: constant, tokens: 40}")
    assert (longer.response_tokens == both.response_tokens).all()
    assert (longer.environment_s == both.environment_s).all()
    assert np.diff(both.first).max() <= 9


@pytest.mark.parametrize(("override", "message"), [
    ("workload.agent.turn=3", "turns"),
    ("workload.agent.max_environments=0", "max_environments"),
    ("workload.agent={nodes: {count: 1, places: 2}, started_sandboxes: 2}", "must be below the places of the nodes"),
    ("workload.agent.nodes={count: 1, cores: 8}", "cores and sandbox_cores need each other"),
    ("workload.agent.nodes={count: 1}", "give places, or cores or memory_bytes"),
    ("workload.agent.nodes={count: 1, places: 1, cores: 8, sandbox_cores: 1}", "give places, or cores"),
    ("workload.agent.nodes={count: 1, cores: 1, sandbox_cores: 2}", "a node holds 0 sandboxes"),
    ("workload.agent={replay: {path: x.csv}, call_failure_share: 0.1}", "give no call_failure_share"),
    ("workload.agent.environment_group_correlation=0.7", "must not exceed 1"),
    ("workload.agent.environment_s={kind: trace, path: nowhere.csv}", "nowhere.csv"),
])  # fmt: skip
def test_bad_keys_are_told_in_one_line(override, message):
    with pytest.raises(InputError, match=message) as error:
        draw(world_of(FixedCosts(), AGENT, "workload.agent.environment_trajectory_correlation=0.5", override).scenario,
             0)  # fmt: skip
    assert "\n" not in str(error.value)


def test_a_node_holds_what_fits_into_its_cores_and_its_memory():
    def held(**keys):
        return Nodes(count=3, **keys).sandboxes / 3

    memory = {"memory_bytes": 64e9, "sandbox_memory_bytes": 2e9}
    assert held(cores=6.4, sandbox_cores=0.1) == 64 and held(**memory) == 32 and held(places=5) == 5
    assert held(cores=16, sandbox_cores=1, **memory) == 16 == held(cores=16.9, sandbox_cores=1)
    assert held(cores=64, sandbox_cores=1, **memory) == 32
