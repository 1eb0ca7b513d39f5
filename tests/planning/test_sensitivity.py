"""What to measure next."""

from __future__ import annotations

import numpy as np
import pytest

from rlsim.costs.overheads import overheads_of
from rlsim.errors import InputError
from rlsim.hardware.parameters import fitted_of
from rlsim.loading import load_scenario, vary
from rlsim.planning import sensitivity
from rlsim.planning.sensitivity import fitted_polynomial
from rlsim.planning.text import render_sensitivity
from rlsim.planning.uncertainty import ACCEPTED, EFFICIENCY, UncertainInput, drawn_overrides, uncertain_inputs
from rlsim.planning.variation import varied
from rlsim.schema.scenario import Scenario
from rlsim.workload.acceptance import acceptance_of


def test_a_polynomial_of_second_order_is_found_exactly() -> None:
    points = np.random.default_rng(0).random((60, 6))
    values = 3 + 5 * points[:, 0] - 4 * points[:, 1] + 2 * points[:, 0] * points[:, 1] + points[:, 2] ** 2
    found = fitted_polynomial(points, values)
    np.testing.assert_allclose(found(points), values, atol=1e-9)


def test_the_wider_range_contributes_more(tiny: Scenario) -> None:
    wide = sensitivity(tiny, uncertain=["loop.refit_fixed_s=1:60"], samples=110)
    assert wide.contributions[0].key == "loop.refit_fixed_s"
    assert wide.contributions[0].share > 0.8
    assert wide.contributions[0].narrowed < 0.5
    narrow = sensitivity(tiny, uncertain=["loop.refit_fixed_s=4:4.001"], samples=110)
    share = next(item.share for item in narrow.contributions if item.key == "loop.refit_fixed_s")
    assert share < 0.02
    for answer in (wide, narrow):
        assert answer.fit > 0.9
        assert answer.low_s < answer.median_s < answer.high_s
        assert sum(item.share for item in answer.contributions) == pytest.approx(1.0, abs=0.15)
        assert [item.share for item in answer.contributions] == sorted(
            (i.share for i in answer.contributions), reverse=True
        )
        assert "What to measure next" in render_sensitivity(answer)


def test_the_same_seed_gives_the_same_answer_for_any_number_of_jobs(tiny: Scenario) -> None:
    assert sensitivity(tiny, samples=110, jobs=2).as_dict() == sensitivity(tiny, samples=110).as_dict()


def test_inputs_follow_the_scenario(tiny: Scenario) -> None:
    keys = {item.key for item in uncertain_inputs(tiny)}
    assert {"engine.host_iteration_s", ACCEPTED, "workload.response_tokens.log_sigma"} <= keys
    plain = {item.key for item in uncertain_inputs(vary(tiny, "speculation.method=none"))}
    assert keys - plain == {ACCEPTED}
    assert all(item.low < item.high and item.reason for item in uncertain_inputs(tiny))


def test_draws_stay_within_their_ranges_and_give_valid_scenarios(tiny: Scenario) -> None:
    inputs = uncertain_inputs(tiny)
    for share in (0.0, 0.5, 1.0):
        drawn = varied(tiny, drawn_overrides(tiny, inputs, np.full(len(inputs), share)))
        host = next(item for item in inputs if item.key == "engine.host_iteration_s")
        assert drawn.engine.host_iteration_s == pytest.approx(
            [host.low, (host.low * host.high) ** 0.5, host.high][int(2 * share)]
        )
        factor = 0.9 + 0.2 * share
        own = acceptance_of(tiny.speculation).position_rates
        np.testing.assert_allclose(acceptance_of(drawn.speculation).position_rates, np.minimum(factor * own, 1))


def test_the_centre_of_the_efficiencies_is_the_scenario_as_it_is() -> None:
    """Experts and dense layers reach different shares of the kernels' speed; one factor moves both."""
    scenario = load_scenario("qwen235b_512")
    now = overheads_of(scenario, fitted_of(scenario)).training
    assert now.moe_speed != now.dense_speed
    inputs = [item for item in uncertain_inputs(scenario) if item.key == EFFICIENCY]
    for quantile, factor in ((0.5, 1.0), (0.0, 1 / 1.2), (1.0, 1.2)):
        drawn = varied(scenario, drawn_overrides(scenario, inputs, np.array([quantile])))
        found = overheads_of(drawn, fitted_of(drawn)).training
        assert found.dense_speed == pytest.approx(now.dense_speed * factor)
        assert found.moe_speed == pytest.approx(now.moe_speed * factor)
    given = uncertain_inputs(scenario, ["trainer.device_efficiency=0.5:0.6"])
    assert EFFICIENCY not in {item.key for item in given}


def test_quantiles_of_a_range() -> None:
    assert [UncertainInput("x", 1.0, 100.0, log=True).at(s) for s in (0.0, 0.5, 1.0)] == pytest.approx([1, 10, 100])
    assert [UncertainInput("x", 1.0, 3.0).at(s) for s in (0.0, 0.5, 1.0)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("engine.host_iteration_s", "is not KEY=LOW:HIGH"),
        ("engine.host_iteration_s=1", "is not KEY=LOW:HIGH"),
        ("engine.host_iterations=1:2", "did you mean 'engine.host_iteration_s'"),
        ("engine.host_iteration_s=2:1", "LOW must be below HIGH"),
        ("engine.host_iteration_s=a:b", "must be numbers"),
    ],
)
def test_bad_ranges_are_said(tiny: Scenario, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        sensitivity(tiny, uncertain=[text])


def test_too_few_points_are_refused(tiny: Scenario) -> None:
    with pytest.raises(InputError, match="--samples must be at least"):
        sensitivity(tiny, samples=20)
