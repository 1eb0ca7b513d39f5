"""Small files of agents and of requests in each of their forms, with what each form may tell, for the golden net."""

import json
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Row = dict[str, Any]
COUNT = 30
"""Trajectories of a file: some more than rlsim asks for."""


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _message(rng: random.Random, turn: int, last: bool) -> Row:
    """An answer that thinks, calls a tool or ends."""
    thought = {"reasoning_content": "t" * rng.randrange(40)} if turn % 3 == 0 else {}
    name = rng.choice(("bash", "search", "edit"))
    call = {"tool_calls": [{"function": {"name": name, "arguments": "a" * 9}} if turn % 2 else {"name": name}]}
    return {"role": "assistant", "content": "y" * rng.randrange(1, 80), **thought, **({} if last else call)}


def episodes(rng: random.Random) -> list[Row]:
    """Traces of verifiers that grow over steps, with branches, errors, limits, scores, and episodes of two agents."""
    rows: list[Row] = []
    for n in range(COUNT):
        nodes: list[Row] = [{"parent": None, "message": {"role": "user", "content": "q"}}]
        calls, clock, context = [], 100.0 * n, rng.randrange(200, 300)
        turns = rng.randrange(1, 5)
        for turn in range(turns):
            nodes.append({"parent": len(nodes) - 1, "message": _message(rng, turn, turn + 1 == turns)})
            tokens = round(rng.randrange(20, 90) * (1 + 0.4 * (n // 5)))
            usage = {"prompt_tokens": context, "completion_tokens": tokens, "cached_tokens": context // 2}
            span = {"start": clock, "end": clock + tokens / 50}
            end = "length" if n % 9 == 8 and turn + 1 == turns else "stop"
            calls.append({"node": len(nodes) - 1, "usage": usage, "time": span, "finish_reason": end})
            clock, context = span["end"] + rng.randrange(1, 9), context + tokens + rng.randrange(5, 60)
        if n % 7 == 3:  # another branch, and a call that failed
            nodes.append({"parent": 0, "message": _message(rng, 0, True)})
            calls.append({"node": len(nodes) - 1, "usage": {"input_tokens": 9, "output_tokens": 4}, "time": span})
            calls.append({"node": 1, "error": "x", "usage": {"input_tokens": 9}, "time": span})
        rng.shuffle(calls)
        stop = {4: "max_turns", 5: "max_total_tokens"}.get(n % 10, "done")
        one = {"calls": calls, "nodes": nodes, "task": {"key": f"k{n // 2}"}, "ok": n % 11 != 10,
               "stop_condition": stop, "timing": {"scoring": {"start": 1, "end": 2.5 + n % 3}},
               "step": n // 5}  # fmt: skip
        judged = {**one, "agent": {"trainable": False}}
        rows.append({"traces": [one, judged], "group": {"id": n // 3}, "step": n // 5} if n % 4 == 1 else one)
    return rows


def messages(rng: random.Random, told: bool) -> list[Row]:
    """Message lists. told: with times, tokens and groups, else texts alone."""
    rows: list[Row] = []
    for n in range(COUNT):
        clock, context = 50.0 * n, rng.randrange(100, 200)
        found: list[Row] = [
            {"role": "system", "content": "s" * 30},
            {"role": "user", "content": "q" * (n // 2 % 5 + 1)},
        ]
        turns = rng.randrange(1, 6)
        for turn in range(turns):
            answer = _message(rng, turn, turn + 1 == turns)
            tokens = rng.randrange(10, 60)
            if told:
                found[-1]["timestamp"] = clock
                usage = {"input_tokens": context, "output_tokens": tokens}
                usage |= {"prompt_tokens_details": {"cached_tokens": 64}}
                answer |= {"timestamp": clock + tokens / 20, "usage": usage}
            found.append(answer)
            if turn + 1 < turns:
                found.append({"role": "tool", "content": "z" * rng.randrange(1, 90)})
                found += [{"role": "user", "content": "and"}] if turn == 1 else []
            clock, context = clock + tokens / 20 + rng.randrange(1, 30), context + tokens + 20
        row: Row = {"messages": found}
        if told:
            row |= {"group_index": n // 3, "status": {7: "truncated", 8: "aborted"}.get(n % 9, "completed")}
            row |= {"finish_reason": "length"} if n % 13 == 12 else {}
        else:
            row |= {"truncated": True} if n % 6 == 5 else {"error": "x"} if n % 14 == 13 else {}
        rows.append(row)
    return rows


def gym(rng: random.Random) -> list[Row]:
    """Rollouts of NeMo-Gym with token ids, their reasoning and their functions."""
    rows: list[Row] = []
    for n in range(COUNT):
        output: list[Row] = []
        context = 40 + n % 4
        for turn in range(rng.randrange(1, 4)):
            size = rng.randrange(3, 30)
            ids = {"prompt_token_ids": [0] * context, "generation_token_ids": [1] * size} if n % 5 else {}
            output += [{"type": "reasoning", "summary": "r" * rng.randrange(1, 40)}] if turn % 2 == 0 else []
            output += [{"type": "function_call", "name": f"f{n % 3}", "arguments": "{}", **ids},
                       {"type": "function_call_output", "output": "w" * rng.randrange(1, 50)}]  # fmt: skip
            context += size + 12
        output.append({"type": "message", "content": "done" * rng.randrange(1, 5)})
        response = {"output": output, "incomplete_details": {"reason": "max"} if n % 8 == 7 else None}
        more = {"_ng_failure_class": "x"} if n % 12 == 11 else {}
        rows.append({"responses_create_params": {"input": "q" * (n % 7)}, "response": response,
                     "_ng_task_index": n // 2, **more})  # fmt: skip
    return rows


def served(rng: random.Random, session: bool) -> list[Row]:
    """Requests of Dynamo, with sub-agents and requests at one time. session: named, else by their blocks."""
    rows: list[Row] = []
    for n in range(COUNT):
        at_ms, context = 1e5 * n, rng.randrange(300, 400)
        for turn in range(rng.randrange(1, 5)):
            tokens, took = rng.randrange(20, 80), rng.randrange(500, 4000)
            hashes = [n // 2, *range(100 * n, 100 * n + context // 40)]
            request: Row = {
                "input_tokens": context, "output_tokens": tokens, "request_received_ms": at_ms, "total_time_ms": took,
                "replay": {"input_length": context, "input_sequence_hashes": hashes},
            }  # fmt: skip
            request |= {"cached_tokens": context // 3, "finish_reason_metadata": {"tool_calls": [{"name": f"t{turn}"}]}}
            event: Row = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request}
            if session:
                event["agent_context"] = {"session_id": f"s{n}"}
                if n % 6 == 5:
                    event["agent_context"]["parent_session_id"] = f"s{n - 1 - n % 2}"
            rows.append({"timestamp": 1, "event": event} if n % 2 else event)
            # Every fifth goes on before the last answer is there: a fan-out.
            at_ms += took * (0.5 if turn and n % 5 == 0 else 1) + rng.randrange(100, 5000)
            context += tokens + rng.randrange(10, 60)
    rng.shuffle(rows)
    return rows


def blocks(rng: random.Random) -> list[Row]:
    """Conversations of Mooncake by their blocks of 40 tokens, of which some begin alike."""
    rows: list[Row] = []
    for n in range(COUNT):
        at, context = 1000 * n, rng.randrange(120, 300)
        for _ in range(rng.randrange(1, 5)):
            ids = [n % 2, *range(100 * (n - n % 3), 100 * (n - n % 3) + -(-context // 40) - 1)]
            tokens = rng.randrange(20, 80)
            rows.append({"timestamp": at, "input_length": context, "output_length": tokens, "hash_ids": ids})
            at, context = at + rng.randrange(0, 9000, 3000), context + tokens + rng.randrange(10, 60)
    return rows


AGENTS: Mapping[str, Callable[[random.Random], list[Row]]] = {
    "episodes": episodes, "messages": lambda rng: messages(rng, True), "texts": lambda rng: messages(rng, False),
    "gym": gym, "sessions": lambda rng: served(rng, True), "requests": lambda rng: served(rng, False), "blocks": blocks,
}  # fmt: skip


def agent_texts() -> dict[str, str]:
    """Files of trajectories by form."""
    return {name: _lines(made(random.Random(name))) for name, made in AGENTS.items()}


def _lengths(rng: random.Random, count: int, sigma: float = 0.6, cap: int = 10**6) -> list[int]:
    return [min(cap, 1 + round(200 * rng.lognormvariate(0, sigma))) for _ in range(count)]


def request_texts() -> dict[str, str]:
    """Files of requests by form: lengths that are cut, spread, alike, shared by prompts, and told by texts."""
    rng = random.Random(5)
    out, free, cut = dict[str, str](), _lengths(rng, 60), _lengths(rng, 60, 0.8, 300)
    out["groups"] = "completion_tokens,prompt_tokens,prompt_id\n" + "".join(
        f"{value + 40 * (n // 4 % 5)},{50 + n // 4},p{n // 4}\n" for n, value in enumerate(free))  # fmt: skip
    out["cut"] = "output_tokens,input_tokens\n" + "".join(f"{value},{40 + n % 9}\n" for n, value in enumerate(cut))
    out["sequence cut"] = "output_tokens,input_tokens\n" + "".join(
        f"{min(value, 360 - n % 50)},{40 + n % 50}\n" for n, value in enumerate(_lengths(rng, 60, 0.8)))  # fmt: skip
    out["alike"] = "output_tokens\n" + "7\n" * 9
    out["two kinds"] = "output_tokens\n" + "".join(f"{900 if n % 3 else 5 + n}\n" for n in range(80))
    out["azure"] = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2024-05-10 00:00:{n:02d},{300 + n},{value}\n" for n, value in enumerate(free))  # fmt: skip
    out["verl"] = _lines({"input": "q" * (20 + n // 4), "output": "y" * value, "score": 1.0, "step": n // 20}
                         for n, value in enumerate(free))  # fmt: skip
    out["verl with tokens"] = _lines({"input": "q", "output": "y" * 9, "response_length": value, "prompt_length": n % 7}
                                     for n, value in enumerate(free))  # fmt: skip
    out["generated alone"] = "GeneratedTokens\n" + "".join(f"{value}\n" for value in free)
    out["context and more"] = "ContextTokens,output_tokens\n" + "".join(f"{value},{value % 60}\n" for value in free)
    out["nemo-rl"] = _lines({"input_lengths": [6 + n % 3 + value % 50],
                             "token_ids": [n // 3] * (6 + n % 3 + value % 50),
                             "token_loss_mask": [0] * (6 + n % 3) + [1] * (value % 50), "x": n}
                            for n, value in enumerate(free))  # fmt: skip
    out["json"] = _lines({"output_tokens": value, "prompt_len": 9 + n % 5, "group_id": n // 5}
                         for n, value in enumerate(free))  # fmt: skip
    counters = [(n, engine, name, value) for n in (1, 3) for engine in "01" for name, value in (
        ("num_drafts", 1000), ("num_draft_tokens", 2600), ("num_accepted_tokens", 1500))]  # fmt: skip
    out["counters"] = "".join(
        f'vllm:spec_decode_{name}_total{{engine="{e}"}} {value * n}\n' for n, e, name, value in counters)  # fmt: skip
    out["counters"] += "".join(
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="{e}",position="{p}"}} {(800 - 250 * p) * n}\n'
        for n in (1, 3) for e in "01" for p in range(3))  # fmt: skip
    for name, wrong in (("negative", "-5"), ("no number", "nan")):
        out[f"counters, {name}"] = out["counters"].replace(" 3000\n", f" {wrong}\n")
    for name, row in (("blocks", {"hash_ids": [1, 2]}), ("times", {"timestamp": 5}), ("neither", {"other": 1})):
        out[f"output lengths with {name}"] = _lines({"output_length": value, **row} for value in free)
    out["log of vllm"] = "".join(
        f"INFO SpecDecoding metrics: Mean acceptance length: {2.3 + 0.06 * n:.2f}, Accepted: 9 tokens, "
        f"Drafted: {300 + 60 * n} tokens, "
        f"Per-position acceptance rate: {0.8 + n / 20:.3f}, 0.5{n}, Avg Draft acceptance rate: 43.3%\n"
        for n in range(4))  # fmt: skip
    return out
