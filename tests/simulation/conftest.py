"""The kernel and the reference beside each other."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlsim.files import kernel as build
from rlsim.files.kernel import VARIABLE
from rlsim.simulation.kernel.library import implementation


@pytest.fixture(scope="module")
def kernel() -> None:
    """The kernel of these sources, compiled if need be; no test where there is no compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(VARIABLE, raising=False)
        if implementation() == "python":
            build.build()
            build._load.cache_clear()
        if implementation() == "python":
            pytest.skip("no C compiler")


@pytest.fixture
def both(kernel: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], Any]], tuple[Any, Any]]]:
    """What a function gives with the kernel and with the reference."""

    def run(function: Callable[[], Any]) -> tuple[Any, Any]:
        results = []
        for wanted in ("auto", "python"):
            monkeypatch.setenv(VARIABLE, wanted)
            assert implementation() == ("python" if wanted == "python" else "c")
            results.append(function())
        return results[0], results[1]

    yield run
