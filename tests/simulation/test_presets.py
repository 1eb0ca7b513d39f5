"""What each framework's preset does, in numbers: who starts when, who waits for whom, what is lost.

The world of most tests: four prompts a step on one engine, a response takes 100 s whatever else runs, the trainer 8 s
and an update 0.5 s; prompt 5 takes 400 s. Sources of the rules: rlsim/schema/asynchrony.py.
"""

import math

import pytest
from fixed_costs import Driven, FixedCosts, world_of

from rlsim.loading.scenario import load_scenario
from rlsim.schema.asynchrony import STYLES
from rlsim.simulation.asynchronous import _Trainer
from rlsim.simulation.clock import Clock
from rlsim.simulation.generation import Generation
from rlsim.simulation.trace import Trace

STRAGGLER = {1: [401, 1601, 401, 401]}


def played(style: str, lag: int = 1) -> tuple[Trace, Generation]:
    """Six steps of a preset at a lag of 1 with one straggler."""
    keys = ("simulation.steps=6", "loop.in_flight_updates=null", f"loop.style={style}")
    world = world_of(FixedCosts(), *keys, lag=lag, prompts=4, size=1, replicas=1, lengths=STRAGGLER)
    clock, trace = Clock(), Trace()
    generation = Generation(clock, world.scenario, world.workload, world.prices, trace)
    clock.process(generation.run())
    trainer = _Trainer.of(world.scenario, world.workload, world.prices, trace, generation)
    clock.run(until=clock.process(trainer.run()))
    return trace, generation


# Seconds of the first three steps; weights with which the first 16 groups start; groups of the second step.
DRAINED = ([500.5, 100.5, 100.5], "0000000011112222", [4, 5, 6, 7])
IN_ORDER = ([108.5, 400.5, 8.5], "0000000011112222", [4, 5, 6, 7])
FIRST_DONE = ([108.5, 108.75, 108.75], "0000000011112222", [4, 6, 7, 8])
ONE_BATCH_IN_FLIGHT = ([108.5, 200.75, 108.75], "0000000011112222", [4, 6, 7, 8])
ALWAYS_FULL = ([108.5, 100.5, 100.5], "0000000000001111", [4, 6, 7, 8])
PRESETS = {
    # Prompt 5 starts at 100 s, when a place is free, belongs to the second step, and no update happens while it runs.
    "nemo_rl": DRAINED,
    "slime": DRAINED,
    "vime": DRAINED,
    "miles": DRAINED,
    # The same, but updates happen while it runs.
    "nemo_rl_in_order": IN_ORDER,
    # All of the oldest weights first, in the order in which they are done.
    "nemo_rl_weight_fifo": ([108.5, 400.5, 8.5], "0000000011112222", [4, 6, 7, 5]),
    # The first four done; prompt 8 starts where one of the second batch has left a place, at 200 s.
    "nemo_rl_ready_first": ONE_BATCH_IN_FLIGHT,
    "areal": ONE_BATCH_IN_FLIGHT,  # and of what is done the oldest
    # Starts count when a batch is taken, before the update; prompt 5 is too old for the third step and aborted.
    "nemo_rl_windowed": ([108.5, 200.75, 101.0], "0000000011111122", [4, 6, 7, 8]),
    # Two batches start at once, and four more prompts at each update; the first four done.
    "verl": ([108.5, 108.5, 108.5], "0000000011112222", [4, 6, 7, 8]),
    "verl_v1": ([108.5, 108.5, 108.5], "0000000011112222", [4, 6, 7, 8]),
    "skyrl": FIRST_DONE,
    "prime_rl": FIRST_DONE,
    # Prompt 5 started at 0 s with the others and is awaited by the second step, as the last of the oldest weights.
    "roll": ([108.5, 300.25, 8.5], "0000000011112222", [4, 6, 7, 5]),
    # A third batch starts when the first is taken, before the update.
    "slime_fully_async": ALWAYS_FULL,
    "vime_fully_async": ALWAYS_FULL,
    "miles_fully_async": ALWAYS_FULL,
    "openrlhf": ([400.5, 100.5, 100.5], "0000000000001111", [4, 5, 6, 7]),
    "openrlhf_partial": ([108.5, 300.5, 8.5], "0000000000001111", [4, 5, 6, 7]),
}


@pytest.mark.parametrize("style", PRESETS)
def test_who_starts_when_who_waits_for_whom_and_only_what_is_too_old_is_lost(style):
    seconds, versions, second = PRESETS[style]
    trace, generation = played(style)
    intake = generation.intake
    assert [step.seconds for step in trace.steps[:3]] == seconds
    assert "".join(map(str, intake.started_version[:16].tolist())) == versions
    assert intake.removed_groups["consumed"][1].tolist() == second
    assert trace.ledger.regenerated == 0
    cancelled = [group for groups in generation.intake.removed_groups["cancelled"] for group in groups.tolist()]
    assert cancelled == ([5] if style == "nemo_rl_windowed" else [])
    assert (trace.ledger.stale > 0) == (style == "nemo_rl_windowed")


LAGS = {
    "nemo_rl": 1, "nemo_rl_windowed": 1, "nemo_rl_ready_first": 1, "nemo_rl_weight_fifo": 1, "nemo_rl_in_order": 1,
    "verl": 0.1, "verl_v1": 1, "skyrl": 4, "slime": 1, "vime": 1, "miles": 1, "areal": 2, "roll": 1, "openrlhf": 0,
    "openrlhf_partial": 0,
}  # fmt: skip
"""Batches ahead by default; none where a pool bounds what is in flight instead."""


@pytest.mark.parametrize("style", STYLES)
def test_the_lag_that_nobody_states_is_the_frameworks(style):
    loop = load_scenario("qwen8b_async_lag1", [f"loop.style={style}", "loop.policy_lag=null"]).loop
    assert loop.asynchrony.batches_ahead == LAGS.get(style, 16.0)
    assert loop.lag == math.floor(LAGS.get(style, 0))


def in_flight(style: str, *keys: str, time_s: float = 1.0, **shape: int) -> int:
    """Samples in flight at a time, with a limit in batches that does not bind."""
    keys = (f"loop.style={style}", "loop.in_flight_updates=null", *keys)
    world = world_of(FixedCosts(), *keys, lag=8, **shape)
    return Driven(world).at(time_s).in_flight


def test_limits_of_what_is_in_flight_finished_or_too_old():
    # verl: 16 prompts an engine. slime: 512 groups an engine. prime-rl: 1,024 samples. SkyRL: 768 groups, and a batch.
    scenario = load_scenario("qwen8b_async_lag1")
    engines = scenario.cluster.generation // scenario.engine.gpus_per_replica
    assert in_flight("verl", prompts=99, size=2) == in_flight("verl", prompts=99, size=2, time_s=150.0) == 16 * engines
    for style, limit in {"slime_fully_async": 512 * engines, "prime_rl": 1024 // 2, "skyrl": 768}.items():
        assert in_flight(style, "loop.staleness_fraction=63", "loop.policy_lag=0", prompts=100, size=2) == min(
            limit, 6400
        )
    assert in_flight("skyrl", prompts=1000, size=1) == 1000
    assert in_flight("areal", prompts=6, size=2) == in_flight("nemo_rl_in_order", prompts=6, size=2) == 6
    assert in_flight("nemo_rl", prompts=6, size=2) == 6 * 8
    # slime: the first group that ends makes place for a third, the second one is the last that may wait.
    keys = ("loop.style=slime_fully_async", "loop.max_in_flight_groups=2", "loop.in_flight_updates=null")
    driven = Driven(world_of(FixedCosts(), *keys, "loop.policy_lag=0", lag=1, prompts=2, size=1, replicas=1))
    started = [int((driven.at(time_s).intake.started_version >= 0).sum()) for time_s in (1.0, 150.0, 250.0, 950.0)]
    assert started == [2, 3, 3, 3]
    assert set(PRESETS) == set(STYLES)
    # A straggler of 400 s that started with the first weights must not be two versions old when it is trained on.
    lengths = {0: [401, 1601, 401, 401]}
    keys = ("loop.style=verl_v1", "loop.max_age=1", "loop.in_flight_updates=null")
    shape = {"lag": 1, "prompts": 4, "size": 1, "replicas": 1, "lengths": lengths}
    world = world_of(FixedCosts(), *keys, "loop.stale=wait", **shape)
    driven = Driven(world)
    assert driven.waited(driven.generation.batch(0)) == 100.0
    driven.generation.take(0)
    driven.generation.publish_weights()
    assert driven.waited(driven.generation.batch(1)) == pytest.approx(400.0, abs=1.0)
    assert 1 in driven.generation.take(1).tolist()


@pytest.mark.parametrize(("style", "keys", "recomputed"), [
    ("nemo_rl", (), True),
    ("verl", (), False),
    ("skyrl", (), False),
    ("prime_rl", (), False),
    ("slime", ("trainer.reference_logprobs=false",), False),
    ("slime", ("trainer.reference_logprobs=true",), True),
    ("slime", ("trainer.reference_logprobs=false", "trainer.epochs=2"), True),
    ("skyrl", ("trainer.policy_logprobs=true",), True),
])  # fmt: skip
def test_old_logprobs_are_recomputed_where_the_framework_does(style, keys, recomputed):
    overrides = [f"loop.style={style}", "trainer.policy_logprobs=null", "trainer.global_batch_samples=null", *keys]
    assert load_scenario("qwen8b_async_lag1", overrides).policy_logprobs is recomputed
