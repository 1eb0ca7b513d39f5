"""Fixtures of several folders."""

import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

from rlsim.cli import main

# A busy machine is no failure of the code. By default the same few examples each time; each night many others
# (.github/workflows/nightly.yml: --hypothesis-profile=random), with what repeats a failure.
settings.register_profile("rlsim", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("random", deadline=None, derandomize=False, max_examples=500, print_blob=True)
settings.load_profile("rlsim")


@pytest.fixture(scope="session")
def script() -> Callable[[str], ModuleType]:
    """A program beside the package as a module, by its path in the repository; nothing is written beside it."""

    def loaded(path: str) -> ModuleType:
        loader = SourceFileLoader(Path(path).stem, str(Path(__file__).parents[1] / path))
        module = sys.modules[loader.name] = module_from_spec(spec_from_loader(loader.name, loader))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.dont_write_bytecode", True)
            patch.syspath_prepend(str((Path(__file__).parents[1] / path).parent))  # as where it is run
            loader.exec_module(module)
        return module

    return loaded


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process; gives exit code, stdout, stderr."""

    def call(*argv: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in argv])
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return call
