"""Plugin of pytest (``-p tests.golden.called``): which functions of rlsim each test calls, for scripts/sampled_mutants.

The file that CALLED names gets a line of JSON for each test that passes: its id, its seconds, and the functions as
``module:first line``. A function that an earlier test's cache answers for is not called by a later one.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

ROOT = f"{Path(__file__).parents[2]}/"
CALLED = os.environ.get("CALLED", "")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note what is called while ``item`` and its fixtures run."""
    codes = set[CodeType]()

    def noted(frame: FrameType, event: str, arg: object) -> None:
        codes.add(frame.f_code)

    before, start = sys.gettrace(), time.perf_counter()
    threading.settrace(noted)
    sys.settrace(noted)
    yield
    sys.settrace(before)
    threading.settrace(None)  # type: ignore[arg-type]
    names = sorted(
        f"{code.co_filename.removeprefix(ROOT)}:{code.co_firstlineno}" for code in codes
        if code.co_filename.startswith(f"{ROOT}rlsim/")
    )  # fmt: skip
    with Path(CALLED).open("a", encoding="utf-8") as file:
        file.write(json.dumps([item.nodeid, time.perf_counter() - start, names]) + "\n")
