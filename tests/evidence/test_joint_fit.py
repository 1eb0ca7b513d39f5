"""The joint fit on a few rows: what its posterior holds, what it leaves out, and when it refuses itself."""

import csv
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rlsim.costs.operators.groups import family_of
from rlsim.errors import InputError
from rlsim.evidence import hierarchy, joint
from rlsim.evidence.tables import Table
from rlsim.parameters.sets import set_digest, shipped
from rlsim.projection.uncertainty.slopes import all_terms

PUBLISHED = Path(__file__).parents[2] / "calibration" / "published"


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine transfers, one of which its table objects to."""
    path = tmp_path_factory.mktemp("joint") / "refit.csv"
    with (PUBLISHED / "refit.csv").open() as rows:
        head, *body = csv.reader(rows)
    wanted = [row for row in body if row[2] == "verl"]
    with path.open("w") as out:
        csv.writer(out).writerows([head, *wanted[:9]])
    return path


@pytest.fixture(scope="module")
def fit(few: Path) -> Iterator[joint.JointFit]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint, "ROUNDS", 1)
        patch.setattr(hierarchy, "ROUNDS", 2)
        yield joint.fit_jointly([few])


def test_the_posterior_moves_free_terms_to_what_was_priced_and_holds_others(fit: joint.JointFit) -> None:
    posterior, shifts = fit.posterior, fit.evidence.shifts
    terms = [term.name for term in all_terms(shipped())]
    assert list(posterior.columns[: posterior.terms]) == terms and posterior.terms == len(terms)
    assert posterior.mean[: posterior.terms] == pytest.approx([shifts.get(name, 0.0) for name in terms])
    moved = {name for name, shift in shifts.items() if shift}
    assert any(name.startswith("transfers/") for name in moved)
    assert not any(name.startswith(joint.HELD) or name in joint._UNMOVED for name in moved)
    assert all(shift == round(shift, joint.DIGITS) for shift in shifts.values())
    # Terms and groups that no row has a part in keep the spread of their family: the factor is one of a covariance.
    assert np.allclose(np.triu(posterior.factor, 1), 0) and (np.diag(posterior.factor) > 0).all()
    assert len(posterior.columns) == len(posterior.mean) == len(posterior.factor)


def test_centres_of_terms_are_seen_from_the_moved_sets(fit: joint.JointFit) -> None:
    before = {term.name: term.centre for term in all_terms(shipped())}
    for term in fit.evidence.terms:
        assert term.centre == pytest.approx(before[term.name] - fit.evidence.shifts.get(term.name, 0.0))


def test_groups_that_nobody_else_can_be_in_keep_their_spread_alone(fit: joint.JointFit) -> None:
    posterior = fit.posterior
    groups = posterior.columns[posterior.terms :]
    counted = {group: sum(group in row.groups for row in fit.evidence.rows) for group in groups}
    assert groups and dict(posterior.rows) == counted and min(counted.values()) > 0
    assert not any(family_of(group) in joint.ALONE for group in groups)
    alone = {group for row in fit.evidence.rows for group in row.groups if family_of(group) in joint.ALONE}
    assert all(family_of(group) in posterior.spreads for group in alone)
    parts = [posterior.spreads[name] for name in joint.SPECULATION]
    assert np.hypot(*parts) == pytest.approx(shipped().steps.speedup_error, abs=2e-4) and parts[0] == parts[1]
    assert sum(fit.members.values()) >= len(groups) + posterior.terms


def test_the_fit_says_of_what_it_is(fit: joint.JointFit, few: Path) -> None:
    assert fit.posterior.fit["rows"] == {"transfer": len(fit.evidence.rows)}
    assert fit.posterior.fit["tables"] == {"refit.csv": Table.read(few).digest}
    assert fit.evidence.digests == {name: set_digest(one) for name, one in shipped().sets.items()}
    assert set(fit.posterior.fit["median_errors"]) == {"transfer"} <= set(fit.posterior.errors)


def test_a_transfer_counts_once_and_not_where_a_table_objects(few: Path) -> None:
    sets = shipped()
    once = joint.all_evidence(joint.read_tables([few]), sets)
    table = Table.read(few)
    twice = joint.all_evidence({joint.Kind.TRANSFERS: [table, table]}, sets)
    flagged = [record.cells["id"] for record in table.rows if record.cells["flag"]]
    assert flagged and [row.id for row in once] == [row.id for row in twice]
    assert not {row.id for row in once} & set(flagged) and len(once) + len(flagged) <= len(table.rows)
    with pytest.raises(InputError, match="no row of the tables can be simulated"):
        joint.all_evidence({}, sets)


def test_a_table_of_lengths_is_no_evidence() -> None:
    with pytest.raises(InputError, match=r"rollouts\.csv: a table of rollouts is no evidence of the joint fit"):
        joint.read_tables([PUBLISHED / "rollouts.csv"])
    found = joint.read_tables([PUBLISHED / "refit.csv", PUBLISHED / "refit_more.csv"])
    assert [len(tables) for tables in found.values()] == [2]


def test_a_fit_that_is_worse_than_it_claims_is_refused() -> None:
    most = joint.ALLOWED * 0.1 + joint.SLACK
    joint._must_hold({"iteration": most, "train": 9.0, "new": 9.0}, {"iteration": 0.1, "train": 0.1})
    phase = next(iter(hierarchy.PHASES))
    joint._must_hold({phase: 9.0}, {phase: 0.1})
    with pytest.raises(InputError, match=r"off by 11\.3 % in the median, where the linear model claims 10\.0 %"):
        joint._must_hold({"iteration": most + 1e-3}, {"iteration": 0.1})


def test_median_errors_are_of_what_is_left_by_kind() -> None:
    design = SimpleNamespace(log_error=np.array([1.0, -2.0, 3.0, 4.0]), matrix=np.eye(4), kinds=["a", "a", "a", "b"])
    found = SimpleNamespace(mean=np.array([0.5, 0.0, 0.0, 4.5]))
    assert joint._median_errors(design, found) == {"a": 2.0, "b": 0.5}  # type: ignore[arg-type]


@pytest.mark.parametrize(("measured", "counts"), [(4.99, False), (5.0, True), (9.0, True), (None, False)])
def test_a_row_that_takes_half_of_its_kernels_was_under_another_load(
    measured: float | None, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Milliseconds a token: kernels of 20 ms that give 2 tokens take 10."""
    monkeypatch.setattr(joint, "step_s_of", lambda row: 0.02)
    monkeypatch.setattr(joint, "tokens_of", lambda row: 2.0)
    row = SimpleNamespace(measured=measured, predicted=SimpleNamespace(mean=1.0))
    assert joint._as_it_says(row) is counts  # type: ignore[arg-type]
    assert joint._as_it_says(SimpleNamespace(measured=9.0, predicted=None)) is False  # type: ignore[arg-type]
