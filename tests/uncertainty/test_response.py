"""The step's response to factors on its phases, beside steps that are simulated with these factors."""

from dataclasses import replace

import numpy as np
import pytest

from rlsim.costs.prices import price
from rlsim.loading.scenario import load_scenario
from rlsim.projection.uncertainty.response import Factors, StepResponse, step_response
from rlsim.projection.variant import simulate_variant
from rlsim.schema.scenario import Scenario
from rlsim.simulation.run import simulate
from rlsim.workload.draw import draw

SMALL = ("workload.prompts_per_step=16", "workload.generations_per_prompt=8", "trainer.global_batch_samples=128")
LAGGED = (
    "cluster.generation_gpus=4", "cluster.training_gpus=4", "loop.mode=async", "loop.policy_lag=1",
    "simulation.warmup_steps=2", "simulation.steps=6",
)  # fmt: skip


def scenario(*overrides: str) -> Scenario:
    return load_scenario("quickstart", [*SMALL, "simulation.replications=2", *overrides])


def slowed_step_s(one: Scenario, factor: float, train: float = 1.0) -> float:
    """Mean step with every engine iteration taking ``factor`` of its time, and every update ``train``."""
    seconds = []
    for replication in range(one.simulation.replications):
        work = draw(one, replication)
        prices = price(one, work)
        table = prices.iteration
        slow = replace(
            table,
            step_s=table.step_s * factor,
            attention_s=table.attention_s * factor,
            prefill_s=table.prefill_s * factor,
        )
        updates = tuple(replace(cost, train=cost.train.repeated(train)) for cost in prices.steps)
        trace = simulate(one, work, replace(prices, iteration=slow, steps=updates))
        seconds += [step.seconds for step in trace.steps[one.simulation.warmup_steps :]]
    return float(np.mean(seconds))


def factors(generation: float = 1.0, train: float = 1.0) -> Factors:
    one = np.ones(1)
    return Factors(one * generation, one, one * train, one)


@pytest.mark.parametrize("factor", [0.6, 1.0, 1.7])
def test_a_synchronous_step_adds_up(factor: float) -> None:
    one = scenario()
    predicted = step_response(simulate_variant(one)).seconds(factors(generation=factor))[0]
    assert predicted == pytest.approx(slowed_step_s(one, factor), rel=1e-3)


FACTORS = [(0.5, 1.0), (0.8, 1.0), (1.25, 1.0), (2.0, 1.0), (1.0, 0.7), (1.0, 2.0)]


@pytest.mark.parametrize("mean_tokens", [100, 800])
@pytest.mark.parametrize(("generation", "train"), FACTORS)
def test_an_asynchronous_step_follows_what_takes_longer(generation: float, train: float, mean_tokens: int) -> None:
    """With short responses the trainer sets the pace, with long ones generation."""
    one = scenario(*LAGGED, f"workload.response_tokens.mean_tokens={mean_tokens}")
    predicted = step_response(simulate_variant(one)).seconds(factors(generation, train))[0]
    assert predicted == pytest.approx(slowed_step_s(one, generation, train), rel=0.12)


def test_shares_are_the_derivatives_of_the_step() -> None:
    for one in (scenario(), scenario(*LAGGED)):
        response = step_response(simulate_variant(one))
        base, more = (float(response.seconds(factors(train=value))[0]) for value in (1.0, 1.0001))
        assert response.shares["train"] == pytest.approx((more / base - 1) / 1e-4, rel=0.01)
        assert 0.99 < sum(response.shares.values()) + response.fixed_s / base < 1.01


def test_a_balanced_step_takes_a_twelfth_longer_than_either_side() -> None:
    """p-norm with m = 8: 2 ** (1 / 8) = 1.0905 where trainer and generation take as long as each other."""
    response = StepResponse(0.0, 20.0, 70.0, 8.0, 2.0, generation_ratio=1.0)
    assert float(response.seconds(factors())[0]) == pytest.approx(109.05, rel=1e-4)
