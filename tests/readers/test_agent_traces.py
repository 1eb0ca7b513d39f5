"""Trajectories: the forms in which frameworks write them, and the process that is fitted to them."""

import json
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import agent_processes as known
import numpy as np
import pytest
import yaml

from rlsim.errors import InputError
from rlsim.loading.scenario import load_scenario
from rlsim.readers.traces.agents import AgentAnswer, agents_of
from rlsim.readers.traces.process import Columns, lognormal_of, shared_by_prompt, shared_by_turns, turns_of
from rlsim.readers.traces.reading import Reading, read_trace
from rlsim.readers.traces.sessions import sessions_of
from rlsim.readers.traces.trajectories import Call, Trajectory, trajectories_of
from rlsim.schema.run import RunConditions
from rlsim.schema.workload import LognormalTurns, QuantileTurns, Workload
from rlsim.units import FloatArray
from rlsim.workload.batches import draw_rollouts
from rlsim.workload.lengths import Place, solve_turns, whole_tokens

Command = Callable[..., tuple[int, str, str]]


def one_of(row: dict[str, Any]) -> Trajectory:
    (found,) = trajectories_of(iter([(1, row)]), "file", 4.0, [])
    return found


# forms

TOOL = {"role": "assistant", "content": "x" * 40, "tool_calls": [{"id": "1", "name": "bash", "arguments": "{}"}]}
THINKING = {"role": "assistant", "reasoning_content": "t" * 30, "content": "y" * 10}


def usage(context: int, response: int) -> dict[str, int]:
    return {"prompt_tokens": context, "completion_tokens": response}


def verifiers_trace(**keys: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "q"}, TOOL, {"role": "tool", "content": "z"}, THINKING]
    nodes = [{"parent": place - 1 if place else None, "message": one} for place, one in enumerate(messages)]
    calls = [
        {"node": 1, "usage": usage(100, 20), "time": {"start": 5.0, "end": 7.0}, "finish_reason": "tool_calls"},
        {"node": 3, "usage": usage(150, 40), "time": {"start": 10.5, "end": 12.0}, "finish_reason": "stop"},
    ]
    timing = {"scoring": {"start": 12.0, "end": 14.5}}
    return {"calls": calls, "nodes": nodes, "task": {"key": "t7"}, "ok": True, "timing": timing, **keys}


CALLS = (Call(100, 20, 0.0, 5.0, 7.0, math.nan, "bash"), Call(150, 40, 30.0, 10.5, 12.0, math.nan, ""))


def assert_calls(found: Trajectory, calls: tuple[Call, ...]) -> None:
    for one, other in zip(found.calls, calls, strict=True):
        assert one[:-1] == pytest.approx(other[:-1], nan_ok=True) and one.tool == other.tool


def test_traces_and_episodes_of_verifiers_hold_their_calls_prompts_and_ends() -> None:
    found = one_of(verifiers_trace())
    assert_calls(found, CALLS)
    assert (found.key, found.cut, found.failed, found.reward_s, found.branches) == ("t7", False, False, 2.5, 0)
    judged = verifiers_trace(agent={"trainable": False})
    assert one_of({"traces": [verifiers_trace(), judged], "group": {"id": "g"}}).key == "g"
    assert one_of(verifiers_trace(stop_condition="max_turns")).cut and one_of(verifiers_trace(ok=False)).failed


def test_calls_of_other_branches_are_counted_and_left_out() -> None:
    row = verifiers_trace()
    row["nodes"].append({"parent": 0, "message": THINKING})
    row["calls"].append({"node": 4, "usage": usage(90, 9), "time": {"start": 8.0, "end": 9.0}})
    found = one_of(row)
    assert_calls(found, CALLS)
    assert found.branches == 1


def test_message_lists_take_times_and_usage_and_without_them_characters() -> None:
    messages = [
        {"role": "user", "content": "q", "timestamp": 5.0},
        {**TOOL, "timestamp": 7.0, "usage": usage(100, 20)},
        {"role": "tool", "content": "z", "timestamp": "1970-01-01T00:00:10.500+00:00"},
        {**THINKING, "timestamp": 12.0, "usage": usage(150, 40)},
    ]
    assert_calls(one_of({"messages": messages, "group": 3}), CALLS)
    bare = [{"role": "user", "content": "q" * 40}, {"role": "assistant", "content": "a" * 80},
            {"role": "tool", "content": "z" * 20}, {"role": "assistant", "content": "b" * 8}]  # fmt: skip
    remarks = list[str]()
    (miles,) = trajectories_of(
        iter([(1, {"messages": bare, "group_index": 2, "status": "truncated"})]), "f", 4.0, remarks
    )
    assert [(one.context_tokens, one.response_tokens) for one in miles.calls] == [(10, 20), (35, 2)]
    assert (miles.key, miles.cut, miles.failed) == ("2", True, False) and "4 characters" in remarks[0]
    assert one_of({"messages": bare, "status": "aborted"}).failed


def test_rollouts_of_nemo_gym_take_token_ids_and_join_the_items_of_a_call() -> None:
    ids = {"prompt_token_ids": [0] * 100, "generation_token_ids": [1] * 20}
    output = [
        {"type": "reasoning", "summary": "r" * 8},
        {"type": "function_call", "name": "search", "arguments": "{}", **ids},
        {"type": "function_call_output", "output": "w" * 12},
        {"type": "message", "content": "done", "prompt_token_ids": [0] * 130, "generation_token_ids": [1] * 5},
    ]
    row = {"responses_create_params": {"input": "q"}, "response": {"output": output}, "_ng_task_index": 4}
    found = one_of(row)
    assert [one[:2] for one in found.calls] == [(100, 20), (130, 5)] and found.calls[0].tool == "search"
    assert found.key == "4" and not found.cut
    assert one_of({**row, "response": {"output": output, "incomplete_details": {"reason": "max"}}}).cut


@pytest.mark.parametrize(
    ("row", "message"),
    [({"calls": [{"usage": {}, "time": {}}]}, "at least 20"), ({"calls": [{"usage": 3, "time": {}}]}, "no whole"),
     ({"messages": [{"content": "a"}]}, "no whole"), ({"messages": []}, "at least 20"), ({"x": 1}, "no trajectory")],
)  # fmt: skip
def test_what_is_no_trajectory_is_one_message(row: dict[str, Any], message: str, run: Command, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(row) + "\n")
    code, out, err = run("traces", path, "--format", "agents")
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("end", "key", "message"),
    [(1e300, "a", "environment_s"), (math.inf, ["a", {}], ""), (-5.0, {"a": 1}, ""), (10**400, "a", "no whole")],
)
def test_hostile_times_and_keys_end_in_a_workload_or_one_message(
    end: float, key: object, message: str, run: Command, tmp_path: Path
) -> None:
    row = {"messages": [{"role": "user", "content": "q", "timestamp": 0}, {"role": "assistant", "timestamp": 1},
                        {"role": "tool", "content": "z", "timestamp": end}, {"role": "assistant", "timestamp": end}],
           "group_index": key}  # fmt: skip
    (tmp_path / "t.jsonl").write_text(f"{json.dumps(row)}\n" * 24)
    code, _, err = run("traces", tmp_path / "t.jsonl")
    assert (code, err.count("\n")) == ((2, 1) if message else (0, 0)) and message in err


# estimates


def test_censored_lognormals_and_numbers_of_turns_are_read_back() -> None:
    logs = np.random.default_rng(3).normal(5.0, 0.8, 40_000)
    cap = 5.5
    location, sigma = lognormal_of(np.exp(np.minimum(logs, cap)), np.ones(logs.size), logs > cap)
    assert location == pytest.approx(5.0, abs=0.02) and sigma == pytest.approx(0.8, abs=0.02)
    counts = np.repeat([1, 2, 7], [500, 300, 200])
    section = QuantileTurns.model_validate(turns_of(counts, np.zeros(1000, dtype=np.bool_), None).section)
    scores = np.random.default_rng(4).standard_normal(100_000)
    drawn = whole_tokens(solve_turns(section, 1000).at(scores), 1000)
    shares = [np.mean(drawn == one) for one in (1, 2, 7)]
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.006) and sum(shares) == pytest.approx(1.0)


def test_shared_variances_are_means_over_pairs() -> None:
    rng = np.random.default_rng(0)
    first, second, group = rng.normal(size=7), rng.normal(size=7), np.array([0, 0, 0, 1, 2, 2, 2])
    pairs = [(i, j) for i, j in product(range(7), repeat=2) if i != j and group[i] == group[j]]
    assert shared_by_prompt(first, second, group) == pytest.approx(np.mean([first[i] * second[j] for i, j in pairs]))
    by_owner = [np.mean([first[i] * first[j] for i, j in pairs if group[i] == owner]) for owner in (0, 2)]
    assert shared_by_turns(first, group, 3) == pytest.approx(np.mean(by_owner))


def test_conversations_are_told_by_the_blocks_of_their_prefixes(run: Command, tmp_path: Path) -> None:
    """Turns of a known process as requests of a server, all of whom share their first block."""
    one, size = draw_rollouts(known.workload("independent", prompts=8), Place(3, 0, 0))[0], 512
    rows, rng = [], np.random.default_rng(5)
    for place, (first, end) in enumerate(zip(one.turns.first[:-1], one.turns.first[1:], strict=True)):
        at_ms = float(rng.uniform(0, 1e5))
        for turn in range(first, end):
            context = max(2 * size, int(one.batch.prompt_tokens[place])) + int(one.turns.history_tokens[turn])
            ids = [0, *(1000 * (place + 1) + block for block in range(1, context // size)), 10**6 + turn]
            rows.append({"timestamp": at_ms, "input_length": context, "hash_ids": ids[: -(-context // size)],
                         "output_length": int(one.turns.response_tokens[turn])})  # fmt: skip
            at_ms += float(rng.uniform(1, 1e4))
    rows.sort(key=lambda row: row["timestamp"])
    found = sessions_of(iter(enumerate(rows, 1)), "file", notes := [])
    assert sorted(len(each.calls) for each in found) == sorted(np.diff(one.turns.first))
    assert sum(call.response_tokens for each in found for call in each.calls) == one.turns.response_tokens.sum()
    assert notes == [f"64 conversations by hash_ids, {np.sum(np.diff(one.turns.first) > 1)} of them with several turns"]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = run("traces", tmp_path / "t.jsonl", "--format", "agents")
    assert code == 0 and "64 trajectories" in out and "state workload.agent.environment_s" in " ".join(out.split())
    (tmp_path / "t.jsonl").write_text(json.dumps({**rows[0], "hash_ids": 3}) + "\n")
    code, _, err = run("traces", tmp_path / "t.jsonl", "--format", "agents")
    assert code == 2 and "line 1: hash_ids" in err and err.count("\n") == 1


def test_growth_over_training_is_read_back_and_none_where_there_is_none(tmp_path: Path) -> None:
    """Lengths that double and turns that grow by half over 70 steps, in prime-rl's folders; then neither."""
    plain = known.workload("independent", prompts=12)
    for factor, folder in ((2.0, tmp_path / "grows"), (1.0, tmp_path / "stays")):
        for step in range(0, 80, 10):
            at = {"response_tokens.mean_tokens": 150 * factor ** (step / 70)}
            at["agent.turns.mean_turns"] = 8 * 1.5 ** (math.log2(factor) * step / 70)
            place = folder / f"step_{step}" / "train" / "effective"
            place.mkdir(parents=True)
            known.written(place / "traces.jsonl", with_values(plain, at), seed=step)
        found = read_trace(folder, Reading())
        assert isinstance(found, AgentAnswer)
        if factor == 1.0:
            assert found.trends == []
            continue
        grown = {one.name: one for one in found.trends}
        assert set(grown) == {"turns", "generated tokens of a turn"}
        assert all(one.steps == (0, 70) for one in grown.values())
        assert grown["turns"].last / grown["turns"].first == pytest.approx(1.5, rel=0.15)
        length = grown["generated tokens of a turn"]
        assert length.last / length.first == pytest.approx(2.0, rel=0.15)
        fragment = yaml.safe_load(found.fragment().split("# run: ")[1].splitlines()[0])
        run = RunConditions.model_validate(fragment)
        for points, factor in ((run.response_growth, 2.0), (run.turns_growth, 1.5)):
            assert points[-1][1] / points[0][1] == pytest.approx(factor, rel=0.15)


def with_values(given: Workload, values: dict[str, float]) -> Workload:
    keys = given.model_dump()
    for key, value in values.items():
        *path, name = key.split(".")
        at = keys
        for part in path:
            at = at[part]
        at[name] = value
    return Workload.model_validate(keys)


# recovery


def means(given: Workload) -> dict[str, FloatArray]:
    """Of each summary over many draws the mean, and that of the upper tenth, whom a step waits for."""
    changed = Workload.model_validate(given.model_dump() | {"prompts_per_step": 512, "generations_per_prompt": 8})
    draws = [Columns.drawn(draw_rollouts(changed, Place(9, 0, number))[0]).summaries() for number in range(4)]
    pooled = {name: np.concatenate([one[name] for one in draws]) for name in draws[0]}
    return {
        name: np.array([values.mean(), np.sort(values)[-values.size // 10 :].mean()]) for name, values in pooled.items()
    }


QUICK = ("hard prompts have more of all", "cut by turns and context")


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in QUICK else pytest.mark.nightly) for one in known.PROCESSES]
)
def test_known_processes_are_read_back_and_pass_their_test(name: str, tmp_path: Path) -> None:
    truth = known.workload(name, prompts=1024)
    found = read_trace(known.written(tmp_path / "traces.jsonl", truth), Reading())
    assert isinstance(found, AgentAnswer)
    assert min(one.p for one in found.tests) > 0.01
    sizes = {"prompts_per_step": 1, "generations_per_prompt": 1}
    fitted, true = means(Workload.model_validate({**found.settings, "agent": found.of_agent, **sizes})), means(truth)
    for key, values in true.items():
        assert fitted[key] == pytest.approx(values, rel=0.05), key
    agent, keys = truth.agent, found.of_agent
    assert agent is not None
    assert found.settings["group_correlation"] == pytest.approx(truth.group_correlation, abs=0.06)
    for key in ("environment_group_correlation", "environment_trajectory_correlation",
                "response_trajectory_correlation"):  # fmt: skip
        assert keys[key] == pytest.approx(getattr(agent, key), abs=0.06), key
    for key in ("turns_length_correlation", "environment_length_correlation"):
        assert keys[key] == pytest.approx(getattr(agent, key), abs=0.15), key
    assert isinstance(agent.turns, LognormalTurns)
    if agent.max_turns == 30:
        assert (keys["max_turns"], found.settings["max_sequence_tokens"]) == (30, 6000)


def test_a_process_that_does_not_describe_the_sample_says_so() -> None:
    # Half of the trajectories have many short turns, half few long ones: within prompts nothing is alike.
    rng, found = np.random.default_rng(1), []
    for place in range(400):
        turns, tokens = (20, 20) if rng.random() < 0.5 else (2, 2000)
        calls = [Call(100.0 + turn * tokens, tokens, start_s=turn * 1.0, end_s=turn + 0.5) for turn in range(turns)]
        found.append(Trajectory(tuple(calls), str(place // 8)))
    answer = agents_of(found, "made")
    assert any("does not describe" in one and "generated tokens" in one for one in answer.remarks())


def test_trajectories_without_times_or_prompts_say_what_is_left_open() -> None:
    calls = (Call(100.0, 20.0), Call(150.0, 30.0))
    answer = agents_of([Trajectory(calls)] * 24, "made")
    told = " ".join(answer.remarks())
    assert "environment_s" not in answer.of_agent and "not every time" in told and "nothing names the prompts" in told
    assert {one.name for one in answer.tests} == {"turns", "generated tokens", "final context"}
    with pytest.raises(InputError, match="at least 20"):
        agents_of([Trajectory(calls)] * 19, "made")


def test_the_command_writes_a_fragment_that_extends_a_scenario(run: Command, tmp_path: Path) -> None:
    truth = known.workload("hard prompts have more of all", prompts=16)
    code, out, err = run("traces", known.written(tmp_path / "t.jsonl", truth), "--out", tmp_path / "found")
    assert (code, err) == (0, "") and "of a trajectory" in out
    files = {"fragment.yaml", "trace.json", "lengths.png", "trajectories.csv"}
    assert {one.name for one in (tmp_path / "found").iterdir()} == files
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: quickstart\n" + (tmp_path / "found" / "fragment.yaml").read_text())
    agent = load_scenario(str(mine)).workload.agent
    assert agent is not None and agent.turns_group_correlation
    answer = json.loads((tmp_path / "found" / "trace.json").read_text())
    assert answer["trajectories"] == 128 and set(answer["tests"]) >= {"turns", "environment seconds"}


def test_columns_of_a_file_are_those_of_what_it_was_drawn_from(tmp_path: Path) -> None:
    given = known.workload("alike within prompts", prompts=5, size=3)
    lines = enumerate(known.written(tmp_path / "t.jsonl", given).read_text().splitlines(), start=1)
    found = [*trajectories_of(((line, json.loads(row)) for line, row in lines), "file", 4.0, [])]
    read, drawn = Columns.of(found, None, "file"), Columns.drawn(draw_rollouts(given, Place(1, 0, 0))[0])
    for name in ("turns", "prompt_tokens", "total_tokens", "group", "owner", "response_tokens", "gap_owner",
                 "observation_tokens", "environment_s"):  # fmt: skip
        assert getattr(read, name) == pytest.approx(getattr(drawn, name)), name


# the keys


def drawn(**agent: Any) -> tuple[Columns, FloatArray]:
    """A rollout with ``agent`` keys, and the mean turn of each trajectory."""
    keys = {"group_correlation": agent.pop("group_correlation", 0.5), "max_sequence_tokens": 1_000_000}
    base = known.workload("independent", prompts=40).model_dump()
    given = Workload.model_validate({**base, **keys, "agent": {**known.PLAIN, **agent}})
    found = Columns.drawn(draw_rollouts(given, Place(2, 0, 0))[0])
    return found, np.bincount(found.owner, found.response_tokens) / found.turns


def test_what_is_shared_in_full_is_equal() -> None:
    found, _ = drawn(turns_group_correlation=1)
    assert np.all(found.turns.reshape(40, 8) == found.turns[::8, None])
    found, level = drawn(response_trajectory_correlation=0.5)
    assert np.all(found.response_tokens == level[found.owner]) and np.unique(level).size > 40
    found, level = drawn(group_correlation=1, turns_group_correlation=1, turns_length_correlation=1)
    assert np.all(np.diff(found.turns[np.argsort(level, kind="stable")]) >= 0)
    found, level = drawn(group_correlation=1, turns_group_correlation=1, turns_length_correlation=-1)
    assert np.all(np.diff(found.turns[np.argsort(level, kind="stable")]) <= 0)


def test_joint_keys_move_neither_lengths_nor_what_they_do_not_name() -> None:
    (plain, _), (joint, _) = drawn(), drawn(environment_length_correlation=0.9, environment_group_correlation=0.4)
    assert np.array_equal(plain.turns, joint.turns) and np.array_equal(plain.response_tokens, joint.response_tokens)
    assert not np.array_equal(plain.environment_s, joint.environment_s)
    with pytest.raises(ValueError, match=r"group_correlation \+ agent.response_trajectory_correlation must not exceed"):
        drawn(response_trajectory_correlation=0.6)


def test_new_writes_agents_where_their_means_are_given(run: Command, tmp_path: Path) -> None:
    answers = ["--model", "qwen3-1.7b", "--hardware", "h100_sxm", "--gpus", "8", "--batch", "8x4"]
    answers += ["--response-tokens", "200", "--mean-turns", "6"]
    code, _, err = run("new", tmp_path / "a.yaml", *answers)
    assert code == 2 and "--observation-tokens" in err
    assert run("new", tmp_path / "a.yaml", *answers, "--observation-tokens", "300", "--environment-s", "2.5")[0] == 0
    workload = load_scenario(str(tmp_path / "a.yaml")).workload
    agent = workload.agent
    assert agent is not None and isinstance(agent.turns, LognormalTurns) and agent.turns.mean_turns == 6
    assert workload.max_sequence_tokens >= 4 * 6 * 500
