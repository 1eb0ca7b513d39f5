"""Tree drafts: a verification of more positions than a chain has, and draft passes over several branches."""

from __future__ import annotations

import pytest

import rlsim
from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario, vary

CHAIN = {"speculation": {"draft_length": 8, "acceptance_length": 4.0}, "simulation": {"replications": 1}}


def generation_s(**speculation):
    scenario = vary(load_scenario("quickstart"), CHAIN, {"speculation": {"tree_width": 1, **speculation}})
    return rlsim.project(scenario).candidate.phases.generation_s.mean


def test_a_chain_is_a_tree_of_one_branch():
    assert generation_s(tree_width=1, verified_positions=9) == generation_s()


def test_positions_and_branches_cost():
    chain, verified = generation_s(), generation_s(verified_positions=48)
    assert verified > 1.2 * chain
    assert generation_s(verified_positions=48, tree_width=4) > verified


def test_a_tree_pays_by_its_acceptance_where_few_sequences_are_live():
    small = {"workload": {"prompts_per_step": 1, "generations_per_prompt": 8}, "trainer": {"global_batch_samples": 8}}
    base = vary(load_scenario("quickstart"), CHAIN, small)
    tree = vary(base, {"speculation": {"tree_width": 4, "verified_positions": 32, "acceptance_length": 6.0}})
    seconds = [rlsim.project(scenario).candidate.phases.generation_s.mean for scenario in (base, tree)]
    assert seconds[1] < 0.85 * seconds[0]


@pytest.mark.parametrize(
    ("speculation", "said"),
    [
        ({"verified_positions": 8}, "must exceed draft_length"),
        ({"tree_width": 4}, "tree_width above 1 needs verified_positions"),
        ({"verified_positions": 48, "policy": "by_batch"}, "leave verified_positions out"),
    ],
)
def test_what_is_no_tree_is_refused(speculation, said):
    with pytest.raises(InputError, match=said):
        vary(load_scenario("quickstart"), CHAIN, {"speculation": speculation})
