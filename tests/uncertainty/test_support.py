"""What the interval of an answer comes from, and what supports it."""

import numpy as np
import pytest

from rlsim.loading.scenario import load_scenario
from rlsim.projection.project import project
from rlsim.projection.uncertainty.predictive import log_draws, phase_groups, posterior_of, prediction_of
from rlsim.projection.uncertainty.sources import covariance_shares, mean_shares, sources_of
from rlsim.projection.variant import SimulatedVariant, simulate_variant
from rlsim.report.style import Style
from rlsim.report.text.projection import render
from rlsim.results import Projection

SMALL = ("simulation.replications=1", "workload.prompts_per_step=16", "trainer.global_batch_samples=512")
EAGER = ("engine.max_captured_tokens=8", "hardware.eager_launch_s.value=1e-4")


def simulated(*settings: str) -> SimulatedVariant:
    return simulate_variant(load_scenario("quickstart", [*SMALL, *settings]))


@pytest.fixture(scope="module")
def run() -> SimulatedVariant:
    return simulated()


@pytest.fixture(scope="module")
def answer() -> Projection:
    return project(load_scenario("quickstart", SMALL))


def test_shares_of_sources_add_up_to_the_whole_variance(run: SimulatedVariant) -> None:
    found = sources_of(run)
    assert sum(one.share for one in found) == pytest.approx(1.0)
    assert [one.share for one in found] == sorted((one.share for one in found), reverse=True)
    assert len({one.name for one in found}) == len(found)
    assert all(one.settle and one.command.startswith("rlsim ") for one in found)


def test_contributions_add_up_to_the_draws_of_the_step(run: SimulatedVariant) -> None:
    predicted, posterior = prediction_of(run), posterior_of(run.scenario)
    whole = np.sum([one.draws for one in sources_of(run)], axis=0)
    shares, groups = mean_shares(predicted), phase_groups(run.scenario)
    direct = sum(
        share * log_draws(posterior, getattr(predicted.slopes, phase), dict.fromkeys(groups[phase], 1.0))
        for phase, share in shares.items()
    )
    np.testing.assert_allclose(whole, direct, atol=1e-9)
    # To first order these are the draws behind the interval.
    assert np.corrcoef(whole, np.log(predicted.step_s))[0, 1] > 0.95
    assert whole.std() == pytest.approx(np.log(predicted.step_s).std(), rel=0.1)


def test_a_share_is_what_the_variance_loses_without_an_independent_source() -> None:
    generator = np.random.default_rng(3)
    draws = generator.standard_normal((3, 20_000)) * np.array([[0.1], [0.2], [0.3]])
    whole = draws.sum(axis=0)
    for row, share in zip(draws, covariance_shares(draws), strict=True):
        lost = 1 - np.var(whole - row) / np.var(whole)
        assert share == pytest.approx(lost, abs=0.01)


def test_correlated_sources_split_what_they_share() -> None:
    one = np.random.default_rng(4).standard_normal(5000)
    assert covariance_shares(np.array([one, one])) == pytest.approx([0.5, 0.5])
    assert covariance_shares(np.array([3 * one, -one])) == pytest.approx([1.5, -0.5])
    assert covariance_shares(np.zeros((2, 10))).tolist() == [0.0, 0.0]


def test_launches_are_a_source_where_iterations_exceed_the_graphs(run: SimulatedVariant) -> None:
    def share(of: SimulatedVariant) -> float:
        return sum(one.share for one in sources_of(of) if one.name.startswith("launches"))

    eager = simulated(*EAGER)
    assert share(eager) > 0.1 > share(run)
    (launches,) = [one for one in sources_of(eager) if one.name.startswith("launches")]
    assert launches.assumed
    assert "max_captured_tokens" in launches.settle


def test_a_release_that_was_never_measured_is_told() -> None:
    names = [one.name for one in sources_of(simulated("engine.version=9.9.0")) if one.assumed]
    assert "vllm 9.9.0: never measured" in names


def test_the_answer_holds_its_support_and_says_it(answer: Projection) -> None:
    support = answer.support
    told = answer.as_dict()["support"]
    shares = {nearest["kind"]: nearest["share"] for nearest in told["nearest"]}
    assert shares.keys() == {"iteration", "training", "transfer", "step"}
    assert sum(shares.values()) - shares["step"] == pytest.approx(1.0, abs=0.05)
    assert all(nearest["runs"][0]["id"] for nearest in told["nearest"])
    low, high = answer.candidate.step_s.low, answer.candidate.step_s.high
    assert (1 + support.half_width) ** 2 == pytest.approx(high / low)
    for width in (60, 100):
        text = render(answer, Style(width))
        section = text[text.index("\nNearest measurements\n") :].split("\n\n")[0].strip()
        assert "either way (90 %); the nearest measured step, " in " ".join(section.split())
        assert "rlsim calibrate" in " ".join(section.split())
        assert max(map(len, section.splitlines()[1:])) <= width
