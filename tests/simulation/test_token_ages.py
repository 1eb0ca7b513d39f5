"""By which versions of the weights the tokens of a batch were generated."""

from __future__ import annotations

import pytest
from fixed_costs import PROMPT, FixedCosts, steps

from rlsim.schema.asynchrony import STYLES

LONGER = {"lengths": {1: [401, 1601, 401, 401]}, "prompts": 4, "size": 1, "replicas": 1}
"""A sample of the second batch takes 400 s where the others take 100 s."""


def keys(style: str) -> tuple[str, ...]:
    return ("simulation.steps=6", "loop.in_flight_updates=null", f"loop.style={style}")


def tokens_of(step):
    return sum(step.token_ages.values())


@pytest.mark.parametrize("style", STYLES)
def test_every_token_has_an_age_and_none_is_older_than_its_sample(style):
    for step in steps(FixedCosts(), *keys(style), lag=1, **LONGER):
        assert tokens_of(step) == pytest.approx(step.total_tokens - 4 * PROMPT)
        assert max(step.token_ages) <= max(step.staleness)


def test_requests_that_are_awaited_have_tokens_of_one_age():
    """nemo_rl drains: what a step trains on was begun and ended with the same weights."""
    for step in steps(FixedCosts(), *keys("nemo_rl"), lag=1, **LONGER):
        assert set(step.token_ages) == set(step.staleness)


def test_requests_that_go_on_have_tokens_of_several():
    """The long sample starts before the first update and gets 4 tokens a second from then on, each with the weights of
    its time; the step that trains on it tells all of them."""
    found = steps(FixedCosts(), *keys("skyrl"), lag=1, **LONGER)
    assert max(len(step.token_ages) for step in found) >= 3


def test_requests_that_start_again_have_tokens_of_their_last_weights():
    restart = ("simulation.steps=6", "loop.style=nemo_rl", "loop.in_flight_updates=true", "loop.restart_requests=true")
    again, on = (
        steps(FixedCosts(train_s=30.0), *restart[:3], more, lag=1, **LONGER)
        for more in (restart[3], "loop.restart_requests=false")
    )
    mean_age = [
        sum(age * n for age, n in step.token_ages.items()) / tokens_of(step) for run in (again, on) for step in run
    ]
    assert sum(mean_age[:6]) <= sum(mean_age[6:])


def test_without_overlap_and_nothing_ahead_all_tokens_are_new():
    for step in steps(FixedCosts(), "loop.mode=async", "loop.overlap=false", "loop.policy_lag=0", **LONGER):
        assert set(step.token_ages) == {0}


def test_the_kernel_counts_as_the_reference(both):
    kernel, reference = both(lambda: [step.token_ages for step in steps(FixedCosts(), *keys("roll"), lag=1, **LONGER)])
    assert kernel == reference
