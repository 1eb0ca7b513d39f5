"""A process beside the run answers, fails with a reason, and is gone at the end whatever it does."""

import multiprocessing
import os
import time
from collections.abc import Callable

import pytest

from bench import isolated
from bench.workbench import UnsupportedError


def doubler() -> Callable[[object], object]:
    """Runs in the other process: doubles numbers, and does what words ask for."""

    def answer(message: object) -> object:
        if message == "fail":
            raise ValueError("no such kernel\nand more that nobody reads")
        if message == "die":
            os._exit(3)
        if message == "hang":
            time.sleep(600)
        return 2 * message

    return answer


def nothing_is_left() -> bool:
    return not multiprocessing.active_children()


def test_answers_come_back_and_a_failure_is_its_first_line() -> None:
    with isolated.serving(doubler, (), 120.0) as ask:
        assert ask(21) == 42
        with pytest.raises(UnsupportedError, match=r"^no such kernel$"):
            ask("fail")
        assert ask(4) == 8
        with pytest.raises(UnsupportedError, match="ended early"):
            ask("die")
    assert nothing_is_left()


def test_a_process_that_hangs_ends_with_its_time() -> None:
    started = time.monotonic()
    with pytest.raises(UnsupportedError, match=r"not done within 0\.5 s"), isolated.serving(doubler, (), 0.5) as ask:
        ask("hang")
    assert time.monotonic() - started < 60
    assert nothing_is_left()
