"""Traces of requests that Dynamo records: sessions, sub-agents, fan-outs, requests without a session, packed files."""

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlsim.errors import InputError
from rlsim.files import reading
from rlsim.readers.traces.agents import AgentAnswer
from rlsim.readers.traces.dynamo import served_trajectories
from rlsim.readers.traces.reading import Reading, read_trace
from rlsim.readers.traces.trajectories import Call


def record(
    at_ms: float, context: int, took_ms: float = 1000.0, session: str | None = "s", **more: Any
) -> dict[str, Any]:
    """A request_end in the recorder's envelope; more: of its agent_context."""
    request = {
        "input_tokens": context, "output_tokens": 20, "cached_tokens": context // 2, "request_received_ms": at_ms,
        "total_time_ms": took_ms, "finish_reason_metadata": {"tool_calls": [{"name": "bash"}]},
        "replay": {"input_length": context, "input_sequence_hashes": list(range(context // 10))},
    }  # fmt: skip
    event: dict[str, Any] = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request}
    if session is not None:
        event["agent_context"] = {"session_id": session, **more}
    return {"timestamp": 1, "event": event}


def served(*records: dict[str, Any]) -> list[Any]:
    return served_trajectories(iter(enumerate(records, start=1)), "file", [])


def test_requests_of_a_session_are_turns_with_the_time_between_them() -> None:
    tool = {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "tool": {"duration_ms": 2000}}
    (found,) = served(record(4000, 150), tool, record(1000, 100))
    assert found.calls[0] == (100, 20, pytest.approx(math.nan, nan_ok=True), 1.0, 2.0, 50, "bash")
    assert found.calls[1].start_s - found.calls[0].end_s == 2.0
    assert isinstance(found.calls[0], Call)


def test_sub_agents_and_fan_outs_are_branches() -> None:
    found = served(
        record(1000, 100),
        record(1500, 100),  # while the first one runs
        record(1000, 50, session="child", parent_session_id="s"),
        record(1200, 50, session="grandchild", parent_session_id="child"),
        record(500, 50, session="of another file", parent_session_id="nobody"),
    )
    assert [(len(one.calls), one.branches) for one in found] == [(1, 0), (1, 3)]
    # The words of before 1.3: a session holds trajectories.
    old = served(record(1, 9, trajectory_id="a"), record(1, 9, trajectory_id="b", parent_trajectory_id="a"))
    assert [(len(one.calls), one.branches) for one in old] == [(1, 1)]
    # A circle of parents ends.
    assert (
        served(record(1, 9, session="a", parent_session_id="b"), record(1, 9, session="b", parent_session_id="a")) == []
    )


def test_requests_without_a_session_go_on_from_their_blocks() -> None:
    (found,) = served(record(0, 100, session=None), record(5000, 200, session=None))
    assert [call.start_s - 0.0 for call in found.calls] == [0.0, 5.0]
    assert found.calls[0].end_s == 1.0


def test_packed_files_of_a_folder_are_read(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    for shard in range(2):
        lines = [
            json.dumps(record(turn * 4000, 100 + 50 * turn, session=f"{shard}.{number}"))
            for number in range(15)
            for turn in range(3)
        ]
        (tmp_path / f"trace.{shard:06d}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    found = read_trace(tmp_path, Reading())
    assert isinstance(found, AgentAnswer)
    assert (found.columns.turns.tolist(), set(found.columns.environment_s.tolist())) == ([3] * 30, {3.0})
    assert run("traces", tmp_path)[0] == 0


def test_damaged_records_name_their_line(tmp_path: Path) -> None:
    nameless = record(1, 9)
    nameless["event"]["agent_context"] = {}
    empty = {"schema": "dynamo.request.trace.v1", "event_type": "request_end"}
    for bad, words in (
        (nameless, "names neither"),
        (empty, "request_end without 'request'"),
        ({"event": 3}, "no record"),
        (record(1, 9, math.nan), "line 2"),
    ):
        with pytest.raises(InputError, match="file, line 2") as error:
            served(record(1, 9), bad)
        assert words in str(error.value)
    packed = gzip.compress(b"{}" * 2000)
    for name, data in (("short.gz", packed[:-9]), ("large.gz", packed)):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=name):
            reading.read_text(tmp_path / name, 1000)
