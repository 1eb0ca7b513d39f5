"""Fixtures of several folders."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings

from rlsim.cli import main

# One profile for all property tests: a busy machine is no failure of the code.
settings.register_profile("rlsim", deadline=None)
settings.load_profile("rlsim")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process; gives exit code, stdout, stderr."""

    def call(*argv: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in argv])
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return call
