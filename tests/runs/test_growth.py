"""Lengths and turns that grow over a run: scaled before their caps, linear between the points."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import small

import rlsim
from rlsim.workload.draw import Stretch, draw


@given(factor=st.floats(0.01, 20))
@settings(max_examples=20)
def test_growth_scales_responses_before_the_cap(factor: float) -> None:
    scenario = small({"simulation.steps": 1})
    plain = draw(scenario, 0).steps[0].rollouts[0].batch
    grown = draw(scenario, 0, stretch=Stretch(0, ((0, factor),))).steps[0].rollouts[0].batch
    assert np.array_equal(plain.prompt_tokens, grown.prompt_tokens)
    room = 1024 - plain.prompt_tokens
    uncut = plain.response_tokens < room
    wanted = np.clip(factor * plain.response_tokens[uncut], 1, room[uncut])
    assert np.abs(grown.response_tokens[uncut] - wanted).max() <= 0.5 * factor + 0.5
    assert factor < 1 or np.all(grown.response_tokens[~uncut] == room[~uncut])


@pytest.mark.parametrize("factor", [0.3, 2.0])
def test_growth_scales_turns_before_the_cap(factor: float) -> None:
    """A trajectory has as many turns as it wants times the factor, where neither its turns nor its context are cut."""
    agent = {"turns": {"kind": "lognormal", "mean_turns": 5}, "max_turns": 12, "observation_tokens":
             {"kind": "constant", "tokens": 1}, "environment_s": {"kind": "constant", "seconds": 0.0}}  # fmt: skip
    scenario = small({"simulation.steps": 1, "workload.agent": agent, "workload.max_sequence_tokens": 4096,
                      "workload.response_tokens": {"kind": "constant", "tokens": 50},
                      "run.turns_growth": ((0, 1.0), (10, factor))})  # fmt: skip
    plain, grown, half = (
        np.diff(draw(scenario, 0, stretch=Stretch(0, (), points)).steps[0].rollouts[0].turns.first)
        for points in ((), ((0, factor),), ((-4, 1.0), (4, factor)))
    )
    uncut = plain < 12
    wanted = np.clip(factor * plain[uncut], 1, 12)
    assert np.abs(grown[uncut] - wanted).max() <= 0.5 * factor + 0.5
    assert min(plain.mean(), grown.mean()) < half.mean() < max(plain.mean(), grown.mean())
    values = rlsim.run(scenario, 11, baseline=False).candidate.steps["response_tokens"]
    assert (np.mean(values[-3:]) > np.mean(values[:3])) == (factor > 1)
