"""Rules of the projection's parts: conservation of GPU time, closed forms, bounds, and what changes do."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlsim.costs.interface import EngineCounters
from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection import agent_moves, effects, headroom, moves, scale, verdict
from rlsim.projection.control import regression
from rlsim.projection.efficiency import efficiency_of
from rlsim.projection.idle import idle_of
from rlsim.projection.summary import _idle
from rlsim.projection.uncertainty.features import FEATURES, Coded, Feature, differences
from rlsim.projection.uncertainty.slopes import POINTS, points_of
from rlsim.projection.variant import SimulatedVariant, extended, simulate_variant
from rlsim.schema.scenario import Scenario

SMALL = ("simulation.replications=1", "workload.prompts_per_step=16", "trainer.global_batch_samples=512")
LAG = ("loop.mode=async", "cluster.generation_gpus=4")
TURNS = "workload.agent={max_turns: 8, environment_s: {kind: lognormal, mean_s: 2, log_sigma: 0.5}%s}"


def small(*keys: str) -> Scenario:
    return load_scenario("quickstart", [*SMALL, *keys])


@pytest.fixture(
    scope="module",
    params=[(), LAG, (*LAG, TURNS % ""), ("speculation.method=none",), (*LAG, "cluster.reference_gpus=2")],
    ids=" ".join,
)
def run(request: pytest.FixtureRequest) -> SimulatedVariant:
    return simulate_variant(small(*request.param))


@pytest.mark.parametrize(("environment_s", "judge_s"), [(1.0, 1.0), (4.0, 30.0), (40.0, 3.0), (0.0, 0.0)])
def test_waits_of_a_replica_fill_its_idle_time_and_no_more(environment_s: float, judge_s: float) -> None:
    waited = SimpleNamespace(environment_idle_s=environment_s, judge_idle_s=judge_s)
    agents = SimpleNamespace(workload=SimpleNamespace(agent=True))
    one: Any = SimpleNamespace(scenario=agents, agents=waited, prices=SimpleNamespace(replicas=2))
    seconds = [part.seconds for part in _idle(one, 3.0, steps=2)]
    assert sum(seconds) == pytest.approx(3.0) and min(seconds) >= 0
    assert seconds[0] == pytest.approx(min(3.0, environment_s / 4))
    assert seconds[1] == pytest.approx(min(3.0 - seconds[0], judge_s / 4))


def test_the_seconds_of_a_gpu_are_work_or_idle_with_a_cause(run: SimulatedVariant) -> None:
    found, cluster = idle_of(run), run.scenario.cluster
    step_s = float(np.mean([step.seconds for step in run.every_step]))
    idle_s = {pool: sum(one.gpu_s for one in found if one.pool == pool) for pool in {one.pool for one in found}}
    assert [one.gpu_s for one in found] == sorted((one.gpu_s for one in found), reverse=True)
    assert all(one.share == pytest.approx(one.gpu_s / step_s / cluster.num_gpus) for one in found)
    busy_s = sum(part.seconds for part in run.prices.engine.parts(run.counters))
    busy_s /= len(run.every_step) * run.prices.replicas
    trained_s = sum(run.phases_s[f"{name}_s"] for name in ("data", "logprob", "train"))
    waits = {name: sum(part.seconds for step in run.every_step for cost in (step.cost.logprob, step.cost.train)
                       for part in cost.parts if part.name == name) / len(run.every_step) for name in
             {one.cause for one in found}}  # fmt: skip
    if cluster.reference_gpus:
        scored_s = float(np.mean([step.cost.reference_s for step in run.every_step]))
        assert scored_s > 0 and idle_s.pop("reference") / 2 == pytest.approx(step_s - scored_s)
    if cluster.colocated:
        assert set(idle_s) == {"all"}
        other_s = run.phases_s["generation_s"] + run.phases_s["prepare_s"] - busy_s + sum(waits.values())
        assert idle_s["all"] / cluster.num_gpus == pytest.approx(other_s)
    else:
        assert set(idle_s) == {"generation", "training"}
        assert idle_s["generation"] / cluster.generation == pytest.approx(step_s - busy_s)
        assert idle_s["training"] / cluster.training == pytest.approx(step_s - trained_s + sum(waits.values()))


def test_efficiency_is_tokens_and_operations_over_seconds_gpus_and_peak(run: SimulatedVariant) -> None:
    found = {one.phase: one for one in efficiency_of(run)}
    steps, cluster = run.every_step, run.scenario.cluster
    tokens = {"generation_s": np.mean([step.generated_tokens for step in steps])}
    for name in ("logprob_s", "train_s"):
        tokens[name] = np.mean([step.total_tokens for step in steps])
    assert found.keys() == {name for name in tokens if run.phases_s[name] > 0}
    for name, one in found.items():
        gpus = cluster.generation if name == "generation_s" else cluster.training
        rate = tokens[name] / run.phases_s[name] / gpus
        assert one.tokens_per_s_per_gpu == pytest.approx(rate)
        assert 0 < one.mfu <= one.hfu < 1
        # 2 FLOP a token and parameter forward (8.03 billion, a tenth of them embeddings and attention beside), 6 with
        # the backward pass.
        twice = (
            name == "logprob_s" and run.scenario.loop.mode == "async" and not cluster.reference_gpus
        )  # of the reference, and of the policy
        passes = 3 if name == "train_s" else 1 + twice
        assert one.mfu * one.peak_flops / rate == pytest.approx(passes * 2 * 8.03e9, rel=0.12)
        assert (one.bandwidth_use is None) == (name != "generation_s")
    used = found["generation_s"].bandwidth_use
    assert used is not None and 0 < used < 1
    # Of four tokens that are verified 2.79 stay; the drafter's passes come on top.
    more = found["generation_s"].hfu / found["generation_s"].mfu
    assert more == pytest.approx(4 / 2.79, rel=0.05) if run.scenario.speculation.active else more == 1


def test_seconds_of_iterations_are_their_table_between_its_columns(run: SimulatedVariant) -> None:
    table, counters = run.prices.iteration, EngineCounters(4)
    counters.count(3, 10, 1.25 * table.context_step_tokens)
    counters.count(1, 2, 0.0)
    counters.prefill_s = 7.0
    low, high = table.attention_s[3, 1], table.attention_s[3, 2]
    wanted = 7.0 + 10 * (table.step_s[3] + 0.75 * low + 0.25 * high) + 2 * (table.step_s[1] + table.attention_s[1, 0])
    assert headroom._iteration_seconds(table, counters) == pytest.approx(wanted)


def test_points_stand_for_equally_many_of_the_counted_iterations() -> None:
    counters = EngineCounters(300)
    for batch in range(1, 301):
        counters.count(batch, 7, 10.0 * batch)
    batches, contexts, times = points_of(counters)
    assert len(batches) == POINTS and times.sum() == 2100
    assert times.max() - times.min() <= 14 and (np.diff(batches) > 0).all()
    assert batches @ times == pytest.approx(sum(7 * batch for batch in range(1, 301)), rel=0.01)
    assert contexts @ times == pytest.approx(sum(70 * batch for batch in range(1, 301)))
    alone = EngineCounters(3)
    assert [len(part) for part in points_of(alone)] == [0, 0, 0]
    alone.count(0, 9, 5.0)
    alone.count(2, 4, 0.0)
    assert [part.tolist() for part in points_of(alone)] == [[2], [1], [4]]


def test_further_replications_are_those_that_so_many_would_have() -> None:
    some = ["speculation.method=none", "workload.prompts_per_step=4", "trainer.global_batch_samples=128"]
    one, three = (simulate_variant(small(*some, f"simulation.replications={count}")) for count in (1, 3))
    more = extended(one, 3)
    assert [step.seconds for step in more.every_step] == [step.seconds for step in three.every_step]
    assert len(more.by_replication) == len(more.traces) == 3 and len(one.by_replication) == 1


def test_a_line_explains_all_of_what_lies_on_it_and_nothing_of_few_or_equal_values() -> None:
    x = np.random.default_rng(0).normal(size=24)
    noise = np.random.default_rng(1).normal(size=24)
    slope, explained = regression([5 + 3 * x], [x])
    assert (slope, explained) == pytest.approx((3, 1))
    slope, explained = regression([5 + 3 * x + noise], [x])
    # The share that is explained as unbiased variances have it.
    left = np.polyfit(x, 5 + 3 * x + noise, 1, full=True)[1][0] / 22
    assert slope == pytest.approx(np.polyfit(x, 3 * x + noise, 1)[0])
    assert explained == pytest.approx(1 - left / np.var(3 * x + noise, ddof=1))
    for values, seen in (([1.0, 2.0], [1.0, 2.0]), ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]), ([1.0, 2.0, 3.0], [1.0] * 3)):
        assert regression([np.array(values)], [np.array(seen)]) == (0.0, 0.0)
    assert regression([np.array([1.0, 2.0, 4.0])], [np.array([1.0, 2.0, 4.0])]) == pytest.approx((1, 1))


def large(*keys: str) -> Scenario:
    split = ["cluster.num_gpus=128", "cluster.generation_gpus=64", "cluster.training_gpus=64", "loop.mode=async"]
    batch = ["workload.prompts_per_step=128", "workload.generations_per_prompt=4", "trainer.global_batch_samples=null"]
    return load_scenario("quickstart", [*split, *batch, "speculation.method=none", *keys])


def test_pools_are_as_few_as_let_two_pools_be_no_more_work_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "LEAST", 4)
    work = large().measured_steps.stop * 128 * 4
    for most, count in ((2 * work, 1), (2 * work - 2, 4), (work, 4), (work - 1, 8), (work // 2, 8), (16, 8)):
        monkeypatch.setattr(scale, "MOST_SAMPLES", most)
        assert scale.pools_of(large()) == count, most
    # A turn is so much of a sample; halves of half pools hold LEAST engines and prompts.
    turns = TURNS.replace("max_turns: 8", "turns: {kind: constant, turns: 10}") % ""
    monkeypatch.setattr(scale, "MOST_SAMPLES", round(2 * work * 10 * scale.TURN))
    assert scale.pools_of(large(turns)) == 1
    monkeypatch.setattr(scale, "MOST_SAMPLES", round(2 * work * 10 * scale.TURN) - 2)
    assert scale.pools_of(large(turns)) == 4
    monkeypatch.setattr(scale, "MOST_SAMPLES", 16)
    monkeypatch.setattr(scale, "LEAST", 8)
    assert scale.pools_of(large()) == 4
    monkeypatch.setattr(scale, "LEAST", 9)
    assert scale.pools_of(large()) == 1


def test_a_pool_has_its_share_of_every_limit() -> None:
    limits = ", max_environments: 512, calls_per_s: 80, started_sandboxes: 32, max_trajectories: 256"
    judge = ", judge: {gpus: 1, concurrency: 64, trajectory_s: {kind: constant, seconds: 2}}"
    one = large(TURNS % (limits + judge), "engine.dispatch=round_robin")
    pool = scale.pool_of(one, 4).workload
    agent = pool.agent
    assert agent is not None and agent.judge is not None and scale.pool_of(one, 1) is one
    assert (pool.prompts_per_step, agent.max_environments, agent.calls_per_s) == (32, 128, 20)
    assert (agent.started_sandboxes, agent.max_trajectories, agent.judge.concurrency) == (8, 64, 16)


@pytest.mark.parametrize(
    ("keys", "changed", "wanted"),
    [
        ((), lambda one: moves._captured(one, 96.0), {"engine.max_captured_tokens": 96}),
        ((), lambda one: moves._micro_batch(one, 0.5), {"trainer.micro_batch_tokens": 2048}),
        (("trainer.micro_batch_tokens=null", "trainer.micro_batch_samples=6", "trainer.sequence_packing=false"),
         lambda one: moves._micro_batch(one, 0.5), {"trainer.micro_batch_samples": 3}),
        (("engine.tensor_parallel=2",), lambda one: moves._tensor(one, 2), {"engine.tensor_parallel": 4}),
        (("engine.tensor_parallel=2",), lambda one: moves._tensor(one, 0.5), {"engine.tensor_parallel": 1}),
        ((), lambda one: moves._tensor(one, 0.5), {"engine.tensor_parallel": 0}),
        # Whole shards of two stages; from the trainer's GPUs where their number is stated.
        (LAG, lambda one: moves._pooled(one, 0.3), {"cluster.reference_gpus": 2}),
        (LAG, lambda one: moves._pooled(one, 0.9), {"cluster.reference_gpus": 4}),
        ((*LAG, "cluster.training_gpus=4"), lambda one: moves._pooled(one, 0.3),
         {"cluster.reference_gpus": 2, "cluster.training_gpus": 2}),
        ((), lambda one: moves._trajectories(one, 0.3), {"workload.agent.max_trajectories": math.ceil(0.3 * 512)}),
        ((), lambda one: agent_moves.started_beforehand(one, 0.3),
         {"workload.agent.started_sandboxes": math.ceil(0.3 * 512)}),
        ((), lambda one: agent_moves.more_places(one, 2), {}),
        ((), lambda one: agent_moves.faster_calls(one, 0.9), {}),
        ((), lambda one: agent_moves.capped_turns(one, 0.9), {}),
        ((TURNS % ", max_environments: 5",), lambda one: agent_moves.more_places(one, 2),
         {"workload.agent.max_environments": 10}),
        # The median of a log-normal of mean m and sigma s is m exp(-s^2 / 2); a limit that is there already stays.
        ((TURNS % "",), lambda one: agent_moves.faster_calls(one, 0.5),
         {"workload.agent.turn_timeout_s": float(f"{2 * math.exp(-0.125):.4g}")}),
        ((TURNS % ", turn_timeout_s: 1",), lambda one: agent_moves.faster_calls(one, 0.5), {}),
        ((TURNS % ", turns: {kind: constant, turns: 4}",), lambda one: agent_moves.capped_turns(one, 0.5), {}),
        ((TURNS % ", turns: {kind: quantiles, quantiles: [0.0, 1.0], turns: [1.0, 7.0]}",),
         lambda one: agent_moves.capped_turns(one, 0.5), {"workload.agent.max_turns": 4}),
    ],
)  # fmt: skip
def test_a_move_is_these_keys(keys: tuple[str, ...], changed: Any, wanted: dict[str, Any]) -> None:
    assert changed(small(*keys)) == wanted


def test_a_lag_on_shared_gpus_takes_the_fastest_split_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "fastest_way", lambda scenario, ways: ways[1])
    split = moves.LISTS["values"]["split"][1]
    assert moves.fairly_split(small(), {"lag": 1}) == {"lag": 1, "generation_share": split}
    for keys in ({"lag": 0}, {"k": 2}, {"lag": 1, "generation_share": 0.5}, {"lag": 1, "cluster.training_gpus": 4}):
        assert moves.fairly_split(small(), keys) == keys
    assert moves.fairly_split(small(*LAG), {"lag": 2}) == {"lag": 2}


@pytest.mark.parametrize(
    ("keys", "name", "value", "wanted"),
    [
        (LAG, "_further_ahead", 0.0, {"loop.policy_lag": 1 + effects.FURTHER_BATCHES}),
        ((*LAG, "loop.policy_lag=64"), "_further_ahead", 0.0, {"loop.policy_lag": 64}),
        ((), "longer_responses", 1.5, {"workload.response_tokens.mean_tokens": 1200}),
        ((), "longer_responses", 4.0, {"workload.response_tokens.mean_tokens": 3200}),
        ((), "longer_responses", 5.0, None),
        (("workload.response_tokens={kind: constant, tokens: 1000}",), "longer_responses", 2.0,
         {"workload.response_tokens.tokens": 2000}),
        (("workload.response_tokens={kind: constant, tokens: 1000}",), "longer_responses", 9.0,
         {"workload.response_tokens.tokens": round(0.95 * 4095)}),
        ((), "_slow_turns", 3.0, None),
        ((TURNS % "",), "_slow_turns", 3.0, {"workload.agent.environment_s.mean_s": 6}),
        ((), "_reloaded_base", 1e9, {"loop.refit_fixed_s": pytest.approx(2 * 8.03e9 / 1e9, rel=1e-3)}),
        (("loop.refit_fixed_s=2.5",), "_reloaded_base", 1e9,
         {"loop.refit_fixed_s": pytest.approx(2.5 + 2 * 8.03e9 / 1e9, rel=1e-3)}),
        ((), "_routes_through_driver", 1e9, None),
    ],
)  # fmt: skip
def test_an_effect_is_these_keys(keys: tuple[str, ...], name: str, value: float, wanted: dict[str, Any] | None) -> None:
    found = getattr(effects, name)(small(*keys), value)
    assert (found and found.keys) == wanted


def test_without_an_environment_nothing_of_it_is_waited_for() -> None:
    judge = "judge: {gpus: 1, concurrency: 4, trajectory_s: {kind: constant, seconds: 2}}, calls_per_s: 9"
    starts = "start_s: {kind: constant, seconds: 2}, started_sandboxes: 8, max_environments: 64"
    waiting = small(TURNS % f", {starts}, {judge}", "engine.dispatch=round_robin")
    nothing = small("workload.agent={max_turns: 8, environment_s: {kind: constant, seconds: 0}}")
    assert vary(waiting, effects._no_environment(waiting, 0.0).keys).workload.agent == nothing.workload.agent


def test_an_effect_on_prices_changes_what_it_names_alone() -> None:
    one = small()
    prices = simulate_variant(one).prices
    for share, left in ((0.5, 4), (0.3, 2), (0.01, 1)):
        change = effects._idle_replicas(one, share)
        assert change.prices is not None and change.prices(prices).replicas == left
    capacity = prices.iteration.kv_capacity_tokens
    for divisor, held in ((2.0, capacity / 2), (1e9, 4096.0), (0.5, capacity)):
        change = effects._little_kv_cache(one, divisor)
        assert change.prices is not None
        assert change.prices(prices).iteration.kv_capacity_tokens == pytest.approx(held)
    slow = effects._slow_devices(one, 2.0).prices
    assert slow is not None and np.allclose(slow(prices).iteration.step_s, 2 * prices.iteration.step_s)
    for cost, before in zip(slow(prices).steps, prices.steps, strict=True):
        assert cost.train.seconds == pytest.approx(2 * before.train.seconds)
        assert cost.data.seconds == before.data.seconds


def test_a_host_decides_where_the_order_is_another_without_it() -> None:
    arm, plain = load_scenario("quickstart", ["hardware=gb200_nvl72"]).hardware, small().hardware
    assert arm.host_cpu != verdict.PLAIN_HOST == plain.host_cpu
    names = ("ours", "theirs")
    words = verdict.host_decides((arm, plain), (10.0, 9.0), names, lambda place: 8.0)
    assert len(words) == 1 and "ours takes 8" in words[0] and arm.host_cpu in words[0]
    assert verdict.host_decides((plain, arm), (9.0, 10.0), names, lambda place: 8.0)[0].count("theirs") == 1
    for plain_s in (9.5, None):
        assert verdict.host_decides((arm, plain), (10.0, 9.0), names, lambda place, it=plain_s: it) == ()
    for both in ((arm, arm), (plain, plain)):
        assert verdict.host_decides(both, (10.0, 9.0), names, lambda place: 8.0) == ()
    assert verdict.unmeasured_winner(plain) == ()
    bare = load_scenario("quickstart", ["hardware=mi300x"]).hardware
    (text,) = verdict.unmeasured_winner(bare, "30 s")
    assert text.startswith("No operator was measured on mi300x") and text.endswith("Best on a measured device: 30 s.")
    assert f"{bare.price_per_gpu_hour_usd.value:.2f} USD an hour" in text
    assert "Best" not in verdict.unmeasured_winner(bare)[0]


def test_runs_differ_by_names_and_doublings_and_what_is_not_told_is_equal() -> None:
    features = FEATURES["step"]
    runs: list[dict[str, str | float]] = [
        {one.name: (4.0 if one.sized else "A") for one in features},
        {one.name: (8.0 if one.sized else "b") for one in features},
        {},
    ]
    coded = Coded.of("step", runs)
    apart = differences("step", coded.values, coded.place(runs[0]))
    assert not apart[0].any()
    for column, one in enumerate(features):
        doublings = math.log2(9 / 5) if one.zero else 1.0
        # The release of another software says nothing.
        assert apart[1, column] == pytest.approx(0.0 if one.within else doublings), one.name
        empty = math.log2(5) if one.zero else 0.0
        assert apart[2, column] == pytest.approx(empty if one.sized else 0.0 if one.within else 1.0), one.name
    assert np.array_equal(coded.place({one.name: "a" for one in features if not one.sized})[:1], coded.values[0, :1])
    unknown = coded.place({one.name: "never" for one in features if not one.sized})
    assert all(unknown[column] == -1 for column, one in enumerate(features) if not one.sized)


@pytest.mark.parametrize(("given", "shown", "value"), [
    ("H100 SXM", "H100 SXM", "h100"), ("h100_pcie", "h100_pcie", "h100_pcie"), ("RTX 4090", "RTX 4090", "rtx_4090"),
    ("", "not told", ""),
])  # fmt: skip
def test_a_board_is_its_chip_unless_it_is_a_slower_one(given: str, shown: str, value: str) -> None:
    one = Feature("device", "device")
    assert (one.shown({"device": given}), one.value({"device": given})) == (shown, value)
