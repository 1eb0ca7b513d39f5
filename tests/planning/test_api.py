"""The public names of rlsim.planning."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rlsim.planning as planning


def test_names_are_there_and_documented() -> None:
    assert planning.__all__ == sorted(planning.__all__)
    for name in planning.__all__:
        assert getattr(planning, name).__doc__, name
    with pytest.raises(AttributeError, match="has no attribute 'sweeep'"):
        planning.sweeep  # noqa: B018


def test_the_command_line_stays_light() -> None:
    heavy = ("numpy", "pydantic", "matplotlib", "pyarrow", "optuna", "SALib", "dask")
    code = f"import sys, rlsim.cli; sys.exit(' '.join(name for name in {heavy} if name in sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
