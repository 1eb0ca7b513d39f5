"""Expected regret and what knowing something saves of it, against closed forms."""

import math

import numpy as np
import pytest

from rlsim.planning.sensitivity import narrowed, regret, regrets, saved, saved_by_input

DRAWS = 200_000


def least_of_two(mean: float, deviation: float) -> float:
    """E[max(0, d)] of a normal difference d: what perfect information on it saves where the mean is negative."""
    z = mean / deviation
    return mean * 0.5 * (1 + math.erf(z / math.sqrt(2))) + deviation * math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)


@pytest.fixture(scope="module")
def parts() -> np.ndarray:
    half = np.random.default_rng(5).standard_normal((3, DRAWS // 2))
    return np.concatenate([half, -half], axis=1)


@pytest.mark.parametrize("gap", [0.0, 1.0, 3.0])
def test_two_normal_alternatives_have_the_regret_of_the_closed_form(parts: np.ndarray, gap: float) -> None:
    """Alternative 1 costs ``gap`` more; their difference has deviations 2 and 1 by two independent sources."""
    steps = np.array([100 + 2 * parts[0] + 1 * parts[1], 100 + gap + 0 * parts[0]])
    assert regret(steps) == pytest.approx(least_of_two(-gap, math.hypot(2, 1)), rel=0.02)
    assert saved(steps, parts[0]) == pytest.approx(least_of_two(-gap, 2), rel=0.03, abs=2e-3)
    assert saved(steps, parts[1]) == pytest.approx(least_of_two(-gap, 1), rel=0.05, abs=2e-3)
    assert saved(steps, parts[2]) == pytest.approx(0.0, abs=0.02)
    assert saved(steps, parts[0]) <= regret(steps)


def test_what_moves_all_alternatives_alike_is_worth_nothing(parts: np.ndarray) -> None:
    steps = np.array([100 + 5 * parts[0], 101 + 5 * parts[0]])
    assert regret(steps) == pytest.approx(0.0, abs=1e-9)
    assert saved(steps, parts[0]) == pytest.approx(0.0, abs=1e-9)
    assert regrets(steps) == pytest.approx([0.0, 1.0])


def test_the_interval_narrows_by_what_is_known(parts: np.ndarray) -> None:
    whole = 0.3 * parts[0] + 0.4 * parts[1]
    assert narrowed(whole, parts[0]) == pytest.approx(0.8, rel=0.02)
    assert narrowed(whole, parts[2]) == pytest.approx(1.0, rel=0.01)
    assert narrowed(np.zeros(100), np.ones(100)) == 1.0


def test_a_stated_input_is_worth_what_it_can_turn() -> None:
    """Two alternatives that cross in the middle: knowing which half saves half of the mean gap."""
    quantiles = np.linspace(-1, 1, 2001)
    effects = np.array([0.1 * quantiles, -0.1 * quantiles])
    expected = 100 * (1 - np.mean(np.exp(-0.1 * np.abs(quantiles))))
    assert saved_by_input(np.array([100.0, 100.0]), effects) == pytest.approx(expected, rel=0.05)
    assert saved_by_input(np.array([100.0, 200.0]), effects) == 0.0
