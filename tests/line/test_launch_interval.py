"""Launches beyond the captured graphs and their interval; loops that are warmed up until their ledger balances."""

import math
import re

import numpy as np
import pytest

from rlsim.costs.interface import EngineCounters
from rlsim.loading.scenario import load_scenario, scenario_digest, vary
from rlsim.planning.evaluate import evaluate_means
from rlsim.projection.assumptions import warnings_of
from rlsim.projection.project import project
from rlsim.projection.summary import phase_parts, variant_of
from rlsim.projection.uncertainty.predictive import prediction_of
from rlsim.projection.uncertainty.slopes import LAUNCH
from rlsim.projection.variant import BALANCED, SimulatedVariant, simulate_variant
from rlsim.results.record import P90_DEVIATIONS
from rlsim.schema.scenario import Scenario

SMALL = ("simulation.replications=1", "workload.prompts_per_step=16", "trainer.global_batch_samples=512")
EAGER = ("engine.max_captured_tokens=8", "hardware.eager_launch_s.value=1e-4", "speculation.method=none")


def simulated(*settings: str) -> SimulatedVariant:
    return simulate_variant(load_scenario("quickstart", [*SMALL, *settings]))


@pytest.fixture(scope="module")
def eager() -> SimulatedVariant:
    return simulated(*EAGER)


@pytest.fixture(scope="module")
def captured() -> SimulatedVariant:
    return simulated("speculation.method=none")


def test_the_share_of_launches_is_that_of_the_counted_seconds(eager: SimulatedVariant) -> None:
    costs, counters = eager.prices.engine, EngineCounters(16)
    counters.count(16, 5, 100.0)
    waiting = 5 * costs.components["eager launches"].seconds[16]
    assert costs.launch_share(counters) == pytest.approx(waiting / sum(part.seconds for part in costs.parts(counters)))
    assert costs.launch_share(EngineCounters(16)) == 0.0
    within = EngineCounters(16)
    within.count(8, 5, 100.0)
    assert costs.launch_share(within) == 0.0


def test_launches_widen_the_interval_and_the_answer_says_so(
    eager: SimulatedVariant, captured: SimulatedVariant
) -> None:
    share = eager.prices.engine.launch_share(eager.counters)
    assert 0.1 < share < 1.0
    slopes = {name: prediction_of(run).slopes.generation for name, run in (("eager", eager), ("captured", captured))}
    assert slopes["eager"][LAUNCH.name] == share and LAUNCH.name not in slopes["captured"]
    found = {name: variant_of(run, phase_parts(run)) for name, run in (("eager", eager), ("captured", captured))}

    def width(name: str, phase: str) -> float:
        interval = found[name].phases[phase]
        return float(np.log(interval.high / interval.low))

    launches = 2 * P90_DEVIATIONS * LAUNCH.spread * share
    assert width("eager", "generation_s") == pytest.approx(math.hypot(width("captured", "generation_s"), launches),
                                                           rel=0.25)  # fmt: skip
    assert width("eager", "refit_s") == pytest.approx(width("captured", "refit_s"))
    told = " ".join(warnings_of(eager))
    assert "(8 tokens, engine.max_captured_tokens) and launch eagerly" in told
    assert "of the variance of the step hangs on it" in told
    assert "launch eagerly" not in " ".join(warnings_of(captured))


# A pool without a limit beside a trainer that takes as long as its generator: the stock fills or empties slowly.
POOL = [
    "speculation={method: none}", "workload.prompts_per_step=8", "workload.generations_per_prompt=8",
    "trainer.global_batch_samples=null", "simulation.replications=2", "simulation.steps=null",
    "simulation.warmup_steps=null", "engine.host_iteration_s=0.0033",
    "loop.style=slime_fully_async", "loop.policy_lag=0", "loop.in_flight_updates=null",
]  # fmt: skip


@pytest.fixture(scope="module")
def pool() -> Scenario:
    return load_scenario("qwen8b_async_lag1", POOL)


def test_it_is_warmed_up_again_where_its_ledger_does_not_balance_also_in_cells(pool: Scenario) -> None:
    cell = {"loop.driver_sample_s": 0.0525, "simulation.steps": 16}
    even = vary(pool, cell)
    found, settled = simulate_variant(even), simulate_variant(vary(even, {"simulation.warmup_steps": 136}))
    assert even.measured_steps == range(34, 50)
    assert found.scenario.measured_steps == range(68, 84)
    steps = [sum(step.seconds for step in one.every_step) / len(one.every_step) for one in (found, settled)]
    assert steps[0] == pytest.approx(steps[1], rel=0.02)
    assert abs(sum(one.ledger.in_flight for one in found.traces if one.ledger)) < BALANCED * sum(
        one.ledger.generated for one in found.traces if one.ledger
    )
    row = evaluate_means(pool, cell).numbers
    assert row is not None
    assert row.digest == scenario_digest(vary(pool, cell))


def test_a_stated_warm_up_stays_and_is_warned_of(pool: Scenario) -> None:
    said = {warmup: project(vary(pool, {"simulation.warmup_steps": warmup})).warnings for warmup in (6, 136)}
    assert any(re.search("does not balance: after 6 steps.* consume from stock [12]. %", text) for text in said[6])
    assert not any("does not balance" in text for text in said[136])
