"""Intervals of answers: one for one question, common draws, wider where nothing was measured."""

import numpy as np
import pytest

from rlsim.loading.scenario import load_scenario, vary
from rlsim.parameters.posterior import DEFAULT, load_posterior
from rlsim.projection.project import project
from rlsim.projection.summary import speedups, timed
from rlsim.projection.uncertainty.predictive import DRAWS, HIGH, LOW, between, error_draws, log_draws, prediction_of
from rlsim.projection.variant import simulate_variant
from rlsim.results import Interval
from rlsim.schema.scenario import Scenario

SMALL = ("workload.prompts_per_step=16", "workload.generations_per_prompt=8", "trainer.global_batch_samples=128")


def scenario(*overrides: str) -> Scenario:
    return load_scenario("quickstart", [*SMALL, "simulation.replications=2", *overrides])


def test_the_interval_is_the_models_error_whatever_the_replications() -> None:
    few, many = (project(scenario(f"simulation.replications={n}")).candidate for n in (1, 32))
    width = [one.step_s.high / one.step_s.low for one in (few, many)]
    assert np.log(width[0]) == pytest.approx(np.log(width[1]), rel=0.1)
    # What more replications settle is told apart and shrinks.
    assert few.sampling.step_error_s is None and many.sampling.step_error_s is not None
    assert many.sampling.step_error_s < 0.1 * (many.step_s.high - many.step_s.low)


def test_what_two_scenarios_share_moves_them_alike() -> None:
    run = timed(simulate_variant(scenario()))
    for speedup in speedups(run, run):
        assert speedup == Interval(1.0, 1.0, 1.0)
    apart = timed(simulate_variant(scenario("workload.response_tokens.mean_tokens=900")))
    _, end_to_end = speedups(run, apart)
    step = run.prediction.step_factor
    alone = np.log(np.quantile(step, 0.95) / np.quantile(step, 0.05))
    assert np.log(end_to_end.high / end_to_end.low) < 0.3 * alone


@pytest.mark.parametrize(
    "strange",
    [{"model": {"name": "a model that nobody measured"}}, {"hardware": {"name": "a device that nobody measured"}}],
)
def test_what_was_never_measured_is_less_sure(strange: dict[str, dict[str, str]]) -> None:
    known, unknown = (prediction_of(simulate_variant(one)) for one in (scenario(), vary(scenario(), strange)))
    spread = [
        np.log(np.quantile(one.step_factor, 0.95) / np.quantile(one.step_factor, 0.05)) for one in (known, unknown)
    ]
    assert spread[1] > 1.05 * spread[0]


def test_draws_of_a_group_are_those_of_its_name() -> None:
    posterior = load_posterior(DEFAULT)
    one, again, other = (
        log_draws(posterior, {}, {f"engine with model: {name}": 1.0})
        for name in ("never seen", "never seen", "nor this")
    )
    assert one.shape == (DRAWS,) and np.array_equal(one, again)
    assert abs(np.corrcoef(np.sign(one), np.sign(other))[0, 1]) < 0.1
    # Quartiles of Student's t lie at 0.718 of its scale with 6 degrees of freedom, at 0.765 with 3.
    scale = posterior.spreads["engine with model"]
    assert np.quantile(one, 0.75) == pytest.approx(0.718 * scale, rel=0.1)
    assert np.median(one) == pytest.approx(0.0, abs=0.05 * scale)
    errors = error_draws(posterior, "iteration", "a row")
    assert np.quantile(errors, 0.75) == pytest.approx(0.765 * posterior.errors["iteration"], rel=0.1)


def test_terms_and_groups_move_together_as_the_posterior_says() -> None:
    posterior = load_posterior(DEFAULT)
    groups = list(posterior.columns[posterior.terms : posterior.terms + 2])
    slopes = {posterior.columns[0]: 0.5}
    direction = np.zeros(len(posterior.columns))
    direction[0], direction[posterior.terms : posterior.terms + 2] = 0.5, 1.0
    expected = np.sqrt(direction @ posterior.factor @ posterior.factor.T @ direction)
    assert log_draws(posterior, slopes, dict.fromkeys(groups, 1.0)).std() == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize("count", [1, 2, 3, 256, 1000])
def test_bounds_are_numpys_quantiles_to_the_bit(count: int) -> None:
    for seed in range(20):
        draws = np.exp(np.random.default_rng(seed).normal(size=count))
        assert between(draws) == tuple(np.quantile(draws, (LOW, HIGH)))
