"""Conversations of a trace of requests that names the blocks of their prefixes, as Mooncake's does (``hash_ids``;
kvcache-ai/Mooncake, FAST25-release/traces): one whose blocks begin with all full ones of an earlier request goes on
from it."""

import math
from typing import Any

from rlsim.errors import InputError, shortened
from rlsim.readers.traces.requests import TOKEN_BLOCKS, Rows
from rlsim.readers.traces.trajectories import Call, Trajectory
from rlsim.workload.lengths import number_in

LEAST_BLOCKS = 2
"""Full blocks of a request that others can be told to go on from: one may be the instructions that all share."""
MILLISECONDS = 1e-3


def sessions_of(rows: Rows, where: str, notes: list[str]) -> list[Trajectory]:
    """Trajectories of a trace in the order of their first requests, those of one request among them. When a request was
    answered is not in it: times of environments are not known. Adds to ``notes`` what a reader must know.

    Raises InputError naming ``where`` and the line of a row without its lengths, time or blocks.
    """
    requests = [(_blocks(row, where, line), _call(row, where, line)) for line, row in rows]
    # The last block may be part of one; the size is that of the fullest.
    size = math.ceil(max((call.context_tokens / len(blocks) for blocks, call in requests if blocks), default=1.0))
    found, open_ = list[list[Call]](), dict[tuple[int, ...], list[list[Call]]]()
    for blocks, call in sorted(requests, key=lambda one: one[1].start_s):
        session = _gone_on(open_, blocks, call)
        if session is None:
            session = []
            found.append(session)
        session.append(call)
        full = int(call.context_tokens // size)
        if full >= LEAST_BLOCKS:
            open_.setdefault(blocks[:full], []).append(session)
    more = sum(len(one) > 1 for one in found)
    notes.append(f"{len(found):,} conversations by {TOKEN_BLOCKS}, {more:,} of them with several turns")
    return [Trajectory(tuple(calls)) for calls in found]


def _gone_on(open_: dict[tuple[int, ...], list[list[Call]]], blocks: tuple[int, ...], call: Call) -> list[Call] | None:
    """The conversation that a request goes on from, no longer open: the longest, of equal ones the latest."""
    for count in range(len(blocks), LEAST_BLOCKS - 1, -1):
        sessions = open_.get(blocks[:count], [])
        for session in reversed(sessions):
            last = session[-1]
            # Requests of one moment cannot be turns of each other.
            if call.context_tokens >= last.context_tokens + last.response_tokens and call.start_s > last.start_s:
                # By identity: equal lengths at one time make equal conversations.
                open_[blocks[:count]] = [one for one in sessions if one is not session]
                return session
    return None


def _call(row: dict[str, Any], where: str, line: int) -> Call:
    context, response, at_ms = (
        number_in(row, key, where, line) for key in ("input_length", "output_length", "timestamp")
    )
    start_s, took = at_ms * MILLISECONDS, row.get("total_time_ms")
    # Mooncake's has no time of an answer; Dynamo's does.
    end_s = math.nan if took is None else start_s + number_in(row, "total_time_ms", where, line) * MILLISECONDS
    return Call(context, response, start_s=start_s, end_s=end_s)


def _blocks(row: dict[str, Any], where: str, line: int) -> tuple[int, ...]:
    blocks = row.get(TOKEN_BLOCKS)
    if not isinstance(blocks, list) or not all(type(one) is int for one in blocks):
        raise InputError(
            f"{where}, line {line}: {TOKEN_BLOCKS} must be a list of whole numbers, got {shortened(repr(blocks))}"
        )
    return tuple(blocks)
