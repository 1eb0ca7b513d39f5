"""The joint fit on measurements made up from known terms, groups and errors; a few rows on top of it."""

import dataclasses

import numpy as np
import pytest
from msgspec.structs import replace

from rlsim.evidence import cross
from rlsim.evidence.cross import Fit, left_out_draws, validate_cross
from rlsim.evidence.hierarchy import MOST_SPREAD, Design, Spreads, Weights, _spread, fit_spreads, solve
from rlsim.evidence.joint import counted_once
from rlsim.evidence.left_out import with_new_scales
from rlsim.parameters.terms import Term
from rlsim.projection.uncertainty.evidence import MEASURED_S, Evidence, EvidenceTable
from rlsim.projection.uncertainty.learning import Prior, conditioned

TERMS = (Term("x", 0.5), Term("y", 0.5, 0.2))
TRUTH = {"x": 0.3, "y": -0.4}
GROUPS, SPREAD, ERROR = 30, 0.2, 0.05


def made_up(seed: int = 0, groups: int = GROUPS) -> list[Evidence]:
    rng = np.random.default_rng(seed)
    rows = []
    for group in range(groups):
        deviation = SPREAD * rng.standard_normal()
        for number in range(8):
            slopes = {"x": float(rng.normal()), "y": float(rng.normal())}
            value = sum(TRUTH[name] * slope for name, slope in slopes.items()) + deviation
            about = {"model": f"m{group}", "device": "h100", "framework": "nemo_rl", "release": "0.3"}
            value += ERROR * rng.standard_normal()
            rows.append(
                Evidence("training", f"{group}-{number}", value, slopes, {f"trainer with model: m{group}": 1.0}, about)
            )
    return rows


def test_terms_and_spreads_are_found_again_devices_and_phases_bounded() -> None:
    design = Design.of(made_up(), TERMS)
    spreads, weights = fit_spreads(design)
    found = solve(design, spreads, weights)
    assert found.mean[:2] == pytest.approx([TRUTH["x"], TRUTH["y"]], abs=0.02)
    # Scales of Student's t that fit normal deviations best lie below theirs, by some 10 % with 6 degrees, 22 % with 3.
    assert spreads.families["trainer with model"] == pytest.approx(0.9 * SPREAD, rel=0.25)
    assert spreads.errors["training"] == pytest.approx(0.78 * ERROR, rel=0.25)
    rows = [replace(row, groups={"trainer on device: " + row.id.split("-")[0]: 1.0}) for row in made_up()]
    spreads, _ = fit_spreads(Design.of(rows, TERMS))
    assert spreads.families["trainer on device"] == MOST_SPREAD["trainer on device"] == 0.03
    kinds = ("logprob", "train", "training")
    rows = [replace(row, kind=kinds[number % 3]) for number, row in enumerate(made_up())]
    errors = fit_spreads(Design.of(rows, TERMS))[0].errors
    assert errors["logprob"] == errors["train"] == errors["refit"] == errors["generation"] != errors["training"]


def test_what_is_held_stays_and_gross_mistakes_move_nothing() -> None:
    design = Design.of(made_up(), TERMS)
    spreads, weights = fit_spreads(design)
    held = np.full(len(design.columns), np.nan)
    held[0] = 0.1
    found = solve(design, spreads, weights, held=held)
    free = np.delete(design.matrix, 0, axis=1)
    rest = dataclasses.replace(design, log_error=design.log_error - 0.1 * design.matrix[:, 0], matrix=free,
                   columns=design.columns[1:],
                   terms=1, spread=design.spread[1:], centre=design.centre[1:],
                   term_families=design.term_families[1:])  # fmt: skip
    alone = solve(rest, spreads, Weights(weights.rows, weights.columns[1:]))
    assert found.mean[0] == 0.1
    assert found.mean[1:] == pytest.approx(alone.mean)
    design = Design.of(made_up(), TERMS)
    spreads, weights = fit_spreads(design)
    held = np.full(len(design.columns), np.nan)
    low, high = np.where(design.families_of == "", -0.25, -np.inf), np.full(len(held), np.inf)
    found = solve(dataclasses.replace(design, bounds=np.array((low, high))), spreads, weights)
    held[1] = -0.25
    assert found.mean == pytest.approx(solve(design, spreads, weights, held=held).mean)
    loose = solve(dataclasses.replace(design, bounds=np.array((low - 1.0, high))), spreads, weights)
    assert loose.mean == pytest.approx(solve(design, spreads, weights).mean)
    rows = made_up()
    wrong = [replace(row, surprise=row.surprise + 3.0) if row.id == "0-0" else row for row in rows]
    found = []
    for one in (rows, wrong):
        design = Design.of(one, TERMS)
        found.append(solve(design, *fit_spreads(design)).mean)
    assert found[0] == pytest.approx(found[1], abs=0.02)
    about = {"model": "Llama-3.1-8B", "device": "H100", MEASURED_S: 5.0}
    table = Evidence("transfer", "of a table", 0.1, {}, {}, about)
    phase = Evidence("refit", "of a step", 0.2, {}, {}, {**about, "device": "h100_sxm"})
    others = [replace(phase, about={**phase.about, key: value}) for key, value in (("model", "m"), (MEASURED_S, 5.5))]
    train = replace(phase, kind="train")
    assert counted_once([table, phase, *others, train]) == [table, *others, train]
    assert counted_once([phase]) == [phase]


def test_left_out_groups_lie_in_their_intervals_as_often_as_these_say() -> None:
    rows = made_up(groups=60)
    design = Design.of(rows, TERMS)
    spreads, weights = fit_spreads(design)
    names = np.array([row.about["model"] for row in rows])
    draws = left_out_draws(Fit(rows, design, spreads, weights), names)
    shares = []
    for level in (0.5, 0.9):
        low, high = np.quantile(draws, ((1 - level) / 2, (1 + level) / 2), axis=1)
        shares.append(float(np.mean((design.log_error >= low) & (design.log_error <= high))))
    assert 0.4 < shares[0] < 0.68 and 0.84 < shares[1] <= 0.99


@pytest.mark.parametrize("taken", [0.75, 1.0, 1.5])
def test_new_members_get_the_scale_at_which_left_out_intervals_hold(taken: float) -> None:
    rows = [replace(row, about={"model": row.about["model"]}) for row in made_up(groups=60)]
    design = Design.of(rows, TERMS)
    fitted, weights = fit_spreads(design)
    name = "training with model"
    design = dataclasses.replace(design, families=(name,) * len(design.families))
    known = Spreads({name: taken * SPREAD}, fitted.errors)
    found = with_new_scales(design, known, weights, rows)
    # A normal deviation lies inside what Student's t says of it at a scale somewhat below its own.
    assert found.of_new(name) == pytest.approx(0.87 * SPREAD, rel=0.15)
    assert found.families == known.families


def test_a_left_out_group_tells_nothing_of_itself_and_rows_on_top_of_a_posterior_give_that_of_all() -> None:
    rows = made_up()
    far = [replace(row, surprise=row.surprise + 2.0) if row.about["model"] == "m3" else row for row in rows]
    names = np.array(["m3" if row.about["model"] == "m3" else "" for row in rows])
    found = []
    for one in (rows, far):
        design = Design.of(one, TERMS)
        spreads = Spreads({"trainer with model": SPREAD}, {"training": ERROR})
        found.append(left_out_draws(Fit(one, design, spreads, Weights.even(design)), names)[names == "m3"])
    assert np.array_equal(*found)
    rows = made_up()
    design = Design.of(rows, TERMS)
    spreads, degrees = Spreads({"trainer with model": SPREAD}, {"training": ERROR}), (1e9, 1e9)
    own = np.array([row.about["model"] == "m0" for row in rows])
    before = solve(design, spreads, Weights.even(design), ~own)
    fresh = design.columns.index("trainer with model: m0")
    order = [*(place for place in range(len(design.columns)) if place != fresh), fresh]
    known = np.array(order[:-1])
    covariance = before.covariance()[np.ix_(known, known)]
    prior = Prior(before.mean[known], covariance, np.zeros(1), np.array([SPREAD]), degrees)
    mean, covariance = conditioned(
        prior, design.matrix[own][:, order], design.log_error[own], np.full(own.sum(), ERROR)
    )
    whole = solve(design, spreads, Weights.even(design))
    assert mean == pytest.approx(whole.mean[order], abs=1e-6)
    assert covariance == pytest.approx(whole.covariance()[np.ix_(order, order)], abs=1e-8)


def test_cross_validation_scores_every_grouping(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tuple(
        replace(row, about={**row.about, "release": f"0.{number % 4}"}) for number, row in enumerate(made_up())
    )
    monkeypatch.setattr(cross, "single_factor", lambda row, sets: 0.5)
    found = validate_cross(EvidenceTable(rows, TERMS, {}, {}))
    by_grouping = {score.grouping: score for score in found.scores}
    model, runs = by_grouping["model"], by_grouping["runs"]
    assert (model.n, model.groups, model.kind) == (240, GROUPS, "training")
    assert model.coverage[0] < model.coverage[1] < model.coverage[2]
    # Known groups leave the error alone; a new model its spread as well. A factor far too wide scores worse.
    assert runs.width < 0.6 * model.width
    assert runs.interval_score < runs.single_interval_score and runs.crps < runs.single_crps
    assert found.own_rows[0].kind == "training"
    assert "nan" not in found.to_json().lower()


def test_one_member_says_less_of_its_family_than_the_prior_and_four_say_more() -> None:
    prior, wide = 0.06, 0.3
    halfway = (prior**2 + wide**2) / 2
    one, four = (_spread(np.full(count, wide**2), np.ones(count), prior) ** 2 for count in (1, 4))
    assert prior**2 < one < halfway < four < wide**2
    assert _spread(np.full(400, wide**2), np.ones(400), prior) == pytest.approx(wide, rel=0.01)
