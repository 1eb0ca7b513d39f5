"""Terms of training steps: fitted on predictions, within physical bounds, never beyond what was measured."""

from pathlib import Path

import numpy as np
import pytest

from rlsim.errors import InputError
from rlsim.evidence.joint import _must_hold
from rlsim.evidence.published import published_table
from rlsim.evidence.tables import Table
from rlsim.evidence.trained_terms import TermFit, fit_terms, usable_rows
from rlsim.evidence.training import TrainerRow
from rlsim.parameters.posterior import DEFAULT, load_posterior
from rlsim.parameters.sets import load_training_parameters, shipped
from rlsim.parameters.terms import START, TRAINING_BOUNDS, moved, value_of

ON_A_BOUND = 0.01
"""Logarithm within which a term lies on its bound."""
DEVICE = ("compute", "memory")


@pytest.fixture(scope="module")
def measured() -> tuple[list[TrainerRow], np.ndarray]:
    rows, seconds = usable_rows([Table.read(published_table("training_steps.csv"))], shipped())
    return rows, np.array(seconds)


@pytest.mark.parametrize("name", list(TRAINING_BOUNDS))
def test_every_term_lies_within_its_bounds_and_on_none(name: str) -> None:
    low, high = np.log(TRAINING_BOUNDS[name])
    fitted, start = (float(np.log(value_of(load_training_parameters(of), name))) for of in ("pretraining", START))
    assert low + ON_A_BOUND < fitted < high - ON_A_BOUND
    assert low < start < high


def test_no_part_and_hardly_a_sum_of_device_parts_exceeds_the_measured_step(
    measured: tuple[list[TrainerRow], np.ndarray],
) -> None:
    over = []
    for row, seconds in zip(*measured, strict=True):
        parts = row.cost(shipped()).parts
        assert max(part.seconds for part in parts) < seconds, row.scenario.model.name
        over.append(sum(part.seconds for part in parts if part.bound in DEVICE) / seconds)
    # Where kernels are nearly all of a step their sum has the error of the prediction, either way.
    assert np.mean(np.array(over) > 1.1) < 0.04
    assert max(over) < 1.35


def test_what_was_published_is_met_by_the_terms_alone(measured: tuple[list[TrainerRow], np.ndarray]) -> None:
    rows, seconds = measured
    errors = np.abs([row.seconds(shipped()) / one - 1 for row, one in zip(rows, seconds, strict=True)])
    tuned = np.array([row.framework == "megatron_bridge" for row in rows])
    experts = np.array([row.scenario.model.moe is not None for row in rows])
    assert np.median(errors[tuned & experts]) < 0.06 and np.quantile(errors[tuned & experts], 0.9) < 0.17
    assert np.median(errors[tuned & ~experts]) < 0.05 and np.quantile(errors[tuned & ~experts], 0.9) < 0.155
    told = load_training_parameters().fit.families["mixtures of experts, tuned recipes"]["in the fit"]
    assert told.median == pytest.approx(np.median(errors[tuned & experts]), abs=0.002)


def test_a_fit_finds_the_terms_that_made_its_rows_and_counts_a_layout_once(
    measured: tuple[list[TrainerRow], np.ndarray],
) -> None:
    rows = [row for row in measured[0] if row.framework == "megatron_bridge"][::16]
    truth = moved(shipped(), {"training/moe_host_layer_s": 0.3, "training/grouped_efficiency": -0.2})
    fit = TermFit(rows, np.array([row.seconds(truth) for row in rows]), load_training_parameters())
    before = fit.errors(np.array([value.start for value in fit.values]))
    _, errors, _ = fit.solve()
    assert np.median(np.abs(errors)) < 0.01 < np.median(np.abs(before))
    twice = TermFit([rows[0], *rows[:2]], np.ones(3), load_training_parameters())
    assert twice.weights.tolist() == [0.5, 0.5, 1.0]


def test_a_table_of_another_kind_is_refused() -> None:
    with pytest.raises(InputError, match=r"refit\.csv: no table of training steps"):
        fit_terms([Path(published_table("refit.csv"))])


def test_a_posterior_leaves_fitted_terms_where_they_are_and_must_hold_what_it_claims() -> None:
    posterior = load_posterior(DEFAULT)
    assert posterior is not None
    assert {z for name, z in posterior.shifts.items() if name.startswith("training/")} == {0.0}
    assert posterior.spreads["trainer on device"] <= 0.03
    _must_hold({"training": 0.05, "refit": 0.9}, {"training": 0.05, "refit": 0.1})
    with pytest.raises(InputError, match=r"times of kind training are off by 6\.0 % in the median"):
        _must_hold({"training": 0.06}, {"training": 0.05})
