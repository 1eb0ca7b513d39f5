"""Trajectories of agents in the files that frameworks write, as calls of the policy with what came between them.

Read: episodes and traces of verifiers, as prime-rl appends them to ``traces.jsonl`` (PrimeIntellect-ai/verifiers
00eee6c6, verifiers/v1/trace.py and episode.py; prime-rl 559b4477, src/prime_rl/monitors/file.py); rollouts of NeMo-Gym
(NVIDIA-NeMo/Gym 00536e7a, nemo_gym/rollout_collection.py, and 00be44f9, responses_api_agents/simple_agent/app.py);
``trajectory/N.jsonl`` of miles (31f1ca96, miles/ray/rollout/debug_data.py); and OpenAI's message lists, whose assistant
messages may have ``usage`` and all of which may have a ``timestamp``.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from rlsim.errors import InputError, shortened
from rlsim.readers.traces.requests import Rows
from rlsim.workload.lengths import PROMPT_IDS

LIMITS = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed")
"""Stop conditions of verifiers that cut a trace (Trace.is_truncated)."""
FAILED = ("aborted", "failed")
"""States of miles' samples that are no trajectory to learn from (miles/utils/types.py, Sample.Status)."""


class Call(NamedTuple):
    """One turn of the policy. NaN stands for what a file does not have.

    context_tokens: before it; response_tokens: generated, thought_tokens of them reasoning; start_s, end_s: clock;
    cached_tokens: of the context found in the prefix cache; tool: what it called, empty for none.
    """

    context_tokens: float
    response_tokens: float
    thought_tokens: float = math.nan
    start_s: float = math.nan
    end_s: float = math.nan
    cached_tokens: float = math.nan
    tool: str = ""


@dataclass(frozen=True)
class Trajectory:
    """Calls in order. key: names the prompt; cut: by any limit, turn_limit: by that of its turns; reward_s: of scoring,
    NaN where not given; branches: calls of sub-agents and compactions, which are left out; step: of the training run,
    None where not given."""

    calls: tuple[Call, ...]
    key: str | None = None
    cut: bool = False
    failed: bool = False
    reward_s: float = math.nan
    branches: int = 0
    turn_limit: bool = False
    step: int | None = None


class _Piece(NamedTuple):
    """A message, or part of one. tokens: given or from characters."""

    ours: bool
    tokens: float
    thought_tokens: float
    at_s: float
    tool: str
    usage: Mapping[str, Any]


def is_trajectory(row: Mapping[str, Any]) -> bool:
    """Whether a row of JSON is one of the known kinds."""
    return _reader_of(row) is not None


def trajectories_of(rows: Rows, where: str, characters_per_token: float, remarks: list[str]) -> Iterator[Trajectory]:
    """Trajectories of a text. Adds to ``remarks`` what a reader must know.

    Raises InputError naming ``where`` and the line of a row that is no trajectory.
    """
    for line, row in rows:
        reader = _reader_of(row)
        if reader is None:
            keys = shortened(", ".join(map(str, row)))
            raise InputError(
                f"{where}, line {line}: no trajectory: needs 'calls', 'traces', 'messages' or 'response'; has {keys}"
            )
        try:
            step = row.get("step")
            for one in reader(row, characters_per_token):
                yield replace(one, step=step) if type(step) is int else one
        except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{where}, line {line}: no whole trajectory ({shortened(repr(error))})") from error
        if not remarks and reader in (_messages, _gym) and not _counted(row):
            remarks.append(
                f"assumed: {characters_per_token:g} characters a token where messages have no token counts "
                "(--characters-per-token states that of your tokenizer)"
            )


_Reader = Callable[[Mapping[str, Any], float], Iterable[Trajectory]]


def _reader_of(row: Mapping[str, Any]) -> _Reader | None:
    if isinstance(row.get("traces"), list):
        return _episode
    if isinstance(row.get("calls"), list):
        return _trace
    if isinstance(row.get("messages"), list):
        return _messages
    return _gym if isinstance(row.get("response"), dict) and "responses_create_params" in row else None


def _counted(row: Mapping[str, Any]) -> bool:
    response = row.get("response")
    parts = response.get("output", ()) if isinstance(response, dict) else row.get("messages", ())
    return any(isinstance(part, dict) and ("usage" in part or "generation_token_ids" in part) for part in parts)


def _episode(row: Mapping[str, Any], characters: float) -> Iterator[Trajectory]:
    """An episode of verifiers: the traces of the agents that are trained."""
    group = (row.get("group") or {}).get("id")
    for trace in row["traces"]:
        if (trace.get("agent") or {}).get("trainable", True):
            yield from _trace({**trace, "group_id": group}, characters)


def _trace(row: Mapping[str, Any], _: float) -> Iterator[Trajectory]:
    """A trace of verifiers: its calls with the usage that the provider reported."""
    nodes, task = row.get("nodes") or [], row.get("task") or {}
    # A call without usage or with an error gave no turn.
    done = [call for call in row["calls"] if call.get("usage") and not call.get("error")]
    done.sort(key=lambda call: float(call["time"]["start"]))
    main = _longest_path(nodes, done)
    key = next((key for key in (row.get("group_id"), task.get("key"), task.get("hash")) if key is not None), None)
    scoring = (row.get("timing") or {}).get("scoring") or {}
    cut = row.get("stop_condition") in LIMITS or bool(done and done[-1].get("finish_reason") == "length")
    failed = not row.get("ok", True) or not main
    calls = tuple(_call(call, nodes) for call in main)
    turn_limit = row.get("stop_condition") == LIMITS[0]
    yield Trajectory(calls, _name(key), cut, failed, _span(scoring), len(done) - len(main), turn_limit)


def _longest_path(nodes: list[Any], calls: list[Any]) -> list[Any]:
    """The calls of that branch of the message graph which has most; all where no call names its node."""
    at = {call["node"]: call for call in calls if call.get("node") is not None}
    if len(at) < len(calls):
        return calls
    inner = {node.get("parent") for node in nodes}
    best: list[Any] = []
    for leaf in (node for node in at if node not in inner):
        path, place, seen = [], leaf, set[int]()
        # Somebody's file may name parents in a circle.
        while place is not None and place not in seen:
            seen.add(place)
            path += [at[place]] if place in at else []
            place = nodes[place].get("parent")
        best = max(best, path[::-1], key=len)
    return best


def _call(call: Mapping[str, Any], nodes: list[Any]) -> Call:
    usage, time = call["usage"], call["time"]
    message = nodes[call["node"]].get("message", {}) if call.get("node") is not None else {}
    response = _count(usage, "completion_tokens", "output_tokens")
    context = _count(usage, "prompt_tokens", "input_tokens")
    cached = _count(usage, "cached_input_tokens", "cached_tokens", default=math.nan)
    thought = response * _thought_share(message)
    return Call(context, response, thought, _clock(time["start"]), _clock(time["end"]), cached, _tool(message))


def _span(span: Mapping[str, Any]) -> float:
    return max(0.0, _clock(span["end"]) - _clock(span["start"])) if span.get("end") else math.nan


def _messages(row: Mapping[str, Any], characters: float) -> Iterator[Trajectory]:
    """A message list, with the keys that miles writes beside it."""
    pieces = list[_Piece]()
    for message in row["messages"]:
        ours = message["role"] == "assistant"
        tokens = _characters(message) / characters
        usage, thought = message.get("usage") or {}, tokens * _thought_share(message)
        pieces.append(_Piece(ours, tokens, thought, _clock(message.get("timestamp")), _tool(message), usage))
    last = row["messages"][-1] if row["messages"] else {}
    cut = bool(row.get("truncated")) or "length" in (row.get("finish_reason"), last.get("finish_reason"))
    cut = cut or row.get("status") == "truncated"
    failed = row.get("status") in FAILED or bool(row.get("error"))
    named = (row.get("group_index"), *(row.get(name) for name in PROMPT_IDS))
    # Where nothing names the prompt, equal instructions and question do.
    opening = [message for message in row["messages"] if message["role"] != "assistant"][:2]
    key = next((name for name in named if name is not None), opening)
    calls = _calls_of(pieces)
    yield Trajectory(calls, _name(key), cut, failed or not calls)


def _gym(row: Mapping[str, Any], characters: float) -> Iterator[Trajectory]:
    """A rollout of NeMo-Gym: the items of the Responses API, token ids where it was asked for them."""
    asked, pieces = row["responses_create_params"].get("input", ""), list[_Piece]()
    pieces.append(_Piece(False, _characters({"content": asked}) / characters, 0.0, math.nan, "", {}))
    for item in row["response"]["output"]:
        # Of the Responses API's output items the results of functions alone come from outside.
        ours = item.get("type") != "function_call_output"
        tokens, usage = _characters(item) / characters, {}
        if isinstance(ids := item.get("generation_token_ids"), list):
            usage = {"completion_tokens": len(ids), "prompt_tokens": len(item["prompt_token_ids"])}
        thought = tokens if item.get("type") == "reasoning" else 0.0
        tool = str(item.get("name", "")) if item.get("type") == "function_call" else ""
        pieces.append(_Piece(ours, tokens, thought, math.nan, tool, usage))
    cut = bool(row["response"].get("incomplete_details"))
    calls = _calls_of(pieces)
    failed = bool(row.get("_ng_failure_class")) or not calls
    yield Trajectory(calls, _name(row.get("_ng_task_index")), cut, failed)


def _calls_of(pieces: list[_Piece]) -> tuple[Call, ...]:
    """Calls of the policy: its messages in a row are one. A call starts when the message before it came."""
    calls, context, before_s = list[Call](), 0.0, math.nan
    open_call: Call | None = None
    for piece in pieces:
        if not piece.ours:
            calls += [] if open_call is None else [open_call]
            context += 0.0 if open_call is None else open_call.response_tokens
            open_call, before_s = None, piece.at_s
            context += piece.tokens
            continue
        last = open_call or Call(context, 0.0, 0.0, before_s)
        context = _count(piece.usage, "prompt_tokens", "input_tokens", default=last.context_tokens)
        tokens = _count(piece.usage, "completion_tokens", "output_tokens", default=last.response_tokens + piece.tokens)
        # The share of characters that is thought holds for the tokens too.
        scale = tokens / max(last.response_tokens + piece.tokens, 1e-9)
        thought = scale * (last.thought_tokens + piece.thought_tokens)
        details = piece.usage.get("prompt_tokens_details") or {}
        cached = _count(details, "cached_tokens", default=last.cached_tokens)
        open_call = Call(context, tokens, thought, before_s, piece.at_s, cached, last.tool or piece.tool)
    return (*calls, *([] if open_call is None else [open_call]))


def _count(found: Mapping[str, Any], *names: str, default: float | None = None) -> float:
    """The number of tokens under the first name that is there. Raises ValueError where it is none."""
    value = next((found[name] for name in names if found.get(name) is not None), default)
    if value is None or isinstance(value, bool) or not (math.isnan(float(value)) or 0 <= float(value) < 1e9):
        raise ValueError(f"{names[0]} must be a number of at least 0; got {value!r}")
    return float(value)


def _clock(value: Any) -> float:
    """Seconds of a number, or of ISO 8601; NaN for none, and for what is no moment."""
    if value is None:
        return math.nan
    seconds = datetime.fromisoformat(value).timestamp() if isinstance(value, str) else float(value)
    return seconds if math.isfinite(seconds) else math.nan


def _name(key: Any) -> str | None:
    return None if key is None else _text(key)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _characters(message: Mapping[str, Any]) -> int:
    """Characters of all that a message or an item holds for the model to read."""
    parts = ("content", "reasoning_content", "reasoning", "summary", "tool_calls", "arguments", "output")
    return sum(len(_text(message[part])) for part in parts if message.get(part))


def _thought_share(message: Mapping[str, Any]) -> float:
    """Share of the characters of a message that is reasoning; NaN of an empty one."""
    thought = message.get("reasoning_content") or message.get("reasoning") or ""
    total = _characters(message)
    return len(_text(thought)) / total if total else math.nan


def _tool(message: Mapping[str, Any]) -> str:
    """The first tool that a message calls, empty for none."""
    for call in message.get("tool_calls") or ():
        return str((call.get("function") or call).get("name", ""))
    return ""
