"""Which draft length pays: the curve is that of projections, and its live batches those that gain."""

import pytest

from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario, vary
from rlsim.planning.draft_lengths import draft_lengths
from rlsim.projection.moves import move_named
from rlsim.projection.project import project
from rlsim.report.text import render
from rlsim.results import Interval
from rlsim.results.planning import DraftCurve

FEW = "simulation.replications=2"


@pytest.fixture(scope="module")
def curve() -> DraftCurve:
    return draft_lengths(load_scenario("quickstart", [FEW]), 4)


def test_each_length_is_a_projection_and_the_best_has_the_fastest_step(curve: DraftCurve) -> None:
    assert [one.draft_length for one in curve.lengths] == [0, 1, 2, 3, 4]
    none, *_ = curve.lengths
    assert (none.rollout_speedup.mean, none.acceptance_length, none.pays_share) == (1.0, 1.0, 0.0)
    three = project(load_scenario("quickstart", [FEW, "k=3"]))
    assert curve.lengths[3].rollout_speedup.mean == pytest.approx(three.rollout_speedup.mean, rel=1e-6)
    assert curve.chosen.step_speedup.mean == max(one.step_speedup.mean for one in curve.lengths)


def test_graphs_need_a_place_for_every_position_of_every_sequence(curve: DraftCurve) -> None:
    assert [one.needed_tokens for one in curve.lengths] == [curve.most_live * (k + 1) for k in range(5)]
    for one in curve.lengths:
        assert (one.eager_share > 0) == (one.needed_tokens > one.captured_tokens)
    assert f"engine.max_captured_tokens={curve.chosen.needed_tokens}" in render(curve)


def test_drafts_that_are_never_accepted_pay_at_no_live_batch() -> None:
    useless = draft_lengths(load_scenario("quickstart", [FEW, "speculation.acceptance_length=1"]), 1)
    assert (useless.best, useless.lengths[1].pays_share, useless.lengths[1].pays_up_to) == (0, 0.0, 0)
    assert render(useless).startswith("quickstart: no draft length pays")
    single = draft_lengths(
        load_scenario("quickstart", [FEW, "workload.response_tokens={kind: constant, tokens: 1}"]), 1
    )
    assert (single.best, single.lengths[1].pays_share, single.lengths[1].pays_up_to) == (0, 0.0, 0)


def test_drafts_that_leave_the_step_as_it_is_are_not_said_to_pay(curve: DraftCurve) -> None:
    def told(speedup: float) -> str:
        best = curve.chosen.model_copy(update={"step_speedup": Interval(speedup, 0.9, 1.5)})
        lengths = tuple(best if one is curve.chosen else one for one in curve.lengths)
        return " ".join(render(curve.model_copy(update={"lengths": lengths})).split())

    assert "no draft length shortens the step by 1 %" in told(1.004)
    assert "pays most" in told(1.02)


def test_where_nothing_is_drafted_the_head_that_improve_assumes_is_tried_and_named() -> None:
    bare = load_scenario("quickstart", [FEW, "speculation.method=none", "speculation.draft_length=0"])
    found = draft_lengths(bare, 3)
    stated = draft_lengths(vary(bare, move_named("eagle3").sets), 3)
    assert found.lengths == stated.lengths and not stated.assumed
    text = " ".join(render(found).split())
    assert text.startswith("quickstart, with an assumed drafter: k = ") and "acceptance length 2.8 is assumed" in text


@pytest.mark.parametrize(("words", "said"), [
    (("speculation.verified_positions=8", "speculation.tree_width=2"), "k is the length of a chain"),
    (("speculation.draft_length=0",), r"state speculation.draft_length \("),
    (("speculation.draft_length=0", "speculation.acceptance_length=null"), r"draft_length and acceptance_length"),
])  # fmt: skip
def test_no_drafts_and_trees_are_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        draft_lengths(load_scenario("quickstart", words), 2)
