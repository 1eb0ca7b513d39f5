"""More processes begin where they pay, and nothing but the order of results tells."""

from __future__ import annotations

import math
import os

import pytest

from rlsim.planning import execution
from rlsim.planning.execution import executor


def process_of(task: int) -> tuple[int, int]:
    return os.getpid(), math.factorial(task)


@pytest.mark.parametrize(("worth_s", "others"), [(1e9, False), (-1.0, True)])
def test_tasks_move_to_processes_where_what_is_left_is_worth_them(
    monkeypatch: pytest.MonkeyPatch, worth_s: float, others: bool
) -> None:
    monkeypatch.setattr(execution, "WORTH_S", worth_s)
    monkeypatch.setattr(execution, "local_jobs", lambda jobs: 2)
    with executor(None, most=12) as run:
        found = dict(run(process_of, range(12)))
    assert {index: value for index, (_, value) in found.items()} == {i: math.factorial(i) for i in range(12)}
    assert any(process != os.getpid() for process, _ in found.values()) == others


def test_a_stated_number_is_taken_and_few_cores_plan_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with executor(2, most=4) as run:
        assert all(process != os.getpid() for _, (process, _) in run(process_of, range(4)))
    monkeypatch.setattr(execution, "local_jobs", lambda jobs: 2)
    with executor(None) as run:
        assert all(process == os.getpid() for _, (process, _) in run(process_of, range(4)))
