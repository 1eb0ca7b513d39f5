"""The public surface: what `import rlsim` offers and what it costs."""

from importlib.metadata import version

import pytest

import rlsim


def test_all_names_are_there_and_documented() -> None:
    assert rlsim.__all__ == sorted(rlsim.__all__)
    assert set(rlsim.__all__) == {
        *("Infeasible", "InputError", "RlsimError", "Scenario", "load_scenario", "project", "vary"),
        *("Answers", "Wanted", "check", "headroom", "live", "size"),
        *("Objective", "SearchLimits", "blame", "compare", "plan", "run", "sensitivity", "sweep"),
    }
    for name in rlsim.__all__:
        assert getattr(rlsim, name).__doc__, name
    assert {*rlsim.__all__, "__version__"} == set(dir(rlsim))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'projekt'"):
        rlsim.projekt  # noqa: B018


def test_the_version_is_the_installed_one() -> None:
    assert rlsim.__version__ == version("rlsim")
