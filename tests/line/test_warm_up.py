"""A loop with a stock of finished groups is warmed up until its ledger balances, or says that it does not."""

import re

import pytest

from rlsim.loading.scenario import load_scenario, scenario_digest, vary
from rlsim.planning.evaluate import evaluate_means
from rlsim.projection.project import project
from rlsim.projection.variant import BALANCED, simulate_variant
from rlsim.schema.scenario import Scenario

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


def test_it_is_warmed_up_again_where_its_ledger_does_not_balance(pool: Scenario) -> None:
    even = vary(pool, {"loop.driver_sample_s": 0.054})
    found, settled = simulate_variant(even), simulate_variant(vary(even, {"simulation.warmup_steps": 136}))
    assert even.measured_steps == range(34, 50)
    assert found.scenario.measured_steps == range(68, 84)
    steps = [sum(step.seconds for step in one.every_step) / len(one.every_step) for one in (found, settled)]
    assert steps[0] == pytest.approx(steps[1], rel=0.02)
    assert abs(sum(one.ledger.in_flight for one in found.traces if one.ledger)) < BALANCED * sum(
        one.ledger.generated for one in found.traces if one.ledger
    )


def test_a_stated_warm_up_stays_and_is_warned_of(pool: Scenario) -> None:
    said = {warmup: project(vary(pool, {"simulation.warmup_steps": warmup})).warnings for warmup in (6, 34)}
    assert any(re.search("does not balance: after 6 steps.* consume from stock [12]. %", text) for text in said[6])
    assert not any("does not balance" in text for text in said[34])


def test_cells_that_were_warmed_up_again_are_those_that_were_asked_for(pool: Scenario) -> None:
    cell = {"loop.driver_sample_s": 0.054}
    row = evaluate_means(pool, cell).numbers
    assert row is not None
    assert row.digest == scenario_digest(vary(pool, cell))
