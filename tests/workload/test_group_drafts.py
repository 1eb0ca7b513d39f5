"""speculation.variation.group_gain: suffix drafts that lengthen with the samples of the group that are done."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario
from rlsim.workload.acceptance import Acceptance, SampleMoves, iterations_needed
from rlsim.workload.draw import draw

SUFFIX = "speculation={method: suffix, draft_length: 8, acceptance_length: 1.7, match_probability: 0.6%s}"
RATES = Acceptance(np.array([0.4, 0.2, 0.1]))


def verifications(gain: float, *more: str) -> np.ndarray:
    variation = f", variation: {{group_gain: {gain}}}"
    step = draw(load_scenario("quickstart", [SUFFIX % variation, "simulation.replications=1", *more]), 0).steps[0]
    return step.iterations[0]


def test_verifications_by_hand() -> None:
    """Of two groups the longer sample has the second acceptance from the end of the shorter one on."""
    lengths, group, move = np.array([20_000, 60_000, 40_000, 40_000]), np.array([0, 0, 1, 1]), 0.9
    moves = SampleMoves(np.zeros(4), group=group, by_done=np.array([0.0, move]))
    found = iterations_needed(lengths, RATES, np.random.default_rng(0), moves)
    alone, longer = RATES.mean, RATES.moved(move).mean
    by_hand = [20_000 / alone, 20_000 / alone + 40_000 / longer, 40_000 / alone, 40_000 / alone]
    assert found == pytest.approx(by_hand, rel=0.02)


@given(lengths=st.lists(st.integers(1, 500), min_size=6, max_size=6))
def test_who_is_done_is_who_is_shorter(lengths: list[int]) -> None:
    given_lengths, group = np.array(lengths), np.array([0, 0, 0, 1, 1, 1])
    moves = SampleMoves(np.zeros(6), group=group, by_done=np.arange(3.0))
    done = moves.at(given_lengths, given_lengths[:, None].astype(float))[:, 0]
    for sample, length in enumerate(lengths):
        others = given_lengths[group == group[sample]]
        assert done[sample] == np.count_nonzero(others < length)


def test_no_gain_is_the_plain_draw_and_more_is_never_slower() -> None:
    varied = SUFFIX % ", variation: {}"
    plain = draw(load_scenario("quickstart", [varied, "simulation.replications=1"]), 0).steps[0].iterations[0]
    assert verifications(0.0).tolist() == plain.tolist()
    sums = [verifications(gain).sum() for gain in (0.0, 0.5, 1.0, 2.0)]
    assert sums == sorted(sums, reverse=True)
    assert sums[-1] < 0.8 * sums[0]


def test_agents_are_refused() -> None:
    with pytest.raises(InputError, match="single responses"):
        verifications(1.0, "workload.agent={}")
