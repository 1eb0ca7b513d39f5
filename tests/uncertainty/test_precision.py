"""Simulating on until the simulation's own error is as small as asked."""

import numpy as np
import pytest
from msgspec.structs import replace
from scipy.stats import t as student_t

from rlsim.loading.scenario import load_scenario, vary
from rlsim.projection.control import regression
from rlsim.projection.precision import Anchor, precise
from rlsim.projection.project import project
from rlsim.projection.summary import phase_estimate, phase_parts, timed
from rlsim.projection.uncertainty.estimate import Estimate
from rlsim.projection.uncertainty.predictive import DRAWS
from rlsim.projection.variant import extended, simulate_variant
from rlsim.schema.scenario import LEAST_CYCLES, Scenario
from rlsim.workload.batches import expected_drawn_tokens, mean_drawn_tokens
from rlsim.workload.lengths import Place

SUMMED = ("data_s", "prepare_s", "generation_s", "logprob_s", "train_s")
LAGGED = ("cluster.generation_gpus=4", "cluster.training_gpus=4", "loop.mode=async", "loop.policy_lag=1")


def small(*keys: str) -> Scenario:
    return load_scenario("quickstart", ["workload.prompts_per_step=16", *keys])


@pytest.mark.parametrize("keys", [(), LAGGED])
def test_an_answer_is_that_of_as_many_stated_replications(keys: tuple[str, ...]) -> None:
    free = small("simulation.precision=0.02", *keys)
    found = precise(simulate_variant(free))
    stated = simulate_variant(vary(free, {"simulation.replications": len(found.traces)}))
    assert [step.seconds for step in found.every_step] == [step.seconds for step in stated.every_step]
    assert timed(found).step_s == timed(replace(stated, control=found.control)).step_s
    answer = project(free)
    assert answer.to_json() == project(free).to_json()
    sampled = answer.candidate.sampling.step_error_s
    assert sampled == pytest.approx(phase_estimate(found, "step").error * timed(found).step_s, rel=1e-6)


def test_error_is_within_what_is_asked_or_the_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for asked in (0.1, 0.004, 0.002):
        answer = project(small(f"simulation.precision={asked}"))
        error, step_s = answer.candidate.sampling.step_error_s, answer.candidate.step_s.mean
        assert error is not None and error / step_s <= asked
        assert not any("precision" in text for text in answer.warnings)
        counts.append(len(precise(simulate_variant(answer.asked)).traces))
    assert counts[0] == LEAST_CYCLES < counts[1] < counts[2]
    monkeypatch.setattr("rlsim.projection.precision.MOST_SAMPLES", 10_000)
    assert any("simulation.precision" in text for text in project(small("simulation.precision=0.001")).warnings)


def test_stated_replications_are_kept_and_precision_has_no_say() -> None:
    one = small("simulation.replications=3", "simulation.precision=0.001")
    run = simulate_variant(one)
    assert precise(run) is run and len(run.traces) == one.replications == 3


def test_a_run_goes_on_where_it_ended() -> None:
    few = simulate_variant(small("simulation.replications=2"))
    many = simulate_variant(small("simulation.replications=5"))
    assert [step.seconds for step in extended(few, 5).every_step] == [step.seconds for step in many.every_step]
    assert extended(few, 5).counters.iterations == many.counters.iterations


def test_large_batches_begin_with_fewer_replications() -> None:
    assert small().replications == LEAST_CYCLES
    assert load_scenario("quickstart", ["workload.prompts_per_step=65536"]).replications == 2
    assert small("simulation.steps=4").replications == 2


@pytest.mark.nightly
def test_stopping_by_the_error_that_was_seen_keeps_its_coverage() -> None:
    """90 % intervals of the simulation's own error, over seeds, around the mean of many replications."""
    base = small("simulation.precision=0.02")
    true_s = timed(simulate_variant(vary(base, {"simulation.seed": 999, "simulation.replications": 1500}))).step_s
    held = []
    for seed in range(60):
        step = timed(precise(simulate_variant(vary(base, {"simulation.seed": seed}), tokens=False))).step
        held.append(abs(true_s / step.mean - 1.0) <= step.error * student_t.ppf(0.95, step.degrees))
    assert 0.78 <= np.mean(held) <= 0.99


SLOW_PROMPTS = (
    "workload.generations_per_prompt=2", "trainer.global_batch_samples=32", "speculation.method=none",
    "workload.response_tokens={kind: lognormal, mean_tokens: 60, log_sigma: 0.5}", "workload.agent={turns: {kind: "
    "constant, turns: 3}, environment_s: {kind: lognormal, mean_s: 10, log_sigma: 1}, turn_timeout_s: 300}",
    "workload.agent.environment_group_correlation=0.6",
)  # fmt: skip


@pytest.mark.parametrize(
    "keys",
    [
        (),
        ("workload.response_tokens={kind: lognormal, mean_tokens: 800, log_sigma: 1.4}",),
        ("workload.response_tokens={kind: lognormal, mean_tokens: 1900, cut_share: 0.3}",),
        ("workload.response_tokens={kind: quantiles, quantiles: [0, 0.5, 1], tokens: [10, 300, 4000]}",),
        ("workload.usable_group_share=0.5", "workload.prompt_tokens={kind: lognormal, mean_tokens: 700}"),
    ],
)
def test_the_mean_of_drawn_tokens_is_that_of_many_draws(keys: tuple[str, ...]) -> None:
    workload = small(*keys).workload
    drawn = np.array([mean_drawn_tokens(workload, Place(7, step, 0)) for step in range(300)])
    assert abs(drawn.mean() - expected_drawn_tokens(workload)) <= 3.5 * drawn.std() / np.sqrt(len(drawn))


def test_a_control_of_tokens_is_unbiased_and_its_error_is_true() -> None:
    base = small("simulation.precision=0.015")
    steps, plain = [], []
    for seed in range(24):
        run = precise(simulate_variant(vary(base, {"simulation.seed": seed}), tokens=False))
        parts = phase_parts(run)
        for phase in ("generation_s", "logprob_s", "train_s"):
            shown = sum(part.seconds for part in parts if part.phase == phase)
            assert shown == pytest.approx(run.phases_s[phase])
        steps.append(timed(run).step)
        plain.append(np.mean([one.seconds for one in run.every_step]))
    means = np.array([step.mean for step in steps])
    held = [abs(step.mean / means.mean() - 1.0) <= step.error * student_t.ppf(0.95, step.degrees) for step in steps]
    assert np.mean(held) >= 0.75
    assert np.std(means) < np.std(plain)
    assert abs(means.mean() - np.mean(plain)) <= 3.0 * np.std(plain) / np.sqrt(len(plain))


def test_a_control_of_slow_environments_is_unbiased_and_its_error_is_true() -> None:
    base = small(*SLOW_PROMPTS, "simulation.precision=0.04")
    steps, plain = [], []
    for seed in range(24):
        run = precise(simulate_variant(vary(base, {"simulation.seed": seed}), tokens=False))
        step = timed(run).step
        assert run.control is not None and abs(step.carried) < 0.04 and step.error < 0.05
        assert sum(run.phases_s[name] for name in SUMMED) == pytest.approx(step.mean)
        steps.append(step)
        plain.append(np.mean([one.seconds for one in run.every_step]))
    means = np.array([step.mean for step in steps])
    # As exact as stated, a fraction of the error without it, and the same in the mean.
    held = [abs(step.mean / means.mean() - 1.0) <= step.error * student_t.ppf(0.95, step.degrees) for step in steps]
    assert np.mean(held) >= 0.75
    assert 3.0 * np.std(means) < np.std(plain)
    assert abs(means.mean() - np.mean(plain)) <= 3.0 * np.std(plain) / np.sqrt(len(plain))


def test_a_regression_finds_a_slope_and_nothing_in_noise() -> None:
    rng = np.random.default_rng(5)
    seen = [rng.normal(100.0, 10.0, 48) for _ in range(4)]
    slope, explained = regression([7.0 + 3.0 * row + rng.normal(0.0, 3.0, 48) for row in seen], seen)
    assert slope == pytest.approx(3.0, abs=0.1) and explained > 0.98
    assert abs(regression([rng.normal(0.0, 1.0, 48) for _ in seen], seen)[1]) < 0.3
    assert regression(seen, [np.ones(48) for _ in seen]) == (0.0, 0.0)


def estimate(parts: np.ndarray) -> Estimate:
    return Estimate.of(float(parts.mean()), np.ones(DRAWS), parts)


@pytest.mark.parametrize("moves_along", [0.0, 0.5, 1.0])
def test_an_alternative_is_carried_over_as_far_as_it_moves_with_the_scenario(moves_along: float) -> None:
    """Many short simulations of 8 parts around known means: the carried step is as far off as it says, and no farther
    than the better one of the step as simulated and the ratio."""
    rng = np.random.default_rng(3)
    off: dict[str, list[float]] = {"carried": [], "alone": [], "ratio": [], "told": [], "gain": [], "told_gain": []}
    for _ in range(2000):
        shared, own, known = rng.normal(0, 0.04, 8), rng.normal(0, 0.02, 8), rng.normal(0, 0.003)
        base, other = estimate(100 * (1 + shared)), estimate(50 * (1 + moves_along * shared + own))
        by = Anchor(replace(base, mean=100 * (1 + known), error=0.003), base)
        found = by.carried(other)
        off["carried"].append(found.scale * other.mean / 50 - 1)
        off["alone"].append(other.mean / 50 - 1)
        off["ratio"].append(by.scale * other.mean / 50 - 1)
        off["gain"].append(found.scale * other.mean / by.own.mean / 0.5 - 1)
        off["told"].append(found.error)
        off["told_gain"].append(found.ratio_error)
    rms = {name: float(np.sqrt(np.mean(np.square(values)))) for name, values in off.items()}
    assert rms["carried"] < 1.1 * min(rms["alone"], rms["ratio"])
    assert rms["told"] == pytest.approx(rms["carried"], rel=0.15)
    assert rms["told_gain"] == pytest.approx(rms["gain"], rel=0.15)


def test_parts_of_another_number_carry_nothing_over() -> None:
    base, other = estimate(np.array([100.0, 104.0, 96.0, 100.0])), estimate(np.array([50.0, 52.0, 48.0]))
    found = Anchor(replace(base, mean=110.0, error=0.001), base).carried(other)
    assert (found.scale, found.error) == (1.0, other.error) and found.ratio_error > other.error


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_the_scenario_itself_takes_what_project_answers(count: int) -> None:
    base = estimate(100 + np.arange(count))
    by = Anchor(replace(base, mean=97.0, error=0.002), base)
    found = by.carried(base)
    assert found.scale * base.mean == pytest.approx(97.0)
    assert found.error == pytest.approx(0.002) and found.ratio_error == pytest.approx(0.0)


def test_what_a_pool_leaves_open_of_many_stays_where_nothing_pairs() -> None:
    signs = np.array([1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0]), np.array([1.0, -1.0] * 4)
    base, other = (Estimate.of(100.0, np.ones(DRAWS), 100 + one, 0.05) for one in signs)
    found = Anchor(base, base).carried(other)
    assert found.scale == 1.0 and found.error > 0.05 and found.ratio_error > 0.05
    same = Anchor(base, base).carried(base)
    assert same.error == pytest.approx(base.error) and same.ratio_error == pytest.approx(0.0)
