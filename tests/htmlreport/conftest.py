"""Folders of results of every kind, written by the program itself on small work."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from html_folders import COMMANDS, MEASURED, SCENARIO

from rlsim.cli import main


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder that a command of COMMANDS wrote, made once; not to be changed."""
    root = tmp_path_factory.mktemp("results")
    (root / "small.yaml").write_text(SCENARIO, encoding="utf-8")
    (root / "measured.csv").write_text(MEASURED, encoding="utf-8")
    words = {"SCENARIO": str(root / "small.yaml"), "MEASURED": str(root / "measured.csv")}

    @cache
    def made(name: str) -> Path:
        argv = [words.get(word, word) for word in COMMANDS[name]]
        with contextlib.redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as stop:
            main([*argv, "--out", str(root / name)])
        assert not stop.value.code
        return root / name

    return made


@pytest.fixture
def copied(results: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of such a folder, to spoil."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(results(name), tmp_path / name))

    return copy
