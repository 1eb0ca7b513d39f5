"""Rules of the likelihood and of what is measured, on numbers alone."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlsim.attribution import check, likelihood
from rlsim.attribution.faults import figures
from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario, vary


@pytest.mark.parametrize(
    ("given", "noise", "refused"),
    [
        # Phases come to 1.1 times the step at most, or to 5 deviations of both times.
        ({"generation": 60.0, "train": 50.0}, {}, ""),
        ({"generation": 60.0, "train": 50.1}, {}, "--generation 60, --train 50.1 come to 110.1, which is longer"),
        ({"generation": 100.0, "train": 100 * math.exp(0.25 * 2**0.5) - 100.1}, 0.05, ""),
        ({"generation": 100.0, "train": 100 * math.exp(0.25 * 2**0.5) - 99.9}, 0.05, "come to 142.5"),
        ({"refit": 110.0}, {}, ""),
        ({"refit": 110.1, "train": 1.0, "data": 0.0}, {}, "--weight-update 110.1 is longer than --step 100"),
    ],
)
def test_phases_of_a_step_take_no_longer_than_it(given: dict[str, float], noise: Any, refused: str) -> None:
    if not refused:
        likelihood._refuse_longer_than_the_step(given, 100.0, noise)
        return
    with pytest.raises(InputError) as error:
        likelihood._refuse_longer_than_the_step(given, 100.0, noise)
    assert refused in str(error.value)


def test_a_path_is_linear_in_logarithms_between_what_was_simulated() -> None:
    ends = [(2.0, np.array([0.0, 1.0])), (8.0, np.array([4.0, 1.0])), (16.0, np.array([4.0, 3.0]))]
    path = likelihood.Path.through(ends)
    assert len(path.severities) == 1 + 2 * likelihood.BETWEEN and path.severities[[0, 64, 128]].tolist() == [2, 8, 16]
    assert path.severities[32] == pytest.approx(4.0) and path.logs[32].tolist() == [2.0, 1.0]
    whole = likelihood.Path.through(ends, whole=True)
    assert (whole.severities.tolist(), whole.logs.tolist()) == ([2, 8, 16], [[0, 1], [4, 1], [4, 3]])


def told_apart(first: dict[str, float], second: dict[str, float], parts: tuple[dict[Any, float], ...]) -> Any:
    """What separates two explanations with these figures and parts, in a step of 100 s."""
    one, other = (
        SimpleNamespace(fault=SimpleNamespace(name=name), nearest=SimpleNamespace(figures=shown, parts=part))
        for name, shown, part in (("a", first, parts[0]), ("b", second, parts[1]))
    )
    return check._test(one, other, 100.0)  # type: ignore[arg-type]


def test_the_cheapest_figure_that_differs_enough_separates_two_explanations_else_a_part_of_a_profile() -> None:
    first, second, *_ = figures().items()
    apart = {
        name: math.exp(check.DISTINCT * one.spread * 1.01) * (9 + one.floor) - one.floor
        for name, one in (first, second)
    }
    near = {
        name: math.exp(check.DISTINCT * one.spread * 0.99) * (9 + one.floor) - one.floor
        for name, one in (first, second)
    }
    same = {first[0]: 9.0, second[0]: 9.0}
    assert told_apart(same, apart, ({}, {})).figure == first[0]
    assert told_apart(apart, same, ({}, {})).values == (apart[first[0]], 9.0)
    assert told_apart(same, near | {second[0]: apart[second[0]]}, ({}, {})).figure == second[0]
    assert told_apart(same, {second[0]: 9.0}, ({}, {})) is None
    # A part must differ by 3 % of the step; the one that differs most is named.
    parts = {("train_s", "loss"): 5.0, ("train_s", "other"): 1.0}, {("train_s", "loss"): 2.1}
    assert told_apart(same, near, parts) is None
    parts[1]["generation_s", "decode"] = 3.1
    found = told_apart(same, near, parts)
    assert (found.figure, found.title, found.values) == (
        "generation_s/decode",
        "seconds of decode in generation",
        (0.0, 3.1),
    )
    assert found.between == ("a", "b") and found.how == "a profile of a step"


def test_a_length_that_a_run_shows_takes_the_place_of_a_guess_alone() -> None:
    known = load_scenario("quickstart")
    guess = {"text": "half of the cap", "keys": ["workload.response_tokens"], "log_spread": 0.5}
    guessed = vary(known, {"assumptions": [guess, {"text": "other", "keys": ["workload.prompt_tokens"]}]})
    shown = {"step": 90.0, "response_tokens": 1000.0}
    assert check.known_lengths(known, shown) == (known, shown)
    assert check.known_lengths(guessed, {"step": 90.0}) == (guessed, {"step": 90.0})
    stated, left = check.known_lengths(guessed, shown)
    assert (stated.workload.response_tokens.mean_tokens, left) == (1000, {"step": 90.0})  # type: ignore[union-attr]
    assert [one.text for one in stated.assumptions] == ["other"]
    with pytest.raises(InputError, match="leaves no room for that mean"):
        check.known_lengths(guessed, {**shown, "response_tokens": 4000.0})
