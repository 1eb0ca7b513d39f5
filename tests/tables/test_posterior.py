"""Posteriors: their file, how a scenario names one, and what it changes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlsim.errors import InputError
from rlsim.loading.scenario import dump_scenario, load_scenario, scenario_digest
from rlsim.parameters.posterior import DEFAULT, Posterior, load_posterior
from rlsim.parameters.sets import shipped
from rlsim.parameters.terms import current, fitted_of, moved, terms_of
from rlsim.projection.project import project


def joint() -> Posterior:
    found = load_posterior(DEFAULT)
    return found


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    path.write_bytes(joint().to_bytes())
    found = load_posterior(str(path))
    assert found is not None and found.columns == joint().columns
    assert np.array_equal(found.mean, joint().mean) and np.array_equal(found.factor, joint().factor)
    assert found.to_bytes() == joint().to_bytes()


def test_no_posterior_leaves_the_sets_as_they_are() -> None:
    plain = fitted_of(load_scenario("quickstart", ["simulation.posterior=none"]))
    assert plain.sets == shipped().sets and plain.factor(joint().columns) == 1.0
    assert current().sets != shipped().sets and current().posterior is joint()


def test_a_set_of_ones_own_is_not_moved_by_what_was_learnt_of_others(tmp_path: Path) -> None:
    scenario = load_scenario("quickstart", ["simulation.engine_parameters.network_hop_s=1e-5"])
    found = fitted_of(scenario)
    assert found.engines.network_hop_s == 1e-5 and found.posterior is None
    assert found.training == current().training


def test_a_path_means_the_same_from_anywhere_and_counts_by_its_content(tmp_path: Path) -> None:
    changed = replace(joint(), mean=joint().mean + np.where(np.arange(len(joint().mean)) < joint().terms, 0.0, 0.1))
    for name, one in (("same", joint()), ("other", changed)):
        (tmp_path / f"{name}.npz").write_bytes(one.to_bytes())
    (tmp_path / "own.yaml").write_text(
        dump_scenario(load_scenario("quickstart")).replace("posterior: joint", "posterior: same.npz")
    )
    from_folder = load_scenario(tmp_path / "own.yaml")
    assert from_folder.simulation.posterior == str((tmp_path / "same.npz").resolve())
    other = load_scenario(tmp_path / "own.yaml", [f"simulation.posterior={tmp_path / 'other.npz'}"])
    default = load_scenario("quickstart")
    assert scenario_digest(from_folder) == scenario_digest(default) != scenario_digest(other)
    assert project(from_folder).candidate.step_s == project(default).candidate.step_s
    assert project(other).candidate.step_s.mean > project(default).candidate.step_s.mean


@pytest.mark.parametrize(
    ("given", "told"), [("joined", "nearest: joint"), ("absent.npz", r"absent\.npz: no such file")]
)
def test_one_that_is_not_there_is_named(given: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        load_scenario("quickstart", [f"simulation.posterior={given}"])
    assert "simulation.posterior" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY"])
def test_another_file_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.npz: is no posterior"):
        load_scenario("quickstart", [f"simulation.posterior={tmp_path / 'x.npz'}"])


def test_each_term_moves_one_set_and_back() -> None:
    sets = shipped()
    for term in terms_of(sets):
        after = moved(sets, {term.name: 0.2})
        changed = [name for name, one in after.sets.items() if one != sets.sets[name]]
        head = term.name.partition("/")[0]
        assert changed in ([head], []), term.name
        # Only shares that are 1 already cannot grow.
        if not changed:
            assert moved(sets, {term.name: -0.2}).sets[head] != sets.sets[head] or "share" in term.name, term.name
    with pytest.raises(KeyError):
        moved(sets, {"engines/no_such_engine/iteration_s": 0.1})
