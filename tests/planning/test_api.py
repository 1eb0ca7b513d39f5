"""The public names of rlsim.planning."""

import subprocess
import sys

import pytest

import rlsim
import rlsim.planning as planning


@pytest.mark.parametrize("name", ["compare", "plan", "sensitivity", "sweep"])
def test_functions_are_functions_whatever_is_imported_first(name: str) -> None:
    """A module of the same name never hides one."""
    code = f"import rlsim.planning.{name}; from rlsim.planning import {name}; {name}.__kwdefaults__"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert getattr(rlsim, name) is getattr(planning, name)
