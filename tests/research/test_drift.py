"""Measured courses of acceptance: met within a tolerance, and followed by a trend of few values."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.drift import fit_trend, fit_within
from rlsim.schema.speculation import Drift, Speculation
from rlsim.workload.acceptance_steps import acceptance_at


@settings(max_examples=10, deadline=None)
@given(
    length=st.floats(1.5, 3.5),
    shifts=st.lists(st.floats(-0.8, 0.8), min_size=2, max_size=4),
    noise=st.floats(0.0, 0.08),
    seed=st.integers(0, 100),
)
def test_a_course_is_met_within_the_tolerance_by_fewer_values_than_points(
    length: float, shifts: list[float], noise: float, seed: int
) -> None:
    knots = tuple(float(x) for x in np.linspace(0, 60, len(shifts)))
    drift = Drift(steps=knots, logit_shift=tuple(shifts))
    true = Speculation(method="eagle3", draft_length=3, acceptance_length=length, drift=drift)
    rng = np.random.default_rng(seed)
    points = [(float(x), acceptance_at(true, x).mean + rng.uniform(-noise, noise)) for x in range(61)]
    points = [(x, min(max(y, 1.0), 4.0)) for x, y in points]
    within = fit_within(points, 3, 0.1)
    assert within.worst_tokens <= 0.1
    assert len(within.steps) <= 12
    assert fit_trend(points, 3).rms_tokens < 0.2


def test_points_of_one_step_that_contradict_each_other_are_shown() -> None:
    found = fit_within([(0.0, 2.0), (0.0, 2.6), (1.0, 2.3)], 3, 0.1)
    assert found.worst_tokens == pytest.approx(0.3, abs=0.01)
    assert found.beyond(0.1) == 2
