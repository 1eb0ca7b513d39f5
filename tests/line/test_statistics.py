"""Intervals of replications."""

import math

import numpy as np
import pytest
from scipy import stats

from rlsim.results import Interval
from rlsim.results.record import CONFIDENCE, interval, student_t95, widened


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 7, 10, 15, 31, 100, 10_000])
def test_student_t_agrees_with_scipy(degrees):
    tolerance = 1e-9 if degrees <= 2 else 3e-3
    assert student_t95(degrees) == pytest.approx(stats.t.ppf(0.95, degrees), rel=tolerance)


def test_interval_is_students_prediction_interval():
    values = [10.0, 12.0, 9.0, 11.5, 10.5]
    found = interval(values)
    half = stats.t.ppf(0.95, 4) * np.std(values, ddof=1) * math.sqrt(1 + 1 / 5)
    assert found.mean == pytest.approx(np.mean(values))
    assert (found.high - found.mean, found.mean - found.low) == pytest.approx((half, half), rel=3e-3)


def test_interval_covers_one_more_value_nine_times_of_ten():
    rng = np.random.default_rng(1)
    draws = rng.normal(100.0, 5.0, (4000, 5))
    covered = sum(q.low <= row[4] <= q.high for row in draws for q in [interval(row[:4].tolist())])
    low, high = stats.binom.interval(0.999, 4000, CONFIDENCE)
    assert low <= covered <= high


def test_one_value_or_equal_ones_have_no_width():
    assert interval([3.0]) == Interval(3.0, 3.0, 3.0)
    assert interval([3.0] * 5) == Interval(3.0, 3.0, 3.0)


def test_times_do_not_become_negative():
    assert interval([1.0, 100.0]).low == 0.0
    assert interval([1.0, 100.0], floor=-math.inf).low < 0.0


def test_widened_by_the_model_alone():
    found = widened(Interval(10.0, 10.0, 10.0), 0.15)
    factor = math.exp(stats.norm.ppf(0.95) * 0.15)
    assert (found.low, found.mean, found.high) == pytest.approx((10 / factor, 10.0, 10 * factor))


def test_widths_add_in_squares_of_the_logarithm():
    model = stats.norm.ppf(0.95) * 0.2
    found = widened(Interval(10.0, 10 / math.exp(0.3), 10 * math.exp(0.4)), 0.2)
    assert math.log(10.0 / found.low) == pytest.approx(math.hypot(0.3, model))
    assert math.log(found.high / 10.0) == pytest.approx(math.hypot(0.4, model))


@pytest.mark.parametrize("quantity", [Interval(0.0, 0.0, 0.0), Interval(0.0, 0.0, 1.0)])
def test_what_is_zero_stays_zero(quantity):
    assert widened(quantity, 0.3) == quantity


def test_a_lower_end_at_zero_stays_there():
    found = widened(Interval(5.0, 0.0, 12.0), 0.1)
    assert found.low == 0.0
    assert found.high > 12.0
