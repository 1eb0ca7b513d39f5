"""Two scenarios side by side."""

import pytest

from rlsim.loading.scenario import vary
from rlsim.planning import compare
from rlsim.projection.project import project
from rlsim.report.text.planning import render_comparison
from rlsim.schema.scenario import Scenario


def test_a_scenario_does_not_differ_from_itself(tiny: Scenario) -> None:
    comparison = compare(tiny, tiny)
    assert comparison.differences == {}
    assert (comparison.speedup.mean, comparison.speedup.low, comparison.speedup.high) == (1.0, 1.0, 1.0)
    assert comparison.explained_by is None
    assert "do not differ" in render_comparison(comparison)


def test_the_phase_that_changed_explains_the_difference(tiny: Scenario) -> None:
    comparison = compare(tiny, vary(tiny, "speculation.method=none"))
    assert comparison.paired
    assert comparison.explained_by == "generation"
    (generation,) = [one for one in comparison.phases if one.phase == "generation"]
    assert generation.share == pytest.approx(1.0, abs=1e-6)
    assert comparison.speedup.mean < 1
    slower = compare(tiny, vary(tiny, "loop.refit_fixed_s=50"))
    assert slower.explained_by == "prepare"


def test_phases_add_up_to_the_step_in_both_modes(tiny: Scenario, lagged: Scenario) -> None:
    comparison = compare(tiny, lagged)
    assert "generation (exposed where asynchronous)" in render_comparison(comparison)
    assert "  exposed generation" in render_comparison(compare(lagged, lagged))
    assert sum(change.before_s for change in comparison.phases) == pytest.approx(comparison.step_s[0].mean)
    assert sum(change.after_s for change in comparison.phases) == pytest.approx(comparison.step_s[1].mean, rel=0.01)


def test_a_comparison_with_the_baseline_is_the_projection(tiny: Scenario) -> None:
    """The model's error on speed-ups is in both intervals, or the two would contradict each other."""
    comparison = compare(vary(tiny, "speculation.method=none"), tiny)
    assert comparison.speedup == project(tiny).end_to_end_speedup
    assert comparison.price_per_gpu_hour_usd == (3.0, 3.0)
    assert "USD at 3.00 per GPU and hour" in render_comparison(comparison)


def test_other_hardware_has_errors_of_its_own(tiny: Scenario) -> None:
    """Another device was measured apart; the same one with another figure in its profile shares all its errors."""
    other, changed = (
        compare(tiny, vary(tiny, f"hardware{how}")).speedup for how in ("=h200_sxm", ".bf16_flops.value=1.2e15")
    )
    assert other.high / other.low > 1.2 > 1.05 > changed.high / changed.low


def test_different_work_is_not_paired(tiny: Scenario) -> None:
    comparison = compare(tiny, vary(tiny, "simulation.seed=5"))
    assert not comparison.paired
    assert comparison.speedup.low < comparison.speedup.high
    assert "on different work" in render_comparison(comparison)
