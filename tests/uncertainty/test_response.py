"""Intervals of answers, slopes of what they rest on, and the step's response to factors beside simulated steps."""

import math

import numpy as np
import pytest
from msgspec.structs import replace

from rlsim.costs.overheads import overheads_after, overheads_of
from rlsim.costs.prices import price
from rlsim.costs.trainer.layout import TrainedBatch
from rlsim.costs.trainer.training import step_cost
from rlsim.loading.scenario import load_scenario, vary
from rlsim.parameters.posterior import DEFAULT, load_posterior
from rlsim.parameters.terms import fitted_of, moved
from rlsim.projection.project import project
from rlsim.projection.summary import speedups, timed
from rlsim.projection.uncertainty import slopes
from rlsim.projection.uncertainty.estimate import Estimate
from rlsim.projection.uncertainty.learning import _combined
from rlsim.projection.uncertainty.predictive import (
    DRAWS,
    HIGH,
    LOW,
    between,
    error_draws,
    log_draws,
    posterior_of,
    prediction_of,
    unmoved,
)
from rlsim.projection.uncertainty.response import Factors, StepResponse, step_response
from rlsim.projection.uncertainty.slopes import LAUNCH, STEP, PhaseSlopes, phase_slopes
from rlsim.projection.variant import simulate_variant
from rlsim.results import Interval
from rlsim.results.record import P90_DEVIATIONS
from rlsim.schema.scenario import Scenario
from rlsim.simulation.run import simulate
from rlsim.tables.operators import OperatorTables
from rlsim.workload.draw import draw

SMALL = ("workload.prompts_per_step=16", "workload.generations_per_prompt=8", "trainer.global_batch_samples=128")


def scenario(*overrides: str) -> Scenario:
    return load_scenario("quickstart", [*SMALL, "simulation.replications=2", *overrides])


def test_intervals_hold_both_errors_and_what_scenarios_share_moves_them_alike() -> None:
    few, some, many = (project(scenario(f"simulation.replications={n}")).candidate for n in (1, 4, 32))
    width = [np.log(one.step_s.high / one.step_s.low) for one in (few, some, many)]
    # One replication says nothing of its error; what more of them settle is told apart and shrinks.
    assert width[0] == pytest.approx(width[2], rel=0.1)
    assert width[1] > width[2]
    assert few.sampling.step_error_s is None and many.sampling.step_error_s is not None
    assert many.sampling.step_error_s < 0.1 * (many.step_s.high - many.step_s.low)
    run = timed(simulate_variant(scenario("simulation.replications=8")))
    for speedup in speedups(run, run):
        assert speedup.interval == Interval(1.0, 1.0, 1.0)
        assert speedup.above(1.0) == 0.5
    longer = scenario("workload.response_tokens.mean_tokens=900", "simulation.replications=8")
    apart = timed(simulate_variant(longer))
    end_to_end = speedups(run, apart)[1].interval
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


def test_draws_of_groups_are_those_of_names_and_move_with_terms_as_the_posterior_says() -> None:
    posterior = load_posterior(DEFAULT)
    one, again, other = (log_draws(posterior, {}, {f"engine with model: {name}": 1.0})
                         for name in ("never seen", "never seen", "nor this"))  # fmt: skip
    assert one.shape == (DRAWS,) and np.array_equal(one, again)
    assert abs(np.corrcoef(np.sign(one), np.sign(other))[0, 1]) < 0.1
    # Quartiles of Student's t lie at 0.718 of its scale with 6 degrees of freedom, at 0.765 with 3.
    scale = posterior.spreads["engine with model"]
    assert np.quantile(one, 0.75) == pytest.approx(0.718 * scale, rel=0.1)
    assert np.median(one) == pytest.approx(0.0, abs=0.05 * scale)
    errors = error_draws(posterior, "iteration", "a row")
    assert np.quantile(errors, 0.75) == pytest.approx(0.765 * posterior.errors["iteration"], rel=0.1)
    groups = list(posterior.columns[posterior.terms : posterior.terms + 2])
    slopes = {posterior.columns[0]: 0.5}
    direction = np.zeros(len(posterior.columns))
    direction[0], direction[posterior.terms : posterior.terms + 2] = 0.5, 1.0
    expected = np.sqrt(direction @ posterior.factor @ posterior.factor.T @ direction)
    assert log_draws(posterior, slopes, dict.fromkeys(groups, 1.0)).std() == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize("count", [1, 2, 3, 11, 256, 1000])
def test_bounds_are_numpys_quantiles_to_the_bit(count: int) -> None:
    for seed in range(20):
        draws = np.exp(np.random.default_rng(seed).normal(size=count))
        assert between(draws) == tuple(np.quantile(draws, (LOW, HIGH)))


TERM = "training/dense_efficiency"


def test_slopes_are_of_the_tables_priced_with_and_of_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load_scenario("quickstart", ["simulation.replications=1", "workload.prompts_per_step=16"])
    tables = OperatorTables.load("gb200_nvl72", "vllm")
    run, own = simulate_variant(scenario, tables), simulate_variant(scenario)
    found = phase_slopes(run)
    assert found.train[TERM] != pytest.approx(phase_slopes(own).train[TERM], rel=1e-3)
    fitted = fitted_of(scenario)
    batch = TrainedBatch.of(run.first_step.trained_tokens, run.first_step.generated_samples)
    after = overheads_after(overheads_of(scenario, fitted), scenario, moved(fitted, {TERM: STEP}), "training")
    times = [step_cost(replace(run.inputs.trainer, overheads=overheads), batch).train.seconds
             for overheads in (run.inputs.trainer.overheads, after.training)]  # fmt: skip
    assert found.train[TERM] == pytest.approx(float(np.log(times[1] / times[0])) / STEP)
    run = simulate_variant(load_scenario("quickstart", ["simulation.replications=1"]))
    found = phase_slopes(run).generation
    monkeypatch.setattr(slopes, "POINTS", 100_000)
    exact = phase_slopes(run).generation
    for name, slope in exact.items():
        assert found[name] == pytest.approx(slope, rel=4e-3, abs=1e-5), (
            name
        )  # bins meet the kink where launches end to hide


def test_what_nobody_measured_spreads_as_far_as_the_text_says() -> None:
    posterior = posterior_of(load_scenario("quickstart"))
    # Launches of operators: a factor of two either way at 90 %, before any evidence.
    assert math.exp(P90_DEVIATIONS * LAUNCH.spread) == pytest.approx(2.0, rel=0.02)
    # A family of groups without a measurement: Student's t with a scale of 0.15; 5 % of it lie beyond 1.943 scales.
    low, high = between(log_draws(posterior, {}, {"a family that nobody measured: one": 1.0}))
    assert (high - low) / 2 == pytest.approx(0.15 * 1.943, rel=0.06)


LAGGED = (
    "cluster.generation_gpus=4", "cluster.training_gpus=4", "loop.mode=async", "loop.policy_lag=1",
    "simulation.warmup_steps=2", "simulation.steps=6",
)  # fmt: skip


def slowed_step_s(one: Scenario, factor: float, train: float = 1.0) -> float:
    """Mean step with every engine iteration taking ``factor`` of its time, and every update ``train``."""
    seconds = []
    for replication in range(one.replications):
        work = draw(one, replication)
        prices = price(one, work)
        table = prices.iteration
        slow = replace(table, step_s=table.step_s * factor, attention_s=table.attention_s * factor,
                       prefill_s=table.prefill_s * factor)  # fmt: skip
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


def test_shares_are_derivatives_and_a_balanced_step_takes_a_twelfth_longer() -> None:
    for one in (scenario(), scenario(*LAGGED)):
        response = step_response(simulate_variant(one))
        base, more = (float(response.seconds(factors(train=value))[0]) for value in (1.0, 1.0001))
        assert response.shares["train"] == pytest.approx((more / base - 1) / 1e-4, rel=0.01)
        assert 0.99 < sum(response.shares.values()) + response.fixed_s / base < 1.01
    # p-norm with m = 8: 2 ** (1 / 8) = 1.0905 where trainer and generation take as long as each other.
    response = StepResponse(0.0, 20.0, 70.0, 8.0, 2.0, generation_ratio=1.0)
    assert float(response.seconds(factors())[0]) == pytest.approx(109.05, rel=1e-4)


def test_no_draw_moves_what_an_environment_takes() -> None:
    run = timed(simulate_variant(scenario("workload.environment_s=3000", "simulation.replications=1")))
    plain = timed(simulate_variant(scenario("simulation.replications=1")))
    generation_s = run.generation.mean
    low, high = (generation_s * value for value in between(run.prediction.factor("generation_s", generation_s)))
    shorter, longer = (plain.generation.mean * one for one in between(plain.prediction.factors.generation))
    assert high - low == pytest.approx(longer - shorter, rel=0.02)
    rollout = speedups(run, plain)[0].interval
    assert rollout.high / rollout.low == pytest.approx(longer / shorter, rel=0.02)


def test_a_transfer_that_a_lagged_loop_prepares_has_the_slopes_of_all_of_it() -> None:
    lagged = ("loop.mode=async", "loop.policy_lag=1", "loop.overlap=false", "loop.recompute_kv=true")
    shared, alone = (simulate_variant(scenario(*keys, "simulation.replications=1")) for keys in (lagged, ()))
    assert shared.phases_s["refit_s"] == pytest.approx(alone.phases_s["prepare_s"])
    assert phase_slopes(shared).transfer == phase_slopes(alone).transfer


def test_slower_generation_leaves_more_of_it_exposed_and_a_slower_trainer_less() -> None:
    scenario = vary(load_scenario("qwen8b_async_lag1"), "simulation.replications=1")
    run = simulate_variant(scenario)
    found = prediction_of(run)
    exposed_s = run.phases_s["exposed_generation_s"]
    drawn, factors = found.factor("exposed_generation_s", exposed_s), found.factors
    assert np.corrcoef(drawn, factors.generation)[0, 1] > 0.9
    # A step is its trainer's chain and what it waits for: their draws add up wherever any of it is exposed.
    chain_s = found.response.trainer_s(factors) - found.response.trainer_s(unmoved())[0]
    some = drawn > 0
    assert (drawn - 1.0)[some] * exposed_s + chain_s[some] == pytest.approx(found.step_s[some] - found.central_s)


def test_a_group_counts_once_for_each_phase_that_it_is_in() -> None:
    """So that one deviation of all phases moves a step of nothing else as much as them: by all of it."""
    response = StepResponse(3.0, 1.0, 2.0, 0.5, 0.0)
    groups = {"generation": ["a", "b"], "logprob": ["a", "c"], "train": ["a", "c"], "transfer": ["a"]}
    slopes = PhaseSlopes({"x": 1.0}, {"x": 1.0}, {"x": 1.0}, {"x": 1.0})
    terms, coefficients = _combined("step", response, slopes, groups)
    assert terms["x"] == coefficients["a"] == pytest.approx(1.0, rel=1e-3)
    assert coefficients["b"] + coefficients["c"] + response.shares["transfer"] == pytest.approx(coefficients["a"])


FEW = ("workload.prompts_per_step=32", "trainer.global_batch_samples=null")
SLOWER = ("hardware.memory_bandwidth_bytes_per_s=2e12",)
"""Half of the H20's, on a scenario whose generation is wholly hidden: over a long run the step is a little longer."""


def test_intervals_of_ratios_hold_the_simulation_s_own_error() -> None:
    """A trainer that takes what is done first makes other batches of equal work: seeds alone move a ratio by 2 %."""
    found = []
    for seed in range(4):
        base = load_scenario("verl_dapo_7b", [*FEW, f"simulation.seed={seed}"])
        runs = (simulate_variant(vary(base, *changes), tokens=False) for changes in ((), SLOWER))
        found.append(speedups(*map(timed, runs))[1].interval)
    assert max(one.low for one in found) <= min(one.high for one in found)
    assert all(one.low <= 1.0 for one in found)
    same = timed(simulate_variant(load_scenario("verl_dapo_7b", FEW), tokens=False))
    assert speedups(same, same)[1].interval == Interval(1.0, 1.0, 1.0)


def test_the_error_of_a_ratio_pairs_what_is_equal_in_number() -> None:

    def estimate(*parts: float) -> Estimate:
        return Estimate.of(float(np.mean(parts)), np.ones(DRAWS), np.array(parts))

    before = estimate(10.0, 12.0, 8.0, 10.0)
    ratio = before.over(estimate(5.0, 6.0, 4.0, 5.0))
    assert (ratio.error, ratio.mean, ratio.settled) == (0.0, 2.0, True)  # work that both share leaves no error
    # By hand: residuals 1, -1, 1, -1 of mean 10, so sqrt(4/3) / sqrt(4) / 10.
    assert before.over(estimate(9.0, 13.0, 7.0, 11.0)).error == pytest.approx((4 / 3) ** 0.5 / 20)
    apart = before.over(estimate(5.0, 6.0))
    assert apart.error == pytest.approx(np.hypot(before.error, 0.5 / 5.5))
    assert (apart.degrees, apart.settled) == (1, False)
    assert estimate(10.0).over(estimate(8.0)).error == 0.0


def test_what_the_model_believes_has_a_mean_however_few_steps_were_simulated() -> None:
    factors = np.exp(0.1 * np.random.default_rng(0).standard_normal(DRAWS))
    few, many = (Estimate.of(94.0, factors, np.resize([90.0, 98.0], count)) for count in (2, 2000))
    # Exponentials of Student's t of two parts have no mean: a decision by it would follow a single draw.
    assert few.believed.mean() == many.believed.mean() == pytest.approx(many.draws.mean(), rel=0.01)
    assert few.interval.high > many.interval.high
