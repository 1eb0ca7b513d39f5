"""What to measure next."""

import math

import numpy as np
import pytest

from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario, vary
from rlsim.loading.variation import Overrides
from rlsim.planning.sensitivity import (
    AS_IT_IS,
    alternatives,
    first_step_s,
    narrowed,
    regret,
    regrets,
    saved,
    saved_by_input,
    sensitivity,
)
from rlsim.planning.stated_inputs import ACCEPTED, uncertain_inputs
from rlsim.projection.project import project
from rlsim.report.style import Style
from rlsim.report.text.planning import render_sensitivity
from rlsim.results.planning import Sensitivity
from rlsim.schema.scenario import Scenario
from rlsim.workload.acceptance import acceptance_of

SIGMA = "workload.response_tokens.log_sigma"


@pytest.fixture(scope="module")
def answer(tiny: Scenario) -> Sensitivity:
    return sensitivity(tiny)


def test_the_interval_is_that_of_project(tiny: Scenario, lagged: Scenario, answer: Sensitivity) -> None:
    assert answer.step_s == project(tiny).candidate.step_s
    assert sensitivity(lagged).step_s == project(lagged).candidate.step_s
    assert sum(one.share for one in answer.sources) == pytest.approx(1.0)
    assert [one.saved_s for one in answer.sources] == sorted((one.saved_s for one in answer.sources), reverse=True)
    for one in answer.sources:
        assert 0 <= one.saved_s <= answer.regret_s
        assert 0 < one.narrowed <= 1.03  # quantiles of 2,048 draws are sure to some 3 %
    largest = max(answer.sources, key=lambda one: one.share)
    assert largest.narrowed == min(one.narrowed for one in answer.sources)
    assert answer.alternatives[0].name == AS_IT_IS
    assert sum(one.best for one in answer.alternatives) == pytest.approx(1.0)
    chosen = next(one for one in answer.alternatives if one.name == answer.chosen)
    assert chosen.regret_s == min(one.regret_s for one in answer.alternatives) == answer.regret_s
    assert all(0 <= one.saved_s <= answer.regret_s for one in answer.alternatives)
    assert all(one.step_s.low < one.step_s.mean < one.step_s.high for one in answer.alternatives)


@pytest.mark.nightly
def test_few_steps_of_an_alternative_make_no_information_worth_more_than_all() -> None:
    # Student's t of two steps has no mean: what a simulation misses is nothing that a measurement tells.
    found = sensitivity(load_scenario({"extends": "search_agent_16", "workload": {"prompts_per_step": 16}}))
    assert all(one.saved_s <= found.regret_s * 1.01 for one in (*found.sources, *found.alternatives))


def test_alternatives_can_be_set_and_inputs_follow_the_scenario(tiny: Scenario) -> None:
    found = {one.name: one for one in alternatives(tiny)}
    assert {AS_IT_IS, "k=0", "k=1", "k=2", "k=4", "engine.tensor_parallel=2"} == set(found)
    for one in found.values():
        assert vary(tiny, *one.changes) == one.scenario
    # k drafts under the same acceptance process, not at the same acceptance length.
    rates = acceptance_of(tiny.speculation).position_rates
    other = acceptance_of(found["k=2"].scenario.speculation).position_rates
    np.testing.assert_allclose(other, rates[:2], atol=1e-4)
    keys = {item.key for item in uncertain_inputs(tiny)}
    assert {"workload.group_correlation", ACCEPTED, "workload.response_tokens.log_sigma"} <= keys
    plain = {item.key for item in uncertain_inputs(vary(tiny, "speculation.method=none"))}
    assert keys - plain == {ACCEPTED}
    assert all(item.low < item.high and item.reason and item.centred for item in uncertain_inputs(tiny))


def test_inputs_move_the_step_and_the_text_names_commands(tiny: Scenario, answer: Sensitivity) -> None:
    by_key = {one.key: one for one in answer.inputs}
    mean = by_key["workload.response_tokens.mean_tokens"]
    assert mean.at_low < 0 < mean.at_high
    accepted = by_key[ACCEPTED]
    assert accepted.at_low > 0 > accepted.at_high
    wide = sensitivity(tiny, uncertain=["workload.response_tokens.mean_tokens=100:400"])
    assert wide.step_s == answer.step_s
    for one in (wide, answer):
        assert one.step_with_inputs_s.high > one.step_s.high
    assert wide.step_with_inputs_s.high > answer.step_with_inputs_s.high
    for width in (80, 120):
        text = render_sensitivity(answer, Style(width))
        assert "What to measure next" in text
        assert "rlsim calibrate own" in " ".join(text.split())
        assert max(map(len, text.splitlines())) <= width
    assert answer.chosen in text


def test_a_key_without_a_value_has_a_middle_and_one_that_settles_a_worth(tiny: Scenario) -> None:
    (item,) = [one for one in uncertain_inputs(tiny, ["engine.host_iteration_s=0.001:0.1"]) if one.reason == "given"]
    assert item.simulated == (0.0, 0.5, 1.0)
    found = {one.key: one for one in sensitivity(tiny, uncertain=["engine.host_iteration_s=0.001:0.1"]).inputs}
    assert found["engine.host_iteration_s"].at_high > found["engine.host_iteration_s"].at_low
    # With drafts hardly ever or nearly always accepted, whether to draft hangs on the acceptance.
    found = sensitivity(
        vary(tiny, "speculation.draft_graph=none", "engine.version=0.17.1"), uncertain=[f"{ACCEPTED}=0.05:1.2"]
    )
    values = {one.key: one.saved_s for one in found.inputs}
    assert found.inputs[0].key == ACCEPTED
    assert values[ACCEPTED] > 10 * max(value for key, value in values.items() if key != ACCEPTED)


@pytest.mark.parametrize(("text", "said"), [
    ("engine.host_iteration_s", "is not KEY=LOW:HIGH"),
    ("engine.host_iteration_s=1", "is not KEY=LOW:HIGH"),
    ("engine.host_iterations=1:2", "did you mean 'engine.host_iteration_s'"),
    ("engine.host_iteration_s=2:1", "LOW must be below HIGH"),
    ("engine.host_iteration_s=a:b", "must be numbers"),
    ("engine.gpu_memory_utilization=0.01:0.6", "cannot run at every value"),
])  # fmt: skip
def test_bad_ranges_are_said(tiny: Scenario, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        sensitivity(tiny, uncertain=[text])


def test_an_assumed_range_ends_where_nothing_runs(
    tiny: Scenario, answer: Sensitivity, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Lengths that just fit: improve answers with the half of the range that runs, and says so.
    plain = {one.key: one for one in answer.inputs}

    def short_of_memory(scenario: Scenario, overrides: Overrides) -> float:
        value = overrides.get(SIGMA)
        return math.nan if value is not None and float(str(value)) > own else first_step_s(scenario, overrides)

    own = tiny.workload.response_tokens.log_sigma  # type: ignore[union-attr]
    monkeypatch.setattr("rlsim.planning.sensitivity.first_step_s", short_of_memory)
    found = {one.key: one for one in sensitivity(tiny).inputs}
    assert (found[SIGMA].low, found[SIGMA].high) == (plain[SIGMA].low, own)
    assert found[SIGMA].reason == f"{plain[SIGMA].reason}; cannot run at {plain[SIGMA].high:g}"
    assert math.isclose(found[SIGMA].at_low, plain[SIGMA].at_low)
    assert math.isclose(found[SIGMA].at_high, 0.0, abs_tol=1e-9)
    assert {key: one for key, one in found.items() if key != SIGMA} == {k: v for k, v in plain.items() if k != SIGMA}


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


def test_what_moves_all_alternatives_is_worth_nothing_and_what_is_known_narrows_the_interval(parts: np.ndarray) -> None:
    steps = np.array([100 + 5 * parts[0], 101 + 5 * parts[0]])
    assert regret(steps) == pytest.approx(0.0, abs=1e-9)
    assert saved(steps, parts[0]) == pytest.approx(0.0, abs=1e-9)
    assert regrets(steps) == pytest.approx([0.0, 1.0])
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
