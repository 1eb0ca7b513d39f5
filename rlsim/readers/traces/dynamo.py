"""Requests of agents as NVIDIA Dynamo records them: ``dynamo.agent.trace.v1`` and ``dynamo.request.trace.v1``, a JSON
object per line, bare or in the recorder's envelope ``{"timestamp": .., "event": ..}`` (ai-dynamo/dynamo, a7b25f5c,
docs/agents/agent-tracing.md, and ea5d8f56, benchmarks/request_trace/convert_to_perfetto.py)."""

from collections.abc import Iterator, Mapping
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.readers.traces.requests import TOKEN_BLOCKS, Rows
from rlsim.readers.traces.sessions import sessions_of
from rlsim.readers.traces.trajectories import Call, Trajectory
from rlsim.workload.lengths import number_in

SCHEMAS = ("dynamo.agent.trace.", "dynamo.request.trace.")
MILLISECONDS = 1e-3
NAMES, PARENTS = ("trajectory_id", "session_id"), ("parent_trajectory_id", "parent_session_id")
"""What names a trajectory and the one that it was started by: releases before 1.3 tell both of a session's."""


def is_dynamo(row: Mapping[str, Any]) -> bool:
    """Whether a row of JSON is a record of Dynamo's traces."""
    return str(_event(row).get("schema", "")).startswith(SCHEMAS)


def served_trajectories(rows: Rows, where: str, notes: list[str]) -> list[Trajectory]:
    """Trajectories in the order of their first requests; requests that tell no session go on from one whose blocks they
    begin with (:func:`sessions_of`). What environments took is the time from an answer to the next request.

    Adds to ``notes`` what a reader must know. Raises InputError naming ``where`` and the line of what cannot be used.
    """
    calls, parents = dict[str, list[Call]](), dict[str, str]()
    others = list[tuple[int, dict[str, Any]]]()
    for line, row in rows:
        event = _event(row)
        if not is_dynamo(row):
            raise InputError(f"{where}, line {line}: no record of Dynamo; has {shortened(', '.join(map(str, row)))}")
        if event.get("event_type") != "request_end":
            continue  # a tool's own events lie within the time between two requests
        request, context = _part(event, "request", where, line), event.get("agent_context")
        if not isinstance(context, dict):
            others.append((line, _replayed(request, where, line)))
            continue
        name = _named(context, NAMES)
        if name is None:
            raise InputError(f"{where}, line {line}: agent_context names neither {' nor '.join(NAMES)}")
        calls.setdefault(name, []).append(_call(request, where, line))
        if (parent := _named(context, PARENTS)) is not None and parent != name:
            parents[name] = parent
    if others:
        notes.append(f"{len(others):,} requests tell no session")
    found = list(_whole(calls, parents)) + (sessions_of(iter(others), where, notes) if others else [])
    return sorted(found, key=lambda one: one.calls[0].start_s)


def _whole(calls: Mapping[str, list[Call]], parents: Mapping[str, str]) -> Iterator[Trajectory]:
    """Trajectories that nobody else started: their requests one after the other, all others as branches."""
    below = dict[str, int]()
    for name, own in calls.items():
        root, seen = name, {name}
        while (parent := parents.get(root)) in calls and parent not in seen:  # somebody's file may name a circle
            root = str(parent)
            seen.add(root)
        if root != name:
            below[root] = below.get(root, 0) + len(own)
    for name, own in calls.items():
        if parents.get(name) in calls:
            continue
        own.sort(key=lambda call: call.start_s)
        turns = [own[0]]
        for call in own[1:]:
            # Two at a time are a fan-out; the one that came first goes on.
            if call.start_s >= turns[-1].end_s:
                turns.append(call)
        yield Trajectory(tuple(turns), branches=len(own) - len(turns) + below.get(name, 0))


def _call(request: Mapping[str, Any], where: str, line: int) -> Call:
    row = dict(request)
    context, response, start_ms, total_ms = (
        number_in(row, key, where, line)
        for key in ("input_tokens", "output_tokens", "request_received_ms", "total_time_ms")
    )
    start_s = start_ms * MILLISECONDS
    cached = number_in(row, "cached_tokens", where, line) if row.get("cached_tokens") is not None else float("nan")
    finish = row.get("finish_reason_metadata")
    tools = finish.get("tool_calls") if isinstance(finish, dict) else None
    first = tools[0] if isinstance(tools, list) and tools and isinstance(tools[0], dict) else {}
    end_s = start_s + total_ms * MILLISECONDS
    return Call(context, response, float("nan"), start_s, end_s, cached, str(first.get("name", "")))


def _replayed(request: Mapping[str, Any], where: str, line: int) -> dict[str, Any]:
    """A request without a session as a row of Mooncake's."""
    replay = _part(request, "replay", where, line)
    return {
        "timestamp": request.get("request_received_ms"),
        "total_time_ms": request.get("total_time_ms"),
        "input_length": replay.get("input_length"),
        "output_length": request.get("output_tokens"),
        TOKEN_BLOCKS: replay.get("input_sequence_hashes"),
    }


def _event(row: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = row.get("event", row)
    return inner if isinstance(inner, dict) else {}


def _part(record: Mapping[str, Any], key: str, where: str, line: int) -> dict[str, Any]:
    part = record.get(key)
    if not isinstance(part, dict):
        raise InputError(f"{where}, line {line}: request_end without '{key}'")
    return part


def _named(context: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    return next((str(context[key]) for key in keys if context.get(key) is not None), None)
