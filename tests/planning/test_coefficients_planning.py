"""Coefficients of planning, each seen alone."""

from types import SimpleNamespace
from typing import Any

import pytest

from rlsim.errors import InputError
from rlsim.loading.scenario import vary
from rlsim.planning.bounds import rollout_works
from rlsim.planning.new import Answers, scenario_text
from rlsim.planning.objective import Objective
from rlsim.planning.plan import default_limits
from rlsim.planning.search import Contest, final_replications
from rlsim.schema.scenario import Scenario


def test_the_context_of_a_bound_grows_by_half_of_what_is_generated(tiny: Scenario) -> None:
    lengths = {
        "prompt_tokens": {"kind": "constant", "tokens": 100},
        "response_tokens": {"kind": "constant", "tokens": 9},
    }
    (work,) = rollout_works(
        vary(tiny, {"speculation.method": "none", **{f"workload.{k}": v for k, v in lengths.items()}}), 0
    )
    each = work.iterations / work.samples
    assert work.context_iterations / work.iterations == pytest.approx(100 + (9 - 9 / each) / 2)


def test_searches_look_at_these_sizes_and_draws_and_call_these_plans_equal(tiny: Scenario) -> None:
    assert default_limits(tiny, Objective(measure="gpus")).sizes == (1, 2, 4, 8, 16, 32, 64)
    assert final_replications(vary(tiny, {"simulation.replications": 100})) == 8
    plans: list[Any] = [
        SimpleNamespace(numbers=SimpleNamespace(num_gpus=8), timed=None, mean_s=mean_s)
        for mean_s in (100, 102.9, 103.1)
    ]
    assert Contest(tiny, Objective(), default_limits(tiny)).near(plans) == plans[:2]


def test_a_new_scenario_caps_at_four_means_and_a_prompt() -> None:
    text = scenario_text(Answers("qwen3-8b", "h100_sxm", 8, (64, 16), 960), "own", {}, {})
    assert "max_sequence_tokens: 4096" in text and "log_sigma: 0.8" in text
    answers = {"model": "qwen3-8b", "hardware": "h100_sxm", "batch": "64x16", "response-tokens": "9999999"}
    assert Answers.parse({**answers, "gpus": "9_999_999"}).gpus == 9_999_999
    with pytest.raises(InputError, match="must be a whole number above 0 and below 10,000,000"):
        Answers.parse({**answers, "gpus": "10000000"})
